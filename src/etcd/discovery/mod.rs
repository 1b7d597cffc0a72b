//! Finding the members of a new cluster through another etcd: etcd's v3 discovery.
//!
//! Input: flags, and what this member would found. Output: the initial cluster, the same for all
//! that joined in time. Under `/_etcd/registry/TOKEN` the operator has put `_config/size`; each
//! member puts `members/ID` = `NAME=URL,…`, and those that were first make the cluster.
//! **Invariant:** a member that is not among the first never starts a cluster.

mod client;

use std::time::Duration;

use mainstay_net::tls::TlsOptions;
use mainstay_proto::mvccpb::KeyValue;
use mainstay_store::InitialCluster;

use self::client::{Client, Options};
use crate::flags::Values;

/// Pause between two looks whether all members are there.
const PAUSE: Duration = Duration::from_millis(500);

/// A cluster that is to be found.
pub(super) struct Discovery {
    registry: String,
    client: Client,
}

/// What the flags say, checked with etcd's texts; `None` if they ask for nothing.
pub(super) fn from_flags(values: &Values) -> Result<Option<Discovery>, String> {
    let token = values.text("discovery-token");
    let endpoints = values.list("discovery-endpoints");
    if token.is_empty() != endpoints.is_empty() {
        return Err("both --discovery-token and --discovery-endpoints must be set".to_owned());
    }
    if endpoints.is_empty() {
        return Ok(None);
    }
    if values.is_set("initial-cluster") {
        return Err("multiple discovery or bootstrap flags are set. Choose one of \
                    \"initial-cluster\", \"discovery-endpoints\" or \"discovery-srv\""
            .to_owned());
    }
    if endpoints.iter().any(|endpoint| endpoint.trim().is_empty()) {
        return Err("--discovery-endpoints must not contain empty endpoints".to_owned());
    }
    let path = |name| Some(values.text(name)).filter(|path| !path.is_empty()).map(Into::into);
    let secure = !values.switch("discovery-insecure-transport")
        || ["discovery-cert", "discovery-key", "discovery-cacert"]
            .iter()
            .any(|name| !values.text(name).is_empty());
    let tls = secure.then(|| TlsOptions {
        cert_file: path("discovery-cert"),
        key_file: path("discovery-key"),
        trusted_ca_file: path("discovery-cacert"),
        insecure_skip_verify: values.switch("discovery-insecure-skip-tls-verify"),
        ..TlsOptions::default()
    });
    let user = match (values.text("discovery-user"), values.text("discovery-password")) {
        ("", _) => None,
        (user, "") => {
            let (name, password) = user.split_once(':').ok_or_else(|| {
                "--discovery-user: give the password too, as NAME:PASSWORD or with \
                 --discovery-password"
                    .to_owned()
            })?;
            Some((name.to_owned(), password.to_owned()))
        }
        (user, password) => Some((user.to_owned(), password.to_owned())),
    };
    let options = Options {
        endpoints,
        tls,
        user,
        dial_timeout: values.duration("discovery-dial-timeout"),
        request_timeout: values.duration("discovery-request-timeout"),
        keepalive_time: values.duration("discovery-keepalive-time"),
        keepalive_timeout: values.duration("discovery-keepalive-timeout"),
    };
    let registry = format!("/_etcd/registry/{}", token.trim_matches('/'));
    Ok(Some(Discovery { registry, client: Client::new(options)? }))
}

impl Discovery {
    /// Registers this member as one of the cluster and waits for the others. Failures of the
    /// service are waited out.
    pub(super) async fn join(mut self, id: u64, own: &str) -> Result<InitialCluster, String> {
        let joined = self.register_and_wait(id, own).await;
        let failed = |error: String| format!("failed to join discovery cluster ({error})");
        let joined = joined.map_err(failed)?;
        tracing::info!(cluster = joined, "discovery joined cluster successfully");
        InitialCluster::parse(&joined)
            .map_err(|error| failed(format!("discovery: invalid peer URL in {joined:?}: {error}")))
    }

    async fn register_and_wait(&mut self, id: u64, own: &str) -> Result<String, String> {
        let key = format!("{}/members/{id:x}", self.registry);
        let size = self.size().await?;
        Members::read(self.members().await).check_place(&key, size)?;
        self.client.put(&key, own).await;
        tracing::info!(member_key = key, member_info = own, "register member itself successfully");
        let mut found = 0;
        loop {
            let members = Members::read(self.members().await);
            members.check_place(&key, size)?;
            if members.0.len() >= size {
                return Ok(members.first(size));
            }
            if members.0.len() != found {
                found = members.0.len();
                tracing::info!(
                    cluster_size = size,
                    found_peers = found,
                    "waiting for peers from discovery service"
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn size(&mut self) -> Result<usize, String> {
        let key = format!("{}/_config/size", self.registry);
        let found = self.client.get(&key).await;
        let size = found.first().ok_or_else(|| {
            format!(
                "discovery: size key not found: put the number of members into {key} of the \
                 discovery service"
            )
        })?;
        let size = std::str::from_utf8(&size.value).ok().and_then(|size| size.parse().ok());
        size.filter(|size| *size > 0)
            .ok_or_else(|| format!("discovery: size key is bad: {key} is not a number above 0"))
    }

    async fn members(&mut self) -> Vec<KeyValue> {
        let prefix = format!("{}/members", self.registry);
        self.client.get_prefix(&prefix).await
    }
}

/// Who has registered, in the order of registration: keys and what they say.
struct Members(Vec<(String, String)>);

impl Members {
    fn read(mut found: Vec<KeyValue>) -> Self {
        found.sort_by_key(|pair| pair.create_revision);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let members = found.iter().map(|pair| (text(&pair.key), text(&pair.value)));
        let (good, bad): (Vec<_>, Vec<_>) = members.partition(|(_, info)| info.contains('='));
        for (key, info) in bad {
            tracing::warn!(
                member_key = key,
                member_info = info,
                "invalid peer info returned from discovery service"
            );
        }
        Members(good)
    }

    /// Whether a member has a place, or there is one left.
    fn check_place(&self, key: &str, size: usize) -> Result<(), String> {
        let taken = self.0.iter().take(size);
        if taken.len() < size || taken.clone().any(|(other, _)| other == key) {
            return Ok(());
        }
        Err("discovery: cluster is full: use a new token for another cluster".to_owned())
    }

    /// The first so many, as `--initial-cluster` has them.
    fn first(&self, size: usize) -> String {
        let infos: Vec<&str> = self.0.iter().take(size).map(|(_, info)| info.as_str()).collect();
        infos.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str, create_revision: i64) -> KeyValue {
        KeyValue {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            create_revision,
            ..KeyValue::default()
        }
    }

    #[test]
    fn who_was_first_makes_the_cluster() {
        let members = Members::read(vec![
            pair("/m/3", "c=http://c:1", 9),
            pair("/m/2", "b=http://b:1,b=http://b:2", 5),
            pair("/m/1", "nonsense", 4),
            pair("/m/4", " a=http://a:1 ", 7),
        ]);
        assert_eq!(members.first(2), "b=http://b:1,b=http://b:2,a=http://a:1");
        for (key, size, placed) in [
            ("/m/2", 2, true),
            ("/m/4", 2, true),
            ("/m/3", 2, false),
            ("/m/3", 3, true),
            ("/m/9", 3, false),
            ("/m/9", 4, true),
        ] {
            assert_eq!(members.check_place(key, size).is_ok(), placed, "{key} of {size}");
        }
    }

    #[test]
    fn flags_that_do_not_fit_together() {
        let of = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            from_flags(&Values::parse(&arguments, std::iter::empty()).unwrap())
        };
        assert!(of(&[]).unwrap().is_none());
        assert!(of(&["--discovery-token=t", "--discovery-endpoints=a:1"]).unwrap().is_some());
        for (arguments, said) in [
            (&["--discovery-token=t"][..], "both --discovery-token and --discovery-endpoints"),
            (
                &[
                    "--discovery-token=t",
                    "--discovery-endpoints=a:1",
                    "--initial-cluster=a=http://a:1",
                ],
                "multiple discovery or bootstrap flags are set",
            ),
            (
                &["--discovery-token=t", "--discovery-endpoints=a:1", "--discovery-user=u"],
                "--discovery-password",
            ),
        ] {
            let error = of(arguments).err().unwrap();
            assert!(error.contains(said), "{error}");
        }
    }
}
