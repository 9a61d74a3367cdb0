//! The user's utterances so far as the query: Turns → Queries (MTRAG, section 5.2: the "questions" strategy). Agent
//! utterances are left out.
//!
//! ```ron
//! UserTurns(input: "turns", last: 5)
//! ```

use turnflow_engine::component::{Call, Function, InputPort, OperatorError, OperatorKind, config};
use turnflow_engine::record::{PortType, Query, Speaker, Turn, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<UserTurnsConfig>(
    "UserTurns",
    &[InputPort::one(PortType::Turns)],
    PortType::Queries,
    "the user's turns, joined by spaces",
);

/// Fields of `UserTurns`.
#[config]
pub struct UserTurnsConfig {
    /// Input node that produces turns.
    _input: String,
    /// Number of the user's newest turns to use. Default: all in the remembered history.
    #[field(range = 1..=10_000, unset = "all")]
    pub last: Option<usize>,
}

impl Function for UserTurnsConfig {
    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        Ok(Value::Query(Query::new(query(&call.turn, self))))
    }
}

fn query(turn: &Turn, config: &UserTurnsConfig) -> String {
    let said = turn.history.iter().filter(|utterance| utterance.speaker == Speaker::User);
    let mut texts: Vec<&str> = said.map(|utterance| &*utterance.text).collect();
    texts.push(&turn.text);
    let skip = config.last.map_or(0, |last| texts.len().saturating_sub(last));
    texts[skip..].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_turn::turn;

    #[test]
    fn only_the_user_is_heard() {
        let turn = turn(&["user: a", "agent: b", "user: c"], "d");
        let config = |last| UserTurnsConfig { _input: String::new(), last };
        assert_eq!(query(&turn, &config(None)), "a c d");
        assert_eq!(query(&turn, &config(Some(2))), "c d");
    }
}
