//! What a test says.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use turnflow_engine::component::{Check, ModelUse};
use turnflow_engine::plan::ModelsFile;
use turnflow_engine::record::Status;

/// Fields of `Test`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Test")]
pub struct TestConfig {
    /// What it shows, in a few words.
    pub name: String,
    /// Documents in place of those of the pipeline's corpora, by the corpus's name. Default: a
    /// corpus has its own.
    #[serde(default)]
    pub corpora: BTreeMap<String, Vec<Doc>>,
    /// What is said, in order.
    pub turns: Vec<Said>,
    /// The collection that the turns are put to, for retrievers routed `FromTurn`.
    #[serde(default)]
    pub collection: Option<String>,
    // Values by path, as of `--set`; put into the pipeline as they stand here.
    #[serde(default, rename = "set")]
    _set: IgnoredAny,
    // Models in place of the pipeline's; read by the planner.
    #[serde(default, rename = "models")]
    _models: IgnoredAny,
    /// What is to come of it.
    pub expect: Vec<Expect>,
}

/// A document of a test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doc {
    /// Its id; where the corpus is a directory, the file's path in it.
    pub id: String,
    /// Its title.
    #[serde(default)]
    pub title: String,
    /// Its text.
    pub text: String,
}

/// Something that is said.
#[derive(Clone, Debug, Deserialize)]
pub enum Said {
    /// A turn that is answered.
    User(String),
    /// What the agent said then, which is history in place of the pipeline's answer.
    Agent(String),
}

/// What is to come of one of the user's turns.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Which of the user's turns, from 1. Default: the last.
    pub turn: Option<usize>,
    /// What becomes of it.
    pub status: Option<Outcome>,
    /// The answer has this in it.
    pub answer: Option<String>,
    /// The answer matches this regular expression.
    pub answer_matches: Option<String>,
    /// The query that the answer was looked for with has this in it.
    pub query: Option<String>,
    /// Passages, or documents, that are among the answer's (or the last list's).
    pub hits: Vec<String>,
    /// Passages, or documents, that are not.
    pub not_hits: Vec<String>,
    /// What nodes are to find: one, or a list of them.
    pub hits_in: OneOrMany<HitsIn>,
    /// What the answer had to do without: each is in one of its warnings.
    #[serde(alias = "notes")]
    pub warnings: Vec<String>,
}

/// What a node is to find.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HitsIn {
    /// The node.
    pub node: String,
    /// How many hits to look at, from the first. Default: all.
    #[serde(default)]
    pub top: Option<usize>,
    /// Passages, or documents, that are among them.
    #[serde(default)]
    pub contains: Vec<String>,
    /// Passages, or documents, that are not.
    #[serde(default)]
    pub not: Vec<String>,
}

/// What becomes of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Outcome {
    /// There is an answer.
    Answered,
    /// The answer says that it does not know.
    Idk,
    /// A node failed.
    Failed,
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        match status {
            Status::Answered => Self::Answered,
            Status::Idk => Self::Idk,
            Status::Failed => Self::Failed,
        }
    }
}

impl TestConfig {
    /// How many of the turns are the user's.
    pub fn asked(&self) -> usize {
        self.turns.iter().filter(|said| matches!(said, Said::User(_))).count()
    }
}

impl ModelsFile for TestConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.asked() == 0 {
            check.error("wrong-value", "turns", "no turn is the user's, so nothing is asked");
        }
        if self.expect.is_empty() {
            check.error("wrong-value", "expect", "nothing is expected, so it would always hold");
        }
        for (name, docs) in &self.corpora {
            let mut ids: Vec<&str> = docs.iter().map(|doc| doc.id.as_str()).collect();
            ids.sort_unstable();
            if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
                let message = format!("two documents of `{name}` have the id `{}`", twice[0]);
                check.error("wrong-value", "corpora", message);
            }
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
}

/// One, or a list.
#[derive(Clone, Debug)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`(…)`, or a list of them")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneOrMany<T>, A::Error> {
                Ok(OneOrMany(vec![T::deserialize(MapAccessDeserializer::new(map))?]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OneOrMany<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(OneOrMany(all))
            }
        }
        deserializer.deserialize_any(Either(PhantomData))
    }
}
