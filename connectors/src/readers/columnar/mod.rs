//! Reads Parquet files and Arrow files (IPC, `.arrow` and `.feather`) as JSON Lines, one line for each row, so that they
//! are read as the rows of a `.jsonl` file are.
//!
//! Rows are read in batches and converted a few at a time. Texts stay in the decoded pages until they are written, so a
//! page in which one long text stands for many rows takes no memory for each of them.
//!
//! A column of a type that JSON has no form for costs the column, and a date that is out of range is null (`values`).

mod bounds;
mod values;

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use arrow_json::LineDelimitedWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::reader::ChunkReader;
use turnflow_engine::panics::caught;

use crate::readers::ReadError;

/// Rows that are decoded together.
const BATCH: usize = 1024;
/// Rows that are converted together.
const SLICE: usize = 16;
/// Maximum size of a group of rows of a Parquet file, decoded, in bytes.
const MAX_GROUP_BYTES: i64 = 2 << 30;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Reads a Parquet file as JSON Lines.
///
/// # Errors
///
/// The file is not a Parquet file, or a group of its rows is too large.
pub fn parquet(file: File) -> Result<Lines, ReadError> {
    open_parquet(file, 0)
}

/// Reads the bytes of a Parquet file as JSON Lines.
///
/// # Errors
///
/// As for [`parquet()`].
pub fn parquet_bytes(bytes: Bytes) -> Result<Lines, ReadError> {
    open_parquet(bytes, 0)
}

/// Reads a Parquet file as JSON Lines, from a row on; the first row has the number 0.
///
/// # Errors
///
/// As for [`parquet()`].
pub fn parquet_from(file: File, row: u64) -> Result<Lines, ReadError> {
    open_parquet(file, row)
}

/// Reads an Arrow file as JSON Lines, from a row on; the first row has the number 0.
///
/// # Errors
///
/// As for [`arrow`].
pub fn arrow_from(file: File, row: u64) -> Result<Lines, ReadError> {
    let mut lines = arrow(file)?;
    lines.skip(row)?;
    Ok(lines)
}

/// Reads an Arrow file as JSON Lines.
///
/// # Errors
///
/// The file is not an Arrow file.
pub fn arrow(file: File) -> Result<Lines, ReadError> {
    open_arrow(io::BufReader::new(file))
}

/// Reads the bytes of an Arrow file as JSON Lines.
///
/// # Errors
///
/// As for [`arrow`].
pub fn arrow_bytes(bytes: Bytes) -> Result<Lines, ReadError> {
    open_arrow(Cursor::new(bytes))
}

fn broken(format: &'static str, reason: &dyn std::fmt::Display) -> ReadError {
    ReadError::Broken { format, reason: reason.to_string() }
}

fn open_parquet<T: ChunkReader + 'static>(input: T, row: u64) -> Result<Lines, ReadError> {
    let row = usize::try_from(row).unwrap_or(usize::MAX);
    let failed = |error: parquet::errors::ParquetError| broken("Parquet file", &error);
    caught(move || {
        let options = ArrowReaderOptions::new();
        let found = parquet::arrow::arrow_reader::ArrowReaderMetadata::load(&input, options).map_err(failed)?;
        for group in found.metadata().row_groups() {
            let bytes = group.columns().iter().map(|column| column.uncompressed_size().max(0));
            if bytes.fold(0_i64, i64::saturating_add) > MAX_GROUP_BYTES {
                return Err(ReadError::TooMany { what: "bytes in a group of rows", limit: MAX_GROUP_BYTES as u64 });
            }
        }
        // Texts are read as views of the pages.
        let views = found.schema().fields().iter().map(|field| Arc::new(as_view(field)));
        let schema = Arc::new(Schema::new(views.collect::<Vec<_>>()));
        let options = ArrowReaderOptions::new().with_schema(schema.clone());
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(input, options).map_err(failed)?;
        let batches = builder.with_batch_size(BATCH).with_offset(row).build().map_err(failed)?;
        Ok(Lines::new(schema, Box::new(batches)))
    })?
}

fn as_view(field: &Field) -> Field {
    let kind = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        other => other.clone(),
    };
    Field::new(field.name(), kind, field.is_nullable())
}

fn open_arrow<T: io::Read + io::Seek + Send + 'static>(mut input: T) -> Result<Lines, ReadError> {
    caught(|| bounds::check(&mut input))??;
    let reader = caught(move || FileReader::try_new(input, None))?.map_err(|error| broken("Arrow file", &error))?;
    Ok(Lines::new(reader.schema(), Box::new(reader)))
}

/// JSON Lines of the rows of a table.
pub struct Lines {
    schema: Arc<Schema>,
    batches: Batches,
    /// The columns that JSON can hold, if there are others.
    columns: Option<Vec<usize>>,
    /// Number of values that were left out.
    left_out: u64,
    /// The batch that is being written, and the row after the last one that was written.
    batch: Option<(RecordBatch, usize)>,
    buffer: Vec<u8>,
    at: usize,
}

impl Lines {
    fn new(schema: Arc<Schema>, batches: Batches) -> Self {
        let (columns, others) = values::writable(&schema);
        if !others.is_empty() {
            let columns = others.join(", ");
            tracing::warn!(columns, "columns of a table have types that JSON cannot hold; they are left out");
        }
        let columns = (!others.is_empty()).then_some(columns);
        Self { schema, batches, columns, left_out: 0, batch: None, buffer: Vec::new(), at: 0 }
    }

    /// The columns.
    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Leaves out the next rows.
    fn skip(&mut self, mut rows: u64) -> Result<(), ReadError> {
        while rows > 0 {
            let Some(batch) = caught(|| self.batches.next())? else { break };
            let batch = batch.map_err(|error| broken("Arrow file", &error))?;
            let skipped = usize::try_from(rows).unwrap_or(usize::MAX).min(batch.num_rows());
            rows -= skipped as u64;
            self.batch = Some((batch, skipped));
        }
        Ok(())
    }

    /// Writes the next rows into the buffer; false if there are none.
    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        self.at = 0;
        while self.buffer.is_empty() {
            let (batch, row) = match self.batch.take() {
                Some((batch, row)) if row < batch.num_rows() => (batch, row),
                _ => match caught(|| self.batches.next()).map_err(io::Error::other)? {
                    Some(batch) => (batch.map_err(io::Error::other)?, 0),
                    None => return Ok(false),
                },
            };
            let rows = SLICE.min(batch.num_rows() - row);
            let written = caught(|| {
                let mut writer = LineDelimitedWriter::new(&mut self.buffer);
                let slice = batch.slice(row, rows);
                let slice = self.columns.as_ref().map_or(Ok(slice.clone()), |columns| slice.project(columns))?;
                let (slice, left_out) = values::within_range(&slice)?;
                writer.write(&slice)?;
                writer.finish().map(|()| left_out)
            });
            let left_out = written.map_err(io::Error::other)?.map_err(io::Error::other)?;
            if self.left_out == 0 && left_out > 0 {
                tracing::warn!("a table has dates or times that are out of range; they are left out");
            }
            self.left_out += left_out;
            self.batch = Some((batch, row + rows));
        }
        Ok(true)
    }
}

impl Read for Lines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len() && !self.fill()? {
            return Ok(0);
        }
        let read = (&self.buffer[self.at..]).read(into)?;
        self.at += read;
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use arrow_array::{ArrayRef, Float64Array, Int64Array, ListArray, StringArray, TimestampMillisecondArray};
    use arrow_ipc::writer::FileWriter;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;

    use super::*;

    pub(crate) fn table() -> RecordBatch {
        let groups = ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            None,
            Some(vec![]),
        ]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("_id", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("text", Arc::new(StringArray::from(vec![Some("one \"ü\"\n"), Some("two"), None]))),
            ("score", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 2.0]))),
            ("date", Arc::new(TimestampMillisecondArray::from(vec![1_795_643_809_000, 0, 1]).with_timezone("UTC"))),
            ("groups", Arc::new(groups)),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    pub(crate) fn as_parquet(table: &RecordBatch, compression: Compression) -> Vec<u8> {
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, table.schema(), Some(properties)).unwrap();
        writer.write(table).unwrap();
        writer.close().unwrap();
        bytes
    }

    /// A file with a row for each text, and one that is not a document.
    pub(crate) fn of_texts(texts: &[String]) -> Vec<u8> {
        let ids = (0..texts.len()).map(|number| Some(number.to_string())).chain([None]);
        let texts = texts.iter().map(|text| Some(text.as_str())).chain([Some("no id")]);
        let columns: Vec<(&str, ArrayRef)> =
            vec![("_id", Arc::new(StringArray::from_iter(ids))), ("text", Arc::new(StringArray::from_iter(texts)))];
        let columns = columns.into_iter().map(|(name, column)| (name, column, true));
        as_parquet(&RecordBatch::try_from_iter_with_nullable(columns).unwrap(), Compression::SNAPPY)
    }

    pub(crate) fn as_arrow(table: &RecordBatch) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = FileWriter::try_new(&mut bytes, &table.schema()).unwrap();
        writer.write(table).unwrap();
        writer.finish().unwrap();
        drop(writer);
        bytes
    }

    fn text(mut lines: Lines) -> Vec<serde_json::Value> {
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_row_is_a_line() {
        let zstd = Compression::ZSTD(ZstdLevel::default());
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, zstd] {
            let rows = text(parquet_bytes(as_parquet(&table(), compression).into()).unwrap());
            assert_eq!(rows.len(), 3);
            assert_eq!(rows[0]["text"], "one \"ü\"\n");
            assert_eq!((&rows[0]["_id"], &rows[0]["date"]), (&1.into(), &"2026-11-25T21:56:49Z".into()));
            assert_eq!(rows[0]["groups"], serde_json::json!([1, 2]));
            assert!(rows[1].get("groups").is_none() && rows[2].get("text").is_none());
        }
        assert_eq!(text(arrow_bytes(as_arrow(&table()).into()).unwrap())[1]["text"], "two");
    }

    /// Why it exists: one column of a rare type cost the whole file, and a date out of range was the text of an error.
    #[test]
    fn what_json_cannot_hold_costs_the_column_or_the_value() {
        use arrow_array::builder::{Int64Builder, MapBuilder, StringBuilder};
        use arrow_array::{Date32Array, TimestampSecondArray, UnionArray};
        let mut map = MapBuilder::new(None, Int64Builder::new(), StringBuilder::new());
        for key in 0..2 {
            map.keys().append_value(key);
            map.values().append_value("v");
            map.append(true).unwrap();
        }
        let fields = [(0, Arc::new(Field::new("i", DataType::Int64, true)))].into_iter().collect();
        let union = UnionArray::try_new(fields, vec![0, 0].into(), None, vec![Arc::new(Int64Array::from(vec![1, 2]))]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("_id", Arc::new(StringArray::from(vec!["a", "b"]))),
            ("map", Arc::new(map.finish())),
            ("union", Arc::new(union.unwrap())),
            ("day", Arc::new(Date32Array::from(vec![i32::MAX, 0]))),
            ("time", Arc::new(TimestampSecondArray::from(vec![Some(1 << 62), None]))),
            ("zoned", Arc::new(TimestampSecondArray::from(vec![1 << 62, 0]).with_timezone("UTC"))),
        ];
        let rows = text(arrow_bytes(as_arrow(&RecordBatch::try_from_iter(columns).unwrap()).into()).unwrap());
        assert_eq!(rows[0], serde_json::json!({"_id": "a"}));
        assert_eq!(rows[1], serde_json::json!({"_id": "b", "day": "1970-01-01", "zoned": "1970-01-01T00:00:00Z"}));
    }

    #[test]
    fn one_long_text_in_many_rows_takes_its_memory_once() {
        let long = "x".repeat(1 << 18);
        let column: ArrayRef = Arc::new(StringArray::from(vec![long.as_str(); 1000]));
        let table = RecordBatch::try_from_iter([("text", column)]).unwrap();
        let bytes = as_parquet(&table, Compression::UNCOMPRESSED);
        assert!(bytes.len() < 8 << 20, "{} bytes", bytes.len());
        let mut lines = parquet_bytes(bytes.into()).unwrap();
        let read = io::copy(&mut lines, &mut io::sink()).unwrap();
        assert!(read > 250 << 20 && lines.buffer.capacity() < 16 << 20, "{}", lines.buffer.capacity());
    }

    #[test]
    fn damaged_files_are_errors() {
        let sound = as_parquet(&table(), Compression::SNAPPY);
        for at in 0..sound.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = sound.clone();
                bytes[at] ^= flip;
                if let Ok(mut lines) = parquet_bytes(bytes.into()) {
                    let _ = io::copy(&mut lines.by_ref().take(1 << 20), &mut io::sink());
                }
            }
            let _ = parquet_bytes(sound[..at].to_vec().into()).map(|mut lines| io::copy(&mut lines, &mut io::sink()));
        }
        let sound = as_arrow(&table());
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0xff;
            if let Ok(mut lines) = arrow_bytes(bytes.into()) {
                let _ = io::copy(&mut lines.by_ref().take(1 << 20), &mut io::sink());
            }
        }
        assert!(
            parquet_bytes(Bytes::from_static(b"PAR1")).err().unwrap().to_string().starts_with("broken Parquet file")
        );
        assert!(arrow_bytes(Bytes::from_static(b"x")).err().unwrap().to_string().starts_with("broken Arrow file"));
    }
}
