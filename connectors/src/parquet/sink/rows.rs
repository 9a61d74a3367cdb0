//! An answer as a row: the columns of a file, and writing and reading them.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_json::ReaderBuilder;
use arrow_json::reader::Decoder;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use turnflow_engine::record::{AnswerRecord, HitRecord, Provenance, Status};

use crate::lines::{Line, LineReader};
use crate::readers::columnar;

/// Answers that are converted together.
const TOGETHER: usize = 32;
/// Bytes of a group of rows before they are written.
const GROUP_BYTES: usize = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Row<'a> {
    conversation_id: Cow<'a, str>,
    turn: u32,
    revision: u32,
    key: Cow<'a, str>,
    retracted: bool,
    /// Files of earlier versions have no such column.
    #[serde(default)]
    withdrawn: bool,
    status: Status,
    query: Cow<'a, str>,
    answer: Cow<'a, str>,
    #[serde(default)]
    error: Option<Cow<'a, str>>,
    hits: Vec<HitRow<'a>>,
    #[serde(default)]
    checks: Option<String>,
    stamp: Stamp<'a>,
    latency_ms: Option<f64>,
    #[serde(default)]
    extra: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct HitRow<'a> {
    passage: Cow<'a, str>,
    document: Cow<'a, str>,
    /// JSON has no number for what is none.
    #[serde(default)]
    score: Option<f32>,
    text: Cow<'a, str>,
    #[serde(default)]
    metadata: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Stamp<'a> {
    pipeline: Cow<'a, str>,
    epoch: i64,
    models: String,
    warnings: Vec<Cow<'a, str>>,
}

fn json(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)?)
}

fn unless_empty(fields: &Map<String, Value>) -> io::Result<Option<String>> {
    if fields.is_empty() { Ok(None) } else { json(fields).map(Some) }
}

impl<'a> Row<'a> {
    fn of(answer: &'a AnswerRecord) -> io::Result<Self> {
        let hit = |hit: &'a HitRecord| {
            Ok(HitRow {
                passage: (&*hit.passage).into(),
                document: (&*hit.document).into(),
                score: Some(hit.score),
                text: (&*hit.text).into(),
                metadata: if hit.metadata.is_empty() { None } else { Some(json(&hit.metadata)?) },
            })
        };
        Ok(Self {
            conversation_id: (&*answer.conversation_id).into(),
            turn: answer.turn,
            revision: answer.revision,
            key: (&*answer.key).into(),
            retracted: answer.retracted,
            withdrawn: answer.withdrawn,
            status: answer.status,
            query: (&*answer.query).into(),
            answer: (&*answer.answer).into(),
            error: answer.error.as_deref().map(Into::into),
            hits: answer.hits.iter().map(hit).collect::<io::Result<_>>()?,
            checks: unless_empty(&answer.checks)?,
            stamp: Stamp {
                pipeline: (&*answer.stamp.pipeline).into(),
                epoch: i64::try_from(answer.stamp.epoch).map_err(io::Error::other)?,
                models: json(&answer.stamp.models)?,
                warnings: answer.stamp.warnings.iter().map(|warning| warning.as_str().into()).collect(),
            },
            latency_ms: Some(answer.latency_ms),
            extra: unless_empty(&answer.extra)?,
        })
    }

    fn record(self) -> serde_json::Result<AnswerRecord> {
        let fields = |json: Option<String>| json.map_or(Ok(Map::new()), |json| serde_json::from_str(&json));
        let hit = |hit: HitRow<'_>| {
            Ok(HitRecord {
                passage: hit.passage.into(),
                document: hit.document.into(),
                score: hit.score.unwrap_or(f32::NAN),
                text: hit.text.into(),
                metadata: hit.metadata.map(|json| serde_json::from_str(&json)).transpose()?.unwrap_or_default(),
                corpus: Default::default(),
                found: Default::default(),
            })
        };
        Ok(AnswerRecord {
            conversation_id: self.conversation_id.into(),
            turn: self.turn,
            revision: self.revision,
            key: self.key.into(),
            retracted: self.retracted,
            withdrawn: self.withdrawn,
            status: self.status,
            query: self.query.into(),
            answer: self.answer.into(),
            error: self.error.map(Into::into),
            hits: self.hits.into_iter().map(hit).collect::<serde_json::Result<_>>()?,
            checks: fields(self.checks)?,
            stamp: Provenance {
                pipeline: self.stamp.pipeline.into(),
                epoch: self.stamp.epoch.unsigned_abs(),
                computed_at: None,
                similar_to: None,
                models: Arc::new(serde_json::from_str(&self.stamp.models)?),
                warnings: self.stamp.warnings.into_iter().map(Into::into).collect(),
            },
            latency_ms: self.latency_ms.unwrap_or(f64::NAN),
            tokens: Default::default(),
            timestamp: None,
            question: None,
            extra: fields(self.extra)?,
        })
    }
}

/// The columns.
fn schema() -> Arc<Schema> {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    let list = |name: &str, item| Field::new(name, DataType::List(Arc::new(item)), false);
    let hit = vec![
        text("passage", false),
        text("document", false),
        Field::new("score", DataType::Float32, true),
        text("text", false),
        text("metadata", true),
    ];
    let stamp = vec![
        text("pipeline", false),
        number("epoch"),
        text("models", false),
        list("warnings", Field::new("element", DataType::Utf8, false)),
    ];
    Arc::new(Schema::new(vec![
        text("conversation_id", false),
        number("turn"),
        number("revision"),
        text("key", false),
        Field::new("retracted", DataType::Boolean, false),
        Field::new("withdrawn", DataType::Boolean, false),
        text("status", false),
        text("query", false),
        text("answer", false),
        text("error", true),
        list("hits", Field::new("element", DataType::Struct(hit.into()), false)),
        text("checks", true),
        Field::new("stamp", DataType::Struct(stamp.into()), false),
        Field::new("latency_ms", DataType::Float64, true),
        text("extra", true),
    ]))
}

/// The answers in a file of JSON Lines, each with its size in bytes. A last line that is no answer was cut off and is left
/// out.
struct Staged {
    lines: LineReader<File>,
    is_read: bool,
}

impl Staged {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { lines: LineReader::new(File::open(path)?, usize::MAX), is_read: false })
    }

    fn next(&mut self) -> io::Result<Option<(AnswerRecord, usize)>> {
        while !self.is_read {
            // The last line may lack its end.
            self.is_read = !self.lines.advance()?;
            if self.is_read && !self.lines.is_inside() {
                break;
            }
            let (Line::Whole(line) | Line::TooLong { start: line, .. }) = self.lines.line();
            match serde_json::from_slice(line) {
                Ok(answer) => return Ok(Some((answer, line.len()))),
                Err(error) if self.is_read => {
                    tracing::warn!(bytes = line.len(), %error, "leaving out an incomplete answer");
                }
                // Its number would be taken by the next answer, and the file is deleted when it is closed.
                Err(error) => return Err(io::Error::other(format!("a line is no answer: {error}"))),
            }
        }
        Ok(None)
    }
}

/// Writes the answers of a file of JSON Lines as a Parquet file, which is on disk when it returns. Returns the number of
/// rows.
///
/// # Errors
///
/// One of the files cannot be read or written.
pub(super) fn write(staged: &Path, into: &Path) -> io::Result<u64> {
    let mut staged = Staged::open(staged)?;
    let file = File::create(into)?;
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(file.try_clone()?, schema(), Some(properties)).map_err(io::Error::other)?;
    let builder = ReaderBuilder::new(schema()).with_batch_size(TOGETHER);
    let mut decoder = builder.build_decoder().map_err(io::Error::other)?;
    let (mut rows, mut waiting, mut bytes) = (0, 0, 0);
    while let Some((answer, size)) = staged.next()? {
        decoder.serialize(&[Row::of(&answer)?]).map_err(io::Error::other)?;
        (rows, waiting, bytes) = (rows + 1, waiting + 1, bytes + size);
        if waiting == TOGETHER || bytes > GROUP_BYTES / 8 {
            put(&mut decoder, &mut writer)?;
            (waiting, bytes) = (0, 0);
        }
    }
    put(&mut decoder, &mut writer)?;
    writer.close().map_err(io::Error::other)?;
    file.sync_all()?;
    Ok(rows)
}

fn put(decoder: &mut Decoder, writer: &mut ArrowWriter<File>) -> io::Result<()> {
    if let Some(batch) = decoder.flush().map_err(io::Error::other)? {
        writer.write(&batch).map_err(io::Error::other)?;
    }
    if writer.in_progress_size() > GROUP_BYTES {
        writer.flush().map_err(io::Error::other)?;
    }
    Ok(())
}

/// The number of rows of a file.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn count(path: &Path) -> io::Result<u64> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?).map_err(io::Error::other)?;
    u64::try_from(builder.metadata().file_metadata().num_rows()).map_err(io::Error::other)
}

/// The delivery keys of the rows after the first `skip` ones.
///
/// # Errors
///
/// The file cannot be read, or is not a file of answers.
pub(super) fn keys(path: &Path, skip: u64) -> io::Result<Vec<String>> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?).map_err(io::Error::other)?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), ["key", "revision", "retracted"]);
    let skip = usize::try_from(skip).map_err(io::Error::other)?;
    let batches = builder.with_projection(mask).with_offset(skip).build().map_err(io::Error::other)?;
    let mut keys = Vec::new();
    for batch in batches {
        let batch = batch.map_err(io::Error::other)?;
        let column = |name| batch.column_by_name(name);
        let key = column("key").and_then(|column| column.as_string_opt::<i32>());
        let revision = column("revision").and_then(|column| column.as_primitive_opt::<Int64Type>());
        let retracted = column("retracted").and_then(|column| column.as_boolean_opt());
        let (Some(key), Some(revision), Some(retracted)) = (key, revision, retracted) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no columns of answers"));
        };
        for row in 0..batch.num_rows() {
            let revision = revision.value(row).unsigned_abs();
            keys.push(AnswerRecord::delivery_key(key.value(row), revision, retracted.value(row)));
        }
    }
    Ok(keys)
}

/// The answer in a row; the first row has the number 0.
///
/// # Errors
///
/// The file cannot be read, or the row is not an answer.
pub(super) fn read(path: &Path, row: u64) -> io::Result<AnswerRecord> {
    let lines = columnar::parquet_from(File::open(path)?, row).map_err(io::Error::other)?;
    let mut lines = LineReader::new(lines, usize::MAX);
    lines.advance()?;
    let (Line::Whole(line) | Line::TooLong { start: line, .. }) = lines.line();
    let row: Row<'_> = serde_json::from_slice(line)?;
    Ok(row.record()?)
}
