//! Somebody who calls one member, and the users that every test has.

use std::fmt::Debug;
use std::time::Duration;

use mainstay_etcd_tests::member::{Cluster, Member, Program};
use mainstay_proto::authpb::{Permission, UserAddOptions, permission};
use mainstay_proto::etcdserverpb as pb;
use prost::Message;
use regex::Regex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn tested() -> Program {
    match std::env::var("MAINSTAY_TEST_PROGRAM").as_deref() {
        Ok("etcd") => Program::Etcd,
        _ => Program::Mainstay,
    }
}

/// Somebody on a connection to one member.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) channel: Channel,
    pub(crate) token: Option<String>,
}

impl Caller {
    pub(crate) async fn at(member: &Member) -> Self {
        let endpoint = Endpoint::from_shared(member.client_url.clone()).unwrap();
        Caller { channel: endpoint.connect().await.unwrap(), token: None }
    }

    pub(crate) fn with(&self, token: &str) -> Self {
        Caller { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same with a token of its own.
    pub(crate) async fn as_user(&self, name: &str, password: &str) -> Result<Self, Status> {
        let request = pb::AuthenticateRequest { name: name.into(), password: password.into() };
        let path = "/etcdserverpb.Auth/Authenticate";
        let answer: pb::AuthenticateResponse = self.call(path, request).await?;
        Ok(self.with(&answer.token))
    }

    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.parse().unwrap());
        }
        request.set_timeout(PATIENCE);
        request
    }

    pub(crate) async fn grpc(&self) -> Result<tonic::client::Grpc<Channel>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        Ok(grpc)
    }

    pub(crate) async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = http_path(path);
        let mut grpc = self.grpc().await?;
        let answer = grpc.unary(self.request(message), path, ProstCodec::<Q, A>::default()).await;
        Ok(answer?.into_inner())
    }

    /// The first answers of a call that streams them.
    pub(crate) async fn first<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, A>::default();
        let stream = grpc.server_streaming(self.request(message), http_path(path), codec).await?;
        stream.into_inner().message().await?.ok_or_else(|| Status::unknown("no answer"))
    }

    /// A stream both ways that stays open as long as the sender.
    pub(crate) async fn open<Q, A>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<(mpsc::Sender<Q>, tonic::Streaming<A>), Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (sender, receiver) = mpsc::channel(4);
        sender.send(message).await.unwrap();
        let mut grpc = self.grpc().await?;
        let request = self.request(ReceiverStream::new(receiver));
        let codec = ProstCodec::<Q, A>::default();
        let answers = grpc.streaming(request, http_path(path), codec).await?;
        Ok((sender, answers.into_inner()))
    }

    pub(crate) async fn watch(
        &self,
        key: &str,
        range_end: &str,
    ) -> Result<(mpsc::Sender<pb::WatchRequest>, tonic::Streaming<pb::WatchResponse>), Status> {
        let create = pb::WatchCreateRequest {
            key: key.to_owned().into(),
            range_end: range_end.to_owned().into(),
            ..Default::default()
        };
        let union = pb::watch_request::RequestUnion::CreateRequest(create);
        let request = pb::WatchRequest { request_union: Some(union) };
        self.open("/etcdserverpb.Watch/Watch", request).await
    }

    pub(crate) async fn change_password(&self, name: &str, password: &str) -> Result<(), Status> {
        let change = pb::AuthUserChangePasswordRequest {
            name: name.into(),
            password: password.into(),
            ..Default::default()
        };
        let path = "/etcdserverpb.Auth/UserChangePassword";
        self.call::<_, pb::AuthUserChangePasswordResponse>(path, change).await.map(drop)
    }

    pub(crate) async fn delete_user(&self, name: &str) -> Result<(), Status> {
        let delete = pb::AuthUserDeleteRequest { name: name.into() };
        let path = "/etcdserverpb.Auth/UserDelete";
        self.call::<_, pb::AuthUserDeleteResponse>(path, delete).await.map(drop)
    }

    pub(crate) async fn put(&self, key: &str, value: &str, lease: i64) -> Result<(), Status> {
        let put = pb::PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            lease,
            ..Default::default()
        };
        self.call::<_, pb::PutResponse>("/etcdserverpb.KV/Put", put).await.map(drop)
    }
}

pub(crate) fn http_path(path: &'static str) -> tonic::codegen::http::uri::PathAndQuery {
    tonic::codegen::http::uri::PathAndQuery::from_static(path)
}

pub(crate) fn outcome<T: Debug>(result: Result<T, Status>, whole: bool) -> String {
    match result {
        Ok(answer) if whole => {
            let header = Regex::new(r"header: Some\([^)]*\)").unwrap();
            header.replace(&format!("{answer:?}"), "").into_owned()
        }
        Ok(_) => "ok".to_owned(),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    }
}

/// Users and roles: root, ann who has `a…` and writes `w1`, bob who has nothing, bare who has no
/// password.
pub(crate) async fn set_up(caller: &Caller) -> Result<(), Status> {
    for (name, password) in [("root", "root-secret"), ("ann", "ann-secret"), ("bob", "bob-secret")]
    {
        let add = pb::AuthUserAddRequest {
            name: name.into(),
            password: password.into(),
            ..Default::default()
        };
        caller.call::<_, pb::AuthUserAddResponse>("/etcdserverpb.Auth/UserAdd", add).await?;
    }
    let bare = pb::AuthUserAddRequest {
        name: "bare".into(),
        options: Some(UserAddOptions { no_password: true }),
        ..Default::default()
    };
    caller.call::<_, pb::AuthUserAddResponse>("/etcdserverpb.Auth/UserAdd", bare).await?;
    for name in ["root", "a"] {
        let add = pb::AuthRoleAddRequest { name: name.into() };
        caller.call::<_, pb::AuthRoleAddResponse>("/etcdserverpb.Auth/RoleAdd", add).await?;
    }
    for (kind, key, end) in
        [(permission::Type::Readwrite, "a", "b"), (permission::Type::Write, "w1", "")]
    {
        grant(caller, kind, key, end).await?;
    }
    for (user, role) in [("root", "root"), ("ann", "a")] {
        let grant = pb::AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        let path = "/etcdserverpb.Auth/UserGrantRole";
        caller.call::<_, pb::AuthUserGrantRoleResponse>(path, grant).await?;
    }
    Ok(())
}

pub(crate) async fn grant(
    caller: &Caller,
    kind: permission::Type,
    key: &str,
    end: &str,
) -> Result<(), Status> {
    let grant = pb::AuthRoleGrantPermissionRequest {
        name: "a".into(),
        perm: Some(Permission {
            perm_type: kind as i32,
            key: key.to_owned().into(),
            range_end: end.to_owned().into(),
        }),
    };
    let path = "/etcdserverpb.Auth/RoleGrantPermission";
    caller.call::<_, pb::AuthRoleGrantPermissionResponse>(path, grant).await.map(drop)
}

pub(crate) async fn enable(caller: &Caller) -> Result<(), Status> {
    let path = "/etcdserverpb.Auth/AuthEnable";
    caller.call::<_, pb::AuthEnableResponse>(path, pb::AuthEnableRequest {}).await.map(drop)
}

pub(crate) async fn lease_with(caller: &Caller, key: &str) -> Result<i64, Status> {
    let grant = pb::LeaseGrantRequest { ttl: 600, id: 0 };
    let lease: pb::LeaseGrantResponse =
        caller.call("/etcdserverpb.Lease/LeaseGrant", grant).await?;
    caller.put(key, "", lease.id).await?;
    Ok(lease.id)
}

pub(crate) async fn single(program: Program) -> (Cluster, Caller) {
    let cluster = Cluster::start(&[program], &[]).await.unwrap();
    let caller = Caller::at(&cluster.members[0]).await;
    set_up(&caller).await.unwrap();
    enable(&caller).await.unwrap();
    (cluster, caller)
}

/// The answer of a read by somebody whose rights were just changed.
pub(crate) async fn read(caller: &Caller) -> String {
    let get = pb::RangeRequest { key: "a1".into(), ..Default::default() };
    let result: Result<pb::RangeResponse, Status> =
        caller.call("/etcdserverpb.KV/Range", get).await;
    outcome(result, false)
}
