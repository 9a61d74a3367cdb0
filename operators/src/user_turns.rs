//! The user's utterances so far as the query: Turns → Queries (MTRAG, section 5.2: the "questions" strategy). Agent
//! utterances are left out.
//!
//! ```ron
//! UserTurns(input: "turns", last: 5)
//! ```

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Check, InputPort, Models, Operator, OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::record::{PortType, Query, Speaker, Turn, Value};
use turnflow_engine::spec::from_tree;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "UserTurns",
    inputs: &[InputPort::one(PortType::Turns)],
    output: PortType::Queries,
    summary: "all that the user said, joined by blanks",
    parse: |tree, sources| Ok(Box::new(from_tree::<UserTurnsConfig>(tree, sources)?)),
};

/// Fields of `UserTurns`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserTurnsConfig {
    /// Input node that produces turns.
    #[serde(rename = "input")]
    _input: String,
    /// Maximum number of the user's turns, newest first. Default: the whole remembered history.
    #[serde(default)]
    pub last: Option<usize>,
}

impl OperatorConfig for UserTurnsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(last) = self.last {
            check.range("last", last, 1, 10_000);
        }
    }

    fn explain(&self) -> String {
        self.last.map_or("last: all".to_owned(), |last| format!("last: {last}"))
    }

    fn build(&self, _: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        Ok(Arc::new(UserTurns(self.clone())))
    }
}

struct UserTurns(UserTurnsConfig);

impl Operator for UserTurns {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move { Ok(Value::Query(Query::new(query(&call.turn, &self.0)))) }.boxed()
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
