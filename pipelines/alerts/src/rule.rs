//! The state of a rule: a pure function of the measure and the time.
//!
//! Three things keep an alert from flapping: the measure must be beyond the threshold for `for_s`, it must come back to
//! another threshold, and it must stay there for `keep_s`. With some answers, but too few, nothing changes; only a window
//! without any answer is one without data.

use serde::{Deserialize, Serialize};

use crate::config::{NoData, RuleConfig};

/// What the window says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// There is no answer.
    Empty,
    /// There are some, but fewer than the rule wants.
    TooFew,
    /// The measure.
    Value(f64),
}

/// Why an alert fires, or clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The measure is beyond the threshold, or has come back.
    Threshold,
    /// There are no answers.
    NoData,
    /// The pipeline file does not have the rule any more.
    Removed,
}

/// The state of a rule. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All is well.
    #[default]
    Ok,
    /// The measure is beyond the threshold, but not for long enough.
    Pending {
        /// What is wrong.
        because: Because,
        /// Since when.
        since: f64,
    },
    /// The alert fires.
    Firing {
        /// What is wrong.
        because: Because,
        /// Since when it is wrong.
        since: f64,
        /// The number of the record that told it.
        alert: u32,
        /// Since when the measure has come back.
        back: Option<f64>,
    },
}

/// What a step of a rule says to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The alert fires.
    Fires,
    /// It clears.
    Clears,
}

/// What a reading means.
#[derive(PartialEq)]
enum Means {
    Wrong(Because),
    /// Neither beyond the threshold nor back.
    Between,
    Fine,
    Unknown,
}

impl RuleConfig {
    fn means(&self, reading: Reading) -> Means {
        match (reading, self.no_data) {
            (Reading::Value(value), _) if self.fire.is_passed(value) => Means::Wrong(Because::Threshold),
            (Reading::Value(value), _) if self.is_back(value) => Means::Fine,
            (Reading::Value(_), _) => Means::Between,
            (Reading::Empty, NoData::Ok) => Means::Fine,
            (Reading::Empty, NoData::Alert) => Means::Wrong(Because::NoData),
            (Reading::Empty | Reading::TooFew, _) => Means::Unknown,
        }
    }

    /// The next state, if it is another one. A new alert has the number 0.
    pub fn step(&self, state: State, reading: Reading, now: f64) -> Option<(State, Option<Said>)> {
        let means = self.means(reading);
        match (state, means) {
            (State::Ok, Means::Wrong(because)) => Some(self.wrong(because, now, now)),
            (State::Pending { because, since }, Means::Wrong(wrong)) if because == wrong => {
                let is_due = now - since >= self.for_s;
                is_due.then(|| self.wrong(because, since, now))
            }
            (State::Pending { .. }, Means::Wrong(because)) => Some(self.wrong(because, now, now)),
            (State::Pending { .. }, Means::Fine | Means::Between) => Some((State::Ok, None)),
            // Whether it was wrong all the time is not known without any answer.
            (State::Pending { .. }, Means::Unknown) if reading == Reading::Empty => Some((State::Ok, None)),
            (State::Firing { because, since, alert, back }, means) => {
                let is_back = match (because, &means) {
                    (Because::NoData, _) => matches!(reading, Reading::Value(_)),
                    (_, Means::Fine) => true,
                    _ => false,
                };
                match (is_back, back) {
                    (false, None) => None,
                    (false, Some(_)) => Some((State::Firing { because, since, alert, back: None }, None)),
                    (true, back) => {
                        let first = back.unwrap_or(now);
                        if now - first >= self.keep_s {
                            return Some((State::Ok, Some(Said::Clears)));
                        }
                        back.is_none().then_some((State::Firing { because, since, alert, back: Some(now) }, None))
                    }
                }
            }
            (State::Ok | State::Pending { .. }, _) => None,
        }
    }

    fn wrong(&self, because: Because, since: f64, now: f64) -> (State, Option<Said>) {
        match now - since >= self.for_s {
            true => (State::Firing { because, since, alert: 0, back: None }, Some(Said::Fires)),
            false => (State::Pending { because, since }, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(ron: &str) -> RuleConfig {
        turnflow_engine::spec::from_str(&format!("(of: Declined, {ron})")).unwrap()
    }

    /// What is said for readings a second apart.
    fn said(rule: &RuleConfig, readings: &[Reading]) -> Vec<(usize, Said)> {
        let (mut state, mut all) = (State::Ok, Vec::new());
        for (at, reading) in readings.iter().enumerate() {
            let mut steps = 0;
            while let Some((next, said)) = rule.step(state, *reading, at as f64) {
                assert!(steps < 4 && next != state, "{state:?} {reading:?}");
                (state, steps) = (next, steps + 1);
                all.extend(said.map(|said| (at, said)));
            }
        }
        all
    }

    fn values(values: &[f64]) -> Vec<Reading> {
        values.iter().map(|value| Reading::Value(*value)).collect()
    }

    use Said::{Clears, Fires};

    #[test]
    fn an_alert_fires_beyond_one_threshold_and_clears_at_another() {
        let series = values(&[0.1, 0.3, 0.31, 0.25, 0.31, 0.21, 0.2, 0.29, 0.4]);
        let rule = rule("fire: Above(0.3), clear: Some(0.2)");
        assert_eq!(said(&rule, &series), [(2, Fires), (6, Clears), (8, Fires)]);
        let below = super::tests::rule("fire: Below(0.7), clear: Some(0.8)");
        let mirrored: Vec<f64> = [0.1, 0.3, 0.31, 0.25, 0.21, 0.2].iter().map(|value| 1.0 - value).collect();
        assert_eq!(said(&below, &values(&mirrored)), [(2, Fires), (5, Clears)]);
    }

    #[test]
    fn an_alert_is_pending_and_what_has_come_back_must_stay_so() {
        let rule = rule("fire: Above(0.3), for_s: 2, keep_s: 2");
        let series = values(&[0.4, 0.4, 0.1, 0.4, 0.4, 0.4, 0.1, 0.1, 0.4, 0.1, 0.1, 0.1]);
        assert_eq!(said(&rule, &series), [(5, Fires), (11, Clears)]);
    }

    #[test]
    fn a_window_without_answers_means_what_the_rule_says() {
        let (empty, few) = (Reading::Empty, Reading::TooFew);
        let (bad, good) = (Reading::Value(0.5), Reading::Value(0.0));
        let series = [good, bad, few, empty, empty, few, bad, few, good, empty, few, empty, good];
        let of = |no_data: &str| said(&rule(&format!("fire: Above(0.3), no_data: {no_data}")), &series);
        assert_eq!(of("Keep"), [(1, Fires), (8, Clears)]);
        assert_eq!(of("Ok"), [(1, Fires), (3, Clears), (6, Fires), (8, Clears)]);
        assert_eq!(of("Alert"), [(1, Fires), (8, Clears), (9, Fires), (12, Clears)]);
        // A pending alert waits for answers, but not for longer than the window.
        let pending = rule("fire: Above(0.3), for_s: 3");
        assert_eq!(said(&pending, &[bad, few, few, bad]), [(3, Fires)]);
        assert_eq!(said(&pending, &[bad, few, empty, few, bad]), []);
        // What fires for want of data, and is bad when there are data, is two alerts.
        let both = rule("fire: Above(0.3), no_data: Alert");
        assert_eq!(said(&both, &[empty, bad, good]), [(0, Fires), (1, Clears), (1, Fires), (2, Clears)]);
    }

    /// A share that a window of a hundred answers would show.
    fn noisy(level: f64, noise: &[f64]) -> Vec<Reading> {
        noise.iter().map(|noise| Reading::Value(level + noise * 0.06)).collect()
    }

    proptest! {
        #[test]
        fn a_noisy_series_does_not_flap(noise in prop::collection::vec(-1.0..1.0_f64, 400)) {
            let steady = rule("fire: Above(0.3), clear: Some(0.2)");
            let bare = rule("fire: Above(0.3)");
            // Around the threshold, the noise is smaller than the distance to the other one: one alert at most.
            for level in [0.28, 0.3, 0.32] {
                prop_assert!(said(&steady, &noisy(level, &noise)).len() <= 1);
            }
            // From well to ill and back, with noise all the way: it fires once and clears once.
            let slope = |at: usize| 0.1 + 0.4 * (1.0 - (at as f64 / 200.0 - 1.0).abs());
            let series: Vec<Reading> =
                noise.iter().enumerate().map(|(at, noise)| Reading::Value(slope(at) + noise * 0.04)).collect();
            let told: Vec<Said> = said(&steady, &series).into_iter().map(|(_, said)| said).collect();
            prop_assert_eq!(told, [Fires, Clears]);
            // What the two thresholds are for.
            prop_assert!(said(&bare, &noisy(0.3, &noise)).len() > 20);
        }

        #[test]
        fn what_is_said_alternates(
            readings in prop::collection::vec(
                prop_oneof![Just(Reading::Empty), Just(Reading::TooFew), (0.0..1.0_f64).prop_map(Reading::Value)], 1..80),
            for_s in 0..4_u32,
            keep_s in 0..4_u32,
            no_data in prop_oneof![Just("Keep"), Just("Ok"), Just("Alert")],
        ) {
            let rule = rule(&format!("fire: Above(0.6), clear: Some(0.4), for_s: {for_s}, keep_s: {keep_s}, no_data: {no_data}"));
            let told = said(&rule, &readings);
            for (number, (_, one)) in told.iter().enumerate() {
                prop_assert_eq!(*one, if number % 2 == 0 { Fires } else { Clears });
            }
        }
    }
}
