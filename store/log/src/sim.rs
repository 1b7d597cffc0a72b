//! A disk in memory that forgets, tears and fails as real ones do.
//!
//! Input: the calls of [`Files`], the faults to inject, and at a crash a source of choices.
//! Output: the same answers as a disk, and after a crash a disk with what could be left on it:
//! - content that was not synced is there or not, sector by sector (512 bytes);
//! - a length that was not synced is the old or the new one;
//! - names that were not synced are undone from the last operation backwards, at any point, but
//!   syncing one directory makes its own durable and no other's.
//!
//! A failed sync loses what it should have written, for good, while reads still show it: that is
//! what Linux does to dirty pages after an error.
//! **Invariant:** deterministic; all chance comes from the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::{Access, File, Files};

const SECTOR: usize = 512;
const EIO: i32 = 5;
const ROOT: usize = 0;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write fails after half of its bytes.
    Write,
    /// A sync of a file or directory fails.
    Sync,
    /// A read fails.
    Read,
    /// From here on every call that would change the disk fails and changes nothing.
    PowerOff,
}

/// The simulated disk. Clones share it.
#[derive(Clone, Default)]
pub struct SimFiles {
    disk: Arc<Mutex<Disk>>,
}

struct Disk {
    nodes: Vec<Node>,
    /// Operations on names that no sync has covered, oldest first.
    pending: Vec<NameOp>,
    faults: Vec<(Fault, u64)>,
    powered_off: bool,
    changes: u64,
    longest_read: usize,
}

#[derive(Clone)]
enum Node {
    File(Content),
    Dir(Names),
}

#[derive(Clone, Default)]
struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors in which the two may differ and that a sync would write.
    dirty: BTreeSet<usize>,
    locked: bool,
}

#[derive(Clone, Default)]
struct Names {
    live: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
}

#[derive(Clone)]
enum NameOp {
    Put { dir: usize, name: String, node: usize },
    Drop { dir: usize, name: String },
    Move { from: (usize, String), to: (usize, String), node: usize },
}

impl Default for Disk {
    fn default() -> Self {
        Disk {
            nodes: vec![Node::Dir(Names::default())],
            pending: Vec::new(),
            faults: Vec::new(),
            powered_off: false,
            changes: 0,
            longest_read: usize::MAX,
        }
    }
}

impl SimFiles {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the fault strike once, after this many more operations of its kind went well.
    pub fn inject(&self, fault: Fault, after: u64) {
        self.disk().faults.push((fault, after));
    }

    /// How many calls have changed or synced something, to strike at each of them in turn.
    pub fn changes(&self) -> u64 {
        self.disk().changes
    }

    /// Reads return at most this many bytes at once.
    pub fn limit_reads(&self, bytes: usize) {
        self.disk().longest_read = bytes;
    }

    /// What is left on the disk if the machine stops now. `choose(n)` picks a number below `n`.
    pub fn crash(&self, choose: &mut dyn FnMut(u64) -> u64) -> SimFiles {
        let disk = self.disk();
        let mut nodes = disk.nodes.clone();
        let kept = choose(disk.pending.len() as u64 + 1) as usize;
        for op in &disk.pending[..kept] {
            op.apply(&mut nodes);
        }
        for node in &mut nodes {
            match node {
                Node::File(content) => content.crash(choose),
                Node::Dir(names) => names.live = names.durable.clone(),
            }
        }
        SimFiles { disk: Arc::new(Mutex::new(Disk { nodes, ..Disk::default() })) }
    }

    /// The bytes of a file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut disk = self.disk();
        let node = disk.find(path)?;
        Ok(disk.content(node)?.live.clone())
    }

    /// Changes bytes behind everyone's back, durably, as a bad disk does.
    pub fn corrupt(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut disk = self.disk();
        let node = disk.find(path)?;
        let content = disk.content(node)?;
        change(&mut content.live);
        content.durable.clone_from(&content.live);
        content.dirty.clear();
        Ok(())
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        // A test that panicked elsewhere must not hide its message behind this one.
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        if self.live.len() < end {
            self.live.resize(end, 0);
        }
        self.live[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / SECTOR..=(end - 1) / SECTOR);
    }

    fn truncate(&mut self, size: usize) {
        if size < self.live.len() {
            self.dirty.extend(size / SECTOR..=(self.live.len() - 1) / SECTOR);
        }
        self.live.resize(size, 0);
    }

    /// Takes one sector from what is live into what is durable.
    fn settle(&mut self, sector: usize) {
        let start = sector * SECTOR;
        let end = (start + SECTOR).min(self.durable.len());
        for at in start..end {
            self.durable[at] = self.live.get(at).copied().unwrap_or(0);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            self.settle(sector);
        }
    }

    fn crash(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        self.locked = false;
        let dirty = std::mem::take(&mut self.dirty);
        if self.live.len() != self.durable.len() && choose(2) == 1 {
            self.durable.resize(self.live.len(), 0);
        }
        if !dirty.is_empty() {
            // Disks write in any order, but all, nothing, and the first few are likely.
            let mode = choose(4);
            let first = choose(dirty.len() as u64 + 1) as usize;
            for (position, sector) in dirty.into_iter().enumerate() {
                let kept = match mode {
                    0 => false,
                    1 => true,
                    2 => position < first,
                    _ => choose(2) == 1,
                };
                if kept {
                    self.settle(sector);
                }
            }
        }
        self.live.clone_from(&self.durable);
    }
}

impl NameOp {
    fn touches(&self, wanted: usize) -> bool {
        match self {
            NameOp::Put { dir, .. } | NameOp::Drop { dir, .. } => *dir == wanted,
            NameOp::Move { from, to, .. } => from.0 == wanted || to.0 == wanted,
        }
    }

    fn apply(&self, nodes: &mut [Node]) {
        match self {
            NameOp::Put { dir, name, node } => {
                if let Node::Dir(names) = &mut nodes[*dir] {
                    names.durable.insert(name.clone(), *node);
                }
            }
            NameOp::Drop { dir, name } => {
                if let Node::Dir(names) = &mut nodes[*dir] {
                    names.durable.remove(name);
                }
            }
            NameOp::Move { from, to, node } => {
                if let Node::Dir(names) = &mut nodes[from.0] {
                    names.durable.remove(&from.1);
                }
                if let Node::Dir(names) = &mut nodes[to.0] {
                    names.durable.insert(to.1.clone(), *node);
                }
            }
        }
    }
}

impl Disk {
    /// Counts down the faults of a kind; true when one strikes.
    fn strikes(&mut self, kind: Fault) -> bool {
        let mut struck = false;
        self.faults.retain_mut(|(fault, left)| {
            if *fault != kind {
                return true;
            }
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => struck = true,
            }
            !struck
        });
        struck
    }

    /// To be called before anything changes.
    fn change(&mut self) -> io::Result<()> {
        if self.strikes(Fault::PowerOff) {
            self.powered_off = true;
        }
        if self.powered_off {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.changes += 1;
        Ok(())
    }

    fn walk(&self, components: &[&str]) -> io::Result<usize> {
        let mut at = ROOT;
        for name in components {
            let Node::Dir(names) = &self.nodes[at] else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            at = *names.live.get(*name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        self.walk(&components(path)?)
    }

    /// The directory that holds a path, and the last name in it.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let components = components(path)?;
        let (name, parents) = components.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.walk(parents)?, (*name).to_owned()))
    }

    fn names(&mut self, dir: usize) -> io::Result<&mut BTreeMap<String, usize>> {
        match &mut self.nodes[dir] {
            Node::Dir(names) => Ok(&mut names.live),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn content(&mut self, node: usize) -> io::Result<&mut Content> {
        match &mut self.nodes[node] {
            Node::File(content) => Ok(content),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn add(&mut self, dir: usize, name: String, node: Node) -> io::Result<usize> {
        let id = self.nodes.len();
        self.names(dir)?.insert(name.clone(), id);
        self.nodes.push(node);
        self.pending.push(NameOp::Put { dir, name, node: id });
        Ok(id)
    }

    fn drop_name(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.names(dir)?.remove(&name).ok_or(io::ErrorKind::NotFound)?;
        self.pending.push(NameOp::Drop { dir, name });
        Ok(())
    }
}

fn components(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                names.push(name.to_str().ok_or(io::ErrorKind::InvalidInput)?);
            }
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
    }
    Ok(names)
}

impl Files for SimFiles {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>> {
        let mut disk = self.disk();
        let (dir, name) = disk.parent(path)?;
        let node = match disk.names(dir)?.get(&name).copied() {
            Some(node) => {
                disk.content(node)?;
                if access == Access::Create {
                    disk.change()?;
                    disk.content(node)?.truncate(0);
                }
                node
            }
            None if access == Access::Create => {
                disk.change()?;
                disk.add(dir, name, Node::File(Content::default()))?
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let disk = self.clone();
        Ok(Box::new(SimFile { disk, node, holds_lock: AtomicBool::new(false) }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let names = components(path)?;
        for depth in 1..=names.len() {
            let dir = disk.walk(&names[..depth - 1])?;
            let name = names[depth - 1].to_owned();
            if !disk.names(dir)?.contains_key(&name) {
                disk.change()?;
                disk.add(dir, name, Node::Dir(Names::default()))?;
            }
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.disk().find(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut disk = self.disk();
        let dir = disk.find(dir)?;
        Ok(disk.names(dir)?.keys().cloned().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let (from, to) = (disk.parent(from)?, disk.parent(to)?);
        let node = *disk.names(from.0)?.get(&from.1).ok_or(io::ErrorKind::NotFound)?;
        if let Some(&there) = disk.names(to.0)?.get(&to.1)
            && let Node::Dir(names) = &disk.nodes[there]
            && !names.live.is_empty()
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        disk.change()?;
        disk.names(from.0)?.remove(&from.1);
        disk.names(to.0)?.insert(to.1.clone(), node);
        disk.pending.push(NameOp::Move { from, to, node });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let node = disk.find(path)?;
        disk.content(node)?;
        disk.change()?;
        disk.drop_name(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let node = disk.find(path)?;
        disk.names(node)?;
        disk.change()?;
        disk.drop_name(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let dir = disk.find(dir)?;
        disk.names(dir)?;
        disk.change()?;
        if disk.strikes(Fault::Sync) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let Disk { nodes, pending, .. } = &mut *disk;
        pending.retain(|op| {
            let synced = op.touches(dir);
            if synced {
                op.apply(nodes);
            }
            !synced
        });
        Ok(())
    }
}

struct SimFile {
    disk: SimFiles,
    node: usize,
    holds_lock: AtomicBool,
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk.disk();
        if disk.strikes(Fault::Read) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let longest = disk.longest_read;
        let live = &disk.content(self.node)?.live;
        let rest = live.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len()).min(longest);
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        let failed = disk.strikes(Fault::Write);
        let written = if failed { &bytes[..bytes.len() / 2] } else { bytes };
        disk.content(self.node)?.write(written, offset as usize);
        if failed { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.disk().content(self.node)?.live.len() as u64)
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        let live = &mut disk.content(self.node)?.live;
        let size = live.len().max(size as usize);
        live.resize(size, 0);
        Ok(())
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        disk.content(self.node)?.truncate(size as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.change()?;
        if disk.strikes(Fault::Sync) {
            disk.content(self.node)?.dirty.clear();
            return Err(io::Error::from_raw_os_error(EIO));
        }
        disk.content(self.node)?.sync();
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut disk = self.disk.disk();
        let content = disk.content(self.node)?;
        if content.locked && !self.holds_lock.load(Ordering::Relaxed) {
            return Ok(false);
        }
        content.locked = true;
        self.holds_lock.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.holds_lock.load(Ordering::Relaxed)
            && let Ok(content) = self.disk.disk().content(self.node)
        {
            content.locked = false;
        }
    }
}
