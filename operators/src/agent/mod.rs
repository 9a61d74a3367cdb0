//! An agent that searches, reads and checks in steps: Queries → Answers.
//!
//! ```ron
//! Agent(
//!     input: "query",
//!     model: "llm",
//!     steps: 6,
//!     search: {
//!         "lexical": Bm25(input: "query", corpus: "docs", top: 10),
//!         "dense": Dense(input: "query", corpus: "docs", model: "e5", top: 10),
//!         "fused": Rrf(inputs: ["lexical", "dense"], top: 10),
//!     },
//! )
//! ```
//!
//! The loop of reasoning and acting of ReAct (Yao et al. 2023, section 2; PolyU, section 2.3.3). In each step the model
//! writes a thought and one action, and the operator writes the observation: `search[words]` finds passages,
//! `lookup[words]` finds sentences in the passages found so far, `read[number]` shows more of one of them, and
//! `finish[answer]` ends the turn. The steps start with searches for the parts of the query, if `Decompose` has planned
//! any, or else for the whole query. Passages keep their numbers and are shown once. With `check`, an answer that the
//! passages do not support by the heuristics of `SelfCheck` is returned to the model with the reason, while steps are
//! left.
//!
//! `search` is a small pipeline of turnflow's own operators from queries to hits; `"query"` is the agent's search. The last
//! operator gives the hits, and operators that it does not need are not run. `Fallback` works as in the pipeline.
//!
//! **Bounds.** A turn ends after `steps` steps, after `tokens` generated tokens, or `seconds` after its start, with a
//! warning. The model is then asked once more for the answer, from the passages found so far; without passages the answer
//! is `idk`. A reply without a valid action is answered with a note that says what is wrong, and counts as a step; so
//! does an action that an earlier step has done. After three such replies in a row, no further step is asked for.
//!
//! **Trust.** Passages are quoted as in other prompts, so a document cannot add an observation, an action or a question.
//! What the model writes after its action, such as an observation that it made up, is dropped.
//!
//! The answer's hits are the passages found, in the order of their numbers; `checks.agent` has the plan, the steps and
//! how the turn ended. Prompt placeholders: `{question}`, `{plan}`, `{history}`, `{steps}`, `{idk}`. The same turn gives
//! the same steps, unless `seconds` ends it: model calls are seeded and cached. Cost: at most `steps` + 1 model calls, and
//! a search for each part and step.

mod action;
mod search;
#[cfg(test)]
mod tests;
mod transcript;
mod work;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde::Deserialize;
use turnflow_engine::component::fields::{Kind, Setting};
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Configured, Inner, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorKind, config,
};
use turnflow_engine::language::SamplingFields;
use turnflow_engine::record::PortType;
use turnflow_engine::spec::{FilePath, Sources, SpecError, Tree, from_tree};

use self::search::SearchConfig;
use self::work::{Agent, Settings};
use crate::models::generator;
use crate::passages::Length;
use crate::prompting::{self, Builder, Question, Style};
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "Agent",
    inputs: &[InputPort::one(PortType::Queries)],
    output: PortType::Answers,
    summary: "an answer from a language model that searches, reads and checks in steps",
    fields: AgentConfig::fields,
    parse: |tree, sources| Ok(Box::new(Config::parse(tree, sources)?)),
};

const PLACES: &[&str] = &["question", "plan", "history", "steps", "idk"];
const PROMPT: &str = include_str!("../../prompts/agent.txt");

/// Fields of `Agent`.
#[config]
pub struct AgentConfig {
    /// Input node that produces queries.
    _input: String,
    /// The model that decides and answers.
    pub model: String,
    /// The search, as a map of operators from the query to hits: `{"lexical": Bm25(input: "query", …), …}`.
    _search: Operators,
    /// Maximum number of steps of the model.
    #[field(default = 6, range = 1..=100)]
    pub steps: usize,
    /// Maximum number of tokens that the model generates in a turn.
    #[field(default = 4096, range = 1..=1_000_000)]
    pub tokens: u64,
    /// Maximum seconds of a turn; the running step ends first.
    #[field(default = 300.0, range = 0.1..=86_400.0)]
    pub seconds: f32,
    /// Maximum number of passages that a search shows.
    #[field(default = 3, range = 1..=100)]
    pub passages: usize,
    /// Maximum length of a passage that a search shows, in characters.
    #[field(default = 500, range = 1..=1_000_000)]
    pub characters: usize,
    /// Maximum length of a passage that `read` shows, in characters.
    #[field(default = 3000, range = 1..=1_000_000)]
    pub read_characters: usize,
    /// Whether the parts of the query (or the query) are searched before the first step.
    #[field(default = true)]
    pub search_first: bool,
    /// Whether an answer that the passages do not support is returned to the model while steps are left.
    #[field(default = true)]
    pub check: bool,
    /// Prompt file of the steps. Default: `operators/prompts/agent.txt`.
    #[field(unset = "built-in")]
    pub prompt: Option<FilePath>,
    /// Instruction for the answer after the last step: `Span` (default), `Grounded` or `Anchor`.
    #[field(default = Style::Span)]
    pub style: Style,
    /// Prompt file to use instead of `style`, with the placeholders `{question}`, `{passages}`, `{history}` and `{idk}`.
    /// Default: none.
    pub answer_prompt: Option<FilePath>,
    /// Maximum number of words to keep from the answer's first line. Default: the whole answer.
    #[field(range = 1..=10_000, unset = "all")]
    pub words: Option<usize>,
    /// Number of newest history utterances in the prompt.
    #[field(default)]
    pub history: usize,
    /// Maximum length of each history utterance, in characters.
    #[field(default = 600, range = 1..=1_000_000)]
    pub history_characters: usize,
    /// The answer if the passages do not answer the question. Default `I do not know.`
    #[field(default = "I do not know.")]
    pub idk: String,
    /// Sampling settings of the steps. Omitted fields use the model's own settings, which the answer after the last step
    /// uses too. A repetition penalty keeps small models from writing `Action:` again.
    #[field(default)]
    pub sampling: SamplingFields,
}

/// A map of operators, each with a name. [`SearchConfig`] reads and shows it.
#[derive(Clone, Debug)]
struct Operators;

impl Setting for Operators {
    fn kind() -> Kind {
        Kind::plain("operators by name")
    }

    fn shown(&self) -> Option<String> {
        None
    }
}

impl<'de> Deserialize<'de> for Operators {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// The fields with the search.
#[derive(Debug)]
struct Config {
    fields: AgentConfig,
    search: SearchConfig,
}

impl Config {
    fn parse(tree: &Tree, sources: &Sources) -> Result<Self, SpecError> {
        let fields = from_tree::<AgentConfig>(tree, sources)?;
        let search = tree.get("search").map(|search| SearchConfig::parse(search, sources)).transpose()?;
        Ok(Self { fields, search: search.unwrap_or_default() })
    }
}

impl Configured for Config {
    fn check_ranges(&self, check: &mut Check<'_>) {
        self.fields.check_ranges(check);
    }

    fn effective(&self) -> String {
        let members = self.search.members();
        let search: Vec<String> =
            members.map(|one| format!("{:?}: {}({})", one.id, one.kind.name, one.config.explain())).collect();
        format!("search: {{{}}}, {}", search.join(", "), self.fields.effective())
    }
}

impl OperatorConfig for Config {
    fn validate(&self, check: &mut Check<'_>) {
        let this = &self.fields;
        if this.idk.trim().is_empty() {
            check.error("wrong-value", "idk", "the sentence is empty");
        }
        check.sampling("sampling", &this.sampling);
        self.search.validate(check);
        Template::check(this.prompt.as_ref(), "prompt", PLACES, check);
        Template::check(this.answer_prompt.as_ref(), "answer_prompt", prompting::PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.fields.model, capability: Capability::Generate }]
    }

    fn inner(&self) -> Vec<Inner<'_>> {
        fn inner(member: &search::Member) -> Inner<'_> {
            Inner { path: vec!["search", member.id.as_str()], config: &*member.config }
        }
        self.search.checked().into_iter().map(inner).collect()
    }

    fn fails_without(&self, lacks: &dyn Fn(&str) -> bool) -> bool {
        lacks(&self.fields.model) || self.search.fails_without(lacks)
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        async move {
            let this = &self.fields;
            let builder = Builder {
                template: this.style.template(this.answer_prompt.as_ref())?,
                passages: usize::MAX,
                length: Length::Characters(this.characters),
                metadata: Vec::new(),
                question: Question::Searched,
                history: this.history,
                history_characters: this.history_characters,
                idk: this.idk.clone(),
            };
            let agent = Agent {
                generator: generator(models, &this.model, "Agent")?,
                template: Template::load(this.prompt.as_ref(), PROMPT, PLACES)?,
                search: self.search.build(context, models).await?,
                builder,
                settings: Settings {
                    steps: this.steps,
                    tokens: this.tokens,
                    time: Duration::from_secs_f32(this.seconds),
                    passages: this.passages,
                    show: Length::Characters(this.characters),
                    read: Length::Characters(this.read_characters),
                    search_first: this.search_first,
                    check: this.check,
                    words: this.words,
                    sampling: this.sampling.clone(),
                },
            };
            Ok(Arc::new(agent) as Arc<dyn Operator>)
        }
        .boxed()
    }
}
