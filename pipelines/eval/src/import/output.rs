//! The files that an import writes. They appear in the output folder when all of them are complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use turnflow_engine::append::sync_directory;

use super::ImportError;

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Its path in the output folder.
    pub file: String,
    /// One record: `passage`, `task`, `query`, `judgement`, `turn`, `answer` or `score`.
    pub record: &'static str,
    /// Number of records.
    pub records: u64,
}

/// The files, first in a hidden folder of the output folder.
pub(super) struct Outputs {
    folder: PathBuf,
    hidden: PathBuf,
    /// The output folder did not exist before.
    is_new: bool,
    files: BTreeMap<String, (BufWriter<File>, Written)>,
}

impl Outputs {
    pub fn new(folder: &Path) -> Result<Self, ImportError> {
        let hidden = folder.join(format!(".import-{}", std::process::id()));
        let this = Self { folder: folder.into(), hidden, is_new: !folder.exists(), files: BTreeMap::new() };
        std::fs::create_dir_all(&this.hidden).map_err(|source| this.fault(source))?;
        Ok(this)
    }

    fn fault(&self, source: io::Error) -> ImportError {
        ImportError::Write { path: self.folder.clone(), source }
    }

    /// Adds a line to a file; a new file gets `head` first.
    pub fn line(&mut self, file: &str, record: &'static str, head: &str, line: &str) -> Result<(), ImportError> {
        let add = |this: &mut Self| -> io::Result<()> {
            if !this.files.contains_key(file) {
                let path = this.hidden.join(file);
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                let mut writer = BufWriter::new(File::create(path)?);
                writer.write_all(head.as_bytes())?;
                this.files.insert(file.to_owned(), (writer, Written { file: file.to_owned(), record, records: 0 }));
            }
            let Some((writer, written)) = this.files.get_mut(file) else { return Ok(()) };
            written.records += 1;
            writeln!(writer, "{line}")
        };
        add(self).map_err(|source| self.fault(source))
    }

    /// Moves the files to the output folder, where they replace earlier ones. Each file is either the
    /// old or the new one, complete.
    pub fn publish(mut self) -> Result<Vec<Written>, ImportError> {
        let files = std::mem::take(&mut self.files);
        let publish = || -> io::Result<Vec<Written>> {
            let mut done = Vec::new();
            for (_, (writer, written)) in files {
                let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
                // Otherwise the name may be on disk before the content.
                file.sync_all()?;
                done.push(written);
            }
            for written in &done {
                let path = self.folder.join(&written.file);
                let parent = path.parent().unwrap_or(&self.folder);
                std::fs::create_dir_all(parent)?;
                std::fs::rename(self.hidden.join(&written.file), &path)?;
                sync_directory(parent)?;
            }
            Ok(done)
        };
        publish().map_err(|source| self.fault(source))
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.hidden);
        if self.is_new {
            // Only if it is still empty.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}
