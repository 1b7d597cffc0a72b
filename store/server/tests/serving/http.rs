//! The HTTP side, asked with bytes on a socket.

use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::kv_client::KvClient;
use mainstay_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use mainstay_store::serve::{ServeOptions, Serving, drain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::common::{PATIENCE, Served, connect, listener, open};

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Asks with GET.
pub(crate) async fn get(url: &str, path: &str) -> Answer {
    ask(url, "GET", path).await
}

async fn ask(url: &str, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_get_etcds_answers() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let url = &served.url;
    let all = "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n\
               [+]non_learner ok\nok\n";
    let version = r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#;
    for (path, status, body) in [
        ("/version", 200, version),
        ("/health", 200, r#"{"health":"true","reason":""}"#),
        ("/health?serializable=true&exclude=NOSPACE", 200, r#"{"health":"true","reason":""}"#),
        ("/livez", 200, "ok\n"),
        ("/livez?verbose", 200, "[+]serializable_read ok\nok\n"),
        ("/readyz", 200, "ok\n"),
        ("/readyz?verbose=1", 200, all),
        ("/readyz/non_learner?verbose", 200, "[+]non_learner ok\nok\n"),
        ("/readyz?exclude=none&exclude=linearizable_read", 200, "ok\n"),
        ("/readyz/none", 404, "404 page not found\n"),
        ("/livez/linearizable_read", 404, "404 page not found\n"),
        ("/v2/keys/a", 404, "404 page not found\n"),
        ("/v3/kv/range", 501, r#"{"code":12,"message":"Method Not Allowed"}"#),
        ("/", 404, "404 page not found\n"),
    ] {
        let answer = get(url, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, body), "{path}");
    }
    for path in ["/version", "/health", "/livez", "/readyz/non_learner", "/debug/vars"] {
        let answer = ask(url, "POST", path).await;
        assert_eq!((answer.status, answer.body.as_str()), (405, "Method Not Allowed\n"), "{path}");
        assert!(answer.head.contains("allow: get"), "{}", answer.head);
    }
    assert!(get(url, "/debug/vars").await.body.starts_with("{\n\"cmdline\": ["));
    let metrics = get(url, "/metrics").await;
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    for name in ["etcd_server_has_leader 1", "etcd_server_health_success 2"] {
        assert!(metrics.body.contains(name), "{name}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_make_a_member_unhealthy() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let mut maintenance = MaintenanceClient::new(served.channel().await);
    let raise = |member_id, alarm| pb::AlarmRequest { action: 1, member_id, alarm };
    maintenance.alarm(raise(5, 1)).await.unwrap();
    let answer = get(&served.url, "/health").await;
    let body = "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n";
    assert_eq!((answer.status, answer.body.as_str()), (503, body));
    assert_eq!(get(&served.url, "/health?exclude=NOSPACE").await.status, 200);
    assert_eq!(get(&served.url, "/readyz").await.status, 200);
    maintenance.alarm(raise(0, 2)).await.unwrap();
    let mut kv = KvClient::new(served.channel().await);
    let put = pb::PutRequest { key: "a".into(), ..Default::default() };
    let status = kv.put(put).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "etcdserver: corrupt cluster"));
    let told = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(told.errors, ["memberID:5 alarm:NOSPACE", "alarm:CORRUPT"]);
    let answer = get(&served.url, "/readyz").await;
    assert_eq!(answer.status, 503);
    let line = "[-]data_corruption failed: alarm activated: CORRUPT\n";
    assert!(answer.body.starts_with(line), "{}", answer.body);
    assert_eq!(get(&served.url, "/readyz?exclude=data_corruption").await.status, 200);
    assert_eq!(get(&served.url, "/livez").await.status, 200);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_may_be_split() {
    let (store, _dir) = open(|_| {}).await;
    let (clients, grpc) = listener();
    let (clients_http, http) = listener();
    let (metrics_listener, metrics) = listener();
    let serving = Serving::start(
        &store,
        vec![clients],
        vec![clients_http],
        vec![metrics_listener],
        ServeOptions::default(),
    )
    .unwrap();
    let read = |url: String| async move {
        let mut kv = KvClient::new(connect(&url).await);
        kv.range(pb::RangeRequest { key: "a".into(), ..Default::default() }).await
    };
    read(grpc.clone()).await.unwrap();
    assert_eq!(get(&grpc, "/version").await.status, 415);
    assert_eq!(get(&http, "/version").await.status, 200);
    // The HTTP port has no such path.
    read(http).await.unwrap_err();
    for (path, status) in [("/metrics", 200), ("/health", 200), ("/livez", 200), ("/version", 404)]
    {
        assert_eq!(get(&metrics, path).await.status, status, "{path}");
    }
    drain(store, serving, PATIENCE).await;
    assert!(TcpStream::connect(metrics.strip_prefix("http://").unwrap()).await.is_err());
}
