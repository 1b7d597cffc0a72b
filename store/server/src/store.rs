//! The store as a program embeds it.

use std::sync::Arc;

use mainstay_net::Listener;

use crate::bootstrap::StartError;
use crate::config::StoreConfig;
use crate::core::Core;
use crate::fatal::{FatalHook, StopReason};
use crate::member::Member;

/// A running store.
pub struct Store {
    member: Member,
}

/// Sets up a store.
pub struct Builder {
    config: StoreConfig,
    hook: FatalHook,
    listeners: Vec<Listener>,
}

impl Builder {
    /// A store with this configuration.
    pub fn new(config: StoreConfig) -> Self {
        Self { config, hook: Arc::new(|_| {}), listeners: Vec::new() }
    }

    /// Called once when the store cannot go on.
    #[must_use]
    pub fn on_fatal(mut self, hook: FatalHook) -> Self {
        self.hook = hook;
        self
    }

    /// Peer ports that are bound already; others are bound from the configuration.
    #[must_use]
    pub fn peer_listeners(mut self, listeners: Vec<Listener>) -> Self {
        self.listeners = listeners;
        self
    }

    /// Starts the store.
    pub async fn open(mut self) -> Result<Store, StartError> {
        if self.listeners.is_empty() {
            for url in &self.config.listen_peer_urls {
                let urls =
                    mainstay_net::parse_urls(url).map_err(crate::urls::MemberUrlError::from)?;
                for url in urls {
                    self.listeners.push(Listener::bind(&url, false)?);
                }
            }
        }
        let member = Member::start(self.config, self.listeners, self.hook).await?;
        Ok(Store { member })
    }
}

impl Store {
    /// Starts a store.
    pub async fn open(config: StoreConfig) -> Result<Self, StartError> {
        Builder::new(config).open().await
    }

    /// The member, for all that etcd's services offer.
    pub fn core(&self) -> &Arc<Core> {
        &self.member.core
    }

    /// Resolves when the store stops by itself.
    pub async fn stopped(&self) -> StopReason {
        self.core().stopped().await
    }

    /// Hands leadership over and ends the store.
    pub async fn shutdown(self) {
        self.member.shutdown().await;
    }
}
