//! Reads a whole dataset, on all cores. Encodings of fixed width stay where its data files have them.

use std::panic::resume_unwind;

use arrow_array::RecordBatch;
use futures::{FutureExt, TryStreamExt};
use tokio::task::spawn_blocking;
use turnflow_engine::document::ContentHash;
use turnflow_tables::Table;

use super::faults::{Fault, call};
use super::placed::{Maps, Placed};
use super::rows::{self, Stored};
use crate::cores::cores;

/// Opens a dataset and reads all of its rows, in their order, several batches at a time. With `maps`, encodings stay in the
/// data files if they lie there as they are. Returns the dataset and the number of invalid rows.
pub(super) async fn read<V: Stored>(
    uri: &str,
    dimension: usize,
    maps: Option<&mut Maps>,
    mut take: impl FnMut(Vec<(ContentHash, V)>),
) -> Result<(Table, usize), Fault> {
    let dataset = call("open the dataset", || Table::open(uri)).await?;
    let placed = match maps {
        Some(maps) => Placed::of(&dataset, dimension, maps, 0).await?,
        None => None,
    };
    let columns: Option<&[&str]> = match (&placed, dataset.has_column("check")) {
        (None, _) => None,
        (Some(_), true) => Some(&["hash", "check"]),
        (Some(_), false) => Some(&["hash"]),
    };
    let scanned = call("scan", || async {
        let batches = dataset.scan(columns).await?;
        let mut next = 0;
        let read = batches.map_ok(|batch| {
            let (placed, first) = (placed.clone(), next);
            next += batch.num_rows() as u64;
            let read = spawn_blocking(move || rows_of::<V>(&batch, dimension, placed.as_ref(), first));
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
    placed: Option<&Placed<V>>,
    first: u64,
) -> Result<(Vec<(ContentHash, V)>, usize), Fault> {
    let mut rows: Vec<(ContentHash, V)> = Vec::with_capacity(batch.num_rows());
    let mut take = |hash, value| rows.push((hash, value));
    let wrong = match placed {
        Some(placed) => rows::each(batch, |at| placed.get(first + at as u64), &mut take)?,
        None => rows::read(batch, dimension, &mut take)?,
    };
    Ok((rows, wrong))
}
