//! The whole conversation as the query: Turns → Queries (MTRAG, section 5.2).
//!
//! ```ron
//! FullConversation(input: "turns", last: 6)
//! ```

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Check, InputPort, Models, Operator, OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::record::{PortType, Query, Turn, Value};
use turnflow_engine::spec::from_tree;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "FullConversation",
    inputs: &[InputPort::one(PortType::Turns)],
    output: PortType::Queries,
    summary: "everything that was said, by both",
    parse: |tree, sources| Ok(Box::new(from_tree::<FullConversationConfig>(tree, sources)?)),
};

/// Fields of `FullConversation`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullConversationConfig {
    /// Input node that produces turns.
    #[serde(rename = "input")]
    _input: String,
    /// Maximum number of utterances, newest first, including this turn. Default: the whole remembered history.
    #[serde(default)]
    pub last: Option<usize>,
}

impl OperatorConfig for FullConversationConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(last) = self.last {
            check.range("last", last, 1, 10_000);
        }
    }

    fn explain(&self) -> String {
        self.last.map_or("last: all".to_owned(), |last| format!("last: {last}"))
    }

    fn build(&self, _: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        Ok(Arc::new(FullConversation(self.clone())))
    }
}

struct FullConversation(FullConversationConfig);

impl Operator for FullConversation {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move { Ok(Value::Query(Query::new(query(&call.turn, &self.0)))) }.boxed()
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
