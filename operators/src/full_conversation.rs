//! The whole conversation as the query: Turns → Queries (MTRAG, section 5.2).
//!
//! ```ron
//! FullConversation(input: "turns", last: 6)
//! ```

use turnflow_engine::component::{Call, Function, InputPort, OperatorError, OperatorKind, config};
use turnflow_engine::record::{PortType, Query, Turn, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<FullConversationConfig>(
    "FullConversation",
    &[InputPort::one(PortType::Turns)],
    PortType::Queries,
    "the whole conversation, user and agent",
);

/// Fields of `FullConversation`.
#[config]
pub struct FullConversationConfig {
    /// Input node that produces turns.
    _input: String,
    /// Number of newest utterances to use, this turn included. Default: the whole remembered history.
    #[field(range = 1..=10_000, unset = "all")]
    pub last: Option<usize>,
}

impl Function for FullConversationConfig {
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
