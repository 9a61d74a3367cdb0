//! Reads a whole dataset, on all cores. Encodings of fixed width stay where its data files have them.

use std::panic::resume_unwind;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::{FutureExt, TryStreamExt};
use tokio::task::spawn_blocking;
use turnflow_engine::document::ContentHash;
use turnflow_engine::mapped::MappedFiles;
use turnflow_tables::Table;

use super::faults::{Fault, call};
use super::placed::{Maps, Placed};
use super::rows::{self, Stored};
use crate::cores::cores;

/// Number of encodings that are moved to a mapped file together.
const MAPPED_AT_ONCE: usize = 1024;

/// What a scan of a dataset finds in its batches.
#[derive(Clone)]
enum Source<V> {
    /// Encodings, which are moved to mapped files if there are any.
    Batch(Option<Arc<MappedFiles>>),
    /// Only their hashes and checksums.
    Files(Placed<V>),
}

/// Opens a dataset and reads all of its rows, in their order, several batches at a time. With `files`, encodings are not
/// kept on the heap: they stay in the dataset's data files if they lie there as they are, and are copied to `files`
/// otherwise. Returns the dataset and the number of invalid rows.
pub(super) async fn read<V: Stored>(
    uri: &str,
    dimension: usize,
    kept: Option<(&Arc<MappedFiles>, &mut Maps)>,
    mut take: impl FnMut(Vec<(ContentHash, V)>),
) -> Result<(Table, usize), Fault> {
    let dataset = call("open the dataset", || Table::open(uri)).await?;
    let source = match kept {
        Some((files, maps)) => match Placed::of(&dataset, dimension, maps, 0).await? {
            Some(placed) => Source::Files(placed),
            None => Source::Batch(Some(files.clone())),
        },
        None => Source::Batch(None),
    };
    let columns: Option<&[&str]> = match (&source, dataset.has_column("check")) {
        (Source::Batch(_), _) => None,
        (Source::Files(_), true) => Some(&["hash", "check"]),
        (Source::Files(_), false) => Some(&["hash"]),
    };
    let scanned = call("scan", || async {
        let batches = dataset.scan(columns).await?;
        let mut next = 0;
        let read = batches.map_ok(|batch| {
            let (source, first) = (source.clone(), next);
            next += batch.num_rows() as u64;
            let read = spawn_blocking(move || rows_of::<V>(&batch, dimension, &source, first));
            read.map(|done| Ok(done.unwrap_or_else(|error| resume_unwind(error.into_panic()))))
        });
        let mut read = read.try_buffered(cores());
        let mut wrong = 0;
        while let Some(rows) = read.try_next().await? {
            match rows {
                Ok((rows, invalid)) => {
                    take(rows);
                    wrong += invalid;
                }
                Err(unfit) => return Ok(Err(unfit)),
            }
        }
        Ok(Ok(wrong))
    });
    let wrong = scanned.await??;
    Ok((dataset, wrong))
}

/// The hashes and the encodings of a dataset's rows, without a look at the encodings. Returns false if these do not lie in
/// the files as they are.
pub(super) async fn placed<V: Stored>(
    dataset: &Table,
    dimension: usize,
    maps: &mut Maps,
    mut take: impl FnMut(Vec<(ContentHash, V)>),
) -> Result<bool, Fault> {
    let Some(placed) = Placed::of(dataset, dimension, maps, 0).await? else { return Ok(false) };
    let batches: Vec<RecordBatch> =
        call("read its hashes", || async { dataset.scan(Some(&["hash"])).await?.try_collect().await }).await?;
    let mut first = 0;
    for batch in batches {
        let mut rows = Vec::with_capacity(batch.num_rows());
        rows::each(&batch, |at| placed.get(first + at as u64), &mut |hash, value| rows.push((hash, value)))?;
        first += batch.num_rows() as u64;
        take(rows);
    }
    Ok(true)
}

/// The valid rows of a batch, and the number of the others. `first` is the number of its first row.
fn rows_of<V: Stored>(
    batch: &RecordBatch,
    dimension: usize,
    source: &Source<V>,
    first: u64,
) -> Result<(Vec<(ContentHash, V)>, usize), Fault> {
    let files = match source {
        Source::Files(placed) => {
            let mut rows = Vec::with_capacity(batch.num_rows());
            let found = |at: usize| placed.get(first + at as u64);
            let wrong = rows::each(batch, found, &mut |hash, value| rows.push((hash, value)))?;
            return Ok((rows, wrong));
        }
        Source::Batch(files) => files.as_deref(),
    };
    let mut rows: Vec<(ContentHash, V)> = Vec::with_capacity(batch.num_rows());
    let mut mapped = 0;
    let mut map = |rows: &mut [(ContentHash, V)]| {
        if let Some(files) = files {
            V::map_all(rows[mapped..].iter_mut().map(|(_, value)| value), files);
        }
        mapped = rows.len();
    };
    let wrong = rows::read(batch, dimension, &mut |hash, value| {
        rows.push((hash, value));
        if rows.len().is_multiple_of(MAPPED_AT_ONCE) {
            map(&mut rows);
        }
    })?;
    map(&mut rows);
    Ok((rows, wrong))
}
