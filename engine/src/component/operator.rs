//! Operators: their configuration, and what they are called with.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{BuildError, Check, CorpusRef, IndexDefinition, ModelUse, Models, OperatorError};
use crate::publish::Published;
use crate::record::{Turn, Value};

/// What an operator is called with.
pub struct Call {
    /// The turn.
    pub turn: Arc<Turn>,
    /// One value an input, in the order of the fields (and of the list).
    pub inputs: Vec<Value>,
    /// The corpora as of the turn's epoch.
    pub published: Arc<Published>,
    /// Where what was done without is told.
    pub notes: Notes,
}

impl Call {
    /// The input's query.
    pub fn query(&self, input: usize) -> Result<&crate::record::Query, OperatorError> {
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
}

/// Collects what an operator had to do without for a turn: a member of an ensemble that
/// failed, a rewrite that could not be read. They end up in the answer's stamp.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
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
    /// Makes this node's value for a turn. What is quick may be done before the first
    /// await, on the worker; the rest continues off the workers.
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>>;
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
