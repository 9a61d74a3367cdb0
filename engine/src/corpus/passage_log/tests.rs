//! A log has exactly what was published at each version, and nothing that is damaged is read.

use std::collections::BTreeMap;

use super::*;
use crate::document::Readers;
use crate::metadata::Metadata;

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
    let mut chunk = Chunk::new(id.into(), document.into(), title.into(), text.into());
    if numbers.below(2) == 0 {
        let fields = serde_json::json!({"n": numbers.below(3), "tags": ["a", 1.5, {"deep": true}]});
        chunk.metadata = Metadata::of(fields.as_object().unwrap()).0;
        chunk.readers = Readers::named(&chunk.metadata, "tags");
    }
    Arc::new(chunk)
}

/// A random change of what is known.
fn change(numbers: &mut Numbers, known: &mut Known) -> Delta {
    let mut delta = Delta::default();
    for _ in 0..numbers.below(30) {
        let id = format!("p{}", numbers.below(60));
        delta.removed.extend(known.remove(&id));
        if numbers.below(3) > 0 {
            let chunk = random(numbers, &id);
            delta.added.retain(|other| *other.id != *id);
            delta.added.push(chunk.clone());
            known.insert(id, chunk);
        } else {
            delta.added.retain(|other| *other.id != *id);
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

#[test]
fn every_version_is_read_as_it_was_published() {
    let mut numbers = Numbers(7);
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let mut log = PassageLog::new(&directory.path().join("corpora/docs"), "v1");
        let mut known = Known::new();
        change(&mut numbers, &mut known);
        log.rewrite(&all(&known)).unwrap();
        let mut versions = vec![(log.version().unwrap(), known.clone())];
        for _ in 0..15 {
            match numbers.below(10) {
                0 => log.rewrite(&all(&known)).unwrap(),
                _ => log.append(&change(&mut numbers, &mut known)).unwrap(),
            }
            if log.version() != versions.last().map(|(version, _)| *version) {
                versions.push((log.version().unwrap(), known.clone()));
            }
        }
        let number = |version: u64| version >> LENGTH;
        let last = number(versions.last().unwrap().0);
        versions.retain(|(version, _)| number(*version) == last);
        // Reading an earlier version drops the later ones.
        for (version, known) in versions.iter().rev() {
            let mut log = PassageLog::new(&directory.path().join("corpora/docs"), "v1");
            has(&log.read(*version).unwrap(), known);
            assert_eq!(log.version(), Some(*version));
        }
        let (version, mut known) = versions[0].clone();
        let mut log = PassageLog::new(&directory.path().join("corpora/docs"), "v1");
        log.read(version).unwrap();
        log.append(&change(&mut numbers, &mut known)).unwrap();
        let mut again = PassageLog::new(&directory.path().join("corpora/docs"), "v1");
        has(&again.read(log.version().unwrap()).unwrap(), &known);
        assert!(versions.iter().skip(1).all(|(later, _)| {
            *later <= log.version().unwrap() || PassageLog::new(directory.path(), "v1").read(*later).is_err()
        }));
    }
}

#[test]
fn what_is_damaged_is_not_read() {
    let mut numbers = Numbers(3);
    let directory = tempfile::tempdir().unwrap();
    let (mut log, mut known) = (PassageLog::new(directory.path(), "v1"), Known::new());
    change(&mut numbers, &mut known);
    log.rewrite(&all(&known)).unwrap();
    log.append(&change(&mut numbers, &mut known)).unwrap();
    let version = log.version().unwrap();
    let path = directory.path().join(PASSAGE_LOG);
    let sound = std::fs::read(&path).unwrap();
    let read = |bytes: &[u8], definition: &str| {
        std::fs::write(&path, bytes).unwrap();
        PassageLog::new(directory.path(), definition).read(version)
    };
    for at in (0..sound.len()).step_by(7) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << numbers.below(8);
        assert!(read(&damaged, "v1").is_err(), "byte {at}");
    }
    for length in [0, 1, BEGINNING, sound.len() - 1] {
        assert!(read(&sound[..length], "v1").is_err(), "{length} bytes");
    }
    assert!(read(&sound, "v2").is_err(), "another definition");
    let longer = [&sound[..], b"a frame that was being written"].concat();
    has(&read(&longer, "v1").unwrap(), &known);
    assert_eq!(std::fs::read(&path).unwrap(), sound, "the rest is removed");
    assert!(PassageLog::new(directory.path(), "v1").read(version + 1).is_err());
    assert!(PassageLog::new(&directory.path().join("nowhere"), "v1").read(version).is_err());
}

#[test]
fn a_log_with_much_that_is_not_needed_is_wasteful_until_it_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = PassageLog::new(directory.path(), "v1");
    let of = |number: usize| Arc::new(Chunk::new("a".into(), "a".into(), "".into(), format!("{number:0300}").into()));
    log.rewrite(&[of(0)]).unwrap();
    let mut edits = 0;
    while !log.is_wasteful() {
        log.append(&Delta { added: vec![of(edits + 1)], removed: vec![of(edits)], whole: false }).unwrap();
        edits += 1;
    }
    assert!((5..50).contains(&edits), "{edits}");
    log.rewrite(&[of(edits)]).unwrap();
    assert!(!log.is_wasteful());
    // Metadata is needed too.
    let mut with_fields = Chunk::clone(&of(0));
    let fields = serde_json::json!({ "notes": "many words ".repeat(1000) });
    with_fields.metadata = Metadata::of(fields.as_object().unwrap()).0;
    log.rewrite(&[Arc::new(with_fields)]).unwrap();
    assert!(!log.is_wasteful());
    let mut again = PassageLog::new(directory.path(), "v1");
    again.read(log.version().unwrap()).unwrap();
    assert!(!again.is_wasteful());
    // A log that cannot be written is none.
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut log = PassageLog::new(&file, "v1");
    assert!(log.rewrite(&[of(1)]).is_err());
    assert_eq!(log.version(), None);
    log.append(&Delta { added: vec![of(1)], ..Delta::default() }).unwrap();
    assert_eq!(log.version(), None);
}
