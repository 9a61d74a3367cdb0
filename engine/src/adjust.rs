//! Changes of the plan for one asked turn: nodes that are skipped, other weights, and the form of a reply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::record::{Hits, PortType, Query, Turn, Value};
use crate::turns::{Running, RunningNode};

/// What a caller changes for one turn. The answer's record names each change among its warnings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adjustments {
    /// Operators that are skipped. Their first input of the output's type passes through; a retriever
    /// without such an input finds nothing.
    pub skip: BTreeSet<Arc<str>>,
    /// By operator, the weights of its lists or members: as many as it has, each at least 0.
    pub weights: BTreeMap<Arc<str>, Arc<[f32]>>,
    /// By operator, the form of the reply that it must ask its language model for, as `response_format` of OpenAI's API. The
    /// operator must take one ([`OperatorConfig::takes_format`](crate::component::OperatorConfig::takes_format)).
    pub formats: BTreeMap<Arc<str>, Arc<Json>>,
}

impl Adjustments {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.skip.is_empty() && self.weights.is_empty() && self.formats.is_empty()
    }

    /// Checks the changes against a plan's nodes. Returns the node and the problem.
    pub(crate) fn check(&self, nodes: &[RunningNode]) -> Result<(), (Arc<str>, String)> {
        let find = |id: &Arc<str>| {
            let found = nodes.iter().find(|node| node.id == *id && matches!(node.running, Running::Operator(_)));
            found.ok_or_else(|| (id.clone(), "the pipeline has no such operator".to_owned()))
        };
        for id in &self.skip {
            let node = find(id)?;
            let inputs = node.inputs.iter().filter_map(|&input| nodes.get(input)?.output);
            if node.output.is_none_or(|output| !can_skip(output, inputs)) {
                return Err((id.clone(), "it cannot be skipped: no input has the type of its output".to_owned()));
            }
        }
        for id in self.formats.keys() {
            find(id)?;
        }
        for (id, weights) in &self.weights {
            match find(id)?.weights {
                None => return Err((id.clone(), "it has no weights".to_owned())),
                Some(count) if count != weights.len() => {
                    return Err((id.clone(), format!("it has {count} weights, but {} were given", weights.len())));
                }
                Some(_) if weights.iter().any(|weight| !(*weight >= 0.0 && weight.is_finite())) => {
                    return Err((id.clone(), "weights must be at least 0".to_owned()));
                }
                Some(_) if weights.iter().all(|weight| *weight == 0.0) => {
                    return Err((id.clone(), "at least one weight must be above 0".to_owned()));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Whether an operator with this output and these inputs can be skipped.
pub fn can_skip(output: PortType, inputs: impl IntoIterator<Item = PortType>) -> bool {
    inputs.into_iter().any(|input| {
        input == output || matches!((input, output), (PortType::Queries, PortType::Hits) | (_, PortType::Queries))
    })
}

/// The value of a skipped operator.
pub(crate) fn skipped(output: PortType, inputs: &[Value], turn: &Turn) -> Option<Value> {
    let same = inputs.iter().find(|input| match input {
        Value::Turn | Value::Failed(_) => false,
        Value::Query(_) => output == PortType::Queries,
        Value::Hits(_) => output == PortType::Hits,
        Value::Prompt(_) => output == PortType::Prompts,
        Value::Answer(_) => output == PortType::Answers,
    });
    if let Some(same) = same {
        return Some(same.clone());
    }
    let query = inputs.iter().find_map(|input| match input {
        Value::Query(query) => Some(query),
        _ => None,
    });
    match output {
        PortType::Queries => Some(Value::Query(Query::new(turn.text.clone()))),
        PortType::Hits => Some(Value::Hits(Arc::new(Hits { query: query?.clone(), hits: Vec::new() }))),
        PortType::Turns | PortType::Prompts | PortType::Answers => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_stand_in_for_an_output() {
        use PortType::*;
        assert!(can_skip(Hits, [Queries]));
        assert!(can_skip(Hits, [Hits, Hits]));
        assert!(can_skip(Queries, [Turns]));
        assert!(can_skip(Answers, [Answers, Hits]));
        assert!(!can_skip(Answers, [Hits]));
        assert!(!can_skip(Prompts, [Hits]));
    }
}
