//! `/metrics`: every pipeline's metrics and the server's own, as text of Prometheus or OpenMetrics; and the log of requests.

mod format;
mod of_pipelines;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::format::{Families, Format, escaped};
use self::of_pipelines::PipelineMetrics;
use crate::app::App;
use crate::auth::Principal;
use crate::body::Held;
use crate::connections::Client;
use crate::error::ApiError;
use crate::limits::CallerName;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: String,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pipeline {
    pipeline: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Judged {
    pipeline: String,
    helpful: String,
    joined: String,
}

/// The server's own metrics.
pub struct ServerMetrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Route, Histogram>,
    first_token: Family<Pipeline, Histogram>,
    epoch: Family<Pipeline, Gauge>,
    missing: Family<Pipeline, Gauge>,
    turns_running: Family<Pipeline, Gauge>,
    turns_waiting: Family<Pipeline, Gauge>,
    standing: Family<Pipeline, Gauge>,
    behind: Family<Pipeline, Gauge>,
    behind_s: Family<Pipeline, Gauge<f64, AtomicU64>>,
    again: Family<Pipeline, Counter>,
    cached: Family<Pipeline, Gauge>,
    cache_hits: Family<Pipeline, Counter>,
    cache_misses: Family<Pipeline, Counter>,
    feedback: Family<Judged, Counter>,
    of_pipelines: PipelineMetrics,
    running: Gauge,
    waiting: Gauge,
    /// Held while totals of engines are added to counters.
    adding: Mutex<()>,
}

fn histogram() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0])
}

impl Default for ServerMetrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            first_token: Family::new_with_constructor(histogram),
            epoch: Family::default(),
            missing: Family::default(),
            turns_running: Family::default(),
            turns_waiting: Family::default(),
            standing: Family::default(),
            behind: Family::default(),
            behind_s: Family::default(),
            again: Family::default(),
            cached: Family::default(),
            cache_hits: Family::default(),
            cache_misses: Family::default(),
            feedback: Family::default(),
            of_pipelines: PipelineMetrics::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            adding: Mutex::default(),
        };
        let registry = &mut metrics.registry;
        metrics.of_pipelines.register(registry);
        registry.register("turnflow_http_requests", "Completed requests", metrics.requests.clone());
        registry.register("turnflow_http_request_seconds", "Time until the response is sent", metrics.seconds.clone());
        registry.register(
            "turnflow_http_first_token_seconds",
            "Time until the first piece of an answer",
            metrics.first_token.clone(),
        );
        registry.register("turnflow_feedback", "What people said about answers", metrics.feedback.clone());
        registry.register("turnflow_epoch", "The newest epoch", metrics.epoch.clone());
        registry.register(
            "turnflow_missing_passages",
            "Passages that an index lacks because a model's server is away",
            metrics.missing.clone(),
        );
        registry.register("turnflow_turns_running", "Turns that hold a slot", metrics.turns_running.clone());
        registry.register("turnflow_turns_waiting", "Asked turns waiting for a slot", metrics.turns_waiting.clone());
        registry.register(
            "turnflow_standing_turns",
            "Turns that are answered again when a change of the documents reaches them",
            metrics.standing.clone(),
        );
        registry.register(
            "turnflow_standing_behind",
            "Standing turns that wait to be answered again, or are being answered",
            metrics.behind.clone(),
        );
        registry.register(
            "turnflow_standing_behind_seconds",
            "How long the first of them has waited",
            metrics.behind_s.clone(),
        );
        registry.register("turnflow_answered_again", "Standing turns that were answered again", metrics.again.clone());
        registry.register("turnflow_cached_answers", "Answers in the answer cache", metrics.cached.clone());
        registry.register("turnflow_answer_cache_hits", "Turns answered from the cache", metrics.cache_hits.clone());
        registry.register(
            "turnflow_answer_cache_misses",
            "Turns whose answers were not in the cache",
            metrics.cache_misses.clone(),
        );
        registry.register("turnflow_http_running", "Running requests", metrics.running.clone());
        registry.register("turnflow_http_waiting", "Requests waiting for a slot", metrics.waiting.clone());
        metrics
    }
}

impl ServerMetrics {
    /// Counts what somebody said about an answer. `joined`: whether the answer is known.
    pub fn feedback(&self, pipeline: &str, helpful: bool, joined: bool) {
        let [helpful, joined] = [helpful, joined].map(|is_so| is_so.to_string());
        let labels = Judged { pipeline: pipeline.to_owned(), helpful, joined };
        self.feedback.get_or_create(&labels).inc();
    }

    /// Records the time until the first piece of an answer.
    pub fn first_token(&self, pipeline: &str, after: Duration) {
        self.first_token.get_or_create(&Pipeline { pipeline: pipeline.to_owned() }).observe(after.as_secs_f64());
    }

    fn to_text(&self, app: &App) -> String {
        let _one = self.adding.lock();
        self.of_pipelines.clear();
        for served in app.pipelines() {
            self.of_pipelines.take(served);
            let (label, engine) = (Pipeline { pipeline: served.name().to_string() }, served.engine());
            let number = |of: usize| i64::try_from(of).unwrap_or(i64::MAX);
            let missing: u64 = engine.missing().iter().map(|(_, missing, _)| missing).sum();
            self.missing.get_or_create(&label).set(missing.try_into().unwrap_or(i64::MAX));
            self.epoch.get_or_create(&label).set(engine.epochs().current().epoch.try_into().unwrap_or(i64::MAX));
            self.turns_running.get_or_create(&label).set(number(engine.in_flight()));
            self.turns_waiting.get_or_create(&label).set(number(engine.waiting_callers()));
            let (standing, cache) = (engine.standing(), engine.cached_answers());
            self.standing.get_or_create(&label).set(number(standing.turns));
            self.behind.get_or_create(&label).set(number(standing.behind));
            let waited = standing.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            self.behind_s.get_or_create(&label).set(waited);
            self.cached.get_or_create(&label).set(number(cache.answers));
            let totals = [
                (&self.again, engine.answered_again()),
                (&self.cache_hits, cache.hits),
                (&self.cache_misses, cache.misses),
            ];
            for (counters, total) in totals {
                let counter = counters.get_or_create(&label);
                counter.inc_by(total.saturating_sub(counter.get()));
            }
        }
        self.running.set(app.places().running().try_into().unwrap_or(i64::MAX));
        self.waiting.set(app.places().waiting().try_into().unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// The metrics of the server and of all pipelines, in the format that `Accept` asks for: OpenMetrics, or else the text of
/// Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, description = "The metrics", content(
        (String = "text/plain"), (String = "application/openmetrics-text")
    ))
))]
pub async fn text(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    headers: HeaderMap,
) -> Response {
    let mut families = Families::default();
    for served in app.pipelines_of(&principal) {
        families.add(Some(served.name()), &served.engine().metrics().to_text());
    }
    let mut own = app.metrics().to_text(&app);
    for served in app.pipelines().iter().filter(|served| !principal.may_use(served.name())) {
        let of_another = format!("pipeline=\"{}\"", escaped(served.name()));
        own = own.lines().filter(|line| !line.contains(&of_another)).flat_map(|line| [line, "\n"]).collect();
    }
    families.add(None, &own);
    let format = Format::wanted(&headers);
    let types = [(header::CONTENT_TYPE, format.mime()), (header::VARY, HeaderValue::from_static("accept"))];
    (types, families.written(format)).into_response()
}

/// A request, until its response is sent or dropped; then it is counted and logged.
struct Record {
    app: App,
    method: String,
    route: String,
    status: u16,
    client: Option<Client>,
    caller: Option<CallerName>,
    begun: Instant,
}

impl Drop for Record {
    fn drop(&mut self) {
        let Self { app, method, route, status, client, caller, begun } = self;
        let took = begun.elapsed();
        let metrics = app.metrics();
        let answered = Answered { method: method.clone(), route: route.clone(), status: *status };
        metrics.requests.get_or_create(&answered).inc();
        metrics.seconds.get_or_create(&Route { route: route.clone() }).observe(took.as_secs_f64());
        let caller = caller.as_ref().map_or("-", |CallerName(name)| name);
        let client = client.map(|Client(address)| tracing::field::display(address));
        tracing::info!(%method, %route, status, ms = took.as_millis() as u64, caller, client, "request");
    }
}

/// The status of a request whose client disconnected before the response, as in nginx.
const CLIENT_CLOSED: u16 = 499;

/// Middleware: counts and logs requests, turns panics into errors, and sets the headers of all responses.
pub async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str).to_owned();
    // Methods are free text: unknown ones share a name, to bound the number of counters.
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH") => known.to_owned(),
        _ => "OTHER".to_owned(),
    };
    let client = request.extensions().get().copied();
    let mut record = Record { app, method, route, status: CLIENT_CLOSED, client, caller: None, begun: Instant::now() };
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = response.unwrap_or_else(|_| {
        tracing::error!(route = %record.route, "the handler panicked");
        ApiError::server("internal server error").into_response()
    });
    record.status = response.status().as_u16();
    record.caller = response.extensions_mut().remove();
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.map(|body| Held::around(body, record))
}
