//! Learns weights by coordinate ascent on a retrieval metric, with cross-validation.
//!
//! The model is a weighted sum of lists: a passage's score is Σ weight · its score in each list,
//! which every fusion and ensemble with a field `weights` computes. Metzler and Croft (2007)
//! describe coordinate ascent on the metric itself. Weights are kept on the simplex (at least 0,
//! sum 1), since scaling all of them does not change the order.

use std::collections::BTreeMap;

use super::metrics::Qrels;

/// The metric to maximise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// nDCG at a cut-off.
    Ndcg(usize),
    /// Mean average precision at a cut-off.
    Map(usize),
    /// Recall at a cut-off.
    Recall(usize),
}

impl std::str::FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, cutoff) = text.split_once('@').unwrap_or((text, "10"));
        let cutoff = cutoff.parse().ok().filter(|cutoff| (1..=1000).contains(cutoff));
        match (name, cutoff) {
            ("ndcg", Some(at)) => Ok(Objective::Ndcg(at)),
            ("map", Some(at)) => Ok(Objective::Map(at)),
            ("recall", Some(at)) => Ok(Objective::Recall(at)),
            _ => Err("expected ndcg@K, map@K or recall@K, as in map@10".to_owned()),
        }
    }
}

/// A passage in at least one list.
#[derive(Clone, Debug)]
struct Candidate {
    grade: i64,
    /// One score per list; 0 if the list does not contain the passage.
    scores: Vec<f32>,
}

/// A query with the passages of all its lists.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its fold in the cross-validation.
    fold: usize,
    /// Sorted by descending passage id: trec_eval's order for equal scores.
    candidates: Vec<Candidate>,
    /// The judged grades above 0, highest first.
    ideal: Vec<i64>,
}

/// A list of a query: passage ids with scores.
pub type List<'a> = Vec<(&'a str, f32)>;

impl Question {
    /// Combines a query's lists; `None` if the query has no relevant judgement.
    pub fn new(qrels: &Qrels, query: &str, lists: &[List<'_>], fold: usize) -> Option<Self> {
        let judged = qrels.get(query)?;
        let mut ideal: Vec<i64> = judged.values().copied().filter(|grade| *grade > 0).collect();
        ideal.sort_unstable_by(|a, b| b.cmp(a));
        if ideal.is_empty() {
            return None;
        }
        let mut candidates: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        for (at, list) in lists.iter().enumerate() {
            for (id, score) in list {
                candidates.entry(id).or_insert_with(|| vec![0.0; lists.len()])[at] = *score;
            }
        }
        let candidate =
            |(id, scores): (&str, Vec<f32>)| Candidate { grade: judged.get(id).copied().unwrap_or(0).max(0), scores };
        Some(Self { fold, candidates: candidates.into_iter().rev().map(candidate).collect(), ideal })
    }

    /// The objective with these weights.
    fn value(&self, weights: &[f32], objective: Objective) -> f64 {
        let (Objective::Ndcg(cutoff) | Objective::Map(cutoff) | Objective::Recall(cutoff)) = objective;
        let sum = |candidate: &Candidate| -> f32 {
            candidate.scores.iter().zip(weights).map(|(score, weight)| score * weight).sum()
        };
        let mut order: Vec<(f32, usize)> = self.candidates.iter().map(sum).zip(0..).collect();
        let by = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if order.len() > cutoff {
            order.select_nth_unstable_by(cutoff, by);
            order.truncate(cutoff);
        }
        order.sort_unstable_by(by);
        let grades = order.iter().map(|(_, at)| self.candidates[*at].grade);
        let discount = |rank: usize| ((rank + 2) as f64).log2();
        match objective {
            Objective::Recall(_) => grades.filter(|grade| *grade > 0).count() as f64 / self.ideal.len() as f64,
            Objective::Ndcg(_) => {
                let gained: f64 = grades.enumerate().map(|(rank, grade)| grade as f64 / discount(rank)).sum();
                let most = self.ideal.iter().take(cutoff).enumerate();
                gained / most.map(|(rank, grade)| *grade as f64 / discount(rank)).sum::<f64>()
            }
            Objective::Map(_) => {
                let (mut found, mut sum) = (0.0, 0.0);
                for (rank, grade) in grades.enumerate() {
                    if grade > 0 {
                        found += 1.0;
                        sum += found / (rank + 1) as f64;
                    }
                }
                sum / self.ideal.len() as f64
            }
        }
    }
}

/// The mean of the objective over questions.
pub fn mean<'a>(questions: impl IntoIterator<Item = &'a Question>, weights: &[f32], objective: Objective) -> f64 {
    let (mut sum, mut count) = (0.0, 0_usize);
    for question in questions {
        sum += question.value(weights, objective);
        count += 1;
    }
    sum / count.max(1) as f64
}

/// Step sizes of the search for a weight: coarse, then fine.
const STEPS: [f32; 2] = [0.1, 0.02];
/// Minimum improvement.
const GAIN: f64 = 1e-6;

/// Runs coordinate ascent from `start`, one weight at a time, until no change improves the objective.
fn ascend(questions: &[&Question], start: &[f32], objective: Objective) -> (Vec<f32>, f64) {
    let mut weights = start.to_vec();
    let mut best = mean(questions.iter().copied(), &weights, objective);
    for step in STEPS {
        loop {
            let before = best;
            for at in 0..weights.len() {
                let tries: Vec<f32> = if step == STEPS[0] {
                    (0..=(1.0 / step) as usize).map(|n| n as f32 * step).collect()
                } else {
                    (-5..=5).map(|n| weights[at] + n as f32 * step).collect()
                };
                for value in tries.into_iter().filter(|value| (0.0..=1.0).contains(value)) {
                    let tried = with(&weights, at, value);
                    let reached = mean(questions.iter().copied(), &tried, objective);
                    if reached > best + GAIN {
                        (weights, best) = (tried, reached);
                    }
                }
            }
            if best <= before + GAIN {
                break;
            }
        }
    }
    (weights, best)
}

/// Sets one weight to `value` and scales the others so that the sum is 1.
fn with(weights: &[f32], at: usize, value: f32) -> Vec<f32> {
    let others: f32 = weights.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, weight)| weight).sum();
    let count = weights.len().saturating_sub(1).max(1) as f32;
    let scaled = |(other, weight): (usize, &f32)| match other {
        other if other == at => value,
        _ if others > 0.0 => weight * (1.0 - value) / others,
        _ => (1.0 - value) / count,
    };
    weights.iter().enumerate().map(scaled).collect()
}

/// The result of learning.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// The weights learned on all questions; their sum is 1.
    pub weights: Vec<f32>,
    /// The objective with these weights, on the same questions.
    pub fitted: f64,
    /// The cross-validated objective: each fold with weights learned on the others, averaged over all
    /// questions.
    pub held_out: f64,
    /// The weights of each fold.
    pub folds: Vec<Vec<f32>>,
}

/// Learns weights on all questions, and once per fold on all other folds.
pub fn learn(questions: &[Question], lists: usize, folds: usize, start: &[f32], objective: Objective) -> Learned {
    let equal = vec![1.0 / lists.max(1) as f32; lists];
    let total: f32 = start.iter().sum();
    let start: Vec<f32> = if total > 0.0 { start.iter().map(|weight| weight / total).collect() } else { equal.clone() };
    let best = |questions: &[&Question]| {
        let one = ascend(questions, &equal, objective);
        let other = ascend(questions, &start, objective);
        if other.1 > one.1 + GAIN { other } else { one }
    };
    let (weights, fitted) = best(&questions.iter().collect::<Vec<_>>());
    let mut of_folds = Vec::new();
    let (mut sum, mut scored) = (0.0, 0_usize);
    for fold in 0..folds {
        let (held, rest): (Vec<&Question>, Vec<&Question>) =
            questions.iter().partition(|question| question.fold == fold);
        if held.is_empty() || rest.is_empty() {
            continue;
        }
        let (weights, _) = best(&rest);
        sum += mean(held.iter().copied(), &weights, objective) * held.len() as f64;
        scored += held.len();
        of_folds.push(weights);
    }
    Learned { weights, fitted, held_out: sum / scored.max(1) as f64, folds: of_folds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{self, Run};

    fn qrels() -> Qrels {
        let judged = |pairs: &[(&str, i64)]| pairs.iter().map(|(id, grade)| ((*id).to_owned(), *grade)).collect();
        Qrels::from([("q".into(), judged(&[("a", 2), ("c", 1), ("z", 1)])), ("r".into(), judged(&[("b", 1)]))])
    }

    fn lists() -> [List<'static>; 2] {
        [vec![("a", 0.2), ("b", 0.9), ("c", 0.4)], vec![("c", 1.0), ("a", 0.7), ("d", 0.7)]]
    }

    #[test]
    fn objectives_equal_the_metrics() {
        let question = Question::new(&qrels(), "q", &lists(), 0).unwrap();
        for weights in [[1.0, 0.0], [0.3, 0.7], [0.5, 0.5]] {
            let mut sums: BTreeMap<&str, f32> = BTreeMap::new();
            for (list, weight) in lists().iter().zip(weights) {
                list.iter().for_each(|(id, score)| *sums.entry(id).or_default() += score * weight);
            }
            let run = sums.into_iter().map(|(id, score)| (id.to_owned(), f64::from(score))).collect();
            let scores = metrics::score(&qrels(), &Run::from([("q".to_owned(), run)]));
            for (objective, name) in [
                (Objective::Ndcg(3), "ndcg@3"),
                (Objective::Map(10), "map@10"),
                (Objective::Map(1), "map@1"),
                (Objective::Recall(3), "recall@3"),
            ] {
                let expected = scores.per_query["q"].get(name).unwrap();
                assert!((question.value(&weights, objective) - expected).abs() < 1e-9, "{name} {weights:?}");
            }
        }
        assert!(Question::new(&qrels(), "unjudged", &lists(), 0).is_none());
    }

    #[test]
    fn the_better_list_gets_the_weight() {
        // The first list is correct for every question, the second for none.
        let qrels: Qrels = (0..20).map(|n| (format!("q{n}"), BTreeMap::from([("good".to_owned(), 1)]))).collect();
        let lists = [vec![("good", 1.0), ("bad", 0.2)], vec![("bad", 1.0), ("good", 0.6)]];
        let questions: Vec<Question> =
            qrels.keys().enumerate().filter_map(|(n, query)| Question::new(&qrels, query, &lists, n % 4)).collect();
        let learned = learn(&questions, 2, 4, &[0.1, 0.9], Objective::Map(10));
        assert_eq!((learned.fitted, learned.held_out, learned.folds.len()), (1.0, 1.0, 4));
        assert!((learned.weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        assert_eq!(learn(&questions, 2, 4, &[0.1, 0.9], Objective::Map(10)), learned);
    }

    #[test]
    fn weights_stay_on_the_simplex() {
        assert_eq!(with(&[0.5, 0.25, 0.25], 0, 0.0), [0.0, 0.5, 0.5]);
        assert_eq!(with(&[1.0, 0.0, 0.0], 0, 0.5), [0.5, 0.25, 0.25]);
        assert_eq!(with(&[1.0], 0, 1.0), [1.0]);
    }
}
