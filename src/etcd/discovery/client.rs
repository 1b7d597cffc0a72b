//! A client of the etcd that serves discovery, which does not give up.
//!
//! Input: endpoints, and keys to read and write. Output: answers. Each failure goes on to the next
//! endpoint, after a pause that grows to etcd's 256 seconds.

use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use mainstay_net::tls::{ClientTls, TlsOptions};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::auth_client::AuthClient;
use mainstay_proto::etcdserverpb::kv_client::KvClient;
use mainstay_proto::mvccpb::KeyValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// After so many failures the pause grows no more.
const MAX_DOUBLINGS: u32 = 8;

/// How the service is reached.
pub(super) struct Options {
    pub(super) endpoints: Vec<String>,
    /// `None` speaks without encryption.
    pub(super) tls: Option<TlsOptions>,
    /// Name and password.
    pub(super) user: Option<(String, String)>,
    pub(super) dial_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) keepalive_time: Duration,
    pub(super) keepalive_timeout: Duration,
}

/// A connection, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection, and what calls on it carry.
struct Session {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

pub(super) struct Client {
    options: Options,
    tls: Option<ClientTls>,
    session: Option<Session>,
    /// Failures since something worked.
    failures: u32,
}

impl Client {
    pub(super) fn new(options: Options) -> Result<Self, String> {
        let tls = options.tls.as_ref().map(|tls| ClientTls::load_for(tls, &["h2"])).transpose();
        let tls = tls.map_err(|error| error.to_string())?;
        Ok(Client { options, tls, session: None, failures: 0 })
    }

    /// The pair of a key, if it is there.
    pub(super) async fn get(&mut self, key: &str) -> Vec<KeyValue> {
        self.range(key, "").await
    }

    /// All pairs below a prefix, which ends with a character below the last one.
    pub(super) async fn get_prefix(&mut self, prefix: &str) -> Vec<KeyValue> {
        self.range(&format!("{prefix}/"), &format!("{prefix}0")).await
    }

    async fn range(&mut self, key: &str, range_end: &str) -> Vec<KeyValue> {
        let request = pb::RangeRequest {
            key: key.to_owned().into(),
            range_end: range_end.to_owned().into(),
            ..Default::default()
        };
        loop {
            let asked = async |session: &Session| {
                let mut kv = KvClient::new(session.channel.clone());
                Ok(kv.range(session.request(request.clone())).await?.into_inner())
            };
            match self.call(asked).await {
                Ok(response) => return response.kvs,
                Err(status) => self.back_off(&status).await,
            }
        }
    }

    pub(super) async fn put(&mut self, key: &str, value: &str) {
        let request = pb::PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            ..Default::default()
        };
        loop {
            let asked = async |session: &Session| {
                let mut kv = KvClient::new(session.channel.clone());
                kv.put(session.request(request.clone())).await
            };
            match self.call(asked).await {
                Ok(_) => return,
                Err(status) => self.back_off(&status).await,
            }
        }
    }

    async fn call<T>(
        &mut self,
        ask: impl AsyncFnOnce(&Session) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.connect().await?,
        };
        let within = self.options.request_timeout;
        let answer = tokio::time::timeout(within, ask(&session)).await;
        let answer = answer
            .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer in {within:?}"))));
        if answer.is_ok() {
            self.failures = 0;
            self.session = Some(session);
        }
        answer
    }

    /// A session with the endpoint whose turn it is.
    async fn connect(&self) -> Result<Session, Status> {
        let Options { endpoints, dial_timeout, keepalive_time, keepalive_timeout, .. } =
            &self.options;
        let endpoint = &endpoints[self.failures as usize % endpoints.len()];
        let (encrypted, address) = match endpoint.split_once("://") {
            Some((scheme, address)) => (scheme == "https", address),
            None => (false, endpoint.as_str()),
        };
        let tls = match &self.tls {
            Some(tls) => Some(tls.clone()),
            None if encrypted => Some(
                ClientTls::load_for(&TlsOptions::default(), &["h2"])
                    .map_err(|error| Status::unavailable(error.to_string()))?,
            ),
            None => None,
        };
        let unreachable = |error| Status::unavailable(format!("{endpoint}: {error}"));
        let dial = tower::service_fn(move |uri: Uri| {
            let tls = tls.clone();
            async move {
                let address = uri.authority().map(|authority| authority.as_str());
                let stream = TcpStream::connect(address.unwrap_or_default()).await?;
                let stream: Box<dyn Io> = match &tls {
                    Some(tls) => {
                        Box::new(tls.connect(uri.host().unwrap_or_default(), stream).await?)
                    }
                    None => Box::new(stream),
                };
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let connecting = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| unreachable(error.to_string()))?
            .connect_timeout(*dial_timeout)
            .http2_keep_alive_interval(*keepalive_time)
            .keep_alive_timeout(*keepalive_timeout);
        let channel = connecting
            .connect_with_connector(dial)
            .await
            .map_err(|error| unreachable(source_of(&error)))?;
        let token = match &self.options.user {
            None => None,
            Some((name, password)) => {
                let request =
                    pb::AuthenticateRequest { name: name.clone(), password: password.clone() };
                match AuthClient::new(channel.clone()).authenticate(request).await {
                    Ok(answer) => answer.into_inner().token.parse().ok(),
                    // Then nobody asks for one.
                    Err(status) if status.message().contains("not enabled") => None,
                    Err(status) => return Err(status),
                }
            }
        };
        Ok(Session { channel, token })
    }

    async fn back_off(&mut self, status: &Status) {
        self.failures = self.failures.saturating_add(1);
        let pause = Duration::from_secs(1 << self.failures.min(MAX_DOUBLINGS));
        tracing::warn!(
            error = status.message(),
            backoff = ?pause,
            "retry connecting to discovery service"
        );
        tokio::time::sleep(pause).await;
    }
}

impl Session {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

/// The innermost cause: the outer ones say nothing but that it failed.
fn source_of(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
