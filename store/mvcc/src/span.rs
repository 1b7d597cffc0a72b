//! Spans of user keys as requests name them: one key, from a key on, or between two keys.

use bytes::Bytes;
use mainstay_engine::Scan;

/// A set of user keys that lie together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySpan {
    /// Exactly this key.
    One(Bytes),
    /// This key and all behind it.
    From(Bytes),
    /// From the first (included) to the second (excluded); empty when they are not in order.
    Between(Bytes, Bytes),
}

impl KeySpan {
    /// What `key` and `range_end` of a request mean: an empty end is one key, `\0` is no end.
    pub fn new(key: &Bytes, range_end: &Bytes) -> Self {
        match &range_end[..] {
            [] => KeySpan::One(key.clone()),
            [0] => KeySpan::From(key.clone()),
            _ => KeySpan::Between(key.clone(), range_end.clone()),
        }
    }

    /// Whether `key` belongs to the span.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            KeySpan::One(one) => one == key,
            KeySpan::From(from) => key >= &from[..],
            KeySpan::Between(from, to) => key >= &from[..] && key < &to[..],
        }
    }

    /// Whether no key can belong to the span.
    pub fn is_empty(&self) -> bool {
        matches!(self, KeySpan::Between(from, to) if from >= to)
    }

    /// The part of a family with user keys as keys that belongs to the span.
    pub(crate) fn scan(&self) -> Scan {
        let (lower, upper) = match self {
            KeySpan::One(key) => {
                let mut end = Vec::with_capacity(key.len() + 1);
                end.extend_from_slice(key);
                end.push(0);
                (key.clone(), Some(end.into()))
            }
            KeySpan::From(from) => (from.clone(), None),
            KeySpan::Between(from, to) => (from.clone(), Some(to.clone())),
        };
        Scan { lower: Some(lower), upper, fill_cache: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_requests() {
        let span = |key: &'static str, end: &'static str| {
            KeySpan::new(&Bytes::from(key), &Bytes::from(end))
        };
        assert!(span("a", "").contains(b"a"));
        assert!(!span("a", "").contains(b"aa"));
        assert!(span("a", "\0").contains(b"\xff\xff"));
        assert!(!span("b", "\0").contains(b"a"));
        assert!(span("a", "c").contains(b"bzzz"));
        assert!(!span("a", "c").contains(b"c"));
        assert!(span("z", "a").is_empty() && span("a", "a").is_empty());
        assert!(!span("z", "\0").is_empty());
    }
}
