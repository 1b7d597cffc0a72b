//! A program with a store inside: `cargo run -p mainstay-store --example embed`.
//!
//! Shows the everyday calls: write, read, watch, claim something with a transaction, and let a
//! lease take keys away. Give it a directory to keep its data there.

#![allow(clippy::print_stdout, reason = "it talks to who runs it")]

use mainstay_store::{Compare, Get, Keys, Op, Store, Txn, Watch};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = match std::env::args().nth(1) {
        Some(directory) => Store::open(directory).await?,
        None => Store::temporary().await?,
    };

    // Every write makes a new revision of the whole store.
    let written = store.put("config/color", "blue").await?;
    let revision = written.header.unwrap_or_default().revision;
    store.put("config/color", "green").await?;
    store.put("config/size", "large").await?;

    // Reads see all that was acknowledged before, or any older revision that is still kept.
    for kv in store.range(Get::new(Keys::prefix("config/"))).await?.kvs {
        println!("{} = {}", text(&kv.key), text(&kv.value));
    }
    let then = store.range(Get::new("config/color").at_revision(revision)).await?;
    println!("at revision {revision} the color was {}", text(&then.kvs[0].value));

    // A watch from a revision in the past misses nothing.
    let watch = Watch::new(Keys::prefix("config/")).from_revision(revision);
    let mut changes = store.watch(watch).await?;
    for event in changes.next().await?.events {
        let kv = event.kv.unwrap_or_default();
        println!("revision {}: {} became {}", kv.mod_revision, text(&kv.key), text(&kv.value));
    }

    // Only one claimant can win, whoever else runs this.
    let claim = Txn::new()
        .when(Compare::is_absent("leader"))
        .then(Op::put("leader", "example"))
        .otherwise(Op::get("leader"));
    println!("claimed: {}", store.txn(claim).await?.succeeded);

    // A lease that is not kept alive takes its keys away.
    let lease = store.grant(2).await?;
    store.put_with_lease("workers/1", "here", lease.id).await?;
    let mut workers = store.watch(Watch::new(Keys::prefix("workers/"))).await?;
    println!("waiting for the lease of {} s to end", lease.ttl);
    workers.next().await?;
    println!("workers left: {}", store.range(Get::new(Keys::prefix("workers/"))).await?.count);

    store.delete("leader").await?;
    store.shutdown().await;
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
