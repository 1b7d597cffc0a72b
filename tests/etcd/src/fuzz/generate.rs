//! Random requests over a small key space, so that they collide.
//!
//! Real etcd 3.7.3 loses a key and dies on a transaction that deletes from a key onward and puts
//! inside that range, followed by a compaction. Transactions here therefore never delete to the
//! open end.

use bytes::Bytes;
use mainstay_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, HashKvRequest, LeaseGrantRequest,
    LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCancelRequest, WatchCreateRequest,
    compare, request_op,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One step of a run.
#[derive(Clone, Debug)]
pub enum Step {
    /// KV.Range.
    Range(RangeRequest),
    /// KV.RangeStream, compared as the merged answer.
    RangeStream(RangeRequest),
    /// KV.Put.
    Put(PutRequest),
    /// KV.DeleteRange.
    DeleteRange(DeleteRangeRequest),
    /// KV.Txn.
    Txn(TxnRequest),
    /// KV.Compact.
    Compact(CompactionRequest),
    /// Lease.LeaseGrant.
    Grant(LeaseGrantRequest),
    /// Lease.LeaseRevoke.
    Revoke(LeaseRevokeRequest),
    /// One message on a Lease.LeaseKeepAlive stream.
    KeepAlive(LeaseKeepAliveRequest),
    /// Lease.LeaseTimeToLive.
    TimeToLive(LeaseTimeToLiveRequest),
    /// Lease.LeaseLeases.
    Leases(LeaseLeasesRequest),
    /// Maintenance.HashKV.
    HashKv(HashKvRequest),
    /// A watcher on the stream of this run.
    Watch(WatchCreateRequest),
    /// The end of a watcher.
    CancelWatch(WatchCancelRequest),
}

/// Makes the steps of one seed.
#[derive(Debug)]
pub struct Generator {
    rng: ChaCha8Rng,
    /// The newest revision that was seen; what requests for old and future revisions aim around.
    pub revision: i64,
    /// The newest successful compaction.
    pub compacted: i64,
    watchers: i64,
}

const KEYS: [&str; 11] =
    ["a", "a/", "a/1", "a/2", "a0", "b", "b/1", "c", "c\x00", "\x01", "\u{7f}z"];
const LEASES: [i64; 6] = [1, 2, 3, 7, -5, 1 << 40];
const LONG_TTL: i64 = 100_000;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Generator {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Generator { rng: ChaCha8Rng::seed_from_u64(seed), revision: 1, compacted: 0, watchers: 0 }
    }

    /// Watchers of a stream that ended do not count any more.
    pub fn forget_watchers(&mut self) {
        self.watchers = 0;
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    fn key(&mut self) -> Bytes {
        if self.rng.random_ratio(1, 150) {
            return Bytes::new();
        }
        bytes(KEYS.choose(&mut self.rng).expect("the list is not empty"))
    }

    fn range_end(&mut self, key: &[u8], open_end: bool) -> Bytes {
        match self.rng.random_range(0..12) {
            0..5 => Bytes::new(),
            5..7 => match key.split_last() {
                // The prefix of the key.
                Some((last, start)) if *last < 0xff => {
                    let mut end = start.to_vec();
                    end.push(last + 1);
                    end.into()
                }
                _ => Bytes::new(),
            },
            7..10 => self.key(),
            _ if open_end => Bytes::from_static(b"\0"),
            _ => bytes("~~"),
        }
    }

    fn value(&mut self) -> Bytes {
        match self.rng.random_range(0..10) {
            0 => Bytes::new(),
            1 => vec![b'x'; self.rng.random_range(1..3000)].into(),
            _ => Bytes::from(format!("v{}", self.rng.random_range(0..30))),
        }
    }

    fn lease(&mut self) -> i64 {
        if self.chance(90) {
            *LEASES.choose(&mut self.rng).expect("the list is not empty")
        } else {
            99
        }
    }

    fn some_revision(&mut self) -> i64 {
        let (compacted, revision) = (self.compacted, self.revision);
        match self.rng.random_range(0..20) {
            0 => -3,
            1 => revision + self.rng.random_range(1..4),
            2 => compacted,
            3 => compacted - 1,
            4..9 => revision,
            _ => self.rng.random_range(compacted.min(revision)..=revision),
        }
    }

    fn range(&mut self) -> RangeRequest {
        let key = self.key();
        let range_end = self.range_end(&key, true);
        let mut request = RangeRequest { key, range_end, ..Default::default() };
        if self.chance(30) {
            request.limit = self.rng.random_range(-1..6);
        }
        if self.chance(35) {
            request.revision = self.some_revision();
        }
        if self.chance(35) {
            request.sort_order = self.rng.random_range(0..3);
            request.sort_target = self.rng.random_range(0..5);
        }
        if self.rng.random_ratio(1, 200) {
            request.sort_target = 9;
        }
        request.serializable = self.chance(30);
        request.keys_only = self.chance(15);
        request.count_only = self.chance(15);
        for bound in 0..4 {
            if self.chance(7) {
                let at = self.rng.random_range(0..=self.revision);
                match bound {
                    0 => request.min_mod_revision = at,
                    1 => request.max_mod_revision = at,
                    2 => request.min_create_revision = at,
                    _ => request.max_create_revision = at,
                }
            }
        }
        request
    }

    fn put(&mut self) -> PutRequest {
        let mut request = PutRequest { key: self.key(), value: self.value(), ..Default::default() };
        if self.chance(30) {
            request.lease = self.lease();
        }
        request.prev_kv = self.chance(30);
        if self.chance(8) {
            request.ignore_value = true;
            if self.chance(80) {
                request.value = Bytes::new();
            }
        }
        if self.chance(8) {
            request.ignore_lease = true;
            if self.chance(80) {
                request.lease = 0;
            }
        }
        request
    }

    fn delete(&mut self, open_end: bool) -> DeleteRangeRequest {
        let key = self.key();
        let range_end = self.range_end(&key, open_end);
        DeleteRangeRequest { key, range_end, prev_kv: self.chance(30) }
    }

    fn compare(&mut self) -> Compare {
        let key = self.key();
        let range_end = if self.chance(20) { self.range_end(&key, true) } else { Bytes::new() };
        let revision = self.rng.random_range(0..=self.revision);
        let target = self.rng.random_range(0..5);
        let union = match target {
            0 => compare::TargetUnion::Version(self.rng.random_range(0..4)),
            1 => compare::TargetUnion::CreateRevision(revision),
            2 => compare::TargetUnion::ModRevision(revision),
            3 => compare::TargetUnion::Value(self.value()),
            _ => compare::TargetUnion::Lease(self.lease()),
        };
        Compare {
            result: self.rng.random_range(0..4),
            target,
            key,
            target_union: if self.chance(95) { Some(union) } else { None },
            range_end,
        }
    }

    fn operations(&mut self, depth: u32) -> Vec<RequestOp> {
        (0..self.rng.random_range(0..4))
            .map(|_| {
                let request = match self.rng.random_range(0..20) {
                    0..6 => request_op::Request::RequestRange(self.range()),
                    6..13 => request_op::Request::RequestPut(self.put()),
                    13..17 => request_op::Request::RequestDeleteRange(self.delete(false)),
                    17..19 if depth > 0 => {
                        request_op::Request::RequestTxn(self.transaction(depth - 1))
                    }
                    _ => request_op::Request::RequestRange(self.range()),
                };
                let empty = self.rng.random_ratio(1, 150);
                RequestOp { request: if empty { None } else { Some(request) } }
            })
            .collect()
    }

    fn transaction(&mut self, depth: u32) -> TxnRequest {
        TxnRequest {
            compare: (0..self.rng.random_range(0..3)).map(|_| self.compare()).collect(),
            success: self.operations(depth),
            failure: self.operations(depth),
        }
    }

    fn watch(&mut self) -> WatchCreateRequest {
        let key = self.key();
        let range_end = self.range_end(&key, true);
        let mut request = WatchCreateRequest { key, range_end, ..Default::default() };
        if self.chance(50) {
            request.start_revision = self.some_revision();
        }
        if self.chance(20) {
            request.filters = vec![self.rng.random_range(0..2)];
        }
        request.prev_kv = self.chance(50);
        request.fragment = self.chance(20);
        if self.chance(25) {
            request.watch_id = self.rng.random_range(-3..12);
        }
        self.watchers += 1;
        request
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        match self.rng.random_range(0..1000) {
            0..260 => Step::Put(self.put()),
            260..480 => Step::Range(self.range()),
            480..510 => {
                let mut request = self.range();
                if request.sort_order == 0 {
                    // Real etcd sorts each chunk by the target and goes on behind the last pair of
                    // the sorted chunk, so that pairs are skipped or sent twice.
                    request.sort_target = 0;
                }
                Step::RangeStream(request)
            }
            510..600 => Step::DeleteRange(self.delete(true)),
            600..820 => Step::Txn(self.transaction(2)),
            820..835 => {
                let revision = if self.chance(70) {
                    self.rng.random_range(self.compacted.min(self.revision)..=self.revision)
                } else {
                    self.some_revision()
                };
                // Real etcd accepts revision 0 once, and HashKV(0) then answers that compaction's
                // hash instead of the current one. Nobody asks for it.
                let revision = if revision == 0 { -1 } else { revision };
                // Only a finished deletion makes the hashes comparable.
                Step::Compact(CompactionRequest { revision, physical: true })
            }
            835..870 => {
                let id = self.lease();
                let ttl = if self.chance(95) { LONG_TTL } else { 9_000_000_001 };
                Step::Grant(LeaseGrantRequest { id, ttl })
            }
            870..885 => Step::Revoke(LeaseRevokeRequest { id: self.lease() }),
            885..900 => Step::KeepAlive(LeaseKeepAliveRequest { id: self.lease() }),
            900..920 => {
                Step::TimeToLive(LeaseTimeToLiveRequest { id: self.lease(), keys: self.chance(70) })
            }
            920..925 => Step::Leases(LeaseLeasesRequest {}),
            925..945 => {
                let revision = if self.chance(40) { 0 } else { self.some_revision() };
                Step::HashKv(HashKvRequest { revision })
            }
            945..980 if self.watchers < 40 => Step::Watch(self.watch()),
            980..990 => Step::CancelWatch(WatchCancelRequest {
                watch_id: self.rng.random_range(0..self.watchers.max(1) + 2),
            }),
            _ => Step::Put(self.put()),
        }
    }
}
