//! Scores answers with all metrics that a metrics file declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::cache::InferenceCache;
use turnflow_engine::component::{Model, Models};
use turnflow_engine::inference::{InferenceError, PairScorer};
use turnflow_engine::language::Generator;
use turnflow_operators::citations::without;
use turnflow_operators::declines::{Head, Reader};

use super::bert_score::{Against, BertScore, EncoderError};
use super::clarification::ClarificationDetector;
use super::conditioning::{Answerability, Counts, Idk, counts, counts_clarified, counts_failed};
use super::config::{BertConfig, MetricsConfig};
use super::faithfulness::faithfulness;
use super::idk::IdkDetector;
use super::judge::{PromptError, Trouble, UNREAD, median, rate};
use super::prompts::Prompts;
use super::reference_based::rb_alg;
use super::repass::RepassScorer;
use super::rouge::{extractiveness, rouge_l};
use super::span::span;
use super::{METRICS, Response, Status};
use crate::tasks::Task;

/// Metric values by name.
pub type Values = BTreeMap<&'static str, f64>;

/// The scores of one task.
#[derive(Clone, Debug)]
pub struct Scored {
    /// Its status.
    pub status: Status,
    /// The IDK label; `None` if the task or the judge failed.
    pub idk: Option<Idk>,
    /// The raw metrics.
    pub raw: Values,
    /// Whether the response asks for clarification; `None` if the question is not underspecified, or if the task or the
    /// judge failed.
    pub clarifies: Option<bool>,
    /// The conditioned metrics.
    pub metrics: Values,
    /// The metrics as the benchmark's scripts condition them.
    pub clarified: Values,
    /// Judge failures: the metric (`idk` and `clarification` for the labels) and the error of each failed call.
    pub troubles: Vec<(&'static str, Trouble)>,
}

/// Why a scorer cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ScorerError {
    /// A model of the file cannot be used.
    #[error("model `{model}`: {source}")]
    Model {
        /// The name of the model.
        model: String,
        /// The reason.
        source: ScorerFault,
    },
    /// A prompt cannot be used.
    #[error(transparent)]
    Prompt(#[from] PromptError),
}

impl ScorerError {
    fn of(model: &str, source: impl Into<ScorerFault>) -> Self {
        Self::Model { model: model.to_owned(), source: source.into() }
    }
}

/// What is wrong with a model.
#[derive(Debug, thiserror::Error)]
pub enum ScorerFault {
    /// BERTScore cannot use it as an encoder.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// Its classes differ from the configured labels.
    #[error(transparent)]
    Classes(#[from] InferenceError),
    /// The file of weights of the learned label cannot be read.
    #[error(transparent)]
    Learned(turnflow_engine::component::BuildError),
    /// It lacks the required capability, although its kind has it.
    #[error("it lacks the required capability")]
    Capability,
}

/// Scores answers.
pub struct Scorer {
    passages: usize,
    stemmer: bool,
    bert: Option<BertScore>,
    bert_config: BertConfig,
    judges: Vec<Arc<dyn Generator>>,
    prompts: Prompts,
    repass: Option<RepassScorer>,
    idk: IdkDetector,
    clarification: ClarificationDetector,
}

impl Scorer {
    /// Creates a scorer from a configuration and its models; `cache` stores BERTScore values.
    ///
    /// # Errors
    ///
    /// A model cannot be used for its purpose, or a prompt cannot be read.
    pub async fn new(
        config: &MetricsConfig,
        models: &Models,
        cache: &Arc<InferenceCache>,
    ) -> Result<Self, ScorerError> {
        fn part<T: ?Sized>(
            models: &Models,
            name: &str,
            part: impl Fn(&Model) -> Option<Arc<T>>,
        ) -> Result<Arc<T>, ScorerError> {
            let found = models.get(name).and_then(|model| part(model));
            found.ok_or_else(|| ScorerError::of(name, ScorerFault::Capability))
        }
        let prompts = Prompts::load(&config.prompts)?;
        let generator = |name: &String| part(models, name, |model| model.generator.clone());
        let pairs = |name: &String| part::<dyn PairScorer>(models, name, |model| model.pairs.clone());
        let bert = match &config.encoder {
            None => None,
            Some(name) => {
                let encoder = part(models, name, |model| model.token_embedder.clone())?;
                let fingerprint = models.get(name).map_or("", |model| &model.fingerprint);
                let bert = BertScore::new(encoder, fingerprint, cache).await;
                Some(bert.map_err(|error| ScorerError::of(name, error))?)
            }
        };
        let repass = match &config.nli {
            None => None,
            Some(name) => {
                let classifier = config.repass.classifier.as_ref().map(pairs).transpose()?;
                let coverage = config.repass.coverage.as_ref().map(|coverage| pairs(&coverage.model)).transpose()?;
                let repass = RepassScorer::new(config.repass.clone(), pairs(name)?, coverage, classifier);
                Some(repass.map_err(|error| ScorerError::of(name, error))?)
            }
        };
        let idk_judge = config.idk.judge.as_ref().map(generator).transpose()?;
        let clarification_judge = config.clarification.judge.as_ref().map(generator).transpose()?;
        let reader = match &config.idk.encoder {
            None => Reader::default(),
            Some(name) => {
                let embedder = part(models, name, |model| model.embedder.clone())?;
                let fault = |source| ScorerError::of(name, ScorerFault::Learned(source));
                let head = Head::load(config.idk.head.as_ref()).map_err(fault)?;
                let reader = Reader::learned(embedder, head).await;
                reader.map_err(|source| ScorerError::of(name, source))?
            }
        };
        Ok(Self {
            passages: config.passages.0,
            stemmer: config.rouge.stemmer,
            bert,
            bert_config: config.bert.clone(),
            judges: config.judge.0.iter().map(generator).collect::<Result<_, _>>()?,
            repass,
            idk: IdkDetector::new(
                &config.idk.phrases,
                reader.clone(),
                idk_judge.map(|judge| (judge, prompts.idk.clone())),
            ),
            clarification: ClarificationDetector {
                reader,
                judge: clarification_judge.map(|judge| (judge, prompts.clarification.clone())),
            },
            prompts,
        })
    }

    /// The metrics that are not computed, with the reasons.
    pub fn left_out(&self, tasks: &[Task]) -> Vec<(&'static str, &'static str)> {
        let has_target = tasks.iter().any(|task| task.target.is_some());
        let needs_target = |name: &str| {
            matches!(
                name,
                "bert_recall" | "rb_alg" | "rb_llm" | "exact_match" | "token_f1" | "token_recall" | "hotpot_f1"
            ) || name.starts_with("rouge")
        };
        let why = |name: &'static str| match name {
            _ if needs_target(name) && !has_target => Some("no task has a `target`"),
            "bert_recall" | "bert_k_precision" | "rb_alg" if self.bert.is_none() => Some("no `encoder` is declared"),
            "rb_llm" | "rl_f" if self.judges.is_empty() => Some("no `judge` is declared"),
            _ if name.starts_with("repass") && self.repass.is_none() => Some("no `nli` is declared"),
            "repass" | "repass_any" | "repass_contradiction"
                if self.repass.as_ref().is_some_and(|repass| !repass.tells_contradictions()) =>
            {
                Some("the `nli` model has no class for contradictions")
            }
            _ => None,
        };
        METRICS.iter().filter_map(|metric| Some((metric.name, why(metric.name)?))).collect()
    }

    /// Scores one task's response.
    pub async fn score(&self, task: &Task, response: &Response, left_out: &[(&'static str, &'static str)]) -> Scored {
        let answerability = Answerability::of(task);
        let mut troubles = Vec::new();
        if response.status == Status::Failed {
            // The scripts count every task.
            let counts = [counts_failed(answerability), Counts::Fixed(0.0)];
            return Scored::new(response.status, Values::new(), troubles, counts, left_out);
        }
        // Citations are removed: neither the references nor the judges' instructions have any.
        let mut response = Response { text: without(&response.text), ..response.clone() };
        response.passages.truncate(self.passages);
        // Labels that cannot be read count as the published scripts count them: as partial, and as no request.
        let idk = match self.idk.label(&task.input, &response).await {
            Ok(idk) => Some(idk),
            Err(trouble) => {
                let label = matches!(trouble, Trouble::Unread).then_some(Idk::Partial);
                troubles.push(("idk", trouble));
                label
            }
        };
        let mut clarifies = None;
        if answerability == Some(Answerability::Underspecified) {
            match self.clarification.label(&response.text).await {
                Ok(label) => clarifies = Some(label),
                Err(trouble) => {
                    clarifies = matches!(trouble, Trouble::Unread).then_some(false);
                    troubles.push(("clarification", trouble));
                }
            }
        }
        let counts = [counts(answerability, idk), counts_clarified(answerability, idk, clarifies)];
        let raw = self.raw(task, &response, &mut troubles).await;
        Scored { idk, clarifies, ..Scored::new(response.status, raw, troubles, counts, left_out) }
    }

    /// The raw metrics.
    async fn raw(&self, task: &Task, response: &Response, troubles: &mut Vec<(&'static str, Trouble)>) -> Values {
        // The answer's length (TechSSN, table 3, has characters).
        let text = response.text.trim();
        let lengths = [("words", text.split_whitespace().count()), ("characters", text.chars().count())];
        let mut raw: Values = lengths.map(|(name, length)| (name, length as f64)).into();
        raw.insert("extractiveness", extractiveness(&response.text, &response.passages));
        let target = task.target.as_deref();
        if let Some(target) = target {
            let rouge = rouge_l(&response.text, target, self.stemmer);
            raw.extend([
                ("rouge_l", rouge.f_measure),
                ("rouge_l_precision", rouge.precision),
                ("rouge_l_recall", rouge.recall),
            ]);
            let span = span(&response.text, task.targets());
            raw.extend([
                ("exact_match", span.exact_match),
                ("token_f1", span.f1),
                ("token_recall", span.recall),
                ("hotpot_f1", span.hotpot_f1),
            ]);
        }
        if let Some(bert) = &self.bert {
            match self.bert_figures(bert, target, response).await {
                Ok(figures) => raw.extend(figures),
                Err(error) => troubles.push(("bert_k_precision", error.into())),
            }
        }
        let parts = ["bert_recall", "bert_k_precision", "rouge_l"].map(|name| raw.get(name).copied());
        if let [Some(recall), Some(precision), Some(rouge)] = parts {
            // As in the published scripts, nothing can be faithful to no passage.
            let precision = if response.passages.is_empty() { f64::NEG_INFINITY } else { precision };
            raw.insert("rb_alg", rb_alg(recall, precision, rouge, self.bert_config.baseline.is_some()));
        }
        if let Some(target) = target {
            let mut ratings = Vec::new();
            for judge in &self.judges {
                match rate(judge, &self.prompts, task, target, response).await {
                    Ok(rating) => ratings.push(rating),
                    Err(trouble) => {
                        ratings.extend(matches!(trouble, Trouble::Unread).then_some(UNREAD));
                        troubles.push(("rb_llm", trouble));
                    }
                }
            }
            raw.extend(median(ratings).map(|rating| ("rb_llm", rating)));
        }
        if let Some(judge) = self.judges.first().filter(|_| !response.text.trim().is_empty()) {
            match faithfulness(judge, &self.prompts, &task.input, response).await {
                Ok(share) => drop(raw.insert("rl_f", share)),
                Err(trouble) => troubles.push(("rl_f", trouble)),
            }
        }
        if let Some(repass) = &self.repass {
            match repass.score(response).await {
                Ok(Some(figures)) => {
                    let parts = [
                        ("repass", figures.composite()),
                        ("repass_entailment", Some(figures.entailment)),
                        ("repass_contradiction", figures.contradiction),
                        ("repass_obligations", Some(figures.obligations)),
                        ("repass_any", figures.composite_any()),
                        ("repass_obligations_any", Some(figures.obligations_any)),
                    ];
                    raw.extend(parts.into_iter().filter_map(|(name, value)| Some((name, value?))));
                }
                Ok(None) => {}
                Err(error) => troubles.push(("repass", error.into())),
            }
        }
        raw
    }

    async fn bert_figures(
        &self,
        bert: &BertScore,
        target: Option<&str>,
        response: &Response,
    ) -> Result<Values, InferenceError> {
        let passages = match self.bert_config.passages {
            Against::Best => response.passages.clone(),
            Against::Joined if response.passages.is_empty() => Vec::new(),
            Against::Joined => vec![response.passages.join("\n")],
        };
        let others: Vec<String> = target.map(str::to_owned).into_iter().chain(passages).collect();
        let alike = bert.compare(&response.text, &others).await?;
        let (target, passages) = alike.split_at(usize::from(target.is_some()));
        let (base_precision, base_recall) = self.bert_config.baseline.unwrap_or((0.0, 0.0));
        let scale = |value: f64, base: f64| (value - base) / (1.0 - base);
        let mut figures = Values::new();
        if let Some(target) = target.first() {
            figures.insert("bert_recall", scale(target.recall, base_recall));
        }
        let best = passages.iter().map(|alike| alike.precision).reduce(f64::max);
        // An answer without passages has the precision 0, also if values are rescaled.
        figures.insert("bert_k_precision", best.map_or(0.0, |best| scale(best, base_precision)));
        Ok(figures)
    }
}

impl Scored {
    /// The scores without labels. `counts` tells how the metrics count, by the paper and by the scripts.
    fn new(
        status: Status,
        raw: Values,
        troubles: Vec<(&'static str, Trouble)>,
        counts: [Counts; 2],
        left_out: &[(&'static str, &'static str)],
    ) -> Self {
        let [metrics, clarified] = counts.map(|counts| conditioned(&raw, counts, left_out));
        Self { status, idk: None, raw, clarifies: None, metrics, clarified, troubles }
    }
}

/// The conditioned metrics.
fn conditioned(raw: &Values, counts: Counts, left_out: &[(&'static str, &'static str)]) -> Values {
    let value = |name: &'static str| match counts {
        _ if left_out.iter().any(|(other, _)| *other == name) => None,
        Counts::AsItIs => raw.get(name).copied(),
        Counts::Fixed(value) => Some(value),
        Counts::Not => None,
    };
    let names = METRICS.iter().filter(|metric| metric.conditioned).map(|metric| metric.name);
    names.filter_map(|name| Some((name, value(name)?))).collect()
}
