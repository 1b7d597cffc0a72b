//! Signed tokens: those that a test signs, those that members give, and keys that are wrong.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use mainstay_etcd_tests::member::{Cluster, Program, mainstay_binary, peers_dir};
use mainstay_proto::etcdserverpb as pb;
use serde_json::{Value, json};

use crate::caller::{Caller, enable, outcome, read, set_up, tested};

/// What a token may say, with the time of now and the revision of the rules.
fn claims(now: u64, revision: u64) -> Vec<(&'static str, Value)> {
    let good = json!({"username": "ann", "revision": revision, "exp": now + 600});
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        claims
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        claims
    };
    vec![
        ("good", good.clone()),
        ("root", with("username", "root".into())),
        ("unknown", with("username", "none".into())),
        ("nobody", with("username", "".into())),
        ("number", with("username", 7.into())),
        ("no user", without("username")),
        ("over", with("exp", (now - 5).into())),
        ("endless", without("exp")),
        ("wrong time", with("exp", "soon".into())),
        ("too early", with("nbf", (now + 600).into())),
        ("from then on", with("nbf", (now - 5).into())),
        ("old rules", with("revision", (revision - 1).into())),
        ("new rules", with("revision", (revision + 1).into())),
        ("no rules", with("revision", 0.into())),
        ("text rules", with("revision", revision.to_string().into())),
        ("without rules", without("revision")),
    ]
}

async fn everything(caller: &Caller) -> Vec<String> {
    let mut said = vec![read(caller).await];
    for (key, serializable) in [("z", false), ("a1", true)] {
        let range = pb::RangeRequest { key: key.into(), serializable, ..Default::default() };
        let result: Result<pb::RangeResponse, _> =
            caller.call("/etcdserverpb.KV/Range", range).await;
        said.push(outcome(result, false));
    }
    for key in ["a1", "z"] {
        said.push(outcome(caller.put(key, "", 0).await, false));
    }
    let status = pb::StatusRequest {};
    let result: Result<pb::StatusResponse, _> =
        caller.call("/etcdserverpb.Maintenance/Status", status).await;
    said.push(outcome(result, false));
    let users = pb::AuthUserListRequest {};
    let result: Result<pb::AuthUserListResponse, _> =
        caller.call("/etcdserverpb.Auth/UserList", users).await;
    said.push(outcome(result, false));
    said
}

/// Keys of a kind, as `--auth-token` names them.
struct Keys {
    method: Algorithm,
    options: String,
    signing: EncodingKey,
    foreign: EncodingKey,
}

fn keys(dir: &Path) -> Vec<Keys> {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let secret = write("secret", "not-a-secret-at-all");
    let [pair, other] =
        [(), ()].map(|()| rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap());
    let private = write("rsa.key", &pair.serialize_pem());
    let public = write("rsa.pub", &pair.public_key_pem());
    vec![
        Keys {
            method: Algorithm::HS256,
            options: format!("jwt,sign-method=HS256,priv-key={secret},ttl=5m"),
            signing: EncodingKey::from_secret(b"not-a-secret-at-all").unwrap(),
            foreign: EncodingKey::from_secret(b"another").unwrap(),
        },
        Keys {
            method: Algorithm::RS256,
            options: format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=5m"),
            signing: EncodingKey::from_rsa_pem(pair.serialize_pem().as_bytes()).unwrap(),
            foreign: EncodingKey::from_rsa_pem(other.serialize_pem().as_bytes()).unwrap(),
        },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_tokens_are_taken_as_by_real_etcd() {
    let dir = tempfile::tempdir().unwrap();
    for Keys { method, options, signing, foreign } in keys(dir.path()) {
        let mut told = Vec::new();
        let mut given = Vec::new();
        let mut clusters = Vec::new();
        for program in [tested(), Program::Etcd] {
            let cluster = Cluster::start(&[program], &["--auth-token", &options]).await.unwrap();
            let nobody = Caller::at(&cluster.members[0]).await;
            set_up(&nobody).await.unwrap();
            enable(&nobody).await.unwrap();
            let status: pb::AuthStatusResponse = nobody
                .call("/etcdserverpb.Auth/AuthStatus", pb::AuthStatusRequest {})
                .await
                .unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let mut said = Vec::new();
            let list = claims(now, status.auth_revision);
            let good = list[0].1.clone();
            for (what, claims) in list {
                let token = jsonwebtoken::encode(&Header::new(method), &claims, &signing).unwrap();
                said.push((what, everything(&nobody.with(&token)).await));
                if what == "good" {
                    said.push((
                        "bearer",
                        everything(&nobody.with(&format!("Bearer {token}"))).await,
                    ));
                    said.push(("cut", everything(&nobody.with(&token[..token.len() - 3])).await));
                }
            }
            let token = jsonwebtoken::encode(&Header::new(method), &good, &foreign).unwrap();
            said.push(("another key", everything(&nobody.with(&token)).await));
            let secret = EncodingKey::from_secret(b"not-a-secret-at-all").unwrap();
            let header = Header::new(Algorithm::HS384);
            let token = jsonwebtoken::encode(&header, &good, &secret).unwrap();
            said.push(("another method", everything(&nobody.with(&token)).await));
            said.push(("none", everything(&nobody).await));
            told.push(said);
            given.push(nobody.as_user("ann", "ann-secret").await.unwrap().token.unwrap());
            clusters.push((cluster, nobody));
        }
        for (ours, real) in told[0].iter().zip(&told[1]) {
            assert_eq!(ours, real, "{method:?}");
        }
        assert_eq!(told[0][0].1[0], "ok");
        // What one member gives the other takes.
        for token in &given {
            for (_, nobody) in &clusters {
                assert_eq!(read(&nobody.with(token)).await, "ok", "{method:?}");
            }
        }
        let log = std::fs::read_to_string(&clusters[0].0.members[0].log_path).unwrap();
        assert!(!log.contains(&given[0]) && !log.contains("not-a-secret-at-all"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_public_key_alone_gives_no_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let public = dir.path().join("ec.pub");
    std::fs::write(&public, pair.public_key_pem()).unwrap();
    let options = format!("jwt,pub-key={},sign-method=ES256", public.display());
    let signing = EncodingKey::from_ec_der(pair.serialized_der());
    let mut told = Vec::new();
    for program in [tested(), Program::Etcd] {
        let cluster = Cluster::start(&[program], &["--auth-token", &options]).await.unwrap();
        let nobody = Caller::at(&cluster.members[0]).await;
        set_up(&nobody).await.unwrap();
        enable(&nobody).await.unwrap();
        let status: pb::AuthStatusResponse =
            nobody.call("/etcdserverpb.Auth/AuthStatus", pb::AuthStatusRequest {}).await.unwrap();
        let claims = json!({"username": "ann", "revision": status.auth_revision});
        let token =
            jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &signing).unwrap();
        let login = outcome(nobody.as_user("ann", "ann-secret").await.map(|_| ()), false);
        let wrong = outcome(nobody.as_user("ann", "wrong").await.map(|_| ()), false);
        told.push((login, wrong, everything(&nobody.with(&token)).await));
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0].2[0], "ok");
}

/// Exit code, and whether the text of the mistake was told.
fn start(program: Program, dir: &Path, token: &str, text: &str) -> (Option<i32>, bool) {
    let mut command = match program {
        Program::Etcd => Command::new(peers_dir().unwrap().join("etcd")),
        Program::Mainstay => {
            let mut command = Command::new(mainstay_binary().unwrap());
            command.arg("etcd");
            command
        }
    };
    let output = command
        .arg("--data-dir")
        .arg(dir.join(format!("{program:?}")))
        .args(["--listen-client-urls", "http://127.0.0.1:0"])
        .args(["--advertise-client-urls", "http://127.0.0.1:1"])
        .args(["--listen-peer-urls", "http://127.0.0.1:0", "--auth-token", token])
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), log.contains(text))
}

#[test]
fn mistakes_are_told_at_the_start() {
    for (token, text) in [
        ("bogus", "auth: invalid auth options"),
        ("jwt", "auth: invalid auth signature method"),
        ("jwt,x", "invalid token option"),
        ("jwt,sign-method=RS256", "auth: missing key data"),
        ("jwt,sign-method=none", "unsupported signing method: *jwt.signingMethodNone"),
        ("jwt,sign-method=HS256,ttl=abc", "time: invalid duration"),
        ("jwt,sign-method=HS256,priv-key=/nowhere/at-all", "open /nowhere/at-all"),
    ] {
        for program in [tested(), Program::Etcd] {
            let dir = tempfile::tempdir().unwrap();
            let came = start(program, dir.path(), token, text);
            assert_eq!(came, (Some(1), true), "{program:?} {token}");
        }
    }
}
