//! Cuts a stream of JSON values, one after the other, with the faults as Go's decoder words them.
//!
//! Input: the bytes of a body, in pieces of any size. Output: one value at a time as its bytes.
//! Clients see these texts, so the grammar is walked as Go walks it: a byte at a time.
//! **Invariant:** a value that is given out is valid JSON, nested at most [`MAX_DEPTH`] deep.

use bytes::{Buf, Bytes, BytesMut};

/// How deep a value may nest, as in Go.
const MAX_DEPTH: usize = 10_000;

/// What is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) String);

/// Where in a value the walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Value,
    /// After `[`: a value or the end.
    FirstElement,
    /// After `{`: a key or the end.
    FirstKey,
    Key,
    Colon,
    /// After a value inside an array or object.
    AfterElement,
    AfterMember,
    Text,
    Escape,
    /// Hexadecimal digits that are still to come.
    Hex(u8),
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// A literal, and how much of it has come.
    Literal(&'static str, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Array,
    /// A string that ends now is a key.
    Key,
    Member,
}

/// What a byte did.
enum Took {
    /// It belongs to the value.
    Yes,
    /// It belongs to the value and ends it.
    Last,
    /// The value, a number, ended before it.
    Not,
}

/// Values out of a body.
#[derive(Debug)]
pub(crate) struct Values {
    buffer: BytesMut,
    /// Bytes of the buffer that were walked.
    walked: usize,
    step: Step,
    inside: Vec<Inside>,
}

impl Values {
    pub(crate) fn new() -> Self {
        Self { buffer: BytesMut::new(), walked: 0, step: Step::Value, inside: Vec::new() }
    }

    /// Takes the next piece of the body.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Bytes that came and were not given out.
    pub(crate) fn held(&self) -> usize {
        self.buffer.len()
    }

    /// The next value, if it has come whole.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        if self.walked == 0 {
            let space = self.buffer.iter().take_while(|byte| is_space(**byte)).count();
            self.buffer.advance(space);
        }
        while let Some(byte) = self.buffer.get(self.walked).copied() {
            match self.take(byte)? {
                Took::Yes => self.walked += 1,
                Took::Last => {
                    self.walked += 1;
                    return Ok(Some(self.cut()));
                }
                Took::Not => return Ok(Some(self.cut())),
            }
        }
        Ok(None)
    }

    /// The last value of a body that has come to its end.
    pub(crate) fn finish(&mut self) -> Result<Option<Bytes>, Fault> {
        if let Some(value) = self.next()? {
            return Ok(Some(value));
        }
        if self.walked == 0 {
            return Ok(None);
        }
        let number =
            matches!(self.step, Step::Zero | Step::Digits | Step::Fraction | Step::ExponentDigits);
        if number && self.inside.is_empty() {
            return Ok(Some(self.cut()));
        }
        Err(Fault("unexpected EOF".to_owned()))
    }

    fn cut(&mut self) -> Bytes {
        let value = self.buffer.split_to(self.walked).freeze();
        self.walked = 0;
        self.step = Step::Value;
        self.inside.clear();
        value
    }

    fn take(&mut self, byte: u8) -> Result<Took, Fault> {
        let text = matches!(self.step, Step::Text | Step::Escape | Step::Hex(_));
        let number =
            matches!(self.step, Step::Zero | Step::Digits | Step::Fraction | Step::ExponentDigits);
        if is_space(byte) && !text && !number && !self.in_token() {
            return Ok(Took::Yes);
        }
        self.step = match (self.step, byte) {
            (Step::Value | Step::FirstElement, b'{') => {
                return self.open(Inside::Key, Step::FirstKey);
            }
            (Step::Value | Step::FirstElement, b'[') => {
                return self.open(Inside::Array, Step::FirstElement);
            }
            (Step::FirstElement, b']') | (Step::FirstKey, b'}') => return Ok(self.close()),
            (Step::Value | Step::FirstElement | Step::FirstKey | Step::Key, b'"') => Step::Text,
            (Step::Value | Step::FirstElement, b'-') => Step::Minus,
            (Step::Value | Step::FirstElement | Step::Minus, b'0') => Step::Zero,
            (Step::Value | Step::FirstElement | Step::Minus | Step::Digits, b'0'..=b'9') => {
                Step::Digits
            }
            (Step::Value | Step::FirstElement, b't') => Step::Literal("true", 1),
            (Step::Value | Step::FirstElement, b'f') => Step::Literal("false", 1),
            (Step::Value | Step::FirstElement, b'n') => Step::Literal("null", 1),
            (Step::Value | Step::FirstElement, _) => {
                return fault(byte, "looking for beginning of value");
            }
            (Step::FirstKey | Step::Key, _) => {
                return fault(byte, "looking for beginning of object key string");
            }
            (Step::Colon, b':') => {
                if let Some(inside) = self.inside.last_mut() {
                    *inside = Inside::Member;
                }
                Step::Value
            }
            (Step::Colon, _) => return fault(byte, "after object key"),
            (Step::AfterElement, b',') => Step::Value,
            (Step::AfterElement, b']') | (Step::AfterMember, b'}') => return Ok(self.close()),
            (Step::AfterElement, _) => return fault(byte, "after array element"),
            (Step::AfterMember, b',') => {
                if let Some(inside) = self.inside.last_mut() {
                    *inside = Inside::Key;
                }
                Step::Key
            }
            (Step::AfterMember, _) => return fault(byte, "after object key:value pair"),
            (Step::Text, b'"') => return Ok(self.ended()),
            (Step::Text, b'\\') => Step::Escape,
            (Step::Text, 0..0x20) => return fault(byte, "in string literal"),
            (Step::Text, _) => Step::Text,
            (Step::Escape, b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => Step::Text,
            (Step::Escape, b'u') => Step::Hex(4),
            (Step::Escape, _) => return fault(byte, "in string escape code"),
            (Step::Hex(1), byte) if byte.is_ascii_hexdigit() => Step::Text,
            (Step::Hex(left), byte) if byte.is_ascii_hexdigit() => Step::Hex(left - 1),
            (Step::Hex(_), _) => return fault(byte, "in \\u hexadecimal character escape"),
            (Step::Minus, _) => return fault(byte, "in numeric literal"),
            (Step::Zero | Step::Digits, b'.') => Step::Point,
            (Step::Zero | Step::Digits | Step::Fraction, b'e' | b'E') => Step::Exponent,
            (Step::Point | Step::Fraction, b'0'..=b'9') => Step::Fraction,
            (Step::Point, _) => return fault(byte, "after decimal point in numeric literal"),
            (Step::Exponent, b'+' | b'-') => Step::ExponentSign,
            (Step::Exponent | Step::ExponentSign | Step::ExponentDigits, b'0'..=b'9') => {
                Step::ExponentDigits
            }
            (Step::Exponent | Step::ExponentSign, _) => {
                return fault(byte, "in exponent of numeric literal");
            }
            // A number ends before the first byte that is not of it, which is looked at again.
            (Step::Zero | Step::Digits | Step::Fraction | Step::ExponentDigits, _) => {
                return match self.ended() {
                    Took::Last => Ok(Took::Not),
                    _ => self.take(byte),
                };
            }
            (Step::Literal(word, at), byte) if word.as_bytes()[at] == byte => {
                if at + 1 == word.len() {
                    return Ok(self.ended());
                }
                Step::Literal(word, at + 1)
            }
            (Step::Literal(word, at), _) => {
                let expected = char::from(word.as_bytes()[at]);
                return fault(byte, &format!("in literal {word} (expecting '{expected}')"));
            }
        };
        Ok(Took::Yes)
    }

    /// Whether a space would be inside of something that has none.
    fn in_token(&self) -> bool {
        matches!(
            self.step,
            Step::Minus | Step::Point | Step::Exponent | Step::ExponentSign | Step::Literal(..)
        )
    }

    fn open(&mut self, inside: Inside, step: Step) -> Result<Took, Fault> {
        if self.inside.len() == MAX_DEPTH {
            return Err(Fault("exceeded max depth".to_owned()));
        }
        self.inside.push(inside);
        self.step = step;
        Ok(Took::Yes)
    }

    fn close(&mut self) -> Took {
        self.inside.pop();
        self.ended()
    }

    /// A value, or a key, has ended.
    fn ended(&mut self) -> Took {
        self.step = match self.inside.last() {
            None => return Took::Last,
            Some(Inside::Array) => Step::AfterElement,
            Some(Inside::Key) => Step::Colon,
            Some(Inside::Member) => Step::AfterMember,
        };
        Took::Yes
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn fault<T>(byte: u8, place: &str) -> Result<T, Fault> {
    Err(Fault(format!("invalid character {} {place}", quoted(byte))))
}

/// A byte as Go quotes a character.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        0x07 => r"'\a'".to_owned(),
        0x08 => r"'\b'".to_owned(),
        0x0c => r"'\f'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x0b => r"'\v'".to_owned(),
        0..0x20 | 0x7f => format!(r"'\x{byte:02x}'"),
        // Not printable in Latin-1, as which Go reads the byte.
        0x80..=0xa0 | 0xad => format!(r"'\u00{byte:02x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, piece: usize) -> (Vec<String>, Option<String>) {
        let (mut values, mut found) = (Values::new(), Vec::new());
        let text_of = |value: Bytes| String::from_utf8(value.to_vec()).unwrap();
        for piece in text.as_bytes().chunks(piece) {
            values.push(piece);
            loop {
                match values.next() {
                    Ok(Some(value)) => found.push(text_of(value)),
                    Ok(None) => break,
                    Err(fault) => return (found, Some(fault.0)),
                }
            }
        }
        match values.finish() {
            Ok(last) => {
                found.extend(last.map(text_of));
                (found, None)
            }
            Err(fault) => (found, Some(fault.0)),
        }
    }

    #[test]
    fn values_follow_each_other_in_pieces_of_any_size() {
        let text = r#" {"a":[1,-2.5e+3,true,null,"x\"A",{}]} [] 12 "b"{"c":{"d":[]}}7"#;
        for piece in [1, 2, 3, 7, 100] {
            let (found, fault) = all(text, piece);
            assert_eq!(fault, None);
            assert_eq!(
                found,
                [
                    r#"{"a":[1,-2.5e+3,true,null,"x\"A",{}]}"#,
                    "[]",
                    "12",
                    r#""b""#,
                    r#"{"c":{"d":[]}}"#,
                    "7"
                ]
            );
        }
    }

    /// Texts of Go 1.26's encoding/json.
    #[test]
    fn faults_are_worded_as_in_go() {
        for (text, fault) in [
            ("xx", "invalid character 'x' looking for beginning of value"),
            ("{'a'", r"invalid character '\'' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("\"a\nb\"", r"invalid character '\n' in string literal"),
            ("\"\\q\"", "invalid character 'q' in string escape code"),
            ("\"\\u12x\"", "invalid character 'x' in \\u hexadecimal character escape"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("[tru ", "invalid character ' ' in literal true (expecting 'e')"),
            ("{\"a\":", "unexpected EOF"),
            ("\"a", "unexpected EOF"),
            ("-", "unexpected EOF"),
        ] {
            for piece in [1, 100] {
                assert_eq!(all(text, piece).1.as_deref(), Some(fault), "{text}");
            }
        }
        assert_eq!(all(&"[".repeat(10_001), 50).1.as_deref(), Some("exceeded max depth"));
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(all(&deep, 50), (vec![deep.clone()], None));
    }

    #[test]
    fn nothing_is_no_value() {
        assert_eq!(all(" \n ", 1), (vec![], None));
        assert_eq!(all("1 ", 1), (vec!["1".to_owned()], None));
    }
}
