//! Which keys a request is about, and what a read wants to know of them.

use bytes::Bytes;
use mainstay_proto::etcdserverpb::RangeRequest;
use mainstay_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

/// A set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    key: Bytes,
    /// Empty: the one key. A zero byte: to the end.
    end: Bytes,
}

/// The range end that stands for "to the end", and the first key of "from the beginning".
const OPEN: &[u8] = b"\0";

impl Keys {
    /// This key.
    pub fn one(key: impl Into<Bytes>) -> Self {
        Self { key: key.into(), end: Bytes::new() }
    }

    /// Keys that start with `prefix`; all keys when it is empty.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let key = prefix.into();
        if key.is_empty() {
            return Self::all();
        }
        let end = match key.iter().rposition(|byte| *byte != 0xff) {
            Some(last) => {
                let mut end = key[..=last].to_vec();
                end[last] += 1;
                end.into()
            }
            None => Bytes::from_static(OPEN),
        };
        Self { key, end }
    }

    /// Keys from `from` up to, not including, `to`.
    pub fn range(from: impl Into<Bytes>, to: impl Into<Bytes>) -> Self {
        Self { key: from.into(), end: to.into() }
    }

    /// Keys from `from` on.
    pub fn from(from: impl Into<Bytes>) -> Self {
        Self { key: from.into(), end: Bytes::from_static(OPEN) }
    }

    /// Every key.
    pub fn all() -> Self {
        Self::from(Bytes::from_static(OPEN))
    }

    pub(super) fn into_range(self) -> (Bytes, Bytes) {
        (self.key, self.end)
    }
}

impl<T: Into<Bytes>> From<T> for Keys {
    fn from(key: T) -> Self {
        Self::one(key)
    }
}

/// A read.
#[derive(Clone, Debug, PartialEq)]
pub struct Get(RangeRequest);

impl Get {
    /// A read of these keys as they are now, in their order.
    pub fn new(keys: impl Into<Keys>) -> Self {
        let (key, range_end) = keys.into().into_range();
        Self(RangeRequest { key, range_end, ..Default::default() })
    }

    /// As they were at this revision.
    #[must_use]
    pub fn at_revision(mut self, revision: i64) -> Self {
        self.0.revision = revision;
        self
    }

    /// At most so many; the answer tells whether there are more.
    #[must_use]
    pub fn limit(mut self, limit: i64) -> Self {
        self.0.limit = limit;
        self
    }

    /// Only the keys, without their values.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.0.keys_only = true;
        self
    }

    /// Only how many there are.
    #[must_use]
    pub fn count_only(mut self) -> Self {
        self.0.count_only = true;
        self
    }

    /// In another order.
    #[must_use]
    pub fn sorted(mut self, target: SortTarget, order: SortOrder) -> Self {
        self.0.sort_target = target as i32;
        self.0.sort_order = order as i32;
        self
    }

    /// Only what was written last at this revision or later.
    #[must_use]
    pub fn modified_since(mut self, revision: i64) -> Self {
        self.0.min_mod_revision = revision;
        self
    }

    /// From what this member has applied, without asking the others whether it is current.
    #[must_use]
    pub fn serializable(mut self) -> Self {
        self.0.serializable = true;
        self
    }

    pub(super) fn into_request(self) -> RangeRequest {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_behind_their_last_key() {
        let ends = |prefix: &'static [u8]| Keys::prefix(prefix).into_range().1;
        assert_eq!(ends(b"a"), "b");
        assert_eq!(ends(b"a\xff"), "b");
        assert_eq!(ends(b"\xff\xff"), "\0");
        assert_eq!(Keys::prefix(""), Keys::all());
        assert_eq!(Keys::all().into_range(), (Bytes::from("\0"), Bytes::from("\0")));
        assert_eq!(Keys::from("k"), Keys::range("k", "\0"));
    }
}
