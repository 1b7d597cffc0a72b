//! The table of all flags that etcd 3.6 and 3.7 know, and two of our own.
//!
//! One row says everything about a flag: kind, default, what it does here, and its help line.
//! The parser, the config file, the variables, `--help` and the warnings all read this table.

/// What a value must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Switch,
    Integer,
    Unsigned,
    Duration,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// What giving the flag does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It does what it does in etcd.
    Honoured,
    /// It is accepted, and one warning says what differs.
    Differs(&'static str),
    /// Serving without it would be wrong, so it is refused.
    Refused(&'static str),
}

/// One flag.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) section: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    pub(crate) effect: Effect,
    pub(crate) help: &'static str,
}

const fn flag(
    section: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    effect: Effect,
    help: &'static str,
) -> Flag {
    Flag { name, section, kind, default, effect, help }
}

const H: Effect = Effect::Honoured;
const NO_TLS: Effect = Effect::Refused(
    "TLS is not built in this version; serve plaintext on a trusted network, or put a TLS proxy in front",
);
const NO_DISCOVERY: Effect = Effect::Refused(
    "discovery is not built in this version; list the members with --initial-cluster",
);

/// All flags, in the order of `--help`.
pub(crate) static FLAGS: &[Flag] = &[
    flag("Member", "name", Kind::Text, "default", H, "Name of this member; must be unique in the cluster."),
    flag("Member", "data-dir", Kind::Text, "", H, "Directory of all data; NAME.etcd when empty."),
    flag("Member", "wal-dir", Kind::Text, "", H, "Separate directory for the log."),
    flag("Member", "snapshot-count", Kind::Unsigned, "10000", H, "Applied entries after which the engine is flushed and log segments are released."),
    flag("Member", "heartbeat-interval", Kind::Unsigned, "100", H, "Milliseconds between heartbeats of the leader."),
    flag("Member", "election-timeout", Kind::Unsigned, "1000", H, "Milliseconds without a leader after which an election starts."),
    flag("Member", "initial-election-tick-advance", Kind::Switch, "true", H, "Start the first election early when no other member answers."),
    flag("Member", "listen-peer-urls", Kind::Text, "http://localhost:2380", H, "URLs on which other members are served."),
    flag("Member", "listen-client-urls", Kind::Text, "http://localhost:2379", H, "URLs on which clients are served, gRPC and HTTP."),
    flag("Member", "listen-client-http-urls", Kind::Text, "", H, "URLs for HTTP only; the client URLs then serve gRPC only."),
    flag("Member", "max-snapshots", Kind::Unsigned, "5", Effect::Differs("there are no snapshot files to keep; the engine is its own snapshot"), "Snapshot files to keep."),
    flag("Member", "max-wals", Kind::Unsigned, "5", H, "Log segments to keep at least (0: all)."),
    flag("Member", "memory-mlock", Kind::Switch, "false", Effect::Differs("memory is bounded by budgets and is not locked"), "Lock memory."),
    flag("Member", "quota-backend-bytes", Kind::Integer, "0", Effect::Differs("the quota is reported by Status and is not enforced in this version"), "Size of the data after which writes are refused (0: 2 GiB)."),
    flag("Member", "backend-bbolt-freelist-type", Kind::Choice(&["array", "map"]), "map", Effect::Differs("the engine has no free list"), "Free list of bbolt."),
    flag("Member", "backend-batch-interval", Kind::Duration, "0", Effect::Differs("each batch of entries is one engine write"), "Longest time between commits of the backend."),
    flag("Member", "backend-batch-limit", Kind::Integer, "0", Effect::Differs("each batch of entries is one engine write"), "Most operations between commits of the backend."),
    flag("Member", "max-txn-ops", Kind::Unsigned, "128", H, "Operations in one transaction."),
    flag("Member", "max-request-bytes", Kind::Unsigned, "1572864", H, "Size of one request."),
    flag("Member", "max-concurrent-streams", Kind::Unsigned, "4294967295", H, "Streams that one client connection may have open."),
    flag("Member", "grpc-keepalive-min-time", Kind::Duration, "5s", Effect::Differs("clients that ping more often are tolerated in this version"), "Shortest time between pings of a client."),
    flag("Member", "grpc-keepalive-interval", Kind::Duration, "2h", H, "Time between pings to an idle client (0: never)."),
    flag("Member", "grpc-keepalive-timeout", Kind::Duration, "20s", H, "How long a ping may stay unanswered."),
    flag("Member", "socket-reuse-port", Kind::Switch, "false", H, "Set SO_REUSEPORT on listeners."),
    flag("Member", "socket-reuse-address", Kind::Switch, "false", Effect::Differs("SO_REUSEADDR is always set"), "Set SO_REUSEADDR on listeners."),
    flag("Member", "enable-grpc-gateway", Kind::Switch, "true", Effect::Differs("the JSON gateway is not built in this version"), "Serve the JSON gateway."),
    flag("Member", "raft-read-timeout", Kind::Duration, "5s", Effect::Differs("peer connections use 5 s"), "Read timeout of peer connections."),
    flag("Member", "raft-write-timeout", Kind::Duration, "5s", Effect::Differs("peer connections use 5 s"), "Write timeout of peer connections."),
    flag("Member", "feature-gates", Kind::Text, "", H, "Feature gates as NAME=true|false, comma-separated."),
    flag("Clustering", "initial-advertise-peer-urls", Kind::Text, "http://localhost:2380", H, "Peer URLs under which other members reach this one."),
    flag("Clustering", "initial-cluster", Kind::Text, "", H, "Members of a new cluster as NAME=URL, comma-separated; NAME=the advertised peer URLs when empty."),
    flag("Clustering", "initial-cluster-state", Kind::Choice(&["new", "existing"]), "new", H, "Whether a cluster is founded or joined."),
    flag("Clustering", "initial-cluster-token", Kind::Text, "etcd-cluster", H, "Keeps clusters apart that are founded with the same URLs."),
    flag("Clustering", "advertise-client-urls", Kind::Text, "http://localhost:2379", H, "Client URLs under which clients reach this member."),
    flag("Clustering", "discovery", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-token", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-endpoints", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-dial-timeout", Kind::Duration, "2s", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-request-timeout", Kind::Duration, "5s", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-keepalive-time", Kind::Duration, "2s", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-keepalive-timeout", Kind::Duration, "6s", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-insecure-transport", Kind::Switch, "true", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-insecure-skip-tls-verify", Kind::Switch, "false", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-cert", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-key", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-cacert", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-user", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-password", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-fallback", Kind::Text, "exit", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-proxy", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-srv", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "discovery-srv-name", Kind::Text, "", NO_DISCOVERY, "Discovery of the members."),
    flag("Clustering", "strict-reconfig-check", Kind::Switch, "true", H, "Refuse membership changes that would lose the quorum."),
    flag("Clustering", "pre-vote", Kind::Switch, "true", H, "Ask for votes without disturbing a working leader."),
    flag("Clustering", "never-lead", Kind::Switch, "false", H, "Vote and follow, but never become leader (Mainstay only)."),
    flag("Clustering", "auto-compaction-retention", Kind::Text, "0", Effect::Differs("automatic compaction is not built in this version; compact from a client (kube-apiserver does)"), "How much history to keep (0: all)."),
    flag("Clustering", "auto-compaction-mode", Kind::Choice(&["periodic", "revision"]), "periodic", H, "Whether the retention is a time or a number of revisions."),
    flag("Clustering", "v2-deprecation", Kind::Text, "write-only", Effect::Differs("there is no v2 store"), "Phase of the v2 store."),
    flag("Clustering", "proxy", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "proxy-failure-wait", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "proxy-refresh-interval", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "proxy-dial-timeout", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "proxy-write-timeout", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "proxy-read-timeout", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "enable-v2", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "debug", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Clustering", "log-package-levels", Kind::Text, "", Effect::Differs("it has no effect since etcd 3.6"), "Of older releases."),
    flag("Security", "cert-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "key-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "client-cert-auth", Kind::Switch, "false", NO_TLS, "TLS."),
    flag("Security", "client-cert-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "client-key-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "client-crl-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "client-cert-allowed-hostname", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "trusted-ca-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "auto-tls", Kind::Switch, "false", NO_TLS, "TLS."),
    flag("Security", "peer-cert-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-key-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-client-cert-auth", Kind::Switch, "false", NO_TLS, "TLS."),
    flag("Security", "peer-client-cert-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-client-key-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-trusted-ca-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-cert-allowed-cn", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-cert-allowed-hostname", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-auto-tls", Kind::Switch, "false", NO_TLS, "TLS."),
    flag("Security", "peer-crl-file", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "peer-skip-client-san-verification", Kind::Switch, "false", NO_TLS, "TLS."),
    flag("Security", "self-signed-cert-validity", Kind::Unsigned, "1", Effect::Differs("TLS is not built in this version"), "Years that self-signed certificates are valid."),
    flag("Security", "cipher-suites", Kind::Text, "", NO_TLS, "TLS."),
    flag("Security", "tls-min-version", Kind::Choice(&["", "TLS1.2", "TLS1.3"]), "TLS1.2", Effect::Differs("TLS is not built in this version"), "Lowest TLS version."),
    flag("Security", "tls-max-version", Kind::Choice(&["", "TLS1.2", "TLS1.3"]), "", Effect::Differs("TLS is not built in this version"), "Highest TLS version."),
    flag("Security", "cors", Kind::Text, "*", Effect::Differs("it belongs to the JSON gateway, which is not built in this version"), "Origins that browsers may come from."),
    flag("Security", "host-whitelist", Kind::Text, "*", Effect::Differs("all host names are answered in this version"), "Host names that HTTP requests may name."),
    flag("Auth", "auth-token", Kind::Text, "simple", Effect::Differs("users and roles are not built in this version"), "Kind of authentication token."),
    flag("Auth", "bcrypt-cost", Kind::Unsigned, "10", Effect::Differs("users and roles are not built in this version"), "Cost of password hashes."),
    flag("Auth", "auth-token-ttl", Kind::Unsigned, "300", Effect::Differs("users and roles are not built in this version"), "Seconds that a token lives."),
    flag("Profiling and monitoring", "enable-pprof", Kind::Switch, "false", Effect::Differs("there is no Go profile; use perf"), "Serve profiles."),
    flag("Profiling and monitoring", "metrics", Kind::Choice(&["basic", "extensive"]), "basic", H, "How detailed the metrics are."),
    flag("Profiling and monitoring", "listen-metrics-urls", Kind::Text, "", H, "URLs for /metrics and /health alone."),
    flag("Profiling and monitoring", "enable-grpc-reflection", Kind::Switch, "false", H, "Serve gRPC reflection (Mainstay only)."),
    flag("Logging", "logger", Kind::Choice(&["zap"]), "zap", H, "Kind of logger; there is one."),
    flag("Logging", "log-outputs", Kind::Text, "default", H, "Where the log goes: default, stderr, stdout, or a file; comma-separated."),
    flag("Logging", "log-level", Kind::Choice(&["debug", "info", "warn", "error", "panic", "fatal"]), "info", H, "Least important lines to log."),
    flag("Logging", "log-format", Kind::Choice(&["json", "console"]), "json", H, "Form of a log line."),
    flag("Logging", "enable-log-rotation", Kind::Switch, "false", Effect::Differs("rotate the file with logrotate"), "Rotate the log file."),
    flag("Logging", "log-rotation-config-json", Kind::Text, "{}", Effect::Differs("rotate the file with logrotate"), "How the log file is rotated."),
    flag("Logging", "warning-unary-request-duration", Kind::Duration, "300ms", H, "Requests that take longer are logged."),
    flag("Distributed tracing", "enable-distributed-tracing", Kind::Switch, "false", Effect::Differs("tracing is not built in this version"), "Export traces."),
    flag("Distributed tracing", "distributed-tracing-address", Kind::Text, "localhost:4317", Effect::Differs("tracing is not built in this version"), "Collector of traces."),
    flag("Distributed tracing", "distributed-tracing-service-name", Kind::Text, "etcd", Effect::Differs("tracing is not built in this version"), "Service name in traces."),
    flag("Distributed tracing", "distributed-tracing-instance-id", Kind::Text, "", Effect::Differs("tracing is not built in this version"), "Instance name in traces."),
    flag("Distributed tracing", "distributed-tracing-sampling-rate", Kind::Integer, "0", Effect::Differs("tracing is not built in this version"), "Traces per million."),
    flag("Features", "corrupt-check-time", Kind::Duration, "0s", Effect::Differs("the periodic corruption check is not built in this version"), "Time between corruption checks."),
    flag("Features", "compact-hash-check-time", Kind::Duration, "1m", Effect::Differs("this member answers hash checks of others and starts none in this version"), "Time between checks of compaction hashes."),
    flag("Features", "compaction-batch-limit", Kind::Integer, "1000", Effect::Differs("compaction runs in slices between applies"), "Revisions deleted in one step of a compaction."),
    flag("Features", "compaction-sleep-interval", Kind::Duration, "10ms", Effect::Differs("compaction runs in slices between applies"), "Pause between steps of a compaction."),
    flag("Features", "watch-progress-notify-interval", Kind::Duration, "10m", H, "Time between progress notifications of an idle watch."),
    flag("Features", "warning-apply-duration", Kind::Duration, "100ms", H, "Applies that take longer are logged."),
    flag("Features", "bootstrap-defrag-threshold-megabytes", Kind::Unsigned, "0", Effect::Differs("space is reclaimed while serving"), "Defragment at start when it frees that much."),
    flag("Features", "max-learners", Kind::Integer, "1", H, "Learners that the cluster may have."),
    flag("Features", "downgrade-check-time", Kind::Duration, "5s", H, "Time between checks of a running downgrade."),
    flag("Features", "snapshot-catchup-entries", Kind::Unsigned, "5000", H, "Log entries kept in memory for members that lag."),
    flag("Features", "experimental-initial-corrupt-check", Kind::Switch, "false", H, "Older name of a feature gate."),
    flag("Features", "experimental-compact-hash-check-enabled", Kind::Switch, "false", H, "Older name of a feature gate."),
    flag("Features", "experimental-enable-lease-checkpoint", Kind::Switch, "false", H, "Older name of a feature gate."),
    flag("Features", "experimental-enable-lease-checkpoint-persist", Kind::Switch, "false", H, "Older name of a feature gate."),
    flag("Features", "experimental-txn-mode-write-with-shared-buffer", Kind::Switch, "false", H, "Older name of a feature gate."),
    flag("Features", "experimental-stop-grpc-service-on-defrag", Kind::Switch, "false", H, "Older name of a feature gate."),
    flag("Unsafe", "force-new-cluster", Kind::Switch, "false", H, "Drop all other members and go on alone with this member's data."),
    flag("Unsafe", "unsafe-no-fsync", Kind::Switch, "false", H, "Never sync the log: a power cut loses data."),
    flag("Other", "config-file", Kind::Text, "", H, "YAML file with all settings; other flags and variables are then ignored."),
    flag("Other", "version", Kind::Switch, "false", H, "Print the version and exit."),
];
