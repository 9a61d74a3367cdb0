//! `/v1/dead-letters`: the records of a pipeline that could not be processed, for those who may manage documents. A turn of
//! the source `Turns` can be retried: it is queued again, and its answer goes to the sinks. A document is read again when it
//! changes, so there is nothing to retry.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use turnflow_engine::connector::{ConnectorError, QueueError};
use turnflow_engine::dead_letter::{DeadLetter, DeadLetters, NamedLetter};
use turnflow_engine::record::{Speaker, TurnRecord};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::auth::Principal;
use crate::body::{InPath, Params};
use crate::config::DocumentRights;
use crate::error::ApiError;
use crate::openapi::List;
use crate::served::Served;

/// Letters are retried one after another.
static RETRYING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Most letters of a list, and letters of one without `limit`.
const MOST: usize = 1000;
const LISTED: usize = 100;
/// The part of a record that is listed, in characters.
const SHOWN: usize = 2000;

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LetterParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// For a list: the number of letters, the newest first. Default: 100.
    limit: Option<usize>,
}

/// What a letter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LetterKind {
    /// A record of a corpus.
    Document,
    /// A record of a source of turns, or a turn that has failed.
    Turn,
    /// An answer that the receiver of a sink has refused.
    Answer,
    /// Something that the pipeline does not have any more.
    Other,
}

/// A dead letter.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListedLetter {
    id: String,
    kind: LetterKind,
    /// The corpus or node.
    source: String,
    /// Where the record was read.
    position: String,
    reason: String,
    /// The beginning of the record.
    record: String,
    /// Whether only the beginning is shown.
    cut: bool,
    /// How often the same letter was written.
    count: usize,
    /// For a document: whether it still cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<bool>,
    /// Why it cannot be retried; nothing if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_retried: Option<String>,
}

fn may_manage(principal: &Principal) -> Result<(), ApiError> {
    match principal.documents {
        DocumentRights::Manage => Ok(()),
        _ => Err(ApiError::forbidden(
            "dead letters quote documents and turns of everybody: only a token with `documents: Manage` may see them",
        )),
    }
}

fn kind_of(served: &Served, source: &str) -> LetterKind {
    let outline = served.outline();
    let role = outline.graph.nodes.iter().find(|node| *node.id == *source).map(|node| node.role);
    match role {
        _ if outline.corpora.iter().any(|corpus| **corpus == *source) => LetterKind::Document,
        Some("source") => LetterKind::Turn,
        Some("sink") => LetterKind::Answer,
        _ => LetterKind::Other,
    }
}

/// The turn to queue again, or why there is none.
fn turn_of(served: &Served, letter: &DeadLetter) -> Result<TurnRecord, String> {
    match kind_of(served, &letter.source) {
        LetterKind::Turn => {}
        LetterKind::Document => {
            return Err("a document is read again when it changes: correct it at its source".to_owned());
        }
        LetterKind::Answer => return Err("the receiver has refused this answer for good".to_owned()),
        LetterKind::Other => {
            return Err(format!("the pipeline has no corpus, source or sink `{}` any more", letter.source));
        }
    }
    if served.engine().turn_queue(Some(&letter.source)).is_none() {
        return Err(
            "its answer belongs to the sinks of a log: stop the server and use `turnflow dead-letters FILE --retry`"
                .to_owned(),
        );
    }
    if letter.truncated {
        return Err("only the beginning of the record was kept".to_owned());
    }
    let record = TurnRecord::parse(&letter.bytes()).map_err(|error| format!("the record is no turn: {error}"))?;
    match record.speaker {
        Speaker::User => Ok(record),
        Speaker::Agent => Err("the record is no question".to_owned()),
    }
}

/// Runs a call that blocks.
async fn blocking<T: Send + 'static>(
    letters: &DeadLetters,
    call: impl FnOnce(&DeadLetters) -> std::io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let letters = letters.clone();
    let done = tokio::task::spawn_blocking(move || call(&letters)).await;
    done.map_err(|_| ApiError::server("the dead letters failed"))?
        .map_err(|error| ApiError::failed("the file of dead letters", &error))
}

/// Lists dead letters, the newest first. Only for callers who may manage documents.
#[utoipa::path(get, path = "/v1/dead-letters", tag = "turnflow", params(LetterParams), responses(
    (status = 200, description = "The letters, and the number of all in `total`", body = List<ListedLetter>)
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<LetterParams>,
) -> Result<Json<Value>, ApiError> {
    may_manage(&principal)?;
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let limit = params.limit.unwrap_or(LISTED);
    if !(1..=MOST).contains(&limit) {
        return Err(ApiError::bad(format!("`limit` must be 1 to {MOST}")).param("limit"));
    }
    let (letters, total) = blocking(served.engine().letters(), move |letters| letters.last(limit)).await?;
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut data: Vec<ListedLetter> = Vec::new();
    for letter in letters {
        match places.get(&letter.id) {
            Some(place) => data[*place].count += 1,
            None => {
                places.insert(letter.id.clone(), data.len());
                data.push(listed(&served, letter));
            }
        }
    }
    Ok(Json(json!({ "data": data, "total": total })))
}

fn listed(served: &Served, NamedLetter { id, letter }: NamedLetter) -> ListedLetter {
    let not_retried = turn_of(served, &letter).err();
    let kind = kind_of(served, &letter.source);
    let missing = (kind == LetterKind::Document).then(|| {
        let corpora = served.engine().corpora();
        let progress = corpora.into_iter().find(|(name, ..)| **name == *letter.source);
        progress.is_some_and(|(_, progress, _)| progress.lacks(&letter.position))
    });
    let mut characters = letter.record.chars();
    let record: String = characters.by_ref().take(SHOWN).collect();
    let cut = letter.truncated || characters.next().is_some();
    let DeadLetter { source, position, reason, .. } = letter;
    ListedLetter { id, kind, source, position, reason, record, cut, count: 1, missing, not_retried }
}

async fn found(served: &Served, id: &str) -> Result<DeadLetter, ApiError> {
    let wanted = id.to_owned();
    let letter = blocking(served.engine().letters(), move |letters| letters.find(&wanted)).await?;
    letter.ok_or_else(|| ApiError::not_found("there is no dead letter with this id").param("id"))
}

/// Queues the turn of a letter again. Its answer goes to the pipeline's sinks, and the letter is removed; if the turn fails
/// again, there is a new one.
#[utoipa::path(post, path = "/v1/dead-letters/{id}/retry", tag = "turnflow", params(("id" = String, Path, description = "The letter's id"), LetterParams),
    responses(
        (status = 202, description = "The turn is queued", body = Value),
        (status = 404, description = "There is no such letter"),
        (status = 409, description = "The letter cannot be retried; the message says why")
    ))]
pub async fn retry(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
    Params(params): Params<LetterParams>,
) -> Result<Response, ApiError> {
    may_manage(&principal)?;
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    // Who asks a second time finds the letter gone.
    let _one = RETRYING.lock().await;
    let letter = found(&served, &id).await?;
    let conflict = |reason: String| ApiError::conflict(format!("this letter cannot be retried: {reason}"));
    let turn = turn_of(&served, &letter).map_err(conflict)?;
    let queue = served.engine().turn_queue(Some(&letter.source));
    let queue = queue.ok_or_else(|| conflict("the source has no queue".to_owned()))?;
    let told = json!({ "id": id, "queued": 1, "conversation_id": turn.conversation_id, "turn": turn.turn });
    // On disk before the letter is gone.
    let queued = tokio::task::spawn_blocking(move || queue.append(&[turn])).await;
    queued.map_err(|_| ApiError::server("the turn queue failed"))?.map_err(|error| match error {
        QueueError::Full { .. } => ApiError::overload(error.to_string(), 1),
        QueueError::Connector(ConnectorError::Refused { reason }) => conflict(reason),
        QueueError::Connector(error) => ApiError::failed("the turn queue", &error),
    })?;
    blocking(served.engine().letters(), move |letters| letters.remove(&id)).await?;
    Ok((StatusCode::ACCEPTED, Json(told)).into_response())
}

/// Removes a letter from the file.
#[utoipa::path(delete, path = "/v1/dead-letters/{id}", tag = "turnflow", params(("id" = String, Path, description = "The letter's id"), LetterParams),
    responses(
        (status = 200, description = "The letter is removed", body = Value),
        (status = 404, description = "There is no such letter")
    ))]
pub async fn remove(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
    Params(params): Params<LetterParams>,
) -> Result<Json<Value>, ApiError> {
    may_manage(&principal)?;
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let wanted = id.clone();
    match blocking(served.engine().letters(), move |letters| letters.remove(&wanted)).await? {
        true => Ok(Json(json!({ "id": id, "deleted": true }))),
        false => Err(ApiError::not_found("there is no dead letter with this id").param("id")),
    }
}
