//! The file of dead letters: reads it line by line and rewrites it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use turnflow_engine::dead_letter::DeadLetter;

/// The new state of a letter.
pub(super) enum LetterState {
    /// It is removed.
    Gone,
    /// It remains, with a new reason.
    Reason(String),
}

pub(super) struct LetterFile {
    path: PathBuf,
}

impl LetterFile {
    pub(super) fn at(path: &Path) -> Self {
        // Follow links, so that the target is rewritten, not the link.
        Self { path: path.canonicalize().unwrap_or_else(|_| path.to_owned()) }
    }

    /// Calls `with` for every line, with its number from 0 and its letter; `None` if the line is not a
    /// letter. A missing file has no lines.
    pub(super) fn each(&self, mut with: impl FnMut(usize, Option<DeadLetter>)) -> anyhow::Result<()> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened.with_context(|| self.fault("read"))?,
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        for number in 0.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).with_context(|| self.fault("read"))? == 0 {
                break;
            }
            with(number, serde_json::from_slice(&line).ok());
        }
        Ok(())
    }

    /// Rewrites the file and replaces the old one atomically. Lines without a new state stay as they
    /// are, including lines that were appended meanwhile.
    pub(super) fn rewrite(&self, states: &HashMap<usize, LetterState>) -> anyhow::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = self.path.with_file_name(name);
        self.write(&new, states).with_context(|| format!("cannot write `{}`", new.display()))?;
        fs::rename(&new, &self.path).with_context(|| self.fault("replace"))
    }

    fn write(&self, new: &Path, states: &HashMap<usize, LetterState>) -> io::Result<()> {
        let old = File::open(&self.path)?;
        let file = File::create(new)?;
        file.set_permissions(old.metadata()?.permissions())?;
        let (mut reader, mut writer) = (BufReader::new(old), BufWriter::new(file));
        let mut line = Vec::new();
        for number in 0.. {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            match (states.get(&number), serde_json::from_slice::<DeadLetter>(&line)) {
                (Some(LetterState::Gone), Ok(_)) => {}
                (Some(LetterState::Reason(reason)), Ok(letter)) => {
                    serde_json::to_writer(&mut writer, &DeadLetter { reason: reason.clone(), ..letter })?;
                    writer.write_all(b"\n")?;
                }
                _ => writer.write_all(&line)?,
            }
        }
        writer.flush()?;
        writer.get_ref().sync_all()
    }

    fn fault(&self, action: &str) -> String {
        format!("cannot {action} `{}`", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewriting_leaves_what_has_no_fate() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("dead.jsonl"), directory.path().join("link"));
        let line = |reason: &str| {
            serde_json::to_string(&DeadLetter::new("turns", "t:1", reason, b"\xffrecord")).unwrap() + "\n"
        };
        let foreign = "no letter\n\n{\"source\": 1}\n";
        fs::write(&path, [&line("a"), foreign, &line("b"), &line("c")].concat()).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let file = LetterFile::at(&link);
        let mut letters = Vec::new();
        file.each(|number, letter| letters.extend(letter.map(|letter| (number, letter.reason)))).unwrap();
        assert_eq!(letters, [(0, "a".to_owned()), (4, "b".to_owned()), (5, "c".to_owned())]);
        let states =
            HashMap::from([(0, LetterState::Gone), (1, LetterState::Gone), (5, LetterState::Reason("new".to_owned()))]);
        file.rewrite(&states).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), [foreign, &line("b"), &line("new")].concat());
        assert!(link.is_symlink() && fs::read_dir(directory.path()).unwrap().count() == 2);
        LetterFile::at(&directory.path().join("missing")).each(|_, _| panic!("no lines")).unwrap();
    }
}
