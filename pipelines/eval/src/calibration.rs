//! Calibrates abstention: learns the probability that a question can be answered from signals
//! measured on labelled tasks, and a threshold on it.
//!
//! The probability is a logistic regression on the standardised signals (zero mean, unit variance)
//! with an L2 penalty (Hastie et al. 2009, section 4.4). The learned weights are converted back to
//! the scale of the signals. Over-abstention means not answering an answerable question;
//! under-abstention means answering an unanswerable one. Underspecified questions count as
//! unanswerable here, while MTRAG's answerability accuracy (Katsis et al. 2025, section 6.3) does not
//! count them.

use std::collections::BTreeSet;

/// A task that was run.
#[derive(Clone, Debug)]
pub struct Example {
    /// One value per signal.
    pub signals: Vec<f64>,
    /// Whether the task can be answered.
    pub answerable: bool,
    /// Whether the answer already says that it does not know.
    pub gives_up: bool,
    /// Its fold in the cross-validation.
    pub fold: usize,
}

/// The objective of the threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// Maximise the share of correct decisions.
    Accuracy,
    /// Maximise the mean accuracy of answerable and unanswerable tasks, whatever their shares.
    Balanced,
    /// Leave at most this share of answerable tasks unanswered.
    Over(f64),
}

impl std::str::FromStr for Aim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("over=").map(str::parse)) {
            ("accuracy", _) => Ok(Aim::Accuracy),
            ("balanced", _) => Ok(Aim::Balanced),
            (_, Some(Ok(share))) if (0.0..=1.0).contains(&share) => Ok(Aim::Over(share)),
            _ => Err("expected accuracy, balanced or over=SHARE, as in over=0.1".to_owned()),
        }
    }
}

/// A logistic model on the signals, with a threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// One weight per signal.
    pub weights: Vec<f64>,
    /// Added to the weighted sum.
    pub bias: f64,
    /// Minimum probability to answer.
    pub threshold: f64,
}

impl Calibration {
    /// The probability that the task can be answered.
    pub fn probability(&self, example: &Example) -> f64 {
        let sum: f64 = self.weights.iter().zip(&example.signals).map(|(weight, signal)| weight * signal).sum();
        1.0 / (1.0 + (-self.bias - sum).exp())
    }
}

/// Counts of correct and wrong decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Decisions {
    /// Answerable tasks.
    pub answerable: usize,
    /// Answerable tasks that were not answered.
    pub over: usize,
    /// Unanswerable tasks.
    pub unanswerable: usize,
    /// Unanswerable tasks that were answered.
    pub under: usize,
}

impl Decisions {
    /// Counts decisions: pairs of answerable and answered.
    pub fn count(decisions: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let mut counted = Self::default();
        for (answerable, answered) in decisions {
            match answerable {
                true => {
                    counted.answerable += 1;
                    counted.over += usize::from(!answered);
                }
                false => {
                    counted.unanswerable += 1;
                    counted.under += usize::from(answered);
                }
            }
        }
        counted
    }

    /// The share of correct decisions.
    pub fn accuracy(&self) -> f64 {
        let all = self.answerable + self.unanswerable;
        1.0 - (self.over + self.under) as f64 / all.max(1) as f64
    }

    /// The share of answerable tasks that were not answered.
    pub fn over_rate(&self) -> f64 {
        self.over as f64 / self.answerable.max(1) as f64
    }

    /// The share of unanswerable tasks that were answered.
    pub fn under_rate(&self) -> f64 {
        self.under as f64 / self.unanswerable.max(1) as f64
    }
}

/// A learned calibration with its cross-validated results.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The calibration learned on all tasks.
    pub calibration: Calibration,
    /// The probability of each task from the calibration of the other folds, in task order.
    pub held_out: Vec<f64>,
    /// The decisions on each fold with the calibration of the other folds.
    pub decisions: Decisions,
}

/// Learns a calibration on all examples, and once per fold on the other folds. `None` if there are
/// no answerable or no unanswerable examples.
pub fn calibrate(examples: &[Example], aim: Aim, penalty: f64) -> Option<Calibrated> {
    // Answers that are already IDK are declined in any case, so they are not used for learning.
    let learn = |examples: &[&Example]| -> Option<Calibration> {
        let all = examples;
        let examples: Vec<&Example> = examples.iter().copied().filter(|example| !example.gives_up).collect();
        let examples = &examples[..];
        let answerable = examples.iter().filter(|example| example.answerable).count();
        if answerable == 0 || answerable == examples.len() {
            return None;
        }
        let mut calibration = fit(examples, penalty);
        calibration.threshold = threshold(all, &calibration, aim);
        Some(calibration)
    };
    let calibration = learn(&examples.iter().collect::<Vec<_>>())?;
    let folds: BTreeSet<usize> = examples.iter().map(|example| example.fold).collect();
    let mut held_out = vec![0.0; examples.len()];
    let mut decisions = Vec::new();
    for fold in folds {
        let rest: Vec<&Example> = examples.iter().filter(|example| example.fold != fold).collect();
        let learned = learn(&rest)?;
        for (at, example) in examples.iter().enumerate().filter(|(_, example)| example.fold == fold) {
            held_out[at] = learned.probability(example);
            decisions.push((example.answerable, !example.gives_up && held_out[at] >= learned.threshold));
        }
    }
    Some(Calibrated { calibration, held_out, decisions: Decisions::count(decisions) })
}

/// The threshold that meets the aim on these examples.
fn threshold(examples: &[&Example], calibration: &Calibration, aim: Aim) -> f64 {
    match aim {
        // With correct probabilities, answering is more often right than wrong above one half.
        Aim::Accuracy => 0.5,
        // If both kinds have equal weight, the threshold is the prior share of answerable tasks.
        Aim::Balanced => {
            let left: Vec<_> = examples.iter().filter(|example| !example.gives_up).collect();
            left.iter().filter(|example| example.answerable).count() as f64 / left.len().max(1) as f64
        }
        Aim::Over(share) => {
            // Answers that are already IDK count towards the allowed share.
            let answerable: Vec<_> = examples.iter().filter(|example| example.answerable).collect();
            let left = answerable.iter().filter(|example| !example.gives_up);
            let mut probabilities: Vec<f64> = left.map(|example| calibration.probability(example)).collect();
            probabilities.sort_by(f64::total_cmp);
            let allowed = (share * answerable.len() as f64) as usize;
            let declined = allowed.saturating_sub(answerable.len() - probabilities.len());
            // Rounded down to the printed precision, so that a task at the threshold is answered.
            probabilities.get(declined).map_or(1.0, |least| (least * 1e4).floor() / 1e4)
        }
    }
}

/// Minimises the penalised loss with Newton's method.
fn fit(examples: &[&Example], penalty: f64) -> Calibration {
    let count = examples.len() as f64;
    let signals = examples.first().map_or(0, |example| example.signals.len());
    let mean: Vec<f64> =
        (0..signals).map(|at| examples.iter().map(|example| example.signals[at]).sum::<f64>() / count).collect();
    let deviation: Vec<f64> = (0..signals)
        .map(|at| {
            let squares = examples.iter().map(|example| (example.signals[at] - mean[at]).powi(2)).sum::<f64>();
            (squares / count).sqrt()
        })
        .collect();
    // A constant signal carries no information and gets the weight 0.
    let scaled = |example: &Example| -> Vec<f64> {
        let of = |at: usize| if deviation[at] > 1e-9 { (example.signals[at] - mean[at]) / deviation[at] } else { 0.0 };
        (0..signals).map(of).chain([1.0]).collect()
    };
    let rows: Vec<(Vec<f64>, f64)> =
        examples.iter().map(|example| (scaled(example), f64::from(u8::from(example.answerable)))).collect();
    let size = signals + 1;
    let mut weights = vec![0.0; size];
    for _ in 0..STEPS {
        let mut gradient = vec![0.0; size];
        let mut hessian = vec![vec![0.0; size]; size];
        for (row, label) in &rows {
            let sum: f64 = row.iter().zip(&weights).map(|(value, weight)| value * weight).sum();
            let probability = 1.0 / (1.0 + (-sum).exp());
            for i in 0..size {
                gradient[i] += (probability - label) * row[i];
                for j in 0..size {
                    hessian[i][j] += probability * (1.0 - probability) * row[i] * row[j];
                }
            }
        }
        for at in 0..signals {
            gradient[at] += penalty * weights[at];
            hessian[at][at] += penalty;
        }
        // The bias has no penalty; this tiny value only keeps the system solvable.
        hessian[signals][signals] += 1e-9;
        let step = solve(hessian, gradient);
        weights.iter_mut().zip(&step).for_each(|(weight, step)| *weight -= step);
        if step.iter().all(|step| step.abs() < 1e-9) {
            break;
        }
    }
    let bias = weights[signals];
    weights.truncate(signals);
    let mut shift = 0.0;
    for at in 0..signals {
        weights[at] = if deviation[at] > 1e-9 { weights[at] / deviation[at] } else { 0.0 };
        shift += weights[at] * mean[at];
    }
    Calibration { weights, bias: bias - shift, threshold: 0.5 }
}

/// Maximum number of steps; Newton's method needs fewer.
const STEPS: usize = 100;

/// Solves a system of linear equations by Gaussian elimination with partial pivoting.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for at in 0..size {
        let pivot = (at..size).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs())).unwrap_or(at);
        matrix.swap(at, pivot);
        right.swap(at, pivot);
        if matrix[at][at].abs() < 1e-12 {
            continue;
        }
        let row = matrix[at].clone();
        for below in at + 1..size {
            let factor = matrix[below][at] / row[at];
            matrix[below].iter_mut().zip(&row).skip(at).for_each(|(value, above)| *value -= factor * above);
            right[below] -= factor * right[at];
        }
    }
    let mut solution = vec![0.0; size];
    for at in (0..size).rev() {
        let known: f64 = (at + 1..size).map(|column| matrix[at][column] * solution[column]).sum();
        solution[at] = if matrix[at][at].abs() < 1e-12 { 0.0 } else { (right[at] - known) / matrix[at][at] };
    }
    solution
}

/// The area under the ROC curve: the chance that an answerable task has a higher probability than an
/// unanswerable one.
pub fn auc(examples: &[Example], probabilities: &[f64]) -> f64 {
    let (mut higher, mut pairs) = (0.0, 0_usize);
    for (one, yes) in examples.iter().zip(probabilities).filter(|(one, _)| one.answerable) {
        for (other, no) in examples.iter().zip(probabilities).filter(|(other, _)| !other.answerable) {
            debug_assert!(one.answerable && !other.answerable);
            higher += if yes > no {
                1.0
            } else if yes == no {
                0.5
            } else {
                0.0
            };
            pairs += 1;
        }
    }
    higher / pairs.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first signal is informative, the second is noise, the third is constant.
    fn examples() -> Vec<Example> {
        let noise = |n: usize| ((n * 7919) % 101) as f64 / 101.0;
        let one = |n: usize| {
            let answerable = !n.is_multiple_of(3);
            let first = if answerable { 10.0 } else { 4.0 } + 6.0 * noise(n + 13);
            Example { signals: vec![first, noise(n), 5.0], answerable, gives_up: false, fold: n % 2 }
        };
        (0..200).map(one).collect()
    }

    #[test]
    fn the_signal_that_tells_is_found_and_holds_on_the_other_half() {
        let examples = examples();
        let learned = calibrate(&examples, Aim::Accuracy, 1.0).unwrap();
        let Calibration { weights, threshold, .. } = &learned.calibration;
        assert!(weights[0] > 0.3 && weights[2] == 0.0 && *threshold == 0.5, "{weights:?}");
        assert!(learned.decisions.accuracy() > 0.95, "{:?}", learned.decisions);
        assert!(auc(&examples, &learned.held_out) > 0.98);
        let always = Decisions::count(examples.iter().map(|example| (example.answerable, true)));
        assert!(always.accuracy() < 0.7 && always.under_rate() == 1.0 && always.over == 0);
    }

    #[test]
    fn the_loss_is_least_where_the_fit_is() {
        let points = [(0.0, false), (1.0, false), (2.0, true), (3.0, false), (4.0, true), (5.0, true)];
        let example = |(signal, answerable)| Example { signals: vec![signal], answerable, gives_up: false, fold: 0 };
        let examples: Vec<Example> = points.into_iter().map(example).collect();
        let fitted = fit(&examples.iter().collect::<Vec<_>>(), 1.0);
        // At the minimum, no small step lowers the loss.
        let loss = |weight: f64, bias: f64| -> f64 {
            let deviation = (35.0_f64 / 12.0).sqrt();
            let of = |example: &Example| {
                let sum = weight * example.signals[0] + bias;
                (1.0 + sum.exp()).ln() - if example.answerable { sum } else { 0.0 }
            };
            examples.iter().map(of).sum::<f64>() + 0.5 * (weight * deviation).powi(2)
        };
        let least = loss(fitted.weights[0], fitted.bias);
        for (weight, bias) in [(1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3)] {
            assert!(loss(fitted.weights[0] + weight, fitted.bias + bias) > least);
        }
    }

    #[test]
    fn aims_move_the_threshold() {
        let examples = examples();
        let all: Vec<&Example> = examples.iter().collect();
        let fitted = fit(&all, 1.0);
        let at = |aim| {
            let threshold = threshold(&all, &fitted, aim);
            Decisions::count(all.iter().map(|one| (one.answerable, fitted.probability(one) >= threshold)))
        };
        assert!(at(Aim::Over(0.1)).over_rate() <= 0.1 && at(Aim::Over(0.1)).over > 0);
        assert_eq!(at(Aim::Over(0.0)).over, 0);
        assert_eq!(at(Aim::Over(1.0)).over_rate(), 1.0);
        assert_eq!("over=0.25".parse(), Ok(Aim::Over(0.25)));
        assert!("over=2".parse::<Aim>().is_err());
    }

    #[test]
    fn one_kind_alone_teaches_nothing() {
        let mut examples = examples();
        examples.retain(|example| example.answerable);
        assert!(calibrate(&examples, Aim::Accuracy, 1.0).is_none());
    }
}
