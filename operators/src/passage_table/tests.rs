//! A table has exactly what was published at each version, and nothing that is damaged is read.

use std::collections::BTreeMap;
use std::fs;

use turnflow_engine::document::Text;
use turnflow_engine::metadata::{FieldValue, Metadata, Numeric};

use super::*;

type Known = BTreeMap<String, Arc<Chunk>>;

/// A sequence of numbers that looks random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn random(numbers: &mut Numbers, id: &str) -> Arc<Chunk> {
    let document = if numbers.below(2) == 0 { id.to_owned() } else { format!("d{}", numbers.below(3)) };
    let title = ["", "Title", "Überschrift 🙂"][numbers.below(3)];
    let text = "día 世界 ".repeat(numbers.below(200));
    let mut chunk = Chunk::new(id.into(), document.as_str().into(), title.into(), text.into());
    if numbers.below(2) == 0 {
        let fields = serde_json::json!({
            "n": numbers.below(3), "tags": ["a", 1.5, {"deep": true, "none": []}], "large": u64::MAX, "low": i64::MIN,
        });
        let exact =
            FieldValue::Number(Numeric::new(f64::from_bits(numbers.below(1 << 30) as u64 * 1_234_567)).unwrap());
        chunk.metadata = Metadata::of(fields.as_object().unwrap()).0.with_default("exact \"\\", exact);
    }
    Arc::new(chunk)
}

/// A random change of what is known.
fn change(numbers: &mut Numbers, known: &mut Known) -> Delta {
    let mut delta = Delta::default();
    for _ in 0..numbers.below(30) {
        let id = format!("p{}", numbers.below(60));
        if delta.removed.iter().chain(&delta.added).any(|chunk| *chunk.id == id) {
            continue;
        }
        delta.removed.extend(known.remove(&id));
        if numbers.below(3) > 0 {
            let chunk = random(numbers, &id);
            delta.added.push(chunk.clone());
            known.insert(id, chunk);
        }
    }
    delta
}

fn all(known: &Known) -> Vec<Arc<Chunk>> {
    known.values().cloned().collect()
}

#[track_caller]
fn has(read: &Keyed<Arc<Chunk>>, known: &Known) {
    let (read, known) = (read.sorted(), all(known));
    assert_eq!(read.len(), known.len());
    for (read, known) in read.iter().zip(&known) {
        assert_eq!((read, &read.title, &*read.text), (known, &known.title, &*known.text));
        assert_eq!(read.place.get(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_is_read_as_it_was_published() {
    let mut numbers = Numbers(7);
    for _ in 0..12 {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("corpora/docs");
        let mut table = open(&directory, "v1");
        let mut known = Known::new();
        change(&mut numbers, &mut known);
        table.maintain(Some(all(&known))).await.unwrap();
        let mut versions = vec![(table.version().unwrap(), known.clone())];
        for _ in 0..15 {
            match numbers.below(10) {
                0 => table.maintain(Some(all(&known))).await.unwrap(),
                1 => table.maintain(None).await.unwrap(),
                _ => table.append(change(&mut numbers, &mut known)).await.unwrap(),
            }
            if table.version() != versions.last().map(|(version, _)| *version) {
                versions.push((table.version().unwrap(), known.clone()));
            }
        }
        // Reading an earlier version drops the later ones.
        for (version, known) in versions.iter().rev() {
            let mut table = open(&directory, "v1");
            has(&table.read(*version).await.unwrap(), known);
            assert_eq!(table.version(), Some(*version));
        }
        let (version, mut known) = versions[0].clone();
        let mut table = open(&directory, "v1");
        table.read(version).await.unwrap();
        table.append(change(&mut numbers, &mut known)).await.unwrap();
        has(&open(&directory, "v1").read(table.version().unwrap()).await.unwrap(), &known);
        for (later, _) in &versions[1..] {
            assert!(Some(*later) == table.version() || open(&directory, "v1").read(*later).await.is_err());
        }
        table.forget_earlier().await.unwrap();
        assert!(open(&directory, "v1").read(version).await.is_err());
        has(&open(&directory, "v1").read(table.version().unwrap()).await.unwrap(), &known);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_is_not_read() {
    let mut numbers = Numbers(3);
    let place = tempfile::tempdir().unwrap();
    let (mut table, mut known) = (open(place.path(), "v1"), Known::new());
    change(&mut numbers, &mut known);
    table.maintain(Some(all(&known))).await.unwrap();
    table.append(change(&mut numbers, &mut known)).await.unwrap();
    let version = table.version().unwrap();
    let files = || {
        let entries = ["data", "_versions"].map(|name| fs::read_dir(place.path().join(PASSAGES).join(name)).unwrap());
        entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let sound: Vec<_> = files().into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect();
    let restore = || sound.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    for (path, bytes) in &sound {
        let step = bytes.len() / 150 + 1;
        for at in (0..bytes.len()).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << numbers.below(8);
            fs::write(path, damaged).unwrap();
            // A manifest has more than what the passages need.
            if let Ok(read) = open(place.path(), "v1").read(version).await {
                assert!(path.to_string_lossy().contains("_versions"), "byte {at}");
                has(&read, &known);
            }
            restore();
        }
        for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            let is_needed = path.extension().is_some_and(|ending| ending == "lance");
            fs::write(path, &bytes[..length]).unwrap();
            assert!(open(place.path(), "v1").read(version).await.is_err() || !is_needed, "{length} bytes");
            restore();
        }
        // The pages that were not written.
        fs::write(path, vec![0; bytes.len()]).unwrap();
        if let Ok(read) = open(place.path(), "v1").read(version).await {
            has(&read, &known);
        }
        restore();
    }
    assert!(open(place.path(), "v2").read(version).await.is_err(), "another definition");
    assert!(open(place.path(), "v1").read(version + 1).await.is_err());
    assert!(open(&place.path().join("nowhere"), "v1").read(version).await.is_err());
    has(&open(place.path(), "v1").read(version).await.unwrap(), &known);
}

fn of(id: usize, text: usize) -> Arc<Chunk> {
    let id: Arc<str> = format!("p{id}").into();
    Arc::new(Chunk::new(id.clone(), id, "".into(), format!("{text:0300}").into()))
}

fn edit(id: usize, from: usize, to: usize) -> Delta {
    Delta { added: vec![of(id, to)], removed: vec![of(id, from)], whole: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_changes_are_merged_and_what_is_not_needed_goes() {
    let place = tempfile::tempdir().unwrap();
    let mut table = open(place.path(), "v1");
    assert_eq!(table.upkeep(), Some(Upkeep::WriteAll));
    table.maintain(Some((0..100).map(|id| of(id, 0)).collect())).await.unwrap();
    let (mut merges, mut replaced) = (0, 0);
    for number in 1..400 {
        table.append(edit(number % 10, number.saturating_sub(10), number)).await.unwrap();
        match table.upkeep() {
            Some(Upkeep::Merge) => {
                table.maintain(None).await.unwrap();
                merges += 1;
            }
            Some(Upkeep::WriteAll) => {
                let newest = |id| of(id, if id < 10 { number - (number + 10 - id) % 10 } else { 0 });
                table.maintain(Some((0..100).map(newest).collect())).await.unwrap();
                replaced += 1;
            }
            None => continue,
        }
        assert_eq!(table.upkeep(), None);
        table.forget_earlier().await.unwrap();
        let files = fs::read_dir(place.path().join(PASSAGES).join("data")).unwrap().count();
        assert!(files <= 3 * MERGED, "{files}");
    }
    assert!(merges > 50 && (2..10).contains(&replaced), "{merges} {replaced}");
    let read = open(place.path(), "v1").read(table.version().unwrap()).await.unwrap();
    assert_eq!((read.len(), &*read.get("p9").unwrap().text), (100, &*format!("{:0300}", 399)));
    assert!(read.get("p50").unwrap().text.is_mapped(), "texts of a large file stay there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_cannot_be_written_is_none_and_an_earlier_form_goes() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("passages.log"), "of an earlier version").unwrap();
    let mut table = open(place.path(), "v1");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    table.maintain(Some(vec![of(1, 0)])).await.unwrap();
    let version = table.version().unwrap();
    table.define("v2");
    assert_eq!((table.version(), fs::read_dir(place.path()).unwrap().count()), (None, 0));
    table.append(edit(1, 0, 1)).await.unwrap();
    assert_eq!(table.version(), None, "the passages before it are not stored");
    assert!(table.read(version).await.is_err());
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let mut table = open(&file, "v1");
    assert!(table.maintain(Some(vec![of(1, 0)])).await.is_err());
    assert_eq!(table.version(), None);
    // A passage that not everybody may read is not stored.
    let secret = Chunk { readers: turnflow_engine::document::Readers::Groups(Arc::new([])), ..Chunk::clone(&of(1, 0)) };
    let mut table = open(place.path(), "v1");
    assert!(table.maintain(Some(vec![Arc::new(secret)])).await.is_err());
    let none = Text::default();
    assert!(!none.is_mapped());
    table.maintain(Some(Vec::new())).await.unwrap();
    assert!(open(place.path(), "v1").read(table.version().unwrap()).await.unwrap().is_empty());
}
