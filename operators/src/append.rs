//! Concatenates lists of hits: Hits, Hits, … → Hits.
//!
//! ```ron
//! Append(inputs: ["references", "retrieved"], top: 5)
//! ```
//!
//! Takes all passages of the first list, then those of each next list that are not yet present, until there are `top`
//! passages. This is MTRAG's setting of reference passages filled up with retrieved ones (section 6.1). The score is 1
//! / rank, because the lists' own scores are not on one scale.

use std::collections::HashSet;
use std::sync::Arc;

use turnflow_engine::component::{Call, Check, Function, InputPort, OperatorError, OperatorKind, ScoreUse, config};
use turnflow_engine::record::{Hit, Hits, PortType, Value};

use crate::fusion::lists;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<AppendConfig>(
    "Append",
    &[InputPort::many(PortType::Hits)],
    PortType::Hits,
    "concatenated lists, each passage once",
);

/// Fields of `Append`.
#[config]
pub struct AppendConfig {
    /// Input nodes that produce hits, in the order in which they are concatenated.
    pub inputs: Vec<String>,
    /// Maximum number of passages to return.
    #[field(default = 10, range = 1..=100_000)]
    pub top: usize,
}

impl Function for AppendConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::Left
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.inputs.is_empty() {
            check.error("wrong-value", "inputs", "at least one input is required");
        }
    }

    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        let hits = append(&lists(call)?, self.top);
        Ok(Value::Hits(Arc::new(Hits { query: call.hits(0)?.query.clone(), hits })))
    }
}

/// Keeps each passage at its first occurrence.
fn append(lists: &[&[Hit]], top: usize) -> Vec<Hit> {
    let mut seen = HashSet::new();
    let new = lists.iter().copied().flatten().filter(|hit| seen.insert(hit.chunk.identity()));
    new.take(top).zip(1_u32..).map(|(hit, place)| Hit { chunk: hit.chunk.clone(), score: 1.0 / place as f32 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::list;

    #[test]
    fn each_passage_stands_where_it_comes_first() {
        let (first, second) = (list(&[("b", 0.1), ("a", 0.0)]), list(&[("a", 9.0), ("d", 8.0), ("c", 7.0)]));
        let ids = |top| append(&[&first, &second], top).iter().map(|hit| hit.chunk.id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids(10), ["b", "a", "d", "c"]);
        assert_eq!(ids(3), ["b", "a", "d"]);
        let scores: Vec<f32> = append(&[&first, &second], 3).iter().map(|hit| hit.score).collect();
        assert_eq!(scores, [1.0, 0.5, 1.0 / 3.0]);
    }
}
