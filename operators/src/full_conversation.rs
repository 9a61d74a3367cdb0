//! The whole conversation as the query: Turns → Queries (MTRAG, section 5.2).
//!
//! ```ron
//! FullConversation(input: "turns", last: 6)
//! ```

use serde::Deserialize;
use turnflow_engine::component::{Call, Check, Function, InputPort, OperatorError, OperatorKind};
use turnflow_engine::record::{PortType, Query, Turn, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<FullConversationConfig>(
    "FullConversation",
    &[InputPort::one(PortType::Turns)],
    PortType::Queries,
    "the whole conversation, user and agent",
);

/// Fields of `FullConversation`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullConversationConfig {
    /// Input node that produces turns.
    #[serde(rename = "input")]
    _input: String,
    /// Number of newest utterances to use, this turn included. Default: the whole remembered history.
    #[serde(default)]
    pub last: Option<usize>,
}

impl Function for FullConversationConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(last) = self.last {
            check.range("last", last, 1, 10_000);
        }
    }

    fn explain(&self) -> String {
        self.last.map_or("last: all".to_owned(), |last| format!("last: {last}"))
    }

    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        Ok(Value::Query(Query::new(query(&call.turn, self))))
    }
}

fn query(turn: &Turn, config: &FullConversationConfig) -> String {
    let mut texts: Vec<&str> = turn.history.iter().map(|utterance| &*utterance.text).collect();
    texts.push(&turn.text);
    let skip = config.last.map_or(0, |last| texts.len().saturating_sub(last));
    texts[skip..].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_turn::turn;

    #[test]
    fn both_are_heard() {
        let turn = turn(&["user: a", "agent: b"], "c");
        let config = |last| FullConversationConfig { _input: String::new(), last };
        assert_eq!(query(&turn, &config(None)), "a b c");
        assert_eq!(query(&turn, &config(Some(2))), "b c");
    }
}
