//! Query parameters of a URL.

/// Names and values, decoded, in their order.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a name.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// `+` is a space, `%XX` a byte; anything else stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values() {
        let query = Query::parse("exclude=NOSPACE&exclude=a%20b+c&verbose&bad=%4");
        assert_eq!(query.all("exclude").collect::<Vec<_>>(), ["NOSPACE", "a b c"]);
        assert_eq!(query.first("verbose"), Some(""));
        assert_eq!(query.first("bad"), Some("%4"));
        assert_eq!(query.first("none"), None);
    }
}
