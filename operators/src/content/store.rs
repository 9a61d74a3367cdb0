//! Encodings in Lance, by the hash of what they stand for: one commit an epoch, and only
//! appends, so that nothing has to be matched or rewritten when a passage changes.

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{WriteMode, WriteParams};
use lance::session::Session;
use turnflow_engine::component::{Encoding, Footprint, IndexError, MaintenanceLimits};
use turnflow_engine::document::ContentHash;

/// After this many appends without maintenance, their small files are made one all the same.
const MOST_APPENDS: usize = 256;
/// Appends that are not worth a compaction.
const FEW_APPENDS: usize = 4;
/// Rows of a file, at least and at most, whatever the limit in bytes.
const ROWS_A_FILE: std::ops::RangeInclusive<u64> = 1024..=1 << 20;

/// What Lance remembers of files, in bytes. Each edit is a version with files of its own, none
/// of which is read again; by default, up to a gigabyte would be kept of them.
const CACHE: usize = 8 << 20;
static SESSION: LazyLock<Arc<Session>> = LazyLock::new(|| Arc::new(Session::new(CACHE, CACHE, Arc::default())));

/// What a model makes of a text, as a column of a dataset.
pub(crate) trait Stored: Clone + Send + Sync + 'static {
    /// The column's type; `dimension` is the model's.
    fn data_type(dimension: usize) -> DataType;
    /// A column of these.
    fn column(values: &[(ContentHash, Self)], dimension: usize) -> ArrayRef;
    /// One row of a column; `None` if it is not what was written.
    fn row(column: &ArrayRef, row: usize, dimension: usize) -> Option<Self>;
    /// All that it says, as bytes.
    fn bytes(&self) -> Vec<u8>;
    /// As numbers that can be compared.
    fn numbers(&self) -> Encoding;
}

/// The dataset in an index's directory.
pub(super) fn dataset_path(directory: &Path) -> PathBuf {
    directory.join("vectors.lance")
}

/// Why a dataset cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// Lance says so.
    Lance {
        /// What was tried.
        action: &'static str,
        /// What it said.
        error: lance::Error,
    },
    /// It holds something else than encodings of this model.
    Unfit(String),
}

impl ReadError {
    /// Whether what is stored is gone, damaged or of another schema. Any other error passes (no
    /// more files may be open, the disk does not answer) and must not cost what is stored.
    fn is_lost(&self) -> bool {
        match self {
            ReadError::Unfit(_) => true,
            ReadError::Lance { error, .. } => tells_of_contents(error) && !is_of_the_system(error),
        }
    }
}

impl From<ReadError> for IndexError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Lance { action, error } => failed(action)(error),
            ReadError::Unfit(reason) => IndexError::Store { store: "Lance", action: "read what is stored", reason },
        }
    }
}

/// What Lance calls an error, where that may be about what it has read.
fn tells_of_contents(error: &lance::Error) -> bool {
    use lance::Error as E;
    matches!(
        error.find_root(),
        E::DatasetNotFound { .. }
            | E::NotFound { .. }
            | E::VersionNotFound { .. }
            | E::CorruptFile { .. }
            | E::SchemaMismatch { .. }
            | E::Schema { .. }
            | E::FieldNotFound { .. }
            | E::VersionConflict { .. }
            | E::NotSupported { .. }
            | E::InvalidInput { .. }
            | E::Arrow { .. }
            | E::IO { .. }
            | E::Internal { .. }
            | E::Execution { .. }
            | E::Wrapped { .. }
            | E::External { .. }
    )
}

/// Whether the operating system has refused something other than a file that is not there, or the
/// process is ending. Lance turns some of its causes to text, which has the system's code.
fn is_of_the_system(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        let mut codes = text.match_indices(SYSTEM_CODE).map(|(at, _)| &text[at + SYSTEM_CODE.len()..]);
        let cancelled = cause.downcast_ref::<tokio::task::JoinError>().is_some_and(|error| error.is_cancelled());
        if cancelled || codes.any(|code| !code.starts_with(NOT_THERE)) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// As `std::io::Error` writes the system's errors.
const SYSTEM_CODE: &str = "(os error ";
/// `ENOENT`.
const NOT_THERE: &str = "2)";

/// Opens a dataset and reads all of its rows.
pub(super) async fn read<V: Stored>(
    uri: &str,
    dimension: usize,
    mut row: impl FnMut(ContentHash, V),
) -> Result<Dataset, ReadError> {
    let during = |action| move |error| ReadError::Lance { action, error };
    let unfit = |reason: &str| ReadError::Unfit(reason.to_owned());
    let dataset = DatasetBuilder::from_uri(uri).with_session(SESSION.clone()).load().await;
    let dataset = dataset.map_err(during("open the dataset"))?;
    let mut batches = dataset.scan().try_into_stream().await.map_err(during("scan"))?;
    while let Some(batch) = batches.try_next().await.map_err(during("scan"))? {
        let column = |name| batch.column_by_name(name).ok_or_else(|| unfit(&format!("there is no column `{name}`")));
        let (hashes, values) = (column("hash")?.clone(), column("vector")?.clone());
        let hashes = hashes.as_fixed_size_binary_opt().ok_or_else(|| unfit("`hash` has another type"))?;
        if *values.data_type() != V::data_type(dimension) {
            return Err(unfit("`vector` has another type"));
        }
        for at in 0..batch.num_rows() {
            let value = V::row(&values, at, dimension).ok_or_else(|| unfit("a row cannot be read"))?;
            if let Ok(hash) = <[u8; 32]>::try_from(hashes.value(at)) {
                row(ContentHash(hash), value);
            }
        }
    }
    Ok(dataset)
}

/// A dataset of one model's encodings, or nothing where nothing is to be kept.
pub(super) struct Store<V> {
    uri: Option<String>,
    dataset: Option<Dataset>,
    schema: Arc<Schema>,
    dimension: usize,
    /// Since the last compaction.
    appends: usize,
    /// Bytes of a row, about.
    row_bytes: u64,
    of: std::marker::PhantomData<V>,
}

fn failed(action: &'static str) -> impl Fn(lance::Error) -> IndexError {
    move |error| IndexError::Store { store: "Lance", action, reason: error.to_string() }
}

fn is_conflict(error: &lance::Error) -> bool {
    use lance::Error as E;
    matches!(
        error.find_root(),
        E::IncompatibleTransaction { .. } | E::CommitConflict { .. } | E::RetryableCommitConflict { .. }
    )
}

fn arrow(error: impl std::fmt::Display) -> IndexError {
    IndexError::Store { store: "Lance", action: "build a batch", reason: error.to_string() }
}

impl<V: Stored> Store<V> {
    /// Opens the dataset and reads all of it.
    pub async fn open(
        directory: Option<&Path>,
        dimension: usize,
    ) -> Result<(Self, HashMap<ContentHash, V>), IndexError> {
        let schema = Arc::new(Schema::new(vec![
            Field::new("hash", DataType::FixedSizeBinary(32), false),
            Field::new("vector", V::data_type(dimension), false),
        ]));
        let path = directory.map(dataset_path);
        let of = std::marker::PhantomData;
        let mut store = Self { uri: None, dataset: None, schema, dimension, appends: 0, row_bytes: 0, of };
        let mut vectors = HashMap::new();
        let Some(path) = path else { return Ok((store, vectors)) };
        let uri = path.to_string_lossy().into_owned();
        let at = |action| {
            let path = path.clone();
            move |source| IndexError::Io { action, path, source }
        };
        if path.try_exists().map_err(at("look for"))? {
            match read(&uri, dimension, |hash, value| {
                vectors.insert(hash, value);
            })
            .await
            {
                Ok(dataset) => {
                    // What an earlier process has left to be compacted.
                    store.appends = dataset.get_fragments().len().saturating_sub(1);
                    store.measure(vectors.values().next());
                    store.dataset = Some(dataset);
                }
                // What is lost is computed again; the corpus has everything.
                Err(lost) if lost.is_lost() => {
                    let error = IndexError::from(lost);
                    tracing::warn!(%error, %uri, "stored vectors cannot be read and are computed anew");
                    vectors.clear();
                    std::fs::remove_dir_all(&path).map_err(at("clear"))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        store.uri = Some(uri);
        Ok((store, vectors))
    }

    /// Adds vectors, as one commit.
    pub async fn append(&mut self, vectors: &[(ContentHash, V)]) -> Result<(), IndexError> {
        if vectors.is_empty() {
            return Ok(());
        }
        self.write(vectors, WriteMode::Append).await?;
        self.appends += 1;
        if self.appends >= MOST_APPENDS
            && let Err(error) = self.compact(MaintenanceLimits::BETWEEN).await
        {
            // It costs space, not correctness, and is tried again after as many.
            self.appends = 0;
            tracing::warn!(%error, "stored vectors could not be compacted");
        }
        Ok(())
    }

    /// Keeps these vectors and no others.
    pub async fn replace(&mut self, vectors: &[(ContentHash, V)]) -> Result<(), IndexError> {
        self.write(vectors, WriteMode::Overwrite).await?;
        self.appends = self.appends.max(FEW_APPENDS + 1);
        Ok(())
    }

    /// Looks what the newest version is: a `replace` that was dropped half-way, or failed, may
    /// have made one all the same.
    pub async fn catch_up(&mut self) -> Result<(), IndexError> {
        let Some(dataset) = &mut self.dataset else { return Ok(()) };
        dataset.checkout_latest().await.map_err(failed("read its newest version"))
    }

    /// The dataset's version.
    pub fn version(&self) -> Option<u64> {
        self.dataset.as_ref().map(|dataset| dataset.version().version)
    }

    /// What the dataset takes on the disk.
    pub fn footprint(&self) -> Footprint {
        self.uri.as_deref().map(|uri| Footprint::of(Path::new(uri))).unwrap_or_default()
    }

    /// Compacts, if it is worth it; gives what was done.
    pub async fn maintain(&mut self, limits: MaintenanceLimits) -> Result<Option<String>, IndexError> {
        let worth = self.appends > if limits.is_whole() { 0 } else { FEW_APPENDS };
        if self.dataset.is_none() || !worth {
            return Ok(None);
        }
        let appends = self.appends;
        self.compact(limits).await?;
        Ok(Some(format!("{appends} additions compacted")))
    }

    fn measure(&mut self, value: Option<&V>) {
        self.row_bytes = value.map_or(self.row_bytes, |value| value.bytes().len() as u64 + 32);
    }

    async fn write(&mut self, vectors: &[(ContentHash, V)], mode: WriteMode) -> Result<(), IndexError> {
        let Some(uri) = self.uri.clone() else { return Ok(()) };
        self.measure(vectors.first().map(|(_, value)| value));
        let mut hashes = FixedSizeBinaryBuilder::new(32);
        for (hash, _) in vectors {
            hashes.append_value(hash.0).map_err(arrow)?;
        }
        let columns: Vec<ArrayRef> = vec![Arc::new(hashes.finish()), V::column(vectors, self.dimension)];
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(arrow)?;
        let batches = || RecordBatchIterator::new([Ok(batch.clone())], self.schema.clone());
        match &mut self.dataset {
            Some(dataset) if matches!(mode, WriteMode::Append) => {
                let mut appended = dataset.append(batches(), None).await;
                // There is a version that this handle does not know, of a replacement that was
                // dropped half-way: Lance appends to nothing that was overwritten.
                if appended.as_ref().is_err_and(is_conflict) {
                    dataset.checkout_latest().await.map_err(failed("read its newest version"))?;
                    appended = dataset.append(batches(), None).await;
                }
                appended.map_err(failed("append vectors"))?;
            }
            _ => {
                let mode = if self.dataset.is_some() { mode } else { WriteMode::Create };
                let parameters = WriteParams { mode, session: Some(SESSION.clone()), ..WriteParams::default() };
                let written = Dataset::write(batches(), uri.as_str(), Some(parameters)).await;
                self.dataset = Some(written.map_err(failed("write vectors"))?);
            }
        }
        Ok(())
    }

    /// Makes few files of many and drops versions that nobody reads. Files that have as many
    /// rows as the limit allows are left as they are, so that the cost does not grow with what
    /// is stored.
    async fn compact(&mut self, limits: MaintenanceLimits) -> Result<(), IndexError> {
        let Some(dataset) = &mut self.dataset else { return Ok(()) };
        let rows = limits.rewrite.map_or(*ROWS_A_FILE.end(), |bytes| bytes / self.row_bytes.max(1));
        let rows = rows.clamp(*ROWS_A_FILE.start(), *ROWS_A_FILE.end());
        let options = CompactionOptions { target_rows_per_fragment: rows as usize, ..CompactionOptions::default() };
        compact_files(dataset, options, None).await.map_err(failed("compact its files"))?;
        // This process is the only reader, and has read the newest.
        let cleaned = dataset.cleanup_old_versions(chrono::TimeDelta::zero(), Some(true), None).await;
        cleaned.map_err(failed("remove old versions"))?;
        self.appends = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::inference::Vector;

    use super::*;

    fn vectors(numbers: std::ops::Range<u8>) -> Vec<(ContentHash, Vector)> {
        numbers.map(|n| (ContentHash([n; 32]), vec![f32::from(n), 1.0].into())).collect()
    }

    async fn open(directory: &Path) -> (Store<Vector>, HashMap<ContentHash, Vector>) {
        Store::open(Some(directory), 2).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_append_follows_a_replacement_that_it_does_not_know() {
        let place = tempfile::tempdir().unwrap();
        let (mut store, _) = open(place.path()).await;
        store.append(&vectors(0..3)).await.unwrap();
        let (mut other, stored) = open(place.path()).await;
        assert_eq!(stored.len(), 3);
        other.replace(&vectors(0..2)).await.unwrap();
        store.append(&vectors(5..7)).await.unwrap();
        let (_, stored) = open(place.path()).await;
        assert_eq!(stored, vectors(0..2).into_iter().chain(vectors(5..7)).collect());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_what_is_lost_is_cleared() {
        let place = tempfile::tempdir().unwrap();
        let path = dataset_path(place.path());
        open(place.path()).await.0.append(&vectors(0..3)).await.unwrap();
        let away = place.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        // The system refuses to follow it.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let refused = Store::<Vector>::open(Some(place.path()), 2).await;
        assert!(matches!(refused, Err(IndexError::Io { action: "look for", .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
        assert_eq!(open(place.path()).await.1.len(), 3, "nothing was lost");
        for file in std::fs::read_dir(path.join("data")).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        assert_eq!(open(place.path()).await.1.len(), 0, "a file that the manifest names is gone");
        assert!(!path.exists());
    }

    #[test]
    fn errors_of_the_system_are_not_losses() {
        let lance = |error| ReadError::Lance { action: "scan", error };
        let io = |code| std::io::Error::from_raw_os_error(code);
        for code in [5, 13, 24, 28] {
            assert!(!lance(io(code).into()).is_lost(), "{code}");
            assert!(!lance(lance::Error::io(format!("cannot open it: {}", io(code)))).is_lost(), "{code}");
        }
        assert!(lance(lance::Error::io(format!("cannot open it: {}", io(2)))).is_lost());
        assert!(lance(lance::Error::not_found("data/a.lance")).is_lost());
        assert!(lance(lance::Error::invalid_input("the file does not end as it should")).is_lost());
        assert!(!lance(lance::Error::Stop).is_lost());
        assert!(ReadError::Unfit("`hash` has another type".to_owned()).is_lost());
    }
}
