//! Puts many keys as fast as one member takes them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use bytes::Bytes;
use mainstay_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::client::Client;

const CONNECTIONS: usize = 16;
/// Bytes of values in one transaction, well below the limit of a request.
const BATCH_BYTES: usize = 512 * 1024;
/// The limit of operations in one transaction is 128.
const BATCH_PUTS: usize = 100;

/// Which keys there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    /// How many.
    pub(super) count: u64,
    /// Bytes of each value.
    pub(super) value_bytes: usize,
}

impl Keys {
    /// A key by number.
    pub(super) fn key(&self, number: u64) -> Bytes {
        format!("registry/things/{number:012}").into()
    }

    /// A value that does not compress.
    pub(super) fn value(&self, rng: &mut impl RngCore) -> Bytes {
        let mut value = vec![0; self.value_bytes];
        rng.fill_bytes(&mut value);
        value.into()
    }

    fn batch(&self) -> u64 {
        (BATCH_BYTES / self.value_bytes.max(1)).clamp(1, BATCH_PUTS) as u64
    }
}

/// Puts the keys of a range, each once.
pub(super) async fn load(url: &str, keys: &Keys, range: Range<u64>) -> Result<()> {
    let next = Arc::new(AtomicU64::new(range.start));
    let mut tasks = Vec::new();
    for task in 0..CONNECTIONS {
        let (url, keys, next, end) = (url.to_string(), *keys, next.clone(), range.end);
        tasks.push(tokio::spawn(async move {
            let mut client = Client::connect(&url).await?;
            let mut rng = ChaCha8Rng::seed_from_u64(task as u64);
            loop {
                let first = next.fetch_add(keys.batch(), Ordering::Relaxed);
                if first >= end {
                    return anyhow::Ok(());
                }
                let puts = (first..end.min(first + keys.batch())).map(|number| {
                    let (key, value) = (keys.key(number), keys.value(&mut rng));
                    let put = PutRequest { key, value, ..Default::default() };
                    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
                });
                let success = puts.collect();
                client.kv.txn(TxnRequest { success, ..Default::default() }).await?;
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
