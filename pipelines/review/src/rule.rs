//! Which answers people should look at.
//!
//! A rule looks at one answer, by what an [`Observation`] has of it, and at nothing else: neither at the time nor at other
//! answers. So it takes the same answers again after a restart.

use std::collections::BTreeSet;

use turnflow_alerts::config::Measure;
use turnflow_alerts::observation::Observation;
use turnflow_engine::component::{Check, config};
use turnflow_engine::record::AnswerRecord;

/// A rule: which answers it takes, and how many of them.
#[config]
pub struct RuleConfig {
    /// The answers that it takes.
    #[field(default = Condition::Any)]
    pub of: Condition,
    /// The share of these answers, above 0 and up to 1. They are drawn by a hash of the turn, so it is always the same ones,
    /// and a larger share has all of a smaller one.
    #[field(default = 1.0, range = 0.0..=1.0)]
    pub share: f64,
}

/// What a rule wants of an answer. Turns that have failed are only in `Any` and `Failed`.
#[config]
#[derive(PartialEq)]
pub enum Condition {
    /// Every answer.
    Any,
    /// It says that it does not know.
    Declined,
    /// `SelfCheck` has flagged it, because the passages do not bear it out.
    Unsupported,
    /// The turn failed.
    Failed,
    /// A number in `checks` is lower than this, as in `Low("confidence", 0.5)`.
    Low(String, f64),
    /// A number in `checks` is higher than this, as in `High("nli.contradiction", 0.5)`.
    High(String, f64),
    /// It took longer than this from reading the turn to the answer, in seconds.
    Slow(f64),
}

impl Condition {
    /// The number in `checks` that it reads.
    pub fn check(&self) -> Option<&str> {
        match self {
            Self::Low(name, _) | Self::High(name, _) => Some(name),
            _ => None,
        }
    }

    fn is_met(&self, observed: &Observation) -> bool {
        let is_so = |measure: Measure| observed.value(&measure) == Some(1.0);
        let number = |measure: Measure| observed.value(&measure);
        match self {
            Self::Any => true,
            Self::Declined => is_so(Measure::Declined),
            Self::Unsupported => is_so(Measure::Unsupported),
            Self::Failed => is_so(Measure::Failed),
            Self::Low(name, bound) => is_so(Measure::Low(name.clone(), *bound)),
            Self::High(name, bound) => number(Measure::Mean(name.clone())).is_some_and(|number| number > *bound),
            Self::Slow(seconds) => number(Measure::Latency(0.5)).is_some_and(|number| number > *seconds),
        }
    }
}

/// The numbers in `checks` that rules read.
pub fn checks<'a>(rules: impl IntoIterator<Item = &'a RuleConfig>) -> BTreeSet<String> {
    rules.into_iter().filter_map(|rule| rule.of.check()).map(str::to_owned).collect()
}

/// What rules see of a record.
pub fn observed(record: &AnswerRecord, checks: &BTreeSet<String>) -> Observation {
    Observation::of(record, 0.0, checks)
}

/// The place of a turn in the order by which turns are drawn, from 0 to 1.
pub fn drawn(key: &str) -> f64 {
    let hash = blake3::derive_key("turnflow review: which turns a sample has", key.as_bytes());
    let first: [u8; 8] = std::array::from_fn(|at| hash[at]);
    // As many bits as a number between 0 and 1 has.
    (u64::from_le_bytes(first) >> 11) as f64 / (1_u64 << 53) as f64
}

impl RuleConfig {
    /// Whether the rule takes an answer.
    pub fn takes(&self, observed: &Observation) -> bool {
        self.of.is_met(observed) && (self.share >= 1.0 || drawn(&observed.key) < self.share)
    }

    /// Reports what is wrong.
    pub fn validate(&self, check: &mut Check<'_>) {
        if self.share == 0.0 {
            check.error("out-of-range", "share", "a share of 0 takes no answer: leave the rule out");
        }
        let number = match &self.of {
            Condition::Low(name, _) | Condition::High(name, _) if name.split('.').any(str::is_empty) => {
                let reason = "a number in `checks` has a name, as in `confidence` or `nli.entailment`";
                return check.error("wrong-value", "of", reason);
            }
            Condition::Low(_, number) | Condition::High(_, number) | Condition::Slow(number) => *number,
            _ => return,
        };
        if !number.is_finite() {
            check.error("wrong-value", "of", "a bound must be a finite number");
        } else if matches!(self.of, Condition::Slow(_)) && number < 0.0 {
            check.error("out-of-range", "of", format!("a time is not negative, and {number} is"));
        }
    }
}
