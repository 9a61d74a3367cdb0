//! `/v1/answers`: the answers of the pipeline's sink `Answers`, as a list, or as events that follow.
//!
//! Each answer has a number. A client goes on after the last one that it has seen, by `after` or by the header
//! `Last-Event-ID`, also when the server was started again meanwhile. In a live pipeline, retractions and revisions
//! come like answers. A caller with a token sees the answers of its own turns only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use turnflow_engine::connector::{AnswerLog, LoggedAnswer};
use turnflow_engine::record::{AnswerRecord, Status};
use utoipa::IntoParams;

use crate::app::{App, Served};
use crate::auth::Principal;
use crate::body::Params;
use crate::error::ApiError;
use crate::sse;
use crate::turns::without_principal;

/// Answers that are read from the log at once.
const PAGE: usize = 100;
/// A list ends after so many answers of the log, also if few of them are the caller's.
const MOST_READ: usize = 10_000;

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AnswerParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// Only the answers of this conversation.
    conversation_id: Option<String>,
    /// The number after which to begin. Default: 0, the oldest answer that is kept; for events, the last answer.
    after: Option<u64>,
    /// For a list: number of answers. Default: 100.
    limit: Option<usize>,
    /// Whether to send events, as with `Accept: text/event-stream`.
    #[serde(default)]
    stream: bool,
}

/// Lists answers, or sends them as events.
#[utoipa::path(get, path = "/v1/answers", tag = "turnflow", params(AnswerParams), responses(
    (status = 200, description = "The answers, and the number to go on after; or a stream of events", body = Value),
    (status = 404, description = "The pipeline has no sink `Answers`")
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<AnswerParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Err(after) = principal.bucket.take(Instant::now()) {
        return Err(ApiError::overload("too many requests a second for this token", after.as_secs().max(1)));
    }
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let log = log(&served)?;
    let last = log.last();
    let limit = params.limit.unwrap_or(PAGE);
    if !(1..=1000).contains(&limit) {
        return Err(ApiError::bad("`limit` is 1 to 1000").param("limit"));
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_stream = params.stream || header("accept").is_some_and(|accept| accept.contains("text/event-stream"));
    let seen = header("last-event-id").and_then(|id| id.parse().ok());
    let reader = Reader { log, conversation: params.conversation_id.map(Into::into), principal };
    if is_stream {
        let place = app.streams().try_acquire_owned();
        let place = place.map_err(|_| ApiError::overload("too many streams of answers are open", 5))?;
        let after = seen.or(params.after).unwrap_or_else(|| *last.borrow());
        let events = Following { reader, last, after, drained: app.drained().clone(), _place: place };
        return Ok(sse::response(events, Duration::from_secs_f64(app.config().keep_alive_s)));
    }
    let (answers, next) = reader.list(params.after.unwrap_or(0), limit).await?;
    let data: Vec<Value> = answers.iter().map(numbered).collect();
    let last = *last.borrow();
    let list = json!({ "object": "list", "data": data, "next": next, "has_more": next < last, "last": last });
    Ok(axum::response::IntoResponse::into_response(Json(list)))
}

/// The answers of a pipeline.
///
/// # Errors
///
/// 404: it has no sink whose answers can be read.
pub fn log(served: &Served) -> Result<Arc<dyn AnswerLog>, ApiError> {
    served.engine().answer_log(None).ok_or_else(|| {
        ApiError::not_found(format!("the pipeline `{}` has no sink `Answers`: its answers are not kept", served.name()))
    })
}

/// Reads the answers that a caller may see.
#[derive(Clone)]
pub struct Reader {
    /// The log.
    pub log: Arc<dyn AnswerLog>,
    /// The conversation; `None` for all.
    pub conversation: Option<Arc<str>>,
    /// The caller.
    pub principal: Arc<Principal>,
}

impl Reader {
    /// A page of the log after a number: the answers in it that the caller may see, and the number of its last one.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub async fn page(&self, after: u64) -> Result<(Vec<LoggedAnswer>, Option<u64>), ApiError> {
        let Self { log, conversation, .. } = self.clone();
        let read = move || log.read(conversation.as_deref(), after, PAGE);
        let page =
            tokio::task::spawn_blocking(read).await.map_err(|_| ApiError::server("the log of answers failed"))?;
        let mut page = page.map_err(|error| ApiError::failed("the log of answers", &error))?;
        let last = page.last().map(|answer| answer.number);
        page.retain(|answer| self.may_see(&answer.record));
        Ok((page, last))
    }

    /// At most `limit` answers after a number, and the number to go on after.
    async fn list(&self, after: u64, limit: usize) -> Result<(Vec<LoggedAnswer>, u64), ApiError> {
        let (mut found, mut after, mut read) = (Vec::new(), after, 0);
        while read < MOST_READ {
            let (page, Some(last)) = self.page(after).await? else { break };
            read += PAGE;
            after = last;
            for answer in page {
                let number = answer.number;
                found.push(answer);
                if found.len() == limit {
                    return Ok((found, number));
                }
            }
        }
        Ok((found, after))
    }

    /// Whether the turn was the caller's.
    fn may_see(&self, record: &AnswerRecord) -> bool {
        match &self.principal.extra {
            None => true,
            Some(_) => {
                record.extra.get("principal").and_then(|of| of.get("name")?.as_str()) == Some(&*self.principal.name)
            }
        }
    }
}

/// An answer with its number.
fn numbered(answer: &LoggedAnswer) -> Value {
    let mut value = without_principal(&answer.record);
    value["number"] = json!(answer.number);
    value
}

/// Answers as they come.
struct Following {
    reader: Reader,
    last: watch::Receiver<u64>,
    after: u64,
    /// Cancelled when the server is about to end.
    drained: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl sse::Events for Following {
    async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
        loop {
            // Before reading, so that no answer is missed in between.
            self.last.borrow_and_update();
            match self.reader.page(self.after).await {
                Ok((page, Some(last))) => {
                    self.after = last;
                    out.extend(
                        page.iter().map(|answer| {
                            sse::numbered_event(answer.number, name_of(&answer.record), &numbered(answer))
                        }),
                    );
                    return true;
                }
                Ok((_, None)) => {}
                Err(error) => {
                    out.push_back(sse::event("error", &error.body()));
                    return false;
                }
            }
            tokio::select! {
                () = self.drained.cancelled() => return false,
                // An error: the sink is gone.
                changed = self.last.changed() => if changed.is_err() { return false },
            }
        }
    }
}

/// The event's name.
fn name_of(record: &AnswerRecord) -> &'static str {
    match record.status {
        _ if record.retracted => "retracted",
        Status::Failed => "failed",
        Status::Answered | Status::Idk => "answer",
    }
}
