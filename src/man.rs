//! `mainstay man [PAGE]`: the manual pages, in the language of man(7).
//!
//! Input: the tables of subcommands and flags. Output: one page. There is no date in a page: equal
//! sources give equal pages.

use crate::commands::{COMMANDS, Offer, offer, placeholder};
use crate::flags::table::{Effect, FLAGS, Kind};

/// A page by its name; nothing for a name that is not known.
pub(crate) fn page(name: &str) -> Option<String> {
    match name {
        "mainstay" => Some(mainstay()),
        "etcd" | "mainstay-etcd" => Some(etcd()),
        "etcdutl" | "mainstay-etcdutl" => Some(etcdutl()),
        _ => None,
    }
}

/// A page that grows line by line.
struct Page(String);

impl Page {
    fn new(name: &str, what: &str) -> Self {
        let title = name.to_uppercase().replace('-', r"\-");
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Page(format!(".TH {title} 1 \"\" \"mainstay {version}\" \"Mainstay\"\n"));
        page.section("NAME");
        page.0.push_str(&format!("{} \\- {}\n", escaped(name), escaped(what)));
        page
    }

    fn section(&mut self, name: &str) -> &mut Self {
        self.0.push_str(&format!(".SH {name}\n"));
        self
    }

    /// A paragraph.
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push_str(&format!(".PP\n{}\n", escaped(text)));
        self
    }

    /// A word in bold, what follows it, and what it means.
    fn item(&mut self, word: &str, rest: &str, meaning: &str) -> &mut Self {
        let rest =
            if rest.is_empty() { String::new() } else { format!("\\fI{}\\fR", escaped(rest)) };
        let (word, meaning) = (escaped(word), escaped(meaning));
        self.0.push_str(&format!(".TP\n\\fB{word}\\fR{rest}\n{meaning}\n"));
        self
    }

    /// Commands, as they are typed.
    fn example(&mut self, text: &str) -> &mut Self {
        self.0.push_str(&format!(".PP\n.nf\n.RS\n{}\n.RE\n.fi\n", escaped(text)));
        self
    }
}

/// Text in which nothing is a request or an escape.
fn escaped(text: &str) -> String {
    let text =
        text.replace('\\', r"\e").replace('-', r"\-").replace('\'', r"\(aq").replace('`', r"\(ga");
    let lines: Vec<_> = text
        .lines()
        .map(|line| if line.starts_with('.') { format!(r"\&{line}") } else { line.to_string() })
        .collect();
    lines.join("\n")
}

fn mainstay() -> String {
    let mut page = Page::new("mainstay", "an etcd-compatible consensus store");
    page.section("SYNOPSIS").text("mainstay COMMAND [ARGUMENTS]").section("DESCRIPTION").text(
        "One binary for the store and the tools around it. It speaks etcd's client protocol, peer \
         protocol and log format; etcdctl is used with it unchanged.",
    );
    page.section("COMMANDS");
    for command in COMMANDS {
        let rest = if command.arguments.is_empty() {
            String::new()
        } else {
            format!(" {}", command.arguments)
        };
        page.item(command.name, &rest, &format!("{}.", command.help));
    }
    page.section("EXIT STATUS")
        .item("0", "", "Success.")
        .item("1", "", "The command failed.")
        .item("2", "", "The command line was not understood.");
    page.section("SEE ALSO").text("mainstay-etcd(1), mainstay-etcdutl(1), etcdctl(1)");
    page.0
}

fn etcd() -> String {
    let mut page = Page::new("mainstay-etcd", "serve one member of an etcd-compatible store");
    page.section("SYNOPSIS").text("mainstay etcd [FLAGS]").text("etcd [FLAGS]");
    page.section("DESCRIPTION").text(
        "Serves one member with etcd's flags. A flag is written --name value, --name=value, or with \
         one dash. A flag that takes true or false means true when it stands alone, and takes false \
         only as --name=false. Durations are written as 100ms, 5s, 1h30m.",
    );
    let mut section = "";
    for flag in FLAGS {
        if flag.section != section {
            section = flag.section;
            page.section(&format!("{} FLAGS", section.to_uppercase()));
        }
        let mut meaning = flag.help.to_string();
        if let Offer::Words(words) = offer(flag) {
            meaning.push_str(&format!("\nOne of: {}.", words.join(", ")));
        }
        match (flag.kind, flag.default) {
            (_, "") => {}
            (_, default) => meaning.push_str(&format!("\nDefault: {default}")),
        }
        match flag.effect {
            Effect::Honoured => {}
            Effect::Differs(what) => {
                meaning.push_str(&format!("\nAccepted without effect: {what}."));
            }
            Effect::Refused(why) => meaning.push_str(&format!("\nRefused: {why}.")),
        }
        let value = match flag.kind {
            Kind::Switch => format!("[={}]", placeholder(flag)),
            _ => format!("={}", placeholder(flag)),
        };
        // A line break of the source is one of the page.
        let meaning = meaning.replace('\n', "\n.br\n");
        page.0.push_str(&format!(
            ".TP\n\\fB{}\\fR\\fI{}\\fR\n{}\n",
            escaped(&format!("--{}", flag.name)),
            escaped(&value),
            escaped(&meaning).replace("\\&.br", ".br")
        ));
    }
    page.section("ENVIRONMENT").text(
        "Each flag can also be given as a variable: --data-dir as ETCD_DATA_DIR. A variable and its \
         flag together are an error. With --config-file, other flags and variables are ignored.",
    );
    page.item(
        "NOTIFY_SOCKET",
        "",
        "Where systemd is told that the member serves (READY=1) and that it stops (STOPPING=1).",
    );
    page.section("SIGNALS").item(
        "SIGTERM, SIGINT",
        "",
        "Hand leadership over, let requests end, close the data, and end. A second signal is not needed.",
    );
    page.section("FILES")
        .item("/etc/default/mainstay", "", "Variables of the packaged service.")
        .item("/var/lib/mainstay", "", "Data of the packaged service.");
    page.section("EXIT STATUS")
        .item(
            "0",
            "",
            "The member was removed from its cluster, or it was told to stop as process 1.",
        )
        .item(
            "1",
            "",
            "A setting is wrong, or the member failed; the last line of the log says why.",
        )
        .item("2", "", "A flag was not understood.")
        .item("130, 143", "", "It was told to stop by SIGINT or SIGTERM.");
    page.section("EXAMPLES")
        .text("A store of one member, for trying it out:")
        .example("mainstay etcd --data-dir /tmp/store");
    page.section("SEE ALSO").text("mainstay(1), mainstay-etcdutl(1), etcdctl(1), systemd.exec(5)");
    page.0
}

fn etcdutl() -> String {
    let mut page = Page::new("mainstay-etcdutl", "look at data files of the store offline");
    page.section("SYNOPSIS").text("mainstay etcdutl COMMAND").text("etcdutl COMMAND");
    page.section("DESCRIPTION").text("Offline work on files, with etcdutl's commands and output.");
    page.section("COMMANDS").example(crate::etcdutl::USAGE.trim_end());
    page.section("EXIT STATUS")
        .item("0", "", "Success.")
        .item("1", "", "The command failed, or is not known.")
        .item("128", "", "A command was given too few arguments.");
    page.section("SEE ALSO").text("mainstay(1), mainstay-etcd(1), etcdctl(1)");
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_flag_and_no_stray_request() {
        let page = page("etcd").unwrap();
        for flag in FLAGS {
            let name = format!("\\fB{}\\fR", escaped(&format!("--{}", flag.name)));
            assert!(page.contains(&name), "{name}");
        }
        let known = [".TH ", ".SH ", ".PP", ".TP", ".br", ".nf", ".fi", ".RS", ".RE"];
        for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
            assert!(known.iter().any(|request| line.starts_with(request)), "{line}");
        }
    }
}
