//! What a score counts for, given whether there is an answer and whether one was given.
//!
//! MTRAG (Katsis et al. 2025, section 6.3.3): a metric stands for a question that can be
//! answered and was; not answering what can be answered is worth 0; not answering what cannot
//! be is worth 1, and answering it 0. `partial` on either side counts as an answer.
//! Conversational turns are left out, as in the paper. MTRAG-UN's underspecified questions are
//! left out of the means too, and have their own line among the abstentions.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::tasks::Task;

/// Whether the passages have an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Answerability {
    /// All of it.
    Answerable,
    /// A part of it.
    Partial,
    /// None of it.
    Unanswerable,
    /// The question means several things (MTRAG-UN).
    Underspecified,
    /// There is no question.
    Conversational,
}

impl Answerability {
    /// Every one, with the name that tasks have for it.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Answerable, "ANSWERABLE"),
        (Self::Partial, "PARTIAL"),
        (Self::Unanswerable, "UNANSWERABLE"),
        (Self::Underspecified, "UNDERSPECIFIED"),
        (Self::Conversational, "CONVERSATIONAL"),
    ];

    /// Another name of partially answerable tasks.
    const PARTIALLY: &str = "PARTIALLY_ANSWERABLE";

    /// A task's, if it says one that is known.
    pub fn of(task: &Task) -> Option<Self> {
        Self::named(task.answerability.as_deref()?)
    }

    /// By its name, letter case aside.
    pub fn named(said: &str) -> Option<Self> {
        if said.eq_ignore_ascii_case(Self::PARTIALLY) {
            return Some(Self::Partial);
        }
        Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(said)).map(|(kind, _)| *kind)
    }

    /// Whether an answer is expected; `None` where neither is right or wrong.
    fn expects_answer(self) -> Option<bool> {
        match self {
            Self::Answerable | Self::Partial => Some(true),
            Self::Unanswerable => Some(false),
            Self::Underspecified | Self::Conversational => None,
        }
    }
}

/// Whether a response says that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Idk {
    /// It does not say so.
    No,
    /// Of a part of the question.
    Partial,
    /// Of all of it.
    Yes,
}

/// What a metric counts for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counts {
    /// As it is.
    AsItIs,
    /// This, whatever it is.
    Fixed(f64),
    /// Not at all.
    Not,
}

/// The table of section 6.3.3. Tasks that do not say whether they can be answered count as
/// they are; without an IDK label (a judge's reply that could not be read) a task does not
/// count.
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

/// As [`counts`], where a task failed: nothing was said, so nothing was right.
pub fn counts_failed(answerability: Option<Answerability>) -> Counts {
    match answerability.map(Answerability::expects_answer) {
        Some(None) => Counts::Not,
        _ => Counts::Fixed(0.0),
    }
}

/// How often, of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How often.
    pub count: usize,
    /// Of how many.
    pub of: usize,
}

impl Share {
    /// Between 0 and 1; `None` of nothing.
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

/// How well not answering goes with not being answerable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Abstention {
    /// How many responses have each IDK label, by answerability.
    pub labels: BTreeMap<Answerability, BTreeMap<Idk, usize>>,
    /// Answerable and partially answerable questions that were not answered.
    pub over_abstention: Share,
    /// Unanswerable and underspecified questions that were answered, in part or in whole.
    pub under_abstention: Share,
    /// The unanswerable ones of these alone.
    pub under_abstention_unanswerable: Share,
    /// The underspecified ones of these alone.
    pub under_abstention_underspecified: Share,
    /// Whether the IDK label says what answerability says (MTRAG, section 6.3.3);
    /// underspecified and conversational tasks left out.
    pub answerability_accuracy: Share,
    /// Labelled tasks that failed; of the shares above, only the accuracy counts them.
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

    /// Adds a task that failed: nothing was said, so it cannot have been right.
    pub fn add_failed(&mut self, answerability: Answerability) {
        self.answerability_accuracy.of += usize::from(answerability.expects_answer().is_some());
        self.failed += 1;
    }

    /// Whether any task said whether it can be answered.
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
