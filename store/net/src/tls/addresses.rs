//! Whether a certificate fits the address that a connection comes from.
//!
//! Input: the names of a certificate and an address. Output: etcd's verdict: the certificate names
//! the address, or the address has one of its names, or one of its names has the address. A
//! certificate without any of these names fits everywhere.

use std::net::IpAddr;

use super::identity::Identity;

/// Checks a certificate against an address; looks names up. The error is etcd's text.
pub(super) async fn check(identity: &Identity, address: IpAddr) -> Result<(), String> {
    let address = address.to_canonical();
    if !identity.ip_addresses.is_empty() {
        match identity.check_address(address) {
            Ok(()) => return Ok(()),
            Err(error) if identity.dns_names.is_empty() => return Err(error),
            Err(_) => {}
        }
    }
    if identity.dns_names.is_empty() {
        return Ok(());
    }
    let error = match by_names(address, &identity.dns_names).await {
        Ok(true) => return Ok(()),
        Ok(false) => String::new(),
        Err(error) => format!(" ({error})"),
    };
    let names: Vec<_> = identity.dns_names.iter().map(|name| format!("{name:?}")).collect();
    let names = names.join(" ");
    let host = address.to_string();
    Err(format!("tls: {host:?} does not match any of DNSNames [{names}]{error}"))
}

async fn by_names(address: IpAddr, dns_names: &[String]) -> Result<bool, String> {
    let mut error = None;
    let reverse = tokio::task::spawn_blocking(move || dns_lookup::lookup_addr(&address)).await;
    match reverse {
        Ok(Ok(found)) => {
            let found = found.strip_suffix('.').unwrap_or(&found);
            let is = |name: &String| match name.strip_prefix('*') {
                Some(end) if end.starts_with('.') => found.ends_with(end),
                _ => name == found,
            };
            if dns_names.iter().any(is) {
                return Ok(true);
            }
        }
        Ok(Err(failed)) => error = Some(format!("lookup {address}: {failed}")),
        Err(failed) => error = Some(failed.to_string()),
    }
    for name in dns_names.iter().filter(|name| !name.starts_with("*.")) {
        match tokio::net::lookup_host((name.as_str(), 0)).await {
            Ok(mut found) => {
                if found.any(|found| found.ip().to_canonical() == address) {
                    return Ok(true);
                }
            }
            Err(failed) => error = Some(format!("lookup {name}: {failed}")),
        }
    }
    error.map_or(Ok(false), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(names: &[&str], addresses: &[&str]) -> Identity {
        Identity {
            dns_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ip_addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..Identity::default()
        }
    }

    #[tokio::test]
    async fn an_address_fits_or_the_text_is_etcds() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        for (names, addresses) in [
            (&[][..], &[][..]),
            (&[], &["10.0.0.1", "127.0.0.1"]),
            (&["localhost"], &[]),
            (&["localhost"], &["10.0.0.1"]),
        ] {
            assert_eq!(check(&identity(names, addresses), local).await, Ok(()));
        }
        assert_eq!(
            check(&identity(&[], &["10.0.0.1"]), local).await.unwrap_err(),
            "x509: certificate is valid for 10.0.0.1, not 127.0.0.1"
        );
        let error = check(&identity(&["a.invalid", "*.b.invalid"], &[]), local).await.unwrap_err();
        let start =
            "tls: \"127.0.0.1\" does not match any of DNSNames [\"a.invalid\" \"*.b.invalid\"]";
        assert!(error.starts_with(start), "{error}");
    }
}
