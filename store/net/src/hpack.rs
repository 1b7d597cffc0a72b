//! The little of HPACK (RFC 7541) that finds the `:authority` of a header block and mends it.
//!
//! Input: a header block, or the leading part of one. Output: the place of the literal value
//! whose name is entry 1 of the static table, and for a value that is no authority one that is.
//! No table state is kept: an authority that a client sends by an index is one it sent before.
//!
//! **Invariants:** a mended value has as many bytes as the one it replaces, as sent *and* as
//! decoded, so that frame lengths stay true and the dynamic tables of both ends agree; it parses
//! as [`Authority`]. A value that cannot be mended so is left as it is.

use std::ops::Range;

use http::uri::Authority;

/// Where the value of `:authority` is in a header block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// The value's bytes.
    pub(crate) place: Range<usize>,
    /// Whether they are Huffman coded.
    pub(crate) huffman: bool,
}

/// Index of the name `:authority` in the static table.
const AUTHORITY: usize = 1;

/// Finds the first literal value of `:authority`. `None` when there is none, or when the block
/// ends or breaks before it.
pub(crate) fn find_authority(block: &[u8]) -> Option<Field> {
    let mut cursor = Cursor { block, at: 0 };
    loop {
        let name = match block.get(cursor.at)?.leading_zeros() {
            // A field that is all in a table.
            0 => {
                cursor.integer(7)?;
                continue;
            }
            // A literal that enters the dynamic table.
            1 => cursor.integer(6)?,
            // A new size of the dynamic table.
            2 => {
                cursor.integer(5)?;
                continue;
            }
            // A literal that does not.
            _ => cursor.integer(4)?,
        };
        if name == 0 {
            cursor.string()?;
        }
        let value = cursor.string()?;
        if name == AUTHORITY {
            return Some(value);
        }
    }
}

/// Reads HPACK's primitives from the front of a block.
struct Cursor<'a> {
    block: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// An integer whose first `bits` bits are the low ones of the next byte.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let full = (1usize << bits) - 1;
        let mut value = usize::from(*self.block.get(self.at)?) & full;
        self.at += 1;
        if value < full {
            return Some(value);
        }
        // Three more bytes count beyond any block that is held.
        for shift in [0, 7, 14] {
            let byte = *self.block.get(self.at)?;
            self.at += 1;
            value += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn string(&mut self) -> Option<Field> {
        let huffman = self.block.get(self.at)? & 0x80 != 0;
        let len = self.integer(7)?;
        let place = self.at..self.at + len;
        self.block.get(place.clone())?;
        self.at = place.end;
        Some(Field { place, huffman })
    }
}

/// Makes an authority of the value in place; says whether it had to, and could.
pub(crate) fn mend(value: &mut [u8], huffman: bool) -> bool {
    let decoded = if huffman { decode(value) } else { Some(value.to_vec()) };
    let Some(mut text) = decoded else { return false };
    if is_authority(&text) || replace(&mut text).is_none() || !is_authority(&text) {
        return false;
    }
    let sent = if huffman { encode(&text) } else { Some(text) };
    match sent {
        Some(sent) if sent.len() == value.len() => {
            value.copy_from_slice(&sent);
            true
        }
        _ => false,
    }
}

fn is_authority(text: &[u8]) -> bool {
    Authority::try_from(text).is_ok()
}

/// Keeps what may be in the name of a host, and the last colon for the port; the rest becomes the
/// stand-in of its class. `None` if a character has none.
fn replace(text: &mut [u8]) -> Option<()> {
    let port = text.iter().rposition(|&byte| byte == b':');
    for (at, byte) in text.iter_mut().enumerate() {
        let keep = byte.is_ascii_alphanumeric() || b"-._~,".contains(byte) || Some(at) == port;
        if !keep {
            *byte = CLASSES.iter().find(|class| class.symbols.contains(byte))?.stand_in?;
        }
    }
    Some(())
}

/// The symbols with Huffman codes of one length, in the order of their codes.
struct Class {
    bits: u32,
    symbols: &'static [u8],
    /// One of them that an authority may have anywhere.
    stand_in: Option<u8>,
}

const fn class(bits: u32, symbols: &'static [u8], stand_in: Option<u8>) -> Class {
    Class { bits, symbols, stand_in }
}

/// The codes of RFC 7541, appendix B, of up to 13 bits. The code is canonical: a code is the one
/// before it plus one, with zeros appended where the length grows, so lengths and order say it
/// all. The symbols left out are control characters, bytes beyond ASCII, and ``^}<`{\``: none has
/// a stand-in.
const CLASSES: [Class; 8] = [
    class(5, b"012aceiost", Some(b'o')),
    class(6, b" %-./3456789=A_bdfghlmnpru", Some(b'-')),
    class(7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz", Some(b'B')),
    class(8, b"&*,;XZ", Some(b'X')),
    class(10, b"!\"()?", Some(b'!')),
    class(11, b"'+|", Some(b'+')),
    class(12, b"#>", None),
    class(13, b"\0$@[]~", Some(b'~')),
];

/// Each class with its first code.
fn classes() -> impl Iterator<Item = (u32, &'static Class)> {
    CLASSES.iter().scan((0u32, 0u32), |(next, bits), class| {
        let first = *next << (class.bits - *bits);
        *next = first + class.symbols.len() as u32;
        *bits = class.bits;
        Some((first, class))
    })
}

fn decode(sent: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(sent.len() * 8 / 5);
    let (mut code, mut bits) = (0u32, 0u32);
    for at in 0..sent.len() * 8 {
        code = code << 1 | u32::from(sent[at / 8] >> (7 - at % 8) & 1);
        bits += 1;
        let found = classes().find(|(_, class)| class.bits == bits).and_then(|(first, class)| {
            let place = usize::try_from(code.checked_sub(first)?).ok()?;
            class.symbols.get(place)
        });
        if let Some(symbol) = found {
            text.push(*symbol);
            (code, bits) = (0, 0);
        } else if bits == CLASSES[CLASSES.len() - 1].bits {
            return None;
        }
    }
    // The last byte is filled with ones.
    (bits < 8 && code == (1 << bits) - 1).then_some(text)
}

fn encode(text: &[u8]) -> Option<Vec<u8>> {
    let mut sent = Vec::with_capacity(text.len());
    let (mut pending, mut bits) = (0u32, 0u32);
    for symbol in text {
        let (code, width) = classes().find_map(|(first, class)| {
            let place = class.symbols.iter().position(|other| other == symbol)?;
            Some((first + u32::try_from(place).ok()?, class.bits))
        })?;
        pending = pending << width | code;
        bits += width;
        while bits >= 8 {
            bits -= 8;
            sent.push((pending >> bits) as u8);
            pending &= (1 << bits) - 1;
        }
    }
    if bits > 0 {
        let fill = 8 - bits;
        sent.push((pending << fill) as u8 | ((1u8 << fill) - 1));
    }
    Some(sent)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A literal with the name at `index`, in the form that the high bits of `form` choose.
    pub(crate) fn literal(form: u8, index: u8, value: &str, huffman: bool) -> Vec<u8> {
        let sent =
            if huffman { encode(value.as_bytes()).unwrap() } else { value.as_bytes().to_vec() };
        let high = if huffman { 0x80 } else { 0 };
        let mut out = vec![form | index];
        match sent.len() {
            short @ 0..127 => out.push(high | short as u8),
            long => out.extend([
                high | 127,
                ((long - 127) & 0x7f | 0x80) as u8,
                ((long - 127) >> 7) as u8,
            ]),
        }
        out.extend(sent);
        out
    }

    fn mended(value: &str, huffman: bool) -> Option<String> {
        let mut sent = if huffman { encode(value.as_bytes())? } else { value.as_bytes().to_vec() };
        let changed = mend(&mut sent, huffman);
        let text = if huffman { decode(&sent).unwrap() } else { sent };
        changed.then(|| String::from_utf8(text).unwrap())
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn the_code_is_the_one_of_the_rfc() {
        // From appendix C, and single codes of appendix B filled with ones.
        let known: [(&str, &str); 12] = [
            ("www.example.com", "f1e3 c2e5 f23a 6ba0 ab90 f4ff"),
            ("no-cache", "a8eb 1064 9cbf"),
            ("custom-value", "25a8 49e9 5bb8 e8b4 bf"),
            ("302", "6402"),
            (
                "Mon, 21 Oct 2013 20:13:21 GMT",
                "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff",
            ),
            ("https://www.example.com", "9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3"),
            (
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
                "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 \
                 3160 65c0 03ed 4ee5 b106 3d50 07",
            ),
            ("?", "ff3f"),
            ("|", "ff9f"),
            (">", "ffbf"),
            ("[", "ffdf"),
            ("~", "ffef"),
        ];
        for (text, sent) in known {
            assert_eq!(encode(text.as_bytes()).unwrap(), hex(sent), "{text}");
            assert_eq!(decode(&hex(sent)).unwrap(), text.as_bytes());
        }
        // 30 bits of ones end a string; eight or more bits of filling are no string.
        assert_eq!(decode(&[0x64, 0x02, 0xff]), None);
        assert_eq!(decode(&[0x00, 0x00]), None);
    }

    #[test]
    fn each_stand_in_is_of_its_class_and_of_an_authority() {
        for class in &CLASSES {
            if let Some(stand_in) = class.stand_in {
                assert!(class.symbols.contains(&stand_in));
                assert!(is_authority(&[stand_in]), "{}", stand_in as char);
            }
        }
    }

    #[test]
    fn endpoints_become_authorities() {
        for huffman in [false, true] {
            for (sent, expected) in [
                ("http://127.0.0.1:2379", "httpB--127.0.0.1:2379"),
                ("https://[::1]:2379", "httpsB--~BB1~:2379"),
                ("http://a_b.example:1,http://c:2", "httpB--a_b.exampleB1,httpB--c:2"),
                ("unix:///run/x.sock", "unix:---run-x.sock"),
                ("unix://localhost:27001", "unixB--localhost:27001"),
                ("/run/x.sock", "-run-x.sock"),
                ("http://h:1/p%20q?a=b@c|d", "httpB--h:1-p-20q!a-b~c+d"),
            ] {
                assert_eq!(mended(sent, huffman).as_deref(), Some(expected));
            }
            for good in ["127.0.0.1:2379", "[::1]:2379", "localhost:x", "user@host", "a:"] {
                assert_eq!(mended(good, huffman), None);
            }
            for hopeless in ["http://a#b:1", "http://a>b", ""] {
                assert_eq!(mended(hopeless, huffman), None);
            }
        }
        assert_eq!(mended("http://a\\b\u{e9}", false), None);
    }

    #[test]
    fn the_authority_is_found_behind_every_other_form() {
        // Two indexed fields and a size of the table that takes three bytes.
        let mut block = vec![0x83, 0x86, 0x3f, 0xe1, 0x1f];
        block.extend(literal(0x40, 4, "/etcdserverpb.Maintenance/Status", true));
        // A name whose index does not fit into four bits, a name that is spelled out, and an
        // index that takes two bytes.
        block.extend([0x0f, 58 - 15, 1, b'x']);
        block.extend([0x10, 1, b'n', 1, b'v']);
        block.extend([0xff, 0x00]);
        for form in [0x40, 0x00, 0x10] {
            let long = "a".repeat(300);
            for value in ["http://x:1", long.as_str()] {
                for huffman in [false, true] {
                    let mut whole = block.clone();
                    whole.extend(literal(form, 1, value, huffman));
                    let len =
                        if huffman { encode(value.as_bytes()).unwrap().len() } else { value.len() };
                    let field = Field { place: whole.len() - len..whole.len(), huffman };
                    assert_eq!(find_authority(&whole), Some(field));
                    assert_eq!(find_authority(&whole[..whole.len() - 1]), None);
                }
            }
        }
        assert_eq!(find_authority(&block), None);
        assert_eq!(find_authority(&[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
    }

    proptest! {
        #[test]
        fn a_mended_value_is_an_authority_of_the_same_lengths(
            value in "[ -~]{0,80}", huffman: bool,
        ) {
            let text = value.as_bytes();
            let sent = if huffman { encode(text) } else { Some(text.to_vec()) };
            // None: characters whose codes are not in the table.
            let Some(mut sent) = sent else { return Ok(()) };
            let before = sent.clone();
            let changed = mend(&mut sent, huffman);
            prop_assert_eq!(sent.len(), before.len());
            let text = if huffman { decode(&sent).unwrap() } else { sent.clone() };
            prop_assert_eq!(text.len(), value.len());
            prop_assert_eq!(changed, text != value.as_bytes());
            if changed {
                prop_assert!(is_authority(&text));
                for (new, old) in text.iter().zip(value.bytes()) {
                    prop_assert!(*new == old || !old.is_ascii_alphanumeric());
                }
            }
        }

        #[test]
        fn only_hopeless_characters_hinder(
            value in "[a-z0-9:/?@%= \\[\\],.|-]{1,60}", huffman: bool,
        ) {
            let text = mended(&value, huffman).unwrap_or(value);
            prop_assert!(is_authority(text.as_bytes()), "{}", text);
        }

        #[test]
        fn garbage_is_survived(
            mut block in proptest::collection::vec(any::<u8>(), 0..200), huffman: bool,
        ) {
            if let Some(field) = find_authority(&block) {
                prop_assert!(field.place.end <= block.len());
            }
            let len = block.len();
            mend(&mut block, huffman);
            prop_assert_eq!(block.len(), len);
        }
    }
}
