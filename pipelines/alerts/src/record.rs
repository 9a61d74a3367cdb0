//! The record of an alert that fires or clears. It is a line of a log of turns as well, so a pipeline can read it
//! (`JsonLines`) and send it to any sink.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnflow_engine::wording::count;

use crate::config::{Measure, RuleConfig, Threshold};
use crate::rule::{Because, Said};

/// An alert that fires or clears.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The node, so that the record is a turn.
    pub conversation_id: Arc<str>,
    /// The number of the record, from 1.
    pub turn: u32,
    /// `user`, so that the record is a turn.
    pub speaker: Speaker,
    /// What happened, in a sentence.
    pub text: String,
    /// When, in seconds since 1970.
    pub timestamp: f64,
    /// Names the record: the node and its number.
    pub id: String,
    /// Names the alert: the id of the record that said that it fires.
    pub alert: String,
    /// The rule.
    pub rule: String,
    /// What the alert does.
    pub state: Told,
    /// Why.
    pub because: Because,
    /// The measure; `None` if there are no answers.
    pub value: Option<f64>,
    /// The threshold at which the alert fires.
    pub threshold: f64,
    /// The threshold at which it clears.
    pub clear: f64,
    /// The length of the window in seconds.
    pub window_s: f64,
    /// Number of answers in the window.
    pub n: usize,
    /// Since when it has been wrong, in seconds since 1970.
    pub since: f64,
    /// The newest turns of the window that made the alert.
    #[serde(default)]
    pub examples: Vec<Example>,
    /// For a gap that grows: which one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
}

/// Who speaks in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// A user.
    User,
}

/// What an alert does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Told {
    /// It fires.
    Firing,
    /// It clears.
    Cleared,
}

/// A turn of the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// The conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn.
    pub turn: u32,
    /// The question.
    pub question: Arc<str>,
}

/// What a record is made of, besides its rule.
pub(crate) struct Making<'a> {
    pub node: &'a Arc<str>,
    pub number: u32,
    pub at: f64,
    pub rule: &'a str,
    pub said: Said,
    pub because: Because,
    pub since: f64,
    /// The number of the record that said that the alert fires.
    pub alert: u32,
    pub value: Option<f64>,
    pub n: usize,
    pub gap: Option<String>,
    pub examples: Vec<Example>,
}

impl Making<'_> {
    /// The record; `config` is `None` if the rule is gone.
    pub fn record(self, config: Option<&RuleConfig>) -> Record {
        let Self { node, number, at, rule, said, because, since, alert, value, n, gap, examples } = self;
        let what = match (config, because, said) {
            (None, _, _) => "cleared: the pipeline file does not have this rule any more".to_owned(),
            (Some(config), Because::NoData, Said::Fires) => format!("no answers in {}", period(config.window_s)),
            (Some(_), Because::NoData, Said::Clears) => "cleared: there are answers again".to_owned(),
            (Some(config), _, _) => {
                let measured = measured(config, value, n, gap.as_deref());
                let period = period(config.window_s);
                match said {
                    Said::Fires => format!("{measured} in {period}; the alert fires {}", side(config)),
                    Said::Clears => format!("cleared: {measured} in {period}"),
                }
            }
        };
        Record {
            conversation_id: node.clone(),
            turn: number,
            speaker: Speaker::User,
            text: format!("{rule}: {what}"),
            timestamp: at,
            id: format!("{node}/{number}"),
            alert: format!("{node}/{alert}"),
            rule: rule.to_owned(),
            state: if said == Said::Fires { Told::Firing } else { Told::Cleared },
            because,
            // So that it is the same when it is read back.
            value: value.map(|value| (value * 1e6).round() / 1e6),
            threshold: config.map_or(0.0, |config| config.fire.value()),
            clear: config.map_or(0.0, RuleConfig::clears_at),
            window_s: config.map_or(0.0, |config| config.window_s),
            n,
            since,
            examples,
            gap,
        }
    }
}

/// `42 % of 50 answers were declined`.
fn measured(config: &RuleConfig, value: Option<f64>, n: usize, gap: Option<&str>) -> String {
    let Some(value) = value else { return "there were no answers".to_owned() };
    let answers = count(n as u64, "answer");
    let share = || format!("{} of {answers}", percent(value));
    match &config.of {
        Measure::Declined => format!("{} declined", share()),
        Measure::Unsupported => format!("{} not borne out by their passages", share()),
        Measure::Failed => format!("{} of {} failed", percent(value), count(n as u64, "turn")),
        Measure::Low(name, least) => format!("{} with `{name}` below {least}", share()),
        Measure::Mean(name) => format!("the mean of `{name}` of {answers} is {}", rounded(value)),
        Measure::Latency(quantile) => {
            format!("the {} quantile of the latency of {answers} is {} s", percent(*quantile), seconds(value))
        }
        Measure::Lost if n == 1 => "1 answer does not hold any more".to_owned(),
        Measure::Lost => format!("{n} answers do not hold any more"),
        Measure::Gap => {
            let in_gap = gap.map(|gap| format!(" in the gap {gap}")).unwrap_or_default();
            format!("{}{in_gap}", count(n as u64, "new question"))
        }
    }
}

fn side(config: &RuleConfig) -> String {
    let (word, value) = match config.fire {
        Threshold::Above(value) => ("above", value),
        Threshold::Below(value) => ("below", value),
    };
    let value = match &config.of {
        of if of.is_share() => percent(value),
        Measure::Latency(_) => format!("{} s", seconds(value)),
        _ => rounded(value),
    };
    format!("{word} {value}")
}

/// A share in percent, with a decimal where it is small.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match (percent * 10.0).round() / 10.0 {
        small if small < 10.0 && small.fract() != 0.0 => format!("{small} %"),
        _ => format!("{} %", percent.round()),
    }
}

fn rounded(value: f64) -> String {
    format!("{}", (value * 1000.0).round() / 1000.0)
}

/// Seconds with as many decimals as a quantile is exact to.
fn seconds(value: f64) -> String {
    let parts = if value < 1.0 { 1000.0 } else { 100.0 };
    format!("{}", (value * parts).round() / parts)
}

/// A time in words.
fn period(seconds: f64) -> String {
    let whole = |unit: f64| seconds >= unit && (seconds / unit).fract() == 0.0;
    match seconds {
        _ if whole(86_400.0) => count((seconds / 86_400.0) as u64, "day"),
        _ if whole(3600.0) => count((seconds / 3600.0) as u64, "hour"),
        _ if whole(60.0) => count((seconds / 60.0) as u64, "minute"),
        _ if seconds.fract() == 0.0 => count(seconds as u64, "second"),
        _ => format!("{seconds} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        for (share, written) in [(0.42, "42 %"), (0.005, "0.5 %"), (0.0, "0 %"), (1.0, "100 %"), (0.3333, "33 %")] {
            assert_eq!(percent(share), written);
        }
        let periods =
            [(3600.0, "1 hour"), (7200.0, "2 hours"), (90.0, "90 seconds"), (86_400.0, "1 day"), (1.5, "1.5 seconds")];
        for (seconds, written) in periods {
            assert_eq!(period(seconds), written);
        }
    }
}
