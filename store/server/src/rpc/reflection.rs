//! gRPC reflection, which real servers do not have; behind a flag.

use std::sync::Arc;

use super::body::RequestBody;
use http::Request;
use http_body_util::BodyExt;
use mainstay_net::BoxError;
use tonic::codegen::Service;

use super::Answer;

/// Answers a request.
pub(crate) type Serve = dyn Fn(Request<RequestBody>) -> Answer + Send + Sync;

/// The two versions of the reflection service.
#[derive(Clone)]
pub(crate) struct Reflection {
    v1: Arc<Serve>,
    v1alpha: Arc<Serve>,
}

impl Reflection {
    /// Over the descriptors of etcd's services.
    pub(crate) fn new() -> Result<Self, BoxError> {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(mainstay_proto::DESCRIPTORS)
        };
        let v1 = builder().build_v1()?;
        let v1alpha = builder().build_v1alpha()?;
        Ok(Self { v1: serve(v1), v1alpha: serve(v1alpha) })
    }

    /// What answers the requests of a path, if it is one of reflection.
    pub(crate) fn find(&self, path: &str) -> Option<&Serve> {
        match path {
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" => Some(&*self.v1),
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                Some(&*self.v1alpha)
            }
            _ => None,
        }
    }
}

fn serve<S>(service: S) -> Arc<Serve>
where
    S: Service<
            Request<RequestBody>,
            Response = http::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
        > + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    Arc::new(move |request| {
        let answering = service.clone().call(request);
        Box::pin(async move {
            match answering.await {
                Ok(response) => response.map(|body| body.map_err(BoxError::from).boxed_unsync()),
                Err(never) => match never {},
            }
        })
    })
}
