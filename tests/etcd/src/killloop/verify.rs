//! Judges a run: the operations of clients and the views of watchers against the history.
//!
//! Input: operations, observations, history. Output: sentences, one for each contradiction.

use std::collections::HashMap;

use bytes::Bytes;

use super::history::{Event, History};
use super::operation::{Answer, Operation, Outcome, Request, Version};

/// Every contradiction between what clients were told and what happened.
pub(super) fn check_operations(operations: &[Operation], history: &History) -> Vec<String> {
    let mut problems = Vec::new();
    let owners = owners(operations, history, &mut problems);
    for (at, operation) in operations.iter().enumerate() {
        let Outcome::Acked { revision, answer } = &operation.outcome else { continue };
        let revision = *revision;
        let mut problem = |what: String| problems.push(format!("{what}: {operation:?}"));
        if revision > history.revision() {
            problem(format!("answered with a revision after the newest, {}", history.revision()));
            continue;
        }
        let wrote = match (&operation.request, answer) {
            (Request::Refusable { .. }, _) => {
                problem("a put with an unknown lease was acknowledged".into());
                false
            }
            (Request::Put { .. } | Request::Swap { .. }, Answer::Put(_) | Answer::Swapped) => true,
            (Request::Delete { .. } | Request::DeletePrefix { .. }, Answer::Deleted(n, _)) => {
                *n > 0
            }
            _ => false,
        };
        if wrote && owners.get(&revision) != Some(&at) {
            problem(format!("acknowledged, but revision {revision} is {:?}", history.at(revision)));
            continue;
        }
        let is_stale = match &operation.request {
            Request::Get { serializable: true, .. } => false,
            _ if wrote => revision <= operation.floor,
            _ => revision < operation.floor,
        };
        if is_stale {
            problem(format!("revision {revision}, but {} was seen before", operation.floor));
        }
        // A write answers with the state just before it; anything else with the state at it.
        let seen_at = if wrote { revision - 1 } else { revision };
        let held = |key: &Bytes| history.held(key, seen_at).cloned();
        let expected = match &operation.request {
            Request::Put { key, .. } | Request::Refusable { key, .. } => Answer::Put(held(key)),
            Request::Delete { key } => {
                let old: Vec<_> = held(key).map(|held| (key.clone(), held)).into_iter().collect();
                Answer::Deleted(old.len() as i64, old)
            }
            Request::DeletePrefix { prefix } => {
                let old = history.live(prefix, seen_at);
                Answer::Deleted(old.len() as i64, old)
            }
            Request::Swap { key, expected, .. } => {
                let found = held(key);
                if found.as_ref().map_or(0, |found| found.revision) == *expected {
                    Answer::Swapped
                } else {
                    Answer::Found(found)
                }
            }
            Request::Get { key, .. } => Answer::Found(held(key)),
        };
        if *answer != expected {
            problem(format!("the answer should be {expected:?}"));
        }
    }
    problems
}

/// Which operation made each revision.
fn owners(
    operations: &[Operation],
    history: &History,
    problems: &mut Vec<String>,
) -> HashMap<i64, usize> {
    let mut by_value: HashMap<&Bytes, usize> = HashMap::new();
    let mut acked_deletes: HashMap<i64, usize> = HashMap::new();
    // Deletes that may or may not have happened, to be used once each.
    let mut open_deletes: Vec<usize> = Vec::new();
    for (at, operation) in operations.iter().enumerate() {
        match (&operation.request, &operation.outcome) {
            (Request::Put { value, .. } | Request::Refusable { value, .. }, _) => {
                by_value.insert(value, at);
            }
            (Request::Swap { value, .. }, _) => {
                by_value.insert(value, at);
            }
            (
                Request::Delete { .. } | Request::DeletePrefix { .. },
                Outcome::Acked { revision, answer: Answer::Deleted(count, _) },
            ) if *count > 0 => {
                acked_deletes.insert(*revision, at);
            }
            (Request::Delete { .. } | Request::DeletePrefix { .. }, Outcome::Unknown(_)) => {
                open_deletes.push(at);
            }
            _ => {}
        }
    }
    // A client has one request at a time, so the earlier of its deletes came first.
    open_deletes.sort_by_key(|at| operations[*at].floor);
    let mut owners = HashMap::new();
    let mut owned = HashMap::new();
    for (revision, events) in history.revisions() {
        let first = events.first().and_then(|event| event.value.as_ref());
        let owner = match first {
            Some(value) => by_value.get(value).copied(),
            None => acked_deletes.get(&revision).copied().or_else(|| {
                let fits = |at: &usize| {
                    operations[*at].floor < revision && makes(&operations[*at], events, history)
                };
                let open = open_deletes.iter().position(fits)?;
                Some(open_deletes.remove(open))
            }),
        };
        let Some(owner) = owner else {
            problems.push(format!("nobody asked for revision {revision}: {events:?}"));
            continue;
        };
        let operation = &operations[owner];
        if !makes(operation, events, history) {
            problems.push(format!("revision {revision} is {events:?}, asked was {operation:?}"));
        }
        match &operation.outcome {
            Outcome::Failed(_) => {
                problems.push(format!("revision {revision} was refused: {operation:?}"));
            }
            Outcome::Acked { revision: acked, .. } if *acked != revision => {
                problems.push(format!("revision {revision} belongs to {operation:?}"));
            }
            _ if revision <= operation.floor => {
                problems.push(format!("revision {revision} is older than {operation:?}"));
            }
            _ => {}
        }
        if let Some(other) = owned.insert(owner, revision) {
            problems.push(format!("revisions {other} and {revision} are both {operation:?}"));
        }
        owners.insert(revision, owner);
    }
    owners
}

/// Whether these events of one revision are what the operation does.
fn makes(operation: &Operation, events: &[Event], history: &History) -> bool {
    let Some(revision) = events.first().map(|event| event.revision) else { return false };
    let before = revision - 1;
    let deletes = |keys: Vec<(Bytes, Version)>| {
        let keys = keys.into_iter().map(|(key, _)| (key, None));
        keys.eq(events.iter().map(|event| (event.key.clone(), event.value.clone())))
    };
    match &operation.request {
        Request::Put { key, value } | Request::Refusable { key, value } => {
            matches!(events, [event] if event.key == *key && event.value.as_ref() == Some(value))
        }
        Request::Swap { key, expected, value, mirror, mirror_value } => {
            matches!(events, [first, second]
                if first.key == *key && first.value.as_ref() == Some(value)
                    && second.key == *mirror && second.value.as_ref() == Some(mirror_value))
                && history.held(key, before).map_or(0, |held| held.revision) == *expected
        }
        Request::Delete { key } => deletes(
            history.held(key, before).map(|held| (key.clone(), held.clone())).into_iter().collect(),
        ),
        Request::DeletePrefix { prefix } => deletes(history.live(prefix, before)),
        Request::Get { .. } => false,
    }
}

/// What a watcher asked for.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// For messages.
    pub(super) name: String,
    /// Start of the watched keys.
    pub(super) prefix: Bytes,
    /// Whether it asked for previous values.
    pub(super) with_previous: bool,
    /// Whether deletes are filtered out.
    pub(super) puts_only: bool,
}

/// The first thing in which a watcher's view differs from the history.
pub(super) fn check_watcher(
    view: &View,
    observed: &[(i64, u64)],
    history: &History,
) -> Option<String> {
    let mut expected = history.events().iter().filter(|event| {
        event.key.starts_with(&view.prefix) && (event.value.is_some() || !view.puts_only)
    });
    let name = &view.name;
    let mut newest = 0;
    for (at, (revision, digest)) in observed.iter().enumerate() {
        let Some(event) = expected.next() else {
            return Some(format!("watcher {name}: event {at} at {revision} is not in the history"));
        };
        if *revision == event.revision && *digest == history.digest(event, view.with_previous) {
            newest = *revision;
            continue;
        }
        let what = if *revision < newest {
            "out of order"
        } else if *revision == newest && event.revision != newest {
            "doubled, or not in the history"
        } else if *revision > event.revision {
            "after a missed event"
        } else {
            "with other content"
        };
        return Some(format!(
            "watcher {name}: event {at} at revision {revision} came {what}; expected {event:?}"
        ));
    }
    let event = expected.next()?;
    Some(format!("watcher {name}: missed the end: {} events, then {event:?}", observed.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: i64, key: &str, value: &str, created: i64, version: i64) -> Event {
        Event {
            revision,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
            created,
            version,
        }
    }

    fn delete(revision: i64, key: &str) -> Event {
        let key = Bytes::copy_from_slice(key.as_bytes());
        Event { revision, key, value: None, created: 0, version: 0 }
    }

    fn held(revision: i64, value: &str) -> Option<Version> {
        Some(Version { revision, value: Bytes::copy_from_slice(value.as_bytes()) })
    }

    fn operation(floor: i64, request: Request, outcome: Outcome) -> Operation {
        Operation { client: 0, floor, request, outcome }
    }

    fn put_request(key: &'static str, value: &'static str) -> Request {
        Request::Put { key: key.into(), value: value.into() }
    }

    fn acked(revision: i64, answer: Answer) -> Outcome {
        Outcome::Acked { revision, answer }
    }

    fn events() -> Vec<Event> {
        vec![
            put(2, "a", "1", 2, 1),
            put(3, "a", "2", 2, 2),
            put(3, "m", "3", 3, 1),
            delete(4, "a"),
            put(5, "a", "5", 5, 1),
            delete(6, "a"),
            delete(6, "m"),
        ]
    }

    fn operations() -> Vec<Operation> {
        let swap = |expected, value: &'static str, mirror: &'static str| Request::Swap {
            key: "a".into(),
            expected,
            value: value.into(),
            mirror: "m".into(),
            mirror_value: mirror.into(),
        };
        vec![
            operation(1, put_request("a", "1"), acked(2, Answer::Put(None))),
            operation(2, swap(2, "2", "3"), acked(3, Answer::Swapped)),
            operation(3, swap(2, "6", "7"), acked(3, Answer::Found(held(3, "2")))),
            operation(3, Request::Delete { key: "a".into() }, Outcome::Unknown("lost".into())),
            operation(
                4,
                Request::Refusable { key: "a".into(), value: "8".into() },
                Outcome::Failed("no".into()),
            ),
            operation(4, put_request("a", "5"), Outcome::Unknown("lost".into())),
            operation(
                5,
                Request::DeletePrefix { prefix: Bytes::new() },
                acked(
                    6,
                    Answer::Deleted(
                        2,
                        vec![
                            ("a".into(), held(5, "5").unwrap()),
                            ("m".into(), held(3, "3").unwrap()),
                        ],
                    ),
                ),
            ),
            operation(
                6,
                Request::Get { key: "a".into(), serializable: true },
                acked(5, Answer::Found(held(5, "5"))),
            ),
        ]
    }

    fn problems(operations: &[Operation], events: Vec<Event>) -> Vec<String> {
        let history = History::new(events);
        let mut problems = history.problems.clone();
        problems.extend(check_operations(operations, &history));
        problems
    }

    #[test]
    fn a_right_run_has_no_problems() {
        assert_eq!(problems(&operations(), events()), Vec::<String>::new());
    }

    #[test]
    fn every_lost_or_invented_event_is_found() {
        for at in 0..events().len() {
            let mut lost = events();
            lost.remove(at);
            assert!(!problems(&operations(), lost).is_empty(), "event {at} may be lost");
            let mut doubled = events();
            doubled.insert(at, events()[at].clone());
            assert!(!problems(&operations(), doubled).is_empty(), "event {at} may come twice");
        }
    }

    #[test]
    fn every_operation_is_needed() {
        for at in [0, 1, 3, 5, 6] {
            let mut fewer = operations();
            fewer.remove(at);
            assert!(!problems(&fewer, events()).is_empty(), "operation {at} may be left out");
        }
    }

    #[test]
    fn wrong_answers_are_found() {
        let wrong = |change: fn(&mut Vec<Operation>)| {
            let mut operations = operations();
            change(&mut operations);
            assert!(!problems(&operations, events()).is_empty());
        };
        // A linearizable read of the past.
        wrong(|operations| {
            operations[7].request = Request::Get { key: "a".into(), serializable: false };
        });
        // A read of what was never there.
        wrong(|operations| operations[7].outcome = acked(4, Answer::Found(held(3, "2"))));
        // A write that was refused and done.
        wrong(|operations| operations[5].outcome = Outcome::Failed("no".into()));
        // A write that took effect before it was asked for.
        wrong(|operations| operations[5].floor = 5);
        // A comparison that held and should not have.
        wrong(|operations| {
            if let Request::Swap { expected, .. } = &mut operations[1].request {
                *expected = 1;
            }
        });
        // A wrong previous value.
        wrong(|operations| operations[0].outcome = acked(2, Answer::Put(held(1, "0"))));
        // Another revision than the acknowledged one.
        wrong(|operations| operations[0].outcome = acked(3, Answer::Put(None)));
        // A delete that says that nothing was there.
        wrong(|operations| operations[3].outcome = acked(3, Answer::Deleted(0, Vec::new())));
    }

    #[test]
    fn a_watcher_sees_all_in_order() {
        let history = History::new(events());
        let view =
            View { name: "w".into(), prefix: "a".into(), with_previous: true, puts_only: false };
        let right: Vec<(i64, u64)> = history
            .events()
            .iter()
            .filter(|event| event.key == "a")
            .map(|event| (event.revision, history.digest(event, true)))
            .collect();
        assert_eq!(check_watcher(&view, &right, &history), None);
        let found = |change: fn(&mut Vec<(i64, u64)>)| {
            let mut seen = right.clone();
            change(&mut seen);
            check_watcher(&view, &seen, &history).unwrap()
        };
        assert!(found(|seen| seen.truncate(1)).contains("missed the end"));
        assert!(found(|seen| seen.rotate_left(1)).contains("after a missed event"));
        assert!(found(|seen| seen.insert(1, seen[0])).contains("doubled"));
        assert!(found(|seen| seen.insert(3, seen[0])).contains("out of order"));
        assert!(found(|seen| seen[2].1 += 1).contains("other content"));
        assert!(found(|seen| seen.push(seen[0])).contains("not in the history"));
    }
}
