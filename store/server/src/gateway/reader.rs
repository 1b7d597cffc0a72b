//! Reads one valid JSON value from front to back, and knows where it is.
//!
//! Input: a value that [`super::scan`] has cut out. Output: its tokens, with positions for the
//! texts of faults, which are those of Go's protobuf library.

use super::scan::Fault;

/// What begins at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
    Text,
    Number,
    Bool,
    Null,
}

/// A value being read.
pub(super) struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn skip_space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The byte that comes next; 0 at the end.
    fn next(&mut self) -> u8 {
        self.skip_space();
        self.text.get(self.at).copied().unwrap_or_default()
    }

    /// Where the next token begins.
    pub(super) fn position(&mut self) -> usize {
        self.skip_space();
        self.at
    }

    pub(super) fn kind(&mut self) -> Kind {
        match self.next() {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::Text,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// Goes over the byte that begins an object or array.
    pub(super) fn open(&mut self) {
        self.skip_space();
        self.at += 1;
    }

    /// Whether the object or array has another element; goes over what stands before it, or over
    /// the end.
    pub(super) fn more(&mut self) -> bool {
        match self.next() {
            b']' | b'}' => {
                self.at += 1;
                false
            }
            b',' => {
                self.at += 1;
                true
            }
            _ => true,
        }
    }

    /// The key of an object's next member, as it reads and as it stands there, with its place.
    pub(super) fn key(&mut self) -> Result<(String, &'a str, usize), Fault> {
        let start = self.position();
        let key = self.string()?;
        let raw = self.since(start);
        self.skip_space();
        // The colon.
        self.at += 1;
        Ok((key, raw, start))
    }

    /// A number, literal or opening bracket as it stands there.
    pub(super) fn token(&mut self) -> &'a str {
        let start = self.position();
        self.at += 1;
        if !matches!(self.text[start], b'{' | b'[') {
            let rest = &self.text[self.at..];
            let inside =
                |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
            self.at += rest.iter().take_while(|byte| inside(byte)).count();
        }
        self.since(start)
    }

    /// What stands between a place and here.
    pub(super) fn since(&self, start: usize) -> &'a str {
        std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default()
    }

    /// A string's content.
    pub(super) fn string(&mut self) -> Result<String, Fault> {
        let start = self.position();
        let mut content = Vec::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count();
            content.extend_from_slice(&rest[..plain]);
            self.at += plain;
            if self.text[self.at] == b'"' {
                self.at += 1;
                break;
            }
            self.escape(start, &mut content)?;
        }
        String::from_utf8(content).map_err(|_| self.syntax_fault(start, "invalid UTF-8 in string"))
    }

    fn escape(&mut self, start: usize, content: &mut Vec<u8>) -> Result<(), Fault> {
        let letter = self.text[self.at + 1];
        let byte = match letter {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let found = self.unicode();
                let found = found.ok_or_else(|| {
                    let raw = String::from_utf8_lossy(&self.text[self.at..self.at + 6]);
                    let what = format!("invalid escape code {raw:?} in string");
                    self.syntax_fault(start, &what)
                })?;
                content.extend_from_slice(found.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            other => other,
        };
        content.push(byte);
        self.at += 2;
        Ok(())
    }

    /// The character of `\uXXXX`, or of two of them. `None`, and nothing gone over, when it is half
    /// of one.
    fn unicode(&mut self) -> Option<char> {
        let unit = |at: usize| {
            let escape = self.text.get(at..at + 6)?;
            let digits = std::str::from_utf8(escape.strip_prefix(br"\u")?).ok()?;
            u16::from_str_radix(digits, 16).ok()
        };
        let first = unit(self.at)?;
        if let Some(found) = char::from_u32(first.into()) {
            self.at += 6;
            return Some(found);
        }
        let second = unit(self.at + 6)?;
        let found = char::decode_utf16([first, second]).next()?.ok()?;
        self.at += 12;
        Some(found)
    }

    /// Goes over a value, whatever it is.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        let mut depth = 0;
        loop {
            match self.next() {
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                b'"' => {
                    self.string()?;
                }
                _ => {
                    self.token();
                }
            }
            // Keys and what separates elements are inside of something.
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// A fault of what a value says.
    pub(super) fn fault(&self, at: usize, what: &str) -> Fault {
        let (line, column) = self.line_and_column(at);
        Fault(format!("proto: (line {line}:{column}): {what}"))
    }

    /// A fault of how it is written.
    pub(super) fn syntax_fault(&self, at: usize, what: &str) -> Fault {
        let (line, column) = self.line_and_column(at);
        Fault(format!("proto: syntax error (line {line}:{column}): {what}"))
    }

    fn line_and_column(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..at];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        // Bytes that continue a character count nothing.
        let column = before[start..].iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        (line, column + 1)
    }
}
