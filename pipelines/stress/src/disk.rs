//! A small file system that is filled up and freed while a pipeline writes to it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context;
use turnflow_eval::random::Random;

/// Largest file system that is filled, in bytes: a full root disk would disturb the whole machine.
const LARGEST: u64 = 256 << 20;
/// Bytes that are sometimes left free, so that a write fails midway.
const LEFT: usize = 20_000;

/// A file that takes the free space of its file system.
pub(crate) struct Disk {
    file: File,
    size: u64,
    full: bool,
    /// How often the disk was filled.
    pub times: u32,
}

impl Disk {
    /// Fills the disk once, to learn its size, and frees it.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("filler");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot create `{}`", path.display()))?;
        let mut disk = Self { file, size: 0, full: false, times: 0 };
        disk.fill()?;
        disk.free(0)?;
        disk.times = 0;
        Ok(disk)
    }

    /// Whether the disk has no or hardly any space left.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Occasionally fills or frees the disk.
    pub fn change(&mut self, random: &mut Random) -> anyhow::Result<()> {
        match (self.full, random.below(12)) {
            (false, 0) => self.fill(),
            (true, 0..2) => self.free(0),
            // A few kilobytes are soon written: the next write fails midway.
            (true, 2) => self.free(self.size.saturating_sub(random.below(LEFT) as u64)),
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let block = vec![0; 64 << 10];
        let mut length = block.len();
        while length > 0 {
            match self.file.write(&block[..length]) {
                Ok(written) => self.size += written as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(error).context("cannot fill the disk"),
            }
            if self.size > LARGEST {
                self.free(0)?;
                anyhow::bail!("the file system is larger than {} MB: use a small, separate one", LARGEST >> 20);
            }
        }
        self.full = true;
        self.times += 1;
        Ok(())
    }

    /// Keeps `size` bytes. The disk counts as full unless all of it is freed.
    pub fn free(&mut self, size: u64) -> anyhow::Result<()> {
        self.file.set_len(size).context("cannot free the disk")?;
        (self.size, self.full) = (size, size > 0);
        Ok(())
    }
}
