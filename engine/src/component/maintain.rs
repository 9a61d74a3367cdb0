//! Limits and results of index maintenance.

use std::path::Path;
use std::time::Duration;

/// How much work one maintenance run of an index may do.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceLimits {
    /// The approximate maximum of bytes to rewrite. `None`: rewrite whatever helps, and delete all
    /// obsolete data.
    pub rewrite: Option<u64>,
}

impl MaintenanceLimits {
    /// Between publications: a fraction of a second of disk time.
    pub const BETWEEN: Self = Self { rewrite: Some(64 << 20) };
    /// When no other work waits: no limits.
    pub const NONE: Self = Self { rewrite: None };

    /// Whether there is no limit.
    pub fn is_whole(&self) -> bool {
        self.rewrite.is_none()
    }
}

/// A number of files and their total size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Number of files.
    pub files: u64,
    /// Total bytes.
    pub bytes: u64,
}

impl DiskUsage {
    /// The usage of a file, or of all files below a directory. Concurrent changes may be missed. A
    /// missing path has no usage.
    pub fn of(path: &Path) -> Self {
        let Ok(metadata) = std::fs::metadata(path) else { return Self::default() };
        if !metadata.is_dir() {
            return Self { files: 1, bytes: metadata.len() };
        }
        let mut sum = Self::default();
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let below = Self::of(&entry.path());
            sum.files += below.files;
            sum.bytes += below.bytes;
        }
        sum
    }
}

/// The result of maintaining a store.
#[derive(Clone, Debug, Default)]
pub struct Maintained {
    /// Disk usage before.
    pub before: DiskUsage,
    /// Disk usage after.
    pub after: DiskUsage,
    /// How long it took.
    pub took: Duration,
    /// The actions, each in a few words; empty if there was nothing to do.
    pub did: Vec<String>,
}

impl Maintained {
    /// Bytes freed; 0 if the usage has grown.
    pub fn freed_bytes(&self) -> u64 {
        self.before.bytes.saturating_sub(self.after.bytes)
    }

    /// Net number of files removed; 0 if there are more.
    pub fn freed_files(&self) -> u64 {
        self.before.files.saturating_sub(self.after.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footprint_is_of_all_below() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("a"), "12345").unwrap();
        std::fs::write(directory.path().join("below/b"), "123").unwrap();
        assert_eq!(DiskUsage::of(directory.path()), DiskUsage { files: 2, bytes: 8 });
        assert_eq!(DiskUsage::of(&directory.path().join("a")), DiskUsage { files: 1, bytes: 5 });
        assert_eq!(DiskUsage::of(&directory.path().join("none")), DiskUsage::default());
    }
}
