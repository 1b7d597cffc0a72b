//! The next segment, made before it is needed, so that a cut does not wait for the disk to set
//! aside 64 MB.
//!
//! Input: a directory and a size. Output: an empty, locked, preallocated file under a temporary
//! name that the log renames. Names alternate between `0.tmp` and `1.tmp`, so the file being made
//! never has the name of the one just handed out.
//! **Invariant:** after drop the thread has ended and has taken its file away.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use crate::files::{Access, File, Files};

/// A segment in the making.
pub(crate) struct Prepared {
    pub(crate) file: Box<dyn File>,
    pub(crate) path: PathBuf,
}

/// Makes segments, ahead of time or on demand.
pub(crate) struct Pipeline {
    maker: Maker,
    ahead: Option<Ahead>,
}

struct Maker {
    files: Arc<dyn Files>,
    dir: PathBuf,
    size: u64,
    count: u64,
}

struct Ahead {
    /// Holds nothing itself: the maker waits in `send` with the one file that it has ready.
    receiver: Receiver<io::Result<Prepared>>,
    thread: JoinHandle<()>,
}

impl Pipeline {
    pub(crate) fn new(
        files: Arc<dyn Files>,
        dir: &Path,
        size: u64,
        ahead: bool,
    ) -> io::Result<Pipeline> {
        let maker = Maker { files, dir: dir.to_owned(), size, count: 0 };
        let ahead = if ahead { Some(Ahead::spawn(maker.clone())?) } else { None };
        Ok(Pipeline { maker, ahead })
    }

    /// The next file. Rename it before the next call.
    pub(crate) fn take(&mut self) -> io::Result<Prepared> {
        match &self.ahead {
            None => self.maker.make(),
            Some(ahead) => match ahead.receiver.recv() {
                Ok(made) => made,
                Err(_) => Err(io::Error::other("preparing the next segment failed before")),
            },
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if let Some(Ahead { receiver, thread }) = self.ahead.take() {
            drop(receiver);
            if thread.join().is_err() {
                tracing::error!("the thread that prepares log segments panicked");
            }
        }
    }
}

impl Ahead {
    fn spawn(mut maker: Maker) -> io::Result<Ahead> {
        let (sender, receiver) = sync_channel(0);
        let thread =
            std::thread::Builder::new().name("log-segments".to_owned()).spawn(move || {
                loop {
                    let made = maker.make();
                    let failed = made.is_err();
                    if let Err(unwanted) = sender.send(made) {
                        if let Ok(prepared) = unwanted.0 {
                            // Nobody depends on it; a leftover is emptied at the next start.
                            let _ = maker.files.remove(&prepared.path);
                        }
                        return;
                    }
                    if failed {
                        return;
                    }
                }
            })?;
        Ok(Ahead { receiver, thread })
    }
}

impl Clone for Maker {
    fn clone(&self) -> Self {
        Maker { files: self.files.clone(), dir: self.dir.clone(), ..*self }
    }
}

impl Maker {
    fn make(&mut self) -> io::Result<Prepared> {
        let path = self.dir.join(format!("{}.tmp", self.count % 2));
        let file = self.files.open(&path, Access::Create)?;
        if !file.try_lock()? {
            return Err(io::Error::other(format!(
                "{}: another process uses this file",
                path.display()
            )));
        }
        file.preallocate(self.size)?;
        self.count += 1;
        Ok(Prepared { file, path })
    }
}
