//! Tests of damaged stores, file by file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnflow_engine::component::{Delta, Index, MaintenanceLimits};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::Vector;

use super::index::{BlockReader, open};
use super::stored;
use super::tests::{Counting, chunk, prepare};

const PASSAGES: usize = 120;

/// Pseudo-random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

fn all() -> Vec<Arc<Chunk>> {
    (0..PASSAGES).map(|n| chunk(n, &format!("passage {n} {}", "x".repeat(n)))).collect()
}

/// Opens the index and applies the whole corpus. Returns what is served, and how many contents were encoded.
async fn serve(directory: &Path) -> (BTreeMap<ContentHash, Vector>, usize, Box<dyn Index>) {
    let encoder = Arc::new(Counting::default());
    let mut index = open::<Vector, ()>(Some(directory), encoder.clone()).await.unwrap();
    prepare(&mut *index, &all()).await.unwrap();
    let whole = Delta { added: all(), removed: Vec::new(), whole: true };
    let reader = index.apply(&whole).await.unwrap().downcast::<BlockReader<Vector, ()>>().unwrap();
    let rows = reader.blocks.iter().flat_map(|block| &block.rows);
    (rows.map(|(vector, chunk)| (chunk.hash, vector.clone())).collect(), encoder.encoded(), index)
}

/// Creates a store of several commits, each with files of its own.
async fn pristine(directory: &Path) {
    let encoder = Arc::new(Counting::default());
    let mut index = open::<Vector, ()>(Some(directory), encoder).await.unwrap();
    for part in all().chunks(PASSAGES / 3) {
        prepare(&mut *index, part).await.unwrap();
        let delta = Delta { added: part.to_vec(), ..Delta::default() };
        index.apply(&delta).await.unwrap();
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { files.extend(self::files(&entry)) } else { files.push(entry) }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let to = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(file, to).unwrap();
    }
}

/// Damages a file in one of several ways. Returns a description.
fn damage(file: &Path, how: usize, random: &mut Random) -> String {
    let mut bytes = std::fs::read(file).unwrap();
    let at = random.below(bytes.len());
    let told = match how % 5 {
        0 => {
            bytes[at] ^= 1 << random.below(8);
            format!("a bit flipped at {at} of {}", bytes.len())
        }
        1 => {
            // Most of what the reader follows is near the end of the file.
            let at = bytes.len().saturating_sub(1 + random.below(200));
            bytes[at] = random.below(256) as u8;
            format!("a byte changed at {at} of {}", bytes.len())
        }
        2 => {
            bytes.truncate(at);
            format!("cut to {at}")
        }
        3 => {
            let end = (at + 512).min(bytes.len());
            bytes[at..end].fill(0);
            format!("zeros from {at} to {end} of {}", bytes.len())
        }
        _ => {
            for _ in 0..16 {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            "16 bytes changed".to_owned()
        }
    };
    std::fs::write(file, bytes).unwrap();
    told
}

/// Whatever a disk does to a file of a store, the store opens and serves what it served before, and only unreadable
/// rows are encoded again. The next start encodes nothing, and the damaged files are kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_damaged_anywhere_is_saved_as_far_as_it_can_be_read() {
    let trials: usize = std::env::var("TURNFLOW_DAMAGE_TRIALS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let original = tempfile::tempdir().unwrap();
    pristine(original.path()).await;
    let (expected, ..) = serve(original.path()).await;
    assert_eq!(expected.len(), PASSAGES);
    let mut random = Random(12);
    let (mut count, mut encoded_anew, mut aside) = (0, 0, 0);
    for file in files(original.path()) {
        let name = file.strip_prefix(original.path()).unwrap();
        for trial in 0..trials {
            let place = tempfile::tempdir().unwrap();
            copy(original.path(), place.path());
            let how = damage(&place.path().join(name), trial, &mut random);
            let how = format!("{}: {how}", name.display());
            // Reads the store as `verify` does.
            stored::<Vector>(place.path(), 4).await.unwrap();
            let (served, encoded, mut index) = serve(place.path()).await;
            assert_eq!(served, expected, "{how}");
            index.maintain(MaintenanceLimits::NONE).await.unwrap_or_else(|error| panic!("{how}: {error}"));
            drop(index);
            let (served, again, _index) = serve(place.path()).await;
            assert_eq!(served, expected, "{how}, at the second start");
            assert_eq!(again, 0, "{how}: nothing is encoded twice");
            let flaws = stored::<Vector>(place.path(), 4).await.unwrap().flaws;
            assert!(flaws.is_empty(), "{how}: {flaws:?}");
            let is_aside = place.path().join("vectors.lance.damaged-1").exists();
            if std::env::var_os("TURNFLOW_DAMAGE_TRIALS").is_some() && (encoded > 0 || is_aside) {
                println!("{how}: {encoded} of {PASSAGES} encoded anew");
            }
            count += 1;
            encoded_anew += encoded;
            aside += usize::from(is_aside);
        }
    }
    println!("{count} trials, {aside} moved aside, {encoded_anew} of {} contents encoded again", count * PASSAGES);
    assert!(aside > 0 && encoded_anew < count * PASSAGES / 4, "{aside} moved aside, {encoded_anew} encoded again");
}

/// An unreadable manifest loses nothing, because the data files hold everything.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_manifest_all_is_saved() {
    let place = tempfile::tempdir().unwrap();
    pristine(place.path()).await;
    for file in files(&place.path().join("vectors.lance/_versions")) {
        std::fs::write(file, "no manifest").unwrap();
    }
    let (served, encoded, _index) = serve(place.path()).await;
    assert_eq!((served.len(), encoded), (PASSAGES, 0));
}

/// Damage that is found while the store is open is repaired from memory.
#[tokio::test(flavor = "multi_thread")]
async fn damage_that_is_found_while_it_runs_costs_no_encoding() {
    let place = tempfile::tempdir().unwrap();
    pristine(place.path()).await;
    let (_, encoded, mut index) = serve(place.path()).await;
    assert_eq!(encoded, 0);
    for file in files(&place.path().join("vectors.lance/data")) {
        std::fs::write(file, "no data").unwrap();
    }
    let done = index.maintain(MaintenanceLimits::NONE).await.unwrap();
    assert!(done.did[0].starts_with("damaged: rewritten from memory"), "{done:?}");
    drop(index);
    let (served, encoded, _index) = serve(place.path()).await;
    assert_eq!((served.len(), encoded), (PASSAGES, 0));
}
