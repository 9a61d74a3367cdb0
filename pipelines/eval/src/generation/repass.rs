//! RePASs: entailment, contradiction and obligation coverage, computed with an NLI model.
//!
//! Defined by Gokhan et al. 2024 and used to evaluate FusionRAG (section 2.4). Each sentence of the
//! answer is a hypothesis, each sentence of the passages a premise. For each hypothesis, take the
//! highest probability of entailment and of contradiction over the premises; E and C are the means
//! of these. O is the share of the passages' obligations that the answer entails with a probability
//! above 0.7. A separate model can be configured for O (the authors use a larger one). RePASs is
//! (E − C + O + 1) / 3. An answer without sentences has no value.
//!
//! There are two readings of O. In the published code, only a sentence of the answer that is itself
//! an obligation covers one: these are `repass` and `repass_obligations`. Read as a definition, any
//! sentence of the answer does: these are `repass_any` and `repass_obligations_any`, which are never
//! lower.
//!
//! Obligations are sentences with deontic words, or the sentences that a classifier finds: an NLI
//! model that is asked whether a sentence entails that it states an obligation. (The paper trains a
//! separate classifier.) With an NLI model of two classes, which tells entailment from everything else, only E
//! and O are computed: there is no C, and so no RePASs. If the passages have no obligations, O is 0. As in the published code, the
//! passages are joined before they are split, so a passage without a full stop continues in the next.
//! Cost: sentences of the answer × (sentences + obligations of the passages) pairs.

use std::sync::Arc;

use futures::future::try_join_all;
use serde::Deserialize;
use turnflow_engine::inference::{InferenceError, PairScorer, Priority};
use turnflow_operators::citations;
use turnflow_operators::nli::{Label, softmax};
use turnflow_operators::sentences::sentence_ranges;

use super::Response;

/// Fields of `repass`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepassConfig {
    /// The model's classes, in the order of its outputs. Default: contradiction, entailment,
    /// neutral, as in the cross-encoders of Sentence-BERT. For a model of two classes, which are
    /// entailment and the rest: `[Entailment, Neutral]` or `[Neutral, Entailment]`; then there are
    /// no contradictions and no RePASs, only its other two parts.
    pub labels: Vec<Label>,
    /// An obligation is covered above this probability of entailment, from 0 to 1. Default: 0.7.
    pub covered: f32,
    /// The model that decides which obligations are covered. Default: the model `nli`.
    pub coverage: Option<Coverage>,
    /// The NLI model that finds obligations, with the same classes. Default: none; obligations are
    /// found by deontic words.
    pub classifier: Option<String>,
    /// The hypothesis that the classifier tests for each sentence. Default: `This sentence states an
    /// obligation.`
    pub obligation: String,
}

impl Default for RepassConfig {
    fn default() -> Self {
        Self {
            labels: vec![Label::Contradiction, Label::Entailment, Label::Neutral],
            covered: 0.7,
            coverage: None,
            classifier: None,
            obligation: "This sentence states an obligation.".to_owned(),
        }
    }
}

/// Fields of `coverage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    /// An NLI model.
    pub model: String,
    /// Its classes, in the order of its outputs.
    pub labels: Vec<Label>,
}

/// Deontic words and phrases, which mark a sentence as an obligation.
const DEONTIC: &[&str] = &[
    " must ",
    " shall ",
    " required to ",
    " requires ",
    " require ",
    " is required ",
    " are required ",
    " obliged to ",
    " obligated to ",
    " has to ",
    " have to ",
    " ought to ",
    " may not ",
    " may only ",
    " not permitted ",
    " prohibited ",
    " responsible for ensuring ",
    " need to ",
    " needs to ",
];

/// The parts of RePASs for a response, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Repass {
    /// Mean, over the answer's sentences, of the highest entailment.
    pub entailment: f64,
    /// Mean of the highest contradiction; `None` if the model has no class for it.
    pub contradiction: Option<f64>,
    /// Share of the passages' obligations that obligations of the answer cover.
    pub obligations: f64,
    /// Share of the passages' obligations that any sentences of the answer cover.
    pub obligations_any: f64,
}

impl Repass {
    /// RePASs of the published code: only obligations of the answer cover obligations.
    pub fn composite(&self) -> Option<f64> {
        self.with(self.obligations)
    }

    /// RePASs if any sentence of the answer covers obligations.
    pub fn composite_any(&self) -> Option<f64> {
        self.with(self.obligations_any)
    }

    fn with(&self, obligations: f64) -> Option<f64> {
        Some((self.entailment - self.contradiction? + obligations + 1.0) / 3.0)
    }
}

/// Scores responses.
pub struct RepassScorer {
    nli: Arc<dyn PairScorer>,
    coverage: Arc<dyn PairScorer>,
    classifier: Option<Arc<dyn PairScorer>>,
    config: RepassConfig,
    entailment: usize,
    contradiction: Option<usize>,
    /// The index of entailment in the coverage model.
    covers: usize,
}

/// Checks that the number of a model's classes matches the labels.
fn fits(model: &Arc<dyn PairScorer>, field: &str, labels: &[Label]) -> Result<(), InferenceError> {
    let (has, named) = (model.classes(), labels.len());
    if has == named {
        return Ok(());
    }
    Err(InferenceError::Shape(format!("has {has} classes, but `{field}` names {named}")))
}

fn place(labels: &[Label], label: Label) -> Option<usize> {
    labels.iter().position(|other| *other == label)
}

impl RepassScorer {
    /// Creates a scorer with the NLI model and, optionally, a coverage model and a classifier of
    /// obligations.
    ///
    /// # Errors
    ///
    /// The number of a model's classes differs from its `labels`.
    pub fn new(
        config: RepassConfig,
        nli: Arc<dyn PairScorer>,
        coverage: Option<Arc<dyn PairScorer>>,
        classifier: Option<Arc<dyn PairScorer>>,
    ) -> Result<Self, InferenceError> {
        for model in [Some(&nli), classifier.as_ref()].into_iter().flatten() {
            fits(model, "repass.labels", &config.labels)?;
        }
        let labels = config.coverage.as_ref().map_or(&config.labels, |coverage| &coverage.labels);
        let coverage = coverage.unwrap_or_else(|| nli.clone());
        fits(&coverage, "repass.coverage.labels", labels)?;
        let covers = place(labels, Label::Entailment).unwrap_or_default();
        let entailment = place(&config.labels, Label::Entailment).unwrap_or_default();
        let contradiction = place(&config.labels, Label::Contradiction);
        Ok(Self { nli, coverage, classifier, config, entailment, contradiction, covers })
    }

    /// Whether the NLI model tells contradictions.
    pub fn tells_contradictions(&self) -> bool {
        self.contradiction.is_some()
    }

    /// Scores a response; `None` if the answer has no sentences.
    ///
    /// # Errors
    ///
    /// A model failed.
    pub async fn score(&self, response: &Response) -> Result<Option<Repass>, InferenceError> {
        let answer = sentences(&citations::without(&response.text));
        let passages = sentences(&response.passages.join(" "));
        if answer.is_empty() {
            return Ok(None);
        }
        if passages.is_empty() {
            return Ok(Some(Repass { contradiction: self.contradiction.map(|_| 0.0), ..Repass::default() }));
        }
        let (mut entailed, mut contradicted) = (vec![0.0_f32; answer.len()], vec![0.0_f32; answer.len()]);
        for classes in self.pairs(&self.nli, &passages, &answer).await? {
            for (at, classes) in classes.iter().enumerate() {
                entailed[at] = entailed[at].max(classes[self.entailment]);
                if let Some(contradiction) = self.contradiction {
                    contradicted[at] = contradicted[at].max(classes[contradiction]);
                }
            }
        }
        let mean = |values: &[f32]| values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64;
        let [obligations, obligations_any] = self.covered(&answer, &passages).await?;
        let (entailment, contradiction) = (mean(&entailed), self.contradiction.map(|_| mean(&contradicted)));
        Ok(Some(Repass { entailment, contradiction, obligations, obligations_any }))
    }

    /// The shares of the passages' obligations that obligations of the answer cover, and that any of its
    /// sentences cover.
    async fn covered(&self, answer: &[String], passages: &[String]) -> Result<[f64; 2], InferenceError> {
        let oblige = self.oblige(passages).await?;
        let obligations: Vec<String> =
            passages.iter().zip(oblige).filter(|(_, obliges)| *obliges).map(|(text, _)| text.clone()).collect();
        if obligations.is_empty() {
            return Ok([0.0; 2]);
        }
        let obliges = self.oblige(answer).await?;
        let (mut covered, mut by_any) = (vec![false; obligations.len()], vec![false; obligations.len()]);
        for (classes, obliges) in self.pairs(&self.coverage, answer, &obligations).await?.iter().zip(obliges) {
            for (at, classes) in classes.iter().enumerate() {
                let covers = classes[self.covers] > self.config.covered;
                by_any[at] |= covers;
                covered[at] |= covers && obliges;
            }
        }
        let share =
            |covered: Vec<bool>| covered.iter().filter(|covered| **covered).count() as f64 / covered.len() as f64;
        Ok([share(covered), share(by_any)])
    }

    /// Class probabilities: one row per premise, one column per hypothesis.
    async fn pairs(
        &self,
        model: &Arc<dyn PairScorer>,
        premises: &[String],
        hypotheses: &[String],
    ) -> Result<Vec<Vec<Vec<f32>>>, InferenceError> {
        let asked = premises.iter().map(|premise| model.score(premise.clone(), hypotheses.to_vec(), Priority::Turn));
        let logits = try_join_all(asked).await?;
        Ok(logits.iter().map(|row| row.iter().map(|classes| softmax(classes)).collect()).collect())
    }

    /// Whether each sentence states an obligation.
    async fn oblige(&self, sentences: &[String]) -> Result<Vec<bool>, InferenceError> {
        let Some(classifier) = &self.classifier else {
            return Ok(sentences.iter().map(|sentence| is_deontic(sentence)).collect());
        };
        let says = [self.config.obligation.clone()];
        let found = self.pairs(classifier, sentences, &says).await?;
        let states = |classes: &Vec<Vec<f32>>| classes.first().is_some_and(|classes| classes[self.entailment] > 0.5);
        Ok(found.iter().map(states).collect())
    }
}

fn sentences(text: &str) -> Vec<String> {
    sentence_ranges(text).into_iter().map(|(start, end)| text[start..end].to_owned()).collect()
}

/// Whether a sentence contains a deontic word or phrase.
fn is_deontic(sentence: &str) -> bool {
    let words = sentence.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty());
    let padded = format!(" {} ", words.collect::<Vec<_>>().join(" ").to_lowercase());
    DEONTIC.iter().any(|phrase| padded.contains(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Status;
    use futures::FutureExt;
    use futures::future::BoxFuture;

    /// A premise entails its verbatim substrings and contradicts sentences with "never".
    struct Contains;

    impl PairScorer for Contains {
        fn classes(&self) -> usize {
            3
        }
        fn score(
            &self,
            first: String,
            seconds: Vec<String>,
            _: Priority,
        ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
            let logits = move |second: &String| match () {
                () if second.contains("obligation") => vec![0.0, if first.contains("must") { 30.0 } else { 0.0 }, 0.0],
                () if first.contains(second.as_str()) => vec![0.0, 30.0, 0.0],
                () if second.contains("never") => vec![30.0, 0.0, 0.0],
                () => vec![0.0, 0.0, 30.0],
            };
            let scores = seconds.iter().map(logits).collect();
            async move { Ok(scores) }.boxed()
        }
    }

    fn score(text: &str, config: &str) -> Option<Repass> {
        let passages = ["Firms must keep records. Records are kept for ten years.", "Reports shall be filed."];
        let response = Response {
            text: text.to_owned(),
            status: Status::Answered,
            passages: passages.map(str::to_owned).to_vec(),
        };
        let config: RepassConfig = turnflow_engine::spec::from_str(config).expect("a configuration");
        let classifier = config.classifier.is_some().then(|| Arc::new(Contains) as _);
        let scorer = RepassScorer::new(config, Arc::new(Contains), None, classifier).expect("3 classes");
        scorer.score(&response).now_or_never().expect("ready").expect("scores")
    }

    #[test]
    fn the_parts_and_the_whole() {
        for (text, config, parts, whole) in [
            ("Firms must keep records. Reports shall be filed.", "(covered: 0.7)", [1.0, 0.0, 1.0], 1.0),
            ("Firms must keep records [1]. They never do.", "(covered: 0.7)", [0.5, 0.5, 0.5], 0.5),
            ("Records are kept for ten years.", "(covered: 0.7)", [1.0, 0.0, 0.0], 2.0 / 3.0),
            // For the classifier, the second passage is not an obligation.
            ("Firms must keep records.", "(classifier: \"nli\")", [1.0, 0.0, 1.0], 1.0),
        ] {
            let got = score(text, config).expect("sentences");
            let contradiction = got.contradiction.expect("a class");
            for (ours, want) in [got.entailment, contradiction, got.obligations].into_iter().zip(parts) {
                assert!((ours - want).abs() < 1e-6, "{text}: {got:?}");
            }
            assert!(got.composite().is_some_and(|got| (got - whole).abs() < 1e-6), "{text}: {got:?}");
        }
        assert_eq!(score(" [1] ", "(covered: 0.7)"), None);
    }

    /// A premise of the answer that is no obligation covers one in only one of the readings. In the joined
    /// passages, a heading without a full stop is part of the next sentence.
    #[test]
    fn the_readings_of_coverage_differ() {
        let config = "(coverage: Some((model: \"large\", labels: [Contradiction, Neutral, Entailment])))";
        let got = score("Records are kept for ten years.", config).expect("a sentence");
        // These labels swap neutral and entailment: every pair is entailed.
        assert_eq!((got.obligations, got.obligations_any), (0.0, 1.0), "{got:?}");
        let apart = got.composite_any().zip(got.composite()).map(|(any, composite)| any - composite);
        assert!(apart.is_some_and(|apart| (apart - 1.0 / 3.0).abs() < 1e-9), "{got:?}");
        assert_eq!(sentences(&["3.2 Records", "Firms must keep records."].join(" ")).len(), 1);
    }

    /// Entailment, and everything else.
    struct TwoClasses;

    impl PairScorer for TwoClasses {
        fn classes(&self) -> usize {
            2
        }
        fn score(
            &self,
            first: String,
            seconds: Vec<String>,
            priority: Priority,
        ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
            let three = Contains.score(first, seconds, priority);
            let two = |classes: Vec<f32>| vec![classes[0].max(classes[2]), classes[1]];
            async move { Ok(three.await?.into_iter().map(two).collect()) }.boxed()
        }
    }

    #[test]
    fn two_classes_give_the_parts_without_contradictions() {
        let config = |labels: &str| -> RepassConfig {
            turnflow_engine::spec::from_str(&format!("(labels: [{labels}])")).expect("a configuration")
        };
        let scorer = |labels| RepassScorer::new(config(labels), Arc::new(TwoClasses), None, None);
        let response = Response {
            text: "Firms must keep records. They never do.".to_owned(),
            status: Status::Answered,
            passages: vec!["Firms must keep records.".to_owned()],
        };
        let scorer_of_two = scorer("Neutral, Entailment").unwrap_or_else(|error| panic!("{error}"));
        let got = scorer_of_two.score(&response).now_or_never().expect("ready").expect("scores").expect("sentences");
        assert!((got.entailment - 0.5).abs() < 1e-6 && got.obligations == 1.0, "{got:?}");
        assert_eq!((got.contradiction, got.composite(), scorer_of_two.tells_contradictions()), (None, None, false));
        assert!(scorer("Contradiction, Entailment, Neutral").is_err());
    }

    #[test]
    fn coverage_has_classes_of_its_own() {
        let config = "(coverage: Some((model: \"large\", labels: [Contradiction, Neutral, Entailment])))";
        // These labels swap neutral and entailment.
        let got = score("Nothing must be kept.", config).expect("a sentence");
        assert!(got.entailment < 1e-6 && got.obligations == 1.0, "{got:?}");
    }

    #[test]
    fn deontic_words_oblige() {
        for (sentence, want) in [
            ("A Relevant Person must notify the Regulator.", true),
            ("It SHALL, where asked, do so.", true),
            ("They are required to report.", true),
            ("Mustard is yellow, and a marshal came.", false),
            ("It may do so.", false),
            ("It may not do so.", true),
        ] {
            assert_eq!(is_deontic(sentence), want, "{sentence}");
        }
    }

    #[test]
    fn labels_must_fit_the_model() {
        let config = RepassConfig { labels: vec![Label::Entailment, Label::Contradiction], ..Default::default() };
        let error = RepassScorer::new(config, Arc::new(Contains), None, None).err().expect("3 classes").to_string();
        assert!(error.contains("has 3 classes, but `repass.labels` names 2"), "{error}");
    }
}
