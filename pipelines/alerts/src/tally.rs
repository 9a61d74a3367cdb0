//! The measure of a window, to which answers are added and from which they are taken. Each of the two takes the same time
//! whatever the window has, and leaves no error of rounding behind.

use std::collections::BTreeMap;

use crate::config::Measure;

/// Parts of 1 in which a sum is kept.
const PARTS: f64 = 1e9;
/// The quotient of the bounds of a class of a quantile.
const CLASS: f64 = 1.01;
/// The lowest bound of a class, in seconds.
const LOWEST: f64 = 1e-6;

/// The sum of a window, or its classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of answers.
    pub n: usize,
    sum: i128,
    /// For a quantile, numbers by class.
    classes: BTreeMap<u32, usize>,
}

fn class(value: f64) -> u32 {
    // A cast stays within the bounds.
    ((value.max(LOWEST) / LOWEST).ln() / CLASS.ln()) as u32
}

impl Tally {
    /// Adds an answer's value.
    pub fn add(&mut self, of: &Measure, value: f64) {
        self.n += 1;
        match of {
            Measure::Latency(_) => *self.classes.entry(class(value)).or_default() += 1,
            _ => self.sum += (value * PARTS).round() as i128,
        }
    }

    /// Takes a value that was added.
    pub fn remove(&mut self, of: &Measure, value: f64) {
        self.n = self.n.saturating_sub(1);
        match of {
            Measure::Latency(_) => {
                let class = class(value);
                if let Some(count) = self.classes.get_mut(&class) {
                    *count -= 1;
                    if *count == 0 {
                        self.classes.remove(&class);
                    }
                }
            }
            _ => self.sum -= (value * PARTS).round() as i128,
        }
    }

    /// The measure; `None` without answers.
    pub fn value(&self, of: &Measure) -> Option<f64> {
        match of {
            Measure::Lost | Measure::Gap => Some(self.n as f64),
            _ if self.n == 0 => None,
            Measure::Latency(quantile) => {
                let rank = (quantile * self.n as f64).ceil().max(1.0) as usize;
                let mut below = 0;
                let found = self.classes.iter().find(|(_, count)| {
                    below += **count;
                    below >= rank
                });
                found.map(|(class, _)| LOWEST * CLASS.powf(f64::from(*class) + 0.5))
            }
            _ => Some(self.sum as f64 / PARTS / self.n as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_that_is_emptied_is_as_a_new_one() {
        let values = [0.1, 0.2, 1e-9, 0.7, 0.1, 3.0, 0.0];
        for of in [Measure::Mean("x".to_owned()), Measure::Latency(0.5), Measure::Declined] {
            let mut tally = Tally::default();
            values.iter().for_each(|value| tally.add(&of, *value));
            values.iter().rev().for_each(|value| tally.remove(&of, *value));
            assert_eq!((&tally, tally.value(&of)), (&Tally::default(), None));
        }
    }

    #[test]
    fn measures_are_those_of_the_values() {
        let of = |measure: Measure, values: &[f64]| {
            let mut tally = Tally::default();
            values.iter().for_each(|value| tally.add(&measure, *value));
            tally.value(&measure).unwrap()
        };
        assert_eq!(of(Measure::Declined, &[1.0, 0.0, 0.0, 1.0]), 0.5);
        assert_eq!(of(Measure::Mean("x".to_owned()), &[0.1, 0.2]), 0.15);
        assert_eq!(Tally::default().value(&Measure::Lost), Some(0.0));
        let seconds: Vec<f64> = (1..=100).map(|number| f64::from(number) / 10.0).collect();
        for (quantile, exact) in [(0.5, 5.0), (0.95, 9.5), (0.99, 9.9)] {
            let found = of(Measure::Latency(quantile), &seconds);
            assert!((found / exact - 1.0).abs() < 0.01, "{quantile}: {found}");
        }
    }
}
