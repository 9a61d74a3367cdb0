//! Which columns and values JSON can hold.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::temporal_conversions::as_datetime;
use arrow_array::types::{
    ArrowTemporalType, Date32Type, Date64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, RecordBatch, new_null_array};
use arrow_json::LineDelimitedWriter;
use arrow_schema::{ArrowError, DataType, Schema, TimeUnit};
use turnflow_engine::panics::caught;

/// The columns that can be written, and the names of the others.
pub(super) fn writable(schema: &Schema) -> (Vec<usize>, Vec<String>) {
    let (mut columns, mut others) = (Vec::new(), Vec::new());
    for (number, field) in schema.fields().iter().enumerate() {
        // The writer looks at the type first.
        let written = caught(|| {
            let nothing =
                RecordBatch::try_from_iter_with_nullable([("x", new_null_array(field.data_type(), 1), true)])?;
            LineDelimitedWriter::new(std::io::sink()).write(&nothing)
        });
        match written {
            Ok(Ok(())) => columns.push(number),
            _ => others.push(format!("`{}` ({})", field.name(), field.data_type())),
        }
    }
    (columns, others)
}

/// The same rows without dates and times that are out of range, and the number of these.
pub(super) fn within_range(batch: &RecordBatch) -> Result<(RecordBatch, u64), ArrowError> {
    let mut left_out = 0;
    let mut columns = Vec::new();
    for column in batch.columns() {
        let now = match column.data_type() {
            DataType::Date32 => dates::<Date32Type>(column),
            DataType::Date64 => dates::<Date64Type>(column),
            DataType::Timestamp(TimeUnit::Second, _) => dates::<TimestampSecondType>(column),
            DataType::Timestamp(TimeUnit::Millisecond, _) => dates::<TimestampMillisecondType>(column),
            DataType::Timestamp(TimeUnit::Microsecond, _) => dates::<TimestampMicrosecondType>(column),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => dates::<TimestampNanosecondType>(column),
            _ => column.clone(),
        };
        left_out += (now.null_count() - column.null_count()) as u64;
        columns.push(now);
    }
    if left_out == 0 {
        return Ok((batch.clone(), 0));
    }
    let fields = batch.schema_ref().fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    Ok((RecordBatch::try_new(Arc::new(schema), columns)?, left_out))
}

fn dates<T: ArrowTemporalType>(column: &ArrayRef) -> ArrayRef
where
    i64: From<T::Native>,
{
    let values = column.as_primitive::<T>();
    let is_date = |value: T::Native| as_datetime::<T>(value.into()).is_some();
    if values.iter().flatten().all(is_date) {
        return column.clone();
    }
    let within = values.unary_opt::<_, T>(|value| is_date(value).then_some(value));
    Arc::new(within.with_data_type(values.data_type().clone()))
}
