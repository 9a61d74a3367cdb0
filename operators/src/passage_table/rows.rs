//! The rows of a table of passages, as they are written.

use std::io;
use std::sync::Arc;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use turnflow_engine::document::{Chunk, Readers};
use turnflow_tables::Batches;

/// The columns. A removed passage has no values but its id and its hash.
pub(super) const COLUMNS: [&str; 7] = ["id", "document", "title", "text", "metadata", "hash", "removed"];

/// Maximum number of rows and of bytes in a record batch; a single longer passage is allowed.
const BATCH: (usize, u64) = (4096, 8 << 20);

/// How Lance stores values one after another, as they are, without a dictionary of them.
const AS_THEY_ARE: [(&str, &str); 3] = [
    ("lance-encoding:structural-encoding", "fullzip"),
    ("lance-encoding:compression", "none"),
    ("lance-encoding:dict-divisor", "4294967296"),
];

fn schema() -> Arc<Schema> {
    let of = |name: &&str| {
        let data_type = match *name {
            "hash" => DataType::FixedSizeBinary(32),
            "removed" => DataType::Boolean,
            _ => DataType::Utf8,
        };
        let how = AS_THEY_ARE.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Field::new(*name, data_type, false).with_metadata(how.into())
    };
    Arc::new(Schema::new(COLUMNS.iter().map(of).collect::<Vec<_>>()))
}

/// Number of passages whose metadata are measured.
const MEASURED: usize = 1000;

/// Bytes of these passages in the table, about.
pub(super) fn bytes_of_all(all: &[Arc<Chunk>]) -> u64 {
    let step = all.len() / MEASURED + 1;
    let fields = |chunk: &Arc<Chunk>| serde_json::to_string(&chunk.metadata).map_or(0, |json| json.len() as u64);
    all.iter().map(|chunk| bytes_of(chunk)).sum::<u64>()
        + step as u64 * all.iter().step_by(step).map(fields).sum::<u64>()
}

/// The same for one passage, without its metadata.
fn bytes_of(chunk: &Chunk) -> u64 {
    (chunk.id.len() + chunk.document.len() + chunk.title.len() + chunk.text.len() + 64) as u64
}

/// Builds record batches of these passages while they are written.
///
/// # Errors
///
/// A passage is not for everybody: the table is not for those.
pub(super) fn batches(removed: Vec<Arc<Chunk>>, added: Vec<Arc<Chunk>>) -> io::Result<Batches> {
    if added.iter().any(|chunk| chunk.readers != Readers::All) {
        return Err(io::Error::other("a passage is not for everybody"));
    }
    // A passage that is added needs no row that removes the one before it.
    let again: std::collections::HashSet<&str> = added.iter().map(|chunk| &*chunk.id).collect();
    let mut rows: Vec<(Arc<Chunk>, bool)> =
        removed.into_iter().filter(|chunk| !again.contains(&*chunk.id)).map(|chunk| (chunk, true)).collect();
    rows.extend(added.iter().map(|chunk| (chunk.clone(), false)));
    let mut ends = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for (at, (chunk, _)) in rows.iter().enumerate() {
        if count == BATCH.0 || count > 0 && bytes + bytes_of(chunk) > BATCH.1 {
            ends.push(at);
            (count, bytes) = (0, 0);
        }
        (count, bytes) = (count + 1, bytes + bytes_of(chunk));
    }
    ends.push(rows.len());
    let mut from = 0;
    // Without rows there is one empty batch, which carries the columns.
    let all = ends.into_iter().map(move |end| batch(&rows[std::mem::replace(&mut from, end)..end]));
    Ok(Box::new(RecordBatchIterator::new(all, schema())))
}

fn batch(rows: &[(Arc<Chunk>, bool)]) -> Result<RecordBatch, ArrowError> {
    let texts = |of: &dyn Fn(&Chunk) -> &str| -> ArrayRef {
        let values = rows.iter().map(|(chunk, is_removed)| if *is_removed { "" } else { of(chunk) });
        Arc::new(StringArray::from_iter_values(values))
    };
    let fields = rows.iter().map(|(chunk, is_removed)| match *is_removed || chunk.metadata.is_empty() {
        true => Ok("{}".to_owned()),
        false => serde_json::to_string(&chunk.metadata).map_err(|error| ArrowError::JsonError(error.to_string())),
    });
    let fields: Vec<String> = fields.collect::<Result<_, _>>()?;
    let mut hashes = FixedSizeBinaryBuilder::new(32);
    rows.iter().try_for_each(|(chunk, _)| hashes.append_value(chunk.hash.0))?;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(chunk, _)| &*chunk.id))),
        texts(&|chunk| &chunk.document),
        texts(&|chunk| &chunk.title),
        texts(&|chunk| &chunk.text),
        Arc::new(StringArray::from(fields)),
        Arc::new(hashes.finish()),
        Arc::new(rows.iter().map(|(_, is_removed)| Some(*is_removed)).collect::<BooleanArray>()),
    ];
    RecordBatch::try_new(schema(), columns)
}
