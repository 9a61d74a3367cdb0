//! What is known of answers that the engine has not taken back yet: which are accepted, and which fail.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use turnflow_engine::component::ComponentError;
use turnflow_engine::connector::{ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use super::key_of;

/// For so long, a delivery goes on to try again what failed before; new answers wait meanwhile.
const AGAIN: Duration = Duration::from_secs(5);

/// Answers by the key of their delivery. An answer is acknowledged after all before it, so that one that fails must not
/// have the accepted ones behind it sent again.
pub(super) struct Tries {
    retry: Option<Duration>,
    of: Mutex<HashMap<String, Tried>>,
}

#[derive(Default)]
struct Tried {
    /// Number of values that the receiver has accepted.
    values: usize,
    state: State,
    /// When it failed for the first time, and for the last time.
    failed: Option<(Instant, Instant)>,
    /// The pause for which the receiver asked ends then.
    not_before: Option<Instant>,
    /// The engine was told that it is refused.
    is_told: bool,
}

#[derive(Default)]
enum State {
    #[default]
    Waits,
    Failed(String),
    Refused(String),
    Accepted,
}

/// Why a request was not accepted.
pub(crate) struct Unaccepted {
    pub error: ConnectorError,
    /// The pause for which the receiver asks.
    pub pause: Option<Duration>,
}

impl From<ConnectorError> for Unaccepted {
    fn from(error: ConnectorError) -> Self {
        Self { error, pause: None }
    }
}

impl Tries {
    /// `retry`: for how long an answer is tried before it is given up.
    pub fn new(retry: Option<Duration>) -> Self {
        Self { retry, of: Mutex::default() }
    }

    /// Forgets the refused answers that the engine has made dead letters.
    pub fn begin(&self, answers: &[AnswerRecord]) {
        let mut of = self.of.lock();
        if of.values().any(|tried| tried.is_told) {
            let here: Vec<String> = answers.iter().map(key_of).collect();
            of.retain(|key, tried| !tried.is_told || here.contains(key));
        }
    }

    /// The answers to send, a list for each conversation: first those that did not fail, then the one that was last tried
    /// longest ago.
    pub fn due<'a>(&self, answers: &'a [AnswerRecord]) -> Vec<Vec<&'a AnswerRecord>> {
        let of = self.of.lock();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut due: Vec<(Option<Instant>, Vec<&AnswerRecord>)> = Vec::new();
        for answer in answers {
            let tried = of.get(&key_of(answer));
            if matches!(tried, Some(Tried { state: State::Accepted | State::Refused(_), .. })) {
                continue;
            }
            let place = *places.entry(&answer.conversation_id).or_insert(due.len());
            match due.get_mut(place) {
                Some((_, list)) => list.push(answer),
                None => due.push((tried.and_then(|tried| Some(tried.failed?.1)), vec![answer])),
            }
        }
        due.sort_by_key(|(failed, _)| *failed);
        due.into_iter().map(|(_, list)| list).collect()
    }

    /// Whether to send an answer now, in a delivery that began then: the number of its values that are accepted already.
    pub fn sends(&self, answer: &AnswerRecord, begun: Instant) -> Option<usize> {
        let of = self.of.lock();
        let Some(tried) = of.get(&key_of(answer)) else { return Some(0) };
        let is_due = tried.not_before.is_none_or(|at| at <= Instant::now());
        let has_time = tried.failed.is_none() || begun.elapsed() < AGAIN;
        (is_due && has_time).then_some(tried.values)
    }

    /// The receiver has accepted the next value of an answer.
    pub fn accepted_value(&self, answer: &AnswerRecord) {
        self.of.lock().entry(key_of(answer)).or_default().values += 1;
    }

    /// Notes what became of an answer; returns whether the next one of its conversation may be sent.
    pub fn ended(&self, answer: &AnswerRecord, sent: Result<(), Unaccepted>) -> bool {
        let mut of = self.of.lock();
        let tried = of.entry(key_of(answer)).or_default();
        let now = Instant::now();
        tried.state = match sent {
            Ok(()) => State::Accepted,
            Err(Unaccepted { error: ConnectorError::Refused { reason }, .. }) => State::Refused(reason),
            Err(Unaccepted { error, pause }) => {
                let since = tried.failed.map_or(now, |(since, _)| since);
                tried.failed = Some((since, now));
                tried.not_before = pause.map(|pause| now + pause);
                match self.retry {
                    Some(retry) if since.elapsed() >= retry => {
                        State::Refused(format!("tried for {} s: {error}", retry.as_secs_f64()))
                    }
                    _ => State::Failed(error.to_string()),
                }
            }
        };
        !matches!(tried.state, State::Failed(_))
    }

    /// Acknowledges the accepted answers before the first other one.
    pub fn acknowledge(&self, delivery: &Delivery<'_>, from: &mut usize) {
        let mut of = self.of.lock();
        for answer in delivery.answers().get(*from..).unwrap_or_default() {
            let key = key_of(answer);
            if !matches!(of.get(&key), Some(Tried { state: State::Accepted, .. })) {
                return;
            }
            of.remove(&key);
            delivery.took(1);
            *from += 1;
        }
    }

    /// Why an answer is not acknowledged.
    pub fn error(&self, answer: &AnswerRecord) -> ConnectorError {
        let mut of = self.of.lock();
        let reason = match of.get_mut(&key_of(answer)) {
            Some(Tried { state: State::Refused(reason), is_told, .. }) => {
                *is_told = true;
                return ConnectorError::Refused { reason: reason.clone() };
            }
            Some(Tried { state: State::Failed(reason), .. }) => reason.clone(),
            _ => "an earlier answer of the conversation is not accepted".to_owned(),
        };
        ComponentError::transient(std::io::Error::other(reason)).into()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.of.lock().is_empty()
    }
}
