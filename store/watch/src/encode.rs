//! The bytes of a `WatchResponse`, put together from a few own fields and event bytes that are
//! shared by all watchers of the event.
//!
//! Input: header fields and [`EventFields`], which are encoded once per event. Output: the
//! protobuf body. Events have the highest field number, so a body is a short head followed by
//! shared bytes; responses of two watchers to the same events differ in the head only.
//! **Invariant:** the body is byte-equal to what prost writes for the same `WatchResponse`.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use mainstay_mvcc::{Event, EventKind};
use mainstay_proto::{
    etcdserverpb::{ResponseHeader, WatchResponse},
    mvccpb,
};
use prost::{Message as _, encoding};

/// The field number of `WatchResponse.events`.
const EVENTS: u32 = 11;

/// What a queued response costs beside its events.
const FRAME_OVERHEAD: usize = std::mem::size_of::<Frame>();

/// Encodes an event as an element of `WatchResponse.events`: tag, length, message.
pub(crate) fn event_field(event: &Event, prev_kv: Option<mvccpb::KeyValue>) -> Bytes {
    let kind = match event.kind {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    let message = mvccpb::Event { r#type: kind as i32, kv: Some(event.kv.clone()), prev_kv };
    let mut buffer = BytesMut::with_capacity(encoding::message::encoded_len(EVENTS, &message));
    encoding::message::encode(EVENTS, &message, &mut buffer);
    buffer.freeze()
}

/// The encoded events of a response; cloning shares them.
#[derive(Clone, Debug, Default)]
pub enum EventFields {
    /// No events.
    #[default]
    None,
    /// One event, the usual case of live delivery.
    One(Bytes),
    /// Several events and the sum of their lengths.
    Many(Arc<[Bytes]>, usize),
}

impl EventFields {
    /// From encoded elements of the `events` field.
    pub fn new(mut fields: Vec<Bytes>) -> Self {
        match fields.len() {
            0 => Self::None,
            1 => Self::One(fields.swap_remove(0)),
            _ => {
                let len = fields.iter().map(Bytes::len).sum();
                Self::Many(fields.into(), len)
            }
        }
    }

    fn parts(&self) -> &[Bytes] {
        match self {
            Self::None => &[],
            Self::One(field) => std::slice::from_ref(field),
            Self::Many(fields, _) => fields,
        }
    }

    /// How many events these are.
    pub fn count(&self) -> usize {
        self.parts().len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Their encoded length, tags included.
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(field) => field.len(),
            Self::Many(_, len) => *len,
        }
    }

    /// Where the bytes are, to tell whether two responses share them. `None` without events.
    pub(crate) fn identity(&self) -> Option<(usize, usize)> {
        match self {
            Self::None => None,
            Self::One(field) => Some((field.as_ptr().addr(), field.len())),
            Self::Many(fields, len) => Some((fields.as_ptr().addr(), *len)),
        }
    }
}

/// What a response is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// It tells this many events.
    Events(usize),
    /// It tells that a watcher was made or ended.
    Control,
    /// It tells how far everything was told.
    Progress,
}

/// One `WatchResponse`, ready to be written.
#[derive(Clone, Debug)]
pub struct Frame {
    pub(crate) header: ResponseHeader,
    pub(crate) watch_id: i64,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    pub(crate) compact_revision: i64,
    pub(crate) cancel_reason: Option<Arc<str>>,
    pub(crate) fragment: bool,
    pub(crate) events: EventFields,
    /// Whether a request of the client is answered by this.
    pub(crate) answer: bool,
    /// What its queue counts for it.
    pub(crate) cost: usize,
}

impl Frame {
    /// What it is for.
    pub fn kind(&self) -> FrameKind {
        match self.events.count() {
            0 if self.created || self.canceled => FrameKind::Control,
            0 => FrameKind::Progress,
            events => FrameKind::Events(events),
        }
    }

    pub(crate) fn new(header: ResponseHeader, watch_id: i64) -> Self {
        Self {
            header,
            watch_id,
            created: false,
            canceled: false,
            compact_revision: 0,
            cancel_reason: None,
            fragment: false,
            events: EventFields::None,
            answer: false,
            cost: 0,
        }
    }

    /// Sets the cost and gives the identity of the events. Event bytes that the frame before it
    /// in the queue holds anyway are free, so that thousands of watchers of one key don't count
    /// as thousands of values.
    pub(crate) fn charge(&mut self, before: Option<(usize, usize)>) -> Option<(usize, usize)> {
        let identity = self.events.identity();
        let shared = identity.is_none() || identity == before;
        self.cost = FRAME_OVERHEAD + if shared { 0 } else { self.events.encoded_len() };
        identity
    }

    /// The watcher that it is for; −1 for none or all.
    pub fn watch_id(&self) -> i64 {
        self.watch_id
    }

    /// The revision in the header.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    /// How many events it carries.
    pub fn event_count(&self) -> usize {
        self.events.count()
    }

    fn head_len(&self) -> usize {
        let mut len = encoding::message::encoded_len(1, &self.header);
        if self.watch_id != 0 {
            len += encoding::int64::encoded_len(2, &self.watch_id);
        }
        for (number, flag) in [(3, self.created), (4, self.canceled), (7, self.fragment)] {
            if flag {
                len += encoding::bool::encoded_len(number, &flag);
            }
        }
        if self.compact_revision != 0 {
            len += encoding::int64::encoded_len(5, &self.compact_revision);
        }
        if let Some(reason) = &self.cancel_reason
            && !reason.is_empty()
        {
            len += encoding::key_len(6) + encoding::encoded_len_varint(reason.len() as u64);
            len += reason.len();
        }
        len
    }

    /// The length of the body.
    pub fn encoded_len(&self) -> usize {
        self.head_len() + self.events.encoded_len()
    }

    /// Appends the body.
    pub fn encode(&self, buffer: &mut impl BufMut) {
        encoding::message::encode(1, &self.header, buffer);
        if self.watch_id != 0 {
            encoding::int64::encode(2, &self.watch_id, buffer);
        }
        if self.created {
            encoding::bool::encode(3, &true, buffer);
        }
        if self.canceled {
            encoding::bool::encode(4, &true, buffer);
        }
        if self.compact_revision != 0 {
            encoding::int64::encode(5, &self.compact_revision, buffer);
        }
        if let Some(reason) = &self.cancel_reason
            && !reason.is_empty()
        {
            encoding::encode_key(6, encoding::WireType::LengthDelimited, buffer);
            encoding::encode_varint(reason.len() as u64, buffer);
            buffer.put_slice(reason.as_bytes());
        }
        if self.fragment {
            encoding::bool::encode(7, &true, buffer);
        }
        for part in self.events.parts() {
            buffer.put_slice(part);
        }
    }

    /// The body in a buffer of its own.
    pub fn to_bytes(&self) -> Bytes {
        let mut buffer = BytesMut::with_capacity(self.encoded_len());
        self.encode(&mut buffer);
        buffer.freeze()
    }

    /// The message, for users in the same process. Values share the memory of one buffer.
    pub fn to_message(&self) -> WatchResponse {
        WatchResponse::decode(self.to_bytes()).expect("a frame is a well-formed WatchResponse")
    }

    /// Cuts a response that reaches `max` bytes into fragments below it, each with at least one
    /// event; all but the last are marked.
    pub(crate) fn fragments(self, max: usize) -> Vec<Frame> {
        if self.encoded_len() < max || self.event_count() < 2 {
            return vec![self];
        }
        let part = Frame { fragment: true, events: EventFields::None, ..self.clone() };
        let head = part.head_len();
        let mut frames = Vec::new();
        let (mut fields, mut len) = (Vec::new(), head);
        for field in self.events.parts() {
            if !fields.is_empty() && len + field.len() >= max {
                let events = EventFields::new(std::mem::take(&mut fields));
                frames.push(Frame { events, ..part.clone() });
                len = head;
            }
            len += field.len();
            fields.push(field.clone());
        }
        frames.push(Frame { events: EventFields::new(fields), fragment: false, ..part });
        frames
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![Just(0), Just(-1), 1i64..300, any::<i64>()]
    }

    fn pair() -> impl Strategy<Value = mvccpb::KeyValue> {
        let bytes = |max| proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
        (bytes(10), bytes(300), any::<[bool; 2]>(), number(), number(), number()).prop_map(
            |(key, value, [fresh, leased], mod_revision, version, other)| mvccpb::KeyValue {
                key,
                value,
                mod_revision,
                create_revision: if fresh { mod_revision } else { other },
                version,
                lease: if leased { other } else { 0 },
            },
        )
    }

    fn event() -> impl Strategy<Value = (Event, Option<mvccpb::KeyValue>)> {
        let kind = prop_oneof![Just(EventKind::Put), Just(EventKind::Delete)];
        (kind, pair(), proptest::option::of(pair()))
            .prop_map(|(kind, kv, prev)| (Event { kind, kv, prev: None }, prev))
    }

    fn frame() -> impl Strategy<Value = (Frame, WatchResponse)> {
        let header = (any::<u64>(), any::<u64>(), number(), 0u64..1000);
        let reason = prop_oneof![Just(None), Just(Some("")), Just(Some("mvcc: größer"))];
        let events = proptest::collection::vec(event(), 0..6);
        (header, number(), any::<[bool; 3]>(), number(), reason, events).prop_map(
            |(
                (cluster_id, member_id, revision, raft_term),
                watch_id,
                flags,
                compact,
                why,
                events,
            )| {
                let header = ResponseHeader { cluster_id, member_id, revision, raft_term };
                let [created, canceled, fragment] = flags;
                let fields = events.iter().map(|(event, prev)| event_field(event, prev.clone()));
                let frame = Frame {
                    created,
                    canceled,
                    fragment,
                    compact_revision: compact,
                    cancel_reason: why.map(Into::into),
                    events: EventFields::new(fields.collect()),
                    ..Frame::new(header, watch_id)
                };
                let message = WatchResponse {
                    header: Some(header),
                    watch_id,
                    created,
                    canceled,
                    compact_revision: compact,
                    cancel_reason: why.unwrap_or_default().into(),
                    fragment,
                    events: events
                        .into_iter()
                        .map(|(event, prev_kv)| mvccpb::Event {
                            r#type: i32::from(event.kind == EventKind::Delete),
                            kv: Some(event.kv),
                            prev_kv,
                        })
                        .collect(),
                };
                (frame, message)
            },
        )
    }

    /// The rule of etcd, on messages: fill a fragment until one more event would reach the limit.
    fn cut(whole: &WatchResponse, max: usize) -> Vec<WatchResponse> {
        if whole.encoded_len() < max || whole.events.len() < 2 {
            return vec![whole.clone()];
        }
        let empty = WatchResponse { fragment: true, events: Vec::new(), ..whole.clone() };
        let mut parts = vec![empty.clone()];
        for event in &whole.events {
            let last = parts.last_mut().expect("never empty");
            last.events.push(event.clone());
            if last.events.len() > 1 && last.encoded_len() >= max {
                last.events.pop();
                parts.push(WatchResponse { events: vec![event.clone()], ..empty.clone() });
            }
        }
        parts.last_mut().expect("never empty").fragment = false;
        parts
    }

    proptest! {
        #[test]
        fn bodies_are_what_prost_writes((frame, message) in frame()) {
            prop_assert_eq!(frame.to_bytes(), message.encode_to_vec());
            prop_assert_eq!(frame.encoded_len(), message.encoded_len());
            prop_assert_eq!(frame.to_message(), message);
        }

        #[test]
        fn fragments_are_cut_where_etcd_cuts((frame, message) in frame(), max in 0usize..1500) {
            let frame = Frame { fragment: false, ..frame };
            let message = WatchResponse { fragment: false, ..message };
            let parts: Vec<_> = frame.fragments(max).iter().map(Frame::to_message).collect();
            prop_assert_eq!(parts, cut(&message, max));
        }
    }

    #[test]
    fn bytes_that_the_frame_before_holds_are_free() {
        let kv = mvccpb::KeyValue { value: vec![1; 1000].into(), ..Default::default() };
        let events = EventFields::new(vec![event_field(
            &Event { kind: EventKind::Put, kv, prev: None },
            None,
        )]);
        let mut frame = Frame::new(ResponseHeader::default(), 1);
        frame.events = events;
        let mut next = frame.clone();
        let identity = frame.charge(None);
        assert!(frame.cost > 1000);
        assert_eq!(next.charge(identity), identity);
        assert_eq!(next.cost, FRAME_OVERHEAD);
    }
}
