//! Process 0 of a cluster answers requests that other processes have received, with its own routes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Sender};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::wire::{self, Received};
use crate::app::App;
use crate::connections::Client;
use crate::error::ApiError;
use crate::server::Server;

/// Answers the requests of other processes: the items of the stream are the parts of the answer, in order. Dropping the
/// stream cancels the request. An answer that is cut off has no last part.
pub type Answerer = Arc<dyn Fn(Vec<u8>) -> BoxStream<'static, Vec<u8>> + Send + Sync>;

impl Server {
    /// What answers the requests of the other processes of the cluster, on this runtime, until the server ends.
    pub fn answerer(&self, runtime: Handle) -> Answerer {
        // The engine keeps it, and the server keeps the engine.
        let answering = Arc::downgrade(self.answering());
        Arc::new(move |question| match answering.upgrade() {
            Some(answering) => answering.answer(question, &runtime),
            None => stream::empty().boxed(),
        })
    }
}

/// The requests of other processes that a server answers.
pub(crate) struct Answering {
    app: App,
    router: Router,
    running: TaskTracker,
    cut: CancellationToken,
}

impl Answering {
    pub(crate) fn new(app: App, router: Router) -> Arc<Self> {
        Arc::new(Self { app, router, running: TaskTracker::new(), cut: CancellationToken::new() })
    }

    /// Waits for the running requests. No further ones are accepted once the server shuts down.
    pub(crate) async fn ended(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Drops the remaining requests, which cancels their turns.
    pub(crate) async fn cut(&self) {
        self.cut.cancel();
        self.ended().await;
    }

    pub(super) fn answer(self: Arc<Self>, question: Vec<u8>, runtime: &Handle) -> BoxStream<'static, Vec<u8>> {
        // A part waits until the one before it is taken, so a client that reads slowly holds back its own answer only.
        let (parts, mut taken) = mpsc::channel(1);
        runtime.spawn(self.running.clone().track_future(async move {
            tokio::select! {
                () = self.run(question, &parts) => {}
                () = parts.closed() => {}
                () = self.cut.cancelled() => {}
            }
        }));
        stream::poll_fn(move |context| taken.poll_recv(context)).boxed()
    }

    /// Runs a request and sends the parts of its answer.
    async fn run(&self, question: Vec<u8>, parts: &Sender<Vec<u8>>) {
        let (head, body) = self.response(question).await.into_parts();
        match wire::head(&head) {
            Ok(head) => {
                if parts.send(head).await.is_ok() {
                    send(body, parts).await;
                }
            }
            Err(error) => tracing::error!(%error, "an answer for another process cannot be encoded"),
        }
    }

    async fn response(&self, question: Vec<u8>) -> Response {
        let Received { request, client, is_exposed } = match wire::received(question) {
            Ok(received) => received,
            Err(error) => return ApiError::failed("a request of another process", &error).into_response(),
        };
        if self.app.is_draining() {
            return ApiError::unavailable("the server is shutting down").into_response();
        }
        // The other process has tokens, or would not listen there; but only those of this one count for what it forwards.
        if is_exposed && self.app.tokens().is_empty() {
            return ApiError::forbidden(
                "process 0 of the cluster has no tokens, but this process has, or other machines can call it: \
                 give all processes the same tokens",
            )
            .into_response();
        }
        let mut request = request.map(Body::from);
        request.extensions_mut().insert(Client(client));
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Sends a body; its trailers are left out.
async fn send(mut body: Body, parts: &Sender<Vec<u8>>) {
    while !body.is_end_stream() {
        let piece = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer for another process is cut off");
                return;
            }
            None => break,
        };
        let is_last = body.is_end_stream();
        if parts.send(wire::piece(&piece, is_last)).await.is_err() || is_last {
            return;
        }
    }
    let _ = parts.send(wire::piece(&[], true)).await;
}
