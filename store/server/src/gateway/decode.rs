//! A JSON value becomes an encoded message.
//!
//! Input: the type of the message and a value in protobuf's JSON mapping. Output: its bytes.
//! Both names of a field are taken, numbers also as strings, enums by name or number, bytes in any
//! of base64's alphabets; unknown fields and unknown names of enums are left out, as etcd's gateway
//! does. The texts of faults are those of Go's protobuf library.

use base64::Engine as _;
use base64::alphabet::{Alphabet, STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};

use super::reader::{Kind, Reader};
use super::scan::Fault;

const fn engine(alphabet: &Alphabet, padding: DecodePaddingMode) -> GeneralPurpose {
    // Go's decoder does not mind bits behind the last byte.
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(alphabet, config.with_decode_padding_mode(padding))
}
const PADDED: GeneralPurpose = engine(&STANDARD, DecodePaddingMode::RequireCanonical);
const BARE: GeneralPurpose = engine(&STANDARD, DecodePaddingMode::RequireNone);
const URL_PADDED: GeneralPurpose = engine(&URL_SAFE, DecodePaddingMode::RequireCanonical);
const URL_BARE: GeneralPurpose = engine(&URL_SAFE, DecodePaddingMode::RequireNone);

/// Stack that one level of nesting needs at most.
const STACK: usize = 64 << 10;

/// The message that a value says.
pub(crate) fn decode(message: &MessageDescriptor, value: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::with_capacity(value.len());
    object(message, &mut Reader::new(value), &mut bytes)?;
    Ok(bytes)
}

fn object(
    message: &MessageDescriptor,
    reader: &mut Reader<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    if reader.kind() != Kind::Object {
        return Err(unexpected(reader));
    }
    reader.open();
    let (mut seen, mut chosen) = (Vec::new(), Vec::new());
    while reader.more() {
        let (name, raw, at) = reader.key()?;
        let field = message.get_field_by_json_name(&name);
        let Some(field) = field.or_else(|| message.get_field_by_name(&name)) else {
            reader.skip()?;
            continue;
        };
        if seen.contains(&field.number()) {
            return Err(reader.fault(at, &format!("duplicate field {raw}")));
        }
        seen.push(field.number());
        if reader.kind() == Kind::Null {
            reader.skip()?;
            continue;
        }
        if field.is_list() {
            list(&field, reader, out)?;
            continue;
        }
        if let Some(oneof) = field.containing_oneof() {
            let name = oneof.full_name().to_owned();
            if chosen.contains(&name) {
                let what = format!("error parsing {raw}, oneof {name} is already set");
                return Err(reader.fault(at, &what));
            }
            chosen.push(name);
        }
        element(&field, reader, out)?;
    }
    Ok(())
}

fn list(field: &FieldDescriptor, reader: &mut Reader<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
    if reader.kind() != Kind::Array {
        return Err(unexpected(reader));
    }
    reader.open();
    while reader.more() {
        element(field, reader, out)?;
    }
    Ok(())
}

fn unexpected(reader: &mut Reader<'_>) -> Fault {
    let at = reader.position();
    if reader.kind() == Kind::Text {
        if let Err(fault) = reader.string() {
            return fault;
        }
    } else {
        reader.token();
    }
    reader.syntax_fault(at, &format!("unexpected token {}", reader.since(at)))
}

/// One value of a field, with its tag.
fn element(
    field: &FieldDescriptor,
    reader: &mut Reader<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let tag = field.number();
    if let FieldKind::Message(message) = field.kind() {
        let mut inner = Vec::new();
        stacker::maybe_grow(STACK, 16 * STACK, || object(&message, reader, &mut inner))?;
        delimited(tag, &inner, out);
        return Ok(());
    }
    let at = reader.position();
    let written = scalar(field, reader, out)?;
    if written {
        return Ok(());
    }
    let (kind, name, raw) = (kind_name(field), field.json_name(), reader.since(at));
    Err(reader.fault(at, &format!("invalid value for {kind} field {name}: {raw}")))
}

/// Writes a plain value; `false` when it does not fit the field.
fn scalar(
    field: &FieldDescriptor,
    reader: &mut Reader<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, Fault> {
    let (kind, tag) = (reader.kind(), field.number());
    let text = if kind == Kind::Text { reader.string()? } else { reader.token().to_owned() };
    let is_text = kind == Kind::Text;
    let number = match field.kind() {
        FieldKind::String => {
            if is_text {
                delimited(tag, text.as_bytes(), out);
            }
            return Ok(is_text);
        }
        FieldKind::Bytes => {
            let bytes = is_text.then(|| bytes(&text)).flatten();
            if let Some(bytes) = &bytes {
                delimited(tag, bytes, out);
            }
            return Ok(bytes.is_some());
        }
        FieldKind::Bool => (kind == Kind::Bool).then_some(u64::from(text == "true")),
        FieldKind::Enum(names) if is_text => match names.get_value_by_name(&text) {
            Some(value) => Some(i64::from(value.number()).cast_unsigned()),
            None => return Ok(true),
        },
        _ if !is_text && kind != Kind::Number => None,
        FieldKind::Int32 | FieldKind::Enum(_) => {
            let number = whole(&text).and_then(|number| i32::try_from(number).ok());
            number.map(|number| i64::from(number).cast_unsigned())
        }
        FieldKind::Int64 => {
            whole(&text).and_then(|number| i64::try_from(number).ok()).map(i64::cast_unsigned)
        }
        FieldKind::Uint32 => {
            whole(&text).and_then(|number| u32::try_from(number).ok()).map(u64::from)
        }
        FieldKind::Uint64 => whole(&text).and_then(|number| u64::try_from(number).ok()),
        // No message of etcd has one.
        _ => None,
    };
    if let Some(number) = number {
        encode_key(tag, WireType::Varint, out);
        encode_varint(number, out);
    }
    Ok(number.is_some())
}

fn delimited(tag: u32, content: &[u8], out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let engine = match (text.contains(['-', '_']), text.len().is_multiple_of(4)) {
        (false, true) => &PADDED,
        (false, false) => &BARE,
        (true, true) => &URL_PADDED,
        (true, false) => &URL_BARE,
    };
    // Go goes over the ends of lines.
    let lines = text.contains(['\r', '\n']).then(|| text.replace(['\r', '\n'], ""));
    engine.decode(lines.as_deref().unwrap_or(text)).ok()
}

/// The whole number that a JSON number is, also when it is written with a point or an exponent.
fn whole(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let leading_zero = integer.len() > 1 && integer.starts_with('0');
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let point_alone = mantissa.contains('.') && fraction.is_empty();
    if integer.is_empty() || leading_zero || point_alone || !plain(integer) || !plain(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{integer}{fraction}");
    if digits.bytes().all(|digit| digit == b'0') {
        return Some(0);
    }
    let zeros = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let number = if zeros < 0 {
        let cut = digits.len().checked_sub(usize::try_from(-i64::from(zeros)).ok()?)?;
        let (kept, rest) = digits.split_at(cut);
        if rest.bytes().any(|byte| byte != b'0') {
            return None;
        }
        kept.parse::<i128>().ok()?
    } else {
        let power = 10_i128.checked_pow(u32::try_from(zeros).ok()?);
        digits.parse::<i128>().ok()?.checked_mul(power?)?
    };
    Some(if negative { -number } else { number })
}

fn kind_name(field: &FieldDescriptor) -> &'static str {
    match field.kind() {
        FieldKind::Bool => "bool",
        FieldKind::Int32 => "int32",
        FieldKind::Int64 => "int64",
        FieldKind::Uint32 => "uint32",
        FieldKind::Uint64 => "uint64",
        FieldKind::String => "string",
        FieldKind::Bytes => "bytes",
        FieldKind::Enum(_) => "enum",
        FieldKind::Message(_) => "message",
        _ => "number",
    }
}

#[cfg(test)]
mod tests {
    use mainstay_proto::etcdserverpb as pb;
    use prost::Message;

    use super::*;
    use crate::gateway::types;

    fn read<M: Message + Default>(name: &str, text: &str) -> Result<M, String> {
        let message = types().get_message_by_name(&format!("etcdserverpb.{name}")).unwrap();
        decode(&message, text.as_bytes())
            .map(|bytes| M::decode(&bytes[..]).unwrap())
            .map_err(|fault| fault.0)
    }

    fn range(text: &str) -> Result<pb::RangeRequest, String> {
        read("RangeRequest", text)
    }

    #[test]
    fn what_clients_write_is_read() {
        let wanted = pb::RangeRequest {
            key: "foo".into(),
            range_end: "fop".into(),
            limit: 5,
            sort_order: 2,
            serializable: true,
            ..Default::default()
        };
        for text in [
            r#"{"key":"Zm9v","range_end":"Zm9w","limit":5,"sort_order":"DESCEND","serializable":true}"#,
            r#" { "key" : "Zm9v" , "rangeEnd" : "Zm9w", "limit" : "5", "sortOrder" : 2,
                "serializable":true, "x": {"y":["]}",{"z":null}]}, "revision": null} "#,
            r#"{"key":"Zm9v","range_end":"Zm9w","limit":50e-1,"sort_order":2.0,"serializable":true}"#,
        ] {
            assert_eq!(range(text), Ok(wanted.clone()));
        }
        let key = |text| range(text).unwrap().key;
        assert_eq!(key(r#"{"key":"_-8="}"#), key(r#"{"key":"/+8"}"#));
        assert_eq!(key(r#"{"key":"YQ"}"#), "a");
        assert_eq!(key(r#"{"key":""}"#), "");
        assert_eq!(range(r#"{"sort_order":"BAD"}"#), Ok(pb::RangeRequest::default()));
        let txn: pb::TxnRequest = read(
            "TxnRequest",
            r#"{"compare":[{"key":"YQ==","target":"VALUE","value":"Yg=="}],
                "success":[{"request_put":{"key":"YQ==","value":"Yw==","lease":"-1"}},
                           {"requestRange":{"key":"YQ=="}}]}"#,
        )
        .unwrap();
        assert_eq!(txn.compare.len(), 1);
        assert_eq!(txn.success.len(), 2);
        let put =
            pb::PutRequest { key: "a".into(), value: "c".into(), lease: -1, ..Default::default() };
        assert_eq!(txn.success[0].request, Some(pb::request_op::Request::RequestPut(put)));
        let user: pb::AuthUserAddRequest =
            read("AuthUserAddRequest", r#"{"name":"\u00e4\ud83d\ude00\n"}"#).unwrap();
        assert_eq!(user.name, "ä😀\n");
    }

    /// Texts of a real etcd 3.7.3.
    #[test]
    fn faults_are_worded_as_in_etcd() {
        for (text, fault) in [
            (r#"{"key":"!!!"}"#, r#"(line 1:8): invalid value for bytes field key: "!!!""#),
            (r#"{"key":5}"#, "(line 1:8): invalid value for bytes field key: 5"),
            (
                r#"{"key":"Zm9v","limit":"x"}"#,
                r#"(line 1:23): invalid value for int64 field limit: "x""#,
            ),
            ("[]", "syntax error (line 1:1): unexpected token ["),
            ("\"a\"", "syntax error (line 1:1): unexpected token \"a\""),
            ("true", "syntax error (line 1:1): unexpected token true"),
            ("{\n \"limit\": 1.5}", "(line 2:11): invalid value for int64 field limit: 1.5"),
            (r#"{"limit":1,"limit":2}"#, r#"(line 1:12): duplicate field "limit""#),
            (r#"{"key":{}}"#, "(line 1:8): invalid value for bytes field key: {"),
            (
                r#"{"rangeEnd":"YQ="}"#,
                r#"(line 1:13): invalid value for bytes field rangeEnd: "YQ=""#,
            ),
            (r#"{"keys_only":1}"#, "(line 1:14): invalid value for bool field keysOnly: 1"),
            (
                r#"{"limit":9223372036854775808}"#,
                "(line 1:10): invalid value for int64 field limit: 9223372036854775808",
            ),
        ] {
            assert_eq!(range(text), Err(format!("proto: {fault}")), "{text}");
        }
        let txn = |text| read::<pb::TxnRequest>("TxnRequest", text).unwrap_err();
        assert_eq!(txn(r#"{"success":{}}"#), "proto: syntax error (line 1:12): unexpected token {");
        assert_eq!(
            txn(r#"{"success":[{"request_put":{},"request_range":{}}]}"#),
            "proto: (line 1:31): error parsing \"request_range\", oneof \
             etcdserverpb.RequestOp.request is already set"
        );
    }

    #[test]
    fn whole_numbers_are_found_in_any_form() {
        for (text, number) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("12e2", Some(1200)),
            ("1.20e1", Some(12)),
            ("1200e-2", Some(12)),
            ("0.0e-5", Some(0)),
            ("1e-1", None),
            ("1.", None),
            (" 1", None),
            ("01", None),
            ("", None),
            ("1e99999999999", None),
        ] {
            assert_eq!(whole(text), number, "{text}");
        }
    }
}
