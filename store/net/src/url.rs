//! Listen and advertise URLs.
//!
//! Input: a flag's comma-separated list. Output: checked URLs, or an error with the text that
//! etcd prints for the same mistake. **Invariant:** a [`ListenUrl`] can be bound: its host is an
//! IP address or `localhost`, or its path is a socket file.

use std::fmt;
use std::net::IpAddr;

/// How a URL's server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plaintext TCP.
    Http,
    /// TLS over TCP.
    Https,
    /// Plaintext over a Unix socket.
    Unix,
    /// TLS over a Unix socket.
    Unixs,
}

/// A URL that a server can be bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenUrl {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// Host without brackets; for Unix sockets the path.
    pub host: String,
    /// Port; 0 for Unix sockets.
    pub port: u16,
    text: String,
}

/// Why a URL list was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The list is empty.
    #[error("no valid URLs given")]
    Empty,
    /// The scheme is missing or another one.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// Host and port are not both there.
    #[error("URL address does not have the form \"host:port\": {0}")]
    HostPort(String),
    /// There is something behind the port.
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// A listener needs an address of this machine.
    #[error("expected IP in URL for binding ({0})")]
    NotAnIp(String),
}

impl fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse_one(text: &str) -> Result<ListenUrl, UrlError> {
    let text = text.trim();
    let (scheme, rest) =
        text.split_once("://").ok_or_else(|| UrlError::Scheme(text.to_string()))?;
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        "unix" => Scheme::Unix,
        "unixs" => Scheme::Unixs,
        _ => return Err(UrlError::Scheme(text.to_string())),
    };
    let url = |host: &str, port| ListenUrl {
        scheme,
        host: host.to_string(),
        port,
        text: text.to_string(),
    };
    if matches!(scheme, Scheme::Unix | Scheme::Unixs) {
        if rest.is_empty() {
            return Err(UrlError::HostPort(text.to_string()));
        }
        return Ok(url(rest, 0));
    }
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let bad = || UrlError::HostPort(text.to_string());
    let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
    let port: u16 = port.parse().map_err(|_| bad())?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(bad)?,
        None if host.contains(':') => return Err(bad()),
        None => host,
    };
    if !path.is_empty() {
        return Err(UrlError::Path(text.to_string()));
    }
    Ok(url(host, port))
}

/// Parses a comma-separated list of `http`, `https`, `unix` or `unixs` URLs, sorted as etcd
/// sorts them (their order decides the member id).
pub fn parse_urls(list: &str) -> Result<Vec<ListenUrl>, UrlError> {
    if list.trim().is_empty() {
        return Err(UrlError::Empty);
    }
    let mut urls = list.split(',').map(parse_one).collect::<Result<Vec<_>, _>>()?;
    urls.sort_by(|a, b| a.text.cmp(&b.text));
    Ok(urls)
}

impl ListenUrl {
    /// Checks that the URL names an address of this machine and not a name to be resolved.
    pub fn check_bindable(&self) -> Result<(), UrlError> {
        let named = matches!(self.scheme, Scheme::Http | Scheme::Https)
            && self.host != "localhost"
            && self.host.parse::<IpAddr>().is_err();
        if named { Err(UrlError::NotAnIp(self.text.clone())) } else { Ok(()) }
    }

    /// The URL as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.scheme, Scheme::Https | Scheme::Unixs)
    }
}

/// Checks that advertised URLs have a host that others can reach: not empty.
pub fn check_advertise_urls(urls: &[ListenUrl]) -> Result<(), UrlError> {
    match urls.iter().find(|url| url.host.is_empty()) {
        Some(url) => Err(UrlError::HostPort(url.text.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_sorted() {
        let urls =
            parse_urls("http://10.0.0.2:2379, http://[::1]:2379,unix:///run/x.sock").unwrap();
        let text: Vec<_> = urls.iter().map(ListenUrl::as_str).collect();
        assert_eq!(text, ["http://10.0.0.2:2379", "http://[::1]:2379", "unix:///run/x.sock"]);
        assert_eq!(urls[1].host, "::1");
        assert_eq!(urls[2].host, "/run/x.sock");
    }

    #[test]
    fn mistakes_have_etcds_texts() {
        let text = |list| parse_urls(list).unwrap_err().to_string();
        assert_eq!(text(""), "no valid URLs given");
        assert_eq!(
            text("127.0.0.1:2379"),
            "URL scheme must be http, https, unix, or unixs: 127.0.0.1:2379"
        );
        assert_eq!(
            text("http://127.0.0.1"),
            "URL address does not have the form \"host:port\": http://127.0.0.1"
        );
        assert_eq!(text("http://a:1/x"), "URL must not contain a path: http://a:1/x");
        let named = parse_urls("http://example.com:2379").unwrap();
        assert_eq!(
            named[0].check_bindable().unwrap_err().to_string(),
            "expected IP in URL for binding (http://example.com:2379)"
        );
        assert!(parse_urls("http://localhost:1").unwrap()[0].check_bindable().is_ok());
    }
}
