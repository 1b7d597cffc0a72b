//! What the peer port needs from the member that it belongs to: one object-safe trait, [`Host`],
//! and the small types that cross it.
//!
//! Input: messages, snapshots and requests that peers sent. Output: answers, and the bytes of our
//! own snapshots. **Invariant:** no method without a future in its type may block: they are called
//! from tasks that serve sockets, and some of them from inside [`crate::Peers::send`], which is the
//! raft thread. A full inbox is an error ([`ProcessError::Busy`]) and never a wait.

use std::any::Any;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mainstay_proto::raftpb::Message;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whatever keeps the state of a snapshot readable while it is being sent.
pub type Pinned = Arc<dyn Any + Send + Sync>;

/// The member behind the peer port.
pub trait Host: Send + Sync + 'static {
    /// Hands a message to raft. The caller has already checked that the message is of a type that
    /// peers exchange, is meant for this member, and does not come from a removed one. Never MsgSnap.
    ///
    /// Messages of one stream arrive in the order of the stream.
    fn process(&self, message: Message) -> Result<(), ProcessError>;

    /// Whether the member was removed from the cluster, as far as this member has applied.
    fn is_removed(&self, id: u64) -> bool;

    /// A message to this member was lost on our side: its queue was full or its connection failed.
    fn report_unreachable(&self, id: u64);

    /// The end of a snapshot that was sent: the member has it (true), or not. Called exactly once
    /// for each [`crate::Peers::send_snapshot`].
    fn report_snapshot(&self, id: u64, delivered: bool);

    /// The member `told_by` answered that this member is no longer in the cluster. A removed member
    /// may never see its own removal in the log, so this is final: the member must stop.
    /// Called at most once.
    fn removed_from_cluster(&self, told_by: u64);

    /// The database file (bbolt) for an outgoing MsgSnap, read from what `pinned` holds. Its index,
    /// term and conf state must be those of the message: real etcd refuses others.
    fn snapshot_body(
        &self,
        message: &Message,
        pinned: Pinned,
    ) -> BoxFuture<'static, io::Result<SnapshotBody>>;

    /// Takes an incoming MsgSnap with its database file: stores and checks the file, prepares the
    /// engine, and only then steps the message. The sender learns success when this returns `Ok`.
    /// It runs to its end also when the sender is gone: then the body ends in an error. Several may
    /// run at the same time; refusing is always right, because a leader tries again.
    fn stage_snapshot(
        &self,
        message: Message,
        body: IncomingSnapshot,
    ) -> BoxFuture<'static, Result<(), StageError>>;

    /// All members as applied, ordered by id. A joining member reads ids from it.
    fn members(&self) -> Vec<MemberInfo>;

    /// Cluster and storage version as applied, `None` when not decided yet. The leader of a mixed
    /// cluster reads this from us.
    fn versions(&self) -> AppliedVersions;

    /// Resolves when everything that was committed at the time of the call is applied. Leases are
    /// answered only then; the peer port limits the wait.
    fn wait_applied(&self) -> BoxFuture<'static, ()>;

    /// Renews a lease, as leader, and gives its new time to live in seconds. A lease that is past
    /// its end but not revoked yet makes this wait until it is revoked or the leader is another.
    fn lease_renew(&self, id: i64) -> BoxFuture<'static, Result<i64, LeaseError>>;

    /// The remaining time of a lease and, if asked for, its keys, as leader.
    fn lease_time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> BoxFuture<'static, Result<LeaseTimeToLive, LeaseError>>;

    /// Promotes a learner, as leader. `token` is the auth token of the client whose request a
    /// follower forwarded. Gives all members after the promotion.
    fn promote(
        &self,
        id: u64,
        token: Option<String>,
    ) -> BoxFuture<'static, Result<Vec<MemberInfo>, PromoteError>>;

    /// The hash of all keys at a revision (0 = now). The error is the text that etcd's store gives,
    /// for example `mvcc: required revision has been compacted`; peers look for these texts.
    fn hash_kv(&self, revision: i64) -> BoxFuture<'static, Result<HashKv, String>>;

    /// Whether a downgrade is going on, read linearizably. The error is the reason why the read
    /// could not be proved.
    fn downgrade_enabled(&self) -> BoxFuture<'static, Result<bool, String>>;
}

/// Why a message was not taken by raft.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProcessError {
    /// The inbox is full; raft repeats what matters.
    #[error("raft inbox is full")]
    Busy,
    /// The member is stopping.
    #[error("member is stopped")]
    Stopped,
    /// Raft will not have this message.
    #[error("{0}")]
    Refused(String),
}

/// Why an incoming snapshot was not taken.
#[derive(Debug, Error)]
pub enum StageError {
    /// The database file could not be received, stored, or is not sound.
    #[error("failed to save KV snapshot ({0})")]
    Save(String),
    /// The file is here, the message was refused by raft.
    #[error("failed to process raft message ({0})")]
    Process(String),
}

/// Why a lease request of a follower was not served.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// There is no such lease.
    #[error("lease not found")]
    NotFound,
    /// This member is not the leader, or stopped being it meanwhile.
    #[error("not a primary lessor")]
    NotPrimary,
    /// The log was not applied far enough in time.
    #[error("waiting for node to catch up its applied index has timed out")]
    ApplyTimeout,
    /// Anything else, in the words of the server.
    #[error("{0}")]
    Other(String),
}

/// Why a promotion was not done.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PromoteError {
    /// There is no such member.
    #[error("membership: ID not found")]
    NotFound,
    /// The member votes already.
    #[error("membership: can only promote a learner member")]
    NotLearner,
    /// The learner is too far behind.
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    NotReady,
    /// Anything else; the follower's client sees an unknown error with this text.
    #[error("{0}")]
    Other(String),
}

/// The bytes of a database file on its way to a peer.
pub struct SnapshotBody {
    /// How many bytes `chunks` will give: announced to the receiver before the first one.
    pub len: u64,
    /// The file from front to back.
    pub chunks: BoxStream<'static, io::Result<Bytes>>,
}

/// The bytes of a database file that a peer sends.
pub struct IncomingSnapshot {
    /// The length if the sender announced it. Real etcd does not.
    pub len: Option<u64>,
    /// The file from front to back. An error means that the rest will not come.
    pub chunks: BoxStream<'static, io::Result<Bytes>>,
}

/// One member in etcd's JSON form, as `GET /members` gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberInfo {
    /// Member id, a decimal number on the wire.
    pub id: u64,
    /// Where the peers reach it.
    #[serde(rename = "peerURLs", deserialize_with = "null_is_empty")]
    pub peer_urls: Vec<String>,
    /// Whether it only learns.
    #[serde(rename = "isLearner", skip_serializing_if = "is_false")]
    pub is_learner: bool,
    /// Its name; empty until it has published itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where clients reach it; empty until it has published itself.
    #[serde(
        rename = "clientURLs",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub client_urls: Vec<String>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// Go writes an absent list as `null`.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Versions that are decided through the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppliedVersions {
    /// The cluster version, for example `3.7.0`.
    pub cluster: Option<String>,
    /// The storage version, for example `3.7.0`.
    pub storage: Option<String>,
}

/// Answer of `GET /version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Version of the server program.
    #[serde(rename = "etcdserver")]
    pub server: String,
    /// Cluster version, `not_decided` at first.
    #[serde(rename = "etcdcluster", default)]
    pub cluster: String,
    /// Storage version, `unknown` at first; absent before etcd 3.6.
    #[serde(default)]
    pub storage: String,
}

/// What is left of a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseTimeToLive {
    /// Remaining whole seconds.
    pub ttl: i64,
    /// What was granted, in seconds.
    pub granted_ttl: i64,
    /// The attached keys, if asked for.
    pub keys: Vec<Bytes>,
}

/// The hash of a member's keys at one revision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HashKv {
    /// The member's newest revision.
    pub revision: i64,
    /// The hash.
    pub hash: u32,
    /// The compacted revision at the time of hashing, -1 when nothing was compacted.
    pub compact_revision: i64,
    /// The revision that was hashed.
    pub hash_revision: i64,
}
