//! The headers that peers put on requests and answers, and the checks on them in etcd's order.
//!
//! Input: header maps. Output: a refusal with the status and text that real members know how to
//! read, or nothing. Pure.

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, request};
use thiserror::Error;

use crate::url::PeerUrl;
use crate::version::{MIN_CLUSTER_VERSION, Version, compatible};

pub(crate) const SERVER_FROM: &str = "x-server-from";
pub(crate) const SERVER_VERSION: &str = "x-server-version";
pub(crate) const MIN_CLUSTER: &str = "x-min-cluster-version";
pub(crate) const CLUSTER_ID: &str = "x-etcd-cluster-id";
pub(crate) const RAFT_TO: &str = "x-raft-to";
pub(crate) const PEER_URLS: &str = "x-peerurls";

/// Why a request of a peer is turned away before anything else is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    /// Also when the version header is no version: real etcd drops such a connection.
    #[error("incompatible version")]
    IncompatibleVersion,
    #[error("cluster ID mismatch")]
    ClusterMismatch,
    #[error("invalid path")]
    InvalidPath,
    #[error("invalid from")]
    InvalidFrom,
    #[error("removed member")]
    Removed,
    #[error("error sender not found")]
    UnknownSender,
    #[error("to field mismatch")]
    ToMismatch,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Refusal::IncompatibleVersion | Refusal::ClusterMismatch | Refusal::ToMismatch => {
                StatusCode::PRECONDITION_FAILED
            }
            Refusal::InvalidPath | Refusal::InvalidFrom | Refusal::UnknownSender => {
                StatusCode::NOT_FOUND
            }
            Refusal::Removed => StatusCode::GONE,
        }
    }
}

/// Who this member is, in the form that stands in headers.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) local: u64,
    pub(crate) version: Version,
    version_text: HeaderValue,
    cluster_text: HeaderValue,
    urls_text: HeaderValue,
}

/// An id as etcd writes it: hexadecimal without leading zeros.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:x}")
}

/// Reads an id as etcd writes it.
pub(crate) fn parse_hex(text: &str) -> Option<u64> {
    let digits_only = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if digits_only { u64::from_str_radix(text, 16).ok() } else { None }
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::from_str(&text).expect("ids, versions and peer URLs are visible ASCII")
}

impl Identity {
    pub(crate) fn new(local: u64, cluster: u64, version: Version, urls: &[PeerUrl]) -> Self {
        let urls = urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Identity {
            local,
            version_text: ascii(version.to_string()),
            version,
            cluster_text: ascii(hex(cluster)),
            urls_text: ascii(urls),
        }
    }

    pub(crate) fn cluster_text(&self) -> HeaderValue {
        self.cluster_text.clone()
    }

    pub(crate) fn version_text(&self) -> HeaderValue {
        self.version_text.clone()
    }

    /// A request to a peer with everything that etcd's peers ask to see.
    pub(crate) fn request(&self, method: Method, url: &PeerUrl, path: &str) -> request::Builder {
        plain_request(method, url, path)
            .header(SERVER_FROM, hex(self.local))
            .header(SERVER_VERSION, self.version_text())
            .header(MIN_CLUSTER, MIN_CLUSTER_VERSION.to_string())
            .header(CLUSTER_ID, self.cluster_text())
            .header(PEER_URLS, self.urls_text.clone())
    }

    /// Version first, then cluster, as etcd does: the texts decide what the other side logs.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let version = |name| {
            Version::from_header(text(headers, name)).map_err(|_| Refusal::IncompatibleVersion)
        };
        let (remote, remote_min) = (version(SERVER_VERSION)?, version(MIN_CLUSTER)?);
        if !compatible(&self.version, &remote, &remote_min) {
            return Err(Refusal::IncompatibleVersion);
        }
        match headers.get(CLUSTER_ID) {
            Some(cluster) if *cluster == self.cluster_text => Ok(()),
            _ => Err(Refusal::ClusterMismatch),
        }
    }
}

/// A request with nothing but its target: what a member that is not in the cluster yet can say.
pub(crate) fn plain_request(method: Method, url: &PeerUrl, path: &str) -> request::Builder {
    let host = match url.scheme() {
        crate::url::Scheme::Http | crate::url::Scheme::Https => url.address(),
        // A socket file is no host name.
        crate::url::Scheme::Unix | crate::url::Scheme::Unixs => "localhost",
    };
    Request::builder().method(method).uri(path).header(http::header::HOST, host)
}

/// A header as text; one that is not text counts as absent.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Who sent a request and where it says it can be reached.
pub(crate) fn sender_urls(headers: &HeaderMap) -> Option<Vec<&str>> {
    let urls = text(headers, PEER_URLS)?;
    if urls.is_empty() { None } else { Some(urls.split(',').collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let urls = crate::url::parse_urls(&["http://a:2380", "http://b:2380"]).unwrap();
        Identity::new(0xab, 0x1234, Version::new(3, 7, 3), &urls)
    }

    fn with(name: &'static str, value: Option<&str>) -> HeaderMap {
        let url = "http://c:2380".parse().unwrap();
        let request = identity().request(Method::GET, &url, "/x").body(()).unwrap();
        let mut headers = request.headers().clone();
        match value {
            Some(value) => headers.insert(name, value.parse().unwrap()),
            None => headers.remove(name),
        };
        headers
    }

    #[test]
    fn requests_say_who_sends_them() {
        let headers = with("x-nothing", None);
        let get = |name| text(&headers, name).unwrap();
        assert_eq!(get("host"), "c:2380");
        assert_eq!(get("X-Server-From"), "ab");
        assert_eq!(get("X-Server-Version"), "3.7.3");
        assert_eq!(get("X-Min-Cluster-Version"), "3.0.0");
        assert_eq!(get("X-Etcd-Cluster-ID"), "1234");
        assert_eq!(get("X-PeerURLs"), "http://a:2380,http://b:2380");
        assert_eq!(sender_urls(&headers).unwrap(), ["http://a:2380", "http://b:2380"]);
        assert_eq!(identity().check(&headers), Ok(()));
    }

    #[test]
    fn the_version_is_looked_at_before_the_cluster() {
        let check = |name, value| identity().check(&with(name, value));
        assert_eq!(check(SERVER_VERSION, None), Err(Refusal::IncompatibleVersion));
        assert_eq!(check(SERVER_VERSION, Some("2.3.0")), Err(Refusal::IncompatibleVersion));
        assert_eq!(check(SERVER_VERSION, Some("3.7")), Err(Refusal::IncompatibleVersion));
        assert_eq!(check(SERVER_VERSION, Some("3.0.0")), Ok(()));
        assert_eq!(check(MIN_CLUSTER, Some("3.8.0")), Err(Refusal::IncompatibleVersion));
        assert_eq!(check(MIN_CLUSTER, None), Ok(()));
        assert_eq!(check(CLUSTER_ID, None), Err(Refusal::ClusterMismatch));
        assert_eq!(check(CLUSTER_ID, Some("01234")), Err(Refusal::ClusterMismatch));
        let mut both = with(CLUSTER_ID, Some("5"));
        both.insert(SERVER_VERSION, "2.0.0".parse().unwrap());
        assert_eq!(identity().check(&both), Err(Refusal::IncompatibleVersion));
    }

    #[test]
    fn ids_are_bare_hexadecimal() {
        assert_eq!(parse_hex("ff"), Some(255));
        assert_eq!(parse_hex("FF"), Some(255));
        for text in ["", "+1", "0x1", "g", "1ffffffffffffffff"] {
            assert_eq!(parse_hex(text), None, "{text}");
        }
    }
}
