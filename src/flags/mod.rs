//! etcd's command line: Go's flag syntax, `ETCD_*` variables and the YAML config file, all read
//! into one table of values.
//!
//! Input: arguments and environment. Output: [`Values`], which hold a checked text for every
//! flag of [`table::FLAGS`], or an [`FlagError`] with etcd's text and exit code.
//! **Invariant:** a value that parses here never fails to parse later.

pub(crate) mod file;
pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainstay_net::parse_urls;
use mainstay_store::parse_duration;
use table::{FLAGS, Flag, Kind};

/// Feature gates of etcd 3.6 and 3.7.
const GATES: [&str; 11] = [
    "AllAlpha",
    "AllBeta",
    "CompactHashCheck",
    "FastLeaseKeepAlive",
    "InitialCorruptCheck",
    "LeaseCheckpoint",
    "LeaseCheckpointPersist",
    "PriorityRequest",
    "SetMemberLocalAddr",
    "StopGRPCServiceOnDefrag",
    "TxnModeWriteWithSharedBuffer",
];

/// Why the command line was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlagError {
    /// `--help` was asked for.
    #[error("help requested")]
    Help,
    /// Go's flag package would print this and the usage, and exit with 2.
    #[error("{0}")]
    Usage(String),
    /// etcd logs this and exits with 1.
    #[error("{0}")]
    Fatal(String),
}

/// One checked text per flag, and which of them were set by the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    values: BTreeMap<&'static str, String>,
    set: BTreeSet<&'static str>,
    /// Remarks that are logged once the log is set up.
    pub(crate) warnings: Vec<String>,
}

fn find(name: &str) -> Option<&'static Flag> {
    let named = |name: &str| FLAGS.iter().find(|flag| flag.name == name);
    // Releases up to 3.6 know many flags under an `experimental-` name; manifests in the field
    // still carry them.
    named(name).or_else(|| named(name.strip_prefix("experimental-")?))
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Reads `NAME=true|false` pairs.
fn parse_gates(text: &str) -> Result<Vec<(&str, bool)>, String> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let gates = pairs.map(|pair| {
        let (name, on) = pair
            .split_once('=')
            .ok_or_else(|| format!("missing bool value for {pair}: write {pair}=true"))?;
        let name = name.trim();
        if !GATES.contains(&name) {
            return Err(format!("unrecognized feature gate: {name}"));
        }
        let on = parse_bool(on.trim())
            .ok_or_else(|| format!("invalid value of {name}={on}: true or false is expected"))?;
        Ok((name, on))
    });
    gates.collect()
}

/// Whether `text` is a value of the kind; the error is Go's.
fn check(flag: &Flag, text: &str) -> Result<(), String> {
    let good = match flag.kind {
        Kind::Text => true,
        Kind::Switch => parse_bool(text).is_some(),
        Kind::Integer => text.parse::<i64>().is_ok(),
        Kind::Unsigned => text.parse::<u64>().is_ok(),
        Kind::Duration => parse_duration(text).is_some(),
        Kind::Urls | Kind::Origins if text.is_empty() => true,
        Kind::Origins if text == "*" => true,
        Kind::Urls | Kind::Origins => {
            return parse_urls(text).map(drop).map_err(|error| error.to_string());
        }
        Kind::Gates => return parse_gates(text).map(drop),
        Kind::Choice(choices) | Kind::LateChoice(choices) => {
            if choices.contains(&text) {
                return Ok(());
            }
            let choices: Vec<_> = choices.iter().copied().filter(|word| !word.is_empty()).collect();
            return Err(format!("one of {} is expected", choices.join(", ")));
        }
    };
    if good { Ok(()) } else { Err("parse error".to_string()) }
}

impl Values {
    /// Reads arguments (without the program's name) and variables.
    pub(crate) fn parse(
        arguments: &[String],
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, FlagError> {
        let mut values = Values::default();
        for flag in FLAGS {
            values.values.insert(flag.name, flag.default.to_string());
        }
        values.read_arguments(arguments)?;
        let variables: Vec<_> = variables.collect();
        let config_file = match values.text("config-file") {
            "" => variables
                .iter()
                .find(|(name, _)| name == "ETCD_CONFIG_FILE")
                .map(|(_, path)| path.clone())
                .unwrap_or_default(),
            path => path.to_string(),
        };
        if config_file.is_empty() {
            values.read_variables(&variables)?;
        } else {
            // With a config file all other flags and variables are ignored, as in etcd.
            let mut from_file = Values::default();
            for flag in FLAGS {
                from_file.values.insert(flag.name, flag.default.to_string());
            }
            from_file.read_file(&config_file)?;
            values = from_file;
        }
        Ok(values)
    }

    fn read_arguments(&mut self, arguments: &[String]) -> Result<(), FlagError> {
        let mut at = 0;
        while let Some(argument) = arguments.get(at) {
            at += 1;
            let Some(body) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'))
            else {
                return Err(FlagError::Fatal(format!("{argument:?} is not a valid flag")));
            };
            if body.is_empty() || body.starts_with(['-', '=']) {
                return Err(FlagError::Usage(format!("bad flag syntax: {argument}")));
            }
            let (name, inline) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (body, None),
            };
            if name == "help" || name == "h" {
                return Err(FlagError::Help);
            }
            let flag = find(name).ok_or_else(|| {
                FlagError::Usage(format!(
                    "flag provided but not defined: -{name}{}",
                    suggestion(name)
                ))
            })?;
            let value = match (inline, flag.kind) {
                (Some(value), _) => value.to_string(),
                (None, Kind::Switch) => "true".to_string(),
                (None, _) => {
                    let value = arguments.get(at).ok_or_else(|| {
                        FlagError::Usage(format!("flag needs an argument: -{name}"))
                    })?;
                    at += 1;
                    value.clone()
                }
            };
            self.assign(flag, &value).map_err(|why| {
                let message = bad_value(flag, name, &value, &why);
                match flag.kind {
                    Kind::LateChoice(_) => FlagError::Fatal(message),
                    _ => FlagError::Usage(message),
                }
            })?;
            if name.starts_with("experimental-") && name != flag.name {
                self.warnings.push(format!(
                    "--{name} is deprecated: use --{} instead; it has the same effect",
                    flag.name
                ));
            }
        }
        Ok(())
    }

    fn read_variables(&mut self, variables: &[(String, String)]) -> Result<(), FlagError> {
        for (variable, value) in variables {
            let Some(upper) = variable.strip_prefix("ETCD_") else { continue };
            if matches!(upper, "VERIFY" | "UNSUPPORTED_ARCH" | "DATA_DIR_OWNER") {
                continue;
            }
            let name = upper.to_ascii_lowercase().replace('_', "-");
            let Some(flag) = find(&name) else {
                self.warnings.push(format!("unrecognized environment variable {variable}={value}"));
                continue;
            };
            if self.set.contains(flag.name) {
                return Err(FlagError::Fatal(format!(
                    "conflicting environment variable {variable:?} is shadowed by corresponding \
                     command-line flag (either unset environment variable or disable flag)"
                )));
            }
            if value.is_empty() {
                continue;
            }
            self.assign(flag, value).map_err(|why| {
                FlagError::Fatal(format!("invalid value {value:?} for {variable}: {why}"))
            })?;
        }
        Ok(())
    }

    pub(crate) fn assign(&mut self, flag: &'static Flag, value: &str) -> Result<(), String> {
        check(flag, value)?;
        self.values.insert(flag.name, value.to_string());
        self.set.insert(flag.name);
        Ok(())
    }

    /// Whether the user gave the flag, by whichever way.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.set.contains(name)
    }

    /// The text of a flag. Asking for a flag that the table lacks is a mistake of this program.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.values.get(name).map(String::as_str).expect("the flag stands in the table")
    }

    /// A flag of kind `Switch`.
    pub(crate) fn switch(&self, name: &str) -> bool {
        parse_bool(self.text(name)).expect("switches are checked when they are assigned")
    }

    /// A flag of kind `Unsigned`.
    pub(crate) fn unsigned(&self, name: &str) -> u64 {
        self.text(name).parse().expect("numbers are checked when they are assigned")
    }

    /// A flag of kind `Gates`.
    pub(crate) fn gates(&self, name: &str) -> Vec<(&str, bool)> {
        parse_gates(self.text(name)).expect("gates are checked when they are assigned")
    }

    /// The words of a list with commas between them.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    /// A flag of kind `Integer`.
    pub(crate) fn integer(&self, name: &str) -> i64 {
        self.text(name).parse().expect("numbers are checked when they are assigned")
    }

    /// A flag of kind `Duration`.
    pub(crate) fn duration(&self, name: &str) -> Duration {
        parse_duration(self.text(name)).expect("durations are checked when they are assigned")
    }
}

fn bad_value(flag: &Flag, name: &str, value: &str, why: &str) -> String {
    match flag.kind {
        Kind::Switch => format!("invalid boolean value {value:?} for -{name}: {why}"),
        _ => format!("invalid value {value:?} for flag -{name}: {why}"),
    }
}

/// The flag that was probably meant: the one that the fewest slips of the hand make of it.
fn suggestion(name: &str) -> String {
    let slips = |flag: &Flag| strsim::damerau_levenshtein(flag.name, name);
    match FLAGS.iter().min_by_key(|flag| slips(flag)) {
        // More of them, and it is another word.
        Some(flag) if slips(flag) <= 1 + name.len() / 5 => {
            format!(" (did you mean --{}?)", flag.name)
        }
        _ => " (`etcd --help` lists all flags)".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Values, FlagError> {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        let variables = variables.iter().map(|(n, v)| (n.to_string(), v.to_string()));
        Values::parse(&arguments, variables)
    }

    #[test]
    fn go_syntax_is_read() {
        let values = parse(
            &["-name", "m1", "--snapshot-count=7", "--force-new-cluster", "-pre-vote=f"],
            &[],
        )
        .unwrap();
        assert_eq!(values.text("name"), "m1");
        assert_eq!(values.unsigned("snapshot-count"), 7);
        assert!(values.switch("force-new-cluster"));
        assert!(!values.switch("pre-vote"));
    }

    #[test]
    fn mistakes_are_named() {
        let text = |arguments: &[&str]| parse(arguments, &[]).unwrap_err().to_string();
        for (given, meant) in [
            ("listen-client-url", "listen-client-urls"),
            ("inital-cluster", "initial-cluster"),
            ("intial-cluster-state", "initial-cluster-state"),
            ("initial-cluster-sate", "initial-cluster-state"),
            ("initial-clustre-token", "initial-cluster-token"),
            ("advertise-clients-url", "advertise-client-urls"),
            ("datadir", "data-dir"),
            ("nmae", "name"),
        ] {
            assert_eq!(
                text(&[&format!("--{given}=x")]),
                format!("flag provided but not defined: -{given} (did you mean --{meant}?)")
            );
        }
        for strange in ["colour", "x", "initial"] {
            let text = text(&[&format!("--{strange}")]);
            assert!(text.ends_with("(`etcd --help` lists all flags)"), "{text}");
        }
        assert_eq!(
            text(&["--snapshot-count", "abc"]),
            "invalid value \"abc\" for flag -snapshot-count: parse error"
        );
        assert_eq!(text(&["extra"]), "\"extra\" is not a valid flag");
        assert_eq!(text(&["--name"]), "flag needs an argument: -name");
        assert_eq!(
            text(&["--pre-vote=maybe"]),
            "invalid boolean value \"maybe\" for -pre-vote: parse error"
        );
    }

    /// Etcd's flag package ends with 2 where a value does not parse, etcd itself with 1 where it
    /// checks later, and where the value is not from the command line.
    #[test]
    fn exit_codes_are_etcds() {
        let usage = |argument: &str| match parse(&[argument], &[]) {
            Err(FlagError::Usage(message)) => message,
            other => panic!("{argument}: {other:?}"),
        };
        assert_eq!(
            usage("--listen-peer-urls=tcp://a:1"),
            "invalid value \"tcp://a:1\" for flag -listen-peer-urls: URL scheme must be http, https, \
             unix, or unixs: tcp://a:1"
        );
        for flag in ["listen-client-urls", "listen-client-http-urls", "listen-metrics-urls"] {
            usage(&format!("--{flag}=http://a"));
        }
        for flag in ["initial-advertise-peer-urls", "advertise-client-urls"] {
            usage(&format!("--{flag}=http://a:1/path"));
        }
        assert_eq!(
            usage("--feature-gates=Foo=true"),
            "invalid value \"Foo=true\" for flag -feature-gates: unrecognized feature gate: Foo"
        );
        usage("--feature-gates=CompactHashCheck=maybe");
        usage("--feature-gates=CompactHashCheck");
        usage("--initial-cluster-state=maybe");
        for late in ["auto-compaction-mode", "log-format", "logger", "tls-min-version"] {
            let error = parse(&[&format!("--{late}=foo")], &[]).unwrap_err();
            assert!(matches!(error, FlagError::Fatal(_)), "{error}");
            assert!(error.to_string().contains(late), "{error}");
        }
        for (variable, value) in
            [("ETCD_LISTEN_PEER_URLS", "tcp://a:1"), ("ETCD_INITIAL_CLUSTER_STATE", "maybe")]
        {
            let error = parse(&[], &[(variable, value)]).unwrap_err();
            assert!(matches!(error, FlagError::Fatal(_)), "{error}");
            assert!(error.to_string().contains(variable), "{error}");
        }
        assert!(parse(&["--listen-client-http-urls="], &[]).is_ok());
    }

    #[test]
    fn variables_fill_what_flags_leave_open() {
        let values =
            parse(&["--name", "a"], &[("ETCD_DATA_DIR", "/d"), ("ETCD_FOO", "1")]).unwrap();
        assert_eq!(values.text("data-dir"), "/d");
        assert_eq!(values.warnings, ["unrecognized environment variable ETCD_FOO=1"]);
        let conflict = parse(&["--name", "a"], &[("ETCD_NAME", "b")]).unwrap_err().to_string();
        assert!(conflict.contains("\"ETCD_NAME\" is shadowed"), "{conflict}");
    }

    #[test]
    fn old_experimental_names_still_work() {
        let values = parse(&["--experimental-watch-progress-notify-interval=5s"], &[]).unwrap();
        assert_eq!(values.duration("watch-progress-notify-interval"), Duration::from_secs(5));
        let values = parse(&["--experimental-initial-corrupt-check=true"], &[]).unwrap();
        assert!(values.is_set("experimental-initial-corrupt-check"));
    }

    #[test]
    fn every_default_is_a_value_of_its_kind() {
        for flag in FLAGS {
            assert!(check(flag, flag.default).is_ok(), "{}", flag.name);
        }
    }
}
