//! What is known of answers that the engine has not taken back yet: how they fail, and since when.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use turnflow_engine::component::ComponentError;
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::record::AnswerRecord;

use super::key_of;

/// For so long, a delivery goes on to try again what failed before; new answers wait meanwhile.
const AGAIN: Duration = Duration::from_secs(5);
/// For so long, an answer that failed is not tried again: deliveries follow each other while others are accepted.
const REST: Duration = Duration::from_millis(900);

/// The answers that fail, by the key of their delivery.
pub(super) struct Tries {
    retry: Option<Duration>,
    pub(super) rest: Duration,
    of: Mutex<HashMap<String, Tried>>,
}

#[derive(Default)]
struct Tried {
    /// Number of values that the receiver has accepted.
    values: usize,
    failure: Option<Failure>,
}

struct Failure {
    reason: String,
    /// The first and the last time.
    first: Instant,
    last: Instant,
    /// The pause for which the receiver asked ends then.
    not_before: Option<Instant>,
}

/// What to do with an answer.
pub(super) enum Next {
    /// Send its values after the first ones of this number.
    Send(usize),
    /// Nothing in this delivery, nor with later answers of its conversation.
    Wait,
    /// It was tried for long enough.
    GiveUp(String),
}

/// What became of a request.
pub(super) enum Ended {
    Accepted,
    /// The receiver will never accept it.
    Refused(String),
    Failed,
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
        Self { retry, rest: REST, of: Mutex::default() }
    }

    /// The numbers of the answers to send, a list for each conversation: first those that did not fail, then the one that was
    /// last tried longest ago.
    pub fn due(&self, answers: &[AnswerRecord]) -> Vec<Vec<usize>> {
        let of = self.of.lock();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut due: Vec<(Option<Instant>, Vec<usize>)> = Vec::new();
        for (number, answer) in answers.iter().enumerate() {
            let failed = of.get(&key_of(answer)).and_then(|tried| Some(tried.failure.as_ref()?.last));
            let place = *places.entry(&answer.conversation_id).or_insert(due.len());
            match due.get_mut(place) {
                Some((_, list)) => list.push(number),
                None => due.push((failed, vec![number])),
            }
        }
        due.sort_by_key(|(failed, _)| *failed);
        due.into_iter().map(|(_, list)| list).collect()
    }

    /// What to do with an answer in a delivery that began then.
    pub fn next(&self, answer: &AnswerRecord, begun: Instant) -> Next {
        let mut of = self.of.lock();
        let key = key_of(answer);
        let Some(Tried { values, failure }) = of.get(&key) else { return Next::Send(0) };
        let Some(failure) = failure else { return Next::Send(*values) };
        if let Some(reason) = self.given_up(failure) {
            of.remove(&key);
            return Next::GiveUp(reason);
        }
        let is_due = failure.last.elapsed() >= self.rest && failure.not_before.is_none_or(|at| at <= Instant::now());
        if is_due && begun.elapsed() < AGAIN { Next::Send(*values) } else { Next::Wait }
    }

    /// Why an answer is given up, if it is, whatever pause the receiver asked for.
    fn given_up(&self, failure: &Failure) -> Option<String> {
        let retry = self.retry.filter(|retry| failure.first.elapsed() >= *retry)?;
        Some(format!("tried for {} s: {}", retry.as_secs_f64(), failure.reason))
    }

    /// The receiver has accepted the next value of an answer.
    pub fn accepted_value(&self, answer: &AnswerRecord) {
        self.of.lock().entry(key_of(answer)).or_default().values += 1;
    }

    /// Notes what became of an answer.
    pub fn ended(&self, answer: &AnswerRecord, sent: Result<(), Unaccepted>) -> Ended {
        let mut of = self.of.lock();
        let key = key_of(answer);
        let refused = match sent {
            Ok(()) => None,
            Err(Unaccepted { error: ConnectorError::Refused { reason }, .. }) => Some(reason),
            Err(Unaccepted { error, pause }) => {
                let tried = of.entry(key.clone()).or_default();
                let now = Instant::now();
                let first = tried.failure.as_ref().map_or(now, |failure| failure.first);
                let not_before = pause.map(|pause| now + pause);
                let failure = Failure { reason: error.to_string(), first, last: now, not_before };
                let given_up = self.given_up(&failure);
                tried.failure = Some(failure);
                match given_up {
                    None => return Ended::Failed,
                    given_up => given_up,
                }
            }
        };
        of.remove(&key);
        refused.map_or(Ended::Accepted, Ended::Refused)
    }

    /// Why answers are not acknowledged: the reason of the first that fails.
    pub fn error(&self, answers: &[AnswerRecord]) -> ConnectorError {
        let of = self.of.lock();
        let failure = answers.iter().find_map(|answer| of.get(&key_of(answer))?.failure.as_ref());
        let reason = failure.map_or("not all answers were sent", |failure| &failure.reason);
        ComponentError::transient(std::io::Error::other(reason.to_owned())).into()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.of.lock().is_empty()
    }
}
