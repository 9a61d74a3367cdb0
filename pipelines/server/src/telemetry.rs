//! OpenTelemetry: a span for each turn and for each call of a node, and durations as metrics, sent by
//! OTLP over HTTP. The names follow the semantic conventions for generative AI, in development
//! (schema `gen-ai/1.42.0`). Texts of users and documents are omitted unless enabled.

mod tokens;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::metrics::{Histogram, MeterProvider as _};
use opentelemetry::trace::{
    Span as _, SpanKind, Status as SpanStatus, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use parking_lot::Mutex;
use turnflow_engine::activity::TurnWatcher;
use turnflow_engine::inference::tokens::Tokens;
use turnflow_engine::record::{AnswerRecord, Status, Turn, Value};

use self::tokens::TokenUsage;
use crate::outline::{Graph, GraphNode};
use crate::served::Served;

/// The names of attributes and metrics.
mod name {
    pub const OPERATION: &str = "gen_ai.operation.name";
    pub const CONVERSATION: &str = "gen_ai.conversation.id";
    pub const DATA_SOURCE: &str = "gen_ai.data_source.id";
    pub const PROVIDER: &str = "gen_ai.provider.name";
    pub const MODEL: &str = "gen_ai.request.model";
    pub const QUERY: &str = "gen_ai.retrieval.query.text";
    pub const DOCUMENTS: &str = "gen_ai.retrieval.documents";
    pub const ERROR: &str = "error.type";
    pub const OPERATION_DURATION: &str = "gen_ai.client.operation.duration";
    pub const WORKFLOW_DURATION: &str = "gen_ai.workflow.duration";
}

/// The variables of what is exported, as in all OpenTelemetry libraries.
const TRACES: &str = "TRACES";
const METRICS: &str = "METRICS";
/// How long the end of the process waits for the collector.
const LAST: Duration = Duration::from_secs(3);
/// Default of `OTEL_EXPORTER_OTLP_TIMEOUT`, in milliseconds.
const TIMEOUT_MS: u64 = 10_000;
/// The variable that enables texts in spans.
const CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
/// Maximum number of turns whose calls are held: cancelled turns never have an answer.
const HELD: usize = 10_000;

/// Why the export cannot start.
#[derive(Debug, thiserror::Error)]
#[error("cannot export to OpenTelemetry: {0}")]
pub struct TelemetryError(String);

/// The exporters of a process.
pub struct Telemetry {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
    /// The threads of the HTTP client.
    runtime: Option<tokio::runtime::Runtime>,
    with_content: bool,
}

/// Sends with the existing HTTP client, on separate threads.
#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    handle: tokio::runtime::Handle,
    timeout: Duration,
}

impl HttpClient for Client {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let (client, timeout) = (self.client.clone(), self.timeout);
        // The exporters wait on threads that have no reactor.
        let sent = self.handle.spawn(async move {
            let mut request = reqwest::Request::try_from(request)?;
            *request.timeout_mut() = Some(timeout);
            let response = client.execute(request).await?;
            let status = response.status();
            Ok::<_, HttpError>((status, response.bytes().await?))
        });
        Box::pin(async move {
            let (status, body) = sent.await??;
            Ok(Response::builder().status(status).body(body)?)
        })
    }
}

impl Telemetry {
    /// The exporters, if the environment names an endpoint or asks for an export.
    ///
    /// # Errors
    ///
    /// The endpoint or another setting in the environment is wrong.
    pub fn from_env() -> Result<Option<Arc<Self>>, TelemetryError> {
        let variable = |name: &str| std::env::var(name).ok();
        let (with_traces, with_metrics) = (is_exported(TRACES, variable), is_exported(METRICS, variable));
        if !with_traces && !with_metrics {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| TelemetryError(error.to_string());
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("turnflow-otel").enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        // A redirect could lead the spans to another place.
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
        let http = http.map_err(|error| failed(&error))?;
        let client = |signal: &str| Client {
            client: http.clone(),
            handle: runtime.handle().clone(),
            timeout: timeout_of(signal, variable),
        };
        let resource = resource(variable);
        let mut traces = SdkTracerProvider::builder().with_resource(resource.clone());
        if with_traces {
            let spans = SpanExporter::builder().with_http().with_http_client(client(TRACES)).build();
            traces = traces.with_batch_exporter(spans.map_err(|error| failed(&error))?);
        }
        let mut metrics = SdkMeterProvider::builder().with_resource(resource);
        if with_metrics {
            let numbers = MetricExporter::builder().with_http().with_http_client(client(METRICS)).build();
            metrics = metrics.with_periodic_exporter(numbers.map_err(|error| failed(&error))?);
        }
        let with_content = std::env::var(CONTENT).is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        Ok(Some(Arc::new(Self {
            traces: traces.build(),
            metrics: metrics.build(),
            runtime: Some(runtime),
            with_content,
        })))
    }

    /// The watcher of a pipeline's turns.
    pub fn watcher(&self) -> Arc<Watcher> {
        let meter = self.metrics.meter("turnflow");
        let seconds = |name, about| meter.f64_histogram(name).with_unit("s").with_description(about).build();
        Arc::new(Watcher {
            tracer: self.traces.tracer("turnflow"),
            operations: seconds(name::OPERATION_DURATION, "Durations of retrievals and language-model calls"),
            workflows: seconds(name::WORKFLOW_DURATION, "Durations of turns"),
            usage: TokenUsage::new(&meter),
            with_content: self.with_content,
            served: OnceLock::new(),
            calls: Mutex::default(),
        })
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Sends the pending data. A collector that does not answer must not hold up the end of the process, so this is
        // done on other threads, which are not waited for longer.
        let (done, ended) = std::sync::mpsc::channel();
        let (traces, of_traces) = (self.traces.clone(), done.clone());
        std::thread::spawn(move || of_traces.send(traces.shutdown_with_timeout(LAST).err()));
        let metrics = self.metrics.clone();
        std::thread::spawn(move || done.send(metrics.shutdown().err()));
        let until = Instant::now() + LAST;
        for _ in 0..2 {
            match ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(None) => {}
                Ok(Some(problem)) => tracing::warn!(error = %problem, "some telemetry was not sent"),
                Err(_) => {
                    tracing::warn!("some telemetry was not sent: the collector does not answer");
                    break;
                }
            }
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether a signal is exported: its own endpoint or that of all is set, or its exporter is `otlp`; and nothing switches
/// it off.
fn is_exported(signal: &str, variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return false;
    }
    let name = format!("OTEL_{signal}_EXPORTER");
    match set(&name) {
        Some(exporters) => exporters.split(',').map(str::trim).any(|exporter| {
            if !matches!(exporter, "otlp" | "none") {
                tracing::warn!(variable = name, exporter, "this exporter is not available, only `otlp` and `none`");
            }
            exporter == "otlp"
        }),
        None => {
            let own = set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
            own.or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT")).is_some()
        }
    }
}

/// The time limit of a request with a signal.
fn timeout_of(signal: &str, variable: impl Fn(&str) -> Option<String>) -> Duration {
    let read = |name: &str| variable(name)?.trim().parse::<u64>().ok().filter(|ms| *ms > 0);
    let own = read(&format!("OTEL_EXPORTER_OTLP_{signal}_TIMEOUT"));
    Duration::from_millis(own.or_else(|| read("OTEL_EXPORTER_OTLP_TIMEOUT")).unwrap_or(TIMEOUT_MS))
}

/// What is exported about this process: the variables, and defaults for what they do not say.
fn resource(variable: impl Fn(&str) -> Option<String>) -> Resource {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let has = |wanted: &str| {
        attributes.split(',').any(|pair| pair.split_once('=').is_some_and(|(name, _)| name.trim() == wanted))
    };
    let is_named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.trim().is_empty());
    let mut resource = Resource::builder();
    if !is_named && !has("service.name") {
        resource = resource.with_service_name("turnflow");
    }
    if !has("service.version") {
        resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    }
    resource.build()
}

/// A call of a node.
struct Called {
    node: Arc<str>,
    ended: SystemTime,
    took: Duration,
    failure: Option<String>,
    query: Option<Arc<str>>,
    documents: Vec<Arc<str>>,
    tokens: Tokens,
}

/// Creates spans for a pipeline's turns.
pub struct Watcher {
    tracer: SdkTracer,
    operations: Histogram<f64>,
    usage: TokenUsage,
    workflows: Histogram<f64>,
    with_content: bool,
    served: OnceLock<Weak<Served>>,
    /// The calls of unanswered turns, by sequence number.
    calls: Mutex<HashMap<u64, Vec<Called>>>,
}

impl Watcher {
    /// Names the pipeline, once.
    pub fn watch(&self, served: &Arc<Served>) {
        let _ = self.served.set(Arc::downgrade(served));
    }

    /// The attributes of a node's span: the operation and its target.
    fn operation(node: Option<&GraphNode>, graph: &Graph) -> (String, Option<&'static str>, Vec<KeyValue>) {
        let Some(node) = node else { return ("call".to_owned(), None, Vec::new()) };
        let mut attributes =
            vec![KeyValue::new("turnflow.node", node.id.to_string()), KeyValue::new("turnflow.kind", node.kind)];
        let model = node.generator.as_ref().or_else(|| node.models.first());
        if let Some(model) = model {
            let kind = graph.models.iter().find(|of| of.name == *model).map_or("", |of| of.kind);
            attributes.push(KeyValue::new(name::MODEL, model.clone()));
            attributes.push(KeyValue::new(name::PROVIDER, kind.to_ascii_lowercase()));
        }
        let (span, operation) = match (node.output.as_deref(), &node.corpora[..], &node.generator) {
            (Some("Hits"), [corpus, ..], _) => {
                attributes.push(KeyValue::new(name::DATA_SOURCE, node.corpora.join(",")));
                (format!("retrieval {corpus}"), Some("retrieval"))
            }
            (_, _, Some(model)) => (format!("chat {model}"), Some("chat")),
            _ => (format!("{} {}", node.kind, node.id), None),
        };
        attributes.extend(operation.map(|operation| KeyValue::new(name::OPERATION, operation)));
        (span, operation, attributes)
    }
}

impl TurnWatcher for Watcher {
    fn called(&self, turn: &Turn, node: &str, value: &Value, took: Duration) {
        let (query, documents) = match value {
            Value::Hits(hits) if self.with_content => {
                let ids = hits.hits.iter().map(|hit| hit.chunk.id.clone());
                (Some(hits.query.text.clone()), ids.collect())
            }
            _ => (None, Vec::new()),
        };
        let failure = match value {
            Value::Failed(failure) => Some(failure.reason.to_string()),
            _ => None,
        };
        let (node, ended, tokens) = (node.into(), SystemTime::now(), turn.tokens.of(node));
        let called = Called { node, ended, took, failure, query, documents, tokens };
        let mut calls = self.calls.lock();
        if calls.len() >= HELD && !calls.contains_key(&turn.sequence) {
            calls.clear();
        }
        calls.entry(turn.sequence).or_default().push(called);
    }

    fn answered(&self, turn: &Turn, record: &AnswerRecord, took: Duration) {
        let calls = self.calls.lock().remove(&turn.sequence).unwrap_or_default();
        let Some(served) = self.served.get().and_then(Weak::upgrade) else { return };
        let (pipeline, outline) = (served.name().to_string(), served.outline());
        let ended = SystemTime::now();
        let status = match record.status {
            Status::Answered => "answered",
            Status::Idk => "idk",
            Status::Failed => "failed",
        };
        let mut attributes = vec![
            KeyValue::new("turnflow.pipeline", pipeline.clone()),
            KeyValue::new("turnflow.plan", record.stamp.pipeline.to_string()),
            KeyValue::new("turnflow.epoch", i64::try_from(turn.epoch).unwrap_or(i64::MAX)),
            KeyValue::new("turnflow.turn", i64::from(turn.turn)),
            KeyValue::new("turnflow.key", turn.key.to_string()),
            KeyValue::new("turnflow.status", status),
            KeyValue::new(name::CONVERSATION, turn.conversation_id.to_string()),
        ];
        if self.with_content {
            attributes.push(KeyValue::new("turnflow.question", turn.text.to_string()));
            attributes.push(KeyValue::new("turnflow.answer", record.answer.to_string()));
        }
        let builder = self.tracer.span_builder(format!("turn {pipeline}")).with_kind(SpanKind::Server);
        let builder = builder.with_start_time(ended.checked_sub(took).unwrap_or(ended)).with_attributes(attributes);
        let mut root = builder.start(&self.tracer);
        if let Some(error) = &record.error {
            root.set_attribute(KeyValue::new(name::ERROR, "turn_failed"));
            root.set_status(SpanStatus::error(error.clone()));
        }
        let context = Context::new().with_span(root);
        for call in calls {
            let node = outline.graph.nodes.iter().find(|node| node.id == call.node);
            let (span, operation, mut attributes) = Self::operation(node, &outline.graph);
            let of_metric: Vec<KeyValue> =
                attributes.iter().filter(|of| of.key.as_str().starts_with("gen_ai.")).cloned().collect();
            if let Some(query) = call.query.filter(|_| operation == Some("retrieval")) {
                attributes.push(KeyValue::new(name::QUERY, query.to_string()));
                attributes.push(KeyValue::new(name::DOCUMENTS, call.documents.join(" ")));
            }
            self.usage.add(call.tokens, &of_metric, &mut attributes);
            if operation.is_some() {
                self.operations.record(call.took.as_secs_f64(), &of_metric);
            }
            let begun = call.ended.checked_sub(call.took).unwrap_or(call.ended);
            let builder = self.tracer.span_builder(span).with_kind(SpanKind::Internal);
            let builder = builder.with_start_time(begun).with_attributes(attributes);
            let mut span = builder.start_with_context(&self.tracer, &context);
            if let Some(failure) = call.failure {
                span.set_attribute(KeyValue::new(name::ERROR, "call_failed"));
                span.set_status(SpanStatus::error(failure));
            }
            span.end_with_timestamp(call.ended);
        }
        context.span().end_with_timestamp(ended);
        let labels = [KeyValue::new("turnflow.pipeline", pipeline), KeyValue::new("turnflow.status", status)];
        self.workflows.record(took.as_secs_f64(), &labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_say_what_is_exported() {
        for (variables, expected) in [
            (&[][..], (false, false)),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], (false, false)),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")], (true, true)),
            (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/t")], (true, false)),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_SDK_DISABLED", "TRUE")], (false, false)),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_SDK_DISABLED", "1")], (true, true)),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_TRACES_EXPORTER", "none")], (false, true)),
            (&[("OTEL_TRACES_EXPORTER", "console, otlp"), ("OTEL_METRICS_EXPORTER", "prometheus")], (true, false)),
        ] {
            let variable = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, is)| (*is).to_owned());
            assert_eq!((is_exported(TRACES, variable), is_exported(METRICS, variable)), expected, "{variables:?}");
        }
        let timeout = |own: &str, all: &str| {
            timeout_of(TRACES, |name: &str| match name {
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT" => Some(own.to_owned()),
                "OTEL_EXPORTER_OTLP_TIMEOUT" => Some(all.to_owned()),
                _ => None,
            })
        };
        assert_eq!([timeout("5", "7"), timeout("x", "7"), timeout("", "")].map(|of| of.as_millis()), [5, 7, 10_000]);
    }
}
