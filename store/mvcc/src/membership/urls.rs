//! Peer URLs, and the ids that are made of them.

use sha1::{Digest, Sha1};

use crate::Error;

/// The id of a member: from its sorted peer URLs, the cluster's token and, for a member that is
/// added to a running cluster, the Unix time in seconds.
pub fn member_id(peer_urls: &[String], token: &str, added_at: Option<i64>) -> u64 {
    let mut urls: Vec<&str> = peer_urls.iter().map(String::as_str).collect();
    urls.sort_unstable();
    let mut sha = Sha1::new();
    for url in urls {
        sha.update(url);
    }
    sha.update(token);
    if let Some(seconds) = added_at {
        sha.update(seconds.to_string());
    }
    first_eight(sha)
}

/// The id of a cluster: from the ids of its first members.
pub fn cluster_id(member_ids: &[u64]) -> u64 {
    let mut ids = member_ids.to_vec();
    ids.sort_unstable();
    let mut sha = Sha1::new();
    for id in ids {
        sha.update(id.to_be_bytes());
    }
    first_eight(sha)
}

fn first_eight(sha: Sha1) -> u64 {
    let digest = sha.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a SHA-1 is longer than eight bytes"))
}

/// Checks the peer URLs of a request and returns them trimmed and sorted, as etcd keeps them.
pub fn parse_peer_urls(urls: &[String]) -> Result<Vec<String>, Error> {
    if urls.is_empty() {
        return Err(Error::MemberBadUrls);
    }
    let mut parsed = urls
        .iter()
        .map(|url| {
            let url = url.trim();
            is_member_url(url).then(|| url.to_owned()).ok_or(Error::MemberBadUrls)
        })
        .collect::<Result<Vec<_>, _>>()?;
    parsed.sort_unstable();
    Ok(parsed)
}

/// `http(s)://host:port` without a path, or `unix(s)://…`.
fn is_member_url(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let clean = url.bytes().all(|byte| byte.is_ascii_graphic());
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => clean && has_host_and_port(rest),
        "unix" | "unixs" => clean,
        _ => false,
    }
}

fn has_host_and_port(rest: &str) -> bool {
    if rest.contains(['/', '?', '#', '\\', '%', '<', '>', '"', '^', '`', '{', '}', '|']) {
        return false;
    }
    let authority = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let Some((host, port)) = authority.rsplit_once(':') else { return false };
    let host_ok = match host.strip_prefix('[') {
        Some(v6) => v6.ends_with(']'),
        None => !host.contains([':', '[', ']']),
    };
    host_ok && port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(list: &[&str]) -> Vec<String> {
        list.iter().map(|url| (*url).to_owned()).collect()
    }

    #[test]
    fn ids_of_a_real_cluster() {
        let id = member_id(&urls(&["http://127.0.0.1:32380"]), "etcd-cluster", None);
        assert_eq!(format!("{id:x}"), "628170c800dbcee");
        assert_eq!(format!("{:x}", cluster_id(&[id])), "babc9795b64f03e3");
    }

    #[test]
    fn ids_do_not_depend_on_the_order_and_do_on_the_time() {
        let one = member_id(&urls(&["http://b:1", "http://a:1"]), "t", None);
        assert_eq!(one, member_id(&urls(&["http://a:1", "http://b:1"]), "t", None));
        assert_ne!(one, member_id(&urls(&["http://a:1", "http://b:1"]), "t", Some(5)));
        assert_eq!(cluster_id(&[1, 2]), cluster_id(&[2, 1]));
    }

    #[test]
    fn peer_urls() {
        let good = ["http://10.0.0.1:2380", "https://h:1", " http://[::1]:2380 ", "unix://m:1"];
        for url in good {
            assert!(parse_peer_urls(&urls(&[url])).is_ok(), "{url}");
        }
        let bad = ["bad", "", "http://h", "ftp://h:1", "http://h:1/path", "http://h:p", "http://"];
        for url in bad {
            assert_eq!(parse_peer_urls(&urls(&[url])), Err(Error::MemberBadUrls), "{url}");
        }
        assert_eq!(parse_peer_urls(&[]), Err(Error::MemberBadUrls));
        assert_eq!(
            parse_peer_urls(&urls(&["http://b:1", "http://a:1"])).unwrap(),
            urls(&["http://a:1", "http://b:1"])
        );
    }
}
