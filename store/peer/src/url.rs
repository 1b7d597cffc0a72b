//! Peer URLs, and the choice between the several that a member may have.
//!
//! Input: URLs as members publish them. Output: where to dial next.
//! **Invariant:** a [`PeerUrl`] names a host and a port (or a socket file) and nothing else, so it
//! can stand in a `Host` header as it is.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

use thiserror::Error;

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS over TCP.
    Https,
    /// A plain Unix socket.
    Unix,
    /// TLS over a Unix socket.
    Unixs,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        }
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Unixs)
    }
}

/// One address of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerUrl {
    scheme: Scheme,
    address: String,
}

/// A text that is no peer URL, in etcd's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UrlError {
    /// A scheme that peers do not speak.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// No host, no port, or characters that belong in neither.
    #[error("URL address does not have the form \"host:port\": {0}")]
    Address(String),
    /// More than host and port.
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// An empty list.
    #[error("no valid URLs given")]
    Empty,
}

impl PeerUrl {
    /// How it is reached.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// `host:port`, or the file of a Unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The host, with brackets if it is an address of IPv6; what its certificate must be valid for.
    pub fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host)
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.address)
    }
}

impl FromStr for PeerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(UrlError::Scheme(text.to_owned())),
        };
        if rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Address(text.to_owned()));
        }
        if matches!(scheme, Scheme::Http | Scheme::Https) {
            if rest.contains(['/', '?', '#']) {
                return Err(UrlError::Path(text.to_owned()));
            }
            let port =
                rest.rsplit_once(':').filter(|(host, _)| is_host(host)).map(|(_, port)| port);
            if port.and_then(|port| port.parse::<u16>().ok()).is_none() {
                return Err(UrlError::Address(text.to_owned()));
            }
        }
        Ok(PeerUrl { scheme, address: rest.to_owned() })
    }
}

fn is_host(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(Some(v6)) => {
            !v6.is_empty()
                && v6
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'.' | b'%'))
        }
        Some(None) => false,
        None => text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')),
    }
}

/// Reads a member's list of URLs. As in etcd the list is sorted, so all members try in one order.
pub fn parse_urls<S: AsRef<str>>(texts: &[S]) -> Result<Vec<PeerUrl>, UrlError> {
    let mut urls =
        texts.iter().map(|text| text.as_ref().parse()).collect::<Result<Vec<PeerUrl>, _>>()?;
    if urls.is_empty() {
        return Err(UrlError::Empty);
    }
    urls.sort_by_key(|url| url.to_string());
    Ok(urls)
}

/// Chooses among the URLs of one peer: stays with one while it works, else goes to the next.
#[derive(Debug)]
pub(crate) struct UrlPicker(Mutex<Picked>);

#[derive(Debug)]
struct Picked {
    /// Never empty.
    urls: Vec<PeerUrl>,
    at: usize,
}

impl UrlPicker {
    /// `urls` must not be empty; [`parse_urls`] sees to that.
    pub(crate) fn new(urls: Vec<PeerUrl>) -> Self {
        debug_assert!(!urls.is_empty());
        UrlPicker(Mutex::new(Picked { urls, at: 0 }))
    }

    pub(crate) fn pick(&self) -> PeerUrl {
        let picked = self.lock();
        picked.urls[picked.at].clone()
    }

    /// Goes on to the next URL, unless someone else already did.
    pub(crate) fn unreachable(&self, url: &PeerUrl) {
        let mut picked = self.lock();
        if picked.urls[picked.at] == *url {
            picked.at = (picked.at + 1) % picked.urls.len();
        }
    }

    pub(crate) fn update(&self, urls: Vec<PeerUrl>) {
        debug_assert!(!urls.is_empty());
        *self.lock() = Picked { urls, at: 0 };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Picked> {
        self.0.lock().expect("no code panics while it holds the picked URL")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> PeerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn urls_name_a_host_and_a_port() {
        for text in [
            "http://127.0.0.1:2380",
            "https://node-1.example.com:2380",
            "http://[::1]:2380",
            "http://:2380",
            "unix://localhost:m10",
        ] {
            assert_eq!(url(text).to_string(), text);
        }
        assert_eq!(url(" HTTP://a:1 ").to_string(), "http://a:1");
        assert_eq!(url("https://[::1]:2380").host(), "[::1]");
        assert_eq!(url("unixs://localhost:m10").host(), "localhost");
        for text in ["", "a:1", "ftp://a:1", "://a:1"] {
            assert!(matches!(text.parse::<PeerUrl>(), Err(UrlError::Scheme(_))), "{text}");
        }
        for text in [
            "http://",
            "http://a",
            "http://a:",
            "http://a:99999",
            "http://u@a:1",
            "http://a b:1",
            "http://[::1:1",
        ] {
            assert!(matches!(text.parse::<PeerUrl>(), Err(UrlError::Address(_))), "{text}");
        }
        for text in ["http://a:1/", "http://a:1/x", "http://a:1?x"] {
            assert!(matches!(text.parse::<PeerUrl>(), Err(UrlError::Path(_))), "{text}");
        }
        assert_eq!(parse_urls::<&str>(&[]), Err(UrlError::Empty));
    }

    #[test]
    fn a_dead_url_gives_way_to_the_next() {
        let picker = UrlPicker::new(parse_urls(&["http://b:1", "http://a:1"]).unwrap());
        assert_eq!(picker.pick(), url("http://a:1"));
        picker.unreachable(&url("http://a:1"));
        assert_eq!(picker.pick(), url("http://b:1"));
        // A second report about the first URL comes late and changes nothing.
        picker.unreachable(&url("http://a:1"));
        assert_eq!(picker.pick(), url("http://b:1"));
        picker.unreachable(&url("http://b:1"));
        assert_eq!(picker.pick(), url("http://a:1"));
        picker.update(vec![url("http://c:1")]);
        assert_eq!(picker.pick(), url("http://c:1"));
        picker.unreachable(&url("http://c:1"));
        assert_eq!(picker.pick(), url("http://c:1"));
    }
}
