//! The names in a certificate, and whether it is valid for one.
//!
//! Input: a certificate. Output: its common name and subject alternative names. The rules of
//! matching and the texts are those of Go's library, which etcd's users see.

use std::net::IpAddr;

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Who the other side is, by a certificate that was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The common name: what etcd's authorization takes for the user. Empty if there is none.
    pub common_name: String,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// Addresses.
    pub ip_addresses: Vec<IpAddr>,
}

impl Identity {
    /// Reads the names of a certificate; what cannot be read is not there.
    pub(super) fn of(der: &[u8]) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            return Identity::default();
        };
        // The last one counts.
        let common_name = certificate
            .subject()
            .iter_common_name()
            .last()
            .and_then(|name| name.as_str().ok())
            .unwrap_or_default()
            .to_owned();
        let mut identity = Identity { common_name, ..Identity::default() };
        let Ok(Some(names)) = certificate.subject_alternative_name() else { return identity };
        for name in &names.value.general_names {
            match name {
                GeneralName::DNSName(name) => identity.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(octets) => identity.ip_addresses.extend(address(octets)),
                _ => {}
            }
        }
        identity
    }

    /// Whether the certificate is valid for a host name or an address; else why not.
    pub(super) fn check_host(&self, host: &str) -> Result<(), String> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return self.check_address(ip);
        }
        if self.dns_names.iter().any(|pattern| matches(pattern, host)) {
            return Ok(());
        }
        if self.dns_names.is_empty() {
            if self.ip_addresses.is_empty() && matches(&self.common_name, host) {
                return Err(
                    "x509: certificate relies on legacy Common Name field, use SANs instead".into(),
                );
            }
            return Err(format!(
                "x509: certificate is not valid for any names, but wanted to match {host}"
            ));
        }
        Err(format!("x509: certificate is valid for {}, not {host}", self.dns_names.join(", ")))
    }

    /// The same for an address.
    pub(super) fn check_address(&self, ip: IpAddr) -> Result<(), String> {
        let ip = ip.to_canonical();
        if self.ip_addresses.contains(&ip) {
            return Ok(());
        }
        if self.ip_addresses.is_empty() {
            return Err(format!(
                "x509: cannot validate certificate for {ip} because it doesn't contain any IP SANs"
            ));
        }
        let valid: Vec<_> = self.ip_addresses.iter().map(IpAddr::to_string).collect();
        Err(format!("x509: certificate is valid for {}, not {ip}", valid.join(", ")))
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(|octets| IpAddr::from(octets).to_canonical())
}

/// Whether a name of a certificate, of which the first label may be `*`, is that of the host.
fn matches(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let pattern = pattern.to_ascii_lowercase();
    if host.is_empty() || pattern.is_empty() {
        return false;
    }
    match pattern.strip_prefix("*.") {
        Some(rest) => host
            .split_once('.')
            .is_some_and(|(label, host)| !label.is_empty() && !rest.is_empty() && host == rest),
        None => host == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_go() {
        let identity = Identity {
            common_name: "cn.example".into(),
            dns_names: vec!["etcd.Example.com".into(), "*.cluster.local".into()],
            ip_addresses: vec!["10.0.0.1".parse().unwrap()],
        };
        for good in ["ETCD.example.com", "etcd.example.com.", "a.cluster.local", "10.0.0.1"] {
            assert_eq!(identity.check_host(good), Ok(()), "{good}");
        }
        assert_eq!(identity.check_host("[::ffff:10.0.0.1]"), Ok(()));
        assert_eq!(
            identity.check_host("a.b.cluster.local").unwrap_err(),
            "x509: certificate is valid for etcd.Example.com, *.cluster.local, not a.b.cluster.local"
        );
        assert_eq!(
            identity.check_host("10.0.0.2").unwrap_err(),
            "x509: certificate is valid for 10.0.0.1, not 10.0.0.2"
        );
        let bare = Identity { common_name: "cn.example".into(), ..Identity::default() };
        assert_eq!(
            bare.check_host("cn.example").unwrap_err(),
            "x509: certificate relies on legacy Common Name field, use SANs instead"
        );
        assert_eq!(
            bare.check_host("10.0.0.2").unwrap_err(),
            "x509: cannot validate certificate for 10.0.0.2 because it doesn't contain any IP SANs"
        );
    }
}
