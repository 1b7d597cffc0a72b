//! The shell around the hub: the thread that owns it and the thread that reads for it.
//!
//! Input: the inbox and the clock. Output: frames in the queues of streams, with one wake-up per
//! stream and batch. Watchers that are a little behind are read for here, so that they can become
//! live at once; long reads run on the second thread while live delivery goes on.
//! **Invariant:** live frames are handed out before any read begins.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    history::History,
    hub::{Fatal, Hub, Reach, StreamId},
    inbox::{Inbox, Message, WatchHandle},
    job::ReadJob,
    limits::HubConfig,
    stream::Queue,
};

/// Short reads between two looks into the inbox.
const READS_PER_TURN: usize = 4;

/// Runs a hub at the revision of `view`. `on_fatal` is called if watchers can no longer be served
/// truthfully; it is expected to end the process.
pub fn spawn(
    config: HubConfig,
    view: Arc<dyn History>,
    on_fatal: impl FnOnce(Fatal) + Send + 'static,
) -> io::Result<(Driver, WatchHandle)> {
    let inbox = Arc::new(Inbox::new(&config.limits));
    // One job at a time: the next one is chosen when the positions after it are known.
    let (jobs, todo) = mpsc::sync_channel::<ReadJob>(1);
    let done = inbox.clone();
    let reader = thread::Builder::new().name("watch-read".into()).spawn(move || {
        while let Ok(job) = todo.recv() {
            if done.push(Message::Read(job.run())).is_err() {
                break;
            }
        }
    })?;
    let interval = config.progress_interval;
    let worker = Worker {
        hub: Hub::new(config, view),
        inbox: inbox.clone(),
        queues: HashMap::new(),
        started: Instant::now(),
        jobs,
        reading: false,
        interval,
        random: RandomState::new(),
    };
    let hub = thread::Builder::new().name("watch".into()).spawn(move || worker.run(on_fatal))?;
    let handle = WatchHandle { inbox: inbox.clone() };
    Ok((Driver { inbox, threads: vec![hub, reader] }, handle))
}

/// The hub's threads. Dropping it stops them and ends all streams.
pub struct Driver {
    inbox: Arc<Inbox>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        close_unopened(self.inbox.stop());
        for thread in self.threads.drain(..) {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

/// Ends streams whose opening was never seen.
fn close_unopened(rest: Vec<Message>) {
    for message in rest {
        if let Message::Open(_, queue) = message {
            queue.close();
        }
    }
}

struct Worker {
    hub: Hub,
    inbox: Arc<Inbox>,
    queues: HashMap<StreamId, Arc<Queue>>,
    started: Instant,
    jobs: mpsc::SyncSender<ReadJob>,
    reading: bool,
    interval: Duration,
    random: RandomState,
}

impl Worker {
    fn run(mut self, on_fatal: impl FnOnce(Fatal)) {
        let result = self.serve();
        close_unopened(self.inbox.stop());
        for queue in self.queues.values() {
            queue.close();
        }
        if let Err(fatal) = result {
            on_fatal(fatal);
        }
    }

    fn serve(&mut self) -> Result<(), Fatal> {
        let mut busy = false;
        loop {
            let timeout = if busy {
                Some(Duration::ZERO)
            } else {
                let now = self.started.elapsed();
                self.hub.next_deadline().map(|due| due.saturating_sub(now))
            };
            let Some(messages) = self.inbox.take(timeout) else { return Ok(()) };
            self.hub.set_term(self.inbox.term());
            for message in messages {
                self.handle(message)?;
            }
            self.hub.tick(self.started.elapsed());
            self.flush();
            self.read()?;
            self.flush();
            self.inbox.set_metrics(self.hub.metrics());
            busy =
                self.hub.has_work(Reach::Near) || (!self.reading && self.hub.has_work(Reach::Any));
        }
    }

    fn handle(&mut self, message: Message) -> Result<(), Fatal> {
        match message {
            Message::Publish(step) => self.hub.publish(step)?,
            Message::Open(stream, queue) => {
                let tenth = u64::try_from(self.interval.as_nanos() / 10).unwrap_or(u64::MAX);
                let jitter = self.random.hash_one(stream.0) % tenth.max(1);
                let now = self.started.elapsed();
                self.hub.open(stream, now, Duration::from_nanos(jitter));
                self.queues.insert(stream, queue);
            }
            Message::Create(stream, request) => self.hub.create(stream, request),
            Message::Refuse(stream, reason) => self.hub.refuse(stream, &reason),
            Message::Cancel(stream, watch_id) => {
                let answered = self.hub.cancel(stream, watch_id);
                self.release_unless(answered, stream);
            }
            Message::Progress(stream) => {
                let answered = self.hub.progress(stream);
                self.release_unless(answered, stream);
            }
            Message::Rules(may_watch) => self.hub.set_rules(may_watch),
            Message::Close(stream) => {
                self.hub.close(stream);
                if let Some(queue) = self.queues.remove(&stream) {
                    queue.close();
                }
            }
            Message::Drained(stream, drained) => self.hub.drained(stream, drained),
            Message::Read(result) => {
                self.reading = false;
                self.hub.finish(result.map_err(Fatal::History)?);
            }
        }
        Ok(())
    }

    fn release_unless(&self, answered: bool, stream: StreamId) {
        if !answered && let Some(queue) = self.queues.get(&stream) {
            queue.release_request();
        }
    }

    fn read(&mut self) -> Result<(), Fatal> {
        for _ in 0..READS_PER_TURN {
            let Some(job) = self.hub.next_job(Reach::Near) else { break };
            self.hub.finish(job.run()?);
        }
        if !self.reading
            && let Some(job) = self.hub.next_job(Reach::Any)
        {
            // The channel has room, for the last job is done; a reader that is gone has panicked.
            self.reading = self.jobs.try_send(job).is_ok();
        }
        Ok(())
    }

    fn flush(&mut self) {
        for output in self.hub.take_outputs() {
            if let Some(queue) = self.queues.get(&output.stream) {
                let drained = queue.extend(output.frames, output.waits_for_room);
                if !drained.is_empty() {
                    self.hub.drained(output.stream, drained);
                }
            }
        }
    }
}
