//! URLs of members as operators write them, and the list `--initial-cluster`.
//!
//! Input are texts from flags and requests; output are checked texts. Nothing is resolved here.
//! **Invariant:** a list of URLs is sorted, because member ids are computed from it.

use std::collections::{BTreeMap, BTreeSet};

/// Why a URL of a member, or the list of members, was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberUrlError {
    /// A URL is not one; the text is etcd's.
    #[error(transparent)]
    Url(#[from] mainstay_net::UrlError),
    /// An element of the cluster list is not `name=url`.
    #[error(
        "the initial cluster has the element {0:?}, but each must be NAME=URL, as in \
         \"a=http://10.0.0.1:2380,b=http://10.0.0.2:2380\""
    )]
    Element(String),
    /// One URL belongs to two members.
    #[error("initial cluster {0} has duplicate url")]
    Duplicate(String),
}

/// Checks one URL and returns it trimmed.
pub fn check_url(text: &str) -> Result<String, MemberUrlError> {
    let mut urls = mainstay_net::parse_urls(text)?;
    match urls.len() {
        1 => Ok(urls.swap_remove(0).to_string()),
        _ => Err(mainstay_net::UrlError::HostPort(text.to_owned()).into()),
    }
}

/// Checks a list of URLs and returns it sorted, as etcd keeps it.
pub fn check_urls<T: AsRef<str>>(texts: &[T]) -> Result<Vec<String>, MemberUrlError> {
    if texts.is_empty() {
        return Err(mainstay_net::UrlError::Empty.into());
    }
    let mut urls = texts.iter().map(|t| check_url(t.as_ref())).collect::<Result<Vec<_>, _>>()?;
    urls.sort();
    Ok(urls)
}

/// The members a cluster starts with: name and peer URLs of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialCluster(BTreeMap<String, Vec<String>>);

impl InitialCluster {
    /// Reads `name=url,name=url2,other=url3`.
    pub fn parse(text: &str) -> Result<Self, MemberUrlError> {
        let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for element in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let bad = || MemberUrlError::Element(element.to_owned());
            let (name, url) = element.split_once('=').ok_or_else(bad)?;
            if name.is_empty() || url.is_empty() {
                return Err(bad());
            }
            members.entry(name.to_owned()).or_default().push(check_url(url)?);
        }
        Self::from_members(members)
    }

    /// A cluster of the given members.
    pub fn from_members(
        mut members: BTreeMap<String, Vec<String>>,
    ) -> Result<Self, MemberUrlError> {
        members.values_mut().for_each(|urls| urls.sort());
        let cluster = Self(members);
        let mut seen = BTreeSet::new();
        if cluster.0.values().flatten().any(|url| !seen.insert(url.as_str())) {
            return Err(MemberUrlError::Duplicate(cluster.to_string()));
        }
        Ok(cluster)
    }

    /// A cluster of one.
    pub fn single(name: &str, peer_urls: &[String]) -> Self {
        let mut urls = peer_urls.to_vec();
        urls.sort();
        Self(BTreeMap::from([(name.to_owned(), urls)]))
    }

    /// The peer URLs of the member `name`.
    pub fn urls_of(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// All members by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0.iter().map(|(name, urls)| (name.as_str(), urls.as_slice()))
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The peer URLs of all members but `name`, sorted.
    pub fn urls_of_others(&self, name: &str) -> Vec<String> {
        let others = self.0.iter().filter(|(other, _)| *other != name);
        let mut urls: Vec<String> = others.flat_map(|(_, urls)| urls.iter().cloned()).collect();
        urls.sort();
        urls
    }
}

impl std::fmt::Display for InitialCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs = self.0.iter().flat_map(|(name, urls)| urls.iter().map(move |u| (name, u)));
        for (i, (name, url)) in pairs.enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{name}={url}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_as_etcd_does() {
        assert_eq!(check_url(" http://10.0.0.1:2380 ").unwrap(), "http://10.0.0.1:2380");
        assert!(check_url("http://[::1]:2380").is_ok());
        assert!(check_url("unix://localhost:m10").is_ok());
        for bad in ["10.0.0.1:2380", "ftp://a:1", "http://a", "http://::1:2380", "http://a:1/"] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
        assert!(check_url("http://a:1,http://b:2").is_err());
        assert!(check_urls::<&str>(&[]).is_err());
    }

    #[test]
    fn cluster_list_round_trips_and_names_its_faults() {
        let cluster = InitialCluster::parse("b=http://b:2,a=http://a:9,a=http://a:1").unwrap();
        assert_eq!(cluster.to_string(), "a=http://a:1,a=http://a:9,b=http://b:2");
        assert_eq!(cluster.urls_of_others("a"), ["http://b:2"]);
        assert!(matches!(InitialCluster::parse("http://a:1"), Err(MemberUrlError::Element(_))));
        assert!(matches!(
            InitialCluster::parse("a=http://a:1,b=http://a:1"),
            Err(MemberUrlError::Duplicate(_))
        ));
    }
}
