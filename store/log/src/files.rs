//! The file layer: the few operations that the log needs of a disk.
//!
//! Input and output: paths and bytes. Implementations: [`crate::OsFiles`] and [`crate::SimFiles`].
//! **Invariant:** only [`File::sync_data`] makes content durable and only [`Files::sync_dir`] makes
//! names durable; whoever calls decides when.

use std::io;
use std::path::Path;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading an existing file.
    Read,
    /// Reading and writing an existing file.
    Write,
    /// Reading and writing; made if absent, emptied if present.
    Create,
}

/// A directory tree on some disk.
pub trait Files: Send + Sync {
    /// Opens a file. New files belong to the owner alone (mode 0600).
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>>;
    /// Makes a directory and its parents (mode 0700); one that exists is no error.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether something has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Gives a file or directory another name, atomically; a file of that name, or an empty
    /// directory in place of a directory, goes away.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Dropping it closes it and gives up its lock.
pub trait File: Send + Sync {
    /// Reads at an offset; fewer bytes than asked are normal, 0 is the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of it at an offset, growing the file if need be.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// The length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Makes the file at least this long, with blocks set aside; what is new reads as zeros.
    fn preallocate(&self, size: u64) -> io::Result<()>;
    /// Cuts the file, or grows it with zeros.
    fn truncate(&self, size: u64) -> io::Result<()>;
    /// Makes the content and the length durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Takes the lock that etcd takes on its segments. False: another holder has it.
    fn try_lock(&self) -> io::Result<bool>;
}
