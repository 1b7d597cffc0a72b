//! Who asks, and whether he may: everything about users outside of the log.
//!
//! Input: what a call says of its caller (a token, a certificate), the rules as they are published,
//! and what entries mean for tokens. Output: an identity for each call, with which the state
//! machine and the reads check permissions; answers of the Auth service.
//! - `calls`: the operations of the service.
//! - `passwords`: hashing and comparing, off the threads that serve.
//! - `tokens`: tokens that members remember; `jwt`: tokens that are signed; `options`: which.
//!
//! **Invariant:** no password and no token is ever written to a log or shown by `Debug`.
//! **Invariant:** a call is never taken for the server's own: whoever comes from a connection is a
//! [`Caller::Client`], and without credentials that is nobody.

mod calls;
mod jwt;
mod options;
mod passwords;
mod tokens;

use std::sync::Arc;

use http::HeaderValue;
use mainstay_mvcc::{Access, AuthState, Identity};
use mainstay_net::tls;
use mainstay_proto::etcdserverpb::WatchCreateRequest;
use mainstay_watch::CreateRequest;

use crate::core::{Core, Published};
use crate::error::{Error, Result};

pub use options::TokenError;
pub(crate) use passwords::{Passwords, valid_cost};
pub(crate) use tokens::{CLEAN_INTERVAL, Tokens};

/// The user that may do everything; it is there whenever auth is on.
const ROOT: &str = "root";

/// Who makes a request.
#[derive(Clone)]
pub enum Caller {
    /// The program itself, which may do everything.
    Program,
    /// Somebody on a connection.
    Client {
        /// The token as it came. It comes before the certificate.
        token: Option<HeaderValue>,
        /// Who the certificate says it is, where certificates count.
        certificate: Option<Arc<tls::Identity>>,
    },
}

/// A request and who makes it. A bare request is the program's own.
pub struct By<T> {
    pub(crate) request: T,
    pub(crate) caller: Caller,
}

impl<T> By<T> {
    /// A request of a caller.
    pub fn new(caller: Caller, request: T) -> Self {
        Self { request, caller }
    }

    /// Another request of the same caller.
    pub(crate) fn and<U>(&self, request: U) -> By<U> {
        By { request, caller: self.caller.clone() }
    }

    /// The request, once it is known that its caller has the role root.
    pub(crate) async fn of_admin(self, core: &Core) -> Result<T> {
        core.require_admin(&self.caller).await?;
        Ok(self.request)
    }
}

impl<T> From<T> for By<T> {
    fn from(request: T) -> Self {
        Self { request, caller: Caller::Program }
    }
}

impl Core {
    /// Who a caller is by the rules of now. `None` for nobody, and for everybody while auth is off.
    pub(crate) async fn identify(&self, caller: &Caller) -> Result<Option<Identity>> {
        let auth = self.auth_state();
        if !auth.is_enabled() {
            return Ok(None);
        }
        let named = |user: &str| Identity { user: user.to_owned(), revision: auth.revision() };
        match caller {
            Caller::Program => Ok(Some(named(ROOT))),
            Caller::Client { token: Some(token), .. } => self.bearer(token).await.map(Some),
            Caller::Client { token: None, certificate } => {
                Ok(certificate.as_ref().map(|identity| named(&identity.common_name)))
            }
        }
    }

    /// Whose token this is. A token may have been assigned by an entry that this member has yet to
    /// apply; then that is waited for.
    async fn bearer(&self, token: &HeaderValue) -> Result<Identity> {
        let invalid = || {
            tracing::warn!("invalid auth token");
            Error::InvalidAuthToken
        };
        let token = token.to_str().map_err(|_| invalid())?;
        let token = token.strip_prefix("Bearer ").unwrap_or(token);
        if let Some(index) = self.tokens.assigned_at(token) {
            let applied = self.applied.wait(index);
            if !tokio::time::timeout(self.config.request_timeout(), applied).await.unwrap_or(false)
            {
                return Err(invalid());
            }
        }
        self.tokens.owner(token, self.auth_state().revision()).ok_or_else(invalid)
    }

    /// Refuses callers who are nobody.
    pub(crate) async fn require_identity(&self, caller: &Caller) -> Result<()> {
        let known = self.identify(caller).await?.is_some();
        if known || !self.auth_state().is_enabled() { Ok(()) } else { Err(Error::UserEmpty) }
    }

    /// Refuses callers who have not the role root.
    pub(crate) async fn require_admin(&self, caller: &Caller) -> Result<()> {
        let who = self.identify(caller).await?.unwrap_or_default();
        self.auth_state().check_admin(&who)
    }

    /// A watcher that a caller asks for, if he may have it.
    pub(crate) async fn watch_request(
        &self,
        caller: &Caller,
        request: WatchCreateRequest,
    ) -> Result<CreateRequest> {
        let mut request = CreateRequest::from(request);
        // One from before the beginning is refused for that, whoever asks.
        if request.start_revision < 0 {
            return Ok(request);
        }
        let who = self.identify(caller).await?;
        let (key, range_end) = request.range.to_wire();
        let asks = who.clone().unwrap_or_default();
        self.auth_state().check(&asks, Access::Read, key, range_end)?;
        request.owner = watch_owner(caller, who);
        Ok(request)
    }

    /// Tells the watch hub who may watch what from now on.
    pub(crate) fn tell_rules(&self) {
        let auth = self.auth_state();
        self.watch.set_rules(Arc::new(move |user, key, range_end| {
            // Whoever may read now goes on, whatever the rules were when it was recognised.
            let who = Identity { user: user.to_owned(), revision: auth.revision() };
            auth.check(&who, Access::Read, key, range_end).is_ok()
        }));
    }

    pub(crate) fn auth_state(&self) -> Arc<AuthState> {
        self.published.load().state.auth.clone()
    }
}

/// For whom a watcher is that a caller makes.
fn watch_owner(caller: &Caller, who: Option<Identity>) -> Option<Arc<str>> {
    match (who, caller) {
        (_, Caller::Program) => None,
        (Some(who), _) => Some(who.user.into()),
        // Auth may be turned on while it watches. A token of before is none then.
        (None, Caller::Client { token: None, certificate: Some(identity) }) => {
            Some(identity.common_name.as_str().into())
        }
        (None, Caller::Client { .. }) => Some("".into()),
    }
}

impl Published {
    /// Checks a read that is about to be made here. Refuses identities of other rules than those of
    /// this state.
    pub(crate) fn permit(
        &self,
        who: &Option<Identity>,
        check: impl FnOnce(&AuthState, &Identity) -> Result<()>,
    ) -> Result<()> {
        let auth = &self.state.auth;
        let nobody = Identity::default();
        let who = who.as_ref().unwrap_or(&nobody);
        check(auth, who)?;
        if who.revision != 0 && who.revision != auth.revision() {
            return Err(Error::AuthOldRevision);
        }
        Ok(())
    }
}
