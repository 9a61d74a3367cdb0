//! The metrics file: configures how answers are scored.
//!
//! ```ron
//! Metrics(
//!     models: { "minilm": Onnx(path: "minilm/model.onnx", tokenizer: "minilm/tokenizer.json") },
//!     encoder: "minilm",
//! )
//! ```
//!
//! It is read like a pipeline file, with the same kinds of models, `include` and diagnostics. Paths
//! are relative to the file. Every field is optional.

use std::path::Path;

use serde::Deserialize;
use turnflow_engine::component::{Capability, Catalog, Check, Configured, ModelUse};
use turnflow_engine::plan::{ModelsFile, PlannedModels, plan_models};
use turnflow_engine::spec::{FilePath, from_tree, load};
use turnflow_operators::nli::Label;

use super::bert_score::Against;
use super::prompts::PromptsConfig;
use super::repass::RepassConfig;

/// Fields of `Metrics`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename = "Metrics")]
pub struct MetricsConfig {
    // Read by the planner.
    #[serde(rename = "models")]
    _models: Skipped,
    /// Number of passages that an answer is judged against, from the first. Default: 5, as in MTRAG.
    pub passages: Passages,
    /// Settings of ROUGE-L.
    pub rouge: RougeConfig,
    /// The encoder for BERTScore. Default: none; then the BERTScore metrics and RB_alg are not computed.
    pub encoder: Option<String>,
    /// Settings of BERTScore.
    pub bert: BertConfig,
    /// One or several language models that rate answers (RB_llm is the median of their ratings). The
    /// first one also judges faithfulness (RL_F). Default: none.
    pub judge: Judges,
    /// The NLI model (natural language inference) for RePASs. Default: none.
    pub nli: Option<String>,
    /// Settings of RePASs.
    pub repass: RepassConfig,
    /// Settings of the IDK labels ("I do not know").
    pub idk: IdkConfig,
    /// Settings of the labels of responses that ask for clarification.
    pub clarification: ClarificationConfig,
    /// Files of prompts for the judges. Default: those in `pipelines/prompts/`.
    pub prompts: PromptsConfig,
}

/// A field that another component reads.
#[derive(Clone, Debug, Default)]
struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// A number of passages.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub struct Passages(pub usize);

impl Default for Passages {
    fn default() -> Self {
        Self(5)
    }
}

/// Fields of `rouge`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RougeConfig {
    /// Whether to stem words. Default: false, as in MTRAG's evaluation.
    pub stemmer: bool,
}

/// Fields of `bert`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BertConfig {
    /// What Bert-K-Precision compares the answer with: the `Best` passage (default) or all passages `Joined`.
    pub passages: Against,
    /// The precision and recall b of unrelated texts. Values x are rescaled to (x − b) / (1 − b).
    /// Default: none, no rescaling.
    pub baseline: Option<(f64, f64)>,
}

/// Fields of `idk`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdkConfig {
    /// An answer that begins with one of these phrases counts as IDK too. Default: none; the grammar of `IdkNormalize`
    /// decides.
    pub phrases: Vec<String>,
    /// The encoder of the learned label of `IdkNormalize`, which corrects the grammar. It reads questions back too.
    /// Default: none.
    pub encoder: Option<String>,
    /// File with the weights of the learned label. Default: built-in ones, for MiniLM.
    pub head: Option<FilePath>,
    /// The language model that labels answers. Default: none; the rules decide.
    pub judge: Option<String>,
}

/// Fields of `clarification`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClarificationConfig {
    /// The language model that labels answers to underspecified questions. Default: none; rules decide.
    pub judge: Option<String>,
}

/// The names of the judges: one name, or a list.
#[derive(Clone, Debug, Default)]
pub struct Judges(pub Vec<String>);

impl<'de> Deserialize<'de> for Judges {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> serde::de::Visitor<'de> for Names {
            type Value = Judges;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a model's name in quotes, or a list of them")
            }
            fn visit_str<E>(self, name: &str) -> Result<Judges, E> {
                Ok(Judges(vec![name.to_owned()]))
            }
            fn visit_unit<E>(self) -> Result<Judges, E> {
                Ok(Judges::default())
            }
            fn visit_none<E>(self) -> Result<Judges, E> {
                Ok(Judges::default())
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Judges, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element()? {
                    names.push(name);
                }
                Ok(Judges(names))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

impl Configured for MetricsConfig {}

impl ModelsFile for MetricsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("passages", self.passages.0, 1, 1000);
        check.range("repass", self.repass.covered, 0.0, 1.0);
        let often = |label| self.repass.labels.iter().filter(|other| **other == label).count();
        if often(Label::Entailment) != 1 {
            check.error("wrong-value", "repass", "`Entailment` must be among the `labels` once");
        }
        // A model of two classes tells entailment from everything else.
        let has_two = self.repass.labels.len() == 2 && often(Label::Neutral) == 1;
        if often(Label::Contradiction) != 1 && !has_two {
            let message = "`Contradiction` must be among the `labels` once, or the model has the classes `Entailment` and `Neutral`";
            check.error("wrong-value", "repass", message);
        }
        let entails = |label: &&Label| **label == Label::Entailment;
        if let Some(coverage) = &self.repass.coverage
            && coverage.labels.iter().filter(entails).count() != 1
        {
            check.error("wrong-value", "repass", "`Entailment` must be among the `labels` of `coverage` once");
        }
        self.prompts.check(check);
        if self.idk.head.is_some() && self.idk.encoder.is_none() {
            check.error("wrong-value", "idk", "the weights of `head` need an `encoder`");
        }
        if let Some((precision, recall)) = self.bert.baseline {
            check.range("bert", precision, -1.0, 0.999);
            check.range("bert", recall, -1.0, 0.999);
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        fn used<'a>(field: &'static str, name: Option<&'a String>, capability: Capability) -> Option<ModelUse<'a>> {
            name.map(|name| ModelUse { field, name, capability })
        }
        let judges = self.judge.0.iter();
        let judges = judges.map(|name| ModelUse { field: "judge", name, capability: Capability::Generate });
        let others = [
            used("encoder", self.encoder.as_ref(), Capability::EmbedTokens),
            used("nli", self.nli.as_ref(), Capability::ScorePairs),
            used(
                "repass.coverage",
                self.repass.coverage.as_ref().map(|coverage| &coverage.model),
                Capability::ScorePairs,
            ),
            used("repass.classifier", self.repass.classifier.as_ref(), Capability::ScorePairs),
            used("idk.encoder", self.idk.encoder.as_ref(), Capability::Embed),
            used("idk.judge", self.idk.judge.as_ref(), Capability::Generate),
            used("clarification.judge", self.clarification.judge.as_ref(), Capability::Generate),
        ];
        judges.chain(others.into_iter().flatten()).collect()
    }
}

/// Reads a metrics file.
pub fn read(path: &Path, catalog: &Catalog) -> PlannedModels<MetricsConfig> {
    let parse = |tree: &_, sources: &_| from_tree::<MetricsConfig>(tree, sources).map(Box::new);
    plan_models(load(path, &[]), "Metrics", parse, catalog)
}
