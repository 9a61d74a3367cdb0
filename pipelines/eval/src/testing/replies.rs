//! `Replies`: a language model with fixed replies, for tests.
//!
//! ```ron
//! Replies(["The first reply.", (when: "regular expression", reply: "To a prompt that matches it.")])
//! ```
//!
//! A prompt that matches a `when` always gets its reply. Any other prompt gets the next reply without
//! a `when`. If none remains, the call fails and the test reports the prompt. As with any model, the
//! same prompt gets the same reply within a test.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use regex::Regex;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use turnflow_engine::component::{
    BuildFuture, Capability, Catalog, ComponentContext, Configured, Model, ModelConfig, ModelKind, loaded_at_once,
};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Generation, Generator, Prompt, Sampling, TextStream};
use turnflow_engine::spec::{Kind, Problem, SpecError, from_tree};
use turnflow_engine::wording::count;

/// Maximum characters of a prompt shown in an error.
const SHOWN: usize = 200;

/// The catalog with `Replies` added.
pub fn with_replies(catalog: &Catalog) -> Catalog {
    let mut catalog = catalog.clone();
    catalog.models.push(KIND);
    catalog
}

const KIND: ModelKind = ModelKind {
    name: "Replies",
    summary: "a model with fixed replies, for tests",
    fields: Replies::fields,
    parse: |tree, sources| match &tree.kind {
        Kind::Tuple(_, items) if items.len() == 1 => Ok(Box::new(Replies(from_tree(&items[0], sources)?))),
        _ => {
            let expected = "a list of replies, as in `Replies([\"Yes.\"])`".to_owned();
            Err(SpecError { problem: Problem::Type { expected }, span: Some(tree.span) })
        }
    },
};

/// The configuration of `Replies`.
#[derive(Debug)]
pub struct Replies(Vec<Reply>);

#[derive(Clone, Debug)]
struct Reply {
    when: Option<Regex>,
    text: String,
}

impl<'de> Deserialize<'de> for Reply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Matched {
            when: String,
            reply: String,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Reply;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a reply in quotes, or `(when: \"…\", reply: \"…\")`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Reply, E> {
                Ok(Reply { when: None, text: text.to_owned() })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Reply, A::Error> {
                let Matched { when, reply } = Matched::deserialize(MapAccessDeserializer::new(map))?;
                let when = Regex::new(&when).map_err(|error| {
                    de::Error::custom(format!("`when` is not a valid regular expression: {}", last_line(&error)))
                })?;
                Ok(Reply { when: Some(when), text: reply })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The error message for an expression, without the multi-line rendering of the expression.
pub(super) fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

impl Configured for Replies {}

impl ModelConfig for Replies {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Generate]
    }

    fn explain(&self) -> String {
        count(self.0.len(), "reply")
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| {
            let name = context.id();
            let (matched, in_order): (Vec<Reply>, Vec<Reply>) =
                self.0.iter().cloned().partition(|reply| reply.when.is_some());
            let in_order = Mutex::new(in_order.into_iter().map(|reply| reply.text).collect());
            let script = Script { matched, in_order, sampling: Sampling::default() };
            let fingerprint = format!("{:016x}", turnflow_engine::component::digest(format!("{self:?}").as_bytes()));
            Ok(Model { name: name.to_owned(), fingerprint, generator: Some(Arc::new(script)), ..Model::default() })
        })
    }
}

struct Script {
    matched: Vec<Reply>,
    in_order: Mutex<VecDeque<String>>,
    sampling: Sampling,
}

impl Generator for Script {
    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn generate_streamed(
        &self,
        prompt: Prompt,
        _: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let plain = prompt.plain();
        let matched = self.matched.iter().find(|reply| reply.when.as_ref().is_some_and(|when| when.is_match(&plain)));
        let text = match matched {
            Some(reply) => Some(reply.text.clone()),
            None => self.in_order.lock().unwrap_or_else(PoisonError::into_inner).pop_front(),
        };
        let (prompt_tokens, tokens) = (self.count(&plain), text.as_deref().map_or(0, |text| self.count(text)));
        let generation = text.map(|text| Generation {
            text,
            prompt_tokens: prompt_tokens as u64,
            tokens: tokens as u64,
            ..Generation::default()
        });
        // Show the end of the prompt, where the question is.
        let from = plain.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
        let shown = plain[from..].to_owned();
        let none = move || InferenceError::Failed(format!("`Replies` has no reply left for the prompt … {shown:?}"));
        async move { generation.inspect(|generation| stream.send(&generation.text)).ok_or_else(none) }.boxed()
    }

    fn count(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }
}
