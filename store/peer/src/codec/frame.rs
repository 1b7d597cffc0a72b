//! The plain frame: eight bytes of length, big-endian, and a message. The message stream is a row
//! of them, and a snapshot body opens with one.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mainstay_proto::raftpb::{Message, MessageType};
use prost::Message as _;

use super::CodecError;

/// The largest message that etcd reads from a stream. We read no larger one anywhere.
pub const MESSAGE_LIMIT: u64 = 512 << 20;
/// The largest message at the head of a snapshot; the database that follows has no limit here.
pub const SNAPSHOT_MESSAGE_LIMIT: u64 = 64 << 20;

/// Bytes of a length field.
pub(super) const LENGTH: usize = 8;

/// Appends the frame of a message.
pub fn encode_message(message: &Message, out: &mut BytesMut) {
    let len = message.encoded_len();
    out.reserve(LENGTH + len);
    out.put_u64(len as u64);
    message.encode(out).expect("a BytesMut grows as needed");
}

/// The frame of a message on its own.
pub fn encode_message_to_bytes(message: &Message) -> Bytes {
    let mut out = BytesMut::new();
    encode_message(message, &mut out);
    out.freeze()
}

/// Takes a message's frame off the front of `buffer`; `None` when it is not all there yet.
pub fn decode_message(buffer: &mut BytesMut, limit: u64) -> Result<Option<Message>, CodecError> {
    match take_block(buffer, 0, limit)? {
        Some(block) => Ok(Some(Message::decode(block)?)),
        None => Ok(None),
    }
}

/// Takes `skip` bytes, a length and as many bytes as it says, once all are there.
pub(super) fn take_block(
    buffer: &mut BytesMut,
    skip: usize,
    limit: u64,
) -> Result<Option<Bytes>, CodecError> {
    let Some(mut field) = buffer.get(skip..skip + LENGTH) else { return Ok(None) };
    let claimed = field.get_u64();
    if claimed > limit {
        return Err(CodecError::TooLarge { claimed, limit });
    }
    let len = usize::try_from(claimed).map_err(|_| CodecError::TooLarge { claimed, limit })?;
    let start = skip + LENGTH;
    if buffer.len() - start < len {
        return Ok(None);
    }
    buffer.advance(start);
    Ok(Some(buffer.split_to(len).freeze()))
}

/// The sign of life on the message stream: a heartbeat from nobody to nobody, which raft never sends.
pub(super) fn link_heartbeat() -> Message {
    Message { r#type: Some(MessageType::MsgHeartbeat as i32), ..Message::default() }
}

/// Whether a message is the sign of life of a connection.
pub fn is_link_heartbeat(message: &Message) -> bool {
    message.r#type == Some(MessageType::MsgHeartbeat as i32)
        && message.from.unwrap_or(0) == 0
        && message.to.unwrap_or(0) == 0
}
