//! The JSON that etcd keeps in bucket rows and in the contexts of conf changes.
//!
//! **Invariant:** what is written here is byte for byte what Go's `encoding/json` writes for the
//! same member: field order, omitted fields, `null` for no peer URLs, and its escapes of `<`, `>`,
//! `&` and of the two line separators of Unicode.

use mainstay_proto::raftpb::ConfState;
use serde::{Deserialize, Deserializer, Serialize};

use super::Member;

/// The context of an AddNode or AddLearnerNode change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ChangeContext {
    /// The new member; of a promotion, only the id counts.
    #[serde(flatten)]
    pub member: Member,
    /// Whether a learner becomes a voter.
    #[serde(rename = "isPromote", default)]
    pub is_promote: bool,
}

/// Reads `null` as no list.
pub(crate) fn null_to_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(from)?.unwrap_or_default())
}

/// The row of a member in `members`, and the context of a change that adds it.
pub fn member(member: &Member) -> String {
    to_go_json(member)
}

/// The context of a change that makes a learner a voter.
pub fn promote_context(id: u64) -> String {
    format!(r#"{{"id":{id},"peerURLs":null,"isPromote":true}}"#)
}

/// The context of a change of peer URLs.
pub fn update_context(id: u64, peer_urls: Vec<String>) -> String {
    member(&Member { id, peer_urls: Some(peer_urls), ..Member::default() })
}

/// Serializes as Go does.
pub(crate) fn to_go_json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("plain data always serializes");
    // These characters can only stand within strings.
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => out.push(other),
        }
    }
    out
}

#[derive(Serialize, Deserialize)]
struct ConfStateJson {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    voters: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    learners: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    voters_outgoing: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    learners_next: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auto_leave: Option<bool>,
}

/// The row `confState` of `meta`.
pub fn conf_state(state: &ConfState) -> String {
    to_go_json(&ConfStateJson {
        voters: state.voters.clone(),
        learners: state.learners.clone(),
        voters_outgoing: state.voters_outgoing.clone(),
        learners_next: state.learners_next.clone(),
        auto_leave: state.auto_leave,
    })
}

/// Reads the row `confState`.
pub fn parse_conf_state(json: &[u8]) -> Result<ConfState, serde_json::Error> {
    let state: ConfStateJson = serde_json::from_slice(json)?;
    Ok(ConfState {
        voters: state.voters,
        learners: state.learners,
        voters_outgoing: state.voters_outgoing,
        learners_next: state.learners_next,
        auto_leave: state.auto_leave,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_etcds() {
        let urls = || vec!["http://10.0.0.1:2380".to_owned()];
        let voter = Member::new(7, "m1", urls(), false);
        assert_eq!(member(&voter), r#"{"id":7,"peerURLs":["http://10.0.0.1:2380"],"name":"m1"}"#);
        let learner = Member::new(u64::MAX, "", urls(), true);
        assert_eq!(
            member(&learner),
            r#"{"id":18446744073709551615,"peerURLs":["http://10.0.0.1:2380"],"isLearner":true}"#
        );
        assert_eq!(update_context(7, urls()), r#"{"id":7,"peerURLs":["http://10.0.0.1:2380"]}"#);
        let promotion = promote_context(7);
        assert_eq!(promotion, r#"{"id":7,"peerURLs":null,"isPromote":true}"#);
        let read: ChangeContext = serde_json::from_str(&promotion).unwrap();
        assert!(read.is_promote && read.member.peer_urls.is_none() && read.member.id == 7);
    }

    #[test]
    fn strings_are_escaped_as_go_does() {
        let named = Member::new(1, "a<b>&\u{2028}\"\\\u{1}ü", vec![], false);
        let json = member(&named);
        assert_eq!(
            json,
            "{\"id\":1,\"peerURLs\":[],\"name\":\"a\\u003cb\\u003e\\u0026\\u2028\\\"\\\\\\u0001ü\"}"
        );
        assert_eq!(serde_json::from_str::<Member>(&json).unwrap(), named);
    }

    #[test]
    fn rows_with_nulls_and_unknown_fields_are_read() {
        let json = r#"{"id":5,"peerURLs":["u"],"name":"n","clientURLs":null,"future":[1]}"#;
        let read: Member = serde_json::from_str(json).unwrap();
        assert_eq!(read, Member::new(5, "n", vec!["u".into()], false));
    }

    #[test]
    fn conf_states() {
        let state = ConfState {
            voters: vec![1, 2],
            learners: vec![3],
            auto_leave: Some(false),
            ..Default::default()
        };
        let json = conf_state(&state);
        assert_eq!(json, r#"{"voters":[1,2],"learners":[3],"auto_leave":false}"#);
        assert_eq!(parse_conf_state(json.as_bytes()).unwrap(), state);
    }
}
