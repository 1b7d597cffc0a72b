//! What clients do wrong, and what every call has in common.

use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::kv_client::KvClient;
use mainstay_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::common::Served;

/// One unary call by its path.
async fn call<Q, A>(channel: &Channel, path: &'static str, message: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = ProstCodec::<Q, A>::default();
    let path = PathAndQuery::from_static(path);
    Ok(client.unary(Request::new(message), path, codec).await?.into_inner())
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_served_is_named_as_grpc_names_it() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    for (path, text) in [
        ("/etcdserverpb.KV/Get", "unknown method Get for service etcdserverpb.KV"),
        ("/etcdserverpb.Store/Range", "unknown service etcdserverpb.Store"),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "unknown service grpc.reflection.v1.ServerReflection",
        ),
    ] {
        let status = call::<_, ()>(&channel, path, ()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unimplemented, text));
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_none_are_refused() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    // A Put whose key is a number on the wire.
    #[derive(Clone, PartialEq, prost::Message)]
    struct NotAPut {
        #[prost(int64, tag = "1")]
        key: i64,
    }
    let status =
        call::<_, ()>(&channel, "/etcdserverpb.KV/Put", NotAPut { key: 7 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().starts_with("grpc: error unmarshalling request: "), "{status}");
    served.stop().await;
}

/// A put in so many transactions.
fn nested(depth: usize) -> pb::TxnRequest {
    let put = pb::PutRequest { key: "nested".into(), ..Default::default() };
    let mut request = pb::request_op::Request::RequestPut(put);
    let wrap = |request| {
        let success = vec![pb::RequestOp { request: Some(request) }];
        pb::TxnRequest { success, ..Default::default() }
    };
    for _ in 1..depth {
        request = pb::request_op::Request::RequestTxn(wrap(request));
    }
    wrap(request)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_nest_as_deep_as_they_may_have_operations() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let path = "/etcdserverpb.KV/Txn";
    // The answer nests as deep, too deep for this client's decoder: only its arrival counts.
    call::<_, ()>(&channel, path, nested(49)).await.unwrap();
    call::<_, ()>(&channel, path, nested(128)).await.unwrap();
    for depth in [129, 500, 1_001] {
        let status = call::<_, ()>(&channel, path, nested(depth)).await.unwrap_err();
        let text = "etcdserver: too many operations in txn request";
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text), "{depth}");
    }
    let get = pb::RangeRequest { key: "nested".into(), ..Default::default() };
    let mut client = KvClient::new(channel);
    assert_eq!(client.range(get).await.unwrap().into_inner().kvs[0].version, 2);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_is_checked() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let mut kv = KvClient::new(served.channel().await);
    let mut request = Request::new(pb::RangeRequest { key: "a".into(), ..Default::default() });
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    request.metadata_mut().insert("client-api-version", "3.7".parse().unwrap());
    kv.range(request).await.unwrap();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let path = "/grpc.health.v1.Health/Check";
    let healthy: HealthResponse = call(&channel, path, HealthRequest::default()).await.unwrap();
    assert_eq!(healthy.status, 1);
    let other = HealthRequest { service: "other".into() };
    let status = call::<_, HealthResponse>(&channel, path, other).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "unknown service"));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_is_served_when_it_is_asked_for() {
    let served = Served::start_with(|_| {}, |options| options.reflection = true).await;
    let channel = served.channel().await;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    // ServerReflectionRequest{list_services=7}.
    #[derive(Clone, PartialEq, prost::Message)]
    struct List {
        #[prost(string, tag = "7")]
        list_services: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Listed {
        #[prost(message, optional, tag = "6")]
        services: Option<Services>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Services {
        #[prost(message, repeated, tag = "1")]
        service: Vec<Service>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Service {
        #[prost(string, tag = "1")]
        name: String,
    }
    let codec = ProstCodec::<List, Listed>::default();
    let path =
        PathAndQuery::from_static("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let requests = tokio_stream::once(List { list_services: "*".into() });
    let mut answers =
        client.streaming(Request::new(requests), path, codec).await.unwrap().into_inner();
    let listed = answers.message().await.unwrap().unwrap().services.unwrap();
    let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"etcdserverpb.KV".to_owned()), "{names:?}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted() {
    let served = Served::start_with(|_| {}, |options| options.extensive_metrics = true).await;
    let channel = served.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let put = pb::PutRequest { key: "a".into(), value: "1".into(), ..Default::default() };
    kv.put(put).await.unwrap();
    kv.put(pb::PutRequest::default()).await.unwrap_err();
    let status = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await.unwrap();
    assert_eq!(status.into_inner().version, "3.7.3");
    let page = crate::http::get(&served.url, "/metrics").await.body;
    let labels = r#"grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"}"#;
    for line in [
        format!("grpc_server_started_total{{{labels} 2"),
        format!("grpc_server_msg_received_total{{{labels} 2"),
        format!("grpc_server_msg_sent_total{{{labels} 2"),
        format!("grpc_server_handled_total{{grpc_code=\"OK\",{labels} 1"),
        format!("grpc_server_handled_total{{grpc_code=\"InvalidArgument\",{labels} 1"),
        format!("grpc_server_handling_seconds_count{{{labels} 2"),
        // key and value with their tags; the request without anything is empty.
        "etcd_network_client_grpc_received_bytes_total 6".to_owned(),
        r#"etcd_server_client_requests_total{client_api_version="unknown",type="unary"} 3"#
            .to_owned(),
    ] {
        assert!(page.contains(&format!("{line}\n")), "{line} is not in\n{page}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_on_a_stream_that_is_none_is_counted() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let bad = HealthRequest { service: "x".into() };
    for (path, api) in [
        ("/etcdserverpb.Watch/Watch", "watch"),
        ("/etcdserverpb.Lease/LeaseKeepAlive", "lease-keepalive"),
    ] {
        let line = format!(
            "etcd_network_server_stream_failures_total{{API=\"{api}\",Type=\"receive\"}} 1"
        );
        let page = crate::http::get(&served.url, "/metrics").await.body;
        assert!(!page.contains(&line), "{page}");
        call::<_, ()>(&channel, path, bad.clone()).await.unwrap_err();
        let page = crate::http::get(&served.url, "/metrics").await.body;
        assert!(page.contains(&line), "{page}");
    }
    served.stop().await;
}
