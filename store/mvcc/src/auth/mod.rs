//! Users, roles, and whether auth is on.
//!
//! Input: the requests about auth among the entries, and questions whether someone may do
//! something. Output: rows of the buckets `auth`, `authUsers` and `authRoles` as a real member
//! writes them, [`AuthState`] to be published, and [`AuthEffect`]s for whoever keeps the tokens.
//!
//! Passwords arrive hashed, and tokens are made and kept elsewhere: hashing and tokens have
//! randomness and time in them.
//!
//! - **Invariant:** the state in memory says what the rows say. It grows with users, roles and
//!   permissions, and with nothing else.
//! - **Invariant:** a user's merged permissions are made again whenever one of its roles changes.

mod check;
mod entries;
mod interval;
mod password;
mod permission;
mod roles;
mod sort;
#[cfg(test)]
mod tests;
mod users;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use mainstay_engine::{Family, View};
use mainstay_proto::authpb::{Role, User};
use prost::Message;

use self::permission::Permissions;
use crate::Fatal;
use crate::buckets::{Bucket, names};
use crate::overlay::Overlay;

pub use check::Identity;
pub(crate) use entries::needs_admin;
pub use permission::Access;

/// Name of the user and of the role that may do everything.
const ROOT: &str = "root";

/// What an entry means for the tokens. Every member hears it for every entry, so that all know the
/// same tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthEffect {
    /// Auth is on: tokens are kept from now on.
    Enabled,
    /// Auth is off: all tokens are void.
    Disabled,
    /// A user has one more token.
    TokenAssigned {
        /// Name of the user.
        user: String,
        /// The simple token as it is also in the answer.
        token: String,
    },
    /// All tokens of a user are void: it is gone, or has another password.
    TokensRevoked {
        /// Name of the user.
        user: String,
    },
}

/// A user, and what it may do once that was asked for.
#[derive(Debug)]
struct Account {
    user: User,
    permissions: OnceLock<Permissions>,
}

impl Account {
    fn new(user: User) -> Arc<Self> {
        Arc::new(Self { user, permissions: OnceLock::new() })
    }
}

/// Equal if the stored user is: the permissions follow from it and the roles.
impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        self.user == other.user
    }
}

impl Eq for Account {}

/// All rules of auth at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthState {
    enabled: bool,
    revision: u64,
    users: BTreeMap<Bytes, Arc<Account>>,
    roles: BTreeMap<Bytes, Arc<Role>>,
}

impl Eq for AuthState {}

/// A change of the rules.
#[derive(Debug)]
enum Change {
    User(User),
    UserGone(Bytes),
    Role(Role),
    RoleGone(Bytes),
}

impl AuthState {
    /// Whether calls need an identity.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Grows with every change of a user or role, and when auth is turned off; 1 at first.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// A stored user.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.account(name).map(|account| &account.user)
    }

    /// A stored role.
    fn role(&self, name: &str) -> Option<&Role> {
        self.roles.get(name.as_bytes()).map(Arc::as_ref)
    }

    /// All users by name.
    fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values().map(|account| &account.user)
    }

    /// All roles by name.
    fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.values().map(Arc::as_ref)
    }

    fn account(&self, name: &str) -> Option<&Account> {
        self.users.get(name.as_bytes()).map(Arc::as_ref)
    }

    /// Reads the rules from an engine.
    pub(crate) fn load(view: &dyn View) -> Result<Self, Fatal> {
        let get = |name| view.get(Family::System, &Bucket::Auth.engine_key(name));
        let enabled = get(names::AUTH_ENABLED)?.is_some_and(|row| row[..] == [1]);
        let revision = match get(names::AUTH_REVISION)? {
            None => 1,
            Some(row) => row[..].try_into().map(u64::from_be_bytes).map_err(|_| {
                Fatal::damaged("bucket auth", names::AUTH_REVISION, "not eight bytes")
            })?,
        };
        let (mut users, mut roles) = (BTreeMap::new(), BTreeMap::new());
        each_row(view, Bucket::AuthUsers, |name, user| users.insert(name, Account::new(user)))?;
        each_row(view, Bucket::AuthRoles, |name, role| roles.insert(name, Arc::new(role)))?;
        Ok(Self { enabled, revision, users, roles })
    }

    /// Carries out a change. Users that are touched by it get their permissions merged anew.
    fn adopt(&mut self, change: Change) {
        match change {
            Change::User(user) => {
                self.users.insert(user.name.clone(), Account::new(user));
            }
            Change::UserGone(name) => {
                self.users.remove(&name);
            }
            Change::Role(role) => {
                self.forget_permissions(&role.name);
                self.roles.insert(role.name.clone(), Arc::new(role));
            }
            Change::RoleGone(name) => {
                self.forget_permissions(&name);
                self.roles.remove(&name);
            }
        }
    }

    /// A role changes, and so does what its users may do. States that were published share their
    /// accounts with this one, so these are replaced and not emptied.
    fn forget_permissions(&mut self, role: &[u8]) {
        for account in self.users.values_mut() {
            if account.user.roles.iter().any(|name| name.as_bytes() == role) {
                *account = Account::new(account.user.clone());
            }
        }
    }
}

impl Change {
    /// Writes it to the rows.
    fn write(&self, overlay: &mut Overlay<'_>) {
        let mut put = |bucket: Bucket, name: &[u8], row: Vec<u8>| {
            overlay.put(Family::System, bucket.engine_key(name), row.into());
        };
        match self {
            Change::User(user) => put(Bucket::AuthUsers, &user.name, user.encode_to_vec()),
            Change::Role(role) => put(Bucket::AuthRoles, &role.name, role.encode_to_vec()),
            Change::UserGone(name) => {
                overlay.delete(Family::System, Bucket::AuthUsers.engine_key(name));
            }
            Change::RoleGone(name) => {
                overlay.delete(Family::System, Bucket::AuthRoles.engine_key(name));
            }
        }
    }
}

/// Reads all rows of a bucket.
fn each_row<M: Message + Default, T>(
    view: &dyn View,
    bucket: Bucket,
    mut take: impl FnMut(Bytes, M) -> T,
) -> Result<(), Fatal> {
    let mut rows = view.cursor(Family::System, bucket.scan())?;
    rows.seek_to_first();
    while rows.valid() {
        let name = bucket.row_key(rows.key());
        let message = M::decode(rows.value())
            .map_err(|error| Fatal::damaged(bucket.name(), name, error.to_string()))?;
        take(Bytes::copy_from_slice(name), message);
        rows.next();
    }
    rows.status()?;
    Ok(())
}
