//! The first available list: Hits, Hits, … → Hits.
//!
//! ```ron
//! Fallback(inputs: ["dense", "lexical"], on_empty: true)
//! ```
//!
//! Returns the first input whose operator did not fail. The answer's provenance records inputs that were skipped. A
//! model that is down or an index that cannot be read then costs quality instead of the answer (PolyU falls back to
//! BM25 when a dense index is missing). If all inputs fail, the turn fails with the first input's reason. All inputs
//! are computed in any case, so place it after retrievers that are cheap compared with the rest of the pipeline.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Call, Check, ComponentContext, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, ScoreUse, TextEffect, built_at_once, config,
};
use turnflow_engine::record::{Failure, PortType, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<FallbackConfig>(
    "Fallback",
    &[InputPort::many(PortType::Hits)],
    PortType::Hits,
    "the first list whose retriever did not fail",
);

/// Fields of `Fallback`.
#[config]
pub struct FallbackConfig {
    /// Input nodes that produce hits, in order of preference.
    pub inputs: Vec<String>,
    /// Whether an empty list is skipped too.
    #[field(default)]
    pub on_empty: bool,
}

impl OperatorConfig for FallbackConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.inputs.len() < 2 {
            check.error("wrong-value", "inputs", "at least two inputs are required");
        }
    }

    fn falls_back(&self) -> bool {
        true
    }

    fn text_effect(&self) -> TextEffect {
        TextEffect::Unchanged
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Fallback(self.clone()))))
    }
}

struct Fallback(FallbackConfig);

impl Operator for Fallback {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        let (value, warnings) = choose(&call.inputs, &self.0);
        warnings.into_iter().for_each(|note| call.warnings.add(note));
        async move { Ok(value) }.boxed()
    }

    fn takes_failures(&self) -> bool {
        true
    }
}

/// Returns the first usable input, and warnings about the inputs before it.
fn choose(inputs: &[Value], config: &FallbackConfig) -> (Value, Vec<String>) {
    let mut warnings = Vec::new();
    let mut empty = None;
    let name = |at: usize| config.inputs.get(at).map_or("?", String::as_str);
    for (at, input) in inputs.iter().enumerate() {
        match input {
            Value::Failed(Failure { reason, .. }) => warnings.push(format!("skipped `{}`: {reason}", name(at))),
            Value::Hits(hits) if config.on_empty && hits.hits.is_empty() => {
                empty.get_or_insert(input);
                warnings.push(format!("skipped `{}`: no hits", name(at)));
            }
            other => return (other.clone(), warnings),
        }
    }
    match empty {
        // No input has hits. That is not a failure.
        Some(hits) => {
            let empty = inputs.iter().all(|input| matches!(input, Value::Hits(_)));
            (hits.clone(), if empty { Vec::new() } else { warnings })
        }
        // The preferred input's failure is more informative than that of a later one.
        None => (inputs.first().cloned().unwrap_or(Value::Turn), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::list;
    use turnflow_engine::record::{Hits, Query};

    #[test]
    fn the_first_that_did_not_fail_is_given() {
        let hits = |ids: &[(&str, f32)]| Value::Hits(Arc::new(Hits { query: Query::new("q"), hits: list(ids) }));
        let failed = || Value::Failed(Failure::new("dense", "the model is down"));
        let config = |on_empty| FallbackConfig { inputs: vec!["dense".into(), "lexical".into()], on_empty };
        let some = hits(&[("a", 1.0)]);

        assert_eq!(choose(&[some.clone(), hits(&[])], &config(true)), (some.clone(), vec![]));
        let (value, warnings) = choose(&[failed(), some.clone()], &config(false));
        assert_eq!((value, warnings), (some.clone(), vec!["skipped `dense`: the model is down".to_owned()]));
        assert_eq!(choose(&[hits(&[]), some.clone()], &config(false)).0, hits(&[]));
        assert_eq!(choose(&[hits(&[]), some.clone()], &config(true)).0, some);
        assert_eq!(choose(&[hits(&[]), hits(&[])], &config(true)).0, hits(&[]));
        let (value, warnings) = choose(&[failed(), hits(&[]), failed()], &config(true));
        assert_eq!((value, warnings.len()), (hits(&[]), 3));
        assert!(matches!(choose(&[failed(), failed()], &config(true)).0, Value::Failed(_)));
    }
}
