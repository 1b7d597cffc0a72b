//! Hashes of passwords, as etcd stores them.
//!
//! Hashing is slow on purpose. It runs on threads for blocking work, and no more at a time than the
//! machine has cores, so that guessing passwords does not stop the serving of others.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// Bytes of a password that count; longer ones are refused when they are set.
const MAX_PASSWORD: usize = 72;
/// Costs that a hash can have.
const COSTS: std::ops::RangeInclusive<u32> = 4..=31;
/// The cost when none, or an impossible one, is given.
const DEFAULT_COST: u32 = 10;

/// The cost that is used when `given` is asked for.
pub(crate) fn valid_cost(given: u64) -> u32 {
    match u32::try_from(given) {
        Ok(cost) if COSTS.contains(&cost) => cost,
        _ => {
            tracing::warn!(
                "min-cost" = COSTS.start(),
                "max-cost" = COSTS.end(),
                "default-cost" = DEFAULT_COST,
                "given-cost" = given,
                "use default bcrypt cost instead of the invalid given cost"
            );
            DEFAULT_COST
        }
    }
}

/// Hashes and compares.
pub(crate) struct Passwords {
    cost: u32,
    turns: Arc<Semaphore>,
}

impl Passwords {
    pub(crate) fn new(cost: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { cost, turns: Arc::new(Semaphore::new(cores)) }
    }

    /// The hash of a new password.
    pub(super) async fn hash(&self, password: String) -> Result<String> {
        if password.len() > MAX_PASSWORD {
            return Err(Error::Raw("bcrypt: password length exceeds 72 bytes".into()));
        }
        let cost = self.cost;
        let hashed = self.slowly(move || bcrypt::hash_with_result(password, cost)).await?;
        let hashed = hashed.map_err(|error| Error::Raw(error.to_string().into()))?;
        Ok(hashed.format_for_version(bcrypt::Version::TwoA))
    }

    /// Whether a password is the one of this hash.
    pub(super) async fn fits(&self, password: String, hash: Vec<u8>) -> Result<bool> {
        self.slowly(move || {
            let hash = std::str::from_utf8(&hash).unwrap_or_default();
            bcrypt::verify(password, hash).unwrap_or(false)
        })
        .await
    }

    async fn slowly<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let turn = self.turns.clone().acquire_owned().await.map_err(|_| Error::Stopped)?;
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        working.await.map_err(|_| Error::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hashes_are_gos() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("secret".into()).await.unwrap();
        assert!(hash.starts_with("$2a$04$") && hash.len() == 60, "{hash}");
        let fits = async |password: &str, hash: &str| {
            passwords.fits(password.into(), hash.into()).await.unwrap()
        };
        assert!(fits("secret", &hash).await);
        assert!(!fits("secret ", &hash).await);
        assert!(!fits("", &hash).await && !fits("secret", "").await && !fits("x", "$2a$").await);
        let long = "x".repeat(72);
        let hash = passwords.hash(long.clone()).await.unwrap();
        assert!(fits(&(long.clone() + "ignored"), &hash).await);
        let error = passwords.hash(long + "x").await.unwrap_err();
        assert_eq!(error.to_string(), "bcrypt: password length exceeds 72 bytes");
    }

    #[test]
    fn impossible_costs_become_the_default() {
        assert_eq!([0, 3, 4, 31, 32, 1 << 40].map(valid_cost), [10, 10, 4, 31, 10, 10]);
    }
}
