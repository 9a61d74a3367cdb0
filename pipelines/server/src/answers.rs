//! `/v1/answers`: the answers of the pipeline's sink `Answers`, as a list or as a stream of events.
//!
//! Each answer has a number. A client continues after the last one that it has seen, with `after` or the header
//! `Last-Event-ID`, even across a restart of the server. In a live pipeline, retractions and revisions
//! arrive like answers. A caller with a token sees only answers to its own turns, and its conversations are private:
//! in the pipeline, their ids are prefixed with the token's name.
//!
//! An answer was made with the groups that its caller had then. If the caller has lost one of them, the answer is
//! withheld, and the response says so. A stream ends with the token that opened it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use turnflow_engine::connector::{AnswerLog, AnswersOf, LoggedAnswer};
use turnflow_engine::record::{AnswerRecord, Status};
use utoipa::IntoParams;

use crate::app::{App, now};
use crate::auth::Principal;
use crate::body::Params;
use crate::callers::Callers;
use crate::error::ApiError;
use crate::limits;
use crate::served::Served;
use crate::sse;
use crate::turns::without_principal;

/// Maximum bytes of answers in a list.
const LIST_BYTES: usize = 8 << 20;
/// Maximum bytes of answers that a stream reads at once: a page of the log.
const STREAM_BYTES: usize = 4 << 20;
/// Number of answers read from the log at once.
const PAGE: usize = 100;
/// Maximum number of answers read for a list, even if few of them are the caller's.
const MOST_READ: usize = 10_000;

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AnswerParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// Only the answers of this conversation.
    conversation_id: Option<String>,
    /// The number after which to start. Default: 0, the oldest stored answer; for events, the last answer.
    after: Option<u64>,
    /// For a list: number of answers. Default: 100.
    limit: Option<usize>,
    /// Whether to send events, as with `Accept: text/event-stream`.
    #[serde(default)]
    stream: bool,
}

/// Lists answers, or sends them as events.
#[utoipa::path(get, path = "/v1/answers", tag = "turnflow", params(AnswerParams), responses(
    (status = 200, description = "The answers, and the number to continue after; or a stream of events", content((Value = "application/json"), (String = "text/event-stream"))),
    (status = 404, description = "The pipeline has no sink `Answers`")
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<AnswerParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let log = log(&served)?;
    let last = log.last();
    let limit = params.limit.unwrap_or(PAGE);
    if !(1..=1000).contains(&limit) {
        return Err(ApiError::bad("`limit` must be 1 to 1000").param("limit"));
    }
    if params.after.is_some_and(|after| i64::try_from(after).is_err()) {
        return Err(ApiError::bad("`after` is not a number of an answer").param("after"));
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_stream = params.stream || header("accept").is_some_and(|accept| accept.contains("text/event-stream"));
    let reader = Reader::new(log, params.conversation_id.as_deref(), principal.clone(), app.tokens().callers().clone());
    if is_stream {
        let place = principal.share.streams.clone().try_acquire_owned();
        let place = place.map_err(|_| ApiError::overload("too many open answer streams for this token", 5))?;
        let of_all = app.streams().try_acquire_owned();
        let of_all = of_all.map_err(|_| ApiError::overload("too many open answer streams", 5))?;
        let newest = *last.borrow();
        let seen = match header("last-event-id") {
            None => None,
            Some(id) => {
                let id = id.parse::<u64>().map_err(|_| ApiError::bad("`Last-Event-ID` must be an answer's number"))?;
                // The log was lost, and its numbers start again.
                Some(if id > newest { 0 } else { id })
            }
        };
        let after = seen.or(params.after).unwrap_or(newest);
        let drained = app.drained().clone();
        let events = Following { reader, last, after, drained, room: None, _places: [place, of_all] };
        return Ok(sse::response(events, Duration::from_secs_f64(app.config().keep_alive_s)));
    }
    // Before anything is read, so that lists that nobody reads are bounded.
    let _room = reader.principal.share.reserve(LIST_BYTES)?;
    let Listed { answers, next, has_more, withheld } = reader.list(params.after.unwrap_or(0), limit).await?;
    let data: Vec<Value> = answers.iter().map(|answer| reader.numbered(answer)).collect();
    let last = *last.borrow();
    let mut list = json!({ "object": "list", "data": data, "next": next, "has_more": has_more, "last": last });
    if withheld > 0 {
        // The caller has lost a group that it had when these answers were made.
        list["withheld"] = withheld.into();
    }
    Ok(axum::response::IntoResponse::into_response(Json(list)))
}

/// The answers of a pipeline.
///
/// # Errors
///
/// 404: it has no sink whose answers can be read.
pub fn log(served: &Served) -> Result<Arc<dyn AnswerLog>, ApiError> {
    served.engine().answer_log(None).ok_or_else(|| {
        ApiError::not_found(format!("the pipeline `{}` has no sink `Answers`: no answers are stored", served.name()))
    })
}

/// Reads the answers that a caller may see.
#[derive(Clone)]
pub struct Reader {
    /// The log.
    pub log: Arc<dyn AnswerLog>,
    /// The conversation's id in the pipeline; `None` for all.
    conversation: Option<Arc<str>>,
    principal: Arc<Principal>,
    callers: Arc<Callers>,
}

/// A page of the log.
pub struct Page {
    /// The answers that the caller may see.
    pub answers: Vec<LoggedAnswer>,
    /// The numbers of its first and last answer; `None` if it is empty.
    pub range: Option<(u64, u64)>,
    /// The numbers of the caller's answers that are withheld.
    withheld: Vec<u64>,
}

/// Answers of a list.
struct Listed {
    answers: Vec<LoggedAnswer>,
    /// The number to continue after.
    next: u64,
    /// Whether there may be more.
    has_more: bool,
    /// How many of the caller's are withheld.
    withheld: usize,
}

/// The pipeline's id of a caller's conversation. Callers do not share conversations.
pub fn scoped(conversation: &str, principal: &Principal) -> Arc<str> {
    match &principal.extra {
        None => conversation.into(),
        Some(_) => format!("{}:{conversation}", principal.name).into(),
    }
}

impl Reader {
    /// Reads the answers in all conversations of a caller, or in one.
    pub fn new(
        log: Arc<dyn AnswerLog>,
        conversation: Option<&str>,
        principal: Arc<Principal>,
        callers: Arc<Callers>,
    ) -> Self {
        let conversation = conversation.map(|conversation| scoped(conversation, &principal));
        Self { log, conversation, principal, callers }
    }

    /// A page of the log after a number.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub async fn page(&self, after: u64) -> Result<Page, ApiError> {
        let Self { log, conversation, principal, .. } = self.clone();
        let read = move || {
            let of = match (&conversation, &principal.extra) {
                (Some(conversation), _) => AnswersOf::Conversation(conversation),
                // Those of others cost nothing.
                (None, Some(_)) => AnswersOf::Caller(&principal.name),
                (None, None) => AnswersOf::All,
            };
            log.read(of, after, PAGE)
        };
        let page = tokio::task::spawn_blocking(read).await.map_err(|_| ApiError::server("the answer log failed"))?;
        let mut answers = page.map_err(|error| ApiError::failed("the answer log", &error))?;
        let range = answers.first().zip(answers.last()).map(|(first, last)| (first.number, last.number));
        let mut withheld = Vec::new();
        answers.retain(|answer| match self.sees(&answer.record) {
            Sees::All => true,
            Sees::Nothing => false,
            Sees::ThatItIsWithheld => {
                withheld.push(answer.number);
                false
            }
        });
        Ok(Page { answers, range, withheld })
    }

    /// At most `limit` answers after a number.
    async fn list(&self, after: u64, limit: usize) -> Result<Listed, ApiError> {
        let (mut listed, mut read, mut bytes) =
            (Listed { answers: Vec::new(), next: after, has_more: true, withheld: 0 }, 0, 0);
        while read < MOST_READ && bytes < LIST_BYTES {
            let page = self.page(listed.next).await?;
            let Some((_, last)) = page.range else {
                listed.has_more = false;
                return Ok(listed);
            };
            read += PAGE;
            listed.next = last;
            for answer in page.answers {
                let number = answer.number;
                bytes += answer.bytes;
                listed.answers.push(answer);
                if listed.answers.len() == limit {
                    listed.next = number;
                    listed.withheld += page.withheld.iter().filter(|withheld| **withheld < number).count();
                    return Ok(listed);
                }
            }
            listed.withheld += page.withheld.len();
        }
        Ok(listed)
    }

    /// The record as the caller sees it: without the server's data about the caller.
    pub fn shown(&self, record: &AnswerRecord) -> Value {
        let mut value = without_principal(record);
        if self.principal.extra.is_some() {
            let own = record.conversation_id.strip_prefix(&*self.principal.name).and_then(|id| id.strip_prefix(':'));
            value["conversation_id"] = json!(own.unwrap_or(&record.conversation_id));
        }
        value
    }

    fn numbered(&self, answer: &LoggedAnswer) -> Value {
        let mut value = self.shown(&answer.record);
        value["number"] = json!(answer.number);
        value
    }

    /// What the caller may see of an answer: all of it, if the turn was the caller's, and if the caller still has the
    /// groups with which it was answered.
    fn sees(&self, record: &AnswerRecord) -> Sees {
        let Some(_) = &self.principal.extra else { return Sees::All };
        let before = record.extra.get("principal").and_then(Value::as_object);
        match before.filter(|before| before.get("name").and_then(Value::as_str) == Some(&*self.principal.name)) {
            None => Sees::Nothing,
            // A newer token of the caller may say less than the one of this request.
            Some(before) if self.principal.still_has(before) && self.callers.may_have(before) => Sees::All,
            Some(_) => Sees::ThatItIsWithheld,
        }
    }
}

/// What a caller sees of an answer.
enum Sees {
    All,
    /// It is the caller's, but was made with groups that the caller no longer has.
    ThatItIsWithheld,
    Nothing,
}

/// A stream of answers.
struct Following {
    reader: Reader,
    last: watch::Receiver<u64>,
    after: u64,
    /// Cancelled when the server is about to stop.
    drained: CancellationToken,
    /// The bytes that are read and not sent.
    room: Option<OwnedSemaphorePermit>,
    _places: [OwnedSemaphorePermit; 2],
}

/// Waits until a token is no longer valid.
pub(crate) async fn expired(until: Option<u64>) {
    match until {
        Some(until) => tokio::time::sleep(Duration::from_secs(until.saturating_sub(now()))).await,
        None => std::future::pending().await,
    }
}

impl sse::Events for Following {
    async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
        let ended = |reason: &str| sse::event("end", &json!({ "reason": reason }));
        // What was read before is sent.
        self.room = None;
        loop {
            if self.reader.principal.until.is_some_and(|until| now() >= until) {
                out.push_back(ended("the token has expired"));
                return false;
            }
            if self.drained.is_cancelled() {
                out.push_back(ended("the server is stopping"));
                return false;
            }
            // Before reading, so that no answer is missed in between.
            let newest = *self.last.borrow_and_update();
            let has_more = newest > self.after;
            // A stream that has something to read waits until the others of the token have been read.
            let mut room = match has_more {
                true => self.reader.principal.share.room(STREAM_BYTES).await,
                false => None,
            };
            match self.reader.page(self.after).await {
                Ok(Page { answers, range: Some((_, last)), withheld }) => {
                    self.after = last;
                    if let Some(room) = &mut room {
                        limits::shrink(room, answers.iter().map(|answer| answer.bytes).sum());
                    }
                    self.room = room;
                    let withheld = withheld.iter().map(|number| {
                        let reason = "you are no longer in a group with which it was made";
                        let told = json!({ "number": number, "reason": reason });
                        (*number, sse::numbered_event(*number, "withheld", &told))
                    });
                    let shown = answers.iter().map(|answer| {
                        let (number, name) = (answer.number, name_of(&answer.record));
                        (number, sse::numbered_event(number, name, &self.reader.numbered(answer)))
                    });
                    let mut events: Vec<(u64, Bytes)> = withheld.chain(shown).collect();
                    // A client continues after the last number that it has seen.
                    events.sort_by_key(|(number, _)| *number);
                    out.extend(events.into_iter().map(|(_, event)| event));
                    return true;
                }
                Ok(Page { range: None, .. }) => {
                    // What comes up to there is of others.
                    self.after = self.after.max(newest);
                    drop(room);
                }
                Err(error) => {
                    out.push_back(sse::event("error", &error.body()));
                    return false;
                }
            }
            tokio::select! {
                () = self.drained.cancelled() => {}
                () = expired(self.reader.principal.until) => {}
                changed = self.last.changed() => if changed.is_err() {
                    out.push_back(ended("the sink no longer exists"));
                    return false;
                },
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
