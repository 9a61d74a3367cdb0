//! Tests of damaged stores, file by file.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index as Position;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use turnflow_engine::component::{Delta, Index, MaintenanceLimits};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::Vector;

use super::index::{BlockReader, open};
use super::stored;
use super::tests::{Counting, chunk, prepare};

const PASSAGES: usize = 120;

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

/// Creates a store of several commits, each with separate files.
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

/// What a disk may do to a file.
#[derive(Clone, Debug)]
enum Damage {
    Bit(Position, u8),
    /// A byte at this distance from the end: most of what the reader follows is there.
    Tail(usize, u8),
    Cut(Position),
    Zeros(Position),
    Noise(Vec<(Position, u8)>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Position>(), 0..8_u8).prop_map(|(at, bit)| Damage::Bit(at, bit)),
        (1..=200_usize, any::<u8>()).prop_map(|(back, byte)| Damage::Tail(back, byte)),
        any::<Position>().prop_map(Damage::Cut),
        any::<Position>().prop_map(Damage::Zeros),
        vec((any::<Position>(), any::<u8>()), 16).prop_map(Damage::Noise),
    ]
}

impl Damage {
    fn apply(&self, file: &Path) {
        let mut bytes = std::fs::read(file).unwrap();
        let length = bytes.len();
        match self {
            Damage::Bit(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Damage::Tail(back, byte) => bytes[length.saturating_sub(*back)] = *byte,
            Damage::Cut(at) => bytes.truncate(at.index(length)),
            Damage::Zeros(at) => {
                let at = at.index(length);
                bytes[at..(at + 512).min(length)].fill(0);
            }
            Damage::Noise(noise) => noise.iter().for_each(|(at, byte)| bytes[at.index(length)] = *byte),
        }
        std::fs::write(file, bytes).unwrap();
    }
}

/// Whatever a disk does to a file of a store, the store opens and serves what it served before, and only unreadable
/// rows are encoded again. The next start encodes nothing, and the damaged files are kept.
#[test]
fn a_store_that_is_damaged_anywhere_is_saved_as_far_as_it_can_be_read() {
    let trials: u32 = std::env::var("TURNFLOW_DAMAGE_TRIALS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let original = tempfile::tempdir().unwrap();
    runtime.block_on(pristine(original.path()));
    let (expected, ..) = runtime.block_on(serve(original.path()));
    assert_eq!(expected.len(), PASSAGES);
    let (count, encoded_anew, aside) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let config = Config { cases: trials, failure_persistence: None, max_shrink_iters: 30, ..Config::default() };
    for (seed, file) in files(original.path()).into_iter().enumerate() {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed as u8; 32]);
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        let name = file.strip_prefix(original.path()).unwrap();
        let ran = runner.run(&damage(), |damage| {
            let place = tempfile::tempdir().unwrap();
            copy(original.path(), place.path());
            damage.apply(&place.path().join(name));
            let (encoded, is_aside) = runtime.block_on(reopened(place.path(), &expected));
            count.set(count.get() + 1);
            encoded_anew.set(encoded_anew.get() + encoded);
            aside.set(aside.get() + usize::from(is_aside));
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{}: {error}", name.display()));
    }
    let (count, encoded_anew, aside) = (count.get(), encoded_anew.get(), aside.get());
    println!("{count} trials, {aside} moved aside, {encoded_anew} of {} contents encoded again", count * PASSAGES);
    assert!(aside > 0 && encoded_anew < count * PASSAGES / 4, "{aside} moved aside, {encoded_anew} encoded again");
}

/// Opens a damaged store twice, and checks what it serves. Returns how many contents the first start encoded, and
/// whether the damaged dataset was moved aside.
async fn reopened(place: &Path, expected: &BTreeMap<ContentHash, Vector>) -> (usize, bool) {
    // Reads the store as `verify` does.
    stored::<Vector>(place, 4).await.unwrap();
    let (served, encoded, mut index) = serve(place).await;
    assert_eq!(served, *expected);
    index.maintain(MaintenanceLimits::NONE).await.unwrap();
    drop(index);
    let (served, again, _index) = serve(place).await;
    assert_eq!(served, *expected, "at the second start");
    assert_eq!(again, 0, "nothing is encoded twice");
    let flaws = stored::<Vector>(place, 4).await.unwrap().flaws;
    assert!(flaws.is_empty(), "{flaws:?}");
    (encoded, place.join("vectors.lance.damaged-1").exists())
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
