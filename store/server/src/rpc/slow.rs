//! The log line about a slow request.
//!
//! Input: a call that took long, its request as it came, its response. Output: one warning with
//! the fields of etcd's `request stats`, which operators and tests look for.
//! **Invariant:** values are never logged, only their sizes.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mainstay_net::Connection;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::request_op::Request as Op;
use prost::Message as _;

use super::call::UnaryRequest;
use super::methods::Method;

/// Characters of a request that are logged.
const MAX_CONTENT: usize = 2048;

/// What is told about a request and its response; −1 is "not counted".
pub(crate) struct Facts {
    request_count: i64,
    request_size: i64,
    response_count: i64,
    response_size: i64,
    content: String,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            request_count: -1,
            request_size: -1,
            response_count: -1,
            response_size: -1,
            content: String::new(),
        }
    }
}

/// Whether a call that took so long is logged.
pub(crate) fn is_wanted(took: Duration, limit: Duration) -> bool {
    took > limit || tracing::enabled!(tracing::Level::DEBUG)
}

/// Logs a call. The request is decoded once more: it was given to the handler.
pub(crate) fn log<R: UnaryRequest>(
    method: Method,
    took: Duration,
    peer: Option<&Connection>,
    raw: &Bytes,
    response: Option<&R::Response>,
) {
    let Ok(request) = R::decode(raw.clone()) else { return };
    let facts = request.facts(response);
    let now = SystemTime::now();
    let start = now.checked_sub(took).unwrap_or(now);
    let remote = match peer.and_then(|peer| peer.peer) {
        Some(address) => address.to_string(),
        None => "unix".to_owned(),
    };
    macro_rules! stats {
        ($level:ident) => {
            tracing::$level!(
                "start time" = timestamp(start),
                "time spent" = format!("{took:?}"),
                "remote" = remote,
                "response type" = method.path(),
                "request count" = facts.request_count,
                "request size" = facts.request_size,
                "response count" = facts.response_count,
                "response size" = facts.response_size,
                "request content" = facts.content,
                "request stats"
            )
        };
    }
    // With the level debug every request is logged, slow or not, as one of that level.
    if tracing::enabled!(tracing::Level::DEBUG) {
        stats!(debug);
    } else {
        stats!(warn);
    }
}

/// `2026-11-30T18:40:20.611579Z`.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years that begin in March have their odd day at the end; 400 of them have 146,097 days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

fn sizes<R: prost::Message>(count: i64, request_size: usize, response: Option<(i64, &R)>) -> Facts {
    let (response_count, response_size) =
        response.map_or((0, 0), |(count, response)| (count, response.encoded_len() as i64));
    Facts {
        request_count: count,
        request_size: request_size as i64,
        response_count,
        response_size,
        content: String::new(),
    }
}

impl UnaryRequest for pb::RangeRequest {
    type Response = pb::RangeResponse;

    fn served_by_learner(&self) -> bool {
        self.serializable
    }

    fn facts(&self, response: Option<&pb::RangeResponse>) -> Facts {
        let facts = sizes(0, self.encoded_len(), response.map(|r| (r.count, r)));
        Facts { content: shown(|text| range(text, self)), ..facts }
    }
}

impl UnaryRequest for pb::PutRequest {
    type Response = pb::PutResponse;

    fn facts(&self, response: Option<&pb::PutResponse>) -> Facts {
        let facts = sizes(1, self.encoded_len(), response.map(|r| (0, r)));
        Facts { content: shown(|text| put(text, self)), ..facts }
    }
}

impl UnaryRequest for pb::DeleteRangeRequest {
    type Response = pb::DeleteRangeResponse;

    fn facts(&self, response: Option<&pb::DeleteRangeResponse>) -> Facts {
        let facts = sizes(0, self.encoded_len(), response.map(|r| (r.deleted, r)));
        Facts { content: shown(|text| delete(text, self)), ..facts }
    }
}

impl UnaryRequest for pb::TxnRequest {
    type Response = pb::TxnResponse;

    fn facts(&self, response: Option<&pb::TxnResponse>) -> Facts {
        let Some(answer) = response else {
            return sizes::<pb::TxnResponse>(0, 0, None);
        };
        let taken = if answer.succeeded { &self.success } else { &self.failure };
        let size = taken.iter().map(|op| op.encoded_len()).sum();
        let facts = sizes(taken.len() as i64, size, response.map(|r| (0, r)));
        Facts { content: shown(|text| txn(text, self)), ..facts }
    }
}

fn shown(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text);
    if text.len() > MAX_CONTENT {
        let cut = text.floor_char_boundary(MAX_CONTENT);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

fn key(text: &mut String, name: &str, key: &[u8]) -> fmt::Result {
    if key.is_empty() { Ok(()) } else { write!(text, "{name}:\"{}\" ", key.escape_ascii()) }
}

fn range(text: &mut String, request: &pb::RangeRequest) -> fmt::Result {
    key(text, "key", &request.key)?;
    key(text, "range_end", &request.range_end)?;
    for (name, number) in [("limit", request.limit), ("revision", request.revision)] {
        if number != 0 {
            write!(text, "{name}:{number} ")?;
        }
    }
    let flags = [
        ("serializable", request.serializable),
        ("keys_only", request.keys_only),
        ("count_only", request.count_only),
    ];
    for (name, _) in flags.iter().filter(|(_, set)| *set) {
        write!(text, "{name}:true ")?;
    }
    Ok(())
}

fn put(text: &mut String, request: &pb::PutRequest) -> fmt::Result {
    key(text, "key", &request.key)?;
    write!(text, "value_size:{} ", request.value.len())?;
    if request.lease != 0 {
        write!(text, "lease:{} ", request.lease)?;
    }
    Ok(())
}

fn delete(text: &mut String, request: &pb::DeleteRangeRequest) -> fmt::Result {
    key(text, "key", &request.key)?;
    key(text, "range_end", &request.range_end)
}

fn txn(text: &mut String, request: &pb::TxnRequest) -> fmt::Result {
    for compare in &request.compare {
        text.push_str("compare:<");
        key(text, "key", &compare.key)?;
        text.push_str("> ");
    }
    for (branch, ops) in [("success", &request.success), ("failure", &request.failure)] {
        for op in ops {
            write!(text, "{branch}:<")?;
            match &op.request {
                Some(Op::RequestRange(request)) => range(text, request)?,
                Some(Op::RequestPut(request)) => put(text, request)?,
                Some(Op::RequestDeleteRange(request)) => delete(text, request)?,
                Some(Op::RequestTxn(request)) if text.len() < MAX_CONTENT => txn(text, request)?,
                _ => {}
            }
            text.push_str("> ");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_shown() {
        let put =
            pb::PutRequest { key: "k\n".into(), value: "secret".into(), ..Default::default() };
        let request = pb::TxnRequest {
            success: vec![pb::RequestOp { request: Some(Op::RequestPut(put)) }],
            ..Default::default()
        };
        let facts = request.facts(Some(&pb::TxnResponse { succeeded: true, ..Default::default() }));
        assert_eq!(facts.content, "success:<key:\"k\\n\" value_size:6 > ");
        assert_eq!((facts.request_count, facts.response_count), (1, 0));
    }

    #[test]
    fn times_are_written_as_in_the_log() {
        let at = |seconds, micros: u32| {
            timestamp(SystemTime::UNIX_EPOCH + Duration::new(seconds, micros * 1000))
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_827_696, 5), "2000-02-29T12:34:56.000005Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
        assert_eq!(at(1_796_064_020, 611_579), "2026-11-30T18:40:20.611579Z");
    }

    #[test]
    fn long_requests_are_cut() {
        let request = pb::RangeRequest { key: vec![b'x'; 5000].into(), ..Default::default() };
        let content = request.facts(None).content;
        assert!(content.len() <= MAX_CONTENT + 3 && content.ends_with("..."));
    }
}
