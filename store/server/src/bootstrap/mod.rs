//! How a member comes to its identity, its log and its state.
//!
//! Input: the configuration, what is in the data directory, and for a member that joins, what the
//! running members say. Output: [`Booted`], or a [`StartError`] that says what was found and what
//! to do.
//! - `identity`: a member without a log: who it is in a new cluster, or in one that runs.
//! - `recover`: a member with a log: log and engine are brought together.
//! - `force`: one member of a lost cluster goes on alone.
//!
//! **Invariant:** a log is made only when it is clear who the member is; from then on the log alone
//! says so, whatever the configuration says.
//! **Invariant:** the log with its first entries is durable before anything of an engine is there.
//! So an engine without a log is never a birth that was interrupted: its log is lost, and with it
//! votes and entries that were promised to be kept.

mod force;
mod identity;
mod recover;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_consensus::Start;
use mainstay_log::{Files, OpenError, OsFiles, Wal};
use mainstay_mvcc::{Fatal, StateMachine};
use mainstay_peer::{Client, MemberInfo};

use crate::auth::TokenError;
use crate::config::{ConfigError, StoreConfig};
use crate::core::Identity;
use crate::engine_home::{EngineHome, Generation, HomeError, create_private_dir};
use crate::urls::{InitialCluster, MemberUrlError};

/// Why a member does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tokens cannot be made as it was asked for.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// A URL is none.
    #[error(transparent)]
    Url(#[from] MemberUrlError),
    /// The data directory cannot be made or written.
    #[error("cannot access data directory: {}: {reason}; check its owner and mode, or choose another one", .path.display())]
    DataDir {
        /// What was tried to be used.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Something else stands where a directory belongs.
    #[error(
        "cannot make the data directory {}: {} is {what}, and a directory is needed there; move it \
         away, or choose another place with --data-dir (or --wal-dir for the log)",
        .path.display(), .in_the_way.display()
    )]
    NotADirectory {
        /// The directory that is needed.
        path: PathBuf,
        /// What stands there, or on the way there.
        in_the_way: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Data of a real etcd.
    #[error(
        "{}: holds the data of etcd; taking over such a directory is not built yet in this \
         version. Start with an empty data directory: as a new member of the running cluster \
         (`etcdctl member add`, then --initial-cluster-state=existing), or on the data of a \
         snapshot once this version can restore one",
        .0.display()
    )]
    EtcdData(PathBuf),
    /// There is an engine and no log.
    #[error(
        "{}: holds the engine of a member ({found}), but {} holds no log: this member has lost its \
         log, and with it what it promised to the others, so it must not go on under its old id. \
         If the log is elsewhere, give its place with --wal-dir or put it back. Otherwise, with a \
         quorum of other members, replace this one: `etcdctl member remove ID`, empty the whole \
         data directory {}, `etcdctl member add NAME --peer-urls=URLS`, and start it with \
         --initial-cluster-state=existing. Without a quorum, restore a snapshot into an empty data \
         directory: `etcdutl snapshot restore`",
        .engine.display(), .log.display(), .data.display()
    )]
    LogLost {
        /// Where the engine is.
        engine: PathBuf,
        /// What is there.
        found: String,
        /// Where the log should be.
        log: PathBuf,
        /// What is to be emptied.
        data: PathBuf,
    },
    /// The log ends before what is known to have been in it.
    #[error(
        "{}: the log has lost its end: it ends at entry {last}, but {}. What this member promised \
         to keep is gone, so it must not go on under its old id. If there is a copy of the newest \
         segments (*.wal), put them back into {}. Otherwise, with a quorum of other members, \
         replace this one: `etcdctl member remove {member:x}`, empty the whole data directory {}, \
         `etcdctl member add NAME --peer-urls=URLS`, and start it with \
         --initial-cluster-state=existing. Without a quorum, restore a snapshot into an empty data \
         directory: `etcdutl snapshot restore`",
        .segment.display(), known_of(.engine, *.applied), .log.display(), .data.display()
    )]
    LogEndLost {
        /// The last segment.
        segment: PathBuf,
        /// Where the log is.
        log: PathBuf,
        /// Where the engine is.
        engine: PathBuf,
        /// What is to be emptied.
        data: PathBuf,
        /// How far the engine is.
        applied: u64,
        /// How far the log is.
        last: u64,
        /// Who this is.
        member: u64,
    },
    /// There is a log, and no engine that it continues.
    #[error(
        "{}: the engine is gone, and the log in {} does not reach back far enough to make it \
         again: {missing}. If there is a copy of the engine's directory, put it back. Otherwise, \
         with a quorum of other members, replace this one: `etcdctl member remove {member:x}`, \
         empty the whole data directory {}, `etcdctl member add NAME --peer-urls=URLS`, and start \
         it with --initial-cluster-state=existing. Without a quorum, restore a snapshot into an \
         empty data directory: `etcdutl snapshot restore`",
        .engine.display(), .log.display(), .data.display()
    )]
    EngineLost {
        /// Where the engine should be.
        engine: PathBuf,
        /// Where the log is.
        log: PathBuf,
        /// What is to be emptied.
        data: PathBuf,
        /// What is not there.
        missing: String,
        /// Who this is.
        member: u64,
    },
    /// The engine is too old for the log.
    #[error(
        "{}: the engine has applied entries up to {applied}, but the log starts after entry {mark}: \
         the entries between them are gone. Replace this member: `etcdctl member remove {member:x}`, \
         then `etcdctl member add`, and start it with an empty data directory and \
         --initial-cluster-state=existing",
        .engine.display()
    )]
    EngineBehind {
        /// Where the engine is.
        engine: PathBuf,
        /// How far the engine is.
        applied: u64,
        /// Where the log starts.
        mark: u64,
        /// Who this is.
        member: u64,
    },
    /// The log cannot be opened; the text says which file, what was found and what to do.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The engine cannot be opened.
    #[error(transparent)]
    Engine(#[from] HomeError),
    /// The state in the engine cannot be continued.
    #[error(transparent)]
    State(#[from] Fatal),
    /// Writing the first entries failed.
    #[error("writing the first entries of the log failed: {0}")]
    FirstEntries(#[source] std::io::Error),
    /// Not in the list.
    #[error(
        "couldn't find local name {name:?} in the initial cluster configuration ({cluster}); the \
         value of --name must be one of the names in --initial-cluster"
    )]
    NameNotInCluster {
        /// This member's name.
        name: String,
        /// The list.
        cluster: String,
    },
    /// The list says other URLs than this member advertises.
    #[error(
        "--initial-cluster has {name}={listed} but --initial-advertise-peer-urls is {advertised}; \
         both must name the same URLs"
    )]
    UrlsDiffer {
        /// This member's name.
        name: String,
        /// By the list.
        listed: String,
        /// By this member.
        advertised: String,
    },
    /// Two members of the list get the same id.
    #[error("two members of --initial-cluster ({0}) get the same id")]
    SameId(String),
    /// Its id is known and started, its disk is empty.
    #[error(
        "member {member:x} has already been bootstrapped, but its data directory is empty: it has \
         lost its log and must not go on under its old id. Remove it and add it anew: `etcdctl \
         member remove {member:x}`, then `etcdctl member add`, and start it with \
         --initial-cluster-state=existing"
    )]
    AlreadyBootstrapped {
        /// The id.
        member: u64,
    },
    /// Nobody answers.
    #[error(
        "cannot fetch cluster info from peer urls: {0}; a member that joins needs at least one \
         running member of the list in --initial-cluster"
    )]
    NoMembersAnswer(String),
    /// The list is not that of the running cluster.
    #[error(
        "error validating peerURLs: {reason}; the running cluster has {existing}, \
         --initial-cluster has {given}"
    )]
    ClusterDiffers {
        /// What does not fit.
        reason: String,
        /// What runs.
        existing: String,
        /// What was given.
        given: String,
    },
    /// The running cluster is of another age.
    #[error(
        "incompatible with current running cluster: its version is {0}, this server can join \
         clusters from 3.0 to 3.7"
    )]
    IncompatibleVersion(String),
    /// The cluster removed this member.
    #[error(
        "the member {0:x} has been permanently removed from the cluster; its data is of no use any \
         more. To have it back, `etcdctl member add` it and start with an empty data directory"
    )]
    Removed(u64),
    /// See the text.
    #[error(
        "--force-new-cluster: this member is a learner, which cannot be the only member of a \
         cluster; use a voting member's data, or restore a snapshot"
    )]
    ForcedLearner,
    /// The raft thread does not start.
    #[error(transparent)]
    Raft(#[from] mainstay_consensus::Fatal),
    /// A thread or a socket.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The peer port.
    #[error(transparent)]
    Bind(#[from] mainstay_net::BindError),
}

/// Everything that a member starts from.
pub(crate) struct Booted {
    pub(crate) identity: Identity,
    pub(crate) home: EngineHome,
    pub(crate) generation: Generation,
    pub(crate) machine: StateMachine,
    pub(crate) wal: Wal,
    pub(crate) start: Start,
    /// The members of the cluster that is joined: they are spoken to before the log knows them.
    pub(crate) remotes: Vec<MemberInfo>,
}

/// What the log and the engine are opened with.
pub(crate) struct Ground {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) log: mainstay_log::Options,
    pub(crate) limits: mainstay_mvcc::Limits,
}

impl Ground {
    pub(crate) fn new(config: &StoreConfig, observer: Arc<dyn mainstay_log::Observer>) -> Self {
        let log = mainstay_log::Options {
            max_wals: config.max_wals,
            sync: !config.unsafe_no_fsync,
            observer,
            ..mainstay_log::Options::default()
        };
        let limits = mainstay_mvcc::Limits {
            min_lease_ttl: config.min_lease_ttl(),
            max_learners: config.max_learners,
            ..mainstay_mvcc::Limits::default()
        };
        Self { files: Arc::new(OsFiles), log, limits }
    }
}

/// Brings a member up to the point where its threads can start.
pub(crate) async fn boot(
    config: &StoreConfig,
    client: &Client,
    ground: Ground,
) -> Result<Booted, StartError> {
    config.check()?;
    prepare_directories(config)?;
    let wal_dir = config.wal_dir();
    let has_log = Wal::exists(&*ground.files, &wal_dir).map_err(|error| StartError::DataDir {
        path: wal_dir.clone(),
        reason: error.to_string(),
    })?;
    let home = EngineHome::lock(config.engine.clone(), config.engine_dir())?;
    let database = config.snap_dir().join("db");
    if database.exists() && !home.has_engine() {
        return Err(StartError::EtcdData(database));
    }
    if has_log {
        recover::recover(config, home, ground)
    } else {
        identity::begin(config, home, ground, client).await
    }
}

fn prepare_directories(config: &StoreConfig) -> Result<(), StartError> {
    let snap = config.snap_dir();
    for dir in [&snap, &config.wal_dir(), &config.engine_dir()] {
        if let Some((in_the_way, what)) = in_the_way(dir) {
            return Err(StartError::NotADirectory { path: dir.clone(), in_the_way, what });
        }
    }
    for dir in [&config.data_dir, &config.member_dir(), &snap] {
        let bad = |error: std::io::Error| StartError::DataDir {
            path: dir.clone(),
            reason: error.to_string(),
        };
        create_private_dir(dir).map_err(bad)?;
        let probe = dir.join(".touch");
        std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(bad)?;
    }
    // What an earlier run left behind: received snapshots are whole only in the engine.
    if let Ok(entries) = std::fs::read_dir(&snap) {
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("tmp") || name.ends_with(".snap.db") {
                // If it stays it is only in the way.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    Ok(())
}

/// What keeps a directory from being made, and what it is.
fn in_the_way(dir: &Path) -> Option<(PathBuf, &'static str)> {
    for path in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        let what = match (std::fs::metadata(path), std::fs::symlink_metadata(path)) {
            (Ok(found), _) if found.is_dir() => return None,
            (Ok(found), _) if found.is_file() => "a regular file",
            (Ok(_), _) => "no directory",
            (Err(_), Ok(found)) if found.is_symlink() => "a symbolic link that leads nowhere",
            // Not there, or what is above it is in the way.
            (Err(_), _) => continue,
        };
        return Some((path.to_owned(), what));
    }
    None
}

/// What an engine says about the log, for error texts.
fn known_of(engine: &Path, applied: u64) -> String {
    match applied {
        0 => format!("the engine in {} was made after the first entries", engine.display()),
        _ => format!("the engine in {} has applied entry {applied}", engine.display()),
    }
}

/// A list of members for error texts.
fn describe(cluster: &InitialCluster) -> String {
    cluster.to_string()
}
