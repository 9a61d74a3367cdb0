//! Operators: their configuration, and the arguments of a call.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value as Json;

use super::{
    BuildError, BuildFuture, Check, ComponentContext, Configured, CorpusRef, IndexDefinition, ModelUse, Models,
    OperatorError, Snapshot, StandingQueries, WatchSlot,
};
use crate::compute::{MOST_ON_A_WORKER, apart_within};
use crate::filter::Filter;
use crate::language::TextStream;
use crate::record::{Query, Turn, Value};

/// The arguments of an operator call.
pub struct Call {
    /// The turn.
    pub turn: Arc<Turn>,
    /// One value per input, in the order of the fields (and of the list).
    pub inputs: Vec<Value>,
    /// The corpora at the turn's epoch.
    pub snapshot: Arc<Snapshot>,
    /// Collects warnings.
    pub warnings: Warnings,
    /// Where an operator that generates the answer streams its text.
    pub stream: TextStream,
    /// The caller's weights for this node, as many as it has. Operators read them with
    /// [`Call::weights_or`].
    pub weights: Option<Arc<[f32]>>,
    /// The form of the reply that the caller asks this node's language model for. Only operators that take one get it.
    pub format: Option<Arc<Json>>,
    /// Where an operator that reads a corpus says which changes can reach its value.
    pub watch: WatchSlot,
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

    /// The caller's weights, or else the operator's own.
    pub fn weights_or(&self, own: &[f32]) -> Arc<[f32]> {
        self.weights.clone().filter(|weights| weights.len() == own.len()).unwrap_or_else(|| own.into())
    }

    /// Bytes of the turn, its history, queries, prompts and answers, and 32 for each hit: what nearly
    /// every operator reads. The count stops soon after it passes [`MOST_ON_A_WORKER`].
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

    /// Bytes of the first `passages` passages of each list, for operators that read passages. The
    /// count stops like that of [`Call::weight`].
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

/// The sum, or a partial sum above [`MOST_ON_A_WORKER`].
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

/// Collects what an operator had to do without for a turn, such as a failed member of an ensemble
/// or an unreadable rewrite. Warnings are recorded in the answer's stamp.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Adds a warning: a short sentence without a full stop.
    pub fn add(&self, note: impl Into<String>) {
        self.0.lock().push(note.into());
    }

    /// Takes all warnings.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A running operator: a pure function of its inputs, the corpora and its models.
pub trait Operator: Send + Sync {
    /// Computes this node's value for a turn. If [`Operator::weight`] is small, the code before the
    /// first await runs on the worker; the rest runs off the workers, unless [`Operator::continues_here`].
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>>;
    /// The approximate cost of a call, in bytes of text to split into words (ten megabytes a
    /// second); 64 multiplications of index values count as one byte. A call of more than
    /// [`MOST_ON_A_WORKER`] does not run on the worker. This method itself must be quick.
    fn weight(&self, call: &Call) -> usize {
        call.weight()
    }
    /// Whether a call that waits may continue on the worker, which costs less than a change of threads. Only for operators
    /// whose work after each wait is small, and does not block: the worker serves other turns, too.
    fn continues_here(&self, _call: &Call) -> bool {
        false
    }
    /// A list for its calls for standing turns, if it can tell which of their values a change of its corpus can reach.
    /// `scores_matter`: an operator behind it reads the scores of its hits; a value with other scores is another one then.
    fn standing(&self, _scores_matter: bool) -> Option<Box<dyn StandingQueries>> {
        None
    }
    /// Whether it is called when an input has failed; that input is then [`Value::Failed`].
    /// Otherwise the failure becomes the node's value.
    fn takes_failures(&self) -> bool {
        false
    }
}

/// Calls an operator from the call of another one. An expensive call runs on the threads for computations, as a node's
/// does; it must be awaited in a tokio runtime.
///
/// # Errors
///
/// The operator's own.
pub async fn call_inner(operator: Arc<dyn Operator>, call: Call) -> Result<Value, OperatorError> {
    match operator.weight(&call) > MOST_ON_A_WORKER {
        true => apart_within(operator.call(call)).await,
        false => operator.call(call).await,
    }
}

/// An operator inside another one, whose calls call it.
pub struct Inner<'a> {
    /// The fields that lead to its configuration in the file.
    pub path: Vec<&'a str>,
    /// Its configuration.
    pub config: &'a dyn OperatorConfig,
}

/// What an operator does with the scores of the hits that it takes, besides their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScoreUse {
    /// Its value does not have them.
    Left,
    /// Its value has them, and depends on their order only.
    PassedOn,
    /// Its value depends on them.
    Read,
}

/// What an operator from answers to answers does to their texts.
#[derive(Clone)]
pub enum TextEffect {
    /// Nothing.
    Unchanged,
    /// It may change the beginning. The function gets the beginning of the text that it takes, and returns as much of the
    /// text that it gives as is certain whatever follows.
    Beginning(Arc<dyn Fn(&str) -> String + Send + Sync>),
    /// It may give another text, as only the whole text or other values tell.
    Whole,
}

impl Debug for TextEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unchanged => "Unchanged",
            Self::Beginning(_) => "Beginning",
            Self::Whole => "Whole",
        })
    }
}

impl TextEffect {
    /// The certain part of the text that these effects in a row give, from the beginning of the text that the first one
    /// takes.
    pub fn certain(effects: &[Self], text: &str) -> String {
        effects.iter().fold(text.to_owned(), |text, effect| match effect {
            Self::Unchanged => text,
            Self::Beginning(certain) => certain(&text),
            Self::Whole => String::new(),
        })
    }
}

/// An operator's configuration.
pub trait OperatorConfig: Configured + Debug + Send + Sync {
    /// What it does to the text of the answer that it takes. A server streams only text that no node changes later.
    fn text_effect(&self) -> TextEffect {
        TextEffect::Whole
    }
    /// Whether it can ask its language model for a reply of a form that a caller gives ([`Call::format`]); its answer is then
    /// that reply, word for word.
    fn takes_format(&self) -> bool {
        false
    }
    /// What it does with the scores of the hits that it takes.
    fn score_use(&self) -> ScoreUse {
        ScoreUse::Read
    }
    /// Reports values that have the right type but are invalid, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}
    /// The models it uses.
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
    /// The corpus it reads (field `corpus`).
    fn corpus(&self) -> Option<&CorpusRef> {
        None
    }
    /// The condition that the passages of its corpus must meet (field `filter`).
    fn filter(&self) -> Option<&Filter> {
        None
    }
    /// The indexes it needs in its corpus.
    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(Vec::new())
    }
    /// Whether it asks the other processes of a cluster for their parts of its indexes. Otherwise it cannot be used in a
    /// cluster, if it has indexes.
    fn asks_other_parts(&self) -> bool {
        false
    }
    /// The operators inside it. The engine checks them and plans their models, corpora and indexes like those of nodes.
    fn inner(&self) -> Vec<Inner<'_>> {
        Vec::new()
    }
    /// Whether it has a value although some of its inputs fail, as [`Operator::takes_failures`] says of the built
    /// operator: one input that does not fail is enough.
    fn falls_back(&self) -> bool {
        false
    }
    /// Whether its calls fail without the models for which `lacks` is true.
    fn fails_without(&self, lacks: &dyn Fn(&str) -> bool) -> bool {
        self.models().iter().any(|used| lacks(used.name))
    }
    /// The weights of its lists or members, if its scores are weighted sums and its field `weights`
    /// sets the weights: such weights can be learned.
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }
    /// The number of passages of each list that are candidates, if trees that score the candidates' features can be
    /// learned for it.
    fn candidates(&self) -> Option<usize> {
        None
    }
    /// Whether it reads the reply of the log's agent. Turns of the sources that lead to it then begin when the reply has
    /// come.
    fn takes_replies(&self) -> bool {
        false
    }
    /// Its effective settings, in one line.
    fn explain(&self) -> String {
        self.effective()
    }
    /// Builds the operator. The build may wait, for example for a server; a reload can cancel it.
    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>>;
}
