//! Simulated power losses: data that is written but not synced is lost completely or in part.
//!
//! A preloaded library (`pipelines/stress/power.c`) records at each `fsync` the content of the file,
//! or the names in the directory. After a kill, the directories are set to a state that a disk may
//! have: at least what was recorded, at most what was written.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::world::World;
use turnflow_eval::random::Random;

/// Block size of the disk, in bytes.
const BLOCK: usize = 4096;

/// The identity of a file: inode number and creation time, since inode numbers are reused.
type Identity = String;

fn identity(path: &Path) -> anyhow::Result<Identity> {
    let metadata = fs::symlink_metadata(path)?;
    let born = metadata.created()?.duration_since(std::time::UNIX_EPOCH)?;
    Ok(format!("{}-{}-{}", metadata.ino(), born.as_secs(), born.subsec_nanos()))
}

/// The names in a directory.
type Names = BTreeMap<Vec<u8>, Identity>;

/// The names in a directory, of files and directories; others are removed.
fn names(directory: &Path) -> anyhow::Result<Names> {
    let mut names = Names::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        // A socket is gone with its process.
        if !kind.is_file() && !kind.is_dir() {
            let _ = fs::remove_file(entry.path());
            continue;
        }
        names.insert(entry.file_name().as_bytes().to_vec(), identity(&entry.path())?);
    }
    Ok(names)
}

/// The state before the power loss.
#[derive(Default)]
struct Before {
    /// The temporary path of each file.
    files: BTreeMap<Identity, PathBuf>,
    directories: BTreeMap<Identity, Names>,
}

/// Tracks the synced state of the directories that turnflow writes.
pub(crate) struct Power {
    shim: PathBuf,
    shadow: PathBuf,
    roots: Vec<PathBuf>,
}

impl Power {
    pub fn new(world: &World, shim: &Path) -> anyhow::Result<Self> {
        let shadow = world.dir.join("shadow");
        let roots = vec![world.out(), world.state()];
        for directory in roots.iter().chain([&shadow]) {
            fs::create_dir_all(directory)?;
        }
        let shim = shim.canonicalize().with_context(|| format!("cannot find `{}`", shim.display()))?;
        Ok(Self { shim, shadow, roots })
    }

    /// Preloads the library for a command.
    pub fn watch(&self, command: &mut Command) {
        let roots: Vec<&OsStr> = self.roots.iter().map(|root| root.as_os_str()).collect();
        command
            .env("LD_PRELOAD", &self.shim)
            .env("POWER_SHADOW", &self.shadow)
            .env("POWER_ROOTS", roots.join(OsStr::new(":")));
    }

    /// Records a directory as synced, after another process has renamed files in it.
    pub fn note(&self, directory: &Path) -> anyhow::Result<()> {
        // A note that the watched process has begun must not replace this one.
        let lock = fs::File::create(self.shadow.join("lock"))?;
        lock.lock()?;
        let mut bytes = Vec::new();
        for (name, identity) in names(directory)? {
            bytes.extend([identity.as_bytes(), b" ", &name, b"\0"].concat());
        }
        Ok(fs::write(self.shadow.join(format!("names-{}", identity(directory)?)), bytes)?)
    }

    /// Simulates a power loss.
    pub fn lose(&self, random: &mut Random) -> anyhow::Result<()> {
        // Either nothing unsynced survives, or a random part.
        let worst = random.below(2) == 0;
        let aside = self.shadow.join("aside");
        for root in &self.roots {
            let mut before = Before::default();
            fs::create_dir_all(&aside)?;
            let of = identity(root)?;
            put_aside(root, &of, &aside, &mut before)?;
            self.restore(root, &of, &mut before, worst, random)
                .with_context(|| format!("`{}` after a power loss", root.display()))?;
            fs::remove_dir_all(&aside)?;
        }
        Ok(())
    }

    /// Restores the content that a directory has after the loss.
    fn restore(
        &self,
        directory: &Path,
        of: &Identity,
        before: &mut Before,
        worst: bool,
        random: &mut Random,
    ) -> anyhow::Result<()> {
        let noted = self.noted(of)?;
        let present = before.directories.get(of).cloned().unwrap_or_default();
        let mut has = noted.clone();
        if !worst {
            // Names that were added, removed or changed without a sync may or may not survive.
            for name in noted.keys().chain(present.keys()) {
                match present.get(name) {
                    _ if random.below(2) == 0 => {}
                    Some(identity) => drop(has.insert(name.clone(), identity.clone())),
                    None => drop(has.remove(name)),
                }
            }
        }
        for (name, identity) in has {
            let path = directory.join(OsStr::from_bytes(&name));
            if before.directories.contains_key(&identity) || self.names_of(&identity).exists() {
                fs::create_dir(&path)?;
                self.restore(&path, &identity, before, worst, random)?;
                continue;
            }
            // Keep the inode if the file still exists. Otherwise the loss undoes its replacement.
            let mut written = Vec::new();
            if let Some(aside) = before.files.remove(&identity) {
                fs::rename(aside, &path)?;
                written = fs::read(&path)?;
            }
            let synced = fs::read(self.shadow.join(format!("data-{identity}"))).unwrap_or_default();
            let left = if worst { synced } else { left(written, synced, random) };
            fs::write(&path, left)?;
            fs::write(self.shadow.join(format!("data-{}", self::identity(&path)?)), fs::read(&path)?)?;
        }
        self.note(directory)
    }

    fn names_of(&self, identity: &Identity) -> PathBuf {
        self.shadow.join(format!("names-{identity}"))
    }

    fn noted(&self, of: &Identity) -> anyhow::Result<Names> {
        let Ok(bytes) = fs::read(self.names_of(of)) else { return Ok(Names::new()) };
        let name = |line: &[u8]| {
            let space = line.iter().position(|byte| *byte == b' ')?;
            Some((line[space + 1..].to_vec(), String::from_utf8(line[..space].to_vec()).ok()?))
        };
        let lines = bytes.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        lines.map(|line| name(line).context("a line without a name")).collect()
    }
}

/// Empties a directory; its files are moved, so that they keep their inodes.
fn put_aside(directory: &Path, of: &Identity, aside: &Path, before: &mut Before) -> anyhow::Result<()> {
    let there = names(directory)?;
    for (name, identity) in &there {
        let path = directory.join(OsStr::from_bytes(name));
        if path.is_dir() {
            put_aside(&path, identity, aside, before)?;
            fs::remove_dir(&path)?;
        } else {
            let to = aside.join(identity);
            fs::rename(&path, &to)?;
            before.files.insert(identity.clone(), to);
        }
    }
    before.directories.insert(of.clone(), there);
    Ok(())
}

/// The content of a file after the loss: the synced content and a random part of later writes.
fn left(written: Vec<u8>, synced: Vec<u8>, random: &mut Random) -> Vec<u8> {
    if written.starts_with(&synced) {
        // Appended: a part of the new bytes survives, or zeros in their place.
        let mut left = synced;
        let more = random.below(written.len() - left.len() + 1);
        let filled = if random.below(4) == 0 { random.below(more + 1) } else { more };
        left.extend_from_slice(&written[left.len()..left.len() + filled]);
        left.resize(left.len() + more - filled, 0);
        return left;
    }
    // Overwritten: some blocks are new, others are old.
    let length = if random.below(2) == 0 { written.len() } else { synced.len() };
    let mut left = vec![0; length];
    for at in (0..length).step_by(BLOCK) {
        let from = if random.below(2) == 0 { &written } else { &synced };
        let end = (at + BLOCK).min(length).min(from.len());
        if at < end {
            left[at..end].copy_from_slice(&from[at..end]);
        }
    }
    left
}
