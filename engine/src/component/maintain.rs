//! What keeping an index in shape may cost, and what it came to.

use std::path::Path;
use std::time::Duration;

/// How much an index may do at once to keep itself in shape.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceLimits {
    /// About how many bytes it rewrites at most. `None`: whatever is of use, and what is out of
    /// use is let go to the last of it.
    pub rewrite: Option<u64>,
}

impl MaintenanceLimits {
    /// Between publications: a fraction of a second of the disk.
    pub const BETWEEN: Self = Self { rewrite: Some(64 << 20) };
    /// When nothing waits.
    pub const NONE: Self = Self { rewrite: None };

    /// Whether everything is to be done.
    pub fn is_whole(&self) -> bool {
        self.rewrite.is_none()
    }
}

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl DiskUsage {
    /// Of a file, or of all below a directory. What comes and goes meanwhile may be missed;
    /// what is not there has none.
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

/// What maintenance of a store came to.
#[derive(Clone, Debug, Default)]
pub struct Maintained {
    /// What was there.
    pub before: DiskUsage,
    /// What is there now.
    pub after: DiskUsage,
    /// How long it took.
    pub took: Duration,
    /// What was done, each in a few words; nothing, where there was nothing to do.
    pub did: Vec<String>,
}

impl Maintained {
    /// Bytes that are free now; none, if it came to more.
    pub fn freed_bytes(&self) -> u64 {
        self.before.bytes.saturating_sub(self.after.bytes)
    }

    /// Files that are gone, on balance.
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
