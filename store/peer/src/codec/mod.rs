//! Frames of the two streams and the head of a snapshot body: bytes to messages and back, pure.
//!
//! Input: bytes in whatever pieces the network gives, or messages from raft. Output: messages, or
//! bytes for one connection. An [`Encoder`] and a [`Decoder`] belong to one connection and start
//! anew with the next, because the short frames of the msgapp stream lean on what went before.
//!
//! **Invariant:** memory follows the bytes that have arrived, never a length that a frame claims.
//! **Invariant:** after an error a decoder is at an unknown place and its connection must end.

mod check;
mod frame;
mod msgapp;
#[cfg(test)]
mod tests;

use bytes::BytesMut;
use mainstay_proto::raftpb::Message;
use thiserror::Error;

pub use check::{Unfit, check_incoming, check_outgoing, check_snapshot};
pub use frame::{
    MESSAGE_LIMIT, SNAPSHOT_MESSAGE_LIMIT, decode_message, encode_message, encode_message_to_bytes,
    is_link_heartbeat,
};
pub use msgapp::{MsgAppDecoder, MsgAppEncoder};

/// The two streams between a pair of members, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// MsgApp only, in etcd's msgapp v2 form.
    MsgApp,
    /// Everything else but snapshots.
    Message,
}

impl StreamKind {
    /// The path under which a member offers the stream.
    pub fn path(self) -> &'static str {
        match self {
            StreamKind::MsgApp => "/raft/stream/msgapp",
            StreamKind::Message => "/raft/stream/message",
        }
    }

    /// The name in etcd's logs.
    pub fn name(self) -> &'static str {
        match self {
            StreamKind::MsgApp => "stream MsgApp v2",
            StreamKind::Message => "stream Message",
        }
    }
}

/// What one frame holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// A sign of life of the connection; raft does not see it.
    Heartbeat,
    /// A raft message.
    Message(Box<Message>),
}

/// A frame that cannot be read. The connection that it came on must end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The frame claims more than is allowed.
    #[error("frame of {claimed} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Bytes claimed so far.
        claimed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The msgapp stream has three frame types; this is none of them.
    #[error("unknown frame type {0} in msgapp stream")]
    UnknownType(u8),
    /// A short frame before any full one: nothing to lean on.
    #[error("short frame without a full one before it")]
    NoContext,
    /// A short frame whose entry is not the next one.
    #[error("entry {found} in a short frame, expected {expected}")]
    Gap {
        /// The index that follows from the frames before.
        expected: u64,
        /// The index in the frame.
        found: u64,
    },
    /// Not a protobuf message of the expected type.
    #[error("malformed message: {0}")]
    Malformed(String),
}

impl From<prost::DecodeError> for CodecError {
    fn from(error: prost::DecodeError) -> Self {
        CodecError::Malformed(error.to_string())
    }
}

/// Writes one stream of one connection.
#[derive(Debug)]
pub enum Encoder {
    /// For the msgapp stream.
    MsgApp(MsgAppEncoder),
    /// For the message stream.
    Message,
}

impl Encoder {
    /// For a new connection from `local` to `remote`.
    pub fn new(kind: StreamKind, local: u64, remote: u64) -> Self {
        match kind {
            StreamKind::MsgApp => Encoder::MsgApp(MsgAppEncoder::new(local, remote)),
            StreamKind::Message => Encoder::Message,
        }
    }

    /// Appends a message's frame.
    pub fn encode(&mut self, message: &Message, out: &mut BytesMut) {
        match self {
            Encoder::MsgApp(encoder) => encoder.encode(message, out),
            Encoder::Message => encode_message(message, out),
        }
    }

    /// Appends a link heartbeat.
    pub fn heartbeat(&mut self, out: &mut BytesMut) {
        match self {
            Encoder::MsgApp(encoder) => encoder.heartbeat(out),
            Encoder::Message => encode_message(&frame::link_heartbeat(), out),
        }
    }
}

/// Reads one stream of one connection.
#[derive(Debug)]
pub enum Decoder {
    /// For the msgapp stream.
    MsgApp(MsgAppDecoder),
    /// For the message stream.
    Message,
}

impl Decoder {
    /// For a new connection on which `remote` sends to `local`.
    pub fn new(kind: StreamKind, local: u64, remote: u64) -> Self {
        match kind {
            StreamKind::MsgApp => Decoder::MsgApp(MsgAppDecoder::new(local, remote)),
            StreamKind::Message => Decoder::Message,
        }
    }

    /// Takes the next frame off the front of `buffer`; `None` when it is not all there yet.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        match self {
            Decoder::MsgApp(decoder) => decoder.decode(buffer),
            Decoder::Message => Ok(decode_message(buffer, MESSAGE_LIMIT)?.map(|message| {
                if is_link_heartbeat(&message) {
                    Frame::Heartbeat
                } else {
                    Frame::Message(Box::new(message))
                }
            })),
        }
    }
}
