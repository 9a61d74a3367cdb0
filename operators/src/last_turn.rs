//! The last turn as the query: Turns → Queries (MTRAG, section 5.2: the "last turn" strategy).
//!
//! ```ron
//! LastTurn(input: "turns")
//! ```

use turnflow_engine::component::{Call, Function, InputPort, OperatorError, OperatorKind, config};
use turnflow_engine::record::{PortType, Query, Turn, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<LastTurnConfig>(
    "LastTurn",
    &[InputPort::one(PortType::Turns)],
    PortType::Queries,
    "the last user turn, unchanged",
);

/// Fields of `LastTurn`.
#[config]
pub struct LastTurnConfig {
    /// Input node that produces turns.
    _input: String,
}

impl Function for LastTurnConfig {
    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        Ok(Value::Query(Query::new(query(&call.turn, self))))
    }
}

fn query(turn: &Turn, _: &LastTurnConfig) -> String {
    turn.text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_turn::turn;

    #[test]
    fn history_is_left_out() {
        let turn = turn(&["user: a", "agent: b"], "c");
        assert_eq!(query(&turn, &LastTurnConfig { _input: String::new() }), "c");
    }
}
