//! Whatever goes in comes out, in whatever pieces; garbage is an error and never more than that.

use bytes::{BufMut, Bytes, BytesMut};
use mainstay_proto::raftpb::{ConfState, Entry, Message, MessageType, Snapshot, SnapshotMetadata};
use proptest::prelude::*;

use super::*;

const LOCAL: u64 = 0xa1;
const REMOTE: u64 = 0xb2;

fn entry(term: u64, index: u64, data: Vec<u8>) -> Entry {
    Entry { r#type: Some(0), term: Some(term), index: Some(index), data: Some(Bytes::from(data)) }
}

fn append(term: u64, log_term: u64, index: u64, entries: Vec<Entry>, commit: u64) -> Message {
    Message {
        r#type: Some(MessageType::MsgApp as i32),
        to: Some(REMOTE),
        from: Some(LOCAL),
        term: Some(term),
        log_term: Some(log_term),
        index: Some(index),
        entries,
        commit: Some(commit),
        ..Message::default()
    }
}

fn decode_all(
    kind: StreamKind,
    bytes: &[u8],
    pieces: &[usize],
) -> Result<(Vec<Frame>, usize), CodecError> {
    let mut decoder = Decoder::new(kind, REMOTE, LOCAL);
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    let mut rest = bytes;
    let mut sizes = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len()).clamp(1, rest.len());
        let (piece, tail) = rest.split_at(size);
        buffer.extend_from_slice(piece);
        rest = tail;
        while let Some(frame) = decoder.decode(&mut buffer)? {
            frames.push(frame);
        }
    }
    Ok((frames, buffer.len()))
}

#[test]
fn the_short_form_is_used_only_where_all_follows() {
    let mut encoder = MsgAppEncoder::new(LOCAL, REMOTE);
    let mut first_byte = |message: &Message| {
        let mut out = BytesMut::new();
        encoder.encode(message, &mut out);
        out[0]
    };
    let data = || vec![1, 2, 3];
    // The first frame of a connection is whole, even where zero would follow from zero.
    assert_eq!(first_byte(&append(5, 4, 10, vec![entry(5, 11, data())], 10)), 2);
    // The log term of the next is the term of the last.
    assert_eq!(first_byte(&append(5, 5, 11, vec![entry(5, 12, data())], 11)), 1);
    assert_eq!(first_byte(&append(5, 5, 12, vec![], 12)), 1);
    // A step back, a new term, an older log term, another sender, a gap: whole again.
    assert_eq!(first_byte(&append(5, 5, 11, vec![entry(5, 12, data())], 12)), 2);
    assert_eq!(first_byte(&append(6, 5, 12, vec![], 12)), 2);
    assert_eq!(first_byte(&append(6, 6, 12, vec![], 12)), 1);
    assert_eq!(first_byte(&append(6, 6, 12, vec![entry(6, 14, data())], 12)), 2);
    let mut forwarded = append(6, 6, 14, vec![], 12);
    forwarded.from = Some(7);
    assert_eq!(first_byte(&forwarded), 2);
    let mut with_context = append(6, 6, 14, vec![], 12);
    with_context.context = Some(Bytes::from_static(b"x"));
    assert_eq!(first_byte(&with_context), 2);
}

#[test]
fn frames_have_the_bytes_of_etcd() {
    let mut out = BytesMut::new();
    let mut app = Encoder::new(StreamKind::MsgApp, LOCAL, REMOTE);
    app.heartbeat(&mut out);
    assert_eq!(&out[..], [0]);
    out.clear();
    Encoder::new(StreamKind::Message, LOCAL, REMOTE).heartbeat(&mut out);
    assert_eq!(&out[..], [0, 0, 0, 0, 0, 0, 0, 2, 8, 8]);
    out.clear();
    app.encode(&append(2, 2, 1, vec![], 1), &mut out);
    let message = [8, 3, 16, 0xb2, 1, 24, 0xa1, 1, 32, 2, 40, 2, 48, 1, 64, 1];
    assert_eq!(&out[..9], [2, 0, 0, 0, 0, 0, 0, 0, message.len() as u8]);
    assert_eq!(&out[9..], message);
    out.clear();
    app.encode(&append(2, 2, 1, vec![entry(2, 2, b"hi".to_vec())], 1), &mut out);
    let short = [8, 0, 16, 2, 24, 2, 34, 2, b'h', b'i'];
    assert_eq!(&out[..17], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, short.len() as u8]);
    assert_eq!(&out[17..27], short);
    assert_eq!(&out[27..], [0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn lengths_that_lie_are_refused_before_memory_is_taken() {
    let claim = |prefix: &[u8], claimed: u64| {
        let mut bytes = BytesMut::from(prefix);
        bytes.put_u64(claimed);
        bytes
    };
    for claimed in [MESSAGE_LIMIT + 1, u64::MAX, i64::MAX as u64] {
        let plain = claim(&[], claimed);
        let error = decode_all(StreamKind::Message, &plain, &[]).unwrap_err();
        assert_eq!(error, CodecError::TooLarge { claimed, limit: MESSAGE_LIMIT });
        let full = claim(&[2], claimed);
        let error = decode_all(StreamKind::MsgApp, &full, &[]).unwrap_err();
        assert_eq!(error, CodecError::TooLarge { claimed, limit: MESSAGE_LIMIT });
    }
    // A claim within the limit waits, and takes nothing.
    let mut buffer = claim(&[2], MESSAGE_LIMIT);
    let mut decoder = Decoder::new(StreamKind::MsgApp, REMOTE, LOCAL);
    assert_eq!(decoder.decode(&mut buffer), Ok(None));
    assert!(buffer.capacity() < 1 << 16);

    let mut opening = BytesMut::new();
    MsgAppEncoder::new(LOCAL, REMOTE).encode(&append(2, 2, 1, vec![], 1), &mut opening);
    for claimed in [u64::MAX, MESSAGE_LIMIT] {
        let mut bytes = opening.clone();
        bytes.put_u8(1);
        bytes.put_u64(claimed);
        assert!(matches!(
            decode_all(StreamKind::MsgApp, &bytes, &[]).unwrap_err(),
            CodecError::TooLarge { .. }
        ));
    }
}

#[test]
fn short_frames_need_something_to_lean_on() {
    let mut bytes = BytesMut::new();
    bytes.put_u8(1);
    assert_eq!(decode_all(StreamKind::MsgApp, &bytes, &[]).unwrap_err(), CodecError::NoContext);
    let mut encoder = MsgAppEncoder::new(LOCAL, REMOTE);
    let mut bytes = BytesMut::new();
    encoder.encode(&append(2, 2, 1, vec![], 1), &mut bytes);
    bytes.put_u8(1);
    bytes.put_u64(1);
    let stray = prost::Message::encode_to_vec(&entry(2, 9, vec![]));
    bytes.put_u64(stray.len() as u64);
    bytes.extend_from_slice(&stray);
    assert_eq!(
        decode_all(StreamKind::MsgApp, &bytes, &[]).unwrap_err(),
        CodecError::Gap { expected: 2, found: 9 }
    );
}

#[test]
fn unknown_frame_types_end_the_stream() {
    for kind in 3..=255u8 {
        let error = decode_all(StreamKind::MsgApp, &[kind, 0, 0], &[]).unwrap_err();
        assert_eq!(error, CodecError::UnknownType(kind));
    }
}

#[test]
fn only_messages_between_peers_pass() {
    let of = |kind: i32| Message {
        r#type: Some(kind),
        to: Some(LOCAL),
        entries: vec![entry(1, 1, vec![])],
        ..Message::default()
    };
    for kind in [2, 3, 4, 5, 6, 8, 9, 13, 14, 15, 16, 17, 18] {
        assert_eq!(check_incoming(&of(kind), LOCAL), Ok(()), "{kind}");
        assert_eq!(check_outgoing(&of(kind), LOCAL), Ok(()), "{kind}");
    }
    for kind in [0, 1, 10, 11, 12, 19, 20, 21, 22, 23, 24, -1, i32::MAX] {
        assert_eq!(check_incoming(&of(kind), LOCAL), Err(Unfit::Type(kind)));
        assert_eq!(check_outgoing(&of(kind), LOCAL), Err(Unfit::Type(kind)));
    }
    assert_eq!(check_incoming(&of(7), LOCAL), Err(Unfit::Snapshot));
    assert_eq!(check_outgoing(&of(7), LOCAL), Err(Unfit::Snapshot));
    assert_eq!(check_snapshot(&of(7), LOCAL), Err(Unfit::NoMetadata));
    assert_eq!(check_snapshot(&of(3), LOCAL), Err(Unfit::Type(3)));
    let mut snapshot = of(7);
    snapshot.snapshot = Some(Snapshot {
        data: None,
        metadata: Some(SnapshotMetadata {
            conf_state: Some(ConfState::default()),
            index: Some(5),
            term: Some(2),
        }),
    });
    assert_eq!(check_snapshot(&snapshot, LOCAL), Ok(()));
    let mut empty = of(2);
    empty.entries.clear();
    assert_eq!(check_incoming(&empty, LOCAL), Err(Unfit::EmptyProposal));
    assert_eq!(check_incoming(&of(3), REMOTE), Err(Unfit::To { to: LOCAL, expected: REMOTE }));
}

/// A row of appends as a leader sends them: mostly following, sometimes jumping.
fn appends() -> impl Strategy<Value = Vec<Message>> {
    let step = (0u8..6, 0usize..4, 0usize..40, any::<u16>());
    proptest::collection::vec(step, 1..30).prop_map(|steps| {
        let (mut term, mut index) = (1u64, 0u64);
        let mut messages = Vec::new();
        for (what, count, size, commit) in steps {
            let log_term = term;
            match what {
                0 => term += 1,
                1 => index = index.saturating_sub(3),
                _ => {}
            }
            let entries = (1..=count as u64)
                .map(|i| entry(term, index + i, vec![commit as u8; size]))
                .collect::<Vec<_>>();
            let message = append(term, log_term, index, entries, u64::from(commit));
            index += count as u64;
            messages.push(message);
        }
        messages
    })
}

fn any_message() -> impl Strategy<Value = Message> {
    let small = || proptest::option::of(any::<u64>());
    (
        proptest::option::of(0i32..19),
        small(),
        small(),
        small(),
        proptest::collection::vec(
            (any::<u64>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..50)),
            0..4,
        ),
        proptest::option::of(any::<bool>()),
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20)),
    )
        .prop_map(|(kind, to, from, index, entries, reject, context)| Message {
            r#type: kind,
            to,
            from,
            index,
            entries: entries
                .into_iter()
                .map(|(term, index, data)| entry(term, index, data))
                .collect(),
            reject,
            context: context.map(Bytes::from),
            ..Message::default()
        })
}

proptest! {
    #[test]
    fn appends_survive_the_stream(messages in appends(), pieces in proptest::collection::vec(1usize..200, 1..5)) {
        let mut encoder = Encoder::new(StreamKind::MsgApp, LOCAL, REMOTE);
        let mut bytes = BytesMut::new();
        let mut expected = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            if i % 3 == 0 {
                encoder.heartbeat(&mut bytes);
                expected.push(Frame::Heartbeat);
            }
            encoder.encode(message, &mut bytes);
            expected.push(Frame::Message(Box::new(message.clone())));
        }
        let (frames, left) = decode_all(StreamKind::MsgApp, &bytes, &pieces).unwrap();
        prop_assert_eq!(frames, expected);
        prop_assert_eq!(left, 0);
    }

    #[test]
    fn any_message_survives_both_streams(
        messages in proptest::collection::vec(any_message(), 1..6),
        pieces in proptest::collection::vec(1usize..60, 1..5),
    ) {
        for kind in [StreamKind::MsgApp, StreamKind::Message] {
            let mut encoder = Encoder::new(kind, LOCAL, REMOTE);
            let mut bytes = BytesMut::new();
            for message in &messages {
                encoder.encode(message, &mut bytes);
            }
            let (frames, left) = decode_all(kind, &bytes, &pieces).unwrap();
            let expected: Vec<_> = messages.iter().map(|message| {
                if kind == StreamKind::Message && is_link_heartbeat(message) {
                    Frame::Heartbeat
                } else {
                    Frame::Message(Box::new(message.clone()))
                }
            }).collect();
            prop_assert_eq!(frames, expected);
            prop_assert_eq!(left, 0);
        }
    }

    #[test]
    fn garbage_is_an_error_at_most(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for kind in [StreamKind::MsgApp, StreamKind::Message] {
            let _ = decode_all(kind, &bytes, &[7]);
        }
    }

    #[test]
    fn a_damaged_stream_is_an_error_at_most(
        messages in appends(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut encoder = Encoder::new(StreamKind::MsgApp, LOCAL, REMOTE);
        let mut bytes = BytesMut::new();
        for message in &messages {
            encoder.encode(message, &mut bytes);
        }
        let mut bytes = bytes.to_vec();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if let Ok((frames, _)) = decode_all(StreamKind::MsgApp, &bytes, &[64]) {
            for frame in frames {
                if let Frame::Message(message) = frame {
                    let _ = check_incoming(&message, REMOTE);
                }
            }
        }
    }
}
