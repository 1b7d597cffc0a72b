//! One entry after the other: what it asks for, whether an alarm forbids it, and its effect.
//!
//! The order of the checks is etcd's: for what only an administrator may do, that; then corrupt
//! alarm, space alarm, permissions, and the request itself.

use bytes::Bytes;
use mainstay_engine::{Family, View};
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::{self as pb, AlarmType, InternalRaftRequest, TxnRequest};
use mainstay_proto::membershippb as mpb;
use mainstay_proto::raftpb::{ConfChange, ConfChangeV2, Entry, EntryType};
use prost::Message;

use crate::auth::{Access, Identity, needs_admin};
use crate::buckets::{Bucket, LIVE_KEYS, names};
use crate::keys::revision_bytes;
use crate::membership::change::{Refusal, carry_out, from_v2, validate};
use crate::membership::{MemberChange, bucket_key, conf_state, json};
use crate::overlay::Overlay;
use crate::range::{header, range};
use crate::state_machine::{AcceptedCompaction, Limits, change, check_cluster_version};
use crate::txn::write_txn;
use crate::version::{DowngradeInfo, V3_6, Version};
use crate::writer::Writer;
use crate::{
    Applied, ConfChangeOutcome, Error, Event, EventKind, Fatal, LogPosition, Op, Outcome, Response,
    Revision, StateView, lease_rows,
};

/// What one entry comes to.
struct Answer {
    op: Option<Op>,
    request_id: u64,
    result: Result<Response, Error>,
    compaction: Option<i64>,
}

impl Answer {
    fn new(request_id: u64, result: Result<Response, Error>) -> Self {
        Self { op: None, request_id, result, compaction: None }
    }
}

/// Applies entries over a view.
pub(crate) struct Applier<'v> {
    limits: Limits,
    pub(crate) overlay: Overlay<'v>,
    pub(crate) state: StateView,
    pub(crate) applied: Applied,
    conf_state_changed: bool,
    /// Whether the store had no entry before this run.
    fresh: bool,
    /// Whether a key was created or deleted.
    keys_changed: bool,
}

impl<'v> Applier<'v> {
    pub(crate) fn new(engine: &'v dyn View, limits: Limits, state: StateView) -> Self {
        Self {
            limits,
            overlay: Overlay::new(engine),
            fresh: state.applied.index == 0,
            state,
            applied: Applied::default(),
            conf_state_changed: false,
            keys_changed: false,
        }
    }

    /// Ends the run: writes down how far it got, in the same batch.
    pub(crate) fn finish(mut self) -> (Applied, StateView) {
        if !self.applied.outcomes.is_empty() {
            let LogPosition { index, term } = self.state.applied;
            if self.fresh {
                // A real member writes the first revision of its rules when it is created.
                let revision = self.state.auth.revision();
                self.put(Bucket::Auth, names::AUTH_REVISION, revision.to_be_bytes().to_vec());
            }
            self.put(Bucket::Meta, names::CONSISTENT_INDEX, index.to_be_bytes().to_vec());
            if term > 0 {
                self.put(Bucket::Meta, names::TERM, term.to_be_bytes().to_vec());
            }
            if self.conf_state_changed {
                let row = json::conf_state(&self.state.conf_state);
                self.put(Bucket::Meta, names::CONF_STATE, row);
            }
            if self.keys_changed {
                let count = self.state.live_keys.to_be_bytes().to_vec();
                self.overlay.put(Family::System, LIVE_KEYS.into(), count.into());
            }
        }
        self.applied.batch = self.overlay.into_batch();
        (self.applied, self.state)
    }

    pub(crate) fn put(&mut self, bucket: Bucket, key: &[u8], row: impl Into<Bytes>) {
        self.overlay.put(Family::System, bucket.engine_key(key), row.into());
    }

    /// Applies one entry, unless it was applied before.
    pub(crate) fn entry(
        &mut self,
        entry: &Entry,
        waited: &dyn Fn(u64) -> bool,
    ) -> Result<Option<&Outcome>, Fatal> {
        let position = LogPosition {
            index: entry.index.unwrap_or_default(),
            term: entry.term.unwrap_or_default(),
        };
        let expected = self.state.applied.index + 1;
        if position.index < expected {
            return Ok(None);
        }
        if position.index > expected {
            return Err(Fatal::Entry {
                index: position.index,
                found: format!("the entry before it that was applied is {}", expected - 1),
                remedy: "entries are missing between the engine and the log: remove this member's \
                         engine directory so that it is rebuilt from another member's snapshot",
            });
        }
        let data = entry.data.clone().unwrap_or_default();
        let answer = match EntryType::try_from(entry.r#type.unwrap_or_default()) {
            Ok(EntryType::EntryNormal) if data.is_empty() => Answer::new(0, Ok(Response::Empty)),
            Ok(EntryType::EntryNormal) => self.normal(position, data, waited)?,
            Ok(EntryType::EntryConfChange) => {
                let change = ConfChange::decode(data)
                    .map_err(|error| unreadable(position, &format!("conf change: {error}")))?;
                self.conf_change(position, change)?
            }
            Ok(EntryType::EntryConfChangeV2) => {
                let change = ConfChangeV2::decode(data)
                    .map_err(|error| unreadable(position, &format!("conf change: {error}")))?;
                let change = from_v2(change)
                    .ok_or_else(|| unreadable(position, "conf change of several steps"))?;
                self.conf_change(position, change)?
            }
            Err(_) => {
                let kind = entry.r#type.unwrap_or_default();
                return Err(unreadable(position, &format!("entry type {kind}")));
            }
        };
        self.state.applied = position;
        let LogPosition { index, term } = position;
        let Answer { op, request_id, result, compaction } = answer;
        self.applied.outcomes.push(Outcome { index, term, op, request_id, result, compaction });
        Ok(self.applied.outcomes.last())
    }

    fn normal(
        &mut self,
        position: LogPosition,
        data: Bytes,
        waited: &dyn Fn(u64) -> bool,
    ) -> Result<Answer, Fatal> {
        let mut request = InternalRaftRequest::decode(data).map_err(|error| {
            unreadable(position, &format!("a request that does not decode ({error})"))
        })?;
        let id = match (&request.header, request.id) {
            (Some(header), 0) => header.id,
            (None, 0) => return Err(unreadable(position, "a request without a header")),
            (_, id) => id,
        };
        let waited = waited(id);
        let op = Some(Op::of(&request));
        let events = self.applied.events.len();
        let who = request.header.take().map_or_else(Identity::default, |header| Identity {
            user: header.username,
            revision: header.auth_revision,
        });
        match self.request(position, &who, &request, waited) {
            Ok(response) => {
                self.applied.tally.add(&request, &response, &self.applied.events[events..]);
                let compaction = match &response {
                    Response::Compaction(_) => Some(self.state.compacted),
                    _ => None,
                };
                Ok(Answer { op, request_id: id, result: Ok(response), compaction })
            }
            Err(Error::Broken(fatal)) => Err(fatal),
            Err(error) => Ok(Answer { op, ..Answer::new(id, Err(error)) }),
        }
    }

    /// The first content that is set counts, in etcd's order.
    fn request(
        &mut self,
        position: LogPosition,
        who: &Identity,
        request: &InternalRaftRequest,
        waited: bool,
    ) -> Result<Response, Error> {
        if needs_admin(request) {
            self.state.auth.check_admin(who)?;
        }
        if let Some(set) = &request.cluster_version_set {
            return Ok(self.cluster_version(position, set)?);
        }
        if let Some(set) = &request.cluster_member_attr_set {
            return Ok(self.member_attributes(position, set)?);
        }
        if let Some(set) = &request.downgrade_info_set {
            return Ok(self.downgrade(set.clone()));
        }
        if request.downgrade_version_test.is_some() {
            return Ok(Response::Empty);
        }
        if let Some(request) = &request.range {
            self.refuse_if_corrupt()?;
            // Reading changes nothing, so it is left out where nobody waits.
            if !waited {
                return Ok(Response::Empty);
            }
            self.state.auth.check(who, Access::Read, &request.key, &request.range_end)?;
            let at = self.state.read_at();
            return Ok(Response::Range(range(&self.overlay, at, request)?));
        }
        if let Some(request) = &request.put {
            self.refuse_if_corrupt()?;
            self.refuse_if_full()?;
            self.state.auth.check_put(who, &self.overlay, request)?;
            return self.write(|writer| {
                writer.check_put(request)?;
                Ok(Response::Put(writer.put_request(request)?))
            });
        }
        if let Some(request) = &request.delete_range {
            self.refuse_if_corrupt()?;
            self.state.auth.check_delete_range(who, request)?;
            return self.write(|writer| Ok(Response::DeleteRange(writer.delete_request(request)?)));
        }
        if let Some(request) = &request.txn {
            self.refuse_if_corrupt()?;
            if has_puts(request) {
                self.refuse_if_full()?;
            }
            self.state.auth.check_txn(who, &self.overlay, request)?;
            return self.write(|writer| Ok(Response::Txn(write_txn(writer, request, !waited)?)));
        }
        if let Some(request) = &request.compaction {
            self.refuse_if_corrupt()?;
            return self.compaction(request);
        }
        if let Some(request) = &request.lease_grant {
            self.refuse_if_corrupt()?;
            self.refuse_if_full()?;
            let (min_ttl, revision) = (self.limits.min_lease_ttl, self.state.revision);
            let (response, change) =
                lease_rows::grant(&mut self.overlay, request, min_ttl, revision)?;
            self.applied.lease_changes.push(change);
            return Ok(Response::LeaseGrant(response));
        }
        if let Some(request) = &request.lease_revoke {
            self.refuse_if_corrupt()?;
            self.state.auth.check_lease_write(who, &self.overlay, request.id)?;
            let change = self.write(|writer| lease_rows::revoke(writer, request))?;
            self.applied.lease_changes.push(change);
            let header = header(self.state.revision);
            return Ok(Response::LeaseRevoke(pb::LeaseRevokeResponse { header }));
        }
        if let Some(request) = &request.lease_checkpoint {
            let persist = self.limits.persist_lease_checkpoints
                || self.state.cluster_version.is_some_and(|version| version >= V3_6);
            let changes = lease_rows::checkpoint(&mut self.overlay, request, persist)?;
            self.applied.lease_changes.extend(changes);
            let header = header(self.state.revision);
            return Ok(Response::LeaseCheckpoint(pb::LeaseCheckpointResponse { header }));
        }
        if let Some(request) = &request.alarm {
            let mut alarms = (*self.state.alarms).clone();
            let (response, changed) = alarms.apply(&mut self.overlay, request);
            if changed {
                self.state.alarms = alarms.into();
            }
            return Ok(Response::Alarm(response));
        }
        self.auth(position, who, request, waited)?
            .ok_or_else(|| unreadable(position, "a request of an unknown kind").into())
    }

    /// Executes one write request: its changes, its events and its revision.
    fn write<T>(
        &mut self,
        execute: impl FnOnce(&mut Writer<'_, 'v>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut writer = Writer::new(&mut self.overlay, self.state.read_at());
        let response = execute(&mut writer)?;
        if let Some(events) = writer.finish() {
            self.state.revision = events.revision;
            for event in events.events.iter() {
                self.count(event);
            }
            self.applied.events.push(events);
        }
        Ok(response)
    }

    /// Keeps the number of live keys.
    fn count(&mut self, event: &Event) {
        let keys = &mut self.state.live_keys;
        match event.kind {
            EventKind::Put if event.kv.version == 1 => *keys += 1,
            EventKind::Put => return,
            // Only live keys are deleted, and each was counted.
            EventKind::Delete => *keys = keys.saturating_sub(1),
        }
        self.keys_changed = true;
    }

    fn refuse_if_corrupt(&self) -> Result<(), Error> {
        let raised = self.state.alarms.is_raised(AlarmType::Corrupt);
        if raised { Err(Error::CorruptCluster) } else { Ok(()) }
    }

    fn refuse_if_full(&self) -> Result<(), Error> {
        let raised = self.state.alarms.is_raised(AlarmType::Nospace);
        if raised { Err(Error::NoSpace) } else { Ok(()) }
    }

    fn compaction(&mut self, request: &pb::CompactionRequest) -> Result<Response, Error> {
        let revision = request.revision;
        let previous = self.state.compacted;
        if revision <= previous {
            return Err(Error::Compacted);
        }
        if revision > self.state.revision {
            return Err(Error::FutureRevision);
        }
        let mark = revision_bytes(Revision::first(revision)).to_vec();
        self.put(Bucket::Meta, names::SCHEDULED_COMPACT, mark);
        self.state.compacted = revision;
        let previous_finished = self.state.compact_finished == previous;
        self.applied.compactions.push(AcceptedCompaction { previous, revision, previous_finished });
        let header = header(self.state.revision);
        Ok(Response::Compaction(pb::CompactionResponse { header }))
    }

    fn cluster_version(
        &mut self,
        position: LogPosition,
        set: &mpb::ClusterVersionSetRequest,
    ) -> Result<Response, Fatal> {
        let version: Version =
            set.ver.parse().map_err(|error| unreadable(position, &format!("{error}")))?;
        check_cluster_version(version, self.limits.server_version)?;
        let lowered = self.state.cluster_version.is_some_and(|before| version < before);
        self.state.cluster_version = Some(version);
        self.put(Bucket::Cluster, names::CLUSTER_VERSION, version.to_string());
        // A real member brings its layout to the cluster's version a little later, by itself. The
        // row is told apart from the data in every comparison.
        if version >= V3_6 {
            self.put(Bucket::Meta, names::STORAGE_VERSION, version.cluster().to_string());
        } else {
            let row = Bucket::Meta.engine_key(names::STORAGE_VERSION);
            self.overlay.delete(Family::System, row);
        }
        Ok(Response::ClusterVersion { version, lowered })
    }

    fn member_attributes(
        &mut self,
        position: LogPosition,
        set: &mpb::ClusterMemberAttrSetRequest,
    ) -> Result<Response, Fatal> {
        let id = set.member_id;
        let attributes = set.member_attributes.clone().unwrap_or_default();
        if self.state.members.get(id).is_none() {
            if self.state.members.is_removed(id) {
                return Ok(Response::MemberAttributes { id, known: false });
            }
            return Err(unreadable(position, &format!("attributes of the unknown member {id:x}")));
        }
        let row = change(&mut self.state.members, |members| {
            let member = members.get_mut(id).expect("the member was found above");
            member.name = attributes.name;
            member.client_urls = attributes.client_urls;
            json::member(member)
        });
        self.put(Bucket::Members, bucket_key(id).as_bytes(), row);
        Ok(Response::MemberAttributes { id, known: true })
    }

    fn downgrade(&mut self, set: mpb::DowngradeInfoSetRequest) -> Response {
        let target_version = if set.enabled { set.ver } else { String::new() };
        let info = DowngradeInfo { target_version, enabled: set.enabled };
        self.put(Bucket::Cluster, names::DOWNGRADE, json::to_go_json(&info));
        self.state.downgrade = info.clone().into();
        Response::Downgrade(info)
    }

    fn conf_change(&mut self, position: LogPosition, change_: ConfChange) -> Result<Answer, Fatal> {
        let id = change_.id.unwrap_or_default();
        let allowed = match validate(&self.state.members, &change_, self.limits.max_learners) {
            Ok(allowed) => allowed,
            Err(Refusal::Malformed(found)) => return Err(unreadable(position, &found)),
            Err(Refusal::NotAllowed(error)) => {
                self.applied.conf_changes.push(ConfChangeOutcome {
                    index: position.index,
                    change: None,
                    conf_state: (*self.state.conf_state).clone(),
                    member: None,
                });
                return Ok(Answer::new(id, Err(error)));
            }
        };
        let next = conf_state::next(&self.state.conf_state, allowed.kind, allowed.id);
        if next.voters.is_empty() {
            return Err(unreadable(position, "a conf change that leaves no voter"));
        }
        let member = change(&mut self.state.members, |members| carry_out(members, allowed));
        match &member {
            MemberChange::Added(member)
            | MemberChange::Promoted(member)
            | MemberChange::Updated(member) => {
                let row = json::member(member);
                self.put(Bucket::Members, bucket_key(member.id).as_bytes(), row);
            }
            MemberChange::Removed { id, .. } => {
                let key = bucket_key(*id);
                let row = Bucket::Members.engine_key(key.as_bytes());
                self.overlay.delete(Family::System, row);
                self.put(Bucket::MembersRemoved, key.as_bytes(), &b"removed"[..]);
            }
        }
        self.state.conf_state = next.clone().into();
        self.conf_state_changed = true;
        self.applied.conf_changes.push(ConfChangeOutcome {
            index: position.index,
            change: Some(change_),
            conf_state: next,
            member: Some(member),
        });
        Ok(Answer::new(id, Ok(Response::Members(self.state.members.to_proto()))))
    }
}

/// Whether a transaction has a put in any branch, nested ones included.
fn has_puts(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(nested)) => has_puts(nested),
        _ => false,
    })
}

fn unreadable(position: LogPosition, found: &str) -> Fatal {
    Fatal::Entry {
        index: position.index,
        found: found.to_owned(),
        remedy: "it was written by another version of the server: update this member, or replace \
                 it by one of that version",
    }
}
