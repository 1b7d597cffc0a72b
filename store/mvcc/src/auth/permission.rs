//! What a user may read and write, merged from all its roles.
//!
//! Ends of ranges are meant as in every request: empty for one key, a single zero byte for
//! everything from the key onwards, else the first key that is not part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use mainstay_proto::authpb::permission::Type;
use mainstay_proto::authpb::{Permission, Role, User};

use super::interval::{Intervals, order};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To see what is there.
    Read,
    /// To change or delete it.
    Write,
}

/// The end of a range that has no end.
fn is_open(range_end: &[u8]) -> bool {
    range_end == [0]
}

/// Whether a permission may be given on this range.
pub(super) fn is_valid(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && (range_end.is_empty() || order(key, range_end).is_lt() || is_open(range_end))
}

/// The merged permissions of one user.
#[derive(Debug)]
pub(super) struct Permissions {
    read: Intervals,
    write: Intervals,
}

impl Permissions {
    /// Merges what the user's roles allow; roles that are not there allow nothing.
    pub(super) fn of(user: &User, roles: &BTreeMap<Bytes, Arc<Role>>) -> Self {
        let granted = |kinds: [Type; 2]| {
            let permissions = user
                .roles
                .iter()
                .filter_map(|name| roles.get(name.as_bytes()))
                .flat_map(|role| &role.key_permission)
                .filter(|permission| kinds.iter().any(|kind| *kind as i32 == permission.perm_type));
            Intervals::new(permissions.map(interval))
        };
        Self {
            read: granted([Type::Read, Type::Readwrite]),
            write: granted([Type::Write, Type::Readwrite]),
        }
    }

    /// Whether all of the range is allowed. A range without an end needs an interval without one.
    pub(super) fn allow(&self, access: Access, key: &[u8], range_end: &[u8]) -> bool {
        let intervals = match access {
            Access::Read => &self.read,
            Access::Write => &self.write,
        };
        match range_end {
            [] => intervals.covers_key(key),
            end if is_open(end) => intervals.covers(key, &[]),
            end => intervals.covers(key, end),
        }
    }
}

/// Begin and end of what a permission is about; an empty end is above all keys.
fn interval(permission: &Permission) -> (Bytes, Bytes) {
    let Permission { key, range_end, .. } = permission;
    let end = match &range_end[..] {
        [] => [key, &[0][..]].concat().into(),
        end if is_open(end) => Bytes::new(),
        _ => range_end.clone(),
    };
    (key.clone(), end)
}
