//! The arithmetic that the cluster version needs.
//!
//! Input are versions of members and of the cluster; output are decisions about the next one.

use mainstay_mvcc::version::Version;

/// The lowest version that a cluster can have.
pub(crate) const MIN_CLUSTER_VERSION: Version = Version { major: 3, minor: 0, patch: 0 };

/// Whether `to` is exactly one minor version below `from`: the only downgrade there is.
pub(crate) fn is_downgrade_step(from: Version, to: Version) -> bool {
    let below = from.minor.checked_sub(1);
    below.is_some_and(|minor| to == Version { major: from.major, minor, patch: 0 })
}

/// Whether a cluster version may change so: up within one major version, or down by one minor.
pub(crate) fn may_become(from: Version, to: Version) -> bool {
    let (from, to) = (from.cluster(), to.cluster());
    is_downgrade_step(from, to) || (from.major == to.major && from < to)
}

/// `X.Y`, as etcd prints a cluster version in answers to operators.
pub(crate) fn short(version: Version) -> String {
    format!("{}.{}", version.major, version.minor)
}

/// Reads the target of a downgrade: `X.Y.Z` or `X.Y`; the third number is dropped.
pub(crate) fn parse_target(text: &str) -> Option<Version> {
    text.parse().or_else(|_| format!("{text}.0").parse()).ok().map(Version::cluster)
}

/// What the leader proposes as cluster version, if anything, when the members run `members`
/// (`None` for one that did not answer).
pub(crate) fn next_cluster_version(
    cluster: Option<Version>,
    members: &[Option<Version>],
    downgrade_to: Option<Version>,
) -> Option<Version> {
    let all_known: Option<Vec<Version>> = members.iter().copied().collect();
    let lowest = all_known.and_then(|versions| versions.into_iter().min()).map(Version::cluster);
    let Some(cluster) = cluster else { return Some(lowest.unwrap_or(MIN_CLUSTER_VERSION)) };
    let lowest = lowest?;
    if let Some(target) = downgrade_to {
        let possible = is_downgrade_step(cluster, target) && is_downgrade_step(lowest, target);
        return (target != cluster && possible).then_some(target);
    }
    (cluster < lowest && may_become(cluster, lowest)).then_some(lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn targets() {
        assert_eq!(parse_target("3.6"), Some(v("3.6.0")));
        assert_eq!(parse_target("3.6.5"), Some(v("3.6.0")));
        assert_eq!(parse_target("3.6.5.4"), None);
        assert_eq!(short(v("3.7.3")), "3.7");
    }

    #[test]
    fn cluster_version_moves_up_or_one_minor_down() {
        assert!(may_become(v("3.0.0"), v("3.7.3")));
        assert!(may_become(v("3.7.0"), v("3.6.0")));
        assert!(!may_become(v("3.7.0"), v("3.5.0")));
        assert!(!may_become(v("3.7.0"), v("3.7.2")));
        assert!(!may_become(v("3.7.0"), v("4.0.0")));
    }

    #[test]
    fn the_lowest_member_decides_and_silence_decides_nothing() {
        let next = next_cluster_version;
        assert_eq!(next(None, &[Some(v("3.7.3"))], None), Some(v("3.7.0")));
        assert_eq!(next(None, &[Some(v("3.7.3")), None], None), Some(v("3.0.0")));
        let mixed = [Some(v("3.7.3")), Some(v("3.6.1"))];
        assert_eq!(next(Some(v("3.0.0")), &mixed, None), Some(v("3.6.0")));
        assert_eq!(next(Some(v("3.6.0")), &mixed, None), None);
        assert_eq!(next(Some(v("3.6.0")), &[Some(v("3.7.3")), None], None), None);
        let all = [Some(v("3.7.3"))];
        assert_eq!(next(Some(v("3.7.0")), &all, Some(v("3.6.0"))), Some(v("3.6.0")));
        assert_eq!(next(Some(v("3.6.0")), &all, Some(v("3.6.0"))), None);
    }
}
