//! A create request in the form that the hub works with.
//!
//! Input: etcd's `WatchCreateRequest` as it came from the wire. Output: [`CreateRequest`], with
//! the conventions about empty keys and range ends resolved.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_proto::etcdserverpb::{WatchCreateRequest, watch_create_request::FilterType};

/// Where a range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeEnd {
    /// Before this key.
    Before(Bytes),
    /// Nowhere. (Orders above every key.)
    Open,
}

impl RangeEnd {
    /// Whether `key` is before this end.
    pub fn is_after(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < &end[..],
            Self::Open => true,
        }
    }
}

/// The keys that a watcher is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRange {
    /// Exactly this key.
    Point(Bytes),
    /// From the first up to, not including, the second.
    Span(Bytes, RangeEnd),
}

impl KeyRange {
    /// etcd's rules: no key means the first key, no end means one key, a zero byte as end means
    /// all keys from `key` on.
    pub fn from_wire(key: Bytes, range_end: Bytes) -> Self {
        let key = if key.is_empty() { Bytes::from_static(b"\0") } else { key };
        match &range_end[..] {
            [] => Self::Point(key),
            [0] => Self::Span(key, RangeEnd::Open),
            _ => Self::Span(key, RangeEnd::Before(range_end)),
        }
    }

    /// Key and range end as a request has them.
    pub fn to_wire(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Point(key) => (key, &[]),
            Self::Span(key, RangeEnd::Open) => (key, &[0]),
            Self::Span(key, RangeEnd::Before(end)) => (key, end),
        }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Point(_) => false,
            Self::Span(start, end) => !end.is_after(start),
        }
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Point(point) => point == key,
            Self::Span(start, end) => &start[..] <= key && end.is_after(key),
        }
    }
}

/// Kinds of events that a watcher does not want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Leave out PUT events.
    pub no_put: bool,
    /// Leave out DELETE events.
    pub no_delete: bool,
}

/// What a client asked for.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The keys.
    pub range: KeyRange,
    /// The first revision that is wanted; 0 for everything after now.
    pub start_revision: i64,
    /// Whether to tell the current revision when nothing happened for an interval.
    pub progress_notify: bool,
    /// Kinds that are left out.
    pub filters: Filters,
    /// Whether events carry the previous pair.
    pub prev_kv: bool,
    /// Whether responses may be cut into fragments.
    pub fragment: bool,
    /// The id that the client chose; 0 lets the hub choose.
    pub watch_id: i64,
    /// The user for whom it watches, the empty name for nobody. `None` is the server itself, which
    /// may watch everything.
    pub owner: Option<Arc<str>>,
}

/// Whether a user may watch a range, given as key and range end of a request.
pub type MayWatch = Arc<dyn Fn(&str, &[u8], &[u8]) -> bool + Send + Sync>;

impl From<WatchCreateRequest> for CreateRequest {
    fn from(request: WatchCreateRequest) -> Self {
        let has = |filter: FilterType| request.filters.contains(&(filter as i32));
        Self {
            start_revision: request.start_revision,
            progress_notify: request.progress_notify,
            filters: Filters {
                no_put: has(FilterType::Noput),
                no_delete: has(FilterType::Nodelete),
            },
            prev_kv: request.prev_kv,
            fragment: request.fragment,
            watch_id: request.watch_id,
            range: KeyRange::from_wire(request.key, request.range_end),
            owner: None,
        }
    }
}
