//! What must hold over all members, whatever happens.
//!
//! - Election safety: a term has at most one leader.
//! - Agreement: an index is committed with one term and one content, everywhere and for ever.
//! - Leader completeness: a leader has everything that was committed in earlier terms.
//! - Machine safety: machines at the same index are equal.
//! - Order: a member hands out each index once, in order, from where it started.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use mainstay_proto::raftpb::Entry;
use prost::Message as _;

use crate::disk::Found;
use crate::machine::Machine;

struct Committed {
    entry: Vec<u8>,
    term: u64,
    /// The lowest term in which it is known to have been committed.
    by: u64,
}

#[derive(Default)]
pub(crate) struct Truth {
    committed: BTreeMap<u64, Committed>,
    leaders: HashMap<u64, u64>,
    handed_out: HashMap<u64, u64>,
    machines: HashMap<u64, Machine>,
    data: HashSet<Bytes>,
    pub(crate) removed: BTreeSet<u64>,
}

impl Truth {
    pub(crate) fn highest(&self) -> u64 {
        self.committed.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// Whether this was committed.
    pub(crate) fn has(&self, data: &[u8]) -> bool {
        self.data.contains(data)
    }

    pub(crate) fn restarted(&mut self, id: u64, applied: u64) {
        self.handed_out.insert(id, applied);
    }

    pub(crate) fn committed(&mut self, id: u64, by: u64, entry: &Entry, seed: u64) {
        let index = entry.index();
        let last = self.handed_out.insert(id, index).unwrap();
        assert_eq!(index, last + 1, "seed {seed}: member {id} hands out entries in order");
        let bytes = entry.encode_to_vec();
        if let Some(known) = self.committed.get_mut(&index) {
            assert_eq!(known.entry, bytes, "seed {seed}: two entries committed at {index}");
            known.by = known.by.min(by);
            return;
        }
        if let Some(data) = &entry.data {
            let new = self.data.insert(data.clone());
            let proposed_once = entry.r#type != Some(1);
            assert!(new || !proposed_once, "seed {seed}: {data:?} was committed twice");
        }
        self.committed.insert(index, Committed { entry: bytes, term: entry.term(), by });
    }

    pub(crate) fn leads(&mut self, id: u64, term: u64, found: &Found, seed: u64) {
        let other = *self.leaders.entry(term).or_insert(id);
        assert_eq!(other, id, "seed {seed}: two leaders in term {term}");
        let terms: BTreeMap<u64, u64> =
            found.entries.iter().map(|entry| (entry.index(), entry.term())).collect();
        for (index, committed) in &self.committed {
            if committed.by >= term || *index <= found.mark.index() {
                continue;
            }
            assert_eq!(
                terms.get(index),
                Some(&committed.term),
                "seed {seed}: leader {id} of term {term} lacks the committed entry {index}"
            );
        }
    }

    pub(crate) fn applied(&mut self, id: u64, machine: &Machine, seed: u64) {
        let known = self.machines.entry(machine.applied).or_insert_with(|| machine.clone());
        assert_eq!(known, machine, "seed {seed}: member {id} differs at {}", machine.applied);
    }

    /// Log matching: logs that agree on an index and its term agree on everything before it.
    pub(crate) fn logs_match(logs: &[Found], seed: u64) {
        for (n, a) in logs.iter().enumerate() {
            for b in &logs[..n] {
                let of_b: BTreeMap<u64, &Entry> =
                    b.entries.iter().map(|entry| (entry.index(), entry)).collect();
                let mut agree = false;
                for entry in a.entries.iter().rev() {
                    let Some(other) = of_b.get(&entry.index()) else { continue };
                    agree |= entry.term == other.term;
                    assert!(
                        !agree || entry == *other,
                        "seed {seed}: logs that agree later differ at {}",
                        entry.index()
                    );
                }
            }
        }
    }
}
