//! Operators: their configuration, and what they are called with.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::Snapshot;
use super::{BuildError, Check, CorpusRef, IndexDefinition, ModelUse, Models, OperatorError};
use crate::compute::MOST_ON_A_WORKER;
use crate::language::TextStream;
use crate::record::{Query, Turn, Value};

/// What an operator is called with.
pub struct Call {
    /// The turn.
    pub turn: Arc<Turn>,
    /// One value an input, in the order of the fields (and of the list).
    pub inputs: Vec<Value>,
    /// The corpora as of the turn's epoch.
    pub snapshot: Arc<Snapshot>,
    /// Where what was done without is told.
    pub warnings: Warnings,
    /// Where an operator that writes the answer sends its text while it comes.
    pub stream: TextStream,
}

impl Call {
    /// The input's query.
    pub fn query(&self, input: usize) -> Result<&Query, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Query(query)) => Ok(query),
            _ => Err(OperatorError::Port("no query")),
        }
    }

    /// The input's hits.
    pub fn hits(&self, input: usize) -> Result<&Arc<crate::record::Hits>, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Hits(hits)) => Ok(hits),
            _ => Err(OperatorError::Port("no hits")),
        }
    }

    /// The input's prompt.
    pub fn prompt(&self, input: usize) -> Result<&Arc<crate::record::PromptFor>, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Prompt(prompt)) => Ok(prompt),
            _ => Err(OperatorError::Port("no prompt")),
        }
    }

    /// The input's answer.
    pub fn answer(&self, input: usize) -> Result<&Arc<crate::record::Answer>, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Answer(answer)) => Ok(answer),
            _ => Err(OperatorError::Port("no answer")),
        }
    }

    /// Bytes of what was said, of queries and of answers, and 32 for each hit: what nearly every
    /// operator looks at. Counted up to a little more than a worker takes on.
    pub fn weight(&self) -> usize {
        let said = self.turn.history.iter().map(|utterance| 16 + utterance.text.len());
        let query = |query: &Query| query.text.len() + query.parts.iter().map(|part| part.len()).sum::<usize>();
        let inputs = self.inputs.iter().map(|input| match input {
            Value::Turn | Value::Failed(_) => 0,
            Value::Query(asked) => query(asked),
            Value::Hits(hits) => query(&hits.query) + 32 * hits.hits.len(),
            Value::Prompt(made) => {
                let parts = made.prompt.messages.iter().flat_map(|message| &message.parts);
                query(&made.query) + parts.map(|part| part.text.len()).sum::<usize>()
            }
            Value::Answer(answer) => query(&answer.query) + answer.text.len() + 32 * answer.hits.len(),
        });
        up_to_enough(std::iter::once(self.turn.text.len()).chain(inputs).chain(said))
    }

    /// Bytes of the passages that it is given, of the first `passages` of each list: what
    /// operators look at that read them. Counted as far as [`Call::weight`] is.
    pub fn weight_of_passages(&self, passages: usize) -> usize {
        let lists = self.inputs.iter().map(|input| match input {
            Value::Hits(hits) => &hits.hits[..],
            Value::Answer(answer) => &answer.hits[..],
            _ => &[],
        });
        let first = lists.flat_map(|hits| &hits[..hits.len().min(passages)]);
        up_to_enough(first.map(|hit| hit.chunk.title.len() + hit.chunk.text.len()))
    }
}

/// The sum, or part of it that is more than enough to leave the worker.
fn up_to_enough(weights: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0_usize;
    for weight in weights {
        sum = sum.saturating_add(weight);
        if sum > MOST_ON_A_WORKER {
            break;
        }
    }
    sum
}

/// Collects what an operator had to do without for a turn: a member of an ensemble that
/// failed, a rewrite that could not be read. They end up in the answer's stamp.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Tells of one thing, in a short sentence without an end.
    pub fn add(&self, note: impl Into<String>) {
        self.0.lock().push(note.into());
    }

    /// Takes what was told.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A running operator: a pure function of its inputs, the corpora and its models.
pub trait Operator: Send + Sync {
    /// Makes this node's value for a turn. What is before the first await runs on the worker, if
    /// [`Operator::weight`] says that it is quick; the rest continues off the workers.
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>>;
    /// How much a call looks at, about, as bytes of text that is cut into words (ten megabytes a
    /// second); numbers of an index that are multiplied count for 64 of them a byte. A call of
    /// more than [`MOST_ON_A_WORKER`] does not run on the worker. Must be quick itself.
    fn weight(&self, call: &Call) -> usize {
        call.weight()
    }
    /// Whether it is called even when an input has failed, and finds [`Value::Failed`] there.
    /// Otherwise the failure goes on in place of what it would give.
    fn takes_failures(&self) -> bool {
        false
    }
}

/// An operator's configuration.
pub trait OperatorConfig: Debug + Send + Sync {
    /// Reports values that have the right type and yet cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// The models it uses.
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
    /// The corpus it reads (field `corpus`).
    fn corpus(&self) -> Option<&CorpusRef> {
        None
    }
    /// The indexes it needs in its corpus.
    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(Vec::new())
    }
    /// The weights of its lists or members, if its scores are sums that these weigh and a field
    /// `weights` sets them: then they can be learned.
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Acquires what it needs.
    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError>;
}
