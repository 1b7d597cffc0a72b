//! The text of `etcd --help`, made from the table of flags, and what is said about etcd's
//! subcommands that do not exist here.

use crate::flags::table::{Effect, FLAGS, Kind};

pub(super) fn text() -> String {
    let mut text = String::from(
        "Usage:\n\n  etcd [flags]\n    Serve one member.\n\n  etcd --version\n    Print the version.\n\n\
         Each flag can also be given as a variable: --data-dir as ETCD_DATA_DIR.\n\
         With --config-file, other flags and variables are ignored.\n",
    );
    let mut section = "";
    for flag in FLAGS {
        if flag.section != section {
            section = flag.section;
            text.push_str(&format!("\n{section}:\n"));
        }
        let value = match flag.kind {
            Kind::Switch => format!("={}", flag.default),
            _ => format!(" '{}'", flag.default),
        };
        text.push_str(&format!("  --{}{value}\n    {}\n", flag.name, flag.help));
        if let Kind::Choice(choices) | Kind::LateChoice(choices) = flag.kind {
            let words: Vec<_> =
                choices.iter().filter(|choice| !choice.is_empty()).copied().collect();
            text.push_str(&format!("    One of: {}.\n", words.join(", ")));
        }
        match flag.effect {
            Effect::Honoured => {}
            Effect::Differs(what) => {
                text.push_str(&format!("    Accepted without effect: {what}.\n"))
            }
            Effect::Refused(why) => text.push_str(&format!("    Refused: {why}.\n")),
        }
    }
    text
}

/// What to use instead of a subcommand of etcd that does not exist here.
pub(super) fn absent(arguments: &[String]) -> Option<String> {
    let name = arguments.first()?.as_str();
    let what = match name {
        "gateway" => "TCP gateway",
        "grpc-proxy" => "caching proxy",
        _ => return None,
    };
    Some(format!(
        "etcd {name}: there is no {what} in this program. Give clients all endpoints \
         (etcdctl --endpoints=URL,URL,URL), or put a TCP load balancer such as HAProxy or Envoy in \
         front of the members' client ports.\n"
    ))
}
