//! The password hash that a request carries as base64, decoded as Go does it: line ends are passed
//! over, padding is required, bits behind the last byte are not looked at.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

const GOS: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The bytes; `None` if it is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    GOS.decode(text.replace(['\r', '\n'], "")).ok()
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
