//! v3electionpb.Election: leader election for clients that cannot run the recipe themselves.
//!
//! **Invariant:** a client that goes away while it campaigns gives its candidacy up.

use std::sync::Arc;

use super::body::RequestBody;
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::mvccpb::event::EventType;
use mainstay_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};

use super::call::{Chunk, streaming, unary, unary_requests};
use super::methods::Method;
use super::recipe::{self, LocalWatch};
use super::status::Status;
use super::{Answer, Api};
use crate::auth::{By, Caller};
use crate::core::Core;
use crate::error::{Error, Result};

unary_requests! {
    CampaignRequest => CampaignResponse,
    ProclaimRequest => ProclaimResponse,
    LeaderRequest => LeaderResponse,
    ResignRequest => ResignResponse,
}

const NOT_LEADER: Error = Error::Raw(std::borrow::Cow::Borrowed("election: not leader"));
const NO_LEADER: Error = Error::Raw(std::borrow::Cow::Borrowed("election: no leader"));
const NO_LEADER_KEY: Error =
    Error::Raw(std::borrow::Cow::Borrowed("\"leader\" field must be provided"));

pub(super) fn campaign(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    let streams = api.streams.clone();
    unary(api, Method::Campaign, request, async move |core, by: By<CampaignRequest>| {
        let mut ticket = streams.open(false)?;
        tokio::select! {
            won = run(&core, by) => won.map_err(Status::without_code),
            status = ticket.ended() => Err(status),
        }
    })
}

pub(super) fn proclaim(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Proclaim, request, async |core, by: By<ProclaimRequest>| {
        let By { request, caller } = by;
        let told = async {
            let leader = request.leader.ok_or(NO_LEADER_KEY)?;
            let lease = recipe::lease_or_new(&core, &caller, leader.lease).await?;
            tell(&core, &caller, &leader.key, leader.rev, lease, request.value).await
        };
        let header = told.await.map_err(Status::without_code)?;
        Ok(ProclaimResponse { header })
    })
}

pub(super) fn leader(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Leader, request, async |core, by: By<LeaderRequest>| {
        let oldest = recipe::first_created(&recipe::prefix(&by.request.name));
        let mut found = core.range(by.and(oldest)).await.map_err(Status::without_code)?;
        if found.kvs.is_empty() {
            return Err(Status::without_code(NO_LEADER));
        }
        Ok(LeaderResponse { header: found.header, kv: Some(found.kvs.swap_remove(0)) })
    })
}

pub(super) fn resign(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Resign, request, async |core, by: By<ResignRequest>| {
        let By { request, caller } = by;
        let given_up = async {
            let leader = request.leader.ok_or(NO_LEADER_KEY)?;
            recipe::lease_or_new(&core, &caller, leader.lease).await?;
            give_up(&core, &caller, &leader.key, leader.rev).await
        };
        let header = given_up.await.map_err(Status::without_code)?;
        Ok(ResignResponse { header })
    })
}

async fn run(core: &Arc<Core>, by: By<CampaignRequest>) -> Result<CampaignResponse> {
    let By { request: CampaignRequest { name, lease, value }, caller } = by;
    let lease = recipe::lease_or_new(core, &caller, lease).await?;
    let prefix = recipe::prefix(&name);
    let key = recipe::own_key(&prefix, lease);
    let txn = recipe::if_created_at(
        &key,
        0,
        vec![recipe::put(&key, value.clone(), lease)],
        vec![recipe::range(recipe::get(&key))],
    );
    let response = core.txn(By::new(caller.clone(), txn)).await?;
    let mut rev = recipe::revision(&response.header);
    if !response.succeeded
        && let Some(own) = recipe::found(&response, 0)
    {
        rev = own.create_revision;
        if own.value != value
            && let Err(error) = tell(core, &caller, &key, rev, lease, value).await
        {
            // What went wrong is told by the first error.
            let _ = give_up(core, &caller, &key, rev).await;
            return Err(error);
        }
    }
    let mut candidacy = Candidacy { core, caller: &caller, key: Some((key.clone(), rev)) };
    let waited = recipe::wait_for_deletes(core, &caller, &prefix, rev - 1).await;
    // Only a client that goes away gives up; after an error it may come back to its key.
    candidacy.key = None;
    waited?;
    let leader = LeaderKey { name, key, rev, lease };
    Ok(CampaignResponse { header: response.header, leader: Some(leader) })
}

/// Sets a new value as the holder of the key.
async fn tell(
    core: &Core,
    caller: &Caller,
    key: &Bytes,
    rev: i64,
    lease: i64,
    value: Bytes,
) -> Result<Option<pb::ResponseHeader>> {
    let put = recipe::put(key, value, lease);
    let txn = recipe::if_created_at(key, rev, vec![put], Vec::new());
    let response = core.txn(By::new(caller.clone(), txn)).await?;
    if response.succeeded { Ok(response.header) } else { Err(NOT_LEADER) }
}

/// Deletes the key, if it is still the same one.
async fn give_up(
    core: &Core,
    caller: &Caller,
    key: &Bytes,
    rev: i64,
) -> Result<Option<pb::ResponseHeader>> {
    let txn = recipe::if_created_at(key, rev, vec![recipe::delete(key)], Vec::new());
    Ok(core.txn(By::new(caller.clone(), txn)).await?.header)
}

/// A candidacy that ends with its client.
struct Candidacy<'a> {
    core: &'a Arc<Core>,
    caller: &'a Caller,
    key: Option<(Bytes, i64)>,
}

impl Drop for Candidacy<'_> {
    fn drop(&mut self) {
        let Some((key, rev)) = self.key.take() else { return };
        let (core, caller) = (self.core.clone(), self.caller.clone());
        tokio::spawn(async move {
            if let Err(error) = give_up(&core, &caller, &key, rev).await {
                tracing::warn!(%error, "the key of a candidate that gave up stays");
            }
        });
    }
}

/// The leader now, and each change of him.
pub(super) fn observe(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    streaming(api, Method::Observe, request, async |messages, call| {
        let by: By<LeaderRequest> = match call.request(messages).await {
            Ok(by) => by,
            Err(status) => return call.refuse(status),
        };
        let observer = Observer {
            core: call.api.core.clone(),
            prefix: recipe::prefix(&by.request.name),
            caller: by.caller,
            told: Vec::new(),
            key: None,
        };
        let changes = stream::unfold(observer, |mut observer| async move {
            // An error ends the stream without being told, as with etcd.
            let next = observer.next().await.ok()?;
            Some((Ok(Chunk::one(&next)), observer))
        });
        call.respond(Box::pin(changes))
    })
}

struct Observer {
    core: Arc<Core>,
    caller: Caller,
    prefix: Vec<u8>,
    /// What is to be told next, the last one first.
    told: Vec<LeaderResponse>,
    /// Follows the key of the leader that was told.
    key: Option<LocalWatch>,
}

impl Observer {
    async fn next(&mut self) -> Result<LeaderResponse> {
        loop {
            if let Some(response) = self.told.pop() {
                return Ok(response);
            }
            match &mut self.key {
                None => {
                    let leader = self.find().await?;
                    self.key = Some(self.follow(&leader).await?);
                    return Ok(leader);
                }
                Some(watch) => {
                    let response = watch.next().await?;
                    for event in response.events {
                        if event.r#type() == EventType::Delete {
                            self.key = None;
                            break;
                        }
                        let header = response.header;
                        self.told.push(LeaderResponse { header, kv: event.kv });
                    }
                    self.told.reverse();
                }
            }
        }
    }

    /// The leader, or the first one that comes.
    async fn find(&self) -> Result<LeaderResponse> {
        let oldest = recipe::first_created(&self.prefix);
        let mut found = self.core.range(By::new(self.caller.clone(), oldest.clone())).await?;
        if !found.kvs.is_empty() {
            return Ok(LeaderResponse { header: found.header, kv: Some(found.kvs.swap_remove(0)) });
        }
        let create = pb::WatchCreateRequest {
            key: oldest.key,
            range_end: oldest.range_end,
            start_revision: recipe::revision(&found.header),
            ..Default::default()
        };
        let mut watch = LocalWatch::open(&self.core, &self.caller, create).await?;
        loop {
            let response = watch.next().await?;
            let put = response.events.into_iter().find(|event| event.r#type() == EventType::Put);
            if let Some(kv) = put.and_then(|event| event.kv) {
                let header = response
                    .header
                    .map(|header| pb::ResponseHeader { revision: kv.mod_revision, ..header });
                return Ok(LeaderResponse { header, kv: Some(kv) });
            }
        }
    }

    async fn follow(&self, leader: &LeaderResponse) -> Result<LocalWatch> {
        let key = leader.kv.as_ref().map(|kv| kv.key.clone()).unwrap_or_default();
        let create = pb::WatchCreateRequest {
            key,
            start_revision: recipe::revision(&leader.header) + 1,
            ..Default::default()
        };
        LocalWatch::open(&self.core, &self.caller, create).await
    }
}
