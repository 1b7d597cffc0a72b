//! An encoded message becomes JSON.
//!
//! Input: the type of the message and its bytes. Output: protobuf's JSON mapping as etcd's gateway
//! writes it: the names of the .proto files, defaults left out, 64-bit numbers as strings, bytes in
//! base64, enums by name.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

/// Stack that one level of nesting needs at most.
const STACK: usize = 64 << 10;

/// One value on the wire.
enum Value {
    Number(u64),
    Content(Bytes),
}

/// Appends a message as JSON.
pub(crate) fn encode(
    message: &MessageDescriptor,
    mut bytes: Bytes,
    out: &mut String,
) -> Result<(), DecodeError> {
    let context = DecodeContext::default();
    let mut fields: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    while bytes.has_remaining() {
        let (tag, wire) = decode_key(&mut bytes)?;
        let value = match wire {
            WireType::Varint => Value::Number(decode_varint(&mut bytes)?),
            WireType::LengthDelimited => {
                let mut content = Bytes::new();
                prost::encoding::bytes::merge(wire, &mut content, &mut bytes, context.clone())?;
                Value::Content(content)
            }
            _ => {
                skip_field(wire, tag, &mut bytes, context.clone())?;
                continue;
            }
        };
        fields.entry(tag).or_default().push(value);
    }
    out.push('{');
    let mut first = true;
    for (tag, values) in fields {
        let Some(field) = message.get_field(tag) else { continue };
        let values = if field.is_list() { unpacked(&field, values)? } else { last(&field, values) };
        if values.is_empty() {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        push_text(field.name(), out);
        out.push(':');
        if field.is_list() {
            out.push('[');
        }
        for (at, value) in values.into_iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            push_value(&field, value, out)?;
        }
        if field.is_list() {
            out.push(']');
        }
    }
    out.push('}');
    Ok(())
}

/// The value that counts, unless it is what a reader assumes anyway.
fn last(field: &FieldDescriptor, values: Vec<Value>) -> Vec<Value> {
    let is_default = |value: &Value| match value {
        Value::Number(number) => *number == 0,
        Value::Content(content) => content.is_empty(),
    };
    let last = values.into_iter().last();
    last.into_iter().filter(|value| field.supports_presence() || !is_default(value)).collect()
}

/// Numbers of a list may stand in one piece.
fn unpacked(field: &FieldDescriptor, values: Vec<Value>) -> Result<Vec<Value>, DecodeError> {
    if matches!(field.kind(), Kind::String | Kind::Bytes | Kind::Message(_)) {
        return Ok(values);
    }
    let mut numbers = Vec::new();
    for value in values {
        match value {
            Value::Content(mut content) => {
                while content.has_remaining() {
                    numbers.push(Value::Number(decode_varint(&mut content)?));
                }
            }
            number @ Value::Number(_) => numbers.push(number),
        }
    }
    Ok(numbers)
}

fn push_value(field: &FieldDescriptor, value: Value, out: &mut String) -> Result<(), DecodeError> {
    match (field.kind(), value) {
        (Kind::Message(message), Value::Content(content)) => {
            return stacker::maybe_grow(STACK, 16 * STACK, || encode(&message, content, out));
        }
        (Kind::Bytes, Value::Content(content)) => {
            out.push('"');
            STANDARD.encode_string(&content, out);
            out.push('"');
        }
        (Kind::String, Value::Content(content)) => {
            push_text(&String::from_utf8_lossy(&content), out);
        }
        (Kind::Bool, Value::Number(number)) => out.push_str(&(number != 0).to_string()),
        (Kind::Int64, Value::Number(number)) => {
            out.push_str(&format!("\"{}\"", number.cast_signed()));
        }
        (Kind::Uint64, Value::Number(number)) => out.push_str(&format!("\"{number}\"")),
        (Kind::Enum(names), Value::Number(number)) => {
            // Enums and 32-bit numbers are sign-extended on the wire.
            let number = number as i32;
            match names.get_value(number) {
                Some(name) => push_text(name.name(), out),
                None => out.push_str(&number.to_string()),
            }
        }
        (Kind::Int32, Value::Number(number)) => out.push_str(&(number as i32).to_string()),
        (Kind::Uint32, Value::Number(number)) => out.push_str(&(number as u32).to_string()),
        // No message of etcd has one.
        _ => out.push_str("null"),
    }
    Ok(())
}

/// Appends a JSON string.
pub(crate) fn push_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use mainstay_proto::{etcdserverpb as pb, mvccpb};
    use prost::Message;

    use super::*;
    use crate::gateway::types;

    fn written(name: &str, message: &impl Message) -> String {
        let kind = types().get_message_by_name(&format!("etcdserverpb.{name}")).unwrap();
        let mut out = String::new();
        encode(&kind, message.encode_to_vec().into(), &mut out).unwrap();
        out
    }

    #[test]
    fn messages_are_written_as_etcd_writes_them() {
        let header =
            Some(pb::ResponseHeader { cluster_id: u64::MAX, revision: 2, ..Default::default() });
        let kv = mvccpb::KeyValue {
            key: "foo".into(),
            create_revision: 2,
            mod_revision: 2,
            version: 1,
            value: "bar".into(),
            lease: -1,
        };
        let range = pb::RangeResponse { header, kvs: vec![kv.clone()], more: true, count: 1 };
        assert_eq!(
            written("RangeResponse", &range),
            r#"{"header":{"cluster_id":"18446744073709551615","revision":"2"},"kvs":[{"key":"Zm9v","create_revision":"2","mod_revision":"2","version":"1","value":"YmFy","lease":"-1"}],"more":true,"count":"1"}"#
        );
        let event = mvccpb::Event { r#type: 1, kv: Some(kv), prev_kv: None };
        let event = mvccpb::Event { kv: Some(mvccpb::KeyValue::default()), ..event };
        let watch = pb::WatchResponse { events: vec![event], ..Default::default() };
        assert_eq!(written("WatchResponse", &watch), r#"{"events":[{"type":"DELETE","kv":{}}]}"#);
        let alarm = pb::AlarmResponse {
            alarms: vec![pb::AlarmMember { member_id: 1, alarm: 1 }, pb::AlarmMember::default()],
            header: None,
        };
        assert_eq!(
            written("AlarmResponse", &alarm),
            r#"{"alarms":[{"memberID":"1","alarm":"NOSPACE"},{}]}"#
        );
        let users = pb::AuthUserListResponse { header: None, users: vec!["a\"\u{1}<".to_owned()] };
        assert_eq!(written("AuthUserListResponse", &users), r#"{"users":["a\"\u0001<"]}"#);
    }
}
