//! The records of a request: one for each span or log record, in the form of a batch in OTLP/JSON.

use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use serde_json::Value as Json;
use turnflow_engine::odd_json;

use super::wire::{LogRecord, Request, Span};

/// What a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Logs,
}

impl Signal {
    /// The signal that a path of HTTP, or of gRPC, is for.
    pub fn of(path: &str) -> Option<Self> {
        match path.trim_end_matches('/') {
            "/v1/traces" | "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => Some(Self::Traces),
            "/v1/logs" | "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => Some(Self::Logs),
            _ => None,
        }
    }

    /// The names of the lists in JSON: of resources, of scopes, and of what they have.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Traces => ("resourceSpans", "scopeSpans", "spans"),
            Self::Logs => ("resourceLogs", "scopeLogs", "logRecords"),
        }
    }

    /// The name of the number of what was not taken.
    pub fn rejected(self) -> &'static str {
        match self {
            Self::Traces => "rejectedSpans",
            Self::Logs => "rejectedLogRecords",
        }
    }
}

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Protobuf,
    Json,
}

impl Form {
    /// The form that a type names.
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type {
            "application/x-protobuf" | "application/protobuf" => Some(Self::Protobuf),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }
}

/// The records of a body, and the number of what is no span or no log record in it.
///
/// # Errors
///
/// The body has another form.
pub(super) fn records(
    signal: Signal,
    form: Form,
    body: Vec<u8>,
    principal: Option<&str>,
) -> Result<(Vec<Vec<u8>>, u64), String> {
    let mut made = Made { signal, principal, records: Vec::new() };
    match (form, signal) {
        (Form::Protobuf, Signal::Traces) => made.decoded::<Span>(body)?,
        (Form::Protobuf, Signal::Logs) => made.decoded::<LogRecord>(body)?,
        (Form::Json, _) => return made.parsed(&body).map(|wrong| (made.records, wrong)),
    }
    Ok((made.records, 0))
}

struct Made<'a> {
    signal: Signal,
    principal: Option<&'a str>,
    records: Vec<Vec<u8>>,
}

impl Made<'_> {
    fn decoded<Item: Message + Default + std::fmt::Debug + Serialize>(&mut self, body: Vec<u8>) -> Result<(), String> {
        let request = Request::<Item>::decode(Bytes::from(body)).map_err(|error| format!("not protobuf: {error}"))?;
        for of_resource in request.resources {
            let resource = json(&of_resource.resource);
            for of_scope in of_resource.scopes {
                let scope = json(&of_scope.scope);
                of_scope.items.iter().for_each(|item| self.add(&resource, &scope, &json(item)));
            }
        }
        Ok(())
    }

    /// Returns the number of what has another form.
    fn parsed(&mut self, body: &[u8]) -> Result<u64, String> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let text = String::from_utf8_lossy(body);
        let value = serde_json::from_str(&text).or_else(|error| match odd_json::mend(&text) {
            Some((mended, _)) => serde_json::from_str(&mended),
            None => Err(error),
        });
        let mut value: Json = value.map_err(|error| format!("not JSON: {error}"))?;
        if !value.is_object() {
            return Err("not a request of OTLP: it is no object".to_owned());
        }
        camel(&mut value);
        let (resources, scopes, items) = self.signal.names();
        if value.as_object().is_some_and(|fields| !fields.is_empty() && !fields.contains_key(resources)) {
            return Err(format!("not a request of OTLP for this path: it has no `{resources}`"));
        }
        let list = |value: &mut Json, name: &str| match value.get_mut(name).map(Json::take) {
            Some(Json::Array(list)) => list,
            _ => Vec::new(),
        };
        let mut wrong = 0;
        for mut of_resource in list(&mut value, resources) {
            let resource = of_resource.get("resource").unwrap_or(&Json::Null).to_string();
            let mut of_scopes = list(&mut of_resource, scopes);
            // What it was called before 2022.
            of_scopes.extend(list(&mut of_resource, "instrumentationLibrarySpans"));
            for mut of_scope in of_scopes {
                let scope = of_scope.get("scope").unwrap_or(&Json::Null).to_string();
                for item in list(&mut of_scope, items) {
                    match item.is_object() {
                        true => self.add(&resource, &scope, &item.to_string()),
                        false => wrong += 1,
                    }
                }
            }
        }
        Ok(wrong)
    }

    fn add(&mut self, resource: &str, scope: &str, item: &str) {
        let (resources, scopes, items) = self.signal.names();
        let principal = self.principal.map(|principal| format!(",\"principal\":{principal}")).unwrap_or_default();
        let record = format!(
            "{{\"{resources}\":[{{\"resource\":{resource},\"{scopes}\":[{{\"scope\":{scope},\"{items}\":[{item}]}}]}}]{principal}}}"
        );
        self.records.push(record.into_bytes());
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// Some programs write the names of fields as the schema has them: `resource_spans`. Names of attributes are values.
fn camel(value: &mut Json) {
    match value {
        Json::Array(list) => list.iter_mut().for_each(camel),
        Json::Object(fields) => {
            let wrong: Vec<String> = fields.keys().filter(|name| name.contains('_')).cloned().collect();
            for name in wrong {
                let mut parts = name.split('_');
                let mut right = parts.next().unwrap_or_default().to_owned();
                for part in parts {
                    let mut letters = part.chars();
                    right.extend(letters.next().map(|first| first.to_ascii_uppercase()));
                    right.push_str(letters.as_str());
                }
                if let Some(field) = fields.remove(&name) {
                    fields.entry(right).or_insert(field);
                }
            }
            fields.values_mut().for_each(camel);
        }
        _ => {}
    }
}
