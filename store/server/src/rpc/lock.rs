//! v3lockpb.Lock: a fair lock for clients that cannot run the recipe themselves.
//!
//! **Invariant:** a client that goes away while it waits leaves no key behind, so nobody waits for
//! a client that is gone.

use std::sync::Arc;

use super::body::RequestBody;
use bytes::Bytes;
use http::Request;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};

use super::call::{unary, unary_requests};
use super::methods::Method;
use super::recipe;
use super::status::Status;
use super::{Answer, Api};
use crate::auth::{By, Caller};
use crate::core::Core;
use crate::error::{Error, Result};

unary_requests! {
    LockRequest => LockResponse,
    UnlockRequest => UnlockResponse,
}

pub(super) fn lock(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    let streams = api.streams.clone();
    unary(api, Method::Lock, request, async move |core, by: By<LockRequest>| {
        let mut ticket = streams.open(false)?;
        tokio::select! {
            locked = acquire(&core, by) => locked.map_err(Status::without_code),
            status = ticket.ended() => Err(status),
        }
    })
}

pub(super) fn unlock(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Unlock, request, async |core, by: By<UnlockRequest>| {
        let By { request, caller } = by;
        let delete = pb::DeleteRangeRequest { key: request.key, ..Default::default() };
        let deleted =
            core.delete_range(By::new(caller, delete)).await.map_err(Status::without_code)?;
        Ok(UnlockResponse { header: deleted.header })
    })
}

async fn acquire(core: &Arc<Core>, by: By<LockRequest>) -> Result<LockResponse> {
    let By { request, caller } = by;
    let lease = recipe::lease_or_new(core, &caller, request.lease).await?;
    let prefix = recipe::prefix(&request.name);
    let key = recipe::own_key(&prefix, lease);
    let owner = recipe::range(recipe::first_created(&prefix));
    let txn = recipe::if_created_at(
        &key,
        0,
        vec![recipe::put(&key, Bytes::new(), lease), owner.clone()],
        vec![recipe::range(recipe::get(&key)), owner],
    );
    let response = core.txn(By::new(caller.clone(), txn)).await?;
    let mut guard = Unlock::armed(core, &caller, &key);
    let own = if response.succeeded {
        recipe::revision(&response.header)
    } else {
        recipe::found(&response, 0).map_or(0, |kv| kv.create_revision)
    };
    if recipe::found(&response, 1).is_none_or(|owner| owner.create_revision == own) {
        guard.disarm();
        return Ok(LockResponse { header: response.header, key });
    }
    recipe::wait_for_deletes(core, &caller, &prefix, own - 1).await?;
    // The lease may have ended meanwhile.
    let held = core.range(By::new(caller.clone(), recipe::get(&key))).await?;
    guard.disarm();
    if held.kvs.is_empty() {
        return Err(Error::Raw("mutex: session is expired".into()));
    }
    Ok(LockResponse { header: held.header, key })
}

/// Deletes the key of a client that waits no more, unless it is told not to.
struct Unlock<'a> {
    core: &'a Arc<Core>,
    caller: &'a Caller,
    key: Option<Bytes>,
}

impl<'a> Unlock<'a> {
    fn armed(core: &'a Arc<Core>, caller: &'a Caller, key: &Bytes) -> Self {
        Self { core, caller, key: Some(key.clone()) }
    }

    fn disarm(&mut self) {
        self.key = None;
    }
}

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let (core, caller) = (self.core.clone(), self.caller.clone());
        tokio::spawn(async move {
            let delete = pb::DeleteRangeRequest { key, ..Default::default() };
            if let Err(error) = core.delete_range(By::new(caller, delete)).await {
                tracing::warn!(%error, "the key of a client that gave up its lock stays");
            }
        });
    }
}
