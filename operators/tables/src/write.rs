//! Writes data files, and commits them.

use std::num::NonZero;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use lance_core::datatypes::{Schema, SchemaCompareOptions};
use lance_core::{Error, Result};
use lance_file::version::{ConcreteFileVersion, stable_file_version};
use lance_file::versions::create_writer;
use lance_file::writer::{FileWriter, FileWriterOptions};
use lance_table::format::{DataFile, Fragment};
use lance_table::transaction::Operation;

use crate::commit::{self, Place, commit};
use crate::{Batches, Mode, Table};

/// Directory of the data files.
pub(crate) const DATA: &str = "data";

/// Maximum number of rows in a file.
pub(crate) const ROWS_A_FILE: usize = 1 << 20;

pub(crate) async fn whole(place: Place, batches: Batches, mode: Mode, rows: usize) -> Result<Table> {
    let current = match commit::open(place.clone()).await {
        Ok(_) if mode == Mode::Create => return Err(Error::dataset_already_exists(place.base.to_string())),
        Ok(table) => Some(table),
        Err(Error::DatasetNotFound { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut schema = Schema::try_from(batches.schema().as_ref())?;
    schema.set_field_id(None);
    let version = current.as_ref().map_or_else(stable_file_version, version_of);
    let fragments = files(&place, &schema, version, stream_of(batches), rows).await?;
    let new = fragments.clone();
    let (config_upsert_values, initial_bases) = (None, None);
    let operation = Operation::Overwrite { fragments, schema, config_upsert_values, initial_bases };
    let done = commit(&place, current.as_ref(), operation).await;
    or_remove(&place, &new, done).await
}

pub(crate) async fn append(table: &mut Table, batches: Batches) -> Result<()> {
    let schema = Schema::try_from(batches.schema().as_ref())?;
    // Ids of columns are those of the table.
    let options = SchemaCompareOptions { compare_field_ids: false, ..SchemaCompareOptions::default() };
    schema.check_compatible(&table.manifest.schema, &options)?;
    let schema = &table.manifest.schema;
    let fragments = files(&table.place, schema, version_of(table), stream_of(batches), ROWS_A_FILE).await?;
    let new = fragments.clone();
    let done = commit(&table.place, Some(table), Operation::Append { fragments }).await;
    *table = or_remove(&table.place, &new, done).await?;
    Ok(())
}

/// The version of the format of a table's files.
pub(crate) fn version_of(table: &Table) -> ConcreteFileVersion {
    table.manifest.data_storage_format.lance_file_format()
}

fn stream_of(batches: Batches) -> BoxStream<'static, Result<RecordBatch>> {
    stream::iter(batches).map_err(Error::from).boxed()
}

/// Removes the new files of a change that was not committed because of another one.
pub(crate) async fn or_remove<T>(place: &Place, new: &[Fragment], done: Result<T>) -> Result<T> {
    if matches!(done, Err(Error::CommitConflict { .. })) {
        for file in new.iter().flat_map(|fragment| &fragment.files) {
            let _ = place.store.delete(&place.file(DATA, &file.path)).await;
        }
    }
    done
}

/// Writes rows to files of at most this many rows. Nothing refers to them yet.
pub(crate) async fn files(
    place: &Place,
    schema: &Schema,
    version: ConcreteFileVersion,
    mut batches: BoxStream<'_, Result<RecordBatch>>,
    rows_a_file: usize,
) -> Result<Vec<Fragment>> {
    let mut fragments = Vec::new();
    let mut open: Option<NewFile> = None;
    while let Some(batch) = batches.try_next().await? {
        let mut at = 0;
        while at < batch.num_rows() {
            let mut file = match open.take() {
                Some(file) => file,
                None => NewFile::create(place, schema, version).await?,
            };
            let rows = (batch.num_rows() - at).min(rows_a_file.saturating_sub(file.rows).max(1));
            file.writer.write_batch(&batch.slice(at, rows)).await?;
            (at, file.rows) = (at + rows, file.rows + rows);
            match file.rows >= rows_a_file {
                true => fragments.push(file.finish().await?),
                false => open = Some(file),
            }
        }
    }
    if let Some(file) = open {
        fragments.push(file.finish().await?);
    }
    Ok(fragments)
}

/// A data file that is being written.
struct NewFile {
    writer: FileWriter,
    file: DataFile,
    rows: usize,
}

impl NewFile {
    async fn create(place: &Place, schema: &Schema, version: ConcreteFileVersion) -> Result<Self> {
        let name = format!("{}.lance", uuid::Uuid::new_v4().simple());
        let output = place.store.create(&place.file(DATA, &name)).await?;
        let writer = create_writer(version, output, schema.clone(), FileWriterOptions::default())?;
        Ok(Self { writer, file: DataFile::new_unstarted(name, version), rows: 0 })
    }

    async fn finish(mut self) -> Result<Fragment> {
        let columns = self.writer.field_id_to_column_indices().to_vec();
        let summary = self.writer.finish().await?;
        self.file.fields = columns.iter().map(|(field, _)| *field as i32).collect::<Arc<[i32]>>();
        self.file.column_indices = columns.iter().map(|(_, column)| *column as i32).collect::<Arc<[i32]>>();
        self.file.file_size_bytes = NonZero::new(summary.size_bytes).into();
        let rows = usize::try_from(summary.num_rows).unwrap_or(usize::MAX);
        Ok(Fragment { files: vec![self.file], physical_rows: Some(rows), ..Fragment::new(0) })
    }
}
