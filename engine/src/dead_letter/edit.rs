//! Reads the file of dead letters while it is written, and takes letters out of it.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::Path;

use super::outbox::Outbox;
use super::{DeadLetter, DeadLetters, Hash, Letters, short};
use crate::append::sync_directory;

/// A letter of the file, with its id. Letters that are the same have the same id.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedLetter {
    /// Its id: a hash of its line.
    pub id: String,
    /// The letter.
    pub letter: DeadLetter,
}

fn id_of(line: &[u8]) -> String {
    super::to_hex(&hash_of(line))
}

fn hash_of(line: &[u8]) -> Hash {
    short(blake3::hash(line.strip_suffix(b"\n").unwrap_or(line)))
}

/// Calls `with` for every line, its line break included. A missing file has none.
fn each_line(path: &Path, mut with: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        with(&line)?;
        line.clear();
    }
    Ok(())
}

impl DeadLetters {
    /// The last letters of the file, the newest first, and the number of all lines. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn last(&self, most: usize) -> io::Result<(Vec<NamedLetter>, usize)> {
        let (mut last, mut all) = (VecDeque::new(), 0);
        let path = self.file.lock().as_ref().map(|letters| letters.path.clone());
        let Some(path) = path else { return Ok((Vec::new(), 0)) };
        each_line(&path, |line| {
            all += 1;
            if last.len() == most {
                last.pop_front();
            }
            last.push_back(line.to_vec());
            Ok(())
        })?;
        let named = |line: &Vec<u8>| Some(NamedLetter { id: id_of(line), letter: serde_json::from_slice(line).ok()? });
        Ok((last.iter().rev().filter_map(named).collect(), all))
    }

    /// The letter with this id. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn find(&self, id: &str) -> io::Result<Option<DeadLetter>> {
        let path = self.file.lock().as_ref().map(|letters| letters.path.clone());
        let Some(path) = path else { return Ok(None) };
        let mut found = None;
        each_line(&path, |line| {
            if found.is_none() && id_of(line) == id {
                found = serde_json::from_slice(line).ok();
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Takes the letters with this id out of the file; false if there are none. The file is replaced in one step, and letters
    /// that come meanwhile wait. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written; it stays as it was.
    pub fn remove(&self, id: &str) -> io::Result<bool> {
        let mut file = self.file.lock();
        let Some(letters) = &mut *file else { return Ok(false) };
        letters.outbox.settle(&letters.path)?;
        letters.remove(|line, _| id_of(line) == id)
    }

    /// The records of the letters of a corpus or node, without those of which only the beginning is kept. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn records_of(&self, source: &str) -> io::Result<HashSet<RecordHash>> {
        let mut records = HashSet::new();
        let path = self.file.lock().as_ref().map(|letters| letters.path.clone());
        let Some(path) = path else { return Ok(records) };
        each_line(&path, |line| {
            records.extend(serde_json::from_slice(line).ok().and_then(|letter| record_of(&letter, source)));
            Ok(())
        })?;
        Ok(records)
    }

    /// Takes the letters of a corpus or node out of the file whose records were read again, without a fault. Blocks.
    ///
    /// # Errors
    ///
    /// As of [`remove`](Self::remove).
    pub fn forget(&self, source: &str, read: &HashSet<RecordHash>) -> io::Result<bool> {
        let mut file = self.file.lock();
        let Some(letters) = &mut *file else { return Ok(false) };
        letters.outbox.settle(&letters.path)?;
        letters.remove(|_, letter| record_of(letter, source).is_some_and(|record| read.contains(&record)))
    }
}

/// Names a record by its place and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordHash(Hash);

impl RecordHash {
    /// Of a record at a place.
    pub fn of(position: &str, record: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(position.len() as u64).to_le_bytes());
        hasher.update(position.as_bytes()).update(record);
        Self(short(hasher.finalize()))
    }
}

fn record_of(letter: &DeadLetter, source: &str) -> Option<RecordHash> {
    let is_whole = letter.source == source && !letter.truncated;
    is_whole.then(|| RecordHash::of(&letter.position, &letter.bytes()))
}

impl Letters {
    fn remove(&mut self, is_gone: impl Fn(&[u8], &DeadLetter) -> bool) -> io::Result<bool> {
        // The target of a link is rewritten, and not the link.
        let path = self.path.canonicalize()?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let beside = path.with_file_name(name);
        let mut removed: Vec<Hash> = Vec::new();
        let (mut options, permissions) = (std::fs::OpenOptions::new(), std::fs::metadata(&path)?.permissions());
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut writer = BufWriter::new(options.create(true).write(true).truncate(true).open(&beside)?);
        let written =
            each_line(&path, |line| match serde_json::from_slice(line).is_ok_and(|letter| is_gone(line, &letter)) {
                true => {
                    removed.push(hash_of(line));
                    Ok(())
                }
                false => writer.write_all(line),
            });
        let written = written.and_then(|()| writer.flush()).and_then(|()| {
            writer.get_ref().set_permissions(permissions)?;
            writer.get_ref().sync_all()
        });
        if written.is_err() || removed.is_empty() {
            drop(writer);
            let _ = std::fs::remove_file(&beside);
            return written.map(|()| false);
        }
        std::fs::rename(&beside, &path)?;
        sync_directory(path.parent().unwrap_or(Path::new(".")))?;
        self.outbox = Outbox::new(std::fs::OpenOptions::new().append(true).open(&path)?);
        // If the record fails again, its letter is written again.
        for line in removed {
            self.told.take(line);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_taken_out_while_others_come() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dead.jsonl");
        {
            let before = DeadLetters::open(&path).unwrap();
            for record in ["a", "b", "b"] {
                before.write("turns", "t:1", "bad", record.as_bytes());
            }
        }
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "no letter\n").unwrap();
        let letters = DeadLetters::open(&path).unwrap();
        letters.write("turns", "t:2", "bad", b"c");
        let (last, all) = letters.last(3).unwrap();
        // The line that is no letter is counted, and not listed.
        assert_eq!((last.iter().map(|of| &*of.letter.record).collect::<Vec<_>>(), all), (vec!["c", "b"], 5));
        assert!(letters.remove(&last[1].id).unwrap() && !letters.remove(&last[1].id).unwrap());
        assert!(!letters.remove("00").unwrap() && letters.find(&last[1].id).unwrap().is_none());
        letters.write("turns", "t:3", "bad", b"d");
        // One that comes again is written, although an earlier process has written it; others are not repeated.
        letters.write("turns", "t:1", "bad", b"b");
        letters.write("turns", "t:1", "bad", b"a");
        let records = |text: String| {
            text.lines()
                .map(|line| serde_json::from_str::<DeadLetter>(line).map_or("?".into(), |of| of.record))
                .collect::<Vec<_>>()
        };
        assert_eq!(records(std::fs::read_to_string(&path).unwrap()), ["a", "?", "c", "d", "b"]);
        assert_eq!(letters.find(&letters.last(1).unwrap().0[0].id).unwrap().unwrap().record, "b");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(DeadLetters::counted().last(3).unwrap(), (Vec::new(), 0));
    }

    #[test]
    fn letters_whose_records_are_read_again_go_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dead.jsonl");
        let write = |letters: &DeadLetters, source: &str, record: &str| {
            letters.write(source, "t:1", "bad", record.as_bytes());
        };
        for (source, record) in [("turns", "a"), ("docs", "b"), ("turns", "c"), ("turns", "d")] {
            write(&DeadLetters::open(&path).unwrap(), source, record);
        }
        let letters = DeadLetters::open(&path).unwrap();
        let mut read = letters.records_of("turns").unwrap();
        assert_eq!(read.len(), 3);
        assert!(read.remove(&RecordHash::of("t:1", b"d")));
        assert!(letters.forget("turns", &read).unwrap() && !letters.forget("turns", &read).unwrap());
        // One that fails again is written again.
        write(&letters, "turns", "a");
        let (last, all) = letters.last(9).unwrap();
        assert_eq!((last.iter().map(|of| &*of.letter.record).collect::<Vec<_>>(), all), (vec!["a", "d", "b"], 3));
    }
}
