//! Compares our metrics with the scores that the authors of MTRAG published for 477 answers.
//!
//! Their file is `mtrag/reference_subset_with_human_evaluations.json` in `$TURNFLOW_DATA`. Of its scores, ROUGE-L needs no
//! model. RB_alg is computed from the published BERTScore figures, with each answer's IDK label. The script
//! `tests/data/generation/published.py` compares the metrics that are not in the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use serde::Deserialize;
use serde_json::Value as Json;
use turnflow_engine::cache::InferenceCache;
use turnflow_engine::component::Models;

use super::conditioning::{Answerability, Counts, Idk, counts_clarified};
use super::config::MetricsConfig;
use super::reference_based::rb_alg;
use super::scorer::Scorer;
use super::{Response, Status};
use crate::tasks::{Task, read_task};

#[derive(Deserialize)]
struct Published {
    tasks: Vec<Json>,
    evaluations: Vec<Evaluation>,
}

#[derive(Deserialize)]
struct Evaluation {
    task_id: String,
    model_response: String,
    annotations: BTreeMap<String, BTreeMap<String, Json>>,
}

impl Evaluation {
    fn score(&self, name: &str) -> f64 {
        let value = self.annotations[name].values().next().and_then(|score| score["value"].as_f64());
        value.unwrap_or_else(|| panic!("{name} of {}", self.task_id))
    }
}

/// The IDK label of an answer: the published score tells whether it agrees with the answerability.
fn label(answerability: Answerability, agrees: bool) -> Idk {
    let expects = matches!(answerability, Answerability::Answerable | Answerability::Partial);
    if expects == agrees { Idk::No } else { Idk::Yes }
}

#[test]
fn the_published_scores_of_477_answers_are_ours() {
    let file = "mtrag/reference_subset_with_human_evaluations.json";
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("TURNFLOW_DATA").map_or_else(beside, PathBuf::from).join(file);
    if !path.exists() {
        println!("skipped: {} is missing; it is in the repository IBM/mt-rag-benchmark", path.display());
        return;
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let published: Published = serde_json::from_str(&text).expect(file);
    let tasks: Vec<Task> = published
        .tasks
        .iter()
        .map(|task| read_task(&task.to_string()).unwrap_or_else(|error| panic!("{error}")))
        .collect();
    let tasks: BTreeMap<&str, &Task> = tasks.iter().map(|task| (task.id.as_str(), task)).collect();
    let cache = InferenceCache::open(None).expect("a store in memory");
    let scorer = Scorer::new(&MetricsConfig::default(), &Models::new(), &cache).now_or_never().expect("ready");
    let scorer = scorer.unwrap_or_else(|error| panic!("{error}"));
    let near = |ours: f64, evaluation: &Evaluation, name: &str| {
        let theirs = evaluation.score(name);
        assert!((ours - theirs).abs() < 1e-4, "{name} of {}: {ours}, not {theirs}", evaluation.model_response);
    };
    for evaluation in &published.evaluations {
        let task = tasks[evaluation.task_id.as_str()];
        let text = evaluation.model_response.clone();
        let response = Response { text, status: Status::Answered, passages: Vec::new() };
        let raw = scorer.score(task, &response, &[]).now_or_never().expect("ready").raw;
        near(raw["rouge_l"], evaluation, "RougeL");
        let parts = [evaluation.score("Bert-Rec"), evaluation.score("Bert-KPrec"), raw["rouge_l"]];
        let answerability = Answerability::of(task).expect("an answerability");
        let idk = label(answerability, evaluation.score("conditional_idk") == 1.0);
        let rb_alg = match counts_clarified(Some(answerability), Some(idk), None) {
            Counts::AsItIs => rb_alg(parts[0], parts[1], parts[2], true),
            Counts::Fixed(value) => value,
            Counts::Not => panic!("{} does not count", task.id),
        };
        near(rb_alg, evaluation, "rb_agg");
        // The judges' scores are conditioned alike.
        if let Counts::Fixed(value) = counts_clarified(Some(answerability), Some(idk), None) {
            near(value, evaluation, "rb_llm");
            near(value, evaluation, "rl_f");
        }
    }
    assert_eq!(published.evaluations.len(), 477);
}
