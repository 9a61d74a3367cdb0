//! `/v1/feedback`: what people say about answers.
//!
//! Each is a line of `feedback.jsonl` in the pipeline's state directory, on disk before the request is answered.
//! `turnflow import feedback` makes tasks and judgements of them. A client that knows the question and the passages of the
//! answer sends them along: then the line needs no log of turns beside it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use turnflow_engine::record::Utterance;
use utoipa::ToSchema;

use crate::app::{App, now};
use crate::auth::Principal;
use crate::body::{Content, Params};
use crate::error::ApiError;

/// Most bytes of a line: the whole history of a long conversation fits.
const LONGEST: usize = 256 * 1024;
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
#[derive(Debug, Deserialize, Serialize, ToSchema)]
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

/// Keeps what somebody says about an answer.
#[utoipa::path(post, path = "/v1/feedback", tag = "turnflow", params(FeedbackParams), request_body = Feedback, responses(
    (status = 200, description = "It is kept", body = Value),
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
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let log =
        served.feedback().ok_or_else(|| ApiError::not_found("this server has no state directory for feedback"))?;
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
    app.metrics().feedback(served.name(), feedback.helpful);
    Ok(Json(json!({ "object": "feedback", "kept": true })))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_line_that_was_cut_off_spoils_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let log = FeedbackLog::new(directory.path());
        std::fs::write(&log.path, "{\"cut").unwrap();
        log.add(b"{}\n").unwrap();
        log.add(b"[]\n").unwrap();
        assert_eq!(std::fs::read_to_string(&log.path).unwrap(), "{\"cut\n{}\n[]\n");
    }
}
