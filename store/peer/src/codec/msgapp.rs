//! The msgapp v2 stream. Three frames, told apart by their first byte:
//!
//! - `0`: link heartbeat, nothing follows.
//! - `1`: the short form of a MsgApp that follows the one before on this connection: a count, each
//!   entry with its length, and the commit index. Term, index and log term are implied.
//! - `2`: a whole message with its length; sets what later short frames lean on.
//!
//! **Invariant:** a short frame is written only when the reader, from the frames of this connection
//! alone, rebuilds exactly the message that went in.

use bytes::{Buf, BufMut, BytesMut};
use mainstay_proto::raftpb::{Entry, Message, MessageType};
use prost::Message as _;

use super::frame::{LENGTH, MESSAGE_LIMIT, encode_message, take_block};
use super::{CodecError, Frame};

const HEARTBEAT: u8 = 0;
const SHORT: u8 = 1;
const FULL: u8 = 2;

/// What an entry costs in memory beside its bytes; counted against the limit of a frame, so that
/// a flood of empty entries is stopped as well.
const ENTRY_COST: u64 = size_of::<Entry>() as u64;

/// Where the last message of the connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    term: u64,
    index: u64,
}

impl Position {
    fn after(message: &Message) -> Self {
        let last = message.entries.last().and_then(|entry| entry.index);
        Position { term: message.term(), index: last.unwrap_or(message.index()) }
    }
}

/// Writes the msgapp stream of one connection.
#[derive(Debug)]
pub struct MsgAppEncoder {
    local: u64,
    remote: u64,
    position: Option<Position>,
}

impl MsgAppEncoder {
    /// For a new connection from `local` to `remote`.
    pub fn new(local: u64, remote: u64) -> Self {
        MsgAppEncoder { local, remote, position: None }
    }

    /// Appends a link heartbeat.
    pub fn heartbeat(&mut self, out: &mut BytesMut) {
        out.put_u8(HEARTBEAT);
    }

    /// Appends a message, in the short form where it says the same.
    pub fn encode(&mut self, message: &Message, out: &mut BytesMut) {
        if self.follows(message) {
            out.put_u8(SHORT);
            out.put_u64(message.entries.len() as u64);
            for entry in &message.entries {
                let len = entry.encoded_len();
                out.reserve(LENGTH + len);
                out.put_u64(len as u64);
                entry.encode(out).expect("a BytesMut grows as needed");
            }
            out.put_u64(message.commit());
        } else {
            out.put_u8(FULL);
            encode_message(message, out);
        }
        self.position = Some(Position::after(message));
    }

    fn follows(&self, message: &Message) -> bool {
        let Some(position) = self.position else { return false };
        // Everything but entries and commit is implied or lost in the short form.
        let bare = message.snapshot.is_none()
            && message.responses.is_empty()
            && !message.reject()
            && message.reject_hint() == 0
            && message.context().is_empty()
            && message.vote() == 0;
        bare && message.r#type == Some(MessageType::MsgApp as i32)
            && message.from() == self.local
            && message.to() == self.remote
            && message.index() == position.index
            && message.log_term() == position.term
            && message.term() == position.term
            && consecutive(&message.entries, position.index)
    }
}

fn consecutive(entries: &[Entry], after: u64) -> bool {
    entries.iter().zip(1u64..).all(|(entry, step)| entry.index() == after.wrapping_add(step))
}

/// Reads the msgapp stream of one connection.
#[derive(Debug)]
pub struct MsgAppDecoder {
    local: u64,
    remote: u64,
    position: Option<Position>,
    /// The short frame that is being read.
    short: Option<Short>,
}

#[derive(Debug)]
struct Short {
    base: Position,
    missing: u64,
    entries: Vec<Entry>,
    cost: u64,
}

impl MsgAppDecoder {
    /// For a new connection on which `remote` sends to `local`.
    pub fn new(local: u64, remote: u64) -> Self {
        MsgAppDecoder { local, remote, position: None, short: None }
    }

    /// Takes the next frame off the front of `buffer`; `None` when it is not all there yet.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        if self.short.is_none() {
            match buffer.first() {
                None => return Ok(None),
                Some(&HEARTBEAT) => {
                    buffer.advance(1);
                    return Ok(Some(Frame::Heartbeat));
                }
                Some(&FULL) => return self.decode_full(buffer),
                Some(&SHORT) => match self.open_short(buffer)? {
                    Some(short) => self.short = Some(short),
                    None => return Ok(None),
                },
                Some(&other) => return Err(CodecError::UnknownType(other)),
            }
        }
        self.decode_short(buffer)
    }

    fn decode_full(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        let Some(block) = take_block(buffer, 1, MESSAGE_LIMIT)? else { return Ok(None) };
        let message = Message::decode(block)?;
        self.position = Some(Position::after(&message));
        Ok(Some(Frame::Message(Box::new(message))))
    }

    fn open_short(&mut self, buffer: &mut BytesMut) -> Result<Option<Short>, CodecError> {
        let Some(base) = self.position else { return Err(CodecError::NoContext) };
        if buffer.len() < 1 + LENGTH {
            return Ok(None);
        }
        buffer.advance(1);
        let missing = buffer.get_u64();
        // Each entry takes its length field at least.
        let claimed = missing.saturating_mul(LENGTH as u64);
        if claimed > MESSAGE_LIMIT {
            return Err(CodecError::TooLarge { claimed, limit: MESSAGE_LIMIT });
        }
        Ok(Some(Short { base, missing, entries: Vec::new(), cost: 0 }))
    }

    fn decode_short(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        let short = self.short.as_mut().expect("a short frame is being read");
        while short.missing > 0 {
            let left = MESSAGE_LIMIT.saturating_sub(short.cost);
            let Some(block) = take_block(buffer, 0, left)? else { return Ok(None) };
            short.cost += block.len() as u64 + ENTRY_COST;
            let entry = Entry::decode(block)?;
            let step = short.entries.len() as u64 + 1;
            let expected = short.base.index.wrapping_add(step);
            if entry.index() != expected {
                return Err(CodecError::Gap { expected, found: entry.index() });
            }
            short.entries.push(entry);
            short.missing -= 1;
        }
        if buffer.len() < LENGTH {
            return Ok(None);
        }
        let commit = buffer.get_u64();
        let Short { base, entries, .. } = self.short.take().expect("a short frame is being read");
        let message = Message {
            r#type: Some(MessageType::MsgApp as i32),
            to: Some(self.local),
            from: Some(self.remote),
            term: Some(base.term),
            log_term: Some(base.term),
            index: Some(base.index),
            entries,
            commit: Some(commit),
            ..Message::default()
        };
        self.position = Some(Position::after(&message));
        Ok(Some(Frame::Message(Box::new(message))))
    }
}
