//! The state that all requests share, and the routes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Router, middleware};
use regex::RegexSet;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::auth::{Principal, Tokens};
use crate::body::bounded;
use crate::config::ServeConfig;
use crate::error::ApiError;
use crate::forward::Forwarder;
use crate::limits::{Places, admit, identify, meter};
use crate::metrics::{ServerMetrics, observe};
use crate::resume::Resumable;
use crate::served::Served;
use crate::{
    alerts, answers, caller, chat, cited, dead_letters, documents, embeddings, feedback, forward, health, mcp, metrics,
    models, openapi, origin, otlp, page, pipelines, reports, responses, resume, review, search, shares, sign_in,
    stored, turns,
};

/// The state that all requests share. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    config: ServeConfig,
    pipelines: Vec<Arc<Served>>,
    tokens: Tokens,
    places: Places,
    metrics: ServerMetrics,
    task_prompts: RegexSet,
    drained: CancellationToken,
    streams: Arc<Semaphore>,
    resumable: Resumable,
    started: u64,
}

impl App {
    /// The state of a server of these pipelines; the first is the default.
    pub fn new(config: ServeConfig, pipelines: Vec<Arc<Served>>, tokens: Tokens) -> Self {
        // The configuration has been checked, so every pattern is valid.
        let task_prompts = RegexSet::new(&config.task_prompts).unwrap_or_else(|_| RegexSet::empty());
        Self(Arc::new(Inner {
            places: Places::new(&config.limits),
            metrics: ServerMetrics::default(),
            task_prompts,
            drained: CancellationToken::new(),
            streams: Arc::new(Semaphore::new(config.limits.streams)),
            resumable: Resumable::default(),
            started: now(),
            config,
            pipelines,
            tokens,
        }))
    }

    /// The configuration.
    pub fn config(&self) -> &ServeConfig {
        &self.0.config
    }

    /// All pipelines.
    pub fn pipelines(&self) -> &[Arc<Served>] {
        &self.0.pipelines
    }

    /// The tokens of the callers.
    pub fn tokens(&self) -> &Tokens {
        &self.0.tokens
    }

    /// The slots for running requests.
    pub fn places(&self) -> &Places {
        &self.0.places
    }

    /// The server's own metrics.
    pub fn metrics(&self) -> &ServerMetrics {
        &self.0.metrics
    }

    /// Whether a text is a chat client's prompt and not a question.
    pub fn is_task(&self, text: &str) -> bool {
        self.0.task_prompts.is_match(text)
    }

    /// When the server started, in seconds since the Unix epoch.
    pub fn started(&self) -> u64 {
        self.0.started
    }

    /// Whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.0.drained.is_cancelled()
    }

    /// Cancelled when the server shuts down.
    pub fn drained(&self) -> &CancellationToken {
        &self.0.drained
    }

    /// The slots for answer streams, which stay open.
    pub fn streams(&self) -> Arc<Semaphore> {
        self.0.streams.clone()
    }

    /// The turns that their clients can read again.
    pub(crate) fn resumable(&self) -> &Resumable {
        &self.0.resumable
    }

    /// Records that the server is shutting down.
    pub fn drain(&self) {
        self.0.drained.cancel();
    }

    /// The pipelines that a caller may use.
    pub fn pipelines_of<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = &'a Arc<Served>> {
        self.0.pipelines.iter().filter(|served| principal.may_use(served.name()))
    }

    /// The pipeline of this name, or the caller's first.
    ///
    /// # Errors
    ///
    /// 404: it does not exist, or the caller may not use it.
    pub fn pipeline(&self, name: Option<&str>, principal: &Principal) -> Result<Arc<Served>, ApiError> {
        let mut pipelines = self.pipelines_of(principal);
        let found = match name {
            Some(name) => pipelines.find(|served| **served.name() == *name),
            None => pipelines.next(),
        };
        found.cloned().ok_or_else(|| models::none_that_answers(self, principal, name))
    }
}

/// Seconds since the Unix epoch.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A unique name for a request: the prefix, the time, and a number.
pub fn unique(prefix: &str) -> String {
    use std::sync::atomic::AtomicU64;
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&nanos.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(&std::process::id().to_le_bytes());
    let hash = hasher.finalize().to_hex();
    format!("{prefix}{}", hash.as_str().get(..32).unwrap_or_default())
}

/// The routes that need only the corpora and the models. Any process of a cluster answers them.
fn questions() -> Router<App> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/turns", post(turns::create))
        .route("/v1/search", get(search::find).post(search::find_by_body))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
}

/// All routes.
pub fn router(app: App) -> Router {
    let documents = get(documents::read).put(documents::write).delete(documents::remove);
    let mcp = Router::new()
        .route_service("/mcp", mcp::service(&app))
        .route_layer(middleware::from_fn_with_state(app.clone(), bounded));
    let work = questions()
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(stored::read).delete(stored::remove))
        .route("/v1/documents", get(documents::list).post(documents::add))
        .route("/v1/documents/{*id}", documents)
        .merge(mcp)
        .route("/v1/reports", get(reports::list))
        .route("/v1/shares", post(shares::create))
        .route("/v1/shares/{id}", delete(shares::withdraw))
        .route("/v1/dead-letters", get(dead_letters::list))
        .route("/v1/dead-letters/{id}", delete(dead_letters::remove))
        .route("/v1/dead-letters/{id}/retry", post(dead_letters::retry))
        .route("/v1/review", get(review::list))
        .route("/v1/review/{id}", post(review::judge))
        .route("/v1/feedback", post(feedback::create))
        .route("/v1/traces", post(otlp::traces))
        .route("/v1/logs", post(otlp::logs))
        .route_layer(middleware::from_fn_with_state(app.clone(), admit));
    let metered = Router::new()
        // An answer stream stays open, so it takes no request slot.
        .route("/v1/answers", get(answers::list))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/turns/{id}", get(resume::read).delete(resume::stop))
        .merge(states())
        .route_layer(middleware::from_fn_with_state(app.clone(), meter));
    let known = work.merge(metered).route_layer(middleware::from_fn_with_state(app.clone(), identify));
    let router = known
        .route("/", get(page::page))
        .route("/page/{name}", get(page::asset))
        .route("/widget.js", get(page::widget))
        // A link says for whom it is.
        .route("/documents/{*id}", get(cited::show))
        // Nobody has a token yet.
        .route("/v1/sign-in", get(sign_in::show).post(sign_in::exchange))
        .route("/shared/{id}", get(shares::show))
        .route("/shared/{id}/turn", get(shares::read))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .fallback(no_route);
    for_pages(router, app)
}

/// What is said about an address that is none. Clients that are set up for another one get a hint.
async fn no_route(uri: Uri) -> ApiError {
    let ends_with = |routes: &[&str]| routes.iter().any(|route| uri.path().ends_with(route));
    ApiError::not_found(if ends_with(&["/chat/completions", "/responses", "/embeddings", "/models"]) {
        "no such route: the base address of a client of OpenAI's API ends with one `/v1`"
    } else if ends_with(&["/completions"]) {
        "no such route: no prompts are completed here; send messages to `/v1/chat/completions`"
    } else {
        "no such route"
    })
}

/// Completes the routes of a server whose callers may be web pages.
fn for_pages(router: Router<App>, app: App) -> Router {
    let router = router
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .layer(middleware::from_fn_with_state(app.clone(), from_here))
        .layer(middleware::from_fn(origin::once))
        .layer(middleware::from_fn_with_state(app.clone(), observe));
    let router = match cors(&app.config().cors) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.with_state(app)
}

/// Middleware: refuses requests from web pages of other sites.
async fn from_here(State(app): State<App>, request: Request, next: middleware::Next) -> Response {
    // A browser sends a preflight request first; the configuration determines the response.
    if request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    match origin::check(&app, request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The routes that show the state of a process to known callers.
fn states() -> Router<App> {
    Router::new()
        .route("/v1/caller", get(caller::show))
        .route("/v1/pipelines", get(pipelines::list))
        .route("/v1/pipelines/{name}/status", get(pipelines::status))
        .route("/v1/alerts", get(alerts::list))
        .route("/debug/state", get(pipelines::debug))
        .route("/metrics", get(metrics::text))
}

/// The routes that show the state of a process.
fn shown(app: &App) -> Router<App> {
    states()
        .route_layer(middleware::from_fn_with_state(app.clone(), meter))
        .route_layer(middleware::from_fn_with_state(app.clone(), identify))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
}

/// The routes of a server that only observes. `is_local`: only this machine can reach it, so web pages of other
/// sites are refused.
pub fn observing(app: App, is_local: bool) -> Router {
    let router = shown(&app)
        .fallback(|| async { ApiError::not_found("no such route") })
        .method_not_allowed_fallback(|| async { ApiError::method() });
    let router = match is_local {
        true => router.layer(middleware::from_fn_with_state(app.clone(), from_here)),
        false => router,
    };
    let router = router.layer(middleware::from_fn(origin::once));
    router.layer(middleware::from_fn_with_state(app.clone(), observe)).with_state(app)
}

/// The routes of a process of a cluster that is not the first. It answers questions itself. Metrics and health are its
/// own, and so is what is below `/process`. Everything else is forwarded to process 0, which has the documents' stores,
/// the durable turns, those that go on without their clients, the sinks and the stored responses.
pub fn forwarding(app: App, forwarder: Forwarder) -> Router {
    let answered = questions()
        .route_layer(middleware::from_fn_with_state(app.clone(), admit))
        .route_layer(middleware::from_fn_with_state(app.clone(), identify))
        .route_layer(middleware::from_fn_with_state(forwarder.clone(), forward::where_to));
    let router = Router::new()
        .route("/metrics", get(metrics::text))
        .route_layer(middleware::from_fn_with_state(app.clone(), meter))
        .route_layer(middleware::from_fn_with_state(app.clone(), identify))
        .merge(answered)
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .nest("/process", shown(&app))
        // This process has signed the link, and reads the other processes' passages too.
        .route("/documents/{*id}", get(cited::show))
        .fallback(move |request: Request| forwarder.forward(request));
    for_pages(router, app)
}

/// Allows calls from web pages of these origins.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
            // OpenAI's package for browsers sends a dozen of its own.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([header::RETRY_AFTER]),
    )
}
