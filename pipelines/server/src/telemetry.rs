//! OpenTelemetry: a span for each turn and for each call of a node, and durations as metrics, sent by
//! OTLP over HTTP. The names follow the semantic conventions for generative AI, in development
//! (schema `gen-ai/1.42.0`). Texts of users and documents are omitted unless enabled.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

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
use turnflow_engine::record::{AnswerRecord, Status, Turn, Value};

use crate::app::Served;
use crate::outline::{Graph, GraphNode};

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

/// The variables that enable it, as in all OpenTelemetry libraries.
const ENDPOINTS: [&str; 3] =
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"];
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
    runtime: Option<tokio::runtime::Runtime>,
    with_content: bool,
}

/// Sends with the existing HTTP client, on separate threads.
#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    handle: tokio::runtime::Handle,
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
        let client = self.client.clone();
        // The exporters wait on threads that have no reactor.
        let sent = self.handle.spawn(async move {
            let request = reqwest::Request::try_from(request)?;
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
    /// The exporters, if the environment names an endpoint.
    ///
    /// # Errors
    ///
    /// The endpoint or another setting in the environment is wrong.
    pub fn from_env() -> Result<Option<Arc<Self>>, TelemetryError> {
        if ENDPOINTS.iter().all(|variable| std::env::var_os(variable).is_none_or(|value| value.is_empty())) {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| TelemetryError(error.to_string());
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("turnflow-otel").enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let client = || Client { client: reqwest::Client::new(), handle: runtime.handle().clone() };
        let spans = SpanExporter::builder().with_http().with_http_client(client()).build();
        let spans = spans.map_err(|error| failed(&error))?;
        let numbers = MetricExporter::builder().with_http().with_http_client(client()).build();
        let numbers = numbers.map_err(|error| failed(&error))?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("turnflow");
        }
        let resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build();
        let with_content = std::env::var(CONTENT).is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        Ok(Some(Arc::new(Self {
            traces: SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone()).build(),
            metrics: SdkMeterProvider::builder().with_periodic_exporter(numbers).with_resource(resource).build(),
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
            with_content: self.with_content,
            served: OnceLock::new(),
            calls: Mutex::default(),
        })
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Sends the pending data.
        for problem in [self.traces.shutdown().err(), self.metrics.shutdown().err()].into_iter().flatten() {
            tracing::warn!(error = %problem, "some telemetry was not sent");
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A call of a node.
struct Called {
    node: Arc<str>,
    ended: SystemTime,
    took: Duration,
    failure: Option<String>,
    query: Option<Arc<str>>,
    documents: Vec<Arc<str>>,
}

/// Creates spans for a pipeline's turns.
pub struct Watcher {
    tracer: SdkTracer,
    operations: Histogram<f64>,
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
        let called = Called { node: node.into(), ended: SystemTime::now(), took, failure, query, documents };
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
