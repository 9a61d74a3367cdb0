//! Optional models that could not be loaded. The run goes on without them; what needs them fails on each turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde::Serialize;

use crate::component::{Call, Model, Models, Operator, OperatorConfig, OperatorError};
use crate::plan::Plan;
use crate::record::Value;

/// The loaded models of a plan, and why the others are not loaded.
#[derive(Clone, Default)]
pub(crate) struct Loaded {
    pub models: Models,
    pub lacking: Lacking,
}

/// The reasons why optional models are not loaded, by model.
pub(crate) type Lacking = BTreeMap<Arc<str>, Arc<str>>;

/// A model that a reload keeps.
pub(super) enum KeptModel {
    /// It is loaded.
    Loaded(Arc<Model>),
    /// It is optional and not loaded, for this reason.
    Lacking(Arc<str>),
}

/// A model that the run goes on without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LackingModel {
    /// Its name.
    pub name: Arc<str>,
    /// Why it is not loaded.
    pub reason: Arc<str>,
}

/// Logs what follows from the models that are not loaded.
pub(super) fn warn(plan: &Plan, lacking: &Lacking) {
    for (name, reason) in lacking {
        let without = plan.without(&|model| *model == **name);
        let list = |nodes: &[Arc<str>]| nodes.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
        tracing::warn!(
            model = %name, %reason, failing = list(&without.failing), replacing = list(&without.replacing),
            "an optional model is not loaded; a reload or the next start tries again"
        );
    }
}

/// Stands for an operator whose model is not loaded: each of its calls fails.
pub(super) struct WithoutModel {
    pub model: Arc<str>,
    pub reason: Arc<str>,
}

impl WithoutModel {
    /// The replacement of an operator that needs a model that is not loaded.
    pub fn of(config: &dyn OperatorConfig, lacking: &Lacking) -> Option<Self> {
        let used = config.models();
        let (model, reason) = used.iter().find_map(|used| lacking.get_key_value(used.name))?;
        Some(Self { model: model.clone(), reason: reason.clone() })
    }
}

impl Operator for WithoutModel {
    fn call(self: Arc<Self>, _: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        let (model, reason) = (self.model.to_string(), self.reason.to_string());
        ready(Err(OperatorError::NoModel { model, reason })).boxed()
    }
}
