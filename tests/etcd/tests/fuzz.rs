//! A few seeds of the differential fuzz; `etcd-fuzz` runs as many as are wanted.

use mainstay_etcd_tests::client::Client;
use mainstay_etcd_tests::fuzz::{Pair, run_seed};
use mainstay_etcd_tests::member::{Cluster, Program};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_answers_as_etcd_does() {
    for seed in 1..=5 {
        let reference = Cluster::start(&[Program::Etcd], &["--unsafe-no-fsync"]).await.unwrap();
        let tested = Cluster::start(&[Program::Mainstay], &["--unsafe-no-fsync"]).await.unwrap();
        let mut pair = Pair {
            reference: Client::connect(&reference.client_urls()[0]).await.unwrap(),
            tested: Client::connect(&tested.client_urls()[0]).await.unwrap(),
        };
        let difference = run_seed(&mut pair, seed, 2000).await.unwrap();
        assert!(difference.is_none(), "{}", difference.unwrap());
    }
}
