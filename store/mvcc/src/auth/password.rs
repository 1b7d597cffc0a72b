//! The password hash that a request carries as base64, decoded as Go does it: line ends are passed
//! over, padding is required, bits behind the last byte are not looked at.

/// The bytes; `None` if it is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    let padding = digits.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let (digits, padded) = (&digits[..digits.len() - padding], digits.len());
    if padded % 4 != 0 {
        return None;
    }
    let mut bytes = Vec::with_capacity(padded / 4 * 3);
    let (mut bits, mut kept) = (0_u32, 0);
    for digit in digits {
        bits = bits << 6 | value(*digit)?;
        kept += 6;
        if kept >= 8 {
            kept -= 8;
            bytes.push((bits >> kept) as u8);
        }
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn takes_what_go_takes() {
        let text = |text| decode(text).map(|bytes| String::from_utf8(bytes).unwrap());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(text(""), some(""));
        assert_eq!(text("Zg=="), some("f"));
        assert_eq!(text("Zm8="), some("fo"));
        assert_eq!(text("Zm9v"), some("foo"));
        assert_eq!(text("Zm\n9v\r\nYg=\n="), some("foob"));
        assert_eq!(text("Zh=="), some("f"), "the last bits do not count");
        assert_eq!(decode("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        for wrong in
            ["Z", "Zg", "Zg=", "Zm8", "=", "==", "Z===", "====", "Zg==Zg==", "Zm-v", "Zm 9v"]
        {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
