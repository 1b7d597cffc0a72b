//! The table of subcommands, and what a shell may offer as the value of a flag.
//!
//! Usage, shell completions and manual pages are made from this table and from the table of flags.

use crate::flags::table::{Flag, Kind};

/// One subcommand of `mainstay`.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// What follows the name, for people.
    pub(crate) arguments: &'static str,
    pub(crate) help: &'static str,
    /// The words that may follow the name, as whole phrases.
    pub(crate) phrases: &'static [&'static str],
}

/// All subcommands, in the order of the usage.
pub(crate) static COMMANDS: &[Command] = &[
    Command {
        name: "etcd",
        arguments: "[flags]",
        help: "serve a member (also when the binary is called `etcd`)",
        phrases: &[],
    },
    Command {
        name: "etcdutl",
        arguments: "COMMAND",
        help: "look at data files offline (also as `etcdutl`)",
        phrases: &["snapshot status", "version", "help"],
    },
    Command {
        name: "bench",
        arguments: "COMMAND",
        help: "put load on any etcd v3 server, or compare with real etcd",
        phrases: &["load", "compare", "help"],
    },
    Command {
        name: "completion",
        arguments: "SHELL",
        help: "print completions for bash, zsh or fish",
        phrases: &["bash", "zsh", "fish"],
    },
    Command {
        name: "man",
        arguments: "[PAGE]",
        help: "print a manual page: mainstay, etcd or etcdutl",
        phrases: &["mainstay", "etcd", "etcdutl"],
    },
    Command { name: "version", arguments: "", help: "print the version", phrases: &[] },
    Command { name: "help", arguments: "", help: "print this", phrases: &[] },
];

/// Names under which the binary does the work of a subcommand.
pub(crate) const LINKS: [&str; 2] = ["etcd", "etcdutl"];

/// The text of `mainstay help`.
pub(crate) fn usage() -> String {
    let mut text = String::from("mainstay: an etcd-compatible consensus store\n\nUsage:\n");
    for command in COMMANDS {
        let call = format!("{} {}", command.name, command.arguments);
        text.push_str(&format!("  mainstay {call:<18} {}\n", command.help));
    }
    text.push_str("\n`mainstay etcd --help` lists all flags.\n");
    text
}

/// What may stand after a sequence of words: the empty sequence is followed by the subcommands.
pub(crate) fn paths() -> Vec<(String, Vec<&'static str>)> {
    let mut paths: Vec<(String, Vec<_>)> =
        vec![(String::new(), COMMANDS.iter().map(|command| command.name).collect())];
    for command in COMMANDS {
        for phrase in command.phrases {
            let mut path = command.name.to_string();
            for word in phrase.split(' ') {
                match paths.iter_mut().find(|(known, _)| *known == path) {
                    Some((_, next)) if next.contains(&word) => {}
                    Some((_, next)) => next.push(word),
                    None => paths.push((path.clone(), vec![word])),
                }
                path = format!("{path} {word}");
            }
        }
    }
    paths
}

/// What a shell may offer as the value of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// The flag alone means true; a value comes after `=`.
    Switch,
    Words(Vec<&'static str>),
    File,
    Directory,
    /// Nothing: the user has to know.
    Nothing,
}

/// The offer for a flag, by its kind and by its name.
pub(crate) fn offer(flag: &Flag) -> Offer {
    match flag.kind {
        Kind::Switch => Offer::Switch,
        Kind::Choice(words) | Kind::LateChoice(words) => {
            Offer::Words(words.iter().copied().filter(|word| !word.is_empty()).collect())
        }
        Kind::Text if flag.name.ends_with("-file") => Offer::File,
        Kind::Text if flag.name.ends_with("-dir") => Offer::Directory,
        _ => Offer::Nothing,
    }
}

/// What stands for the value of a flag in a text for people.
pub(crate) fn placeholder(flag: &Flag) -> &'static str {
    match flag.kind {
        Kind::Switch => "true|false",
        Kind::Integer | Kind::Unsigned => "NUMBER",
        Kind::Duration => "DURATION",
        Kind::Urls | Kind::Origins => "URL,...",
        Kind::Gates => "GATE=true|false,...",
        Kind::Choice(_) | Kind::LateChoice(_) => "WORD",
        Kind::Text => match offer(flag) {
            Offer::File => "FILE",
            Offer::Directory => "DIRECTORY",
            _ => "TEXT",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_every_phrase() {
        let paths = paths();
        let next = |path: &str| {
            paths.iter().find(|(known, _)| known == path).map(|(_, next)| next.clone())
        };
        assert!(next("").unwrap().contains(&"etcdutl"));
        assert_eq!(next("etcdutl").unwrap(), ["snapshot", "version", "help"]);
        assert_eq!(next("etcdutl snapshot").unwrap(), ["status"]);
        assert_eq!(next("etcdutl snapshot status"), None);
    }
}
