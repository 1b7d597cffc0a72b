//! Who wants the events of a key.
//!
//! Input: members (numbers that the owner chooses) with their key ranges. Output: for a key, the
//! lists of members whose range contains it. Members with the same range share a list, so that
//! what is worked out for one of them serves all.
//! **Invariant:** a list is never empty; a [`Place`] is valid until its member or the last member
//! of its list is removed, in which case the owner is told who moved.

use std::collections::HashMap;

use bytes::Bytes;

use crate::{interval::IntervalMap, request::KeyRange};

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) list: u32,
    pub(crate) at: u32,
}

pub(crate) struct List {
    range: KeyRange,
    pub(crate) members: Vec<u32>,
    /// Members that want previous values.
    pub(crate) with_prev: u32,
    /// Scratch: numbers of the events that were matched.
    pub(crate) hits: Vec<u32>,
}

/// Members by key range.
#[derive(Default)]
pub(crate) struct Index {
    pub(crate) lists: Vec<List>,
    free: Vec<u32>,
    points: HashMap<Bytes, u32>,
    ranges: IntervalMap,
}

impl Index {
    /// Adds a member.
    pub(crate) fn insert(&mut self, range: &KeyRange, member: u32, prev_kv: bool) -> Place {
        let found = match range {
            KeyRange::Point(key) => self.points.get(key).copied(),
            KeyRange::Span(start, end) => self.ranges.get(start, end),
        };
        let list = found.unwrap_or_else(|| self.new_list(range));
        let entry = &mut self.lists[list as usize];
        entry.members.push(member);
        entry.with_prev += u32::from(prev_kv);
        let at = u32::try_from(entry.members.len() - 1).expect("fewer than 2^32 watchers");
        Place { list, at }
    }

    fn new_list(&mut self, range: &KeyRange) -> u32 {
        let fresh =
            List { range: range.clone(), members: Vec::new(), with_prev: 0, hits: Vec::new() };
        let list = match self.free.pop() {
            Some(list) => {
                self.lists[list as usize] = fresh;
                list
            }
            None => {
                self.lists.push(fresh);
                u32::try_from(self.lists.len() - 1).expect("fewer than 2^32 lists")
            }
        };
        match range {
            KeyRange::Point(key) => {
                self.points.insert(key.clone(), list);
            }
            KeyRange::Span(start, end) => self.ranges.insert(start.clone(), end.clone(), list),
        }
        list
    }

    /// Removes a member. If another one took its place, that one is named.
    pub(crate) fn remove(&mut self, place: Place, prev_kv: bool) -> Option<u32> {
        let entry = &mut self.lists[place.list as usize];
        entry.members.swap_remove(place.at as usize);
        entry.with_prev -= u32::from(prev_kv);
        let moved = entry.members.get(place.at as usize).copied();
        if entry.members.is_empty() {
            match &entry.range {
                KeyRange::Point(key) => {
                    self.points.remove(key);
                }
                KeyRange::Span(start, end) => self.ranges.remove(start, end),
            }
            (entry.members, entry.hits) = (Vec::new(), Vec::new());
            entry.range = KeyRange::Point(Bytes::new());
            self.free.push(place.list);
        }
        moved
    }

    /// Calls `found` with every list whose range contains `key`.
    pub(crate) fn lists_of(&self, key: &[u8], mut found: impl FnMut(u32)) {
        if let Some(list) = self.points.get(key) {
            found(*list);
        }
        self.ranges.stab(key, &mut found);
    }

    /// Whether anyone wants the key.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let mut any = false;
        self.lists_of(key, |_| any = true);
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RangeEnd;

    fn lists(index: &Index, key: &str) -> Vec<u32> {
        let mut lists = Vec::new();
        index.lists_of(key.as_bytes(), |list| lists.push(list));
        lists
    }

    #[test]
    fn equal_ranges_share_a_list_and_removal_names_who_moved() {
        let mut index = Index::default();
        let span = KeyRange::Span("a".into(), RangeEnd::Before("c".into()));
        let first = index.insert(&span, 10, true);
        let second = index.insert(&span, 11, false);
        let point = index.insert(&KeyRange::Point("b".into()), 12, false);
        assert_eq!(first.list, second.list);
        assert_eq!(lists(&index, "b"), [point.list, first.list]);
        assert_eq!(index.lists[first.list as usize].with_prev, 1);
        assert_eq!(index.remove(first, true), Some(11));
        assert_eq!(index.lists[first.list as usize].with_prev, 0);
        assert_eq!(index.remove(Place { list: second.list, at: 0 }, false), None);
        assert_eq!(lists(&index, "b"), [point.list]);
        assert!(!index.contains(b"a"));
        index.remove(point, false);
        assert!(!index.contains(b"b"));
    }
}
