//! The configuration of a test.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};
use turnflow_engine::component::{Check, Configured, ModelUse};
use turnflow_engine::plan::ModelsFile;
use turnflow_engine::record::Status;

/// Fields of `Test`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Test")]
pub struct TestConfig {
    /// What the test shows, in a few words.
    pub name: String,
    /// Documents that replace those of a corpus, by corpus name. Default: each corpus keeps its
    /// own documents.
    #[serde(default)]
    pub corpora: BTreeMap<String, Vec<Doc>>,
    /// The conversation, in order. Default: that of `records`.
    #[serde(default)]
    pub turns: Vec<Said>,
    /// Records of a log, as texts, of which the mapping of the pipeline's source makes the turns: that of the first node with
    /// `map`. Default: none.
    #[serde(default)]
    pub records: Vec<String>,
    /// The collection of the turns, for retrievers with `corpus: FromTurn`. Default: none.
    #[serde(default)]
    pub collection: Option<String>,
    /// Further fields of the turns, such as `{"principal": {"groups": ["staff"]}}`. Default: none.
    #[serde(default)]
    pub fields: Map<String, Json>,
    // Values by path, as in `--set`; inserted into the pipeline unchanged.
    #[serde(default, rename = "set")]
    _set: IgnoredAny,
    // Models that replace those of the pipeline; read by the planner.
    #[serde(default, rename = "models")]
    _models: IgnoredAny,
    /// The expected results.
    pub expect: Vec<Expect>,
}

/// A document of a test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doc {
    /// Its id. If the corpus is a directory: the path of the file in it.
    pub id: String,
    /// Its title. Default: empty.
    #[serde(default)]
    pub title: String,
    /// Its text.
    pub text: String,
    /// Its metadata. In a directory: the front matter of its file. Default: none.
    #[serde(default)]
    pub metadata: Map<String, Json>,
}

/// An utterance.
#[derive(Clone, Debug, Deserialize)]
pub enum Said {
    /// A user turn, which the pipeline answers.
    User(String),
    /// The agent's reply, which replaces the pipeline's answer in the history.
    Agent(String),
}

/// The expected result of a user turn.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The number of the user turn, from 1. Default: the last one.
    pub turn: Option<usize>,
    /// Its outcome. Default: not checked.
    pub status: Option<Outcome>,
    /// The answer contains this text. Default: not checked.
    pub answer: Option<String>,
    /// The answer matches this regular expression. Default: not checked.
    pub answer_matches: Option<String>,
    /// The retrieval query of the answer contains this text. Default: not checked.
    pub query: Option<String>,
    /// Ids of passages or documents that are among the hits of the answer, or of the last list of hits.
    pub hits: Vec<String>,
    /// Ids of passages or documents that are not among these hits.
    pub not_hits: Vec<String>,
    /// Expected hits of nodes: one `(…)`, or a list of them.
    pub hits_in: OneOrMany<HitsIn>,
    /// Texts that each occur in one of the answer's warnings.
    #[serde(alias = "notes")]
    pub warnings: Vec<String>,
}

/// The expected hits of a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HitsIn {
    /// The node.
    pub node: String,
    /// Check only this many of the best hits. Default: all.
    #[serde(default)]
    pub top: Option<usize>,
    /// Ids of passages or documents that are among them.
    #[serde(default)]
    pub contains: Vec<String>,
    /// Ids of passages or documents that are not.
    #[serde(default)]
    pub not: Vec<String>,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Outcome {
    /// The question is answered.
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
    /// The number of user turns.
    pub fn asked(&self) -> usize {
        self.turns.iter().filter(|said| matches!(said, Said::User(_))).count()
    }
}

impl Configured for TestConfig {}

impl ModelsFile for TestConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if !self.records.is_empty() && !self.turns.is_empty() {
            check.error("wrong-value", "records", "a test has `turns` or `records`, and not both");
        }
        if self.asked() == 0 && self.records.is_empty() {
            check.error("wrong-value", "turns", "no turn is the user's, so nothing is asked");
        }
        if self.expect.is_empty() {
            check.error("wrong-value", "expect", "nothing is expected, so the test would always pass");
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

/// One value, or a list.
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
