//! Tokens: what a client shows instead of its password.
//!
//! Input: [`AuthEffect`]s of applied entries, tokens that clients show, time. Output: whose token
//! it is.
//! A simple token is 16 random letters and the place in the log where it was assigned. Every member
//! hears of it by that entry and remembers it in memory, for [`SimpleTokens::ttl`] from its last
//! use on that member; so tokens die with the process. A signed one says everything itself.
//! **Invariant:** the table has tokens only while auth is on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mainstay_mvcc::{AuthEffect, Identity};
use rand::Rng as _;

use super::jwt::Jwt;
use crate::error::{Error, Result};

/// Letters before the dot.
const LETTERS: usize = 16;
/// How often tokens that are over are looked for.
pub(crate) const CLEAN_INTERVAL: Duration = Duration::from_secs(1);
/// Lifetime when none, or zero, is given.
const DEFAULT_TTL: Duration = Duration::from_secs(300);

/// The kind of tokens that a member was told to use.
pub(crate) enum Tokens {
    /// Remembered.
    Simple(SimpleTokens),
    /// Signed.
    Jwt(Box<Jwt>),
    /// None: nobody can authenticate by password.
    Nothing,
}

impl Tokens {
    /// What is put into the entry that assigns a token.
    pub(super) fn prefix(&self) -> String {
        match self {
            Self::Simple(_) => letters(),
            Self::Jwt(_) | Self::Nothing => String::new(),
        }
    }

    /// Whether this member can give tokens to clients.
    pub(super) fn can_assign(&self) -> Result<()> {
        match self {
            Self::Simple(_) => Ok(()),
            Self::Jwt(jwt) => jwt.can_sign(),
            Self::Nothing => Err(Error::AuthFailed),
        }
    }

    /// The token for a client, when `assigned` is what the entry came to.
    pub(super) fn token(&self, user: &str, revision: u64, assigned: String) -> Result<String> {
        match self {
            Self::Jwt(jwt) => jwt.sign(user, revision),
            Self::Simple(_) | Self::Nothing => Ok(assigned),
        }
    }

    /// The entry that must be applied before one can know whose token this is.
    pub(super) fn assigned_at(&self, token: &str) -> Option<u64> {
        match self {
            Self::Simple(tokens) if !tokens.knows(token) => assigned_at(token),
            _ => None,
        }
    }

    /// Whose token it is, when `revision` is that of the rules.
    pub(super) fn owner(&self, token: &str, revision: u64) -> Option<Identity> {
        match self {
            Self::Simple(tokens) => {
                let user = tokens.use_at(token, Instant::now())?;
                Some(Identity { user, revision })
            }
            Self::Jwt(jwt) => jwt.verify(token),
            Self::Nothing => None,
        }
    }

    /// Auth is on, as the state says that a member starts with or was sent. `as_before` says that no
    /// entry can have voided a token meanwhile.
    pub(crate) fn resume(&self, enabled: bool, as_before: bool) {
        if let Self::Simple(tokens) = self {
            if !as_before || !enabled {
                tokens.disable();
            }
            if enabled {
                tokens.enable();
            }
        }
    }

    /// Follows what entries mean. Tokens that were assigned up to `replayed` are those of before the
    /// start.
    pub(crate) fn follow(&self, effects: &[AuthEffect], replayed: u64) {
        let Self::Simple(tokens) = self else { return };
        for effect in effects {
            match effect {
                AuthEffect::Enabled => tokens.enable(),
                AuthEffect::Disabled => tokens.disable(),
                AuthEffect::TokensRevoked { user } => tokens.revoke(user),
                AuthEffect::TokenAssigned { user, token } => {
                    // A member that signs its tokens has put no letters there: anybody could
                    // guess the rest.
                    let guessable = token.starts_with('.');
                    if !guessable && assigned_at(token).is_some_and(|index| index >= replayed) {
                        tokens.assign(user, token, Instant::now());
                    }
                }
            }
        }
    }

    /// Forgets tokens that are over.
    pub(crate) fn clean(&self) {
        if let Self::Simple(tokens) = self {
            tokens.clean(Instant::now());
        }
    }

    /// How many tokens are remembered.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Simple(tokens) => tokens.table().as_ref().map_or(0, HashMap::len),
            Self::Jwt(_) | Self::Nothing => 0,
        }
    }
}

fn letters() -> String {
    const ALPHABET: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    // The generator of threads is one for secrets, seeded by the system.
    let mut random = rand::rng();
    (0..LETTERS).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

/// The number behind the only dot of a simple token.
fn assigned_at(token: &str) -> Option<u64> {
    let (_, index) = token.split_once('.')?;
    index.parse().ok()
}

struct Held {
    user: Arc<str>,
    until: Instant,
}

/// The table of simple tokens.
pub(crate) struct SimpleTokens {
    ttl: Duration,
    /// `None` while auth is off.
    table: Mutex<Option<HashMap<String, Held>>>,
}

impl SimpleTokens {
    pub(super) fn new(ttl: Duration) -> Self {
        let ttl = if ttl.is_zero() { DEFAULT_TTL } else { ttl };
        Self { ttl, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Option<HashMap<String, Held>>> {
        // Each change is one insert or removal, so the table is whole after any panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enable(&self) {
        self.table().get_or_insert_default();
    }

    fn disable(&self) {
        *self.table() = None;
    }

    fn assign(&self, user: &str, token: &str, now: Instant) {
        if let Some(table) = &mut *self.table() {
            table.insert(token.to_owned(), Held { user: user.into(), until: now + self.ttl });
        }
    }

    fn revoke(&self, user: &str) {
        if let Some(table) = &mut *self.table() {
            table.retain(|_, held| &*held.user != user);
        }
    }

    fn clean(&self, now: Instant) {
        if let Some(table) = &mut *self.table() {
            table.retain(|_, held| now <= held.until);
        }
    }

    fn knows(&self, token: &str) -> bool {
        self.table().as_ref().is_some_and(|table| table.contains_key(token))
    }

    /// The user of a token that is not over; it lives its whole time again.
    fn use_at(&self, token: &str, now: Instant) -> Option<String> {
        let mut table = self.table();
        let held = table.as_mut()?.get_mut(token).filter(|held| now <= held.until)?;
        held.until = now + self.ttl;
        Some(held.user.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn assigned(user: &str, token: &str) -> AuthEffect {
        AuthEffect::TokenAssigned { user: user.into(), token: token.into() }
    }

    fn user(tokens: &Tokens, token: &str) -> Option<String> {
        tokens.owner(token, 7).map(|who| {
            assert_eq!(who.revision, 7);
            who.user
        })
    }

    #[test]
    fn entries_assign_and_void_tokens() {
        let tokens = Tokens::Simple(SimpleTokens::new(TTL));
        tokens.follow(&[assigned("ann", "a.10")], 0);
        assert_eq!(user(&tokens, "a.10"), None, "auth is off");
        let effects = [
            AuthEffect::Enabled,
            assigned("ann", "a.10"),
            assigned("ann", "b.11"),
            assigned("bob", "c.12"),
            // Before the start, and without letters.
            assigned("bob", "d.8"),
            assigned("bob", ".13"),
        ];
        tokens.follow(&effects, 9);
        assert_eq!(user(&tokens, "a.10").as_deref(), Some("ann"));
        assert_eq!(user(&tokens, "c.12").as_deref(), Some("bob"));
        assert_eq!((user(&tokens, "d.8"), user(&tokens, ".13")), (None, None));
        tokens.follow(&[AuthEffect::TokensRevoked { user: "ann".into() }], 9);
        assert_eq!((user(&tokens, "a.10"), user(&tokens, "b.11")), (None, None));
        assert_eq!(tokens.count(), 1);
        tokens.follow(&[AuthEffect::Disabled, AuthEffect::Enabled], 9);
        assert_eq!(user(&tokens, "c.12"), None);
    }

    #[test]
    fn a_token_lives_as_long_as_it_is_used() {
        let tokens = SimpleTokens::new(TTL);
        let start = Instant::now();
        tokens.enable();
        tokens.assign("ann", "a.1", start);
        for seconds in [4, 8, 12] {
            assert!(tokens.use_at("a.1", start + Duration::from_secs(seconds)).is_some());
        }
        tokens.clean(start + Duration::from_secs(17));
        assert!(tokens.knows("a.1"));
        assert_eq!(tokens.use_at("a.1", start + Duration::from_millis(17_001)), None);
        tokens.clean(start + Duration::from_millis(17_001));
        assert!(!tokens.knows("a.1"));
    }

    #[test]
    fn only_unknown_tokens_of_the_right_form_are_waited_for() {
        let tokens = Tokens::Simple(SimpleTokens::new(TTL));
        tokens.follow(&[AuthEffect::Enabled, assigned("ann", "a.10")], 0);
        assert_eq!(tokens.assigned_at("a.10"), None);
        assert_eq!(tokens.assigned_at("b.99"), Some(99));
        for wrong in ["", "b", "b.", "b.x", "b.1.2", "b.-1"] {
            assert_eq!(tokens.assigned_at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_snapshot_with_other_rules_voids_what_is_remembered() {
        let tokens = Tokens::Simple(SimpleTokens::new(TTL));
        tokens.resume(true, true);
        tokens.follow(&[assigned("ann", "a.10")], 0);
        tokens.resume(true, true);
        assert!(user(&tokens, "a.10").is_some());
        tokens.resume(true, false);
        assert!(user(&tokens, "a.10").is_none());
        tokens.follow(&[assigned("ann", "b.11")], 0);
        assert!(user(&tokens, "b.11").is_some());
    }

    #[test]
    fn letters_are_letters_and_differ() {
        let (one, two) = (letters(), letters());
        assert_ne!(one, two);
        assert!(one.len() == LETTERS && one.bytes().all(|byte| byte.is_ascii_alphabetic()));
    }
}
