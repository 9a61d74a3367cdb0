//! Retrieval metrics that equal trec_eval's.
//!
//! Definitions and tie-breaking follow trec_eval 9.0.8, the version that
//! pytrec_eval wraps, so that values can be compared with published ones:
//!
//! - results are sorted again by score, highest first; scores are compared as
//!   32-bit floats, and equal ones are ordered by document id, highest first;
//! - a document is relevant if it was judged 1 or more; a negative judgement
//!   counts as unjudged;
//! - a cut-off deeper than the list is filled with irrelevant documents;
//! - nDCG's gain is the judgement itself, its discount log2(rank + 1).
//!
//! One intended difference: the mean here is over *every* query that has a
//! relevant document, and a query without results scores 0. pytrec_eval omits
//! queries that are not in the run, which favours a run that fails on some.
//! Queries without a relevant document are not part of the mean: most metrics
//! are undefined for them.
//!
//! The unit tests compare with values computed by pytrec_eval
//! (`tests/data/metrics/golden.json`, written by `make_golden.py` next to it).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

/// Judgements: query id → document id → grade (1 or more is relevant).
pub type Qrels = BTreeMap<String, BTreeMap<String, i64>>;

/// Results: query id → (document id, score), in any order.
pub type Run = BTreeMap<String, Vec<(String, f64)>>;

/// The cut-off ranks of the metrics: those of MTRAG (section 5.3), and PolyU's 2 (table 2): a question of
/// HotpotQA has two supporting passages.
pub const CUTOFFS: [usize; 5] = [1, 2, 3, 5, 10];

/// The names of all metrics, in the order in which they are reported.
///
/// `recall`, `ndcg`, `map`, `precision` and `hit` are trec_eval's `recall`,
/// `ndcg_cut`, `map_cut`, `P` and `success`; `mrr` is its `recip_rank` over the
/// whole list, and `mrr@10` is 0 if the first hit is below rank 10.
pub const METRICS: [&str; 27] = [
    "recall@1",
    "recall@2",
    "recall@3",
    "recall@5",
    "recall@10",
    "ndcg@1",
    "ndcg@2",
    "ndcg@3",
    "ndcg@5",
    "ndcg@10",
    "map@1",
    "map@2",
    "map@3",
    "map@5",
    "map@10",
    "precision@1",
    "precision@2",
    "precision@3",
    "precision@5",
    "precision@10",
    "hit@1",
    "hit@2",
    "hit@3",
    "hit@5",
    "hit@10",
    "mrr",
    "mrr@10",
];

/// One value (from 0 to 1) for each of [`METRICS`].
///
/// Serialises as a map from name to value, in that order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures([f64; METRICS.len()]);

impl Figures {
    const ZERO: Figures = Figures([0.0; METRICS.len()]);

    /// The value of the metric `name`; `None` if it does not exist.
    pub fn get(&self, name: &str) -> Option<f64> {
        let at = METRICS.iter().position(|metric| *metric == name)?;
        Some(self.0[at])
    }

    /// Names and values in the order of [`METRICS`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        METRICS.iter().copied().zip(self.0.iter().copied())
    }

    /// The arithmetic mean of each metric; `None` if there are no rows.
    pub fn mean<'a>(rows: impl IntoIterator<Item = &'a Figures>) -> Option<Figures> {
        let (mut sum, mut n) = (Figures::ZERO, 0_usize);
        for row in rows {
            sum.0.iter_mut().zip(row.0).for_each(|(s, v)| *s += v);
            n += 1;
        }
        (n > 0).then(|| Figures(sum.0.map(|s| s / n as f64)))
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
}

/// The scores of a run against a set of judgements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// The metrics of each query that has a relevant document; all 0 if the run has no results for it.
    pub per_query: BTreeMap<String, Figures>,
    /// Their mean; all 0 if no query has a relevant document.
    pub mean: Figures,
}

/// Scores a run.
///
/// Queries of the run without judgements are ignored. See the module
/// documentation for judged queries without results.
pub fn score(qrels: &Qrels, run: &Run) -> Scores {
    let per_query: BTreeMap<String, Figures> = qrels
        .iter()
        .filter(|(_, judged)| judged.values().any(|grade| *grade > 0))
        .map(|(query, judged)| {
            let results = run.get(query).map_or(&[][..], Vec::as_slice);
            (query.clone(), score_query(judged, results))
        })
        .collect();
    let mean = Figures::mean(per_query.values()).unwrap_or(Figures::ZERO);
    Scores { per_query, mean }
}

/// Scores one query's results against its judgements.
///
/// A document listed twice counts once, at its better rank. All metrics are 0
/// if no judged document is relevant, as in trec_eval.
pub fn score_query(judged: &BTreeMap<String, i64>, results: &[(String, f64)]) -> Figures {
    let grades: Vec<i64> =
        ranked(results).into_iter().map(|(document, _)| judged.get(document).copied().unwrap_or(0).max(0)).collect();
    let mut ideal: Vec<i64> = judged.values().copied().filter(|grade| *grade > 0).collect();
    ideal.sort_unstable_by(|a, b| b.cmp(a));
    let relevant = ideal.len() as f64;

    let mut out = Figures::ZERO;
    if ideal.is_empty() {
        return out;
    }
    for (i, k) in CUTOFFS.into_iter().enumerate() {
        let top = &grades[..k.min(grades.len())];
        let hits = top.iter().filter(|grade| **grade > 0).count() as f64;
        let row = [
            hits / relevant,
            gain(top) / gain(&ideal[..k.min(ideal.len())]),
            precision_sum(top) / relevant,
            hits / k as f64,
            if hits > 0.0 { 1.0 } else { 0.0 },
        ];
        for (family, value) in row.into_iter().enumerate() {
            out.0[family * CUTOFFS.len() + i] = value;
        }
    }
    if let Some(first) = grades.iter().position(|grade| *grade > 0) {
        let reciprocal = 1.0 / (first + 1) as f64;
        out.0[METRICS.len() - 2] = reciprocal;
        out.0[METRICS.len() - 1] = if first < 10 { reciprocal } else { 0.0 };
    }
    out
}

/// Results in trec_eval's order, each document once.
///
/// A score that is not a number sorts last.
pub fn ranked(results: &[(String, f64)]) -> Vec<(&str, f64)> {
    let mut list: Vec<(&str, f64)> = results.iter().map(|(d, s)| (d.as_str(), *s)).collect();
    list.sort_by(|a, b| by_score(b.1, a.1).then_with(|| b.0.cmp(a.0)));
    let mut seen = BTreeSet::new();
    list.retain(|(document, _)| seen.insert(*document));
    list
}

/// Compares two scores as trec_eval does: rounded to 32 bits, both zeros equal.
fn by_score(a: f64, b: f64) -> Ordering {
    let key = |score: f64| {
        if score.is_nan() { f32::NEG_INFINITY } else { score as f32 + 0.0 }
    };
    key(a).total_cmp(&key(b))
}

/// Discounted cumulative gain of a list of grades.
fn gain(grades: &[i64]) -> f64 {
    let discounted = |(i, grade): (usize, &i64)| *grade as f64 / ((i + 2) as f64).log2();
    // The sum of nothing is -0.0.
    grades.iter().enumerate().map(discounted).sum::<f64>() + 0.0
}

/// The sum, over the relevant documents, of the precision at their rank.
fn precision_sum(grades: &[i64]) -> f64 {
    let ranks = grades.iter().zip(1_u32..).filter(|(grade, _)| **grade > 0);
    ranks.zip(1_u32..).map(|((_, rank), so_far)| f64::from(so_far) / f64::from(rank)).sum::<f64>() + 0.0
}

/// Whether the ids in a set of judgements are passages or documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Passages: score the run as it is.
    Passage,
    /// Documents: first convert the run with [`to_documents`].
    Document,
}

/// Decides for a whole set of judgements whether its ids name passages or documents.
///
/// The level is passages unless more of the judged ids are document ids: if
/// documents are not split, both are the same. `None` if no id is known; the
/// judgements are then for another corpus, and the caller should report an error.
pub fn level(qrels: &Qrels, is_passage: impl Fn(&str) -> bool, is_document: impl Fn(&str) -> bool) -> Option<Level> {
    let ids: BTreeSet<&str> = qrels.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    let passages = ids.iter().filter(|id| is_passage(id)).count();
    let documents = ids.iter().filter(|id| is_document(id)).count();
    match (passages, documents) {
        (0, 0) => None,
        (p, d) if d > p => Some(Level::Document),
        _ => Some(Level::Passage),
    }
}

/// Turns a run over passages into one over documents.
///
/// The score of a document is that of its best passage. `document_of` returns a
/// passage's document; if it returns `None`, the passage counts as a document.
/// Each list is in trec_eval's order.
pub fn to_documents<'a>(run: &Run, document_of: impl Fn(&str) -> Option<&'a str>) -> Run {
    let documents = |results: &Vec<(String, f64)>| -> Vec<(String, f64)> {
        let renamed: Vec<(String, f64)> =
            results.iter().map(|(passage, s)| (document_of(passage).unwrap_or(passage).to_owned(), *s)).collect();
        // `ranked` sorts best first and removes duplicates, so the best passage stays.
        ranked(&renamed).into_iter().map(|(d, s)| (d.to_owned(), s)).collect()
    };
    run.iter().map(|(query, results)| (query.clone(), documents(results))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    type Table = BTreeMap<String, BTreeMap<String, f64>>;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        qrels: Qrels,
        run: Table,
        per_query: Table,
        mean: Option<BTreeMap<String, f64>>,
    }

    fn run_of(table: &Table) -> Run {
        let list = |row: &BTreeMap<String, f64>| row.iter().map(|(d, s)| (d.clone(), *s)).collect();
        table.iter().map(|(query, row)| (query.clone(), list(row))).collect()
    }

    fn agree(what: &str, ours: &Figures, theirs: &BTreeMap<String, f64>) {
        assert_eq!(theirs.len(), METRICS.len(), "{what}");
        for (metric, value) in ours.iter() {
            let expected = theirs[metric];
            assert!((value - expected).abs() < 1e-6, "{what} {metric}: {value}, not {expected}");
        }
    }

    #[test]
    fn nothing_found_is_zero_and_not_minus_zero() {
        assert!(
            gain(&[]).is_sign_positive()
                && precision_sum(&[]).is_sign_positive()
                && precision_sum(&[0]).is_sign_positive()
        );
    }

    #[test]
    fn equals_pytrec_eval() {
        let text = include_str!("../tests/data/metrics/golden.json");
        let cases: Vec<Case> = serde_json::from_str(text).expect("golden.json");
        let (mut queries, mut means) = (0, 0);
        for case in &cases {
            let run = run_of(&case.run);
            for (query, theirs) in &case.per_query {
                let ours = score_query(&case.qrels[query], &run[query]);
                agree(&format!("{} {query}", case.name), &ours, theirs);
                queries += 1;
            }
            if let Some(theirs) = &case.mean {
                agree(&case.name, &score(&case.qrels, &run).mean, theirs);
                means += 1;
            }
        }
        assert!(queries >= 60 && means >= 10, "{queries} queries and {means} means compared");
    }

    #[test]
    fn the_mean_counts_silent_queries_and_no_unanswerable_ones() {
        let qrels: Qrels = serde_json::from_str(r#"{"q":{"a":1},"gone":{"a":1},"none":{"a":0}}"#).expect("qrels");
        let run = Run::from([("q".into(), vec![("a".into(), 1.0)])]);
        let scores = score(&qrels, &run);
        assert_eq!(scores.per_query.keys().collect::<Vec<_>>(), ["gone", "q"]);
        assert_eq!(scores.mean.get("recall@5"), Some(0.5));
        assert_eq!(score(&Qrels::new(), &run).mean, Figures::ZERO);
        assert_eq!(scores.mean.get("recall@7"), None);
    }

    #[test]
    fn a_document_counts_by_its_best_passage() {
        let list = [("a#1", 0.1), ("b#1", 0.5), ("a#2", 0.9), ("c", 0.2), ("d", f64::NAN)];
        let run = Run::from([("q".into(), list.map(|(d, s)| (d.to_owned(), s)).to_vec())]);
        let documents = to_documents(&run, |passage| match passage {
            "a#1" | "a#2" => Some("a"),
            "b#1" => Some("b"),
            _ => None,
        });
        let names: Vec<&str> = documents["q"].iter().map(|(d, _)| d.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(documents["q"][0].1, 0.9);
    }

    #[test]
    fn the_level_is_decided_once_for_all_judgements() {
        let of = |ids: &[&str]| -> Qrels {
            let judged = ids.iter().map(|id| ((*id).to_owned(), 1)).collect();
            Qrels::from([("q".to_owned(), judged)])
        };
        let decide = |ids: &[&str]| {
            level(&of(ids), |id| ["a#0", "a#1", "whole"].contains(&id), |id| ["a", "whole"].contains(&id))
        };
        assert_eq!(decide(&["a#0", "elsewhere"]), Some(Level::Passage));
        assert_eq!(decide(&["a", "elsewhere"]), Some(Level::Document));
        assert_eq!(decide(&["whole"]), Some(Level::Passage));
        assert_eq!(decide(&["a", "whole"]), Some(Level::Document));
        assert_eq!(decide(&["elsewhere"]), None);
    }
}
