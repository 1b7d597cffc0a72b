//! The peer port: accepts connections of other members and lets the peer protocol answer.
//!
//! **Invariant:** the port closes when the member stops, with every connection on it. Streams are
//! ended first: they have no end of their own, and their readers learn of it at once.
//! **Invariant:** a peer that takes no bytes for the write time of the peer protocol is cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use mainstay_net::{Body, Handler, Listener, Options, Server};
use mainstay_peer::PeerService;

use crate::core::Core;

/// Time for running answers when the member stops.
const DRAIN: Duration = Duration::from_millis(100);

struct Answers(PeerService);

impl Handler for Answers {
    fn call(
        &self,
        request: http::Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Body>> + Send + 'static>> {
        let service = self.0.clone();
        Box::pin(async move {
            let response = service.call(request).await;
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    }
}

/// Serves the peer port until the member stops.
pub(crate) async fn serve(core: Arc<Core>, listeners: Vec<Listener>, service: PeerService) {
    let options = Options { write_stall: Some(service.write_stall()), ..Options::default() };
    let server = Server::start(listeners, Arc::new(Answers(service)), options);
    core.stop.stopped().await;
    core.network.stop();
    server.shutdown(DRAIN).await;
}
