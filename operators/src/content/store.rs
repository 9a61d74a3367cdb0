//! Stores encodings in Lance by content hash: one commit for each epoch. Commits only append, so a changed passage
//! requires no matching and no rewriting.
//!
//! A damaged dataset is moved aside under a separate name, and rewritten with the rows that can be read. Stored data is
//! never deleted for being damaged or unknown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnflow_engine::component::{BackedUp, DiskUsage, IndexError, MaintenanceLimits};
use turnflow_engine::document::ContentHash;
use turnflow_engine::wording::count;
use turnflow_tables::{Mode, Table};

use super::faults::{Fault, call, is_conflict};
use super::placed::{Maps, Placed};
use super::read::{placed, read};
use super::rows::{Stored, batches};
use super::salvage::{Salvaged, clear, salvage};

/// Number of appends after which their small files are compacted even without maintenance.
const MOST_APPENDS: usize = 256;
/// Maximum number of appends that are not worth a compaction.
const FEW_APPENDS: usize = 4;
/// So many new vectors are used where they are stored. Fewer stay on the heap, because each could keep a file.
const MANY: usize = 32;
/// Minimum and maximum number of rows in a file, whatever the limit in bytes.
const ROWS_A_FILE: std::ops::RangeInclusive<u64> = 1024..=1 << 20;

/// Name of the dataset in an index's directory.
const DATASET: &str = "vectors.lance";

/// What a backup keeps: the dataset, without the files that Lance is writing (`.tmpXXXXXX`, `NAME.tmp.ID`, `NAME#1`).
pub(crate) const BACKED_UP: BackedUp = BackedUp {
    directory: DATASET,
    versions: "vectors.lance/_versions",
    is_temporary: |name| name.starts_with('.') || name.contains(".tmp.") || name.contains('#'),
};

/// Path of the dataset in an index's directory.
pub(super) fn dataset_path(directory: &Path) -> PathBuf {
    directory.join(DATASET)
}

/// A dataset of one model's encodings. It stores nothing if it has no path.
pub(super) struct Store<V> {
    path: Option<PathBuf>,
    dataset: Option<Table>,
    dimension: usize,
    /// Whether rows have a checksum column.
    checked: bool,
    /// The stored data is unusable and must be rebuilt.
    damaged: bool,
    /// Number of appends since the last compaction.
    appends: usize,
    /// Approximate size of a row, in bytes.
    row_bytes: u64,
    /// The data files in which encodings are used.
    maps: Maps,
    /// Whether rows have moved to other data files than those in which their encodings are used.
    has_moved: bool,
    /// Whether encodings of fixed width do not lie in the data files as they are, so that they are on the heap.
    is_of_earlier_form: bool,
    of: std::marker::PhantomData<V>,
}

impl<V: Stored> Store<V> {
    /// Opens the dataset and reads all of it.
    pub async fn open(directory: Option<&Path>, dimension: usize) -> Result<(Self, Vec<(ContentHash, V)>), IndexError> {
        let path = directory.map(dataset_path);
        let mut store = Self {
            path: path.clone(),
            dataset: None,
            dimension,
            checked: true,
            damaged: false,
            appends: 0,
            row_bytes: 0,
            maps: Maps::default(),
            has_moved: false,
            is_of_earlier_form: false,
            of: std::marker::PhantomData,
        };
        let mut vectors = Vec::new();
        let Some(path) = path else { return Ok((store, vectors)) };
        let there = path.try_exists().map_err(at("look for", &path))?;
        let new = beside(&path, "new");
        if !there && new.exists() {
            // An earlier process stopped after it had moved the damaged dataset aside.
            std::fs::rename(&new, &path).map_err(at("rename", &new))?;
        } else if !there {
            return Ok((store, vectors));
        }
        let uri = path.to_string_lossy().into_owned();
        let stored = read(&uri, dimension, Some(&mut store.maps), |rows| vectors.extend(rows)).await;
        match stored {
            Ok((dataset, 0)) => {
                // Appends of an earlier process that are not compacted yet.
                store.appends = dataset.fragments().saturating_sub(1);
                store.measure(vectors.first().map(|(_, value)| value));
                store.is_of_earlier_form =
                    V::width(dimension).is_some() && !vectors.is_empty() && store.maps.is_empty();
                store.hold(dataset);
            }
            // The other rows are valid, because each row has its own checksum.
            Ok((_, lost)) => {
                let salvaged = Salvaged { rows: vectors.into_iter().collect(), lost, unreadable: 0 };
                vectors = store.save(salvaged, "some rows are invalid").await?;
            }
            // Lost encodings are computed again, since the corpus has all passages.
            Err(lost) if lost.is_lost() => {
                let salvaged = salvage(&path, dimension).await?;
                vectors = store.save(salvaged, &IndexError::from(lost).to_string()).await?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok((store, vectors))
    }

    /// Rebuilds a damaged dataset from its salvaged rows.
    async fn save(&mut self, salvaged: Salvaged<V>, why: &str) -> Result<Vec<(ContentHash, V)>, IndexError> {
        let Salvaged { rows, lost, unreadable } = salvaged;
        let rows: Vec<_> = rows.into_iter().collect();
        let aside = self.rebuild(rows.clone()).await?;
        tracing::warn!(why, saved = rows.len(), lost, unreadable, aside = %aside.display(),
            "stored vectors are damaged: moved aside; readable ones are salvaged, others are computed again");
        Ok(rows)
    }

    /// Moves the dataset aside and creates a new one with these vectors. Returns the path of the old one.
    pub async fn rebuild(&mut self, vectors: Vec<(ContentHash, V)>) -> Result<PathBuf, IndexError> {
        let Some(path) = self.path.clone() else { return Ok(PathBuf::new()) };
        let new = beside(&path, "new");
        clear(&new)?;
        self.checked = true;
        self.dataset = None;
        if !vectors.is_empty() {
            self.measure(vectors.first().map(|(_, value)| value));
            self.create(&new, vectors, Mode::Create).await?;
        }
        // If the process stops at any later step, the next start finds the old or the new dataset.
        let aside = (1..).map(|n| beside(&path, &format!("damaged-{n}"))).find(|aside| !aside.exists());
        let aside = aside.unwrap_or_else(|| beside(&path, "damaged"));
        match std::fs::rename(&path, &aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at("rename", &path)(error)),
            _ => {}
        }
        if new.exists() {
            std::fs::rename(&new, &path).map_err(at("rename", &new))?;
            let uri = path.to_string_lossy().into_owned();
            let dataset = call("open the rebuilt dataset", || Table::open(&uri)).await?;
            self.hold(dataset);
        }
        self.appends = 0;
        self.damaged = false;
        self.has_moved = true;
        Ok(aside)
    }

    /// Whether the stored data is unusable, so that only [`Store::rebuild`] helps.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    fn hold(&mut self, dataset: Table) {
        self.checked = dataset.has_column("check");
        self.dataset = Some(dataset);
    }

    /// Records whether an error means that the stored data is damaged.
    fn failed(&mut self, fault: Fault) -> IndexError {
        self.damaged |= fault.is_lost() && !is_conflict(&fault);
        fault.into()
    }

    /// Appends vectors in one commit. Many are then to be used where they are stored; these are returned.
    pub async fn append(&mut self, vectors: Vec<(ContentHash, V)>) -> Result<Vec<(ContentHash, V)>, IndexError> {
        if vectors.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<ContentHash> = vectors.iter().map(|(hash, _)| *hash).collect();
        let (before, version) = self.dataset.as_ref().map_or((0, 0), |table| (table.fragments(), table.version()));
        self.write(vectors, None).await?;
        let mut stored = Vec::new();
        if hashes.len() >= MANY
            // Otherwise, there are others among the new files.
            && let Some(dataset) = self.dataset.as_ref().filter(|table| table.version() == version + 1)
            // A file that cannot be mapped is read at the next start.
            && let Ok(Some(placed)) = Placed::<V>::of(dataset, self.dimension, &mut self.maps, before).await
            && placed.rows() == hashes.len() as u64
        {
            let places = hashes.into_iter().zip(0..);
            stored.extend(places.filter_map(|(hash, row)| Some((hash, placed.get(row)?))));
        }
        self.appends += 1;
        if self.appends >= MOST_APPENDS
            && let Err(error) = self.compact(MaintenanceLimits::BETWEEN).await
        {
            // A failed compaction costs space, not correctness. It is retried after as many appends.
            self.appends = 0;
            tracing::warn!(%error, "stored vectors could not be compacted");
        }
        Ok(stored)
    }

    /// Passes on all encodings where they are stored now, if rows have moved since they were passed on. Returns whether it
    /// has.
    pub async fn moved(&mut self, take: impl FnMut(Vec<(ContentHash, V)>)) -> bool {
        let Some(dataset) = self.dataset.as_ref().filter(|_| self.has_moved) else { return false };
        self.has_moved = false;
        self.maps.clear();
        match placed(dataset, self.dimension, &mut self.maps, take).await {
            Ok(are_placed) => are_placed,
            Err(fault) => {
                // What is in memory is as good.
                tracing::debug!(?fault, "encodings cannot be used where they are stored");
                false
            }
        }
    }

    /// Whether a replacement with all encodings would let them be used where they are stored.
    pub fn is_of_earlier_form(&self) -> bool {
        self.is_of_earlier_form
    }

    /// Replaces the stored vectors with these.
    pub async fn replace(&mut self, vectors: Vec<(ContentHash, V)>) -> Result<(), IndexError> {
        self.is_of_earlier_form = false;
        self.write(vectors, Some(Mode::Overwrite)).await?;
        self.appends = self.appends.max(FEW_APPENDS + 1);
        self.has_moved = true;
        Ok(())
    }

    /// Moves to the newest version. A `replace` that was cancelled or failed may still have created one.
    pub async fn catch_up(&mut self) -> Result<(), IndexError> {
        let Some(dataset) = &mut self.dataset else { return Ok(()) };
        let caught_up = call("read its newest version", || dataset.catch_up()).await;
        caught_up.map_err(|fault| self.failed(fault))?;
        self.checked = self.dataset.as_ref().is_none_or(|dataset| dataset.has_column("check"));
        Ok(())
    }

    /// The dataset's version.
    pub fn version(&self) -> Option<u64> {
        self.dataset.as_ref().map(Table::version)
    }

    /// Disk usage of the dataset.
    pub fn disk_usage(&self) -> DiskUsage {
        self.path.as_deref().map(DiskUsage::of).unwrap_or_default()
    }

    /// Compacts the dataset if that is worthwhile. Returns a description of the work.
    pub async fn maintain(&mut self, limits: MaintenanceLimits) -> Result<Option<String>, IndexError> {
        let worth = self.appends > if limits.is_whole() { 0 } else { FEW_APPENDS };
        if self.dataset.is_none() || !worth {
            return Ok(None);
        }
        let appends = self.appends;
        self.compact(limits).await?;
        Ok(Some(format!("{} compacted", count(appends, "append"))))
    }

    fn measure(&mut self, value: Option<&V>) {
        self.row_bytes = value.map_or(self.row_bytes, |value| value.bytes().len() as u64 + 32);
    }

    /// Writes vectors: all of a new version, or appended without a mode.
    async fn write(&mut self, vectors: Vec<(ContentHash, V)>, mode: Option<Mode>) -> Result<(), IndexError> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        self.measure(vectors.first().map(|(_, value)| value));
        if self.dataset.is_none() {
            return self.create(&path, vectors, Mode::Create).await;
        }
        if let Some(mode) = mode {
            return self.create(&path, vectors, mode).await;
        }
        let vectors: Arc<[_]> = vectors.into();
        let appended = self.add(&vectors).await;
        // A replacement that was cancelled may have created a version that this handle does not know. Lance does not
        // append to an overwritten version.
        let appended = match appended {
            Err(fault) if is_conflict(&fault) => {
                self.catch_up().await?;
                self.add(&vectors).await
            }
            appended => appended,
        };
        appended.map_err(|fault| self.failed(fault))
    }

    async fn add(&mut self, vectors: &Arc<[(ContentHash, V)]>) -> Result<(), Fault> {
        let rows = batches(vectors.clone(), self.dimension, self.checked);
        let Some(dataset) = &mut self.dataset else { return Ok(()) };
        call("append vectors", || dataset.append(rows)).await
    }

    /// Writes all rows of a dataset.
    async fn create(&mut self, path: &Path, vectors: Vec<(ContentHash, V)>, mode: Mode) -> Result<(), IndexError> {
        let rows = batches::<V>(vectors.into(), self.dimension, true);
        let uri = path.to_string_lossy().into_owned();
        let written = call("write vectors", || Table::write(&uri, rows, mode)).await;
        let dataset = written.map_err(|fault| self.failed(fault))?;
        self.hold(dataset);
        Ok(())
    }

    /// Merges small files and removes old versions. Files that have as many rows as the limit allows are not rewritten,
    /// so the cost does not grow with the size of the dataset.
    async fn compact(&mut self, limits: MaintenanceLimits) -> Result<(), IndexError> {
        let Some(dataset) = &mut self.dataset else { return Ok(()) };
        let rows = limits.rewrite.map_or(*ROWS_A_FILE.end(), |bytes| bytes / self.row_bytes.max(1));
        let rows = rows.clamp(*ROWS_A_FILE.start(), *ROWS_A_FILE.end());
        let before = dataset.version();
        let mut done = call("compact its files", || dataset.compact(rows as usize)).await;
        self.has_moved |= dataset.version() != before;
        if done.is_ok() {
            // No other process reads the dataset, and this one has read the newest version.
            done = call("remove old versions", || dataset.remove_old_versions(true)).await;
        }
        done.map_err(|fault| self.failed(fault))?;
        self.appends = 0;
        Ok(())
    }
}

/// The path with a suffix: `<path>.<ending>`.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn at(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> IndexError + use<> {
    let path = path.to_owned();
    move |source| IndexError::Io { action, path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_array::{RecordBatch, RecordBatchIterator};
    use arrow_schema::{Field, Schema};
    use turnflow_engine::inference::Vector;

    use super::*;

    fn vectors(numbers: std::ops::Range<u8>) -> Vec<(ContentHash, Vector)> {
        numbers.map(|n| (ContentHash([n; 32]), vec![f32::from(n), 1.0].into())).collect()
    }

    async fn open(directory: &Path) -> (Store<Vector>, HashMap<ContentHash, Vector>) {
        let (store, stored) = Store::open(Some(directory), 2).await.unwrap();
        (store, stored.into_iter().collect())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_append_follows_a_replacement_that_it_does_not_know() {
        let place = tempfile::tempdir().unwrap();
        let (mut store, _) = open(place.path()).await;
        store.append(vectors(0..3)).await.unwrap();
        let (mut other, stored) = open(place.path()).await;
        assert_eq!(stored.len(), 3);
        other.replace(vectors(0..2)).await.unwrap();
        store.append(vectors(5..7)).await.unwrap();
        let (_, stored) = open(place.path()).await;
        assert_eq!(stored, vectors(0..2).into_iter().chain(vectors(5..7)).collect());
    }

    /// Several batches are read at a time, in their order: of a content that is stored twice, the last encoding counts.
    #[tokio::test(flavor = "multi_thread")]
    async fn many_rows_are_read_in_their_order_and_used_where_they_are() {
        let place = tempfile::tempdir().unwrap();
        let row = |number: u32, by: f32| {
            let mut hash = [0; 32];
            hash[..4].copy_from_slice(&number.to_le_bytes());
            (ContentHash(hash), Vector::from(vec![number as f32, by]))
        };
        let rows: Vec<_> = (0..30_000).map(|number| row(number, 1.0)).collect();
        let (mut store, _) = open(place.path()).await;
        store.append(rows.clone()).await.unwrap();
        store.append(vec![row(7, 2.0), row(29_999, 2.0)]).await.unwrap();
        drop(store);
        let (store, stored) = Store::<Vector>::open(Some(place.path()), 2).await.unwrap();
        assert_eq!(stored[..rows.len()], rows);
        assert_eq!(stored[rows.len()..], [row(7, 2.0), row(29_999, 2.0)]);
        assert_eq!((store.appends, store.is_of_earlier_form()), (1, false));
        assert!(stored.iter().all(|(_, vector)| vector.are_mapped()), "where they are stored");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let own: Vec<&str> = maps.lines().filter(|line| line.contains(&*place.path().to_string_lossy())).collect();
        assert!(own.iter().all(|line| line.contains(".lance")), "no other files are mapped: {own:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn vectors_are_used_where_they_are_stored_also_after_they_have_moved() {
        let place = tempfile::tempdir().unwrap();
        let (mut store, _) = open(place.path()).await;
        assert!(store.append(vectors(0..3)).await.unwrap().is_empty(), "a few stay on the heap");
        for part in [10..50, 50..100] {
            let placed = store.append(vectors(part.clone())).await.unwrap();
            assert!(placed.iter().all(|(_, vector)| vector.are_mapped()));
            assert_eq!(placed, vectors(part));
        }
        let mut all = Vec::new();
        assert!(!store.moved(|rows| all.extend(rows)).await);
        let done = store.maintain(MaintenanceLimits::NONE).await.unwrap();
        assert!(done.is_some() && store.moved(|rows| all.extend(rows)).await);
        assert_eq!(all, vectors(0..3).into_iter().chain(vectors(10..100)).collect::<Vec<_>>());
        assert!(all.iter().all(|(_, vector)| vector.are_mapped()));
        store.replace(vectors(20..90)).await.unwrap();
        let mut kept = Vec::new();
        assert!(store.moved(|rows| kept.extend(rows)).await && !store.moved(|_| {}).await);
        assert_eq!(kept, vectors(20..90));
        // What was used before stays as it is.
        store.maintain(MaintenanceLimits::NONE).await.unwrap();
        assert_eq!(all[3..], vectors(10..100));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn vectors_of_an_earlier_form_are_used_where_they_are_after_a_replacement() {
        let place = tempfile::tempdir().unwrap();
        let of_now: Vec<_> = batches::<Vector>(vectors(0..90).into(), 2, true).map(Result::unwrap).collect();
        let plain = |field: &Arc<Field>| Field::clone(field).with_metadata(HashMap::new());
        let schema = Arc::new(Schema::new(of_now[0].schema().fields().iter().map(plain).collect::<Vec<_>>()));
        let earlier = of_now.into_iter().map(|batch| RecordBatch::try_new(schema.clone(), batch.columns().to_vec()));
        let earlier = Box::new(RecordBatchIterator::new(earlier.collect::<Vec<_>>(), schema.clone()));
        let path = dataset_path(place.path());
        Table::write(path.to_str().unwrap(), earlier, Mode::Create).await.unwrap();
        let (mut store, stored) = Store::<Vector>::open(Some(place.path()), 2).await.unwrap();
        assert!(store.is_of_earlier_form() && stored.iter().all(|(_, vector)| !vector.are_mapped()));
        assert_eq!(stored, vectors(0..90));
        store.replace(stored).await.unwrap();
        let mut placed = Vec::new();
        assert!(store.moved(|rows| placed.extend(rows)).await && !store.is_of_earlier_form());
        assert!(placed.iter().all(|(_, vector)| vector.are_mapped()));
        assert_eq!(placed, vectors(0..90));
        assert!(!Store::<Vector>::open(Some(place.path()), 2).await.unwrap().0.is_of_earlier_form());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_what_is_lost_is_put_aside() {
        let place = tempfile::tempdir().unwrap();
        let path = dataset_path(place.path());
        open(place.path()).await.0.append(vectors(0..3)).await.unwrap();
        let away = place.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        // The operating system refuses to follow this link.
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
        assert!(!path.exists() && place.path().join("vectors.lance.damaged-1").exists());
    }
}
