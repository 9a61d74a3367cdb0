//! A process of a cluster other than the first serves everything that process 0 serves. It answers questions itself, and
//! forwards other requests to process 0 over the cluster's own connections. `answering.rs` is the side of process 0, and
//! `wire.rs` the form of the messages.

mod answering;
#[cfg(test)]
mod tests;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http_body::Body as _;
use serde::Deserialize;
use tokio::sync::OnceCell;

pub use self::answering::Answerer;
pub(crate) use self::answering::Answering;
use self::wire::Part;
use crate::app::{App, forwarding};
use crate::body::whole;
use crate::callers::Callers;
use crate::config::ServeConfig;
use crate::connections::Client;
use crate::error::ApiError;
use crate::feedback;
use crate::limits::{Deadline, Place};
use crate::served::Served;
use crate::server::{ServeError, Server, is_exposed};

/// Asks process 0: the items of the stream are the parts of its answer, in order. An error is the last item. Dropping
/// the stream cancels the request in process 0.
pub type Asker = Arc<dyn Fn(Vec<u8>) -> BoxStream<'static, Result<Vec<u8>, String>> + Send + Sync>;

impl Server {
    /// Binds the address of a process that is not the first of its cluster. Tokens, limits and TLS are as with
    /// [`Server::bind`]. The process answers questions, `/healthz`, `/readyz`, `/metrics` and what is below `/process`
    /// itself, and forwards other requests to process 0 with `ask`. `served` is the pipeline in this process.
    ///
    /// # Errors
    ///
    /// The address, the tokens or the TLS files cannot be used.
    pub async fn bind_forwarding(
        config: ServeConfig,
        address: SocketAddr,
        served: Arc<Served>,
        ask: Asker,
    ) -> Result<Self, ServeError> {
        let routes = |app: &App| {
            let is_exposed = is_exposed(address) || !app.tokens().is_empty();
            forwarding(app.clone(), Forwarder::new(app.clone(), ask, is_exposed))
        };
        let callers = Callers::new(&config);
        Self::bind_routes(config, address, vec![served], callers, routes).await
    }
}

/// Forwards requests to process 0.
#[derive(Clone)]
pub(crate) struct Forwarder {
    app: App,
    ask: Asker,
    /// Whether other machines can reach this process.
    is_exposed: bool,
    /// Whether process 0 has no tokens, once it has answered.
    is_open: Arc<OnceCell<bool>>,
}

impl Forwarder {
    pub(crate) fn new(app: App, ask: Asker, is_exposed: bool) -> Self {
        Self { app, ask, is_exposed, is_open: Arc::default() }
    }

    /// Whether process 0 has tokens, and this process has none: its callers must not get around them.
    async fn only_first_has_tokens(&self) -> bool {
        if !self.app.tokens().is_empty() {
            return false;
        }
        let asked = self.is_open.get_or_try_init(async || {
            let (head, ()) = Request::builder().uri("/v1/models").body(()).map_err(|_| ())?.into_parts();
            let client = SocketAddr::from(([127, 0, 0, 1], 0));
            let question = wire::question(&head, &[], client, false).map_err(|_| ())?;
            match next(&mut (self.ask)(question)).await {
                Ok(Part::Head(head)) if head.status == StatusCode::UNAUTHORIZED => Ok(false),
                Ok(Part::Head(head)) if head.status.is_success() => Ok(true),
                // It is not known yet.
                _ => Err(()),
            }
        });
        asked.await != Ok(&true)
    }

    /// Forwards a request. The body of the response comes as process 0 sends it.
    ///
    /// # Errors
    ///
    /// The body cannot be received, or process 0 does not answer.
    pub(crate) async fn forward(self, request: Request) -> Result<Response, ApiError> {
        let (mut head, body) = request.into_parts();
        let client = head.extensions.get::<Client>().copied();
        let Client(client) = client.ok_or_else(|| ApiError::server("the request has no connection"))?;
        // The place is kept until process 0 answers.
        let (body, _place) = self.body(&mut head, body).await?;
        let question = wire::question(&head, &body, client, self.is_exposed);
        let question = question.map_err(|error| ApiError::failed("forwarding", &error))?;
        drop(body);
        let mut answer = (self.ask)(question);
        let reason = match next(&mut answer).await {
            Ok(Part::Head(head)) => return Ok(Response::from_parts(*head, rest(answer))),
            Ok(Part::Piece(_) | Part::Last(_)) => "its answer has no head".to_owned(),
            Err(reason) => reason,
        };
        tracing::warn!(reason, "process 0 does not answer a request");
        Err(ApiError::unavailable(
            "process 0 of the cluster, which answers this request, does not answer: it is starting or stopping, or it \
             runs `turnflow run` instead of `turnflow serve`; try again",
        ))
    }

    /// The body of a request. As in process 0, only known callers, and not too many of them, have theirs received.
    async fn body(&self, head: &mut Parts, mut body: Body) -> Result<(Bytes, Option<Place>), ApiError> {
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let caller = self.app.tokens().principal(&head.headers).await?;
        let limits = self.app.config().limits;
        let place = Deadline::after(limits.request_s).within(self.app.places().take(&caller)).await??;
        let body = whole(&head.headers, &mut body, &limits).await?;
        // Process 0 does not know what this one has answered.
        if head.uri.path() == "/v1/feedback"
            && let Some(joined) = feedback::joined(&self.app, &caller, &head.uri, &body).await
        {
            head.headers.insert(header::CONTENT_LENGTH, joined.len().into());
            return Ok((joined.into(), Some(place)));
        }
        Ok((body, Some(place)))
    }
}

/// Middleware: forwards durable turns, whose source process 0 has, turns that go on without their client, which may read on
/// through any process, and what only process 0 can tell whether to answer.
pub(crate) async fn where_to(State(forwarder): State<Forwarder>, request: Request, next: Next) -> Response {
    match is_of_first(request.uri()) || forwarder.only_first_has_tokens().await {
        true => forwarder.forward(request).await.into_response(),
        false => next.run(request).await,
    }
}

fn is_of_first(uri: &Uri) -> bool {
    #[derive(Deserialize)]
    struct Turns {
        #[serde(default)]
        durable: bool,
        resume: Option<String>,
    }
    let turns = Query::<Turns>::try_from_uri(uri);
    uri.path() == "/v1/turns" && turns.is_ok_and(|Query(turns)| turns.durable || turns.resume.is_some())
}

/// The next part of an answer, or why there is none.
async fn next(answer: &mut BoxStream<'static, Result<Vec<u8>, String>>) -> Result<Part, String> {
    match answer.next().await {
        Some(Ok(part)) => wire::part(part).map_err(|error| error.to_string()),
        Some(Err(reason)) => Err(reason),
        None => Err("its answer has no end".to_owned()),
    }
}

/// The body of an answer. If the answer is cut off, so is the connection to the client, which can tell this from an
/// end.
fn rest(answer: BoxStream<'static, Result<Vec<u8>, String>>) -> Body {
    Body::from_stream(stream::unfold(Some(answer), |answer| async move {
        let mut answer = answer?;
        Some(match next(&mut answer).await {
            Ok(Part::Piece(piece)) => (Ok(piece), Some(answer)),
            Ok(Part::Last(piece)) => (Ok(piece), None),
            cut => {
                let reason = cut.err().unwrap_or_else(|| "its answer has two heads".to_owned());
                tracing::warn!(reason, "an answer of process 0 is cut off");
                (Err(reason), None)
            }
        })
    }))
}
