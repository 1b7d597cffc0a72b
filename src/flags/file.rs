//! The YAML config file (`--config-file`).
//!
//! Input: a file whose keys are flag names, durations as integer nanoseconds, TLS settings in
//! `client-transport-security` and `peer-transport-security`. Output: assigned [`Values`].

use serde_json::Value;

use super::table::Kind;
use super::{FlagError, Values, find};

impl Values {
    pub(super) fn read_file(&mut self, path: &str) -> Result<(), FlagError> {
        let fatal = |why: String| FlagError::Fatal(format!("config file {path}: {why}"));
        let text = std::fs::read_to_string(path)
            .map_err(|error| FlagError::Fatal(format!("open {path}: {error}")))?;
        let tree: Value =
            serde_saphyr::from_str(&text).map_err(|error| fatal(format!("not YAML: {error}")))?;
        let Value::Object(keys) = tree else {
            if tree.is_null() {
                return Ok(());
            }
            return Err(fatal("the top level must be a map of flag names to values".to_string()));
        };
        for (key, value) in &keys {
            match key.as_str() {
                "client-transport-security" => self.read_tls(value, "", path)?,
                "peer-transport-security" => self.read_tls(value, "peer-", path)?,
                _ => self.read_key(key, value, path)?,
            }
        }
        Ok(())
    }

    fn read_key(&mut self, key: &str, value: &Value, path: &str) -> Result<(), FlagError> {
        let Some(flag) = find(key) else {
            self.warnings.push(format!("config file {path}: unknown key {key:?} is ignored"));
            return Ok(());
        };
        let text = match (value, flag.kind) {
            (Value::Null, _) => return Ok(()),
            (Value::Number(nanoseconds), Kind::Duration) => format!("{nanoseconds}ns"),
            (Value::String(text), _) => text.clone(),
            (Value::Bool(on), _) => on.to_string(),
            (Value::Number(number), _) => number.to_string(),
            (Value::Array(items), _) => items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_string))
                .collect::<Vec<_>>()
                .join(","),
            (Value::Object(_), _) => {
                return Err(FlagError::Fatal(format!(
                    "config file {path}: {key}: a map stands where one value is expected"
                )));
            }
        };
        self.assign(flag, &text).map_err(|why| {
            FlagError::Fatal(format!("config file {path}: {key}: invalid value {text:?}: {why}"))
        })
    }

    fn read_tls(&mut self, section: &Value, prefix: &str, path: &str) -> Result<(), FlagError> {
        let Value::Object(keys) = section else { return Ok(()) };
        for (key, value) in keys {
            let name = match key.as_str() {
                "skip-client-san-verification" => "peer-skip-client-san-verification".to_string(),
                "allowed-cn" | "allowed-cns" if !prefix.is_empty() => {
                    "peer-cert-allowed-cn".to_string()
                }
                "allowed-hostname" | "allowed-hostnames" if prefix.is_empty() => {
                    "client-cert-allowed-hostname".to_string()
                }
                "allowed-hostname" | "allowed-hostnames" => {
                    "peer-cert-allowed-hostname".to_string()
                }
                other => format!("{prefix}{other}"),
            };
            self.read_key(&name, value, path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn read(text: &str) -> Result<Values, FlagError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.yml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        Values::parse(&["--name=ignored".into(), "--config-file".into(), path], std::iter::empty())
    }

    #[test]
    fn the_file_replaces_flags() {
        let values = read(
            "name: m1\nsnapshot-count: 5\npre-vote: false\n\
             watch-progress-notify-interval: 5000000000\n\
             peer-transport-security:\n  cert-file: /c\n",
        )
        .unwrap();
        assert_eq!(values.text("name"), "m1");
        assert_eq!(values.unsigned("snapshot-count"), 5);
        assert!(!values.switch("pre-vote"));
        assert_eq!(values.duration("watch-progress-notify-interval"), Duration::from_secs(5));
        assert_eq!(values.text("peer-cert-file"), "/c");
    }

    #[test]
    fn mistakes_name_file_and_key() {
        let text = read("snapshot-count: many\n").unwrap_err().to_string();
        assert!(text.contains("etcd.yml: snapshot-count: invalid value"), "{text}");
        let text = read("- a\n").unwrap_err().to_string();
        assert!(text.contains("top level must be a map"), "{text}");
    }
}
