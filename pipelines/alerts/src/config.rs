//! The fields of a rule, and what is wrong with them.

use turnflow_engine::component::{Check, config};

/// A rule: what it measures in which window, and when its alert fires and clears.
#[config]
pub struct RuleConfig {
    /// What is measured.
    pub of: Measure,
    /// The threshold: the alert fires above it, or below it.
    pub fire: Threshold,
    /// The recovery threshold: an alert that fires clears when the measure has come back to it. A distance between the two
    /// keeps an alert from flapping. Default: the threshold.
    #[field(unset = "the threshold")]
    pub clear: Option<f64>,
    /// The length of the window, in seconds: the answers of this time are measured.
    #[field(default = 3600.0, range = 1.0..=2_678_400.0)]
    pub window_s: f64,
    /// Least number of answers in the window. With fewer, the state of the alert stays as it is.
    #[field(default = 20, range = 1..=50_000)]
    pub at_least: usize,
    /// The pending period: how long the measure must be beyond the threshold before the alert fires, in seconds.
    #[field(default = 0.0, range = 0.0..=2_678_400.0)]
    pub for_s: f64,
    /// How long the measure must have come back before the alert clears, in seconds.
    #[field(default = 0.0, range = 0.0..=2_678_400.0)]
    pub keep_s: f64,
    /// What a window without any answer means: `Keep` (the alert stays as it is), `Ok` or `Alert`.
    #[field(default = NoData::Keep)]
    pub no_data: NoData,
}

/// What a rule measures. Shares are from 0 to 1. Turns that have failed count for `Failed` only.
#[config]
#[derive(PartialEq)]
pub enum Measure {
    /// The share of answers that say that they do not know.
    Declined,
    /// The share of answers that `SelfCheck` has flagged, because the passages do not bear them out.
    Unsupported,
    /// The share of turns that failed.
    Failed,
    /// The share of answers of which a number in `checks` is lower than this, as in `Low("confidence", 0.5)`.
    Low(String, f64),
    /// The mean of a number in `checks` of the answers, as in `Mean("nli.entailment")`.
    Mean(String),
    /// This quantile of the seconds from reading a turn to its answer, as in `Latency(0.95)`; exact to one percent.
    Latency(f64),
    /// The number of answers that an edit has taken back: they had an answer that held, and have none any more. For
    /// pipelines with `mode: Live`.
    Lost,
    /// The number of new questions in the gap that grew most: those that lack an answer still. Needs `gaps`.
    Gap,
}

/// When an alert fires.
#[config]
#[derive(Copy, PartialEq)]
pub enum Threshold {
    /// If the measure is above this.
    Above(f64),
    /// If it is below this.
    Below(f64),
}

/// What a window without any answer means.
#[config]
#[derive(Copy, PartialEq, Eq)]
pub enum NoData {
    /// The alert stays as it is.
    Keep,
    /// All is well: an alert that fires clears.
    Ok,
    /// The alert fires.
    Alert,
}

/// Whose time counts.
#[config]
#[derive(Copy, PartialEq, Eq)]
pub enum Clock {
    /// A turn counts when it is answered. The rules are looked at with each answer, and between them.
    Answered,
    /// A turn counts at its `timestamp`, and the newest one is the present. The rules are looked at with each answer only.
    /// This is for logs of the past.
    Asked,
}

impl Threshold {
    /// The number.
    pub fn value(self) -> f64 {
        let (Self::Above(value) | Self::Below(value)) = self;
        value
    }

    /// Whether a measure is beyond it.
    pub fn is_passed(self, value: f64) -> bool {
        match self {
            Self::Above(most) => value > most,
            Self::Below(least) => value < least,
        }
    }
}

impl Measure {
    /// Whether it is a share of the answers.
    pub fn is_share(&self) -> bool {
        matches!(self, Self::Declined | Self::Unsupported | Self::Failed | Self::Low(..))
    }

    /// Whether it is a number of something, which is 0 without answers.
    pub fn is_count(&self) -> bool {
        matches!(self, Self::Lost | Self::Gap)
    }

    /// The number in `checks` that it reads.
    pub fn check(&self) -> Option<&str> {
        match self {
            Self::Low(name, _) | Self::Mean(name) => Some(name),
            _ => None,
        }
    }
}

impl RuleConfig {
    /// The threshold at which the alert clears.
    pub fn clears_at(&self) -> f64 {
        self.clear.unwrap_or(self.fire.value())
    }

    /// Whether a measure has come back.
    pub fn is_back(&self, value: f64) -> bool {
        match self.fire {
            Threshold::Above(_) => value <= self.clears_at(),
            Threshold::Below(_) => value >= self.clears_at(),
        }
    }

    /// Reports what is wrong.
    pub fn validate(&self, has_gaps: bool, check: &mut Check<'_>) {
        let (fire, clear) = (self.fire.value(), self.clears_at());
        let (is_beyond, side) = match self.fire {
            Threshold::Above(_) => (clear > fire, "above"),
            Threshold::Below(_) => (clear < fire, "below"),
        };
        if !fire.is_finite() || !clear.is_finite() {
            check.error("wrong-value", "fire", "a threshold must be a finite number");
        } else if is_beyond {
            let reason = format!("the alert fires {side} {fire}, so it cannot clear at {clear}, which is {side} that");
            check.error("wrong-value", "clear", reason);
        }
        for (field, value) in [("fire", fire), ("clear", clear)] {
            let is_written = field == "fire" || self.clear.is_some();
            if is_written && self.of.is_share() && value.is_finite() && !(0.0..=1.0).contains(&value) {
                check.error("out-of-range", field, format!("the measure is a share, from 0 to 1, and {value} is none"));
            }
        }
        match &self.of {
            Measure::Latency(quantile) if !(*quantile > 0.0 && *quantile < 1.0) => {
                check.error("out-of-range", "of", format!("a quantile is between 0 and 1, and {quantile} is not"));
            }
            Measure::Low(name, _) | Measure::Mean(name) if name.split('.').any(str::is_empty) => {
                check.error(
                    "wrong-value",
                    "of",
                    "a number in `checks` has a name, as in `confidence` or `nli.entailment`",
                );
            }
            Measure::Gap if !has_gaps => {
                let reason = "`Gap` reads the journal of a node `Gaps`: name its file in `gaps`";
                check.error("missing-field", "of", reason);
            }
            of if of.is_count() && self.no_data != NoData::Keep => {
                check.error("wrong-value", "no_data", "a number is 0 without answers, so its data never lack");
            }
            _ => {}
        }
    }
}
