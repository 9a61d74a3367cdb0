//! Durable turns: `POST /v1/turns?durable=true` puts records into the pipeline's source `Turns`.
//!
//! The records are on disk when the response is sent. The engine keeps each conversation's history, and the answers go
//! to the pipeline's sinks. If one of them is `Answers`, the response may wait for them, and `/v1/answers` has them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};
use turnflow_engine::connector::{ConnectorError, QueueError};
use turnflow_engine::record::{Speaker, TurnRecord};

use crate::answers::{self, Reader, scoped};
use crate::app::unique;
use crate::error::ApiError;
use crate::limits::Deadline;
use crate::turns::{Caller, respond};

/// The field of a record, and of its answer, with the server's id of the turn.
const ID: &str = "turn_id";
/// The response is sent this long before the deadline of the request.
const MARGIN: Duration = Duration::from_millis(200);

/// Queues turns, and waits for their answers if requested.
pub(crate) async fn create(
    caller: Caller,
    deadline: Deadline,
    mut records: Vec<TurnRecord>,
    wait: bool,
) -> Result<Response, ApiError> {
    let Caller { served, principal, callers, many, drained } = caller;
    let engine = served.engine();
    let queue = engine.turn_queue(None).ok_or_else(|| {
        let name = served.name();
        let problem = format!("the pipeline `{name}` has no source `Turns`, which durable turns need");
        ApiError::bad(problem).param("durable")
    })?;
    if engine.sinks().is_empty() {
        let problem = format!("the pipeline `{}` has no sink: the answers would go nowhere", served.name());
        return Err(ApiError::bad(problem).param("durable"));
    }
    // Before the turns are queued, so that their answers come after it.
    let log = match wait {
        true => Some(answers::log(&served)?),
        false => answers::log(&served).ok(),
    };
    let after = log.as_ref().map(|log| *log.last().borrow());
    let mut turns = Vec::new();
    for record in &mut records {
        let id = unique("turn-");
        turns.push(json!({ "turn_id": id, "conversation_id": record.conversation_id, "turn": record.turn }));
        record.conversation_id = scoped(&record.conversation_id, &principal);
        record.extra.insert(ID.to_owned(), id.into());
        record.extra.shift_remove("principal");
        if let Some(extra) = &principal.extra {
            record.extra.insert("principal".to_owned(), extra.clone().into());
        }
    }
    let asked: Vec<String> =
        records.iter().filter(|record| record.speaker == Speaker::User).filter_map(id_of).collect();
    let queued = tokio::task::spawn_blocking(move || queue.append(&records)).await;
    queued.map_err(|_| ApiError::server("the turn queue failed"))?.map_err(|error| match error {
        QueueError::Full { .. } => ApiError::overload(error.to_string(), 1),
        QueueError::Connector(ConnectorError::Refused { reason }) => ApiError::bad(reason),
        QueueError::Connector(error) => ApiError::failed("the turn queue", &error),
    })?;
    let mut told = json!({ "queued": turns.len(), "turns": turns, "pipeline": served.name(), "after": after });
    if let (true, Some(log), Some(after)) = (wait, log, after) {
        let reader = Reader::new(log, None, principal, callers);
        let waited = wait_for(&reader, after, &asked, deadline);
        // The turns are stored: a failure to read their answers is not an error of the request.
        let mut found = drained.run_until_cancelled(waited).await.and_then(Result::ok).unwrap_or_default();
        let answers: Vec<Json> = asked.iter().filter_map(|id| found.remove(id)).collect();
        if answers.len() == asked.len() && !asked.is_empty() {
            return Ok(respond(answers, many));
        }
        told["answers"] = answers.into();
    }
    Ok((StatusCode::ACCEPTED, axum::Json(told)).into_response())
}

fn id_of(record: &TurnRecord) -> Option<String> {
    Some(record.extra.get(ID)?.as_str()?.to_owned())
}

/// The first answers to these turns that arrive before the deadline.
async fn wait_for(
    reader: &Reader,
    mut after: u64,
    asked: &[String],
    deadline: Deadline,
) -> Result<HashMap<String, Json>, ApiError> {
    let mut found = HashMap::new();
    let mut last = reader.log.last();
    while found.len() < asked.len() {
        last.borrow_and_update();
        let page = reader.page(after).await?;
        for answer in page.answers.iter().filter(|answer| !answer.record.retracted) {
            if let Some(id) =
                answer.record.extra.get(ID).and_then(Json::as_str).filter(|id| asked.iter().any(|of| of == id))
            {
                found.entry(id.to_owned()).or_insert_with(|| reader.shown(&answer.record));
            }
        }
        if let Some((_, last)) = page.range {
            after = last;
            continue;
        }
        let until = deadline.at.checked_sub(MARGIN).unwrap_or_else(Instant::now);
        match tokio::time::timeout_at(until.into(), last.changed()).await {
            Ok(Ok(())) => {}
            // The deadline has passed, or the sink no longer exists.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Ok(found)
}
