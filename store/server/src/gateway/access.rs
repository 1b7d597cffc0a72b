//! Who may ask over HTTP: which Host headers are known, and what browsers are told of origins.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST,
    ORIGIN,
};
use http::{HeaderMap, HeaderValue, Request};

/// The lists of a member. An empty list, or a `*` in it, allows everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    origins: Vec<String>,
    hosts: Vec<String>,
}

impl Access {
    pub(crate) fn new(origins: Vec<String>, hosts: Vec<String>) -> Self {
        Self { origins, hosts }
    }

    /// The host that a request without TLS names, if it is not a known one: another site may have
    /// made a browser send it here.
    pub(crate) fn unknown_host<B>(&self, request: &Request<B>) -> Option<String> {
        if everything(&self.hosts) {
            return None;
        }
        let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let named = header.or_else(|| request.uri().authority().map(|named| named.as_str()));
        let host = without_port(named.unwrap_or_default());
        (!self.hosts.iter().any(|known| known == host)).then(|| host.to_owned())
    }

    /// Tells a browser which origins may use the answer.
    pub(crate) fn tell_origin(&self, asked: Option<&HeaderValue>, headers: &mut HeaderMap) {
        let allowed = if everything(&self.origins) {
            HeaderValue::from_static("*")
        } else {
            let known = |origin: &&HeaderValue| {
                self.origins.iter().any(|known| known.as_bytes() == origin.as_bytes())
            };
            match asked.filter(known) {
                Some(origin) => origin.clone(),
                None => return,
            }
        };
        for (name, value) in [
            (ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE"),
            (ACCESS_CONTROL_ALLOW_HEADERS, "accept, content-type, authorization"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    }
}

/// The origin that a browser names.
pub(crate) fn origin<B>(request: &Request<B>) -> Option<HeaderValue> {
    request.headers().get(ORIGIN).cloned()
}

/// What a client whose Host header is unknown is told.
pub(crate) fn refusal(host: &str) -> String {
    format!(
        "\netcd received your request, but the Host header was unrecognized.\n\n\
         To fix this, choose one of the following options:\n\
         - Enable TLS, then any HTTPS request will be allowed.\n\
         - Add the hostname you want to use to the whitelist in settings.\n  \
         - e.g. etcd --host-whitelist {host:?}\n\n\
         This requirement has been added to help prevent \"DNS Rebinding\" attacks \
         (CVE-2018-5702).\n"
    )
}

fn everything(list: &[String]) -> bool {
    list.is_empty() || list.iter().any(|entry| entry == "*")
}

fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((inner, port)) if port.starts_with(':') => inner,
            _ => host,
        };
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str) -> Request<()> {
        Request::builder().header(HOST, host).body(()).unwrap()
    }

    #[test]
    fn hosts_are_known_by_name_without_their_port() {
        let access = Access::new(vec![], vec!["a.example".to_owned(), "::1".to_owned()]);
        for known in ["a.example", "a.example:2379", "[::1]:2379"] {
            assert_eq!(access.unknown_host(&asked(known)), None, "{known}");
        }
        assert_eq!(access.unknown_host(&asked("evil.com:1")).as_deref(), Some("evil.com"));
        for list in [vec![], vec!["*".to_owned()]] {
            assert_eq!(Access::new(vec![], list).unknown_host(&asked("evil.com")), None);
        }
    }

    #[test]
    fn origins_are_told_when_they_are_allowed() {
        let told = |list: &[&str], asked: Option<&str>| {
            let access =
                Access::new(list.iter().map(|&origin| origin.to_owned()).collect(), vec![]);
            let mut headers = HeaderMap::new();
            let asked = asked.map(|origin| HeaderValue::from_str(origin).unwrap());
            access.tell_origin(asked.as_ref(), &mut headers);
            headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).map(|told| told.to_str().unwrap().to_owned())
        };
        assert_eq!(told(&[], None).as_deref(), Some("*"));
        assert_eq!(told(&["*", "http://a"], Some("http://b")).as_deref(), Some("*"));
        assert_eq!(told(&["http://a"], Some("http://a")).as_deref(), Some("http://a"));
        assert_eq!(told(&["http://a"], Some("http://b")), None);
        assert_eq!(told(&["http://a"], None), None);
    }
}
