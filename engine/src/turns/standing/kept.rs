//! What the answers of standing turns depend on, kept over a restart: turns that no change has reached are not answered
//! again.
//!
//! It is written at the end of a run, after the last checkpoint, and holds for the epoch of that moment. A start publishes
//! a new epoch before anything else, so what an earlier run has kept never holds after a crash, and all turns are answered
//! again then.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::append;
use crate::turns::Generation;
use crate::turns::watched::{Missing, SavedSlot};

/// The file in the state directory.
const FILE: &str = "standing.bin";
/// The length of the hash at the end of the file.
const HASH: usize = blake3::OUT_LEN;

/// What the turns of one worker, or of all, depend on.
#[derive(Serialize, Deserialize)]
pub struct KeptSlots {
    /// What has answered the turns; see [`identity`].
    pub by: [u8; 32],
    /// The epoch for which it holds.
    pub epoch: u64,
    /// What the indexes lacked.
    pub missing: Missing,
    /// By the key of the turn.
    pub turns: HashMap<Arc<str>, SavedSlot>,
}

/// What an earlier run has kept, and what this one will keep.
pub struct Keeper {
    path: Option<PathBuf>,
    /// The epoch at which the state was opened.
    epoch: u64,
    earlier: OnceLock<Option<Arc<KeptSlots>>>,
    /// By worker.
    parts: Mutex<BTreeMap<usize, KeptSlots>>,
}

impl Keeper {
    /// In a state directory, which was opened at this epoch.
    pub fn new(directory: Option<&Path>, epoch: u64) -> Self {
        let path = directory.map(|directory| directory.join(FILE));
        Self { path, epoch, earlier: OnceLock::new(), parts: Mutex::default() }
    }

    /// What the last run has kept, if it holds for this plan.
    pub(super) fn earlier(&self, generation: &Generation) -> Option<Arc<KeptSlots>> {
        let read = || {
            let bytes = std::fs::read(self.path.as_ref()?).ok()?;
            let kept = decoded(&bytes).filter(|kept| kept.epoch == self.epoch);
            Some(Arc::new(kept.filter(|kept| identity(generation).is_some_and(|by| by == kept.by))?))
        };
        self.earlier.get_or_init(read).clone()
    }

    /// Whether anything is kept at the end.
    pub(super) fn keeps(&self) -> bool {
        self.path.is_some()
    }

    /// Takes what the turns of a worker depend on at its end.
    pub(super) fn put(&self, worker: usize, part: KeptSlots) {
        self.parts.lock().insert(worker, part);
    }

    /// Writes what the workers have given, if it is of one epoch.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, workers: usize) -> io::Result<()> {
        let mut parts = std::mem::take(&mut *self.parts.lock()).into_values();
        let (Some(path), Some(mut all), true) = (&self.path, parts.next(), parts.len() + 1 == workers) else {
            return Ok(());
        };
        for part in parts {
            if (part.by, part.epoch) != (all.by, all.epoch) || part.missing != all.missing {
                return Ok(());
            }
            all.turns.extend(part.turns);
        }
        let mut bytes = bincode::serialize(&all).map_err(io::Error::other)?;
        bytes.extend(blake3::hash(&bytes).as_bytes());
        append::replace(path, &bytes)
    }
}

fn decoded(bytes: &[u8]) -> Option<KeptSlots> {
    let (content, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH)?)?;
    if blake3::hash(content).as_bytes() != hash {
        return None;
    }
    bincode::deserialize(content).ok()
}

/// What answers turns: the pipeline with its texts, the models, and this build of the program. `None` if it cannot be told.
pub(super) fn identity(generation: &Generation) -> Option<[u8; 32]> {
    let program = std::fs::metadata(std::env::current_exe().ok()?).ok()?;
    let built = program.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    add(&built.as_nanos().to_le_bytes());
    add(&program.len().to_le_bytes());
    add(generation.stamp.pipeline.as_bytes());
    for (name, fingerprint) in &*generation.stamp.models {
        add(name.as_bytes());
        add(fingerprint.as_bytes());
    }
    for name in generation.lacking.keys() {
        add(name.as_bytes());
    }
    Some(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(epoch: u64, key: &str) -> KeptSlots {
        let turns = HashMap::from([(key.into(), SavedSlot::default())]);
        KeptSlots { by: [7; 32], epoch, missing: Missing::new(), turns }
    }

    #[test]
    fn the_parts_of_all_workers_are_kept_if_they_are_of_one_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        let keeper = Keeper::new(Some(directory.path()), 1);
        keeper.put(0, part(5, "a"));
        keeper.write(2).unwrap();
        assert!(!file.exists(), "a worker has given nothing");
        keeper.put(0, part(5, "a"));
        keeper.put(1, part(6, "b"));
        keeper.write(2).unwrap();
        assert!(!file.exists(), "two epochs");
        keeper.put(0, part(6, "a"));
        keeper.put(1, part(6, "b"));
        keeper.write(2).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let kept = decoded(&bytes).unwrap();
        assert_eq!((kept.epoch, kept.turns.len()), (6, 2));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decoded(&damaged).is_none() && decoded(&bytes[..at]).is_none());
        }
    }
}
