//! The reply that the log's own assistant gave, as an answer: Hits → Answers.
//!
//! ```ron
//! Recorded(input: "hits")
//! ```
//!
//! The reply is the text of the agent's record in the log. A turn of a source that leads to this operator therefore
//! begins when the reply has come: its text is the user's question before the reply, its history what was said before
//! the question, and its fields those of the agent's record, such as `contexts`. A user's record that has the reply
//! itself, in the field `reply`, begins at once. `Nli`, `SelfCheck`, `Evidence` and `IdkNormalize` judge the answer like
//! one of this pipeline.
//!
//! The answer's passages are the hits of the input: of `References` those that the record names, of a retriever those
//! that it finds, and of `Fallback` the first of these. An edit that reaches the hits has a standing turn judged again.
//! A turn without a reply, such as one of a caller, fails. Cost: none.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Call, ComponentContext, InputPort, Models, Operator, OperatorConfig, OperatorError, OperatorKind,
    ScoreUse, built_at_once, config,
};
use turnflow_engine::record::{Answer, Hits, PortType, REPLY, Status, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<RecordedConfig>(
    "Recorded",
    &[InputPort::one(PortType::Hits)],
    PortType::Answers,
    "the reply of the log's own assistant, to be judged",
);

/// Fields of `Recorded`.
#[config]
pub struct RecordedConfig {
    /// Input node that produces the hits that the reply is judged by.
    _input: String,
}

impl OperatorConfig for RecordedConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn takes_replies(&self) -> bool {
        true
    }

    fn explain(&self) -> String {
        format!("reply: the agent's record, or the field `{REPLY}`")
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Recorded)))
    }
}

struct Recorded;

impl Operator for Recorded {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let Hits { query, hits } = &**call.hits(0)?;
            let Some(text) = call.turn.extra.get(REPLY).and_then(|reply| reply.as_str()) else {
                return Err(OperatorError::Port("no reply in the turn's record"));
            };
            Ok(Value::Answer(Arc::new(Answer {
                query: query.clone(),
                text: text.into(),
                status: Status::Answered,
                hits: hits.clone(),
                support: None,
                checks: Default::default(),
            })))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{call, hits, operator, run};
    use crate::test_turn::turn;
    use turnflow_engine::component::Warnings;

    #[test]
    fn the_reply_is_the_answer() {
        let operator = operator::<RecordedConfig>(r#"(input: "hits")"#, &Models::default());
        let mut asked = turn(&[], "When does it leave?");
        asked.extra.insert(REPLY.to_owned(), "At noon.".into());
        let (Value::Answer(got), warnings) = call(&operator, asked, hits("leave", &["It leaves at noon."])) else {
            panic!()
        };
        assert_eq!((&*got.text, &*got.query.text, got.hits.len()), ("At noon.", "leave", 1));
        assert_eq!((got.status, warnings.len()), (Status::Answered, 0));
    }

    #[test]
    fn a_turn_without_a_reply_fails() {
        let operator = operator::<RecordedConfig>(r#"(input: "hits")"#, &Models::default());
        let call = Call {
            turn: Arc::new(turn(&[], "q")),
            inputs: vec![hits("q", &["p"])],
            snapshot: Arc::default(),
            warnings: Warnings::default(),
            stream: Default::default(),
            weights: None,
            format: None,
            watch: Default::default(),
        };
        let error = run(operator.call(call)).unwrap_err().to_string();
        assert!(error.contains("no reply in the turn's record"), "{error}");
    }
}
