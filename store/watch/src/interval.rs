//! Ranges of keys, found by a key that is in them.
//!
//! A treap ordered by (start, end) in which every subtree knows its greatest end: a key finds the
//! ranges around it without looking at those that end before it or begin after it.
//! **Invariant:** one node per distinct range; its `list` names who is interested.

use bytes::Bytes;

use crate::request::RangeEnd;

const NIL: u32 = u32::MAX;

struct Node {
    start: Bytes,
    end: RangeEnd,
    list: u32,
    priority: u64,
    left: u32,
    right: u32,
    /// The node of this subtree whose end is greatest.
    furthest: u32,
}

/// A map from distinct ranges to list numbers.
pub(crate) struct IntervalMap {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    /// Feeds the priorities; a fixed sequence, so that equal inputs give equal trees.
    sequence: u64,
}

impl Default for IntervalMap {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL, sequence: 0 }
    }
}

/// SplitMix64: spreads a counter over all bits.
fn spread(counter: u64) -> u64 {
    let mut z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl IntervalMap {
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// The list of exactly this range.
    pub(crate) fn get(&self, start: &Bytes, end: &RangeEnd) -> Option<u32> {
        let mut at = self.root;
        while at != NIL {
            let node = self.node(at);
            at = match (start, end).cmp(&(&node.start, &node.end)) {
                std::cmp::Ordering::Equal => return Some(node.list),
                std::cmp::Ordering::Less => node.left,
                std::cmp::Ordering::Greater => node.right,
            };
        }
        None
    }

    /// Adds a range that is not there yet.
    pub(crate) fn insert(&mut self, start: Bytes, end: RangeEnd, list: u32) {
        self.sequence += 1;
        let priority = spread(self.sequence);
        let node = Node { start, end, list, priority, left: NIL, right: NIL, furthest: NIL };
        let new = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 ranges")
            }
        };
        self.update(new);
        self.root = self.insert_under(self.root, new);
    }

    fn insert_under(&mut self, at: u32, new: u32) -> u32 {
        if at == NIL {
            return new;
        }
        if self.node(new).priority > self.node(at).priority {
            let (left, right) = self.split(at, new);
            let node = self.node_mut(new);
            (node.left, node.right) = (left, right);
            self.update(new);
            return new;
        }
        if self.is_less(new, at) {
            let left = self.insert_under(self.node(at).left, new);
            self.node_mut(at).left = left;
        } else {
            let right = self.insert_under(self.node(at).right, new);
            self.node_mut(at).right = right;
        }
        self.update(at);
        at
    }

    fn is_less(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.node(a), self.node(b));
        (&a.start, &a.end) < (&b.start, &b.end)
    }

    /// Parts a subtree into what is below and what is above `pivot`.
    fn split(&mut self, at: u32, pivot: u32) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.is_less(at, pivot) {
            let (left, right) = self.split(self.node(at).right, pivot);
            self.node_mut(at).right = left;
            self.update(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.node(at).left, pivot);
            self.node_mut(at).left = right;
            self.update(at);
            (left, at)
        }
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        if self.node(left).priority > self.node(right).priority {
            let merged = self.merge(self.node(left).right, right);
            self.node_mut(left).right = merged;
            self.update(left);
            left
        } else {
            let merged = self.merge(left, self.node(right).left);
            self.node_mut(right).left = merged;
            self.update(right);
            right
        }
    }

    /// Removes a range; nothing happens if it is not there.
    pub(crate) fn remove(&mut self, start: &Bytes, end: &RangeEnd) {
        self.root = self.remove_under(self.root, start, end);
    }

    fn remove_under(&mut self, at: u32, start: &Bytes, end: &RangeEnd) -> u32 {
        if at == NIL {
            return NIL;
        }
        let node = self.node(at);
        let (left, right) = (node.left, node.right);
        match (start, end).cmp(&(&node.start, &node.end)) {
            std::cmp::Ordering::Equal => {
                let merged = self.merge(left, right);
                // The slot is kept for reuse, the memory of its keys is not.
                let node = self.node_mut(at);
                (node.start, node.end) = (Bytes::new(), RangeEnd::Open);
                self.free.push(at);
                return merged;
            }
            std::cmp::Ordering::Less => {
                let left = self.remove_under(left, start, end);
                self.node_mut(at).left = left;
            }
            std::cmp::Ordering::Greater => {
                let right = self.remove_under(right, start, end);
                self.node_mut(at).right = right;
            }
        }
        self.update(at);
        at
    }

    fn update(&mut self, at: u32) {
        let node = self.node(at);
        let mut furthest = at;
        for child in [node.left, node.right] {
            if child != NIL {
                let other = self.node(child).furthest;
                if self.node(other).end > self.node(furthest).end {
                    furthest = other;
                }
            }
        }
        self.node_mut(at).furthest = furthest;
    }

    /// Calls `found` with the list of every range that `key` is in.
    pub(crate) fn stab(&self, key: &[u8], found: &mut impl FnMut(u32)) {
        self.stab_under(self.root, key, found);
    }

    fn stab_under(&self, mut at: u32, key: &[u8], found: &mut impl FnMut(u32)) {
        while at != NIL {
            let node = self.node(at);
            if !self.node(node.furthest).end.is_after(key) {
                return;
            }
            self.stab_under(node.left, key, found);
            if key < &node.start[..] {
                return;
            }
            if node.end.is_after(key) {
                found(node.list);
            }
            at = node.right;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(0u8..4, 1..4).prop_map(Bytes::from)
    }

    fn end() -> impl Strategy<Value = RangeEnd> {
        prop_oneof![4 => key().prop_map(RangeEnd::Before), 1 => Just(RangeEnd::Open)]
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_of_all_ranges_finds(
            steps in proptest::collection::vec((any::<bool>(), key(), end(), key()), 1..200)
        ) {
            let mut map = IntervalMap::default();
            let mut model: BTreeMap<(Bytes, RangeEnd), u32> = BTreeMap::new();
            for (number, (add, start, end, probe)) in steps.into_iter().enumerate() {
                let number = number as u32;
                let there = model.get(&(start.clone(), end.clone())).copied();
                prop_assert_eq!(map.get(&start, &end), there);
                if add && there.is_none() {
                    map.insert(start.clone(), end.clone(), number);
                    model.insert((start, end), number);
                } else {
                    map.remove(&start, &end);
                    model.remove(&(start, end));
                }
                let mut got = Vec::new();
                map.stab(&probe, &mut |list| got.push(list));
                got.sort_unstable();
                let mut want: Vec<u32> = model
                    .iter()
                    .filter(|((start, end), _)| start <= &probe && end.is_after(&probe))
                    .map(|(_, list)| *list)
                    .collect();
                want.sort_unstable();
                prop_assert_eq!(got, want);
            }
        }
    }
}
