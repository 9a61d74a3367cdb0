//! Reads one data file by itself, whatever the table's manifests say.

use std::ops::Range;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::TryStreamExt;
use lance_file::reader::{self, ReaderProjection};
use lance_file::versions::reader_projection_from_whole_schema;
use lance_io::utils::CachedFileSize;

use crate::commit::Place;
use crate::{Error, Result, read};

/// Reader of one data file.
pub struct FileReader {
    reader: reader::FileReader,
    projection: ReaderProjection,
}

impl FileReader {
    /// Opens a data file, with the columns that it has.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn open(path: &Path) -> BoxFuture<'_, Result<Self>> {
        async move {
            let place = Place::of(&path.to_string_lossy())?;
            if std::fs::metadata(path)?.len() == 0 {
                return Err(Error::corrupt_file(place.base, "it is empty"));
            }
            let reader = read::open(&read::scheduler(&place), &place.base, &CachedFileSize::unknown()).await?;
            let projection = reader_projection_from_whole_schema(reader.schema(), reader.version());
            Ok(Self { reader, projection })
        }
        .boxed()
    }

    /// Number of rows in the file.
    pub fn rows(&self) -> usize {
        usize::try_from(self.reader.num_rows()).unwrap_or(usize::MAX)
    }

    /// Reads these rows, counted from 0.
    ///
    /// # Errors
    ///
    /// The rows cannot be read.
    pub fn read(&self, rows: Range<usize>) -> BoxFuture<'_, Result<RecordBatch>> {
        async move {
            let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            let (projection, rows) = (self.projection.clone(), rows.start as u64..rows.end as u64);
            let schema = arrow_schema::Schema::from(self.projection.schema.as_ref()).into();
            let batches: Vec<_> = read::batches(&self.reader, projection, rows, count).await?.try_collect().await?;
            Ok(concat_batches(&schema, &batches)?)
        }
        .boxed()
    }
}
