//! `/v1/turns`: turns as records, and their answers as records or as events.
//!
//! Records of one request are answered in order. Those of the same conversation are each other's
//! history: the agent's record if there is one, or else the answer itself. With `durable=true` they go into
//! the pipeline's source `Turns` instead (`durable.rs`). The field `history` contains the previous utterances, and the
//! field `adjust` the changes to the plan for this turn:
//! `{"skip": ["node"], "weights": {"node": [0.7, 0.3]}}`. With `"live": true` in the last record, the answer is followed
//! (`live.rs`), and with `resume=ID` the turn goes on without its client (`resume.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;
use turnflow_engine::adjust::Adjustments;
use turnflow_engine::ask::{AnswerStream, AskRequest, Event};
use turnflow_engine::record::{AnswerRecord, Speaker, Status, TurnRecord, Utterance, Value};

use crate::answered::{Answered, Asked};
use crate::app::App;
use crate::asking::{begun, check_collection, hidden};
use crate::auth::Principal;
use crate::body::{Content, Many, Params};
use crate::callers::Callers;
use crate::citations::{Sources, Titles};
use crate::durable;
use crate::error::ApiError;
use crate::limits::{Deadline, HeldPlace};
use crate::links::Links;
use crate::live::{Live, Next};
use crate::served::Served;
use crate::{resume, shares, sse};

/// The parameters of the URL.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TurnParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// Whether to send events, as with `Accept: text/event-stream`.
    #[serde(default)]
    stream: bool,
    /// Whether the events include the value of every node.
    #[serde(default)]
    trace: bool,
    /// Whether the turns go through the pipeline's source `Turns`: they survive a restart, and their answers go to its
    /// sinks.
    #[serde(default)]
    durable: bool,
    /// For durable turns: whether to wait for the answers.
    #[serde(default)]
    wait: bool,
    /// For a stream: an id that the client chooses, 8 to 128 letters, digits, `-` and `_`. The turn goes on when the client is
    /// gone, and `GET /v1/turns/ID` reads its events again.
    resume: Option<String>,
}

/// The caller, the pipeline, and the form of the records.
pub(crate) struct Caller {
    pub served: Arc<Served>,
    pub principal: Arc<Principal>,
    pub callers: Arc<Callers>,
    pub many: Many,
    /// Cancelled when the server shuts down.
    pub drained: CancellationToken,
}

/// Answers turns.
#[utoipa::path(post, path = "/v1/turns", tag = "turnflow", params(TurnParams), request_body(content((Json = "application/json"), (Json = "application/x-ndjson"))), responses(
    (status = 200, description = "The record of the answer, or of each answer; or a stream of events", content((Json = "application/json"), (Json = "application/x-ndjson"), (String = "text/event-stream"))),
    (status = 202, description = "Durable turns: they are stored, but not all of them are answered yet", body = Json),
    (status = 400, description = "A record is invalid")
))]
pub async fn create(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    Extension(place): Extension<HeldPlace>,
    Params(params): Params<TurnParams>,
    headers: HeaderMap,
    content: Content,
) -> Result<Response, ApiError> {
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let (values, many) = content.values(app.config().limits.batch)?;
    // The request itself is counted already.
    principal.share.bucket.charge(values.len().saturating_sub(1));
    let mut records = VecDeque::new();
    for (at, value) in values.into_iter().enumerate() {
        records.push_back(record(value, at, &served)?);
    }
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let lives = live(&records)?;
    let is_stream = params.stream || lives || accepts.contains("text/event-stream");
    if params.durable {
        if is_stream || params.trace {
            let field = if lives { "live" } else { "durable" };
            return Err(ApiError::bad("durable turns do not stream events: read `/v1/answers`").param(field));
        }
        let records = records.into_iter().enumerate().map(|(at, turn)| turn.durable(at));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        return durable::create(
            Caller { served, principal, callers: app.tokens().callers().clone(), many, drained: app.drained().clone() },
            deadline,
            records,
            params.wait,
        )
        .await;
    }
    if params.wait {
        return Err(ApiError::bad("`wait` needs `durable=true`").param("wait"));
    }
    if let Some(id) = &params.resume {
        resume::check(id)?;
        if !is_stream {
            return Err(ApiError::bad("`resume` needs `stream=true`").param("resume"));
        }
    }
    begun(&served).await?;
    let trace = params.trace && is_stream;
    let said = HashMap::new();
    let live = lives.then(|| Live::new(&app, &principal, place.clone())).transpose()?;
    let links = Links::of(&app, Some(&headers), &principal, &served);
    let mut turns = Turns {
        served,
        principal: principal.clone(),
        deadline,
        records,
        said,
        trace,
        is_stream,
        running: None,
        live,
        links,
        titles: Titles::default(),
    };
    if let Some(id) = params.resume {
        return resume::begin(&app, principal, id, place, turns);
    }
    if is_stream {
        return Ok(sse::response(turns, Duration::from_secs_f64(app.config().keep_alive_s)));
    }
    let mut answers = Vec::new();
    while turns.begin() {
        loop {
            match turns.event().await? {
                Told::Answer(record) => {
                    answers.push(turns.shown(&record));
                    break;
                }
                Told::Other(..) | Told::Revised(_) | Told::End(_) => {}
            }
        }
    }
    Ok(respond(answers, many))
}

/// Whether the last answer is followed.
fn live(records: &VecDeque<AskedTurn>) -> Result<bool, ApiError> {
    let last = records.len().saturating_sub(1);
    match records.iter().position(|turn| turn.live) {
        None => Ok(false),
        Some(at) if at == last && records[at].record.speaker == Speaker::User => Ok(true),
        Some(at) => {
            let problem = format!("record {}: `live` belongs to the last record, if that is a question", at + 1);
            Err(ApiError::bad(problem).param("live"))
        }
    }
}

/// The answers, in the same form as the records.
pub(crate) fn respond(mut answers: Vec<Json>, many: Many) -> Response {
    match many {
        Many::One => axum::Json(answers.pop().unwrap_or(Json::Null)).into_response(),
        Many::Array => axum::Json(answers).into_response(),
        Many::Lines => {
            let lines: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
            ([(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))], lines).into_response()
        }
    }
}

/// A record with the additions of a request.
struct AskedTurn {
    record: TurnRecord,
    history: Vec<Utterance>,
    adjust: Adjustments,
    /// Whether its answer is followed.
    live: bool,
}

impl AskedTurn {
    /// The record, if the request adds nothing.
    fn durable(self, at: usize) -> Result<TurnRecord, ApiError> {
        let field = match self {
            Self { record, history, adjust, .. } if history.is_empty() && adjust.is_empty() => return Ok(record),
            Self { adjust, .. } if !adjust.is_empty() => "adjust",
            Self { .. } => "history",
        };
        let problem =
            format!("record {}: a durable turn accepts no `{field}`; the engine keeps its conversation", at + 1);
        Err(ApiError::bad(problem).param(field))
    }
}

/// The field `adjust`: the changes to the plan for one turn.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Adjust {
    skip: BTreeSet<Arc<str>>,
    weights: BTreeMap<Arc<str>, Arc<[f32]>>,
}

/// Reads a record, its history and its adjustments.
fn record(mut value: Json, at: usize, served: &Served) -> Result<AskedTurn, ApiError> {
    let wrong = |problem: String| ApiError::bad(format!("record {}: {problem}", at + 1));
    let mut taken =
        |field: &str| value.as_object_mut().and_then(|fields| fields.remove(field)).filter(|of| !of.is_null());
    let history = match taken("history") {
        None => Vec::new(),
        Some(history) => {
            serde_json::from_value(history).map_err(|error| wrong(format!("`history`: {error}")).param("history"))?
        }
    };
    let Adjust { skip, weights } = match taken("adjust") {
        None => Adjust::default(),
        Some(adjust) => {
            serde_json::from_value(adjust).map_err(|error| wrong(format!("`adjust`: {error}")).param("adjust"))?
        }
    };
    let live = match taken("live") {
        None => false,
        Some(Json::Bool(live)) => live,
        Some(_) => return Err(wrong("`live` must be true or false".to_owned()).param("live")),
    };
    let record = TurnRecord::parse(value.to_string().as_bytes()).map_err(|error| wrong(error.to_string()))?;
    if record.speaker == Speaker::User {
        check_collection(&served.outline(), record.collection.as_deref())?;
    }
    Ok(AskedTurn { record, history, adjust: Adjustments { skip, weights, ..Adjustments::default() }, live })
}

/// A record without the server's data about the caller, and without addresses and paths in its error if the caller has
/// a token.
pub(crate) fn without_principal(record: &AnswerRecord) -> Json {
    let mut value = serde_json::to_value(record).unwrap_or_default();
    let has_token = value.as_object_mut().is_some_and(|fields| fields.shift_remove("principal").is_some());
    if let Some(error) = record.error.as_deref().filter(|_| has_token) {
        value["error"] = hidden(error).into();
    }
    value
}

/// Turns that are answered in sequence.
struct Turns {
    served: Arc<Served>,
    principal: Arc<Principal>,
    deadline: Deadline,
    records: VecDeque<AskedTurn>,
    /// The utterances of each conversation.
    said: HashMap<Arc<str>, Vec<Utterance>>,
    trace: bool,
    is_stream: bool,
    running: Option<RunningTurn>,
    /// The last answer is followed.
    live: Option<Live>,
    links: Links,
    /// The titles of passages.
    titles: Titles,
}

struct RunningTurn {
    conversation: Arc<str>,
    turn: u32,
    question: Arc<str>,
    collection: Option<Arc<str>>,
    events: AnswerStream,
    /// Its answer is sent, and is followed.
    follows: bool,
}

enum Told {
    /// The turn is complete.
    Answer(Box<AnswerRecord>),
    /// The answer that is followed is another one.
    Revised(Box<AnswerRecord>),
    /// It is not followed any more; why.
    End(Json),
    /// The name of another event, and its fields.
    Other(&'static str, Json),
}

impl Turns {
    /// Asks the next turn; false after the last.
    fn begin(&mut self) -> bool {
        while let Some(AskedTurn { record, history, adjust, live }) = self.records.pop_front() {
            let said = self.said.entry(record.conversation_id.clone()).or_default();
            if !history.is_empty() {
                *said = history;
            }
            if record.speaker == Speaker::Agent {
                // The agent's record counts, not the answer from here.
                if said.last().is_some_and(|last| last.speaker == Speaker::Agent) {
                    said.pop();
                }
                said.push(Utterance { speaker: Speaker::Agent, text: record.text });
                continue;
            }
            let mut request = AskRequest::new(record.text.clone());
            request.history = said.clone();
            said.push(Utterance { speaker: Speaker::User, text: record.text });
            request.conversation_id = record.conversation_id.clone();
            request.turn = record.turn;
            request.collection = record.collection;
            request.timestamp = record.timestamp;
            request.extra = record.extra;
            // The server determines who asks, not the record.
            request.extra.shift_remove("principal");
            request.trace = self.trace;
            request.stream = self.is_stream;
            request.adjust = adjust;
            request.follow = live;
            if let Some(extra) = &self.principal.extra {
                request.extra.insert("principal".to_owned(), extra.clone().into());
            }
            let (question, collection) = (request.text.clone(), request.collection.clone());
            let events = self.served.engine().ask(request);
            let (conversation, turn, follows) = (record.conversation_id, record.turn, false);
            self.running = Some(RunningTurn { conversation, turn, question, collection, events, follows });
            return true;
        }
        false
    }

    /// The record, with what the answer's text cites, the titles of passages, and the proof that the caller may share it.
    fn shown(&self, record: &AnswerRecord) -> Json {
        let mut value = without_principal(record);
        value["citations"] = json!(Sources::of(record, &self.links, &self.titles).cited(&record.answer));
        for (shown, hit) in value["hits"].as_array_mut().into_iter().flatten().zip(&record.hits) {
            if let Some(title) = self.titles.of(hit) {
                shown["title"] = json!(title);
            }
        }
        if let Some(running) = &self.running {
            value["proof"] = shares::proof(&self.served, &self.principal, &running.question, &value).into();
        }
        value
    }

    /// The next event of the running turn.
    async fn event(&mut self) -> Result<Told, ApiError> {
        let ended = || ApiError::unavailable("the pipeline has stopped");
        let running = self.running.as_mut().ok_or_else(ended)?;
        if let Some(live) = self.live.as_ref().filter(|_| running.follows) {
            return Ok(match live.next(&mut running.events).await {
                Next::Revised(record) => Told::Revised(record),
                Next::End(reason) => Told::End(reason),
            });
        }
        match self.deadline.within(running.events.next()).await? {
            Some(Event::Started { epoch }) => Ok(Told::Other("started", json!({ "epoch": epoch }))),
            Some(Event::Node { node, value, took, warnings }) => {
                if let Value::Answer(answer) = &value {
                    self.titles.extend(&answer.hits);
                }
                let took_ms = took.map(|took| took.as_secs_f64() * 1000.0);
                let mut fields = json!({ "node": node, "value": value, "took_ms": took_ms, "warnings": warnings });
                if let (Some(_), Some(failure)) = (&self.principal.extra, fields["value"].get_mut("Failed")) {
                    let reason = failure["reason"].as_str().unwrap_or_default();
                    tracing::warn!(%node, reason, "a node failed");
                    failure["reason"] = hidden(reason).into();
                }
                Ok(Told::Other("node", fields))
            }
            Some(Event::Delta { node, text }) => Ok(Told::Other("delta", json!({ "node": node, "text": text }))),
            Some(Event::Answer { record }) => {
                if record.status != Status::Failed {
                    let history = self.said.get(&running.conversation).map(Vec::as_slice).unwrap_or_default();
                    let asked = Asked {
                        conversation: running.conversation.clone(),
                        turn: running.turn,
                        question: running.question.clone(),
                        history: history.split_last().map(|(_, before)| before.to_vec()).unwrap_or_default(),
                        collection: running.collection.clone(),
                    };
                    let passages = Sources::of(&record, &self.links, &self.titles).based_on(&record.answer);
                    let answered = Answered { asked, answer: record.answer.to_string(), passages };
                    self.served.recent().add(&self.principal.name, None, answered);
                }
                if let Some(said) = self.said.get_mut(&running.conversation) {
                    said.push(Utterance { speaker: Speaker::Agent, text: record.answer.clone() });
                }
                Ok(Told::Answer(record))
            }
            Some(Event::Revised { record }) => Ok(Told::Revised(record)),
            Some(Event::Failed { reason }) => Err(reason.into()),
            None => Err(ended()),
        }
    }
}

impl sse::Events for Turns {
    async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
        if self.running.is_none() && !self.begin() {
            return false;
        }
        let label = self.running.as_ref().map(|running| (running.conversation.clone(), running.turn));
        let tell = |name: &str, mut fields: Json| {
            if let Some((conversation, turn)) = &label {
                fields["conversation_id"] = json!(conversation);
                fields["turn"] = json!(turn);
            }
            sse::event(name, &fields)
        };
        match self.event().await {
            Ok(Told::Other(name, fields)) => out.push_back(tell(name, fields)),
            Ok(Told::Answer(record)) => {
                let name = if record.status == Status::Failed { "failed" } else { "answer" };
                out.push_back(tell(name, self.shown(&record)));
                match (&self.live, &mut self.running) {
                    (Some(live), Some(running)) if self.records.is_empty() => {
                        live.is_answered();
                        running.follows = true;
                    }
                    _ => self.running = None,
                }
            }
            Ok(Told::Revised(record)) => out.push_back(tell("revised", self.shown(&record))),
            Ok(Told::End(reason)) => {
                out.push_back(tell("end", reason));
                self.running = None;
                return false;
            }
            Err(error) => {
                out.push_back(tell("failed", error.body()));
                self.running = None;
                // The next turns of the conversation need this answer.
                return false;
            }
        }
        true
    }
}
