//! A store of published passages for tests: a file with a line for each version. A line has a hash of the rest of it, the
//! definition of the corpus and its passages.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::component::{Delta, PassageStore, Upkeep};
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::state::PASSAGES;

/// What a version has.
type Line = (u64, String, Vec<Chunk>);

pub(super) fn open(directory: &Path, definition: &str) -> Box<dyn PassageStore> {
    Box::new(Lines { path: directory.join(PASSAGES), definition: definition.to_owned(), version: None })
}

struct Lines {
    path: PathBuf,
    definition: String,
    version: Option<u64>,
}

fn hash(json: &str) -> String {
    blake3::hash(json.as_bytes()).to_string()
}

impl Lines {
    /// The lines up to a version, and its passages.
    fn lines(&self, version: u64) -> io::Result<(String, Vec<Chunk>)> {
        let mut lines = String::new();
        for line in fs::read_to_string(&self.path)?.split_inclusive('\n') {
            let json = line.split_once(' ').filter(|(of, json)| *of == hash(json)).map(|(_, json)| json);
            let (found, definition, chunks): Line = serde_json::from_str(json.ok_or(io::ErrorKind::InvalidData)?)?;
            lines += line;
            if found == version && definition == self.definition {
                return Ok((lines, chunks));
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, before: &str, chunks: &[Arc<Chunk>]) -> io::Result<()> {
        let version = RandomState::new().hash_one(0);
        let json = serde_json::to_string(&(version, &self.definition, chunks))? + "\n";
        fs::create_dir_all(self.path.parent().unwrap())?;
        let done = fs::write(&self.path, format!("{before}{} {json}", hash(&json)));
        self.version = done.is_ok().then_some(version);
        done
    }

    fn add(&mut self, delta: &Delta) -> io::Result<()> {
        let Some(version) = self.version else { return Ok(()) };
        let (before, chunks) = self.lines(version)?;
        let mut all = Keyed::of(chunks.into_iter().map(Arc::new).collect());
        delta.removed.iter().for_each(|chunk| drop(all.remove(&chunk.id)));
        delta.added.iter().for_each(|chunk| drop(all.insert(chunk.clone())));
        self.write(&before, &all.sorted())
    }

    fn take(&mut self, version: u64) -> io::Result<Keyed<Arc<Chunk>>> {
        let (lines, chunks) = self.lines(version)?;
        fs::write(&self.path, lines)?;
        self.version = Some(version);
        Ok(Keyed::of(chunks.into_iter().map(Arc::new).collect()))
    }
}

impl PassageStore for Lines {
    fn version(&self) -> Option<u64> {
        self.version
    }

    fn read(&mut self, version: u64) -> BoxFuture<'_, io::Result<Keyed<Arc<Chunk>>>> {
        async move { self.take(version) }.boxed()
    }

    fn append(&mut self, delta: Delta) -> BoxFuture<'_, io::Result<()>> {
        async move { self.add(&delta).inspect_err(|_| self.clear()) }.boxed()
    }

    fn upkeep(&self) -> Option<Upkeep> {
        self.version.is_none().then_some(Upkeep::WriteAll)
    }

    fn maintain(&mut self, all: Option<Vec<Arc<Chunk>>>) -> BoxFuture<'_, io::Result<()>> {
        async move { self.write("", &all.unwrap_or_default()) }.boxed()
    }

    fn forget_earlier(&mut self) -> BoxFuture<'_, io::Result<()>> {
        async { Ok(()) }.boxed()
    }

    fn define(&mut self, definition: &str) {
        definition.clone_into(&mut self.definition);
        self.clear();
    }

    fn clear(&mut self) {
        self.version = None;
        let _ = fs::remove_file(&self.path);
    }
}
