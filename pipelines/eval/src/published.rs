//! Published answers of models beside our scores of them, and both beside the judgements of people.
//!
//! MTRAG publishes evaluations (Katsis et al. 2025, tables 5 to 7): the answers of several models to the same tasks,
//! with the scores of its metrics and, for a part, the judgements of three people each: four properties from 1 to 4
//! (faithful, appropriate, natural, complete) and the win rate against the other models' answers. `turnflow import
//! mtrag` writes them as a folder; see [`import`](crate::import).
//!
//! - Scores are compared answer by answer. Ours are conditioned as the benchmark's scripts do, like the published ones.
//! - Table 6: the mean over the answers of a model of the median of the people, for the win rate of their mean; `all` is
//!   the mean of the harmonic mean of the four properties. Only tasks that are answerable, at least in part, count.
//! - Table 7: the rank correlation of a metric with the win rate, and with each property without the reference answers,
//!   whose rank is fixed. The paper weighs the judgements and does not say how; here, each value of a judgement counts
//!   as much as the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::correlation::{balanced, spearman};
use crate::generation::conditioning::Answerability;
use crate::generation::judge::median;
use crate::tasks::{Task, TasksError, read_tasks};
use crate::trec::lines;

/// The model whose answers are the references.
const REFERENCE: &str = "reference";
/// The judgement of people that compares answers.
const WINS: &str = "win-rate";
/// The properties that people judged.
const PROPERTIES: [&str; 4] = ["faithfulness", "appropriateness", "naturalness", "completeness"];
/// How far scores that are equal may differ.
const EQUAL: f64 = 1e-4;

/// Published metrics and ours: the published name, the part of a task's figures, and our name.
const SAME: [(&str, &str, &str); 6] = [
    ("RougeL", "raw", "rouge_l"),
    ("Bert-Rec", "raw", "bert_recall"),
    ("Bert-KPrec", "raw", "bert_k_precision"),
    ("rb_agg", "by_scripts", "rb_alg"),
    ("rb_llm", "by_scripts", "rb_llm"),
    ("rl_f", "by_scripts", "rl_f"),
];
/// Whether the IDK label agrees with the answerability.
const AGREES: (&str, &str) = ("conditional_idk", "answerability_right");

/// Evaluations as `turnflow import mtrag` writes them.
#[derive(Debug)]
pub struct Published {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// The file of answers of each model.
    pub answers: BTreeMap<String, PathBuf>,
    scores: Vec<Scores>,
}

/// The published scores of an answer.
#[derive(Debug, Deserialize)]
struct Scores {
    task_id: String,
    model: String,
    scores: BTreeMap<String, f64>,
    people: BTreeMap<String, Vec<f64>>,
}

/// Why a folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    /// The tasks cannot be read.
    #[error(transparent)]
    Tasks(#[from] TasksError),
    /// A file or the folder cannot be read.
    #[error("{}: cannot read it; `turnflow import mtrag` writes such folders", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line has no scores.
    #[error("{}:{line}: not the scores of an answer", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// Why not.
        source: serde_json::Error,
    },
    /// There are no answers.
    #[error("{}: it has no answers", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

impl Published {
    /// Reads a folder.
    ///
    /// # Errors
    ///
    /// A file is missing or cannot be read.
    pub fn read(folder: &Path) -> Result<Self, PublishedError> {
        let unread = |path: &Path, source| PublishedError::Read { path: path.into(), source };
        let tasks = read_tasks(&folder.join("tasks.jsonl"))?;
        let path = folder.join("answers");
        let entries = fs::read_dir(&path).map_err(|source| unread(&path, source))?;
        let mut answers = BTreeMap::new();
        for entry in entries {
            let file = entry.map_err(|source| unread(&path, source))?.path();
            if let (Some(model), Some("jsonl")) = (file.file_stem(), file.extension().and_then(|end| end.to_str())) {
                answers.insert(model.to_string_lossy().into_owned(), file);
            }
        }
        if answers.is_empty() {
            return Err(PublishedError::Empty { path });
        }
        let path = folder.join("published.jsonl");
        let text = fs::read_to_string(&path).map_err(|source| unread(&path, source))?;
        let read = |(line, json)| {
            serde_json::from_str(json).map_err(|source| PublishedError::Json { path: path.clone(), line, source })
        };
        let scores = lines(&text).map(read).collect::<Result<_, _>>()?;
        Ok(Self { tasks, answers, scores })
    }

    /// Compares our figures with the published ones. `ours` has, for each model, the figures by task (the object
    /// `"tasks"` of the JSON output of `eval`).
    pub fn compare(&self, ours: &BTreeMap<String, Json>) -> Comparison {
        let kinds: BTreeMap<&str, Option<Answerability>> =
            self.tasks.iter().map(|task| (task.id.as_str(), Answerability::of(task))).collect();
        let answers: Vec<Answer<'_>> = self
            .scores
            .iter()
            .filter_map(|scores| {
                let kind = *kinds.get(scores.task_id.as_str())?;
                let figures = ours.get(&scores.model)?.get(&scores.task_id)?;
                Some(Answer { scores, kind, ours: own(figures, kind) })
            })
            .collect();
        let models: BTreeSet<&str> = answers.iter().map(|answer| answer.scores.model.as_str()).collect();
        let of = |model: &str| answers.iter().filter(|answer| answer.scores.model == model).collect::<Vec<_>>();
        Comparison {
            answers: answers.len(),
            tasks: self.tasks.len(),
            models: models.iter().map(|model| ((*model).to_owned(), scores(&of(model)))).collect(),
            agreement: names().filter_map(|(theirs, name)| Some((name, agreement(&answers, theirs, name)?))).collect(),
            people: models.iter().filter_map(|model| Some(((*model).to_owned(), people(&of(model))?))).collect(),
            correlations: correlations(&answers),
        }
    }
}

/// An answer: its published scores, and ours by our names.
struct Answer<'a> {
    scores: &'a Scores,
    kind: Option<Answerability>,
    ours: BTreeMap<&'static str, f64>,
}

impl Answer<'_> {
    /// A published score and ours.
    fn pair(&self, theirs: &str, name: &str) -> Option<(f64, f64)> {
        Some((*self.ours.get(name)?, *self.scores.scores.get(theirs)?))
    }

    /// Whether its task is answerable, at least in part.
    fn counts(&self) -> bool {
        matches!(self.kind, Some(Answerability::Answerable | Answerability::Partial))
    }

    /// What people judged: the mean of win rates, and else the median.
    fn judged(&self, property: &str) -> Option<f64> {
        let values = self.scores.people.get(property)?;
        if property == WINS { mean(values.iter().copied()) } else { median(values.clone()) }
    }
}

/// The published names of metrics, and ours.
fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    SAME.into_iter().map(|(theirs, _, name)| (theirs, name)).chain([AGREES])
}

/// Our figures of an answer that have a published counterpart.
fn own(figures: &Json, kind: Option<Answerability>) -> BTreeMap<&'static str, f64> {
    let one = |(_, part, name): (_, &str, &'static str)| Some((name, figures.get(part)?.get(name)?.as_f64()?));
    let mut own: BTreeMap<_, _> = SAME.into_iter().filter_map(one).collect();
    let declines = figures.get("idk").and_then(Json::as_str).map(|idk| idk == "yes");
    let expected = match kind {
        Some(Answerability::Answerable | Answerability::Partial) => Some(false),
        Some(Answerability::Unanswerable) => Some(true),
        _ => None,
    };
    let right = declines.zip(expected).map(|(declines, expected)| f64::from(u8::from(declines == expected)));
    own.extend(right.map(|right| (AGREES.1, right)));
    own
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

/// Our scores beside published ones.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Number of answers.
    pub answers: usize,
    /// Number of tasks.
    pub tasks: usize,
    /// The means of each model, by our names of the metrics.
    pub models: BTreeMap<String, BTreeMap<&'static str, Pair>>,
    /// How far the scores of single answers agree.
    pub agreement: BTreeMap<&'static str, Agreement>,
    /// What people judged, by model (table 6); models without judgements are left out.
    pub people: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// How the metrics rank the answers, beside people (table 7).
    pub correlations: Vec<Correlation>,
}

/// Two means over the same answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Ours.
    pub ours: f64,
    /// The published one.
    pub published: f64,
    /// Number of answers.
    pub n: usize,
}

/// How far two scores of the same answers agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Number of answers.
    pub n: usize,
    /// Answers whose scores differ by less than 0.0001.
    pub equal: usize,
    /// The mean of the absolute differences.
    pub difference: f64,
    /// The correlation of their ranks.
    pub correlation: Option<f64>,
}

/// The rank correlation of a metric with a judgement of people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Correlation {
    /// The metric, by our name.
    pub metric: &'static str,
    /// Whether its scores are ours, or the published ones.
    pub ours: bool,
    /// The judgement.
    pub property: &'static str,
    /// Number of answers.
    pub n: usize,
    /// Each answer counts the same.
    pub plain: f64,
    /// Each value of the judgement counts the same.
    pub weighted: f64,
}

fn scores(answers: &[&Answer<'_>]) -> BTreeMap<&'static str, Pair> {
    let mut pairs: BTreeMap<&'static str, Vec<(f64, f64)>> = BTreeMap::new();
    for answer in answers {
        for (theirs, name) in names() {
            pairs.entry(name).or_default().extend(answer.pair(theirs, name));
        }
    }
    let means = |(name, pairs): (_, Vec<(f64, f64)>)| {
        let ours = mean(pairs.iter().map(|(ours, _)| *ours))?;
        Some((name, Pair { ours, published: mean(pairs.iter().map(|(_, published)| *published))?, n: pairs.len() }))
    };
    pairs.into_iter().filter_map(means).collect()
}

fn agreement(answers: &[Answer<'_>], theirs: &str, name: &str) -> Option<Agreement> {
    let pairs: Vec<(f64, f64)> = answers.iter().filter_map(|answer| answer.pair(theirs, name)).collect();
    let far = |(ours, published): &(f64, f64)| (ours - published).abs();
    Some(Agreement {
        n: pairs.len(),
        equal: pairs.iter().filter(|pair| far(pair) < EQUAL).count(),
        difference: mean(pairs.iter().map(far))?,
        correlation: spearman(&pairs, &vec![1.0; pairs.len()]),
    })
}

/// Table 6 for one model.
fn people(answers: &[&Answer<'_>]) -> Option<BTreeMap<&'static str, f64>> {
    let answers: Vec<_> = answers.iter().filter(|answer| answer.counts()).collect();
    let of = |property: &str| mean(answers.iter().filter_map(|answer| answer.judged(property)));
    let mut found = BTreeMap::from([(WINS, of(WINS)?)]);
    for property in PROPERTIES {
        found.extend(of(property).map(|value| (property, value)));
    }
    let all = answers.iter().filter_map(|answer| {
        let values = PROPERTIES.map(|property| answer.judged(property).map(|value| 1.0 / value));
        let parts: Vec<f64> = values.into_iter().collect::<Option<_>>()?;
        Some(parts.len() as f64 / parts.iter().sum::<f64>())
    });
    found.extend(mean(all).map(|all| ("all", all)));
    Some(found)
}

fn correlations(answers: &[Answer<'_>]) -> Vec<Correlation> {
    let mut found = Vec::new();
    for (theirs, metric) in names() {
        for ours in [false, true] {
            for property in [WINS].into_iter().chain(PROPERTIES) {
                let counts =
                    |answer: &&Answer<'_>| answer.counts() && (property == WINS || answer.scores.model != REFERENCE);
                let pairs: Vec<(f64, f64)> = answers
                    .iter()
                    .filter(counts)
                    .filter_map(|answer| {
                        let published = || answer.scores.scores.get(theirs);
                        let score = if ours { answer.ours.get(metric) } else { published() };
                        Some((answer.judged(property)?, *score?))
                    })
                    .collect();
                let correlation = |weights: &[f64]| spearman(&pairs, weights);
                let both = correlation(&vec![1.0; pairs.len()]).zip(correlation(&balanced(&pairs)));
                found.extend(both.map(|(plain, weighted)| Correlation {
                    metric,
                    ours,
                    property,
                    n: pairs.len(),
                    plain,
                    weighted,
                }));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(published: &[Json]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let text = |values: &[Json]| values.iter().map(|value| format!("{value}\n")).collect::<String>();
        let task = |id: &str, answerability: &str| json!({"_id": id, "text": "?", "answerability": answerability});
        let tasks = [task("a", "ANSWERABLE"), task("b", "PARTIAL"), task("c", "UNANSWERABLE"), task("d", "ANSWERABLE")];
        fs::create_dir(folder.path().join("answers")).expect("a folder");
        for (name, values) in [
            ("tasks.jsonl", &tasks[..]),
            ("published.jsonl", published),
            ("answers/m.jsonl", &[]),
            ("answers/x.txt", &[]),
        ] {
            fs::write(folder.path().join(name), text(values)).expect(name);
        }
        folder
    }

    fn scores(task: &str, model: &str, rouge: f64, wins: [f64; 3], faithful: [f64; 2]) -> Json {
        let one = [4.0, 4.0, 2.0];
        json!({
            "task_id": task, "model": model, "scores": {"RougeL": rouge, "conditional_idk": 1.0},
            "people": {"win-rate": wins, "faithfulness": faithful, "appropriateness": one, "naturalness": one,
                       "completeness": one},
        })
    }

    #[test]
    fn scores_are_compared_answer_by_answer_and_with_people() {
        let folder = folder(&[
            scores("a", "m", 0.5, [100.0, 50.0, 0.0], [4.0, 2.0]),
            scores("b", "m", 0.25, [0.0, 0.0, 0.0], [1.0, 1.0]),
            scores("c", "m", 0.0, [0.0, 0.0, 0.0], [1.0, 1.0]),
            scores("d", "m", 0.75, [100.0, 100.0, 100.0], [4.0, 4.0]),
            scores("a", "other", 0.9, [0.0, 0.0, 0.0], [1.0, 1.0]),
        ]);
        let published = Published::read(folder.path()).expect("evaluations");
        assert!(published.tasks.len() == 4 && published.answers.keys().eq(["m"]), "{:?}", published.answers);
        let figures = |rouge: f64, idk: &str| json!({"idk": idk, "raw": {"rouge_l": rouge}, "by_scripts": {}});
        let ours = json!({
            "a": figures(0.5, "no"), "b": figures(0.35, "yes"), "c": figures(0.0, "yes"), "d": figures(0.75, "partial"),
        });
        let found = published.compare(&BTreeMap::from([("m".to_owned(), ours)]));
        assert_eq!((found.answers, found.models.len(), found.agreement.len()), (4, 1, 2));
        let rouge = found.models["m"]["rouge_l"];
        assert!((rouge.ours - 0.4).abs() < 1e-9 && (rouge.published - 0.375).abs() < 1e-9, "{rouge:?}");
        let agreement = found.agreement["rouge_l"];
        assert_eq!((agreement.n, agreement.equal, agreement.correlation), (4, 3, Some(1.0)));
        assert!((agreement.difference - 0.025).abs() < 1e-9);
        assert_eq!(found.agreement["answerability_right"].equal, 3);
        // Of the tasks that can be answered: win rates of 50, 0 and 100; harmonic means of 3, 4, 4, 4 and so on.
        let people = &found.people["m"];
        assert_eq!((people["win-rate"], people["faithfulness"], people["completeness"]), (50.0, 8.0 / 3.0, 4.0));
        let all = (4.0 / (1.0 / 3.0 + 0.75) + 4.0 / 1.75 + 4.0) / 3.0;
        assert!((people["all"] - all).abs() < 1e-9, "{people:?}");
        let of = |property| {
            found.correlations.iter().find(|one| one.metric == "rouge_l" && !one.ours && one.property == property)
        };
        assert_eq!(of("win-rate").map(|one| (one.n, one.plain, one.weighted)), Some((3, 1.0, 1.0)));
        assert_eq!(of("naturalness"), None, "all judgements are equal");
    }

    #[test]
    fn what_is_missing_or_wrong_is_told() {
        let wrong = folder(&[json!({"task_id": "a"})]);
        let error = Published::read(wrong.path()).expect_err("no scores").to_string();
        assert!(error.ends_with("published.jsonl:1: not the scores of an answer"), "{error}");
        fs::remove_file(wrong.path().join("answers/m.jsonl")).expect("a file");
        assert!(Published::read(wrong.path()).expect_err("no answers").to_string().ends_with("it has no answers"));
        let none = Published::read(&wrong.path().join("none")).expect_err("no folder").to_string();
        assert!(none.contains("tasks.jsonl"), "{none}");
    }
}
