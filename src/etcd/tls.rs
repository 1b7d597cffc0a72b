//! TLS of a member: from flags to the listeners that use it, and to the way to other members.
//!
//! Input: flags, and the URLs to listen on. Output: bound [`Sockets`] and a [`ClientTls`] for the
//! connections to other members, or the sentence that says which file or flag is wrong.
//! **Invariant:** a URL of `https` or `unixs` is never served without TLS.

use std::path::PathBuf;

use mainstay_net::tls::{ClientTls, Port, Protocol, ServerTls, TlsOptions, auto_tls};
use mainstay_net::{BindError, ListenUrl, Listener};

use super::check::Checked;
use crate::flags::Values;

/// TLS of both sides; `None` where nothing asks for it.
pub(super) struct Tls {
    clients: Option<ServerTls>,
    peers: Option<ServerTls>,
    /// Towards other members.
    pub(super) dial: Option<ClientTls>,
}

/// The sockets of one member, bound before anything of the store is written to disk.
pub(super) struct Sockets {
    pub(super) clients: Vec<Listener>,
    pub(super) clients_http: Vec<Listener>,
    pub(super) metrics: Vec<Listener>,
    pub(super) peers: Vec<Listener>,
}

impl Tls {
    /// Reads all files that are going to be used; makes certificates when flags ask for that.
    pub(super) fn load(values: &Values, checked: &Checked) -> Result<Self, String> {
        let (mut clients, mut peers) = options(values)?;
        let years = u32::try_from(values.unsigned("self-signed-cert-validity")).unwrap_or(u32::MAX);
        let data_dir = &checked.store.data_dir;
        let self_signed = |options: &mut TlsOptions, port, listen: &[ListenUrl]| {
            auto_tls(options, port, data_dir, listen, years).map_err(|error| error.to_string())
        };
        let client_urls = [&checked.listen_client[..], &checked.listen_client_http].concat();
        if values.switch("peer-auto-tls") {
            self_signed(&mut peers, Port::Peer, &checked.listen_peer)?;
        }
        if values.switch("auto-tls") {
            self_signed(&mut clients, Port::Client, &client_urls)?;
        }
        warn_of_plain(&peers, &checked.listen_peer);
        warn_of_plain(&clients, &client_urls);
        let served = [&client_urls[..], &checked.listen_metrics].concat();
        let mut others = checked.store.initial_cluster.iter().flat_map(|(_, urls)| urls);
        let encrypted_peers = checked.listen_peer.iter().any(ListenUrl::is_tls)
            || others.any(|url| url.starts_with("https:"));
        let dials = encrypted_peers || !peers.is_empty() || peers.trusted_ca_file.is_some();
        let dial = dials.then(|| ClientTls::load(&peers)).transpose();
        Ok(Tls {
            peers: server(&peers, Port::Peer, &checked.listen_peer)?,
            clients: server(&clients, Port::Client, &served)?,
            dial: dial.map_err(|error| error.to_string())?,
        })
    }
}

impl Sockets {
    /// Binds all URLs.
    pub(super) fn bind(checked: &Checked, tls: &Tls, reuse_port: bool) -> Result<Self, BindError> {
        let clients = tls.clients.as_ref();
        // As in etcd.
        let metrics = clients.map(ServerTls::checking_addresses);
        Ok(Sockets {
            peers: Listener::bind_each(&checked.listen_peer, tls.peers.as_ref(), reuse_port)?,
            clients: Listener::bind_clients(&checked.listen_client, clients, reuse_port)?,
            clients_http: Listener::bind_clients(&checked.listen_client_http, clients, reuse_port)?,
            metrics: Listener::bind_each(&checked.listen_metrics, metrics.as_ref(), reuse_port)?,
        })
    }
}

/// What the flags say for clients and for peers.
fn options(values: &Values) -> Result<(TlsOptions, TlsOptions), String> {
    let protocol = Protocol::parse(
        values.text("tls-min-version"),
        values.text("tls-max-version"),
        &values.list("cipher-suites"),
    )
    .map_err(|error| error.to_string())?;
    let side = |prefix: &str| {
        let path = |name: &str| {
            Some(values.text(&format!("{prefix}{name}")))
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        };
        TlsOptions {
            cert_file: path("cert-file"),
            key_file: path("key-file"),
            client_cert_file: path("client-cert-file"),
            client_key_file: path("client-key-file"),
            client_cert_auth: values.switch(&format!("{prefix}client-cert-auth")),
            trusted_ca_file: path("trusted-ca-file"),
            protocol: protocol.clone(),
            ..TlsOptions::default()
        }
    };
    let file = |name| Some(values.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
    let clients = TlsOptions {
        crl_file: file("client-crl-file"),
        allowed_hostnames: values.list("client-cert-allowed-hostname"),
        ..side("")
    };
    let peers = TlsOptions {
        crl_file: file("peer-crl-file"),
        allowed_cns: values.list("peer-cert-allowed-cn"),
        allowed_hostnames: values.list("peer-cert-allowed-hostname"),
        skip_client_san_verify: values.switch("peer-skip-client-san-verification"),
        ..side("peer-")
    };
    Ok((clients, peers))
}

/// TLS of listeners, if one of them speaks it. Without a certificate the binding says what is
/// missing, with the URL.
fn server(
    options: &TlsOptions,
    port: Port,
    urls: &[ListenUrl],
) -> Result<Option<ServerTls>, String> {
    if options.is_empty() || !urls.iter().any(ListenUrl::is_tls) {
        return Ok(None);
    }
    tracing::info!("tls-info" = %options, "starting with {port} TLS");
    ServerTls::load(options, port).map(Some).map_err(|error| error.to_string())
}

/// Certificates that are given for a port without TLS are probably a slip in its URL.
fn warn_of_plain(options: &TlsOptions, urls: &[ListenUrl]) {
    for url in urls.iter().filter(|url| !url.is_tls()) {
        if !options.is_empty() {
            tracing::warn!(
                url = %url,
                "scheme is http or unix while key and cert files are present; ignoring key and cert files"
            );
        }
        if options.client_cert_auth {
            tracing::warn!(
                url = %url,
                "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL"
            );
        }
    }
}
