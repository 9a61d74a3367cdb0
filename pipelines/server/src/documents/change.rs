//! Changes of a store, and the wait until they are published.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use turnflow_engine::connector::{ConnectorError, DocumentStore};

use super::{Writable, blocking};
use crate::error::ApiError;
use crate::limits::Deadline;

/// The interval between checks for the change.
const LOOK: Duration = Duration::from_millis(10);
/// The response is sent this long before the deadline of the request.
const MARGIN: Duration = Duration::from_millis(200);

/// Makes a change, and waits for its publication if requested. `call` returns the number of the change, or why the
/// caller may not make it.
pub(super) async fn change(
    of: &Writable,
    wait: bool,
    deadline: Deadline,
    mut told: Value,
    call: impl FnOnce(&dyn DocumentStore) -> Result<Result<u64, ApiError>, ConnectorError> + Send + 'static,
) -> Result<Response, ApiError> {
    let change = blocking(&of.store, call).await??;
    let mut status = StatusCode::OK;
    if wait {
        let is_published = published(of, change, deadline).await;
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

/// Waits until the change is published; false if that takes too long.
async fn published(of: &Writable, change: u64, deadline: Deadline) -> bool {
    let engine = of.served.engine();
    while !engine.has_published(&of.corpus, change) {
        if Instant::now() + MARGIN >= deadline.at || engine.has_ended() {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}
