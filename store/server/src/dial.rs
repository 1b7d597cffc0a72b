//! Connections to other members, encrypted where their URL asks for it.
//!
//! Input: a peer's URL. Output: a connection on which the peer protocol can be spoken.

use std::io;

use futures_util::future::BoxFuture;
use mainstay_net::tls::ClientTls;
use mainstay_peer::{BoxedIo, Dialer, PeerUrl};

/// Dials with a certificate of this member.
pub(crate) struct TlsDialer(pub(crate) ClientTls);

impl Dialer for TlsDialer {
    fn dial<'a>(&'a self, url: &'a PeerUrl) -> BoxFuture<'a, io::Result<BoxedIo>> {
        Box::pin(async move {
            let stream = mainstay_peer::connect(url).await?;
            if !url.scheme().is_tls() {
                return Ok(stream);
            }
            Ok(Box::new(self.0.connect(url.host(), stream).await?) as BoxedIo)
        })
    }
}
