//! A watch that is open while the rights of its user change.

use mainstay_etcd_tests::member::Cluster;
use mainstay_proto::etcdserverpb as pb;

use crate::caller::{Caller, PATIENCE, enable, set_up, single, tested};

const DENIED: &str = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";

/// The reason of the end, which must come next.
async fn ended(answers: &mut tonic::Streaming<pb::WatchResponse>) -> String {
    let end = tokio::time::timeout(PATIENCE, answers.message()).await.expect("it ends");
    let end = end.unwrap().unwrap();
    assert!(end.canceled && end.events.is_empty(), "{end:?}");
    end.cancel_reason
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_user_may_not_read_any_more() {
    let (_cluster, nobody) = single(tested()).await;
    let root = nobody.as_user("root", "root-secret").await.unwrap();
    let ann = nobody.as_user("ann", "ann-secret").await.unwrap();
    let (_sender, mut answers) = ann.watch("a", "b").await.unwrap();
    assert!(answers.message().await.unwrap().unwrap().created);
    root.put("a1", "seen", 0).await.unwrap();
    let seen = answers.message().await.unwrap().unwrap();
    assert_eq!(seen.events[0].kv.as_ref().unwrap().value, "seen");
    let revoke = pb::AuthRoleRevokePermissionRequest {
        role: "a".into(),
        key: "a".into(),
        range_end: "b".into(),
    };
    let path = "/etcdserverpb.Auth/RoleRevokePermission";
    root.call::<_, pb::AuthRoleRevokePermissionResponse>(path, revoke).await.unwrap();
    root.put("a1", "hidden", 0).await.unwrap();
    assert_eq!(ended(&mut answers).await, DENIED);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_end_with_their_user_and_when_auth_is_turned_on() {
    let cluster = Cluster::start(&[tested()], &[]).await.unwrap();
    let nobody = Caller::at(&cluster.members[0]).await;
    set_up(&nobody).await.unwrap();
    let (_before, mut before) = nobody.watch("a", "b").await.unwrap();
    assert!(before.message().await.unwrap().unwrap().created);
    enable(&nobody).await.unwrap();
    assert_eq!(ended(&mut before).await, DENIED);

    let root = nobody.as_user("root", "root-secret").await.unwrap();
    let ann = nobody.as_user("ann", "ann-secret").await.unwrap();
    let (_of_root, mut of_root) = root.watch("a", "\0").await.unwrap();
    let (_of_ann, mut of_ann) = ann.watch("a", "b").await.unwrap();
    for answers in [&mut of_root, &mut of_ann] {
        assert!(answers.message().await.unwrap().unwrap().created);
    }
    // A new password changes no rights.
    root.change_password("ann", "new-secret").await.unwrap();
    root.put("a1", "seen", 0).await.unwrap();
    assert_eq!(of_ann.message().await.unwrap().unwrap().events.len(), 1);
    root.delete_user("ann").await.unwrap();
    assert_eq!(ended(&mut of_ann).await, DENIED);
    // Nobody else's watch has ended.
    root.put("a1", "again", 0).await.unwrap();
    for value in ["seen", "again"] {
        let event = of_root.message().await.unwrap().unwrap().events.remove(0);
        assert_eq!(event.kv.unwrap().value, value);
    }
}
