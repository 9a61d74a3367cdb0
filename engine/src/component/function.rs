//! Operators that are pure functions of a call.
//!
//! ```
//! use turnflow_engine::component::{Call, Function, InputPort, OperatorError, OperatorKind, config};
//! use turnflow_engine::record::{PortType, Query, Value};
//!
//! /// The entry for the catalog.
//! pub const KIND: OperatorKind = OperatorKind::function::<Upper>(
//!     "Upper",
//!     &[InputPort::one(PortType::Queries)],
//!     PortType::Queries,
//!     "the query in capital letters",
//! );
//!
//! /// Fields of `Upper`.
//! #[config]
//! pub struct Upper {
//!     /// The node whose query is changed.
//!     _input: String,
//! }
//!
//! impl Function for Upper {
//!     fn call(&self, call: &Call) -> Result<Value, OperatorError> {
//!         Ok(Value::Query(Query::new(call.query(0)?.text.to_uppercase())))
//!     }
//! }
//! ```

use std::fmt::Debug;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde::de::DeserializeOwned;

use super::{
    BuildFuture, Call, Check, ComponentContext, Configured, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, ScoreUse, built_at_once,
};
use crate::record::{PortType, Value};
use crate::spec::from_tree;

/// The configuration of an operator that needs no model and no index, and never waits.
pub trait Function: Configured + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Reports invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}

    /// Its effective settings, in one line; empty if it has none.
    fn explain(&self) -> String {
        self.effective()
    }

    /// Whether it accepts failed inputs, as `Fallback` does.
    fn takes_failures(&self) -> bool {
        false
    }

    /// What it does with the scores of the hits that it takes.
    fn score_use(&self) -> ScoreUse {
        ScoreUse::Read
    }

    /// The weights of its lists; see [`OperatorConfig::weights`].
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }

    /// Bytes of text that a call processes; a call with much text does not run on the worker.
    fn weight(&self, call: &Call) -> usize {
        call.weight()
    }

    /// Computes the value for a call. The same call must return the same value.
    fn call(&self, call: &Call) -> Result<Value, OperatorError>;
}

/// A function as a configuration, and as the operator built from it.
#[derive(Debug)]
struct Of<F>(Arc<F>);

impl<F: Function> Configured for Of<F> {
    fn check_ranges(&self, check: &mut Check<'_>) {
        self.0.check_ranges(check);
    }
}

impl<F: Function> OperatorConfig for Of<F> {
    fn validate(&self, check: &mut Check<'_>) {
        self.0.validate(check);
    }

    fn explain(&self) -> String {
        self.0.explain()
    }

    fn score_use(&self) -> ScoreUse {
        self.0.score_use()
    }

    fn weights(&self) -> Option<Vec<f32>> {
        self.0.weights()
    }

    fn falls_back(&self) -> bool {
        self.0.takes_failures()
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Self(self.0.clone()))))
    }
}

impl<F: Function> Operator for Of<F> {
    fn takes_failures(&self) -> bool {
        self.0.takes_failures()
    }

    fn weight(&self, call: &Call) -> usize {
        self.0.weight(call)
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        ready(self.0.call(&call)).boxed()
    }
}

impl OperatorKind {
    /// The entry for an operator that is a [`Function`].
    pub const fn function<F: Function>(
        name: &'static str,
        inputs: &'static [InputPort],
        output: PortType,
        summary: &'static str,
    ) -> Self {
        let parse = |tree: &_, sources: &_| Ok(Box::new(Of(Arc::new(from_tree::<F>(tree, sources)?))) as Box<_>);
        Self { name, inputs, output, summary, fields: F::fields, parse }
    }
}
