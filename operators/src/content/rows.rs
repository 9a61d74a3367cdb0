//! Rows of a dataset: a content's hash, its encoding, and a checksum of both.
//!
//! Lance has no checksums, so a flipped bit on the disk would yield a different encoding. Datasets of
//! earlier versions have no checksums; they get them when they are rewritten.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchIterator, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use turnflow_engine::component::{Encoding, digest};
use turnflow_engine::document::ContentHash;
use turnflow_engine::mapped::MappedBytes;
use turnflow_tables::Batches;

use super::faults::Fault;

/// Number of rows in a record batch.
const ROWS_A_BATCH: usize = 4096;

/// The column of encodings.
pub(super) const ENCODINGS: &str = "vector";

/// An encoding that can be stored as a column of a dataset.
pub(crate) trait Stored: Clone + Send + Sync + 'static {
    /// The column's type; `dimension` is the model's.
    fn data_type(dimension: usize) -> DataType;
    /// Builds a column of these values.
    fn column(values: &[(ContentHash, Self)], dimension: usize) -> ArrayRef;
    /// One row of a column; `None` if it is not valid.
    fn row(column: &ArrayRef, row: usize, dimension: usize) -> Option<Self>;
    /// Number of bytes of each encoding, if all have the same, and their bytes in a data file can be used as they are.
    fn width(_dimension: usize) -> Option<usize> {
        None
    }
    /// The encoding that these bytes of a data file are.
    fn mapped(_: MappedBytes) -> Option<Self> {
        None
    }
    /// Appends all of the encoding's data, as bytes.
    fn write(&self, to: &mut Vec<u8>);
    /// All of the encoding's data, as bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }
    /// The encoding with these bytes; `None` if they are not valid.
    fn of_bytes(bytes: &[u8], dimension: usize) -> Option<Self>;
    /// The encoding as numbers that can be compared.
    fn numbers(&self) -> Encoding;
}

/// How Lance stores values one after another, as they are.
const UNCOMPRESSED: [(&str, &str); 3] = [
    ("lance-encoding:structural-encoding", "fullzip"),
    ("lance-encoding:compression", "none"),
    ("lance-encoding:bss", "off"),
];

/// The columns of a dataset, with the checksum column or, as in earlier versions, without.
pub(super) fn schema<V: Stored>(dimension: usize, checked: bool) -> Arc<Schema> {
    let mut fields = vec![
        Field::new("hash", DataType::FixedSizeBinary(32), false),
        // Values of fixed width lie one after another, so that they can be used where they are.
        Field::new(ENCODINGS, V::data_type(dimension), false).with_metadata(match V::width(dimension) {
            Some(_) => UNCOMPRESSED.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            None => HashMap::new(),
        }),
    ];
    if checked {
        fields.push(Field::new("check", DataType::UInt64, false));
    }
    Arc::new(Schema::new(fields))
}

fn check<V: Stored>(hash: &ContentHash, value: &V, bytes: &mut Vec<u8>) -> u64 {
    bytes.clear();
    value.write(bytes);
    bytes.extend_from_slice(&hash.0);
    digest(bytes)
}

/// Builds record batches of these values while they are written.
pub(super) fn batches<V: Stored>(values: Arc<[(ContentHash, V)]>, dimension: usize, checked: bool) -> Batches {
    let schema = schema::<V>(dimension, checked);
    let (columns, rows) = (schema.clone(), values.len());
    let batch = move |from: usize| {
        let part = &values[from..(from + ROWS_A_BATCH).min(values.len())];
        let mut hashes = FixedSizeBinaryBuilder::new(32);
        for (hash, _) in part {
            hashes.append_value(hash.0)?;
        }
        let mut made: Vec<ArrayRef> = vec![Arc::new(hashes.finish()), V::column(part, dimension)];
        if checked {
            let mut bytes = Vec::new();
            let checks = part.iter().map(|(hash, value)| check(hash, value, &mut bytes));
            made.push(Arc::new(UInt64Array::from_iter_values(checks)));
        }
        RecordBatch::try_new(columns.clone(), made)
    };
    // Without rows there is one empty batch, which carries the columns.
    let starts = (0..rows.max(1)).step_by(ROWS_A_BATCH);
    Box::new(RecordBatchIterator::new(starts.map(batch), schema))
}

/// Passes each valid row of a batch to `row`. Returns the number of invalid rows.
pub(super) fn read<V: Stored>(
    batch: &RecordBatch,
    dimension: usize,
    row: &mut impl FnMut(ContentHash, V),
) -> Result<usize, Fault> {
    let values = column(batch, ENCODINGS)?;
    if *values.data_type() != V::data_type(dimension) {
        return Err(Fault::Unfit("`vector` has another type".to_owned()));
    }
    // A null was not written by this code, so the row is invalid.
    each(batch, |at| values.is_valid(at).then(|| V::row(values, at, dimension))?, row)
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, Fault> {
    batch.column_by_name(name).ok_or_else(|| Fault::Unfit(format!("the column `{name}` is missing")))
}

/// The same, with encodings that lie elsewhere than in the batch, by their rows in it.
pub(super) fn each<V: Stored>(
    batch: &RecordBatch,
    encoding: impl Fn(usize) -> Option<V>,
    row: &mut impl FnMut(ContentHash, V),
) -> Result<usize, Fault> {
    let unfit = |reason: String| Fault::Unfit(reason);
    let hashes = column(batch, "hash")?;
    let hashes = hashes.as_fixed_size_binary_opt().ok_or_else(|| unfit("`hash` has another type".to_owned()))?;
    let checks = match batch.column_by_name("check") {
        Some(checks) => {
            let checks = checks.as_primitive_opt::<UInt64Type>();
            Some(checks.ok_or_else(|| unfit("`check` has another type".to_owned()))?)
        }
        None => None,
    };
    let (mut wrong, mut bytes) = (0, Vec::new());
    for at in 0..batch.num_rows() {
        let hash = <[u8; 32]>::try_from(hashes.value(at)).map(ContentHash).ok();
        let good = hash.zip(encoding(at)).filter(|(hash, value)| {
            hashes.is_valid(at)
                && checks.is_none_or(|checks| checks.is_valid(at) && checks.value(at) == check(hash, value, &mut bytes))
        });
        match good {
            Some((hash, value)) => row(hash, value),
            None => wrong += 1,
        }
    }
    Ok(wrong)
}
