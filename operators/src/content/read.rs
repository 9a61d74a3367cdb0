//! Reads a whole dataset, on all cores.

use std::panic::resume_unwind;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::{FutureExt, TryStreamExt};
use tokio::task::spawn_blocking;
use turnflow_engine::document::ContentHash;
use turnflow_engine::mapped::MappedFiles;
use turnflow_tables::Table;

use super::faults::{Fault, call};
use super::rows::{self, Stored};
use crate::cores::cores;

/// Number of encodings that are moved to a mapped file together.
const MAPPED_AT_ONCE: usize = 1024;

/// Opens a dataset and reads all of its rows, in their order, several batches at a time. Encodings are moved to mapped
/// files, if there are any. Returns the dataset and the number of invalid rows.
pub(super) async fn read<V: Stored>(
    uri: &str,
    dimension: usize,
    files: Option<&Arc<MappedFiles>>,
    mut take: impl FnMut(Vec<(ContentHash, V)>),
) -> Result<(Table, usize), Fault> {
    let dataset = call("open the dataset", || Table::open(uri)).await?;
    let scanned = call("scan", || async {
        let batches = dataset.scan(None).await?;
        let files = files.cloned();
        let read = batches.map_ok(|batch| {
            let files = files.clone();
            let read = spawn_blocking(move || rows_of::<V>(&batch, dimension, files.as_deref()));
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

/// The valid rows of a batch, and the number of the others.
fn rows_of<V: Stored>(
    batch: &RecordBatch,
    dimension: usize,
    files: Option<&MappedFiles>,
) -> Result<(Vec<(ContentHash, V)>, usize), Fault> {
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
