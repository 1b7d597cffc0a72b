//! Program versions as peers claim them, and the rule by which two members may talk.
//!
//! **Invariant:** a [`Version`] prints as a full `major.minor.patch`. Real etcd ends its process
//! on a response header with anything less, so a version that we send is only made from this type.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A semantic version. Pre-release and metadata are kept for printing and ignored in comparisons,
/// because peers are compared by major and minor only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
    /// `-pre+meta` as given, or empty.
    suffix: String,
}

/// The lowest cluster version that this program can be part of.
pub const MIN_CLUSTER_VERSION: Version = Version::new(3, 0, 0);

/// What a peer that sends no version header is taken for.
const UNNAMED: Version = Version::new(2, 0, 0);

/// The text is not a full semantic version.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a version of the form major.minor.patch")]
pub struct VersionError(String);

impl Version {
    /// A plain release.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Version { major, minor, patch, suffix: String::new() }
    }

    /// The part that compatibility looks at.
    pub fn minor_pair(&self) -> (u32, u32) {
        (self.major, self.minor)
    }

    /// Reads a header value; no header stands for a very old peer, as etcd has it.
    pub(crate) fn from_header(value: Option<&str>) -> Result<Version, VersionError> {
        match value {
            None | Some("") => Ok(UNNAMED),
            Some(text) => text.parse(),
        }
    }
}

/// Whether a peer that claims `remote` and can live in clusters from `remote_min` on may talk to a
/// member of version `local`.
pub fn compatible(local: &Version, remote: &Version, remote_min: &Version) -> bool {
    remote.minor_pair() >= MIN_CLUSTER_VERSION.minor_pair()
        && remote_min.minor_pair() <= local.minor_pair()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}{}", self.major, self.minor, self.patch, self.suffix)
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let error = || VersionError(text.to_owned());
        let numbers_end = text.find(['-', '+']).unwrap_or(text.len());
        let (numbers, suffix) = text.split_at(numbers_end);
        let suffix_is_sound = suffix
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.'));
        if !suffix_is_sound || suffix.matches('+').count() > 1 {
            return Err(error());
        }
        let mut parts = numbers.split('.');
        let mut next = || {
            let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
            part.and_then(|part| part.parse::<u32>().ok()).ok_or_else(error)
        };
        let (major, minor, patch) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(error());
        }
        Ok(Version { major, minor, patch, suffix: suffix.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn full_versions_are_read_and_printed() {
        for text in ["3.7.3", "3.0.0", "3.6.0-rc.1", "3.5.17+git", "3.8.0-alpha.0+abc"] {
            assert_eq!(version(text).to_string(), text);
        }
    }

    #[test]
    fn anything_less_is_refused() {
        for text in
            ["", "3", "3.7", "3.7.", "3.7.3.1", "v3.7.3", "garbage", "3.-1.0", "3.7.3 ", "+3.7.3"]
        {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn peers_are_compared_by_minor_version() {
        let ours = version("3.7.3");
        let ok = |remote: &str, min: &str| compatible(&ours, &version(remote), &version(min));
        assert!(ok("3.0.0", "3.0.0"));
        assert!(ok("3.8.0", "3.0.0"));
        assert!(ok("4.9.0", "3.7.9"));
        assert!(!ok("2.3.0", "2.0.0"));
        assert!(!ok("3.8.0", "3.8.0"));
        let silent = Version::from_header(None).unwrap();
        assert!(!compatible(&ours, &silent, &silent));
    }
}
