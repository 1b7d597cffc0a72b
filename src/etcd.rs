//! `mainstay etcd`: one member of the store, with etcd's flags.
//!
//! Input: flags, variables, config file, signals. Output: a serving member, its log, and the exit
//! code. Nothing is decided here about data: flags become a [`StoreConfig`], which the store
//! checks again.

mod check;
mod discovery;
mod help;
mod tls;

use std::process::ExitCode;
use std::time::Duration;

use mainstay_store::serve::{self, ServeOptions, Serving};
use mainstay_store::{Builder, SERVER_VERSION, StopReason, Store, StoreConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::flags::table::{Effect, FLAGS};
use crate::flags::{FlagError, Values};
use crate::logging::{self, LogOptions};
use crate::{complain, print};
use tls::{Sockets, Tls};

/// How long requests may take to end after the signal to stop.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How long a member that has failed waits for its threads.
const FATAL_TIME: Duration = Duration::from_secs(2);

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    if let Some(message) = help::absent(arguments) {
        complain(&message);
        return ExitCode::from(1);
    }
    let values = match Values::parse(arguments, std::env::vars()) {
        Ok(values) => values,
        Err(FlagError::Help) => {
            print(&help::text());
            return ExitCode::SUCCESS;
        }
        Err(FlagError::Usage(message)) => {
            complain(&format!("{message}\n`etcd --help` lists all flags.\n"));
            return ExitCode::from(2);
        }
        Err(FlagError::Fatal(message)) => {
            let _ = logging::init(LogOptions { level: "info", json: true, outputs: "default" });
            tracing::error!(error = %message, "failed to verify flags");
            return ExitCode::from(1);
        }
    };
    if values.switch("version") {
        print(&version_text());
        return ExitCode::SUCCESS;
    }
    let log = LogOptions {
        level: values.text("log-level"),
        json: values.text("log-format") == "json",
        outputs: values.text("log-outputs"),
    };
    if let Err(message) = logging::init(log) {
        complain(&format!("{message}\n"));
        return ExitCode::from(1);
    }
    match start(&values, arguments) {
        Ok(code) => code,
        Err(message) => {
            tracing::error!(error = %message, "failed to start etcd");
            ExitCode::from(1)
        }
    }
}

fn version_text() -> String {
    format!(
        "etcd Version: {SERVER_VERSION}\nGit SHA: mainstay-{}\nGo Version: none (Rust)\nGo OS/Arch: {}/{}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
    )
}

fn start(values: &Values, arguments: &[String]) -> Result<ExitCode, String> {
    tracing::info!(args = ?arguments, "Running: ");
    for warning in &values.warnings {
        tracing::warn!("{warning}");
    }
    for flag in FLAGS.iter().filter(|flag| values.is_set(flag.name)) {
        let given = values.text(flag.name);
        match flag.effect {
            Effect::Honoured => {}
            // A flag that repeats its default asks for nothing that is missing.
            _ if given == flag.default => {}
            Effect::Differs(what) => {
                tracing::warn!(flag = flag.name, value = given, "flag has no effect: {what}");
            }
            Effect::Refused(why) => return Err(format!("--{}: {why}", flag.name)),
        }
    }
    let checked = check::check(values)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2)))
        .thread_name("mainstay-io")
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    let code = runtime.block_on(run(values, checked));
    // Clients that never read must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn run(values: &Values, mut checked: check::Checked) -> Result<ExitCode, String> {
    let mut signals = Signals::new().map_err(|error| format!("cannot watch signals: {error}"))?;
    let tls = Tls::load(values, &checked)?;
    let sockets = Sockets::bind(&checked, &tls, values.switch("socket-reuse-port"))
        .map_err(|error| error.to_string())?;
    if let Some(discovery) = discovery::from_flags(values)? {
        if checked.store.is_initialized() {
            tracing::warn!(
                "discovery token is ignored since cluster already initialized; valid logs are found"
            );
        } else {
            tracing::info!("Bootstrapping cluster using v3 discovery.");
            let own = checked.store.initial_cluster.to_string();
            let joining = discovery.join(checked.store.founding_id(), &own);
            checked.store.initial_cluster = tokio::select! {
                joined = joining => joined?,
                signal = signals.next() => return Ok(signals.die_of(signal)),
            };
        }
    }
    log_start(&checked);
    let mut builder = Builder::new(checked.store.clone()).peer_listeners(sockets.peers);
    if let Some(tls) = tls.dial {
        builder = builder.peer_tls(tls);
    }
    let opening = builder.open();
    let store = tokio::select! {
        opened = opening => opened.map_err(|error| error.to_string())?,
        signal = signals.next() => return Ok(signals.die_of(signal)),
    };
    let options = ServeOptions {
        max_request_bytes: checked.store.max_request_bytes,
        max_concurrent_streams: u32::try_from(values.unsigned("max-concurrent-streams"))
            .unwrap_or(u32::MAX),
        keepalive_interval: Some(values.duration("grpc-keepalive-interval"))
            .filter(|interval| !interval.is_zero()),
        keepalive_timeout: values.duration("grpc-keepalive-timeout"),
        keepalive_min_time: Some(values.duration("grpc-keepalive-min-time"))
            .filter(|time| !time.is_zero())
            // What grpc-go does when it is told nothing.
            .unwrap_or(Duration::from_secs(300)),
        reflection: values.switch("enable-grpc-reflection"),
        extensive_metrics: values.text("metrics") == "extensive",
        slow_request: values.duration("warning-unary-request-duration"),
        client_cert_auth: values.switch("client-cert-auth"),
        gateway: values.switch("enable-grpc-gateway"),
        cors: values.list("cors"),
        host_whitelist: values.list("host-whitelist"),
    };
    // Metrics and health answer while the member still waits for the others.
    let Sockets { clients, clients_http, metrics, .. } = sockets;
    let serving = Serving::start(&store, clients, clients_http, metrics, options)
        .map_err(|error| error.to_string())?;
    tokio::select! {
        // A member that has failed is not ready, whatever it was before.
        biased;
        reason = store.stopped() => return Ok(ended(store, serving, reason).await),
        signal = signals.next() => {
            notify(b"STOPPING=1");
            serving.shutdown(DRAIN_TIME).await;
            store.shutdown().await;
            return Ok(signals.die_of(signal));
        }
        () = store.ready() => {}
    }
    log_ready(&checked);
    notify(b"READY=1");
    let signal = tokio::select! {
        reason = store.stopped() => return Ok(ended(store, serving, reason).await),
        signal = signals.next() => signal,
    };
    notify(b"STOPPING=1");
    tracing::info!(signal = signal.name(), "received signal; shutting down");
    serve::drain(store, serving, DRAIN_TIME).await;
    tracing::info!(name = %checked.store.name, "closed etcd server");
    Ok(signals.die_of(signal))
}

/// The member stopped by itself.
async fn ended(store: Store, serving: Serving, reason: StopReason) -> ExitCode {
    match reason {
        StopReason::Removed | StopReason::Shutdown => {
            notify(b"STOPPING=1");
            tracing::warn!("{reason}");
            serve::drain(store, serving, DRAIN_TIME).await;
            ExitCode::SUCCESS
        }
        StopReason::Fatal(_) => {
            drop(serving);
            // Nothing is saved any more: what is on disk is what the next start finds. But a thread
            // that still works while the process tears down the engine's globals would abort it.
            let _ = tokio::time::timeout(FATAL_TIME, store.shutdown()).await;
            ExitCode::from(1)
        }
    }
}

fn log_ready(checked: &check::Checked) {
    tracing::info!("ready to serve client requests");
    let traffic = if checked.listen_client_http.is_empty() { "grpc+http" } else { "grpc" };
    let clients = checked.listen_client.iter().map(|url| (traffic, url));
    let clients_http = checked.listen_client_http.iter().map(|url| ("http", url));
    for (traffic, url) in clients.chain(clients_http) {
        if url.is_tls() {
            tracing::info!(traffic, address = %url, "serving client traffic securely");
        } else {
            tracing::info!(
                traffic,
                address = %url,
                "serving client traffic insecurely; this is strongly discouraged!"
            );
        }
    }
}

fn log_start(checked: &check::Checked) {
    let store: &StoreConfig = &checked.store;
    tracing::info!(
        etcd_version = %SERVER_VERSION,
        mainstay_version = env!("CARGO_PKG_VERSION"),
        name = %store.name,
        data_dir = %store.data_dir.display(),
        wal_dir = %store.wal_dir.as_deref().map_or_else(String::new, |dir| dir.display().to_string()),
        member_initialized = store.is_initialized(),
        initial_cluster = %store.initial_cluster,
        initial_cluster_state = ?store.initial_cluster_state,
        initial_cluster_token = %store.initial_cluster_token,
        "starting an etcd server"
    );
}

/// Tells systemd how the member is, when systemd asked for it.
fn notify(state: &[u8]) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = (|| {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state, &address)
    })();
    if let Err(error) = sent {
        tracing::warn!(error = %error, "cannot notify the init daemon");
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

#[derive(Clone, Copy)]
enum Stop {
    Terminate,
    Interrupt,
}

impl Stop {
    fn name(self) -> &'static str {
        match self {
            Stop::Terminate => "terminated",
            Stop::Interrupt => "interrupt",
        }
    }
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }

    /// The exit code that a shell shows for a process that died of the signal. As PID 1, etcd
    /// exits with 0.
    fn die_of(&self, stop: Stop) -> ExitCode {
        if std::process::id() == 1 {
            return ExitCode::SUCCESS;
        }
        match stop {
            Stop::Terminate => ExitCode::from(143),
            Stop::Interrupt => ExitCode::from(130),
        }
    }
}
