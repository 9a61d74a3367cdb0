//! `/v1/feedback`: what people say about answers.
//!
//! Each is a line of `feedback.jsonl` in the pipeline's state directory, on disk before the request is answered.
//! `turnflow import feedback` makes tasks and judgements of them. A line that has its question needs no log of turns beside
//! it: the client sends it along, or the server knows what it has answered of late (`answered.rs`) or has stored
//! (`stored.rs`).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::{Extension, Json};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use turnflow_engine::record::Utterance;
use utoipa::ToSchema;

use crate::answered::{Answered, Named};
use crate::app::{App, now};
use crate::auth::Principal;
use crate::body::{Content, Params};
use crate::error::ApiError;
use crate::served::Served;
use crate::stored;

/// Most bytes of a line: the whole history of a long conversation fits.
const LONGEST: usize = 256 * 1024;
/// Most bytes of feedback that is joined with its answer: the rest of its line fits too.
const MOST_JOINED: usize = LONGEST - 4096;
/// The largest file, in bytes.
const LARGEST: u64 = 1 << 30;

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FeedbackParams {
    /// The pipeline that answered. Default: the first.
    pipeline: Option<String>,
}

/// What somebody says about an answer, or about a passage of it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// The id of the answer, such as that of a chat completion; or else the conversation and the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    /// The conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// The number of the turn in the conversation, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// Whether it was helpful.
    pub helpful: bool,
    /// The id of the passage that is meant. Default: the answer is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passage: Option<String>,
    /// Why, in the person's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The ids of the passages that the answer cites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passages: Vec<String>,
    /// What was said before the question, as `{"speaker", "text"}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Value>)]
    pub history: Vec<Utterance>,
    /// The collection that was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
}

impl Feedback {
    fn check(&self) -> Result<(), ApiError> {
        let is_named = |id: &Option<String>| id.as_deref().is_some_and(|id| !id.trim().is_empty());
        match (is_named(&self.turn_id), is_named(&self.conversation_id), self.turn) {
            (true, ..) | (_, true, Some(1..)) => Ok(()),
            (_, true, _) => Err(ApiError::bad("`turn` must be the number of the turn, from 1").param("turn")),
            _ => Err(ApiError::bad("feedback needs `turn_id`, or `conversation_id` and `turn`").param("turn_id")),
        }
    }

    /// How it names the answer.
    fn names(&self) -> Vec<Named> {
        let id = self.turn_id.clone().filter(|id| !id.trim().is_empty()).map(Named::Id);
        let turn = self.conversation_id.as_deref().zip(self.turn).map(|(id, turn)| Named::Turn(id.into(), turn));
        id.into_iter().chain(turn).collect()
    }

    /// Adds what it lacks of the answer that it names, and the newest utterances of its history that fit.
    fn join(&mut self, answered: &Answered, fits: impl FnMut(&&Utterance) -> bool) {
        let Answered { asked, answer, passages } = answered;
        if self.conversation_id.is_none() || self.turn.is_none() {
            self.conversation_id = Some(asked.conversation.to_string());
            self.turn = Some(asked.turn.into());
        }
        // The history is that of the question.
        if self.question.is_none() {
            self.question = Some(asked.question.to_string());
            self.history = asked.history.iter().rev().take_while(fits).cloned().collect();
            self.history.reverse();
        }
        self.answer.get_or_insert_with(|| answer.clone());
        if self.passages.is_empty() {
            self.passages = passages.iter().map(ToString::to_string).collect();
        }
        if self.collection.is_none() {
            self.collection = asked.collection.as_deref().map(str::to_owned);
        }
    }

    /// The same, joined with an answer, with so many bytes at most. Of a history that is too long, the oldest part is left out.
    /// `None`: it is too long even so.
    fn joined(&self, answered: &Answered, most: usize) -> Option<Self> {
        let Answered { asked, answer, .. } = answered;
        let needs = |own: &Option<String>, theirs: &str| own.as_deref().unwrap_or(theirs).len();
        let mut left = most.checked_sub(needs(&self.question, &asked.question) + needs(&self.answer, answer))?;
        let mut joined = self.clone();
        joined.join(answered, |utterance| {
            // The text of a line is never shorter than what was said.
            let fits = left.checked_sub(utterance.text.len());
            left = fits.unwrap_or_default();
            fits.is_some()
        });
        while json!(joined).to_string().len() > most {
            if self.question.is_some() || joined.history.is_empty() {
                return None;
            }
            joined.history.drain(..joined.history.len().div_ceil(2));
        }
        Some(joined)
    }
}

/// The feedback on the answers of a pipeline, in a file.
pub struct FeedbackLog {
    path: PathBuf,
    /// One line at a time.
    writing: Mutex<()>,
}

impl FeedbackLog {
    /// The log of a state directory.
    pub fn new(state: &std::path::Path) -> Self {
        Self { path: state.join("feedback.jsonl"), writing: Mutex::default() }
    }

    /// Appends a line; it is on disk when this returns. Blocks.
    fn add(&self, line: &[u8]) -> std::io::Result<()> {
        let _one = self.writing.lock();
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(&self.path)?;
        let length = file.metadata()?.len();
        if length >= LARGEST {
            return Err(std::io::Error::other("the file is full: move it away"));
        }
        let added = (|| {
            // A line that a crash cut off ends here.
            if length > 0 && !ends_a_line(&mut file)? {
                file.write_all(b"\n")?;
            }
            file.write_all(line)?;
            file.sync_data()
        })();
        if added.is_err() {
            let _ = file.set_len(length);
        }
        added
    }
}

fn ends_a_line(file: &mut std::fs::File) -> std::io::Result<bool> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Finds the answer that feedback names: in a pipeline of this name, or in those that the caller may use.
async fn answer_of(
    app: &App,
    principal: &Principal,
    pipeline: Option<&str>,
    feedback: &Feedback,
) -> Result<(Arc<Served>, Option<Arc<Answered>>), ApiError> {
    let first = app.pipeline(pipeline, principal)?;
    let all: Vec<_> = match pipeline {
        Some(_) => vec![first.clone()],
        None => app.pipelines_of(principal).cloned().collect(),
    };
    let names = feedback.names();
    for served in &all {
        if let Some(found) = names.iter().find_map(|name| served.recent().find(&principal.name, name)) {
            return Ok((served.clone(), Some(found)));
        }
    }
    let Some(id) = &feedback.turn_id else { return Ok((first, None)) };
    for served in all {
        // What somebody says is kept, also if the store cannot be read; the log says why.
        if let Ok(Some(stored)) = stored::of(&served, principal, id).await
            && let Some(found) = Answered::stored(&stored)
        {
            return Ok((served, Some(Arc::new(found))));
        }
    }
    Ok((first, None))
}

/// The same feedback, joined with what this process has answered; `None` if there is nothing to add. A process of a cluster
/// that forwards it knows its own answers only.
pub(crate) async fn joined(app: &App, principal: &Principal, uri: &Uri, body: &[u8]) -> Option<Vec<u8>> {
    let feedback: Feedback = serde_json::from_slice(body).ok()?;
    let params = Query::<FeedbackParams>::try_from_uri(uri).ok()?;
    let (_, found) = answer_of(app, principal, params.pipeline.as_deref(), &feedback).await.ok()?;
    serde_json::to_vec(&feedback.joined(&*found?, MOST_JOINED)?).ok()
}

/// Keeps what somebody says about an answer.
#[utoipa::path(post, path = "/v1/feedback", tag = "turnflow", params(FeedbackParams), request_body = Feedback, responses(
    (status = 200, description = "It is kept. `joined`: whether its question is known, from the request or because the server knows the answer", body = Value),
    (status = 400, description = "It names no answer")
))]
pub async fn create(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<FeedbackParams>,
    content: Content,
) -> Result<Json<Value>, ApiError> {
    let feedback: Feedback = content.json()?;
    feedback.check()?;
    let (served, found) = answer_of(&app, &principal, params.pipeline.as_deref(), &feedback).await?;
    let log =
        served.feedback().ok_or_else(|| ApiError::not_found("this server has no state directory for feedback"))?;
    // What does not fit beside the answer is kept alone.
    let feedback = found.and_then(|found| feedback.joined(&found, MOST_JOINED)).unwrap_or(feedback);
    let joined = feedback.question.is_some();
    let mut record = json!(feedback);
    record["pipeline"] = json!(served.name());
    record["timestamp"] = json!(now());
    if principal.extra.is_some() {
        record["caller"] = json!(principal.name);
    }
    let line = format!("{record}\n").into_bytes();
    if line.len() > LONGEST {
        return Err(ApiError::bad(format!("feedback may have {} KiB", LONGEST / 1024)));
    }
    let added = tokio::task::spawn_blocking(move || log.add(&line)).await;
    let added = added.map_err(|_| ApiError::server("the feedback could not be kept"))?;
    added.map_err(|error| ApiError::failed("the file of feedback", &error))?;
    app.metrics().feedback(served.name(), feedback.helpful, joined);
    Ok(Json(json!({ "object": "feedback", "kept": true, "joined": joined })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answered::Asked;

    #[test]
    fn feedback_names_an_answer() {
        let check = |value: Value| serde_json::from_value::<Feedback>(value).unwrap().check();
        assert_eq!(check(json!({"turn_id": "chatcmpl-1", "helpful": true})), Ok(()));
        assert_eq!(check(json!({"conversation_id": "c", "turn": 2, "helpful": false})), Ok(()));
        for (value, param) in [
            (json!({"helpful": true}), "turn_id"),
            (json!({"conversation_id": "c", "helpful": true}), "turn"),
            (json!({"conversation_id": "c", "turn": 0, "helpful": true}), "turn"),
            (json!({"turn_id": " ", "turn": 1, "helpful": true}), "turn_id"),
        ] {
            assert_eq!(check(value).unwrap_err().param.as_deref(), Some(param));
        }
        assert!(serde_json::from_value::<Feedback>(json!({"turn_id": "a", "helpfull": true})).is_err());
    }

    #[test]
    fn what_is_known_of_the_answer_is_added() {
        let read = |value: Value| serde_json::from_value::<Feedback>(value).unwrap();
        let said = |text: &str| Utterance { speaker: turnflow_engine::record::Speaker::User, text: text.into() };
        let history = vec![said(&"old ".repeat(LONGEST)), said("new")];
        let asked = Asked { conversation: "c".into(), turn: 3, question: "why?".into(), history, collection: None };
        let answered = Answered { asked, answer: "because".to_owned(), passages: vec!["a#0".into()] };
        let feedback = read(json!({ "turn_id": "x", "helpful": true }));
        let expected = json!({
            "turn_id": "x", "conversation_id": "c", "turn": 3, "helpful": true, "question": "why?", "answer": "because",
            "passages": ["a#0"], "history": [said("new")],
        });
        assert_eq!(json!(feedback.joined(&answered, MOST_JOINED)), expected);
        // As much of the history is kept as fits.
        let history = [200, 100, 100].map(|kib: usize| said(&"x".repeat(kib * 1024))).to_vec();
        let long = Answered { asked: Asked { history, ..answered.asked.clone() }, ..answered.clone() };
        assert_eq!(feedback.joined(&long, MOST_JOINED).unwrap().history.len(), 2);
        // What is too long is not joined, and what the client says counts.
        let long = Answered { answer: "x".repeat(LONGEST), ..answered.clone() };
        assert!(feedback.joined(&long, MOST_JOINED).is_none());
        let own = json!({ "conversation_id": "d", "turn": 1, "helpful": true, "question": "how?", "passages": ["b"] });
        let joined = read(own).joined(&answered, MOST_JOINED).unwrap();
        assert_eq!((joined.conversation_id.as_deref(), joined.turn), (Some("d"), Some(1)));
        assert_eq!((joined.question.as_deref(), joined.history.len()), (Some("how?"), 0));
        assert_eq!((joined.answer.as_deref(), &joined.passages[..]), (Some("because"), &["b".to_owned()][..]));
    }

    #[test]
    fn a_line_that_was_cut_off_spoils_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let log = FeedbackLog::new(directory.path());
        std::fs::write(&log.path, "{\"cut").unwrap();
        log.add(b"{}\n").unwrap();
        log.add(b"[]\n").unwrap();
        assert_eq!(std::fs::read_to_string(&log.path).unwrap(), "{\"cut\n{}\n[]\n");
    }
}
