//! Reads the rows of a table.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use lance_core::cache::LanceCache;
use lance_core::datatypes::Schema;
use lance_core::utils::deletion::DeletionVector;
use lance_core::{Error, Result};
use lance_encoding::decoder::{DecoderPlugins, FilterExpression};
use lance_file::reader::{FileReader, FileReaderOptions, ReaderProjection};
use lance_file::versions::reader_projection_from_field_ids;
use lance_io::ReadBatchParams;
use lance_io::scheduler::{ScanScheduler, SchedulerConfig};
use lance_io::utils::CachedFileSize;
use lance_table::format::{DataFile, Fragment};
use lance_table::io::deletion::read_deletion_file;
use object_store::path::Path;

use crate::commit::Place;
use crate::write::DATA;
use crate::{BatchStream, Table};

/// Number of rows in a batch that is read.
const ROWS_A_BATCH: u32 = 8192;

/// Number of files that are opened ahead.
const FILES_AHEAD: usize = 4;

pub(crate) fn rows(table: &Table, columns: Option<&[&str]>) -> Result<BatchStream> {
    let schema = match columns {
        Some(columns) => table.manifest.schema.project(columns)?,
        None => table.manifest.schema.clone(),
    };
    Ok(rows_of(table, table.manifest.fragments.to_vec(), schema))
}

/// The rows of some fragments, without those that are deleted.
pub(crate) fn rows_of(table: &Table, fragments: Vec<Fragment>, schema: Schema) -> BatchStream {
    let (place, scheduler) = (table.place.clone(), scheduler(&table.place));
    stream::iter(fragments)
        .map(move |fragment| {
            let (place, scheduler, schema) = (place.clone(), scheduler.clone(), schema.clone());
            async move {
                let deleted = deleted(&place, &fragment).await?;
                let batches = physical(&place, &scheduler, &fragment, &schema).await?;
                Ok::<_, Error>(without(batches, deleted))
            }
        })
        .buffered(FILES_AHEAD)
        .try_flatten()
        .boxed()
}

pub(crate) fn scheduler(place: &Place) -> Arc<ScanScheduler> {
    ScanScheduler::new(place.store.clone(), SchedulerConfig::max_bandwidth(&place.store))
}

/// The rows of a fragment that are deleted, counted from its first row.
pub(crate) async fn deleted(place: &Place, fragment: &Fragment) -> Result<DeletionVector> {
    match &fragment.deletion_file {
        Some(file) => read_deletion_file(fragment.id, file, &place.base, &place.store).await,
        None => Ok(DeletionVector::default()),
    }
}

/// All rows of a fragment, also those that are deleted.
pub(crate) async fn physical(
    place: &Place,
    scheduler: &Arc<ScanScheduler>,
    fragment: &Fragment,
    schema: &Schema,
) -> Result<BatchStream> {
    if !fragment.overlays.is_empty() {
        return Err(Error::not_supported("the table has overlays, which another program has written"));
    }
    let mut parts = Vec::new();
    let mut found = 0;
    for file in &fragment.files {
        let columns = columns_of(file);
        let wanted = schema.fields.iter().filter(|field| columns.contains_key(&(field.id as u32)));
        let fields: Vec<_> = wanted.cloned().collect();
        if fields.is_empty() {
            continue;
        }
        if file.base_id.is_some() {
            return Err(Error::not_supported("the table has files in another place"));
        }
        found += fields.len();
        let part = Schema { fields, metadata: schema.metadata.clone() };
        let projection = reader_projection_from_field_ids(file.file_version()?, &part, &columns)?;
        let path = place.file(DATA, &file.path);
        let reader = open(scheduler, &path, &file.file_size_bytes).await?;
        if fragment.physical_rows.is_some_and(|rows| rows as u64 != reader.num_rows()) {
            return Err(Error::corrupt_file(path, format!("it has {} rows", reader.num_rows())));
        }
        parts.push(batches(&reader, projection, 0..reader.num_rows(), ROWS_A_BATCH).await?);
    }
    if found != schema.fields.len() {
        return Err(Error::not_supported("the table has columns without data, which another program has added"));
    }
    let arrow = Arc::new(arrow_schema::Schema::from(schema));
    let mut parts = parts.into_iter();
    let Some(first) = parts.next() else { return Ok(stream::empty().boxed()) };
    let all = parts.fold(first, |all, part| {
        let pairs = all.zip(part).map(|(left, right)| Ok((left?, right?)));
        pairs.and_then(|(left, right)| async move { beside(&left, &right) }).boxed()
    });
    // The files need not have the columns in this order.
    Ok(all
        .and_then(move |batch| {
            let arrow = arrow.clone();
            async move {
                let column = |field: &Arc<arrow_schema::Field>| batch.column_by_name(field.name()).cloned();
                let columns: Option<Vec<_>> = arrow.fields().iter().map(column).collect();
                let columns = columns.ok_or_else(|| Error::internal("a file lacks a column that it has"))?;
                Ok(RecordBatch::try_new(arrow.clone(), columns)?)
            }
        })
        .boxed())
}

fn beside(left: &RecordBatch, right: &RecordBatch) -> Result<RecordBatch> {
    let fields = left.schema().fields().iter().chain(right.schema().fields()).cloned().collect::<Vec<_>>();
    let columns = left.columns().iter().chain(right.columns()).cloned().collect();
    Ok(RecordBatch::try_new(Arc::new(arrow_schema::Schema::new(fields)), columns)?)
}

/// The columns of a file by the ids of their fields.
fn columns_of(file: &DataFile) -> BTreeMap<u32, u32> {
    let pairs = file.fields.iter().zip(file.column_indices.iter());
    pairs.filter_map(|(field, column)| Some((u32::try_from(*field).ok()?, u32::try_from(*column).ok()?))).collect()
}

pub(crate) async fn open(scheduler: &Arc<ScanScheduler>, path: &Path, size: &CachedFileSize) -> Result<FileReader> {
    let file = scheduler.open_file(path, size).await?;
    let (plugins, options) = (Arc::<DecoderPlugins>::default(), FileReaderOptions::default());
    FileReader::try_open(file, None, plugins, &LanceCache::no_cache(), options).await
}

/// Reads a range of a file's rows.
pub(crate) async fn batches(
    reader: &FileReader,
    projection: ReaderProjection,
    rows: Range<u64>,
    rows_a_batch: u32,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    if rows.is_empty() {
        return Ok(stream::empty().boxed());
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get) as u32;
    let (rows, all) = (ReadBatchParams::Range(rows.start as usize..rows.end as usize), FilterExpression::no_filter());
    Ok(reader.read_stream_projected(rows, rows_a_batch, cores, projection, all).await?.boxed())
}

/// The batches without the rows that are deleted.
fn without(batches: BatchStream, deleted: DeletionVector) -> BatchStream {
    if deleted.is_empty() {
        return batches;
    }
    let mut at = 0_u32;
    batches
        .map(move |batch| {
            let batch = batch?;
            let rows = at..at + batch.num_rows() as u32;
            at = rows.end;
            let kept: BooleanArray = rows.map(|row| Some(!deleted.contains(row))).collect();
            Ok(filter_record_batch(&batch, &kept)?)
        })
        .boxed()
}
