//! Leases as rows: grant, revocation and checkpoint as they are applied. Time plays no part here;
//! when a lease expires is decided by the leader's lessor, which proposes the revocation.
//!
//! **Invariant:** a lease is there exactly if its row is in the bucket `lease`; the keys attached
//! to it are exactly those in LeaseKey, which follow the Index.

use bytes::Bytes;
use mainstay_engine::{Family, Scan, View};
use mainstay_proto::etcdserverpb::{
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
};
use mainstay_proto::leasepb;
use prost::Message;

use crate::buckets::Bucket;
use crate::keys::{decode_lease_key, lease_key};
use crate::overlay::Overlay;
use crate::range::header;
use crate::writer::Writer;
use crate::{Error, Fatal, LeaseChange};

/// Longest TTL of a lease, in seconds.
pub const MAX_LEASE_TTL: i64 = 9_000_000_000;

/// The stored lease with this id.
pub fn stored_lease(view: &dyn View, id: i64) -> Result<Option<leasepb::Lease>, Fatal> {
    let row = view.get(Family::System, &Bucket::Lease.engine_key(&id.to_be_bytes()))?;
    row.map(|row| decode(&id.to_be_bytes(), row)).transpose()
}

/// All stored leases, in the order of their rows.
pub fn stored_leases(view: &dyn View) -> Result<Vec<leasepb::Lease>, Fatal> {
    let mut leases = Vec::new();
    let mut rows = view.cursor(Family::System, Bucket::Lease.scan())?;
    rows.seek_to_first();
    while rows.valid() {
        leases.push(decode(rows.key(), Bytes::copy_from_slice(rows.value()))?);
        rows.next();
    }
    rows.status()?;
    Ok(leases)
}

/// The keys that are attached to a lease, in their order.
pub fn attached_keys(view: &dyn View, id: i64) -> Result<Vec<Bytes>, Fatal> {
    let mut keys = Vec::new();
    each_attached_key(view, id, |key| {
        keys.push(Bytes::copy_from_slice(key));
        Ok::<_, Fatal>(())
    })?;
    Ok(keys)
}

/// Shows the keys attached to a lease, in the order of their bytes, until an error.
pub(crate) fn each_attached_key<E: From<Fatal>>(
    view: &dyn View,
    id: i64,
    mut see: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let scan = Scan::prefix(lease_key(id, b""));
    let mut rows = view.cursor(Family::LeaseKey, scan).map_err(Fatal::from)?;
    rows.seek_to_first();
    while rows.valid() {
        let (_, key) = decode_lease_key(rows.key())
            .ok_or_else(|| Fatal::damaged("lease key row", rows.key(), "no lease id in it"))?;
        see(key)?;
        rows.next();
    }
    Ok(rows.status().map_err(Fatal::from)?)
}

fn decode(key: &[u8], row: Bytes) -> Result<leasepb::Lease, Fatal> {
    leasepb::Lease::decode(row)
        .map_err(|error| Fatal::damaged("bucket lease", key, error.to_string()))
}

fn save(overlay: &mut Overlay<'_>, lease: &leasepb::Lease) {
    let key = Bucket::Lease.engine_key(&lease.id.to_be_bytes());
    overlay.put(Family::System, key, lease.encode_to_vec().into());
}

pub(crate) fn grant(
    overlay: &mut Overlay<'_>,
    request: &LeaseGrantRequest,
    min_ttl: i64,
    revision: i64,
) -> Result<(LeaseGrantResponse, LeaseChange), Error> {
    // A member chooses an id before the log; one that did not is told what etcd says.
    if request.id == 0 {
        return Err(Error::LeaseNotFound);
    }
    if request.ttl > MAX_LEASE_TTL {
        return Err(Error::LeaseTtlTooLarge);
    }
    if stored_lease(overlay, request.id)?.is_some() {
        return Err(Error::LeaseExists);
    }
    let ttl = request.ttl.max(min_ttl);
    save(overlay, &leasepb::Lease { id: request.id, ttl, remaining_ttl: 0 });
    let response =
        LeaseGrantResponse { header: header(revision), id: request.id, ttl, ..Default::default() };
    Ok((response, LeaseChange::Granted { id: request.id, ttl }))
}

/// Removes the lease and deletes its keys in one revision, in the order of their bytes.
pub(crate) fn revoke(
    writer: &mut Writer<'_, '_>,
    request: &LeaseRevokeRequest,
) -> Result<LeaseChange, Error> {
    let id = request.id;
    if stored_lease(writer.overlay, id)?.is_none() {
        return Err(Error::LeaseNotFound);
    }
    for key in attached_keys(writer.overlay, id)? {
        writer.delete_key(key)?;
    }
    writer.overlay.delete(Family::System, Bucket::Lease.engine_key(&id.to_be_bytes()));
    Ok(LeaseChange::Revoked { id })
}

/// Notes the remaining TTLs; unknown leases are passed over. Rows change only with `persist`.
pub(crate) fn checkpoint(
    overlay: &mut Overlay<'_>,
    request: &LeaseCheckpointRequest,
    persist: bool,
) -> Result<Vec<LeaseChange>, Fatal> {
    let mut changes = Vec::new();
    for checkpoint in &request.checkpoints {
        let (id, remaining) = (checkpoint.id, checkpoint.remaining_ttl);
        let Some(mut lease) = stored_lease(overlay, id)? else { continue };
        if persist {
            lease.remaining_ttl = remaining;
            save(overlay, &lease);
        }
        changes.push(LeaseChange::Checkpoint { id, remaining });
    }
    Ok(changes)
}
