//! Conditions metrics on answerability and on the IDK label.
//!
//! From MTRAG (Katsis et al. 2025, section 6.3.3): if an answerable question is answered, the metric
//! counts as it is; if not, it counts 0. An unanswerable question counts 1 if it is not answered and
//! 0 if it is. `partial` on either side counts as an answer. Conversational turns are excluded, as
//! in the paper, and so are MTRAG-UN's underspecified questions; they are reported under abstention.
//!
//! The benchmark's scripts (IBM/mt-rag-benchmark), by which the shared task was scored, count these
//! too: an underspecified question counts 1 if the response asks for clarification, and a
//! conversational turn counts like an unanswerable question.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::tasks::Task;

/// Whether the passages contain an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Answerability {
    /// They contain the answer.
    Answerable,
    /// They contain a part of the answer.
    Partial,
    /// They do not contain the answer.
    Unanswerable,
    /// The question is ambiguous (MTRAG-UN).
    Underspecified,
    /// The turn is not a question.
    Conversational,
}

impl Answerability {
    /// All values, with their names in task files.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Answerable, "ANSWERABLE"),
        (Self::Partial, "PARTIAL"),
        (Self::Unanswerable, "UNANSWERABLE"),
        (Self::Underspecified, "UNDERSPECIFIED"),
        (Self::Conversational, "CONVERSATIONAL"),
    ];

    /// Another name of partially answerable tasks.
    const PARTIALLY: &str = "PARTIALLY_ANSWERABLE";

    /// The answerability of a task; `None` if it has none or an unknown one.
    pub fn of(task: &Task) -> Option<Self> {
        Self::named(task.answerability.as_deref()?)
    }

    /// The value with this name, ignoring case.
    pub fn named(said: &str) -> Option<Self> {
        if said.eq_ignore_ascii_case(Self::PARTIALLY) {
            return Some(Self::Partial);
        }
        Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(said)).map(|(kind, _)| *kind)
    }

    /// Whether an answer is expected; `None` if neither answering nor abstaining is wrong.
    fn expects_answer(self) -> Option<bool> {
        match self {
            Self::Answerable | Self::Partial => Some(true),
            Self::Unanswerable => Some(false),
            Self::Underspecified | Self::Conversational => None,
        }
    }
}

/// The IDK label: whether a response says that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Idk {
    /// It does not say so.
    No,
    /// It says so for a part of the question.
    Partial,
    /// It says so for the whole question.
    Yes,
}

/// How a metric counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counts {
    /// With its own value.
    AsItIs,
    /// With this fixed value.
    Fixed(f64),
    /// Not at all.
    Not,
}

/// The table of section 6.3.3. The metrics of a task without answerability count as they are. A task
/// without an IDK label (the judge failed) does not count.
pub fn counts(answerability: Option<Answerability>, idk: Option<Idk>) -> Counts {
    let Some(answerability) = answerability else { return Counts::AsItIs };
    match (answerability.expects_answer(), idk) {
        (None, _) | (_, None) => Counts::Not,
        (Some(true), Some(Idk::Yes)) => Counts::Fixed(0.0),
        (Some(true), Some(Idk::No | Idk::Partial)) => Counts::AsItIs,
        (Some(false), Some(Idk::Yes)) => Counts::Fixed(1.0),
        (Some(false), Some(Idk::No | Idk::Partial)) => Counts::Fixed(0.0),
    }
}

/// Like [`counts`], as the benchmark's scripts count. `clarifies` tells whether the response asks for clarification.
pub fn counts_clarified(answerability: Option<Answerability>, idk: Option<Idk>, clarifies: Option<bool>) -> Counts {
    match answerability {
        Some(Answerability::Underspecified) => match clarifies {
            Some(clarifies) => Counts::Fixed(f64::from(u8::from(clarifies))),
            None => Counts::Not,
        },
        Some(Answerability::Conversational) => counts(Some(Answerability::Unanswerable), idk),
        _ => counts(answerability, idk),
    }
}

/// Like [`counts`], for a failed task: without an answer, it counts 0.
pub fn counts_failed(answerability: Option<Answerability>) -> Counts {
    match answerability.map(Answerability::expects_answer) {
        Some(None) => Counts::Not,
        _ => Counts::Fixed(0.0),
    }
}

/// A share of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of matching tasks.
    pub count: usize,
    /// Number of tasks.
    pub of: usize,
}

impl Share {
    /// The share, from 0 to 1; `None` if there are no tasks.
    pub fn rate(&self) -> Option<f64> {
        (self.of > 0).then(|| self.count as f64 / self.of as f64)
    }
}

impl Serialize for Share {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Share", 3)?;
        fields.serialize_field("rate", &self.rate())?;
        fields.serialize_field("count", &self.count)?;
        fields.serialize_field("of", &self.of)?;
        fields.end()
    }
}

/// How well abstention matches answerability.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Abstention {
    /// Number of responses with each IDK label, by answerability.
    pub labels: BTreeMap<Answerability, BTreeMap<Idk, usize>>,
    /// Number of responses with each IDK label, to tasks without an answerability.
    pub unlabelled: BTreeMap<Idk, usize>,
    /// Answerable and partially answerable questions that were not answered.
    pub over_abstention: Share,
    /// Unanswerable and underspecified questions that were answered, fully or partly.
    pub under_abstention: Share,
    /// Unanswerable questions that were answered.
    pub under_abstention_unanswerable: Share,
    /// Underspecified questions that were answered.
    pub under_abstention_underspecified: Share,
    /// Tasks whose IDK label agrees with their answerability (MTRAG, section 6.3.3), without
    /// underspecified and conversational tasks.
    pub answerability_accuracy: Share,
    /// Failed tasks with an answerability. Of the shares above, only the accuracy counts them.
    pub failed: usize,
}

impl Abstention {
    /// Adds a response.
    pub fn add(&mut self, answerability: Answerability, idk: Idk) {
        *self.labels.entry(answerability).or_default().entry(idk).or_default() += 1;
        let abstained = idk == Idk::Yes;
        let add = |share: &mut Share, holds: bool| {
            share.of += 1;
            share.count += usize::from(holds);
        };
        match answerability {
            Answerability::Answerable | Answerability::Partial => add(&mut self.over_abstention, abstained),
            Answerability::Unanswerable => {
                add(&mut self.under_abstention, !abstained);
                add(&mut self.under_abstention_unanswerable, !abstained);
            }
            Answerability::Underspecified => {
                add(&mut self.under_abstention, !abstained);
                add(&mut self.under_abstention_underspecified, !abstained);
            }
            Answerability::Conversational => {}
        }
        if let Some(expected) = answerability.expects_answer() {
            add(&mut self.answerability_accuracy, expected != abstained);
        }
    }

    /// Adds a response to a task without an answerability.
    pub fn add_unlabelled(&mut self, idk: Idk) {
        *self.unlabelled.entry(idk).or_default() += 1;
    }

    /// Adds a failed task; it lowers the accuracy.
    pub fn add_failed(&mut self, answerability: Answerability) {
        self.answerability_accuracy.of += usize::from(answerability.expects_answer().is_some());
        self.failed += 1;
    }

    /// Whether no task with an answerability was added.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Answerability::*;

    #[test]
    fn the_papers_table() {
        use Counts::*;
        for (answerability, by_idk) in [
            (Some(Answerable), [AsItIs, AsItIs, Fixed(0.0), Not]),
            (Some(Partial), [AsItIs, AsItIs, Fixed(0.0), Not]),
            (Some(Unanswerable), [Fixed(0.0), Fixed(0.0), Fixed(1.0), Not]),
            (Some(Underspecified), [Not, Not, Not, Not]),
            (Some(Conversational), [Not, Not, Not, Not]),
            (None, [AsItIs, AsItIs, AsItIs, AsItIs]),
        ] {
            let got = [Some(Idk::No), Some(Idk::Partial), Some(Idk::Yes), None].map(|idk| counts(answerability, idk));
            assert_eq!(got, by_idk, "{answerability:?}");
        }
        let failed = [Some(Answerable), Some(Unanswerable), Some(Underspecified), None].map(counts_failed);
        assert_eq!(failed, [Fixed(0.0), Fixed(0.0), Not, Fixed(0.0)]);
    }

    #[test]
    fn a_request_for_clarification_counts_for_underspecified_questions() {
        let by = |answerability, idk, clarifies| counts_clarified(Some(answerability), Some(idk), clarifies);
        assert_eq!(by(Underspecified, Idk::No, Some(true)), Counts::Fixed(1.0));
        assert_eq!(by(Underspecified, Idk::Yes, Some(false)), Counts::Fixed(0.0));
        assert_eq!(by(Underspecified, Idk::No, None), Counts::Not);
        assert_eq!(by(Conversational, Idk::Yes, None), Counts::Fixed(1.0));
        assert_eq!(by(Conversational, Idk::Partial, None), Counts::Fixed(0.0));
        assert_eq!(by(Answerable, Idk::No, None), Counts::AsItIs);
    }

    #[test]
    fn abstentions_are_counted() {
        let mut all = Abstention::default();
        for (answerability, idk) in [
            (Answerable, Idk::No),
            (Answerable, Idk::Yes),
            (Partial, Idk::Partial),
            (Partial, Idk::Yes),
            (Answerable, Idk::No),
            (Unanswerable, Idk::Yes),
            (Unanswerable, Idk::Partial),
            (Underspecified, Idk::No),
            (Underspecified, Idk::Yes),
            (Underspecified, Idk::No),
            (Conversational, Idk::No),
        ] {
            all.add(answerability, idk);
        }
        assert_eq!(all.over_abstention, Share { count: 2, of: 5 });
        assert_eq!(all.under_abstention, Share { count: 3, of: 5 });
        assert_eq!(all.under_abstention_unanswerable, Share { count: 1, of: 2 });
        assert_eq!(all.under_abstention_underspecified, Share { count: 2, of: 3 });
        assert_eq!(all.answerability_accuracy, Share { count: 4, of: 7 });
        let json = serde_json::to_value(&all).expect("json");
        assert_eq!(json["labels"]["PARTIAL"]["yes"], 1);
        assert_eq!(json["over_abstention"]["rate"], 0.4);
        assert_eq!(Share::default().rate(), None);
    }
}
