//! Puts and gets at a fixed rate, and how long each took from the moment it was due.
//!
//! **Invariant:** a request that is late because the server was busy counts from when it was due,
//! so a pause of the server is seen by all requests that it delays.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use mainstay_proto::etcdserverpb::{PutRequest, RangeRequest};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::load::Keys;
use crate::client::Client;

const CONNECTIONS: usize = 8;

/// Latencies of one phase.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    puts: Vec<Duration>,
    gets: Vec<Duration>,
    errors: usize,
}

/// The value below which a share of the sorted times lies.
fn quantile(times: &[Duration], share: f64) -> Duration {
    let at = (times.len() as f64 * share) as usize;
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

impl Latencies {
    /// The 99th percentile of puts.
    pub fn put_p99(&self) -> Duration {
        quantile(&self.puts, 0.99)
    }

    /// The 99th percentile of gets.
    pub fn get_p99(&self) -> Duration {
        quantile(&self.gets, 0.99)
    }

    /// Requests that failed.
    pub fn errors(&self) -> usize {
        self.errors
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, times) in [("put", &self.puts), ("get", &self.gets)] {
            write!(
                f,
                "{name}: {} p50 {:.1?} p99 {:.1?} max {:.1?}, ",
                times.len(),
                quantile(times, 0.5),
                quantile(times, 0.99),
                times.last().copied().unwrap_or_default()
            )?;
        }
        write!(f, "errors {}", self.errors)
    }
}

/// A running load.
pub(super) struct Probe {
    latencies: Arc<Mutex<Latencies>>,
    stop: watch::Sender<bool>,
    driver: JoinHandle<()>,
}

impl Probe {
    /// Starts the load.
    pub(super) async fn start(url: &str, keys: Keys, puts: u32, gets: u32) -> Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(url).await?);
        }
        let latencies = Arc::new(Mutex::new(Latencies::default()));
        let (stop, stopped) = watch::channel(false);
        let driver = tokio::spawn(drive(clients, keys, puts, gets, latencies.clone(), stopped));
        Ok(Probe { latencies, stop, driver })
    }

    /// What was measured since the last call, sorted.
    pub(super) fn take(&self) -> Latencies {
        let mut latencies = std::mem::take(&mut *self.latencies.lock().expect("never poisoned"));
        latencies.puts.sort();
        latencies.gets.sort();
        latencies
    }

    /// Ends the load.
    pub(super) async fn stop(self) -> Result<()> {
        let _ = self.stop.send(true);
        self.driver.await.context("the load ended by itself")
    }
}

async fn drive(
    clients: Vec<Client>,
    keys: Keys,
    puts: u32,
    gets: u32,
    latencies: Arc<Mutex<Latencies>>,
    stopped: watch::Receiver<bool>,
) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let step = Duration::from_secs(1) / (puts + gets);
    let mut due = Instant::now();
    let mut turn = 0;
    while !*stopped.borrow() {
        due += step;
        tokio::time::sleep_until(due).await;
        let key = keys.key(rng.random_range(0..keys.count));
        let put = rng.random_range(0..puts + gets) < puts;
        let value = put.then(|| keys.value(&mut rng));
        let mut client = clients[turn % clients.len()].clone();
        turn += 1;
        let latencies = latencies.clone();
        tokio::spawn(async move {
            let done = match value {
                Some(value) => {
                    let put = PutRequest { key, value, ..Default::default() };
                    client.kv.put(put).await.is_ok()
                }
                None => {
                    let range = RangeRequest { key, ..Default::default() };
                    client.kv.range(range).await.is_ok()
                }
            };
            let time = due.elapsed();
            let mut latencies = latencies.lock().expect("never poisoned");
            match (done, put) {
                (false, _) => latencies.errors += 1,
                (true, true) => latencies.puts.push(time),
                (true, false) => latencies.gets.push(time),
            }
        });
    }
}
