//! Single requests of a member to others: what a joining member asks before it has peers, and what
//! a follower forwards to the leader.
//!
//! Input: the URLs of one member, or of several that would give the same answer; they are tried in
//! order. Output: the answer, or the last error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use mainstay_proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest,
};
use mainstay_proto::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
use prost::Message as _;
use serde_json::Value;
use thiserror::Error;
use tokio::runtime::Handle;

use crate::body::PeerBody;
use crate::dial::Dialer;
use crate::headers::{CLUSTER_ID, hex, parse_hex, plain_request, text};
use crate::host::{HashKv, LeaseError, LeaseTimeToLive, MemberInfo, PromoteError, Versions};
use crate::http_client::{Answer, HttpClient, RequestError, finish_request};
use crate::url::{PeerUrl, UrlError, parse_urls};

/// How long a request may take by default: etcd's own limit for a client's request.
const WITHIN: Duration = Duration::from_secs(7);
/// How long opening a connection may take for a client without peers.
const DIAL: Duration = Duration::from_secs(2);
/// Longest answer of the small endpoints.
const SMALL: u64 = 64 << 10;
/// Longest member list.
const MEMBERS: u64 = 16 << 20;
/// Longest lease answer, which may list keys; etcd's limit.
const LEASE: u64 = 100 << 20;

/// Why a request to a member has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The URLs are none.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The member refused, in its own words.
    #[error("{url} answered {status}: {text}")]
    Status {
        /// Who.
        url: PeerUrl,
        /// With what.
        status: StatusCode,
        /// Its explanation.
        text: String,
    },
    /// The answer is not what was asked for.
    #[error("{url} gave an answer that can't be read: {reason}")]
    Unreadable {
        /// Who.
        url: PeerUrl,
        /// What is wrong with it.
        reason: String,
    },
    /// The member says that there is no such lease, or that it could not catch up in time.
    #[error(transparent)]
    Lease(LeaseError),
    /// The member says why it does not promote.
    #[error(transparent)]
    Promote(PromoteError),
}

/// The cluster as one of its members describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteCluster {
    /// The cluster's id.
    pub cluster: u64,
    /// Its members; never empty.
    pub members: Vec<MemberInfo>,
}

/// Makes requests to members.
#[derive(Clone)]
pub struct Client {
    http: Arc<HttpClient>,
    within: Duration,
}

impl Client {
    /// A client of its own.
    pub fn new(dialer: Arc<dyn Dialer>, runtime: Handle) -> Self {
        Client::over(Arc::new(HttpClient::new(dialer, DIAL, runtime)))
    }

    pub(crate) fn over(http: Arc<HttpClient>) -> Self {
        Client { http, within: WITHIN }
    }

    /// Another limit for each attempt (one attempt a URL).
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The members of a cluster and its id. The first member that gives a list is believed.
    pub async fn fetch_members<S: AsRef<str>>(
        &self,
        urls: &[S],
    ) -> Result<RemoteCluster, ClientError> {
        let ask = Ask { method: Method::GET, path: "/members", limit: MEMBERS, ..Ask::default() };
        self.first(urls, &ask, |url, answer| {
            expect_ok(url, answer)?;
            let members: Vec<MemberInfo> = json(url, &answer.body)?;
            let id = text(&answer.headers, CLUSTER_ID).and_then(parse_hex);
            let cluster = id.ok_or_else(|| unreadable(url, "no cluster id"))?;
            if members.is_empty() {
                return Err(unreadable(url, "no members"));
            }
            Ok(RemoteCluster { cluster, members })
        })
        .await
    }

    /// The versions of one member.
    pub async fn fetch_versions<S: AsRef<str>>(&self, urls: &[S]) -> Result<Versions, ClientError> {
        let ask = Ask { method: Method::GET, path: "/version", ..Ask::default() };
        self.first(urls, &ask, |url, answer| {
            expect_ok(url, answer)?;
            json(url, &answer.body)
        })
        .await
    }

    /// Whether a downgrade of the cluster is going on.
    pub async fn downgrade_enabled<S: AsRef<str>>(&self, urls: &[S]) -> Result<bool, ClientError> {
        let ask = Ask { method: Method::GET, path: "/downgrade/enabled", ..Ask::default() };
        self.first(urls, &ask, |url, answer| {
            expect_ok(url, answer)?;
            match answer.text().as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                other => Err(unreadable(url, other)),
            }
        })
        .await
    }

    /// Renews a lease at the leader; gives its new time to live.
    pub async fn renew_lease<S: AsRef<str>>(
        &self,
        leader: &[S],
        id: i64,
    ) -> Result<i64, ClientError> {
        let body = LeaseKeepAliveRequest { id }.encode_to_vec();
        let ask = Ask::protobuf("/leases", body);
        self.first(leader, &ask, |url, answer| {
            expect_lease(url, answer)?;
            let response = LeaseKeepAliveResponse::decode(answer.body.clone())
                .map_err(|error| unreadable(url, &error))?;
            if response.id != id {
                return Err(unreadable(url, "another lease"));
            }
            Ok(response.ttl)
        })
        .await
    }

    /// What is left of a lease, from the leader.
    pub async fn lease_time_to_live<S: AsRef<str>>(
        &self,
        leader: &[S],
        id: i64,
        keys: bool,
    ) -> Result<LeaseTimeToLive, ClientError> {
        let inner = LeaseTimeToLiveRequest { id, keys };
        let request = LeaseInternalRequest { lease_time_to_live_request: Some(inner) };
        let ask = Ask::protobuf("/leases/internal", request.encode_to_vec());
        self.first(leader, &ask, |url, answer| {
            expect_lease(url, answer)?;
            let response = LeaseInternalResponse::decode(answer.body.clone())
                .map_err(|error| unreadable(url, &error))?;
            match response.lease_time_to_live_response {
                Some(found) if found.id == id => Ok(LeaseTimeToLive {
                    ttl: found.ttl,
                    granted_ttl: found.granted_ttl,
                    keys: found.keys,
                }),
                _ => Err(unreadable(url, "another lease")),
            }
        })
        .await
    }

    /// Promotes a learner at the leader; gives the members after that. Each URL is asked at most
    /// once, with the auth token of the client whose request this is.
    pub async fn promote<S: AsRef<str>>(
        &self,
        leader: &[S],
        id: u64,
        token: Option<&str>,
    ) -> Result<Vec<MemberInfo>, ClientError> {
        let path = format!("/members/promote/{id}");
        let ask = Ask {
            path: &path,
            header: token.map(|token| (header::AUTHORIZATION.as_str(), token.to_owned())),
            limit: MEMBERS,
            ..Ask::default()
        };
        self.first(leader, &ask, |url, answer| match answer.status {
            StatusCode::OK => json(url, &answer.body),
            StatusCode::NOT_FOUND => Err(ClientError::Promote(PromoteError::NotFound)),
            _ => {
                let text = answer.text();
                let known = [PromoteError::NotReady, PromoteError::NotLearner];
                match known.into_iter().find(|known| text.contains(&known.to_string())) {
                    Some(known) if answer.status == StatusCode::PRECONDITION_FAILED => {
                        Err(ClientError::Promote(known))
                    }
                    _ => Err(refused(url, answer)),
                }
            }
        })
        .await
    }

    /// The hash of one member's keys at a revision (0 = now). A member's refusal comes back as
    /// [`ClientError::Status`] with the text of its store.
    pub async fn hash_kv<S: AsRef<str>>(
        &self,
        urls: &[S],
        cluster: u64,
        revision: i64,
    ) -> Result<HashKv, ClientError> {
        let body = serde_json::json!({ "revision": revision }).to_string();
        let ask = Ask {
            method: Method::GET,
            path: "/members/hashkv",
            content_type: Some("application/json"),
            header: Some((CLUSTER_ID, hex(cluster))),
            body: Bytes::from(body),
            ..Ask::default()
        };
        self.first(urls, &ask, |url, answer| {
            expect_ok(url, answer)?;
            // Go leaves out what is zero.
            let answer: Value = json(url, &answer.body)?;
            let number = |value: &Value| value.as_i64().unwrap_or(0);
            let hash = u32::try_from(number(&answer["hash"]))
                .map_err(|_| unreadable(url, "hash of more than 32 bits"))?;
            Ok(HashKv {
                revision: number(&answer["header"]["revision"]),
                hash,
                compact_revision: number(&answer["compact_revision"]),
                hash_revision: number(&answer["hash_revision"]),
            })
        })
        .await
    }

    /// Asks one URL after the other until one answers what can be read, or says something final.
    async fn first<S: AsRef<str>, T>(
        &self,
        urls: &[S],
        ask: &Ask<'_>,
        read: impl Fn(&PeerUrl, &Answer) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut last = ClientError::Url(UrlError::Empty);
        for url in parse_urls(urls)? {
            let build = || ask.request(&url);
            let answer = self.http.request(&url, build, ask.limit, self.within).await;
            match answer.map_err(ClientError::from).and_then(|answer| read(&url, &answer)) {
                Ok(result) => return Ok(result),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl ClientError {
    /// What another URL of the same member would say as well.
    fn is_final(&self) -> bool {
        match self {
            ClientError::Lease(error) => *error == LeaseError::NotFound,
            ClientError::Promote(_) => true,
            ClientError::Status { status, .. } => status.is_client_error(),
            _ => false,
        }
    }
}

struct Ask<'a> {
    method: Method,
    path: &'a str,
    content_type: Option<&'a str>,
    header: Option<(&'a str, String)>,
    body: Bytes,
    limit: u64,
}

impl Default for Ask<'_> {
    fn default() -> Self {
        Ask {
            method: Method::POST,
            path: "/",
            content_type: None,
            header: None,
            body: Bytes::new(),
            limit: SMALL,
        }
    }
}

impl<'a> Ask<'a> {
    fn protobuf(path: &'a str, body: Vec<u8>) -> Self {
        Ask {
            path,
            content_type: Some("application/protobuf"),
            body: body.into(),
            limit: LEASE,
            ..Ask::default()
        }
    }

    fn request(&self, url: &PeerUrl) -> http::Request<PeerBody> {
        let mut head = plain_request(self.method.clone(), url, self.path);
        if let Some(content_type) = self.content_type {
            head = head.header(header::CONTENT_TYPE, content_type);
        }
        if let Some((name, value)) = &self.header {
            // A token that can't stand in a header is no token of ours; without it the leader
            // refuses.
            if let Ok(value) = http::HeaderValue::from_str(value) {
                head = head.header(*name, value);
            }
        }
        finish_request(head, PeerBody::full(self.body.clone()))
    }
}

fn expect_ok(url: &PeerUrl, answer: &Answer) -> Result<(), ClientError> {
    if answer.status == StatusCode::OK { Ok(()) } else { Err(refused(url, answer)) }
}

fn expect_lease(url: &PeerUrl, answer: &Answer) -> Result<(), ClientError> {
    match answer.status {
        StatusCode::REQUEST_TIMEOUT => Err(ClientError::Lease(LeaseError::ApplyTimeout)),
        StatusCode::NOT_FOUND => Err(ClientError::Lease(LeaseError::NotFound)),
        _ => expect_ok(url, answer),
    }
}

fn refused(url: &PeerUrl, answer: &Answer) -> ClientError {
    ClientError::Status { url: url.clone(), status: answer.status, text: answer.text() }
}

fn unreadable(url: &PeerUrl, reason: &(impl ToString + ?Sized)) -> ClientError {
    ClientError::Unreadable { url: url.clone(), reason: reason.to_string() }
}

fn json<T: serde::de::DeserializeOwned>(url: &PeerUrl, body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| unreadable(url, &error))
}
