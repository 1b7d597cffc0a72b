//! Figures of the engine on disk: `cargo run -p mainstay-engine --example engine_bench -- [KEYS] [VALUE_BYTES]`.
//!
//! Writes what the state machine writes for puts (a row each to the key log, the index and the
//! history), one and 64 to a batch, then reads it in each way that the store reads, then deletes old
//! revisions as compaction does. One thread, a directory in the temporary folder, no log.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_engine::{Batch, Engine, Family, RocksEngine, RocksOptions, Scan};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A generator whose numbers only have to look scattered.
struct Scatter(u64);

impl Scatter {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(200_000), |text| text.parse())?;
    let value_bytes: usize = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let engine = RocksEngine::open(folder.path(), &RocksOptions::default())?;
    let mut scatter = Scatter(88_172_645);
    let noise = (0..(1 << 20) + value_bytes).map(|_| scatter.next() as u8).collect::<Vec<_>>();
    let mut bench = Bench { engine, revision: 1, value_bytes, scatter, noise: noise.into() };
    println!("{keys} keys, values of {value_bytes} bytes");

    bench.writes("new keys, 1 a batch", keys / 10, 1, keys / 10, true)?;
    bench.writes("new keys, 64 a batch", keys, 64, keys, true)?;
    bench.memory("loaded")?;
    bench.writes("overwrites, 1 a batch", keys / 10, 1, keys, false)?;
    bench.writes("overwrites, 64 a batch", keys, 64, keys, false)?;
    let flush = Instant::now();
    bench.engine.flush()?;
    println!("flush: {:?}", flush.elapsed());
    bench.memory("overwritten")?;
    bench.reads(keys)?;
    bench.deletes(keys)?;
    bench.memory("old revisions deleted")?;
    let reclaim = Instant::now();
    bench.engine.reclaim()?;
    bench.engine.wait_reclaimed(Duration::from_secs(600));
    println!("reclaim: {:?}", reclaim.elapsed());
    bench.memory("reclaimed")?;
    bench.reads(keys)
}

struct Bench {
    engine: RocksEngine,
    revision: u64,
    value_bytes: usize,
    scatter: Scatter,
    /// Bytes that values are cut from. Compression finds nothing within one block of values.
    noise: Bytes,
}

fn user_key(number: u64) -> Vec<u8> {
    format!("/registry/configmaps/namespace-{:03}/name-{number:09}", number % 100).into_bytes()
}

fn revision_key(revision: u64) -> Vec<u8> {
    let mut key = revision.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend_from_slice(&[0; 8]);
    key
}

fn history_key(number: u64, revision: u64) -> Vec<u8> {
    let mut key = user_key(number);
    key.extend_from_slice(&[0, 0]);
    key.extend_from_slice(&revision_key(revision));
    key
}

impl Bench {
    fn writes(&mut self, what: &str, rows: u64, size: u64, keys: u64, in_order: bool) -> Outcome {
        let mut times = Vec::new();
        let start = Instant::now();
        let mut view = self.engine.snapshot();
        for first in (0..rows).step_by(size as usize) {
            let mut batch = Batch::new();
            for row in first..rows.min(first + size) {
                let number = if in_order { row } else { self.scatter.below(keys) };
                self.revision += 1;
                let from =
                    self.scatter.below((self.noise.len() - self.value_bytes) as u64) as usize;
                let value = self.noise.slice(from..from + self.value_bytes);
                batch.put(Family::Key, revision_key(self.revision), value);
                batch.put(Family::Index, user_key(number), revision_key(self.revision));
                batch.put(Family::History, history_key(number, self.revision), &b"\0"[..]);
            }
            batch.put(Family::System, "consistent_index", self.revision.to_be_bytes().to_vec());
            let one = Instant::now();
            self.engine.write(batch)?;
            times.push(one.elapsed());
            // The apply thread publishes a view after each batch.
            view = self.engine.snapshot();
        }
        drop(view);
        report(what, rows, start.elapsed(), &mut times);
        Ok(())
    }

    fn reads(&mut self, keys: u64) -> Outcome {
        let count = 50_000.min(keys);
        let view = self.engine.snapshot();
        let mut times = Vec::new();
        let start = Instant::now();
        for _ in 0..count {
            let key = user_key(self.scatter.below(keys));
            let one = Instant::now();
            let row = view.get(Family::Index, &key)?.ok_or("a key is missing in the index")?;
            view.get(Family::Key, &row)?.ok_or("a revision is missing")?;
            times.push(one.elapsed());
        }
        report("get: index, then value", count, start.elapsed(), &mut times);

        let start = Instant::now();
        for _ in 0..count {
            let found = view.get(Family::Index, &user_key(keys * 2 + self.scatter.below(keys)))?;
            assert!(found.is_none());
        }
        report("get: key that is not there", count, start.elapsed(), &mut []);

        let start = Instant::now();
        let mut cursor = view.cursor(Family::History, Scan::all())?;
        for _ in 0..count {
            cursor.seek_for_prev(&history_key(self.scatter.below(keys), u64::MAX));
            assert!(cursor.valid());
        }
        report("history: newest below a revision", count, start.elapsed(), &mut []);

        let start = Instant::now();
        let mut rows = Vec::new();
        let mut cursor = view.cursor(Family::Index, Scan::all())?;
        cursor.seek_to_first();
        while cursor.valid() {
            rows.push(cursor.value().to_vec());
            cursor.next();
        }
        cursor.status()?;
        report("index: count all", rows.len() as u64, start.elapsed(), &mut []);

        let start = Instant::now();
        for chunk in rows.chunks(1000).take(50) {
            let keys: Vec<&[u8]> = chunk.iter().map(Vec::as_slice).collect();
            let found = view.multi_get(Family::Key, &keys)?;
            assert!(found.iter().all(Option::is_some));
        }
        report(
            "values of a range, 1000 at a time",
            rows.len().min(50_000) as u64,
            start.elapsed(),
            &mut [],
        );

        let start = Instant::now();
        let mut cursor = view.cursor(Family::Key, Scan::all().uncached())?;
        let mut count = 0;
        cursor.seek_to_first();
        while cursor.valid() {
            count += 1;
            cursor.next();
        }
        cursor.status()?;
        report("key log: read all", count, start.elapsed(), &mut []);
        Ok(())
    }

    /// Deletes every revision that is not the newest of its key.
    fn deletes(&mut self, keys: u64) -> Outcome {
        let view = self.engine.snapshot();
        let mut times = Vec::new();
        let mut count = 0;
        let start = Instant::now();
        for number in 0..keys {
            let mut batch = Batch::new();
            let mut cursor = view.cursor(Family::History, Scan::prefix(user_key(number)))?;
            cursor.seek_to_last();
            cursor.prev();
            while cursor.valid() {
                let row = cursor.key()[cursor.key().len() - 17..].to_vec();
                batch.delete(Family::Key, row);
                batch.delete(Family::History, cursor.key().to_vec());
                cursor.prev();
            }
            cursor.status()?;
            count += batch.len() as u64 / 2;
            let one = Instant::now();
            self.engine.write(batch)?;
            times.push(one.elapsed());
        }
        report("delete old revisions, by key", count, start.elapsed(), &mut times);
        Ok(())
    }

    fn memory(&self, when: &str) -> Outcome {
        // Background work goes on; the figures are of this moment.
        let status = std::fs::read_to_string("/proc/self/status")?;
        let rss = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS: ?");
        println!("-- {when}: {rss}, {:?}", self.engine.usage());
        Ok(())
    }
}

fn report(what: &str, count: u64, took: Duration, times: &mut [Duration]) {
    let rate = count as f64 / took.as_secs_f64();
    print!("{what}: {count} in {took:.2?}, {rate:.0}/s");
    times.sort();
    if let Some(last) = times.last() {
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        print!(", p50 {:.1?}, p99 {:.1?}, worst {last:.1?}", at(0.5), at(0.99));
    }
    println!();
}
