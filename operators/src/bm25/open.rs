//! Opens the inverted index: at the start, and again after a change that failed.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tantivy::TantivyError;
use tantivy::directory::error::{OpenDirectoryError, OpenReadError};
use turnflow_engine::component::{
    Delta, Index, IndexDefinition, IndexError, Inventory, Maintained, MaintenanceLimits, OperatorError, Permitted,
};
use turnflow_engine::panics::caught;

use super::analyzer::Tokenizer;
use super::index::{Bm25Index, store};
use super::reader::Bm25Reader;
use super::{inventory, parts};

pub(super) struct Bm25Definition {
    pub tokenizer: Tokenizer,
}

impl IndexDefinition for Bm25Definition {
    fn key(&self) -> String {
        format!("bm25-{}", self.tokenizer.name())
    }

    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        async move {
            let index = open(&self.tokenizer, directory)?;
            let version = index.version();
            let directory = directory.map(Path::to_owned);
            let index = Reopening { tokenizer: self.tokenizer.clone(), directory, index: Some(index), version };
            Ok(Box::new(index) as Box<dyn Index>)
        }
        .boxed()
    }

    fn stored<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        async move { Some(tokio::task::block_in_place(|| inventory::stored(directory))) }.boxed()
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        inventory::served(reader).map_err(store("read its postings"))
    }

    fn answer(
        &self,
        reader: Arc<dyn Any + Send + Sync>,
        permitted: Permitted,
        question: Vec<u8>,
    ) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>> {
        parts::answer(reader, permitted, question)
    }
}

/// Why an index cannot be opened.
#[derive(Debug)]
pub(super) struct OpenError {
    action: &'static str,
    error: TantivyError,
}

/// Wraps the error of a step of opening.
pub(super) fn during(action: &'static str) -> impl Fn(TantivyError) -> OpenError {
    move |error| OpenError { action, error }
}

impl From<OpenError> for IndexError {
    fn from(OpenError { action, error }: OpenError) -> Self {
        store(action)(error)
    }
}

/// Whether the stored index is missing, damaged or of another schema. Any other error is temporary (too many open
/// files, another process holds the lock) and must not discard the stored index.
fn is_lost(error: &TantivyError) -> bool {
    // An I/O error without a system error code comes from the reader itself. A directory, or a link to itself, in place
    // of a file does not disappear either.
    let found = |error: &io::Error| error.raw_os_error().is_none_or(is_no_file);
    match error {
        TantivyError::DataCorruption(_)
        | TantivyError::SchemaError(_)
        | TantivyError::FieldNotFound(_)
        | TantivyError::IncompatibleIndex(_)
        | TantivyError::DeserializeError(_)
        | TantivyError::OpenReadError(OpenReadError::FileDoesNotExist(_) | OpenReadError::IncompatibleIndex(_)) => true,
        TantivyError::OpenDirectoryError(
            OpenDirectoryError::DoesNotExist(_) | OpenDirectoryError::NotADirectory(_),
        ) => true,
        TantivyError::OpenReadError(OpenReadError::IoError { io_error, .. }) => found(io_error),
        TantivyError::IoError(error) => found(error),
        _ => false,
    }
}

/// Whether a system error says that something else is in a file's place: a directory, something without content to map,
/// or a link that leads nowhere.
pub(crate) fn is_no_file(code: i32) -> bool {
    [libc::EISDIR, libc::ENOTDIR, libc::ENODEV, libc::ELOOP].contains(&code)
}

/// Opens the stored index. One that is lost, or that tantivy panics on (as it may on damaged data), is moved aside and
/// rebuilt, because the corpus has all passages.
fn open(tokenizer: &Tokenizer, directory: Option<&Path>) -> Result<Bm25Index, IndexError> {
    let opened = caught(|| Bm25Index::open(tokenizer, directory));
    let lost = match opened {
        Ok(Ok(index)) => return Ok(index),
        Ok(Err(error)) if !is_lost(&error.error) => return Err(error.into()),
        Ok(Err(error)) => IndexError::from(error),
        Err(panic) => panic.into(),
    };
    let Some(path) = directory else { return Err(lost) };
    let aside = put_aside(path)?;
    // tantivy quotes the damaged file.
    let lost: String = lost.to_string().chars().take(300).collect();
    tracing::warn!(error = lost, path = %path.display(), aside = %aside.display(),
        "the index is unreadable: moved aside and rebuilt");
    Ok(caught(|| Bm25Index::open(tokenizer, directory))??)
}

fn unless_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Renames an index's directory, within its parent. Only the last of several is kept, since the corpus has all that
/// they hold.
fn put_aside(path: &Path) -> Result<PathBuf, IndexError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| IndexError::Io { action, path, source }
    };
    let aside = path.with_added_extension("damaged");
    let cleared = if aside.is_file() { std::fs::remove_file(&aside) } else { std::fs::remove_dir_all(&aside) };
    let renamed = cleared.or_else(unless_gone).map_err(io("clear", &aside)).and_then(|()| {
        // The directory itself may not exist.
        std::fs::rename(path, &aside).or_else(unless_gone).map_err(io("rename", path))
    });
    renamed?;
    std::fs::create_dir_all(path).map_err(io("create", path))?;
    Ok(aside)
}

/// An index that is reopened after a change that failed. tantivy's writer does not survive a failure (its thread has
/// ended, and it accepts further changes without indexing them), and the state in memory is ahead of the committed
/// state.
struct Reopening {
    tokenizer: Tokenizer,
    directory: Option<PathBuf>,
    /// `None` after a failure, until the next attempt.
    index: Option<Bm25Index>,
    /// Version of the last commit that was applied.
    version: Option<u64>,
}

impl Reopening {
    fn change(&mut self, delta: &Delta) -> Result<Bm25Reader, IndexError> {
        let index = match &mut self.index {
            Some(index) => index,
            none => none.insert(open(&self.tokenizer, self.directory.as_deref())?),
        };
        let view = caught(|| index.change(delta)).map_err(IndexError::from).flatten();
        match &view {
            Ok(_) => self.version = index.version(),
            Err(_) => {
                // Dropping the state that a panic left behind may panic again.
                let failed = self.index.take();
                let _ = caught(|| {
                    failed.into_iter().for_each(|mut index| index.end_workers());
                });
            }
        }
        view
    }
}

impl Index for Reopening {
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        async move {
            // This call blocks, on a thread where blocking is allowed.
            tokio::task::block_in_place(|| Ok(Arc::new(self.change(delta)?) as Arc<dyn Any + Send + Sync>))
        }
        .boxed()
    }

    fn version(&self) -> Option<u64> {
        self.version
    }

    fn maintain(&mut self, limits: MaintenanceLimits) -> BoxFuture<'_, Result<Maintained, IndexError>> {
        async move {
            match &mut self.index {
                Some(index) => index.run_maintenance(limits).await,
                None => Ok(Maintained::default()),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::component::Permitted;
    use turnflow_engine::document::Chunk;

    use super::super::reader::Parameters;
    use super::super::score::Idf;
    use super::*;

    const DEFINITION: Bm25Definition = Bm25Definition { tokenizer: Tokenizer::Whitespace };

    fn chunk(id: &str, text: &str) -> Arc<Chunk> {
        Arc::new(Chunk::new(id.into(), id.into(), "".into(), text.into()))
    }

    async fn found(index: &mut dyn Index, delta: Delta, term: &str) -> Vec<String> {
        let reader = index.apply(&delta).await.unwrap().downcast::<Bm25Reader>().unwrap();
        let terms = std::collections::BTreeMap::from([(term.to_owned(), 1.0)]);
        let parameters = Parameters { idf: Idf::Lucene, k1: 1.2, b: 0.75 };
        let hits = reader.search(&terms, parameters, 10, &Permitted::All).unwrap();
        let mut ids: Vec<String> = hits.iter().map(|hit| hit.chunk.id.to_string()).collect();
        ids.sort();
        ids
    }

    fn whole(added: &[Arc<Chunk>]) -> Delta {
        Delta { added: added.to_vec(), removed: Vec::new(), whole: true }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_commit_that_failed_what_is_missing_is_added_and_so_are_later_changes() {
        let place = tempfile::tempdir().unwrap();
        let (here, away) = (place.path().join("here"), place.path().join("away"));
        std::fs::create_dir(&here).unwrap();
        let mut index = DEFINITION.open(Some(&here)).await.unwrap();
        let (a, b, c) = (chunk("a", "ferry noon"), chunk("b", "ferry dusk"), chunk("c", "ferry dawn"));
        assert_eq!(found(&mut *index, whole(std::slice::from_ref(&a)), "ferry").await, ["a"]);
        let version = index.version();
        // Nothing can be written, as on a full disk.
        std::fs::rename(&here, &away).unwrap();
        let delta = Delta { added: vec![b.clone()], ..Delta::default() };
        assert!(index.apply(&delta).await.is_err());
        assert_eq!(index.version(), version);
        // A missing directory is created again.
        assert_eq!(found(&mut *index, whole(&[a.clone(), b.clone()]), "ferry").await, ["a", "b"]);
        let delta = Delta { added: vec![c.clone()], removed: vec![a], whole: false };
        assert_eq!(found(&mut *index, delta, "ferry").await, ["b", "c"]);
        drop(index);
        let mut index = DEFINITION.open(Some(&here)).await.unwrap();
        assert_eq!(found(&mut *index, whole(&[b, c]), "ferry").await, ["b", "c"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_passes_costs_nothing_that_is_stored() {
        let place = tempfile::tempdir().unwrap();
        let mut index = DEFINITION.open(Some(place.path())).await.unwrap();
        let a = chunk("a", "ferry");
        assert_eq!(found(&mut *index, whole(std::slice::from_ref(&a)), "ferry").await, ["a"]);
        let version = index.version();
        assert!(DEFINITION.open(Some(place.path())).await.is_err(), "the first index holds the lock");
        drop(index);
        let index = DEFINITION.open(Some(place.path())).await.unwrap();
        assert_eq!(index.version(), version);
        drop(index);
        // A damaged index is rebuilt.
        std::fs::write(place.path().join("meta.json"), "{").unwrap();
        let mut index = DEFINITION.open(Some(place.path())).await.unwrap();
        assert_eq!(index.version(), Some(0));
        assert_eq!(found(&mut *index, whole(&[a]), "ferry").await, ["a"]);
    }

    /// Whatever a disk does to a file of the index, the index opens and finds the same passages.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_index_that_is_damaged_anywhere_is_built_anew() {
        let original = tempfile::tempdir().unwrap();
        let chunks: Vec<_> = (0..60).map(|n| chunk(&format!("{n}"), &format!("ferry {n} {}", n % 7))).collect();
        let mut index = DEFINITION.open(Some(original.path())).await.unwrap();
        for part in chunks.chunks(20) {
            let delta = Delta { added: part.to_vec(), ..Delta::default() };
            index.apply(&delta).await.unwrap();
        }
        drop(index);
        let names: Vec<_> = std::fs::read_dir(original.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        let mut state = 3_u64;
        let mut below = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % end.max(1)
        };
        let mut aside = 0;
        for damaged in &names {
            for trial in 0..4 {
                let parent = tempfile::tempdir().unwrap();
                let place = parent.path().join("words");
                std::fs::create_dir(&place).unwrap();
                for name in &names {
                    std::fs::copy(original.path().join(name), place.join(name)).unwrap();
                }
                let mut bytes = std::fs::read(place.join(damaged)).unwrap();
                match (trial, bytes.len()) {
                    (_, 0) => bytes.push(1),
                    (0, length) => bytes[below(length)] ^= 1 << below(8),
                    (1, length) => bytes.truncate(below(length)),
                    (2, length) => bytes[length.saturating_sub(1 + below(64))] = below(256) as u8,
                    (_, length) => (0..8).for_each(|_| bytes[below(length)] = below(256) as u8),
                }
                std::fs::write(place.join(damaged), bytes).unwrap();
                let what = format!("{}, trial {trial}", damaged.display());
                DEFINITION.stored(&place).await.unwrap();
                let mut index = DEFINITION.open(Some(&place)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(found(&mut *index, whole(&chunks), "3").await.len(), 9, "{what}");
                drop(index);
                assert!(DEFINITION.stored(&place).await.unwrap().flaws.is_empty(), "{what}");
                aside += usize::from(parent.path().join("words.damaged").exists());
            }
        }
        assert!(aside > names.len(), "{aside} put aside");
    }

    #[test]
    fn errors_of_the_system_are_not_losses() {
        let read = |error: io::Error| OpenReadError::wrap_io_error(error, "a.term".into());
        let (many, cut) = (io::Error::from_raw_os_error(24), io::Error::from(io::ErrorKind::UnexpectedEof));
        assert!(!is_lost(&read(many).into()));
        assert!(is_lost(&read(cut).into()));
        assert!(is_lost(&OpenReadError::FileDoesNotExist("a.term".into()).into()));
        assert!(!is_lost(&io::Error::from_raw_os_error(5).into()));
        assert!(!is_lost(&tantivy::directory::error::LockError::LockBusy.into()));
        assert!(is_lost(&TantivyError::SchemaError("another".to_owned())));
    }
}
