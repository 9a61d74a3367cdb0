//! A change of a store, and waiting until it is published.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use turnflow_engine::connector::{ConnectorError, DocumentStore, StoredDocument};
use turnflow_engine::corpus::CorpusState;

use super::{Writable, blocking};
use crate::error::ApiError;
use crate::limits::Deadline;

/// The interval between looks for the epoch.
const LOOK: Duration = Duration::from_millis(10);
/// A wait is at most this long: a change that gives no passages is never published.
const LONGEST: Duration = Duration::from_secs(20);
/// The answer is sent this long before the limit of the request.
const MARGIN: Duration = Duration::from_millis(200);

/// What a call has changed.
pub(super) enum Changed {
    /// There is no such document.
    None,
    /// What pipelines read is as it was, so there is nothing to publish.
    Same,
    /// Something that pipelines read.
    Texts,
}

/// Adds or replaces documents.
///
/// # Errors
///
/// A document is refused, or the store fails.
pub(super) fn put(store: &dyn DocumentStore, documents: Vec<StoredDocument>) -> Result<Changed, ConnectorError> {
    let mut is_same = true;
    for document in &documents {
        // The last one of an id counts, and is compared with the others too.
        let is_last = documents.iter().filter(|other| other.id == document.id).count() == 1;
        let before = if is_same && is_last { store.get(&document.id)? } else { None };
        is_same &= before.is_some_and(|old| old.title == document.title && old.text == document.text);
        if !is_same {
            break;
        }
    }
    store.put(documents)?;
    Ok(if is_same { Changed::Same } else { Changed::Texts })
}

/// Makes a change, and waits for its publication if that is wanted.
pub(super) async fn change(
    of: &Writable,
    wait: bool,
    deadline: Deadline,
    mut told: Value,
    call: impl FnOnce(&dyn DocumentStore) -> Result<Changed, ConnectorError> + Send + 'static,
) -> Result<Response, ApiError> {
    let before = commits(of);
    let changed = blocking(&of.store, call).await?;
    if matches!(changed, Changed::None) {
        return Err(ApiError::not_found("there is no such document that was put here"));
    }
    let mut status = StatusCode::OK;
    if wait {
        let is_published = matches!(changed, Changed::Same) || published(of, before, deadline).await;
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
    let until = deadline.at.min(Instant::now() + LONGEST);
    while commits(of) <= before {
        if Instant::now() + MARGIN >= until || of.served.engine().has_ended() {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}
