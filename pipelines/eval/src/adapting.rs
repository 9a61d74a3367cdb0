//! Learns a query adapter: a linear map on the query vectors of a bi-encoder, from labelled questions.
//!
//! The loss is InfoNCE (van den Oord et al. 2018) over the relevant passage, those of the other questions in the batch,
//! and hard negatives from the question's own list of nearest passages (Karpukhin et al. 2020). Only the map is learned:
//! passages keep their vectors. It starts at the identity and is pulled towards it, because there are more numbers in
//! the map than questions. The optimiser is Adam (Kingma and Ba 2015) with a rate that falls along a cosine.
//!
//! A fit is repeatable on one machine. On another, the last digits may differ.

use std::ops::Range;
use std::thread;

use ndarray::{Array1, Array2, ArrayView2, Axis, s};

use crate::metrics::{self, Figures, Qrels, Run};
use crate::random::Random;
use crate::significance::{Difference, compare};

/// Settings of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Passes over all pairs of question and relevant passage.
    pub epochs: usize,
    /// Adam's greatest rate.
    pub rate: f32,
    /// The temperature of the loss: cosines are divided by it.
    pub temperature: f32,
    /// Pairs per step.
    pub batch: usize,
    /// Hard negatives of each pair.
    pub negatives: usize,
    /// The nearest passages that hard negatives are drawn from.
    pub depth: usize,
    /// How strongly the map is pulled towards the identity.
    pub pull: f32,
    /// Seed of the order and of the negatives.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epochs: 10, rate: 3e-4, temperature: 0.02, batch: 64, negatives: 8, depth: 100, pull: 1e-3, seed: 0 }
    }
}

/// The passages of all corpora.
#[derive(Debug, Default)]
pub struct Passages {
    /// Their ids.
    pub ids: Vec<String>,
    /// Their vectors, of shape `[passages, dimension]`, each of length 1.
    pub vectors: Array2<f32>,
}

/// A labelled question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The id of its task.
    pub id: String,
    /// The rows of the relevant passages.
    pub relevant: Vec<usize>,
    /// The rows of its corpus.
    pub corpus: Range<usize>,
    /// Its fold in the cross-validation.
    pub fold: usize,
}

/// What was learned.
#[derive(Debug)]
pub struct Learned {
    /// The map learned on all questions, of shape `[dimension, dimension]`.
    pub weight: Array2<f32>,
    /// The scores without a map.
    pub before: Figures,
    /// The scores of each fold's questions with the map learned on the other folds.
    pub held_out: Figures,
    /// The differences of the held-out scores, by metric.
    pub differences: Vec<(&'static str, Difference)>,
}

/// The metrics whose differences are reported.
pub const COMPARED: [&str; 3] = ["recall@10", "map@10", "ndcg@10"];

/// Learns a map on all questions, and for each fold one on the others.
///
/// `vectors` are the questions' vectors, of shape `[questions, dimension]`.
pub fn learn(
    vectors: &Array2<f32>,
    questions: &[Question],
    passages: &Passages,
    qrels: &Qrels,
    folds: usize,
    settings: &Settings,
) -> Option<Learned> {
    // The last map is learned on all questions; no question is in that fold.
    let without: Vec<Vec<usize>> = (0..=folds).map(|fold| vec![fold]).collect();
    let mut weights = learn_without(vectors, questions, passages, &without, settings);
    let all: Vec<usize> = (0..questions.len()).collect();
    let problem = Problem { vectors, questions, passages, settings };
    let weight = weights.pop()?;
    let mut adapted = vectors.clone();
    for (fold, weight) in weights.iter().enumerate() {
        let held: Vec<usize> = all.iter().copied().filter(|at| questions[*at].fold == fold).collect();
        let mapped = map(weight, &vectors.select(Axis(0), &held)).0;
        for (row, at) in mapped.outer_iter().zip(held) {
            adapted.row_mut(at).assign(&row);
        }
    }
    let before = metrics::score(qrels, &problem.run(vectors));
    let after = metrics::score(qrels, &problem.run(&adapted));
    let compared = |name: &'static str| {
        let value = |scores: &metrics::Scores, id: &str| scores.per_query.get(id).and_then(|figures| figures.get(name));
        let pairs: Vec<(f64, f64)> = questions
            .iter()
            .filter_map(|question| Some((value(&after, &question.id)?, value(&before, &question.id)?)))
            .collect();
        let (new, old): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        (name, compare(&new, &old))
    };
    Some(Learned {
        weight,
        before: before.mean,
        held_out: after.mean,
        differences: COMPARED.into_iter().map(compared).collect(),
    })
}

/// For each set of folds, learns a map on the questions of the other folds.
///
/// `vectors` are the questions' vectors, of shape `[questions, dimension]`.
pub fn learn_without(
    vectors: &Array2<f32>,
    questions: &[Question],
    passages: &Passages,
    without: &[Vec<usize>],
    settings: &Settings,
) -> Vec<Array2<f32>> {
    let problem = Problem { vectors, questions, passages, settings };
    let rest_of = |folds: &Vec<usize>| -> Vec<usize> {
        (0..questions.len()).filter(|at| !folds.contains(&questions[*at].fold)).collect()
    };
    let fits: Vec<Vec<usize>> = without.iter().map(rest_of).collect();
    let negatives = problem.nearest();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut weights = Vec::new();
    for some in fits.chunks(cores.max(1)) {
        weights.extend(thread::scope(|scope| {
            let fits: Vec<_> = some.iter().map(|rows| scope.spawn(|| problem.fit(rows, &negatives))).collect();
            fits.into_iter().filter_map(|fit| fit.join().ok()).collect::<Vec<_>>()
        }));
    }
    weights
}

/// What all fits share.
struct Problem<'a> {
    vectors: &'a Array2<f32>,
    questions: &'a [Question],
    passages: &'a Passages,
    settings: &'a Settings,
}

impl Problem<'_> {
    /// For each question, the rows of the nearest passages that are not relevant, best first.
    fn nearest(&self) -> Vec<Vec<usize>> {
        let depth = self.settings.depth;
        self.each_list(self.vectors, depth + 50, |at, rows| {
            let relevant = &self.questions[at].relevant;
            rows.iter().map(|(row, _)| *row).filter(|row| !relevant.contains(row)).take(depth).collect()
        })
    }

    /// The ten nearest passages of each question.
    fn run(&self, vectors: &Array2<f32>) -> Run {
        let lists = self.each_list(vectors, 10, |_, rows| {
            rows.iter().map(|(row, score)| (self.passages.ids[*row].clone(), f64::from(*score))).collect::<Vec<_>>()
        });
        self.questions.iter().map(|question| question.id.clone()).zip(lists).collect()
    }

    /// Applies a function to each question's list of the `top` nearest passages.
    fn each_list<T>(
        &self,
        vectors: &Array2<f32>,
        top: usize,
        mut each: impl FnMut(usize, &[(usize, f32)]) -> T,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for (at, question) in self.questions.iter().enumerate() {
            let corpus = self.passages.vectors.slice(s![question.corpus.clone(), ..]);
            let scores = corpus.dot(&vectors.row(at));
            let mut rows: Vec<(usize, f32)> = question.corpus.clone().zip(scores.iter().copied()).collect();
            let by = |one: &(usize, f32), other: &(usize, f32)| other.1.total_cmp(&one.1).then(other.0.cmp(&one.0));
            if rows.len() > top {
                rows.select_nth_unstable_by(top, by);
                rows.truncate(top);
            }
            rows.sort_unstable_by(by);
            all.push(each(at, &rows));
        }
        all
    }

    /// Learns a map on these questions.
    fn fit(&self, rows: &[usize], negatives: &[Vec<usize>]) -> Array2<f32> {
        let Settings { epochs, batch, .. } = *self.settings;
        let mut random = Random::new(self.settings.seed);
        let mut pairs: Vec<(usize, usize)> =
            rows.iter().flat_map(|at| self.questions[*at].relevant.iter().map(|passage| (*at, *passage))).collect();
        let dimension = self.vectors.ncols();
        let mut adam = Adam::new(dimension, self.settings.rate, epochs * pairs.len().div_ceil(batch));
        let mut weight = Array2::eye(dimension);
        for _ in 0..epochs {
            for at in (1..pairs.len()).rev() {
                pairs.swap(at, random.below(at + 1));
            }
            for some in pairs.chunks(batch) {
                let gradient = self.gradient(&weight, some, negatives, &mut random);
                adam.step(&mut weight, &gradient);
            }
        }
        weight
    }

    /// The gradient of the loss on a batch of pairs.
    fn gradient(
        &self,
        weight: &Array2<f32>,
        pairs: &[(usize, usize)],
        negatives: &[Vec<usize>],
        random: &mut Random,
    ) -> Array2<f32> {
        let Settings { temperature, negatives: most, pull, .. } = *self.settings;
        let mut candidates: Vec<usize> = pairs.iter().map(|(_, passage)| *passage).collect();
        for (question, _) in pairs {
            let mut near: Vec<usize> = negatives[*question].clone();
            for _ in 0..most.min(near.len()) {
                candidates.push(near.swap_remove(random.below(near.len())));
            }
        }
        let questions: Vec<usize> = pairs.iter().map(|(question, _)| *question).collect();
        let input = self.vectors.select(Axis(0), &questions);
        let passages = self.passages.vectors.select(Axis(0), &candidates);
        let (unit, lengths) = map(weight, &input);
        // The probabilities of the candidates, less 1 for the right one.
        let mut share = unit.dot(&passages.t()) / temperature;
        for (at, mut row) in share.outer_iter_mut().enumerate() {
            let relevant = &self.questions[questions[at]].relevant;
            for (column, passage) in candidates.iter().enumerate() {
                // Another relevant passage is no negative.
                if column != at && relevant.contains(passage) {
                    row[column] = f32::NEG_INFINITY;
                }
            }
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.mapv_inplace(|logit| (logit - most).exp());
            let sum = row.sum();
            row /= sum;
            row[at] -= 1.0;
        }
        let of_unit = share.dot(&passages) / (temperature * pairs.len() as f32);
        // Through the scaling to length 1: the part along the vector has no effect.
        let along = (&of_unit * &unit).sum_axis(Axis(1)).insert_axis(Axis(1));
        let of_mapped = (of_unit - &unit * &along) / lengths.insert_axis(Axis(1));
        let mut gradient = of_mapped.t().dot(&input);
        gradient.scaled_add(pull, weight);
        for value in gradient.diag_mut() {
            *value -= pull;
        }
        gradient
    }
}

/// The mapped vectors, scaled to length 1, with their lengths before that.
fn map(weight: &Array2<f32>, vectors: &Array2<f32>) -> (Array2<f32>, Array1<f32>) {
    let mut mapped = vectors.dot(&weight.t());
    let lengths = lengths(mapped.view());
    mapped /= &lengths.view().insert_axis(Axis(1));
    (mapped, lengths)
}

fn lengths(vectors: ArrayView2<'_, f32>) -> Array1<f32> {
    vectors.map_axis(Axis(1), |row| row.dot(&row).sqrt().max(f32::MIN_POSITIVE))
}

/// The optimiser.
struct Adam {
    rate: f32,
    steps: usize,
    step: usize,
    first: Array2<f32>,
    second: Array2<f32>,
}

impl Adam {
    fn new(dimension: usize, rate: f32, steps: usize) -> Self {
        let zeros = Array2::zeros((dimension, dimension));
        Self { rate, steps, step: 0, first: zeros.clone(), second: zeros }
    }

    fn step(&mut self, weight: &mut Array2<f32>, gradient: &Array2<f32>) {
        const FIRST: f32 = 0.9;
        const SECOND: f32 = 0.999;
        self.step += 1;
        let part = self.step as f32 / self.steps.max(1) as f32;
        let rate = self.rate * 0.5 * (1.0 + (std::f32::consts::PI * part).cos());
        let (one, two) = (1.0 - FIRST.powi(self.step as i32), 1.0 - SECOND.powi(self.step as i32));
        let moments = self.first.iter_mut().zip(self.second.iter_mut());
        for ((weight, gradient), (first, second)) in weight.iter_mut().zip(gradient).zip(moments) {
            *first = FIRST * *first + (1.0 - FIRST) * gradient;
            *second = SECOND * *second + (1.0 - SECOND) * gradient * gradient;
            *weight -= rate * (*first / one) / ((*second / two).sqrt() + 1e-8);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Questions whose vectors are those of their passages, with two coordinates exchanged.
    fn exchanged() -> (Array2<f32>, Vec<Question>, Passages, Qrels) {
        let mut random = Random::new(5);
        let mut vectors = Array2::from_shape_fn((120, 8), |_| random.unit() as f32 - 0.5);
        let of = lengths(vectors.view());
        vectors /= &of.insert_axis(Axis(1));
        let passages = Passages { ids: (0..120).map(|at| format!("p{at:03}")).collect(), vectors };
        let mut asked = passages.vectors.slice(s![..80, ..]).to_owned();
        for mut row in asked.outer_iter_mut() {
            row.swap(0, 1);
        }
        let question = |at| Question { id: format!("q{at:03}"), relevant: vec![at], corpus: 0..120, fold: at % 4 };
        let judged = |at| (format!("q{at:03}"), BTreeMap::from([(format!("p{at:03}"), 1)]));
        (asked, (0..80).map(question).collect(), passages, (0..80).map(judged).collect())
    }

    #[test]
    fn a_map_that_undoes_a_difference_is_found() {
        let (vectors, questions, passages, qrels) = exchanged();
        let settings = Settings { epochs: 60, rate: 0.02, temperature: 0.1, ..Settings::default() };
        let learned = learn(&vectors, &questions, &passages, &qrels, 4, &settings).unwrap();
        let recall = |figures: &Figures| figures.get("recall@1").unwrap();
        assert!(recall(&learned.before) < 0.9, "{:?}", learned.before);
        assert!(recall(&learned.held_out) > recall(&learned.before) + 0.05, "{:?}", learned.held_out);
        assert!(learned.weight[[0, 1]] > learned.weight[[0, 0]], "{:?}", learned.weight);
        assert_eq!(learned.differences.len(), COMPARED.len());
        let again = learn(&vectors, &questions, &passages, &qrels, 4, &settings).unwrap();
        assert_eq!(again.weight, learned.weight);
    }

    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let (vectors, questions, passages, _) = exchanged();
        let settings = Settings { temperature: 0.5, negatives: 0, pull: 0.01, ..Settings::default() };
        let problem = Problem { vectors: &vectors, questions: &questions, passages: &passages, settings: &settings };
        let pairs: Vec<(usize, usize)> = (0..6).map(|at| (at, at)).collect();
        let loss = |weight: &Array2<f32>| -> f64 {
            let unit = map(weight, &vectors.slice(s![..6, ..]).to_owned()).0;
            let logits = unit.dot(&passages.vectors.slice(s![..6, ..]).t()) / settings.temperature;
            let nats = (0..6).map(|at| {
                let row = logits.row(at).mapv(f64::from);
                row.mapv(f64::exp).sum().ln() - row[at]
            });
            let off = weight - &Array2::<f32>::eye(8);
            nats.sum::<f64>() / 6.0 + 0.5 * f64::from(settings.pull) * off.mapv(|value| f64::from(value).powi(2)).sum()
        };
        let mut random = Random::new(1);
        let weight =
            Array2::from_shape_fn((8, 8), |(row, column)| if row == column { 1.0 } else { random.unit() as f32 * 0.2 });
        let gradient = problem.gradient(&weight, &pairs, &vec![Vec::new(); 80], &mut random);
        for at in [[0, 0], [0, 1], [3, 5], [7, 2]] {
            let step = 1e-2;
            let (mut more, mut less) = (weight.clone(), weight.clone());
            more[at] += step;
            less[at] -= step;
            let numeric = (loss(&more) - loss(&less)) / f64::from(2.0 * step);
            assert!((numeric - f64::from(gradient[at])).abs() < 1e-3, "{at:?}: {numeric} {}", gradient[at]);
        }
    }
}
