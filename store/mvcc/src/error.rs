//! What a client is told, and what ends the process.
//!
//! Clients compare error texts, so [`Error`]'s `Display` is etcd's text to the letter and
//! [`Error::code`] the gRPC code that a real server sends with it, slips included.
//! [`Fatal`] is for the state machine itself: an entry that it cannot apply as etcd would, or a
//! broken invariant. Going on would make this member differ from the others.

use std::borrow::Cow;
use std::fmt;

use mainstay_engine::EngineError;

/// gRPC status codes, by their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Code {
    /// The call was given up.
    Canceled = 1,
    /// Whatever a real server has no code for.
    Unknown = 2,
    /// The request is wrong in itself.
    InvalidArgument = 3,
    /// Too late.
    DeadlineExceeded = 4,
    /// What was named is not there.
    NotFound = 5,
    /// Not allowed.
    PermissionDenied = 7,
    /// A limit was met.
    ResourceExhausted = 8,
    /// The state of the cluster does not allow it.
    FailedPrecondition = 9,
    /// A revision or TTL outside of what exists.
    OutOfRange = 11,
    /// Not offered.
    Unimplemented = 12,
    /// The server is broken.
    Internal = 13,
    /// Try again.
    Unavailable = 14,
    /// Members differ.
    DataLoss = 15,
    /// No valid identity.
    Unauthenticated = 16,
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident, $code:ident, $text:literal;)*) => {
        /// An answer to a client that is not a success.
        #[derive(Clone, Debug)]
        pub enum Error {
            $($(#[$doc])* #[doc = concat!("`", $text, "`")] $name,)*
            /// A text that real servers send as it is, with code Unknown (`auth: …`, `election: …`).
            Raw(Cow<'static, str>),
            /// A call or option that is not offered.
            Unimplemented(Cow<'static, str>),
            /// Reading the engine failed or met impossible bytes. Whoever gets this ends the process.
            Broken(Fatal),
        }

        impl Error {
            /// The gRPC code that goes with the text.
            pub fn code(&self) -> Code {
                match self {
                    $(Error::$name => Code::$code,)*
                    Error::Raw(_) => Code::Unknown,
                    Error::Unimplemented(_) => Code::Unimplemented,
                    Error::Broken(_) => Code::Internal,
                }
            }

            /// The text.
            pub fn text(&self) -> Cow<'static, str> {
                match self {
                    $(Error::$name => Cow::Borrowed($text),)*
                    Error::Raw(text) | Error::Unimplemented(text) => text.clone(),
                    Error::Broken(fatal) => Cow::Owned(fatal.to_string()),
                }
            }

            /// All errors with a fixed text.
            pub const FIXED: &'static [Error] = &[$(Error::$name,)*];
        }
    };
}

errors! {
    EmptyKey, InvalidArgument, "etcdserver: key is not provided";
    KeyNotFound, InvalidArgument, "etcdserver: key not found";
    ValueProvided, InvalidArgument, "etcdserver: value is provided";
    LeaseProvided, InvalidArgument, "etcdserver: lease is provided";
    TooManyOps, InvalidArgument, "etcdserver: too many operations in txn request";
    DuplicateKey, InvalidArgument, "etcdserver: duplicate key given in txn request";
    InvalidClientApiVersion, InvalidArgument, "etcdserver: invalid client api version";
    InvalidSortOption, InvalidArgument, "etcdserver: invalid sort option";
    Compacted, OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    FutureRevision, OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    NoSpace, ResourceExhausted, "etcdserver: mvcc: database space exceeded";

    LeaseNotFound, NotFound, "etcdserver: requested lease not found";
    LeaseExists, FailedPrecondition, "etcdserver: lease already exists";
    LeaseTtlTooLarge, OutOfRange, "etcdserver: too large lease TTL";

    WatchCanceled, Canceled, "etcdserver: watch canceled";

    MemberExists, FailedPrecondition, "etcdserver: member ID already exist";
    PeerUrlExists, FailedPrecondition, "etcdserver: Peer URLs already exists";
    /// Sent with code Unknown by real servers.
    NotEnoughStartedMembers, Unknown,
        "etcdserver: re-configuration failed due to not enough started members";
    MemberBadUrls, InvalidArgument, "etcdserver: given member URLs are invalid";
    MemberNotFound, NotFound, "etcdserver: member not found";
    MemberNotLearner, FailedPrecondition, "etcdserver: can only promote a learner member";
    LearnerNotReady, FailedPrecondition,
        "etcdserver: can only promote a learner member which is in sync with leader";
    TooManyLearners, FailedPrecondition, "etcdserver: too many learner members in cluster";
    ClusterIdMismatch, FailedPrecondition, "etcdserver: cluster ID mismatch";

    RequestTooLarge, InvalidArgument, "etcdserver: request is too large";
    /// Sent with code Unknown by real servers.
    TooManyRequests, Unknown, "etcdserver: too many requests";

    RootUserNotExist, FailedPrecondition, "etcdserver: root user does not exist";
    RootRoleNotExist, FailedPrecondition, "etcdserver: root user does not have root role";
    UserAlreadyExists, FailedPrecondition, "etcdserver: user name already exists";
    UserEmpty, InvalidArgument, "etcdserver: user name is empty";
    UserNotFound, FailedPrecondition, "etcdserver: user name not found";
    RoleAlreadyExists, FailedPrecondition, "etcdserver: role name already exists";
    RoleNotFound, FailedPrecondition, "etcdserver: role name not found";
    RoleEmpty, InvalidArgument, "etcdserver: role name is empty";
    AuthFailed, InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    /// Real servers have no code for it. Also the answer to a password hash that does not decode.
    NoPasswordUser, Unknown,
        "auth: authentication failed, password was given for no password user";
    PermissionNotGiven, InvalidArgument, "etcdserver: permission not given";
    PermissionDenied, PermissionDenied, "etcdserver: permission denied";
    RoleNotGranted, FailedPrecondition, "etcdserver: role is not granted to the user";
    PermissionNotGranted, FailedPrecondition, "etcdserver: permission is not granted to the role";
    AuthNotEnabled, FailedPrecondition, "etcdserver: authentication is not enabled";
    InvalidAuthToken, Unauthenticated, "etcdserver: invalid auth token";
    InvalidAuthManagement, InvalidArgument, "etcdserver: invalid auth management";
    AuthOldRevision, InvalidArgument, "etcdserver: revision of auth store is old";

    NoLeader, Unavailable, "etcdserver: no leader";
    NotLeader, FailedPrecondition, "etcdserver: not leader";
    LeaderChanged, Unavailable, "etcdserver: leader changed";
    NotCapable, FailedPrecondition, "etcdserver: not capable";
    Stopped, Unavailable, "etcdserver: server stopped";
    Timeout, Unavailable, "etcdserver: request timed out";
    TimeoutLeaderFail, Unavailable,
        "etcdserver: request timed out, possibly due to previous leader failure";
    TimeoutConnectionLost, Unavailable,
        "etcdserver: request timed out, possibly due to connection lost";
    TimeoutWaitAppliedIndex, Unavailable,
        "etcdserver: request timed out, waiting for the applied index took too long";
    /// Real servers have no code for it.
    TimeoutLeaderTransfer, Unknown, "etcdserver: request timed out, leader transfer took too long";
    Unhealthy, Unavailable, "etcdserver: unhealthy cluster";
    CorruptCluster, DataLoss, "etcdserver: corrupt cluster";
    NotSupportedForLearner, FailedPrecondition, "etcdserver: rpc not supported for learner";
    BadLeaderTransferee, FailedPrecondition, "etcdserver: bad leader transferee";

    WrongDowngradeVersionFormat, InvalidArgument,
        "etcdserver: wrong downgrade target version format";
    InvalidDowngradeTargetVersion, InvalidArgument, "etcdserver: invalid downgrade target version";
    ClusterVersionUnavailable, FailedPrecondition,
        "etcdserver: cluster version not found during downgrade";
    DowngradeInProcess, FailedPrecondition, "etcdserver: cluster has a downgrade job in progress";
    NoInflightDowngrade, FailedPrecondition, "etcdserver: no inflight downgrade job";

    RequestCanceled, Canceled, "etcdserver: request canceled";
    DeadlineExceeded, DeadlineExceeded, "etcdserver: context deadline exceeded";
    /// Real servers have no code for it.
    UnknownMethod, Unknown, "etcdserver: unknown method";

    /// Reason of a cancelled watch; never a status.
    DuplicateWatchId, Unknown, "mvcc: duplicate watch ID provided on the WatchStream";
    /// Reason of a cancelled watch; never a status.
    EmptyWatcherRange, Unknown, "mvcc: watcher range is empty";
}

impl Error {
    /// The text between members (`GET /members/hashkv`), where the mvcc errors have no prefix.
    pub fn peer_text(&self) -> Cow<'static, str> {
        match self {
            Error::Compacted => "mvcc: required revision has been compacted".into(),
            Error::FutureRevision => "mvcc: required revision is a future revision".into(),
            other => other.text(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl std::error::Error for Error {}

/// Equal for a client: same code and same text.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.code() == other.code() && self.text() == other.text()
    }
}

impl Eq for Error {}

impl From<Fatal> for Error {
    fn from(fatal: Fatal) -> Self {
        Error::Broken(fatal)
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Error::Broken(Fatal::Engine(error))
    }
}

/// Why the state machine stops for good. Names what was found and what can be done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fatal {
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(#[from] EngineError),
    /// The engine holds something that the state machine never writes.
    #[error(
        "engine content is damaged: {found} in {place}; remove this member's engine directory so \
         that it is rebuilt from another member's snapshot"
    )]
    Damaged {
        /// Family or bucket, and key.
        place: String,
        /// What is wrong there.
        found: String,
    },
    /// An entry of the log that cannot be applied the way every other member applies it.
    #[error("cannot apply log entry {index}: {found}; {remedy}")]
    Entry {
        /// Index of the entry.
        index: u64,
        /// What was found in it.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The state found at the start is not one that this version can continue from.
    #[error("cannot start on this data: {found}; {remedy}")]
    Start {
        /// What was found.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
}

impl Fatal {
    /// Damage at a key of a family or bucket.
    pub(crate) fn damaged(place: &str, key: &[u8], found: impl Into<String>) -> Self {
        Fatal::Damaged { place: format!("{place} {}", key.escape_ascii()), found: found.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_unique_and_prefixed() {
        let mut seen = std::collections::BTreeSet::new();
        for error in Error::FIXED {
            let text = error.to_string();
            let prefixed = ["etcdserver: ", "mvcc: ", "auth: "].iter().any(|p| text.starts_with(p));
            assert!(prefixed, "{text}");
            assert!(seen.insert(text.clone()), "twice: {text}");
        }
    }

    #[test]
    fn codes_keep_the_slips_of_real_servers() {
        assert_eq!(Error::NotEnoughStartedMembers.code(), Code::Unknown);
        assert_eq!(Error::TooManyRequests.code(), Code::Unknown);
        assert_eq!(Error::Compacted.code(), Code::OutOfRange);
        assert_eq!(Error::KeyNotFound.code() as i32, 3);
        assert_eq!(Error::Raw("election: no leader".into()).code(), Code::Unknown);
    }

    #[test]
    fn peers_get_the_mvcc_texts_without_prefix() {
        assert_eq!(
            Error::FutureRevision.peer_text(),
            "mvcc: required revision is a future revision"
        );
        assert_eq!(Error::EmptyKey.peer_text(), "etcdserver: key is not provided");
    }
}
