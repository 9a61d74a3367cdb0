//! Measures the evidence for an answer from scores that the pipeline already has: Answers, Hits, … → Answers.
//!
//! ```ron
//! Evidence(input: "answer", lists: ["lexical", "dense"], model: None)
//! ```
//!
//! If the corpus cannot answer a question, its ranked lists show it: their best scores are low, the best is hardly
//! better than the rest, and retrievers of different kinds disagree. These signals are written to `checks.evidence`, by
//! name:
//!
//! - `L top`, `L margin`, `L spread` for each list `L`: the best score; the best minus the second; the best minus the
//!   mean of the second to tenth (missing ranks count as 0);
//! - `agreement@1`, `@3`, `@5`, `@10`: the share of the first k passages that two lists have in common, averaged over
//!   the pairs of lists;
//! - `coverage`: the share of the question's content words that occur in the answer's first three passages;
//! - `support`: the cosine of the answer with its passages, where it was measured; with a `model`, the mean over the
//!   answer's sentences of the best cosine with a passage's sentence.
//!
//! `IdkNormalize` turns these signals into a confidence with weights that `turnflow calibrate` learns (TechSSN, section
//! 7, names abstention as missing from its system). The answer's text does not change. The same input gives the same
//! numbers. Cost: none beyond that of the lists; with a `model`, the embedding of the sentences.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Map;
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, TextEffect, built_at_once, config,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role};
use turnflow_engine::record::{Answer, Hit, PortType, Status, Value};

use crate::citations;
use crate::models::embedder;
use crate::sentences::sentence_ranges;
use crate::words::{is_function, key, lower, words};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<EvidenceConfig>(
    "Evidence",
    &[InputPort::one(PortType::Answers), InputPort { field: "lists", ..InputPort::many(PortType::Hits) }],
    PortType::Answers,
    "evidence for an answer, measured on ranked lists",
);

/// Fields of `Evidence`.
#[config]
pub struct EvidenceConfig {
    /// Input node that produces answers.
    _input: String,
    /// Input nodes that produce hits: retrievers, and operators that fuse or rerank.
    pub lists: Vec<String>,
    /// The model that compares the answer's sentences with those of the passages. Default: none; `support` is then the
    /// value that the answer already carries.
    #[field(unset = "none")]
    pub model: Option<String>,
}

impl OperatorConfig for EvidenceConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.lists.is_empty() {
            check.error("wrong-value", "lists", "at least one list is required");
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let model = self.model.as_deref();
        model.map(|name| ModelUse { field: "model", name, capability: Capability::Embed }).into_iter().collect()
    }

    fn text_effect(&self) -> TextEffect {
        TextEffect::Unchanged
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let embedder = self.model.as_deref().map(|model| embedder(models, model, "Evidence")).transpose()?;
            Ok(Arc::new(Evidence { config: self.clone(), embedder }))
        })
    }
}

struct Evidence {
    config: EvidenceConfig,
    embedder: Option<Arc<dyn Embedder>>,
}

impl Operator for Evidence {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let mut answer = Answer::clone(call.answer(0)?);
            let lists: Vec<(&str, &[Hit])> = (self.config.lists.iter().enumerate())
                .map(|(at, name)| Ok((name.as_str(), &call.hits(at + 1)?.hits[..])))
                .collect::<Result<_, OperatorError>>()?;
            let mut signals = measure(&lists);
            signals.insert("coverage".to_owned(), coverage(&answer));
            if let Some(embedder) = self.embedder.as_ref().filter(|_| answer.status == Status::Answered) {
                answer.support = support(&**embedder, &answer).await?.or(answer.support);
            }
            if let Some(support) = answer.support {
                signals.insert("support".to_owned(), f64::from(support));
            }
            // Rounded to six decimals, the precision of single-precision floats.
            let rounded = signals.into_iter().map(|(name, value)| (name, ((value * 1e6).round() / 1e6).into()));
            answer.checks.insert("evidence".to_owned(), rounded.collect::<Map<_, _>>().into());
            Ok(Value::Answer(Arc::new(answer)))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(3)
    }
}

/// The signals of the ranked lists.
fn measure(lists: &[(&str, &[Hit])]) -> BTreeMap<String, f64> {
    let mut signals = BTreeMap::new();
    for (name, hits) in lists {
        let score = |at: usize| hits.get(at).map_or(0.0, |hit| f64::from(hit.score));
        let rest = (1..10).map(score).sum::<f64>() / 9.0;
        signals.insert(format!("{name} top"), score(0));
        signals.insert(format!("{name} margin"), score(0) - score(1));
        signals.insert(format!("{name} spread"), score(0) - rest);
    }
    for depth in [1, 3, 5, 10] {
        let first = |hits: &[Hit]| -> HashSet<_> { hits.iter().take(depth).map(|hit| hit.chunk.identity()).collect() };
        let sets: Vec<HashSet<_>> = lists.iter().map(|(_, hits)| first(hits)).collect();
        let mut shares = Vec::new();
        for (at, one) in sets.iter().enumerate() {
            shares.extend(sets[at + 1..].iter().map(|other| one.intersection(other).count() as f64 / depth as f64));
        }
        if !shares.is_empty() {
            signals.insert(format!("agreement@{depth}"), shares.iter().sum::<f64>() / shares.len() as f64);
        }
    }
    signals
}

/// The share of the question's content words that occur in the first three passages.
fn coverage(answer: &Answer) -> f64 {
    let keys = |text: &str| -> HashSet<String> {
        words(text).iter().filter(|word| !is_function(&lower(word.text))).map(|word| key(word.text)).collect()
    };
    let asked = keys(&answer.query.text);
    let there: HashSet<String> = answer.hits.iter().take(3).flat_map(|hit| keys(&hit.chunk.indexed_text())).collect();
    asked.intersection(&there).count() as f64 / asked.len().max(1) as f64
}

/// The mean, over the answer's sentences, of the best cosine with a sentence of a passage.
pub(crate) async fn support(embedder: &dyn Embedder, answer: &Answer) -> Result<Option<f32>, InferenceError> {
    let sentences = |text: &str| -> Vec<String> {
        sentence_ranges(text)
            .into_iter()
            .map(|(from, to)| text[from..to].trim().to_owned())
            .filter(|s| !s.is_empty())
            .collect()
    };
    let said = sentences(&citations::without(&answer.text));
    let passages: Vec<String> = answer.hits.iter().flat_map(|hit| sentences(&hit.chunk.text)).collect();
    if said.is_empty() || passages.is_empty() {
        return Ok(None);
    }
    let count = said.len();
    let texts = said.into_iter().chain(passages).collect();
    let vectors = embedder.embed(texts, Role::Passage, Priority::Turn).await?;
    let (said, passages) = vectors.split_at(count.min(vectors.len()));
    let cosine = |a: &[f32], b: &[f32]| -> f32 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE)
    };
    let best = said.iter().map(|one| passages.iter().map(|other| cosine(one, other)).fold(-1.0, f32::max));
    Ok(Some(best.sum::<f32>() / count as f32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::list;
    use crate::test_generator::{self, run};
    use crate::test_turn::turn;
    use turnflow_engine::component::Warnings;
    use turnflow_engine::record::{Hits, Query};

    #[test]
    fn lists_are_measured_by_their_first_ten() {
        let lexical = list(&[("a", 9.0), ("b", 5.0), ("c", 4.0)]);
        let dense = list(&[("b", 0.75), ("a", 0.5), ("x", 0.25)]);
        let signals = measure(&[("lexical", &lexical), ("dense", &dense)]);
        for (name, value) in [
            ("lexical top", 9.0),
            ("lexical margin", 4.0),
            ("lexical spread", 8.0),
            ("dense margin", 0.25),
            ("agreement@1", 0.0),
            ("agreement@3", 2.0 / 3.0),
            ("agreement@10", 0.2),
        ] {
            assert!((signals[name] - value).abs() < 1e-9, "{name}: {}", signals[name]);
        }
        let alone = measure(&[("dense", &[])]);
        assert_eq!((alone.len(), alone["dense top"]), (3, 0.0));
    }

    #[test]
    fn the_answer_gets_its_evidence_and_stays() {
        let config = r#"(input: "answer", lists: ["lexical"])"#;
        let operator = test_generator::operator::<EvidenceConfig>(config, &Models::default());
        let passages = ["The copper teapot was made in Lyon.", "Teapots are kept dry."];
        let answer = test_generator::answer("who made the copper kettle?", "In Lyon.", &passages);
        let hits = Value::Hits(Arc::new(Hits { query: Query::new("q"), hits: list(&[("p1", 2.0)]) }));
        let call = Call {
            turn: Arc::new(turn(&[], "q")),
            inputs: vec![answer, hits],
            snapshot: Arc::default(),
            warnings: Warnings::default(),
            stream: Default::default(),
            weights: None,
            format: None,
            watch: Default::default(),
        };
        let Value::Answer(got) = run(operator.call(call)).unwrap() else { panic!() };
        let evidence = got.checks["evidence"].as_object().unwrap();
        assert_eq!(
            (&*got.text, &evidence["lexical top"], evidence.contains_key("support")),
            ("In Lyon.", &2.0.into(), false)
        );
        let coverage = evidence["coverage"].as_f64().unwrap();
        assert!(coverage > 0.0 && coverage < 1.0, "{coverage}");
    }
}
