//! What OTLP's messages have on the wire, and the JSON of it.
//!
//! Texts are bytes here, so that one that is not UTF-8 costs itself and not the whole request.

use std::cell::Cell;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeStruct, Serializer};

/// A request of spans (`ExportTraceServiceRequest`) or of log records (`ExportLogsServiceRequest`), which look alike.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Request<Item: prost::Message + Default + std::fmt::Debug> {
    #[prost(message, repeated, tag = "1")]
    pub resources: Vec<OfResource<Item>>,
}

/// What a resource has sent.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OfResource<Item: prost::Message + Default + std::fmt::Debug> {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scopes: Vec<OfScope<Item>>,
}

/// What an instrumentation of it has sent.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OfScope<Item: prost::Message + Default + std::fmt::Debug> {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<Item>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct Scope {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    pub name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text", skip_serializing_if = "Bytes::is_empty")]
    pub version: Bytes,
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "hex", skip_serializing_if = "Bytes::is_empty")]
    pub trace_id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "hex", skip_serializing_if = "Bytes::is_empty")]
    pub span_id: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(serialize_with = "hex", skip_serializing_if = "Bytes::is_empty")]
    pub parent_span_id: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    #[serde(serialize_with = "text")]
    pub name: Bytes,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(serialize_with = "digits")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    #[serde(serialize_with = "digits")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SpanEvent>,
    #[prost(message, optional, tag = "15")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SpanStatus>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpanEvent {
    #[prost(fixed64, tag = "1")]
    #[serde(serialize_with = "digits")]
    pub time_unix_nano: u64,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text")]
    pub name: Bytes,
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct SpanStatus {
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text", skip_serializing_if = "Bytes::is_empty")]
    pub message: Bytes,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    #[serde(serialize_with = "digits")]
    pub time_unix_nano: u64,
    #[prost(fixed64, tag = "11")]
    #[serde(serialize_with = "digits")]
    pub observed_time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub severity_number: i32,
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub attributes: Vec<KeyValue>,
    #[prost(bytes = "bytes", tag = "9")]
    #[serde(serialize_with = "hex", skip_serializing_if = "Bytes::is_empty")]
    pub trace_id: Bytes,
    #[prost(bytes = "bytes", tag = "10")]
    #[serde(serialize_with = "hex", skip_serializing_if = "Bytes::is_empty")]
    pub span_id: Bytes,
    #[prost(bytes = "bytes", tag = "12")]
    #[serde(serialize_with = "text", skip_serializing_if = "Bytes::is_empty")]
    pub event_name: Bytes,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    pub key: Bytes,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(bytes = "bytes", tag = "1")]
    Text(Bytes),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    /// An [`Array`] that is not decoded yet: what is nested too deeply costs itself.
    #[prost(bytes = "bytes", tag = "5")]
    Array(Bytes),
    /// [`Fields`] that are not decoded yet.
    #[prost(bytes = "bytes", tag = "6")]
    Fields(Bytes),
    #[prost(bytes = "bytes", tag = "7")]
    Bytes(Bytes),
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct Array {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(super) struct Fields {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<KeyValue>,
}

/// Maximum depth of lists and fields in each other; what is deeper is null.
const DEEPEST: u32 = 32;

thread_local! {
    /// The depth of the value that is written.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Decodes what a value has in it, and writes it.
fn nested<T: prost::Message + Default + Serialize, S: Serializer>(
    bytes: &Bytes,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let depth = DEPTH.get();
    let decoded = (depth < DEEPEST).then(|| T::decode(bytes.clone()).ok()).flatten();
    DEPTH.set(depth + 1);
    let written = decoded.serialize(serializer);
    DEPTH.set(depth);
    written
}

/// The values of a list that are not decoded yet.
struct Undecoded<'a, T>(&'a Bytes, PhantomData<T>);

impl<T: prost::Message + Default + Serialize> Serialize for Undecoded<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        nested::<T, S>(self.0, serializer)
    }
}

impl Serialize for AnyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        match &self.value {
            None => {}
            Some(Value::Text(text)) => fields.serialize_entry("stringValue", &String::from_utf8_lossy(text))?,
            Some(Value::Bool(value)) => fields.serialize_entry("boolValue", value)?,
            Some(Value::Int(number)) => fields.serialize_entry("intValue", &number.to_string())?,
            Some(Value::Double(number)) => fields.serialize_entry("doubleValue", number)?,
            Some(Value::Array(values)) => {
                fields.serialize_entry("arrayValue", &Undecoded::<Array>(values, PhantomData))?;
            }
            Some(Value::Fields(values)) => {
                fields.serialize_entry("kvlistValue", &Undecoded::<Fields>(values, PhantomData))?;
            }
            Some(Value::Bytes(bytes)) => {
                use base64::Engine as _;
                let written = base64::engine::general_purpose::STANDARD.encode(bytes);
                fields.serialize_entry("bytesValue", &written)?;
            }
        }
        fields.end()
    }
}

fn text<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

fn digits<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

fn hex<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    use std::fmt::Write as _;
    let mut written = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(written, "{byte:02x}");
    }
    serializer.serialize_str(&written)
}

/// The reply to a request (`ExportTraceServiceResponse`, `ExportLogsServiceResponse`).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub partial: Option<Partial>,
}

/// What was not taken.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Partial {
    #[prost(int64, tag = "1")]
    pub rejected: i64,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Why a request was not taken (`google.rpc.Status`).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Detail>,
}

/// A detail of it (`google.protobuf.Any`).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Detail {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// When to send a request again (`google.rpc.RetryInfo`).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub delay: Option<Delay>,
}

/// A time (`google.protobuf.Duration`).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Delay {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Status", 2)?;
        fields.serialize_field("code", &self.code)?;
        fields.serialize_field("message", &self.message)?;
        fields.end()
    }
}
