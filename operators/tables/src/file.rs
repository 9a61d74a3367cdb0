//! Reads one data file by itself, whatever the table's manifests say.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::future::{BoxFuture, FutureExt};
use lance::dataset::fragment::{FileFragment, FragReadConfig, FragmentReader};

use crate::{Result, Table};

/// Reader of one data file.
pub struct FileReader {
    reader: FragmentReader,
    rows: usize,
}

impl FileReader {
    /// Opens a file in a table's `data` directory. The file has the table's columns, and the table need not know it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has other columns.
    pub fn open<'a>(table: &'a Table, name: &'a str) -> BoxFuture<'a, Result<Self>> {
        async move {
            let fragment = FileFragment::create_from_file(name, &table.0, 0, None).await?;
            let rows = fragment.physical_rows.unwrap_or(0);
            let fragment = FileFragment::new(Arc::new(table.0.clone()), fragment);
            let reader = fragment.open(table.0.schema(), FragReadConfig::default()).await?;
            Ok(Self { reader, rows })
        }
        .boxed()
    }

    /// Number of rows in the file.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Reads these rows, counted from 0.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub fn read(&self, rows: Range<usize>) -> BoxFuture<'_, Result<RecordBatch>> {
        async move { self.reader.read_range_as_batch(rows).await }.boxed()
    }
}
