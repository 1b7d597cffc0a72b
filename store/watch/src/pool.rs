//! Events on their way to watchers, each encoded at most twice: without and with its previous
//! pair.
//!
//! Input: events in order, numbers of those that a watcher wants. Output: [`EventFields`] per
//! kind of watcher.
//! **Invariant:** a previous pair is read at most once per event, whoever wants it.

use bytes::Bytes;
use mainstay_mvcc::{Event, EventKind};
use mainstay_proto::mvccpb::KeyValue;

use crate::{
    encode::{EventFields, event_field},
    history::{History, HistoryError},
    request::Filters,
};

/// What makes two watchers of the same keys get different bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) prev_kv: bool,
    pub(crate) filters: Filters,
}

impl Variant {
    /// How many variants there are.
    pub(crate) const COUNT: usize = 8;

    pub(crate) fn number(self) -> usize {
        usize::from(self.prev_kv)
            | usize::from(self.filters.no_put) << 1
            | usize::from(self.filters.no_delete) << 2
    }

    fn wants(self, kind: EventKind) -> bool {
        match kind {
            EventKind::Put => !self.filters.no_put,
            EventKind::Delete => !self.filters.no_delete,
        }
    }
}

struct Item<'a> {
    revision: i64,
    event: &'a Event,
    prev_kv: Option<KeyValue>,
    without: Option<Bytes>,
    with: Option<Bytes>,
}

/// The events of one or more revisions.
#[derive(Default)]
pub(crate) struct EventPool<'a> {
    items: Vec<Item<'a>>,
}

impl<'a> EventPool<'a> {
    /// Adds an event and gives its number.
    pub(crate) fn push(&mut self, revision: i64, event: &'a Event) -> u32 {
        self.items.push(Item { revision, event, prev_kv: None, without: None, with: None });
        u32::try_from(self.items.len() - 1).expect("a batch has fewer than 2^32 events")
    }

    /// The revision of an event.
    pub(crate) fn revision(&self, number: u32) -> i64 {
        self.items[number as usize].revision
    }

    /// Reads the previous pairs of these events; gives the bytes that they hold.
    pub(crate) fn fetch_previous(
        &mut self,
        view: &dyn History,
        numbers: &[u32],
    ) -> Result<usize, HistoryError> {
        let place = |&number: &u32| Some((number, self.items[number as usize].event.prev?));
        let (asked, places): (Vec<_>, Vec<_>) = numbers.iter().filter_map(place).unzip();
        if places.is_empty() {
            return Ok(0);
        }
        let answers = view.pairs(&places)?;
        if answers.len() != places.len() {
            return Err(HistoryError("a previous pair was asked for and not answered".into()));
        }
        let mut bytes = 0;
        for (number, answer) in asked.into_iter().zip(answers) {
            bytes += answer.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
            self.items[number as usize].prev_kv = answer;
        }
        Ok(bytes)
    }

    fn field(&mut self, number: u32, prev_kv: bool) -> Bytes {
        let item = &mut self.items[number as usize];
        if prev_kv && item.prev_kv.is_some() {
            let (event, prev_kv) = (item.event, &item.prev_kv);
            return item.with.get_or_insert_with(|| event_field(event, prev_kv.clone())).clone();
        }
        let event = item.event;
        item.without.get_or_insert_with(|| event_field(event, None)).clone()
    }

    /// The encoded events among `numbers` that such a watcher wants.
    pub(crate) fn fields(&mut self, numbers: &[u32], variant: Variant) -> EventFields {
        let mut fields = Vec::with_capacity(numbers.len());
        for &number in numbers {
            if variant.wants(self.items[number as usize].event.kind) {
                fields.push(self.field(number, variant.prev_kv));
            }
        }
        EventFields::new(fields)
    }
}
