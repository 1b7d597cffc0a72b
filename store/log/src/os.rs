//! The file layer on the real disk.
//!
//! Input: paths and bytes; output: system calls. **Invariant:** an error of the system comes out
//! as it is, and no call is repeated after a failure.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::FallocateFlags;

use crate::files::{Access, File, Files};

/// The disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFiles;

struct OsFile(fs::File);

/// How often a lock that is taken is tried, and the pause between two tries.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl Files for OsFiles {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).mode(0o600);
        match access {
            Access::Read => {}
            Access::Write => {
                options.write(true);
            }
            Access::Create => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Box::new(OsFile(options.open(path)?)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }
}

impl File for OsFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, size) {
            // Some file systems cannot set blocks aside, and some are interrupted each time they
            // try: a file of that length without blocks does the same, only slower.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INTR) => {
                if self.size()? < size {
                    self.0.set_len(size)?;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    /// The whole file by an open-file-description lock, as etcd on Linux takes it: so each keeps
    /// the other out, and closing another handle of the file does not give it up.
    fn try_lock(&self) -> io::Result<bool> {
        let whole = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // A process that another thread just forked holds copies of all open files, and so the
        // locks of a log that was closed meanwhile, until its exec.
        for _ in 0..LOCK_TRIES {
            match fcntl(self.0.as_fd(), FcntlArg::F_OFD_SETLK(&whole)) {
                Ok(_) => return Ok(true),
                Err(Errno::EAGAIN | Errno::EACCES) => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(false)
    }
}
