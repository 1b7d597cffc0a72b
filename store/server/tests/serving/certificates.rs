//! Clients that are who their certificate says, over TLS, by curl: gRPC calls and the gateway.

use std::fs;
use std::path::Path;
use std::process::Command;

use mainstay_net::tls::{Port, ServerTls, TlsOptions};
use mainstay_net::{Listener, parse_urls};
use mainstay_proto::authpb::{Permission, UserAddOptions, permission};
use mainstay_proto::etcdserverpb as pb;
use mainstay_store::Store;
use mainstay_store::serve::{ServeOptions, Serving, drain};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::common::{PATIENCE, open};

/// Writes a CA, and certificates that it issues, each under its common name.
fn issue(dir: &Path, names: &[&str]) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    for name in names {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if *name != "nameless" {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// Users without passwords: root, and ann who has the key `a`. Made by the program, which needs no
/// identity, before and after auth is on.
async fn set_up(store: &Store) {
    let core = store.core();
    for name in ["root", "ann"] {
        let options = Some(UserAddOptions { no_password: true });
        let add = pb::AuthUserAddRequest { name: name.into(), options, ..Default::default() };
        core.user_add(add).await.unwrap();
        core.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.unwrap();
        let grant = pb::AuthUserGrantRoleRequest { user: name.into(), role: name.into() };
        core.user_grant_role(grant).await.unwrap();
    }
    core.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    let perm = Some(Permission {
        perm_type: permission::Type::Readwrite as i32,
        key: "a".into(),
        range_end: "".into(),
    });
    let grant = pb::AuthRoleGrantPermissionRequest { name: "ann".into(), perm };
    core.role_grant_permission(grant).await.unwrap();
    store.put("a", "1").await.unwrap();
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "1");
}

struct Curl<'a> {
    dir: &'a Path,
    url: &'a str,
}

impl Curl<'_> {
    fn ask(&self, name: &str, arguments: &[&str], path: &str) -> String {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let output = Command::new("curl")
            .args(["-sS", "-i", "-m", "10", "--cacert", &file("ca.pem")])
            .args(["--cert", &file(&format!("{name}.pem"))])
            .args(["--key", &file(&format!("{name}.key"))])
            .args(arguments)
            .arg(format!("{}{path}", self.url))
            .output()
            .expect("curl is installed");
        // What curl itself has to say comes behind, so that a failed assertion shows it.
        [output.stdout, output.stderr]
            .map(|said| String::from_utf8_lossy(&said).into_owned())
            .concat()
    }

    /// A gRPC range; its status, and its message if there is one.
    fn range(&self, name: &str, key: &'static str, headers: &[&str]) -> String {
        let request = pb::RangeRequest { key: key.into(), ..Default::default() }.encode_to_vec();
        let mut frame = vec![0, 0, 0, 0, request.len() as u8];
        frame.extend(request);
        let body = self.dir.join("request");
        fs::write(&body, frame).unwrap();
        let body = format!("@{}", body.display());
        let mut arguments = vec!["--http2", "-H", "content-type: application/grpc", "-H"];
        arguments.extend(["te: trailers", "--data-binary", &body]);
        headers.iter().for_each(|header| arguments.extend(["-H", header]));
        let answer = self.ask(name, &arguments, "/etcdserverpb.KV/Range");
        // Trailers come right behind the message, which does not end a line.
        let of = |name: &str| Some(answer.split_once(name)?.1.lines().next().unwrap_or_default());
        let status = of("grpc-status: ").unwrap_or(&answer).to_owned();
        match of("grpc-message: ") {
            Some(message) => format!("{status} {message}"),
            None => status,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_common_name_is_the_user() {
    let dir = tempfile::tempdir().unwrap();
    issue(dir.path(), &["server", "root", "ann", "stranger", "nameless"]);
    let file = |name: &str| Some(dir.path().join(name));
    let options = TlsOptions {
        cert_file: file("server.pem"),
        key_file: file("server.key"),
        trusted_ca_file: file("ca.pem"),
        client_cert_auth: true,
        ..TlsOptions::default()
    };
    let listener = Listener::bind(&parse_urls("https://127.0.0.1:0").unwrap()[0], false).unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let listener = listener.with_tls(ServerTls::load(&options, Port::Client).unwrap());
    let (store, _data) = open(|_| {}).await;
    set_up(&store).await;
    let options = ServeOptions { client_cert_auth: true, ..ServeOptions::default() };
    let serving = Serving::start(&store, vec![listener], Vec::new(), Vec::new(), options).unwrap();

    let asking = tokio::task::spawn_blocking({
        let dir = dir.path().to_owned();
        move || {
            let curl = Curl { dir: &dir, url: &url };
            let (ok, denied) = ("0", "7 etcdserver: permission denied");
            assert_eq!(curl.range("ann", "a", &[]), ok);
            assert_eq!(curl.range("ann", "b", &[]), denied);
            assert_eq!(curl.range("root", "b", &[]), ok);
            assert_eq!(curl.range("stranger", "a", &[]), denied);
            assert_eq!(curl.range("nameless", "a", &[]), denied);
            // A token is looked at first, and a gateway's certificate is not its client's.
            let invalid = "16 etcdserver: invalid auth token";
            assert_eq!(curl.range("root", "a", &["token: x.1"]), invalid);
            assert_eq!(curl.range("root", "a", &["authorization: x"]), invalid);
            let empty = "3 etcdserver: user name is empty";
            assert_eq!(curl.range("root", "a", &["grpcgateway-accept: */*"]), empty);

            let body = ["-d", r#"{"key":"YQ=="}"#];
            for path in ["/v3/kv/range", "/v3beta/kv/range", "/v3/no/such/thing"] {
                let answer = curl.ask("root", &body, path);
                assert!(answer.contains(" 400"), "{answer}");
                assert!(
                    answer.contains(
                        "CommonName of client sending a request against gateway will be ignored \
                         and not used as expected\n"
                    ),
                    "{answer}"
                );
            }
            let answer = curl.ask("nameless", &body, "/v3/kv/range");
            assert!(answer.contains("user name is empty"), "{answer}");
            assert!(curl.ask("root", &[], "/version").contains("etcdserver"));
        }
    });
    asking.await.unwrap();
    store.core().auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    drain(store, serving, PATIENCE).await;
}
