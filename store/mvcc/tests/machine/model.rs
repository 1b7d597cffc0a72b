//! A store as simple as it can be: the list of all changes, and everything recomputed from it.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_mvcc::{Error, Response};
use mainstay_proto::etcdserverpb::compare::TargetUnion;
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::response_op::Response as Op;
use mainstay_proto::etcdserverpb::{self as pb, InternalRaftRequest};
use mainstay_proto::mvccpb::KeyValue;
use prost::Message;

pub(crate) type Pairs = BTreeMap<Vec<u8>, KeyValue>;

#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) main: i64,
    pub(crate) sub: i64,
    pub(crate) key: Vec<u8>,
    /// `None`: a deletion.
    pub(crate) pair: Option<KeyValue>,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) records: Vec<Record>,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    pub(crate) leases: BTreeSet<i64>,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { records: vec![], revision: 1, compacted: -1, leases: BTreeSet::new() }
    }

    /// What is there at a revision.
    pub(crate) fn pairs(&self, revision: i64) -> Pairs {
        let mut pairs = Pairs::new();
        for record in self.records.iter().filter(|record| record.main <= revision) {
            match &record.pair {
                Some(pair) => pairs.insert(record.key.clone(), pair.clone()),
                None => pairs.remove(&record.key),
            };
        }
        pairs
    }

    /// Records that a compaction to `revision` keeps.
    pub(crate) fn kept(&self, revision: i64) -> Vec<Record> {
        let newest = newest(self.records.iter().filter(|record| record.main <= revision));
        let keep = |record: &&Record| {
            record.main > revision
                || (newest.get(&record.key) == Some(&(record.main, record.sub))
                    && (record.pair.is_some() || record.main == revision))
        };
        self.records.iter().filter(keep).cloned().collect()
    }

    /// The hash as the reference describes it, over what is physically left after the compactions.
    pub(crate) fn hash(&self, from: i64, to: i64, compaction: bool) -> u32 {
        let rows = self.kept(from);
        let newest = newest(rows.iter().filter(|record| record.main <= to));
        let kept: BTreeSet<_> = rows
            .iter()
            .filter(|record| newest.get(&record.key) == Some(&(record.main, record.sub)))
            .filter(|record| record.pair.is_some() || (compaction && record.main == to))
            .map(|record| (record.main, record.sub))
            .collect();
        let mut hash = crc32c::crc32c(b"key");
        for record in rows.iter().filter(|record| record.main <= to) {
            let dropped = record.main <= from
                && !kept.is_empty()
                && !kept.contains(&(record.main, record.sub));
            if dropped || (record.main == from && record.pair.is_none()) {
                continue;
            }
            let (key, value) = record.row();
            hash = crc32c::crc32c_append(crc32c::crc32c_append(hash, &key), &value);
        }
        hash
    }

    pub(crate) fn range(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Error> {
        let revision = match request.revision {
            asked if asked > self.revision => return Err(Error::FutureRevision),
            asked if asked <= 0 => self.revision,
            asked => asked,
        };
        if revision < self.compacted {
            return Err(Error::Compacted);
        }
        let span = (&request.key[..], &request.range_end[..]);
        let mut kvs: Vec<_> =
            self.pairs(revision).into_values().filter(|kv| within(span, &kv.key)).collect();
        let mut response = pb::RangeResponse {
            header: header(self.revision),
            count: kvs.len() as i64,
            ..Default::default()
        };
        if request.count_only {
            return Ok(response);
        }
        let bounds = |revision: i64, min: i64, max: i64| {
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        let (order, target) = (request.sort_order, request.sort_target);
        let filtered = request.min_mod_revision != 0
            || request.max_mod_revision != 0
            || request.min_create_revision != 0
            || request.max_create_revision != 0;
        let natural = order == 0 || (order == 1 && target == 0);
        let limit = usize::try_from(request.limit).unwrap_or(0);
        if limit > 0 && natural && !filtered {
            kvs.truncate(limit + 1);
        }
        kvs.retain(|kv| {
            bounds(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
                && bounds(
                    kv.create_revision,
                    request.min_create_revision,
                    request.max_create_revision,
                )
        });
        match target {
            1 => kvs.sort_by_key(|kv| kv.version),
            2 => kvs.sort_by_key(|kv| kv.create_revision),
            3 => kvs.sort_by_key(|kv| kv.mod_revision),
            4 => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
            _ => {}
        }
        if order == 2 {
            // Not `reverse` of the whole: equal elements keep their order.
            match target {
                1 => kvs.sort_by_key(|kv| (-kv.version, kv.key.clone())),
                2 => kvs.sort_by_key(|kv| (-kv.create_revision, kv.key.clone())),
                3 => kvs.sort_by_key(|kv| (-kv.mod_revision, kv.key.clone())),
                4 => {
                    kvs.sort_by(|a, b| b.value.cmp(&a.value).then_with(|| a.key.cmp(&b.key)));
                }
                _ => kvs.reverse(),
            }
        }
        if limit > 0 && kvs.len() > limit {
            kvs.truncate(limit);
            response.more = true;
        }
        if request.keys_only {
            for kv in &mut kvs {
                kv.value.clear();
                if target != 4 {
                    kv.lease = 0;
                }
            }
        }
        response.kvs = kvs;
        Ok(response)
    }

    pub(crate) fn apply(&mut self, request: &InternalRaftRequest) -> Result<Response, Error> {
        if let Some(put) = &request.put {
            self.check_put(put)?;
            let mut next = self.clone();
            let response = next.put(put);
            *self = next.close(self.revision);
            return Ok(Response::Put(response));
        }
        if let Some(delete) = &request.delete_range {
            let mut next = self.clone();
            let response = next.delete(delete);
            *self = next.close(self.revision);
            return Ok(Response::DeleteRange(response));
        }
        if let Some(txn) = &request.txn {
            let mut plan = Vec::new();
            self.choose(txn, &mut plan);
            self.check(txn, &mut plan.iter())?;
            let mut next = self.clone();
            let mut response = next.execute(txn, &mut plan.iter());
            *self = next.close(self.revision);
            response.header = header(self.revision);
            return Ok(Response::Txn(response));
        }
        if let Some(compaction) = &request.compaction {
            if compaction.revision <= self.compacted {
                return Err(Error::Compacted);
            }
            if compaction.revision > self.revision {
                return Err(Error::FutureRevision);
            }
            self.compacted = compaction.revision;
            let header = header(self.revision);
            return Ok(Response::Compaction(pb::CompactionResponse { header }));
        }
        if let Some(grant) = &request.lease_grant {
            if !self.leases.insert(grant.id) {
                return Err(Error::LeaseExists);
            }
            return Ok(Response::LeaseGrant(pb::LeaseGrantResponse {
                header: header(self.revision),
                id: grant.id,
                ttl: grant.ttl.max(2),
                ..Default::default()
            }));
        }
        let revoke = request.lease_revoke.as_ref().unwrap();
        if !self.leases.remove(&revoke.id) {
            return Err(Error::LeaseNotFound);
        }
        let mut next = self.clone();
        for (key, kv) in self.pairs(self.revision) {
            if kv.lease == revoke.id {
                next.delete(&pb::DeleteRangeRequest { key: key.into(), ..Default::default() });
            }
        }
        *self = next.close(self.revision);
        let header = header(self.revision);
        Ok(Response::LeaseRevoke(pb::LeaseRevokeResponse { header }))
    }

    /// During a request `revision` is that of its beginning; changes are recorded behind it.
    fn record(&mut self, key: &[u8], pair: Option<KeyValue>) {
        let main = self.revision + 1;
        let sub = self.records.iter().filter(|record| record.main == main).count() as i64;
        self.records.push(Record { main, sub, key: key.to_vec(), pair });
    }

    fn changed(&self) -> bool {
        self.records.last().is_some_and(|record| record.main > self.revision)
    }

    fn now(&self) -> i64 {
        self.revision + i64::from(self.changed())
    }

    fn close(mut self, begin: i64) -> Self {
        self.revision = begin + i64::from(self.changed());
        self
    }

    fn check_put(&self, put: &pb::PutRequest) -> Result<(), Error> {
        if put.lease != 0 && !self.leases.contains(&put.lease) {
            return Err(Error::LeaseNotFound);
        }
        let missing = !self.pairs(self.revision).contains_key(&put.key[..]);
        if (put.ignore_value || put.ignore_lease) && missing {
            return Err(Error::KeyNotFound);
        }
        Ok(())
    }

    fn put(&mut self, put: &pb::PutRequest) -> pb::PutResponse {
        let before = self.pairs(self.revision + 1).remove(&put.key[..]);
        let old = before.clone().unwrap_or_default();
        let main = self.revision + 1;
        let pair = KeyValue {
            key: put.key.clone(),
            create_revision: if before.is_some() { old.create_revision } else { main },
            mod_revision: main,
            version: old.version + 1,
            value: if put.ignore_value { old.value } else { put.value.clone() },
            lease: if put.ignore_lease { old.lease } else { put.lease },
        };
        self.record(&put.key, Some(pair));
        pb::PutResponse { header: header(main), prev_kv: before.filter(|_| put.prev_kv) }
    }

    fn delete(&mut self, delete: &pb::DeleteRangeRequest) -> pb::DeleteRangeResponse {
        let span = (&delete.key[..], &delete.range_end[..]);
        let gone: Vec<_> = self
            .pairs(self.revision + 1)
            .into_values()
            .filter(|kv| within(span, &kv.key))
            .collect();
        for kv in &gone {
            self.record(&kv.key, None);
        }
        pb::DeleteRangeResponse {
            header: header(self.now()),
            deleted: gone.len() as i64,
            prev_kvs: if delete.prev_kv { gone } else { vec![] },
        }
    }

    fn choose(&self, txn: &pb::TxnRequest, plan: &mut Vec<bool>) {
        let holds = txn.compare.iter().all(|compare| self.holds(compare));
        plan.push(holds);
        for op in if holds { &txn.success } else { &txn.failure } {
            if let Some(Request::RequestTxn(nested)) = &op.request {
                self.choose(nested, plan);
            }
        }
    }

    fn check(
        &self,
        txn: &pb::TxnRequest,
        plan: &mut std::slice::Iter<'_, bool>,
    ) -> Result<(), Error> {
        for op in if *plan.next().unwrap() { &txn.success } else { &txn.failure } {
            match op.request.as_ref().unwrap() {
                Request::RequestRange(range) if range.revision > self.revision => {
                    return Err(Error::FutureRevision);
                }
                Request::RequestRange(range)
                    if range.revision != 0 && range.revision < self.compacted =>
                {
                    return Err(Error::Compacted);
                }
                Request::RequestPut(put) => self.check_put(put)?,
                Request::RequestTxn(nested) => self.check(nested, plan)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn execute(
        &mut self,
        txn: &pb::TxnRequest,
        plan: &mut std::slice::Iter<'_, bool>,
    ) -> pb::TxnResponse {
        let succeeded = *plan.next().unwrap();
        let mut responses = Vec::new();
        for op in if succeeded { &txn.success } else { &txn.failure } {
            let response = match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => {
                    let seen = Model { revision: self.now(), ..self.clone() };
                    Op::ResponseRange(seen.range(range).unwrap())
                }
                Request::RequestPut(put) => Op::ResponsePut(self.put(put)),
                Request::RequestDeleteRange(delete) => Op::ResponseDeleteRange(self.delete(delete)),
                Request::RequestTxn(nested) => Op::ResponseTxn(self.execute(nested, plan)),
            };
            responses.push(pb::ResponseOp { response: Some(response) });
        }
        pb::TxnResponse { header: header(0), succeeded, responses }
    }

    fn holds(&self, compare: &pb::Compare) -> bool {
        let span = (&compare.key[..], &compare.range_end[..]);
        let mut kvs: Vec<_> =
            self.pairs(self.revision).into_values().filter(|kv| within(span, &kv.key)).collect();
        if kvs.is_empty() {
            if compare.target == 3 {
                return false;
            }
            kvs.push(KeyValue::default());
        }
        kvs.iter().all(|kv| {
            let order = match compare.target_union.as_ref().unwrap() {
                TargetUnion::Version(operand) => kv.version.cmp(operand),
                TargetUnion::CreateRevision(operand) => kv.create_revision.cmp(operand),
                TargetUnion::ModRevision(operand) => kv.mod_revision.cmp(operand),
                TargetUnion::Value(operand) => kv.value.cmp(operand),
                TargetUnion::Lease(operand) => kv.lease.cmp(operand),
            };
            match compare.result {
                0 => order.is_eq(),
                1 => order.is_gt(),
                2 => order.is_lt(),
                _ => order.is_ne(),
            }
        })
    }
}

impl Record {
    /// The row as etcd stores it.
    pub(crate) fn row(&self) -> (Vec<u8>, Vec<u8>) {
        let mut key = self.main.to_be_bytes().to_vec();
        key.push(b'_');
        key.extend(self.sub.to_be_bytes());
        match &self.pair {
            Some(pair) => (key, pair.encode_to_vec()),
            None => {
                key.push(b't');
                let pair = KeyValue { key: self.key.clone().into(), ..Default::default() };
                (key, pair.encode_to_vec())
            }
        }
    }
}

fn newest<'r>(records: impl Iterator<Item = &'r Record>) -> BTreeMap<Vec<u8>, (i64, i64)> {
    records.map(|record| (record.key.clone(), (record.main, record.sub))).collect()
}

pub(crate) fn within((key, end): (&[u8], &[u8]), candidate: &[u8]) -> bool {
    match end {
        [] => candidate == key,
        [0] => candidate >= key,
        _ => candidate >= key && candidate < end,
    }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision, ..Default::default() })
}
