//! A change of a store, and waiting until it is published.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use turnflow_engine::connector::{ConnectorError, DocumentStore};
use turnflow_engine::corpus::CorpusState;

use super::{Writable, blocking};
use crate::error::ApiError;
use crate::limits::Deadline;

/// The interval between looks for the epoch.
const LOOK: Duration = Duration::from_millis(10);
/// The answer is sent this long before the limit of the request.
const MARGIN: Duration = Duration::from_millis(200);

/// Makes a change, and waits for its publication if that is wanted. `call` returns whether there was
/// something to change.
pub(super) async fn change(
    of: &Writable,
    wait: bool,
    deadline: Deadline,
    mut told: Value,
    call: impl FnOnce(&dyn DocumentStore) -> Result<bool, ConnectorError> + Send + 'static,
) -> Result<Response, ApiError> {
    let before = commits(of);
    if !blocking(&of.store, call).await? {
        return Err(ApiError::not_found("there is no such document that was put here"));
    }
    let mut status = StatusCode::OK;
    if wait {
        let is_published = published(of, before, deadline).await;
        told["published"] = json!(is_published);
        if !is_published {
            status = StatusCode::ACCEPTED;
        }
    }
    told["corpus"] = json!(of.corpus);
    told["pipeline"] = json!(of.served.name());
    told["epoch"] = json!(of.served.engine().epochs().current().epoch);
    Ok((status, axum::Json(told)).into_response())
}

/// Number of published commits of the corpus's source.
fn commits(of: &Writable) -> u64 {
    let corpora = of.served.engine().corpora();
    let state = corpora.iter().find(|(name, ..)| *name == of.corpus).map(|(.., state)| state.borrow().clone());
    match state {
        Some(CorpusState::Ready { commits, .. }) => commits,
        Some(CorpusState::Loading | CorpusState::Failed(_)) | None => 0,
    }
}

/// Waits until a later commit than `before` is published; false if that takes too long.
async fn published(of: &Writable, before: u64, deadline: Deadline) -> bool {
    while commits(of) <= before {
        if Instant::now() + MARGIN >= deadline.at || of.served.engine().has_ended() {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}
