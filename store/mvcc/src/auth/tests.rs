//! Intervals against a naive model, the order of permissions against Go's, and what is shared
//! between states.

use std::cmp::Ordering;

use bytes::Bytes;
use mainstay_proto::authpb::permission::Type;
use mainstay_proto::authpb::{Permission, Role, User};
use proptest::prelude::*;

use super::interval::{Intervals, order};
use super::permission::is_valid;
use super::{Access, AuthState, Change, Identity, sort};
use crate::Error;

fn grant(kind: Type, key: &[u8], range_end: &[u8]) -> Permission {
    let (key, range_end) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
    Permission { perm_type: kind as i32, key, range_end }
}

fn state(roles: Vec<Vec<Permission>>) -> AuthState {
    let mut state = AuthState {
        enabled: true,
        revision: 1,
        users: Default::default(),
        roles: Default::default(),
    };
    let mut user = User { name: "u".into(), ..Default::default() };
    for (number, permissions) in roles.into_iter().enumerate() {
        let name = format!("r{number}");
        user.roles.push(name.clone());
        state.adopt(Change::Role(Role { name: name.into(), key_permission: permissions }));
    }
    state.adopt(Change::User(user));
    state
}

fn who(revision: u64) -> Identity {
    Identity { user: "u".into(), revision }
}

/// All keys that are looked at in the model: those of up to three letters, and the open end.
fn keys() -> Vec<Vec<u8>> {
    let mut keys = vec![];
    for a in 0..4_u8 {
        keys.push(vec![a]);
        for b in 0..4_u8 {
            keys.push(vec![a, b]);
            keys.extend((0..4_u8).map(|c| vec![a, b, c]));
        }
    }
    keys.sort();
    keys
}

/// Whether a range of a request or of a permission holds a key.
fn holds(key: &[u8], range_end: &[u8], at: &[u8]) -> bool {
    match range_end {
        [] => at == key,
        [0] => at >= key,
        end => at >= key && at < end,
    }
}

fn bound() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..4_u8, 1..3)
}

fn range() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    (bound(), prop_oneof![Just(vec![]), Just(vec![0]), bound(), bound()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A range is allowed exactly if each of its keys is.
    #[test]
    fn a_range_is_allowed_if_each_of_its_keys_is(
        granted in prop::collection::vec((0..3, range(), 0..2_usize), 0..14),
        asked in range(),
        write in any::<bool>(),
    ) {
        let mut roles = vec![vec![], vec![]];
        for (kind, (key, range_end), role) in granted {
            let kind = Type::try_from(kind).unwrap();
            if is_valid(&key, &range_end) {
                sort::add(&mut roles[role], grant(kind, &key, &range_end));
            }
        }
        let access = if write { Access::Write } else { Access::Read };
        let kinds = [if write { Type::Write } else { Type::Read }, Type::Readwrite];
        let all: Vec<Permission> = roles.concat();
        let (key, range_end) = asked;
        prop_assume!(is_valid(&key, &range_end));
        // Bounds have at most two letters, so that a key of three stands for all behind it.
        let mut wanted: Vec<Vec<u8>> =
            keys().into_iter().filter(|at| holds(&key, &range_end, at)).collect();
        if range_end == [0] {
            wanted.push(vec![255]);
        }
        let expected = wanted.iter().all(|at| {
            all.iter().any(|permission| {
                kinds.iter().any(|kind| *kind as i32 == permission.perm_type)
                    && holds(&permission.key, &permission.range_end, at)
            })
        });
        let answer = state(roles).check(&who(1), access, &key, &range_end);
        prop_assert_eq!(answer.is_ok(), expected, "{:?}", answer);
    }
}

#[test]
fn an_open_range_needs_an_open_permission() {
    let bounded = state(vec![vec![grant(Type::Read, b"a", b"\xff\xff\xff")]]);
    let check =
        |state: &AuthState, key: &[u8], end: &[u8]| state.check(&who(1), Access::Read, key, end);
    assert_eq!(check(&bounded, b"a", b"\xff\xff"), Ok(()));
    assert_eq!(check(&bounded, b"a", b"\0"), Err(Error::PermissionDenied));
    let one = state(vec![vec![grant(Type::Read, b"a", b"")]]);
    assert_eq!(check(&one, b"a", b""), Ok(()));
    assert_eq!(check(&one, b"a", b"a\0"), Ok(()));
    assert_eq!(check(&one, b"a", b"\0"), Err(Error::PermissionDenied));
    assert_eq!(check(&one, b"a", b"b"), Err(Error::PermissionDenied));
    let open = state(vec![vec![grant(Type::Read, b"b", b"\0")]]);
    assert_eq!(check(&open, b"b", b"\0"), Ok(()));
    assert_eq!(check(&open, b"\xff\xff\xff", b"\0"), Ok(()));
    assert_eq!(check(&open, b"a", b"\0"), Err(Error::PermissionDenied));
    assert_eq!(open.check(&who(1), Access::Write, b"b", b""), Err(Error::PermissionDenied));
}

#[test]
fn ends_are_ordered_with_the_empty_one_on_top() {
    assert_eq!(order(b"a", b""), Ordering::Less);
    assert_eq!(order(b"", b"\xff"), Ordering::Greater);
    assert_eq!(order(b"", b""), Ordering::Equal);
    assert!(is_valid(b"a", b"") && is_valid(b"a", b"b") && is_valid(b"\0", b"\0"));
    assert!(is_valid(b"a", b"\0"));
    assert!(!is_valid(b"", b"") && !is_valid(b"b", b"a") && !is_valid(b"a", b"a"));
    assert!(!is_valid(b"", b"\0"));
}

/// The checksum comes from the same loop around Go's `sort.Sort` (Go 1.26, the same since 1.19):
/// for each number of permissions and of different keys, some random ones, sorted, and one more.
#[test]
fn permissions_get_the_order_that_go_gives_them() {
    let mut random: u64 = 88_172_645_463_325_252;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below) as u8
    };
    let mut checksum: u64 = 14_695_981_039_346_656_037;
    for count in 1..=80_usize {
        for different in 1..=16 {
            for _ in 0..40 {
                let mut keys: Vec<u8> = (0..count).map(|_| next(different)).collect();
                let last = next(different);
                keys.sort();
                keys.push(last);
                let mut numbered = keys.iter().enumerate().map(|(number, key)| {
                    grant(Type::Read, &[*key], &(number as u16).to_be_bytes())
                });
                let mut permissions: Vec<_> = numbered.by_ref().take(count).collect();
                sort::add(&mut permissions, numbered.next().unwrap());
                for permission in permissions {
                    let number = u16::from_be_bytes(permission.range_end[..].try_into().unwrap());
                    checksum = (checksum ^ u64::from(number)).wrapping_mul(1_099_511_628_211);
                }
            }
        }
    }
    assert_eq!(checksum, 6_240_132_684_425_564_829);
}

#[test]
fn a_published_state_does_not_see_later_changes() {
    let before = state(vec![vec![grant(Type::Read, b"a", b"")]]);
    let mut after = before.clone();
    after.adopt(Change::Role(Role {
        name: "r0".into(),
        key_permission: vec![grant(Type::Read, b"b", b"")],
    }));
    for (state, allowed, denied) in [(&before, b"a", b"b"), (&after, b"b", b"a")] {
        assert_eq!(state.check(&who(1), Access::Read, allowed, b""), Ok(()));
        assert_eq!(state.check(&who(1), Access::Read, denied, b""), Err(Error::PermissionDenied));
    }
}

#[test]
fn identities_are_refused_in_etcds_order() {
    let mut state = state(vec![vec![grant(Type::Readwrite, b"a", b"")]]);
    state.revision = 5;
    let read = |state: &AuthState, who: &Identity| state.check(who, Access::Read, b"a", b"");
    assert_eq!(read(&state, &Identity::default()), Err(Error::UserEmpty));
    assert_eq!(read(&state, &who(4)), Err(Error::AuthOldRevision));
    assert_eq!(read(&state, &who(5)), Ok(()));
    assert_eq!(read(&state, &who(6)), Ok(()));
    let stranger = Identity { user: "nobody".into(), revision: 5 };
    assert_eq!(read(&state, &stranger), Err(Error::PermissionDenied));
    assert_eq!(state.check_admin(&stranger), Err(Error::UserNotFound));
    assert_eq!(state.check_admin(&Identity::default()), Err(Error::UserEmpty));
    assert_eq!(state.check_admin(&who(1)), Err(Error::PermissionDenied));
    assert_eq!(state.password_hash("nobody"), Err(Error::AuthFailed));
    state.enabled = false;
    assert_eq!(read(&state, &Identity::default()), Ok(()));
    assert_eq!(state.check_admin(&stranger), Ok(()));
    assert_eq!(state.password_hash("u"), Err(Error::AuthNotEnabled));
}

/// The checksum comes from the same loop around etcd's own tree, with spans that hold no key and
/// empty keys among the questions: there the answer depends on the shape of the tree.
#[test]
fn spans_get_the_answers_of_etcds_tree() {
    let mut random: u64 = 88_172_645_463_325_252;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    fn bound(next: &mut impl FnMut(u64) -> u64, empty: bool) -> Vec<u8> {
        let length = if empty { next(3) } else { 1 + next(2) };
        (0..length).map(|_| next(4) as u8).collect()
    }
    let mut checksum: u64 = 14_695_981_039_346_656_037;
    for _ in 0..20_000 {
        let mut intervals = Vec::new();
        for _ in 0..next(24) {
            let (key, end) = (bound(&mut next, false), bound(&mut next, true));
            if end.is_empty() && next(2) == 0 {
                let end = [&key[..], &[0]].concat();
                intervals.push((Bytes::from(key), Bytes::from(end)));
            } else if order(&key, &end).is_lt() {
                intervals.push((Bytes::from(key), Bytes::from(end)));
            }
        }
        let intervals = Intervals::new(intervals);
        for _ in 0..8 {
            let (key, end) = (bound(&mut next, true), bound(&mut next, true));
            let answer =
                u64::from(intervals.covers(&key, &end)) * 2 + u64::from(intervals.covers_key(&key));
            checksum = (checksum ^ answer).wrapping_mul(1_099_511_628_211);
        }
    }
    assert_eq!(checksum, 996_494_736_237_107_303);
}
