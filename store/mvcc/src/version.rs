//! Versions of servers and clusters, and the downgrade state.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The version of etcd that this server is: what it claims to clients and peers.
pub const SERVER_VERSION: Version = Version { major: 3, minor: 7, patch: 3 };

/// First version that keeps remaining TTLs of leases in any case.
pub const V3_6: Version = Version { major: 3, minor: 6, patch: 0 };

/// A version `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl Version {
    /// The version without its third number, as clusters have it.
    #[must_use]
    pub const fn cluster(self) -> Self {
        Self { patch: 0, ..self }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Text that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version: three numbers with dots between them are needed")]
pub struct NotAVersion(pub String);

impl FromStr for Version {
    type Err = NotAVersion;

    /// Reads `x.y.z`; what follows a `-` or `+` (pre-release, build) is left out.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let mut parts = numbers.split('.').map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        });
        let mut next = || parts.next().flatten();
        let version = (|| Some(Self { major: next()?, minor: next()?, patch: next()? }))();
        match (version, parts.next()) {
            (Some(version), None) => Ok(version),
            _ => Err(NotAVersion(text.to_owned())),
        }
    }
}

/// Whether the cluster is on its way down to an older version. Its JSON is the row in `cluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DowngradeInfo {
    /// Version that is gone to; empty when there is no downgrade.
    #[serde(rename = "target-version", default)]
    pub target_version: String,
    /// Whether there is a downgrade.
    #[serde(default)]
    pub enabled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!("3.7.0".parse(), Ok(Version { major: 3, minor: 7, patch: 0 }));
        assert_eq!("3.8.0-alpha.0+git".parse(), Ok(Version { major: 3, minor: 8, patch: 0 }));
        for bad in ["", "3", "3.7", "3.7.x", "3.7.0.1", "+3.7.0", "3..0"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
        assert!(SERVER_VERSION > V3_6);
        assert_eq!(SERVER_VERSION.cluster().to_string(), "3.7.0");
    }

    #[test]
    fn downgrade_json_is_etcds() {
        let info = DowngradeInfo { target_version: "3.6.0".into(), enabled: true };
        let json = serde_json::to_string(&info).unwrap();
        assert_eq!(json, r#"{"target-version":"3.6.0","enabled":true}"#);
    }
}
