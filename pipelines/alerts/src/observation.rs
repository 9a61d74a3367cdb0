//! What is kept of an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use turnflow_engine::record::{AnswerRecord, Status};

use crate::config::Measure;

/// Characters of a question that are kept.
const QUESTION: usize = 200;

/// Something that happened to a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// When, in seconds since 1970.
    pub at: f64,
    /// The key of the turn.
    pub key: Arc<str>,
    /// The revision of its answer.
    pub revision: u32,
    /// The conversation.
    pub conversation: Arc<str>,
    /// The number of the turn.
    pub turn: u32,
    /// The question.
    pub question: Arc<str>,
    /// What happened.
    pub what: What,
}

/// What happened to a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// It was answered.
    Answer(Answer),
    /// Its answer was taken back, and another one follows. `true`: it held.
    Retracted(bool),
    /// It counts no more.
    Gone,
    /// An edit has taken away an answer that held.
    Lost,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Its status.
    pub status: Status,
    /// Whether `SelfCheck` has flagged it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flagged: bool,
    /// Seconds from reading the turn to the answer.
    pub seconds: f64,
    /// The numbers in `checks` that a rule reads, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checks: BTreeMap<String, f64>,
}

impl Answer {
    /// Whether the question has an answer that the passages bear out.
    pub fn holds(&self) -> bool {
        self.status == Status::Answered && !self.flagged
    }
}

impl Observation {
    /// What a record says. `checks` are the names of the numbers that rules read.
    pub fn of(record: &AnswerRecord, at: f64, checks: &BTreeSet<String>) -> Self {
        let flags = record.checks.get("self_check").and_then(|check| check.get("failed")?.as_array());
        let answer = Answer {
            status: record.status,
            flagged: flags.is_some_and(|failed| !failed.is_empty()),
            seconds: (record.latency_ms / 1000.0).max(0.0),
            checks: checks.iter().filter_map(|name| Some((name.clone(), number(&record.checks, name)?))).collect(),
        };
        let what = match (record.withdrawn, record.retracted) {
            (true, _) => What::Gone,
            (false, true) => What::Retracted(answer.holds()),
            (false, false) => What::Answer(answer),
        };
        Self {
            at,
            key: record.key.clone(),
            revision: record.revision,
            conversation: record.conversation_id.clone(),
            turn: record.turn,
            question: short(&record.query),
            what,
        }
    }

    /// What it adds to a measure, if it counts for it: for a share 1 or 0.
    pub fn value(&self, measure: &Measure) -> Option<f64> {
        let share = |is_so: bool| Some(f64::from(u8::from(is_so)));
        let answer = match (&self.what, measure) {
            (What::Lost, Measure::Lost) => return Some(1.0),
            (What::Answer(answer), Measure::Failed) => return share(answer.status == Status::Failed),
            (What::Answer(answer), _) if answer.status != Status::Failed => answer,
            _ => return None,
        };
        match measure {
            Measure::Declined => share(answer.status == Status::Idk),
            Measure::Unsupported => share(answer.flagged),
            Measure::Low(name, least) => share(*answer.checks.get(name)? < *least),
            Measure::Mean(name) => answer.checks.get(name).copied(),
            Measure::Latency(_) => Some(answer.seconds),
            Measure::Failed | Measure::Lost | Measure::Gap => None,
        }
    }
}

/// The number with this name, as in `nli.entailment`. A name with a dot in it is found as well.
fn number(checks: &Map<String, Value>, name: &str) -> Option<f64> {
    let found = match (checks.get(name), name.split_once('.')) {
        (Some(value), _) => value.as_f64(),
        (None, Some((first, rest))) => return number(checks.get(first)?.as_object()?, rest),
        (None, None) => None,
    };
    found.filter(|number| number.is_finite())
}

/// The beginning of a question.
fn short(text: &str) -> Arc<str> {
    match text.char_indices().nth(QUESTION) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}
