//! The last turn as the query: Turns → Queries (MTRAG, section 5.2: the "last turn" strategy).
//!
//! ```ron
//! LastTurn(input: "turns")
//! ```

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, InputPort, Models, Operator, OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::record::{PortType, Query, Turn, Value};
use turnflow_engine::spec::from_tree;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "LastTurn",
    inputs: &[InputPort::one(PortType::Turns)],
    output: PortType::Queries,
    summary: "the user's last words, as they are",
    parse: |tree, sources| Ok(Box::new(from_tree::<LastTurnConfig>(tree, sources)?)),
};

/// Fields of `LastTurn`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastTurnConfig {
    /// Input node that produces turns.
    #[serde(rename = "input")]
    _input: String,
}

impl OperatorConfig for LastTurnConfig {
    fn explain(&self) -> String {
        String::new()
    }

    fn build(&self, _: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        Ok(Arc::new(LastTurn(self.clone())))
    }
}

struct LastTurn(LastTurnConfig);

impl Operator for LastTurn {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move { Ok(Value::Query(Query::new(query(&call.turn, &self.0)))) }.boxed()
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
