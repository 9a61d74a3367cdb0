//! Answers scored: against references, against passages, by judges, and by whether there
//! should have been one. One file a metric; [`conditioning`] says what a score counts for.
//!
//! | figure | from | needs |
//! |---|---|---|
//! | `rouge_l`, `rouge_l_precision`, `rouge_l_recall` | [`rouge`] | a reference |
//! | `bert_recall` | [`bert_score`] | a reference, an encoder |
//! | `bert_k_precision` | [`bert_score`] | an encoder |
//! | `rb_alg` | [`reference_based`] | a reference, an encoder |
//! | `rb_llm` | [`judge`] | a reference, a language model |
//! | `rl_f` | [`faithfulness`] | a language model |
//! | `repass` and its parts | [`repass`] | a model of inference |

pub mod bert_score;
pub mod conditioning;
pub mod config;
pub mod faithfulness;
pub mod idk;
pub mod judge;
mod porter;
pub mod reference_based;
pub mod repass;
pub mod report;
pub mod rouge;
pub mod scorer;
#[cfg(test)]
mod tests;

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There is an answer.
    Answered,
    /// The pipeline says that it does not know.
    Idk,
    /// There is none, since something failed.
    Failed,
}

/// What a system said to a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The answer; empty where it failed.
    pub text: String,
    /// What became of it.
    pub status: Status,
    /// The passages that it stands on, best first.
    pub passages: Vec<String>,
}

impl Response {
    /// Of a task that failed.
    pub fn failed() -> Self {
        Self { text: String::new(), status: Status::Failed, passages: Vec::new() }
    }
}

/// A figure: its name, and whether it is conditioned on answerability.
///
/// Figures that are, are between 0 and 1, and higher is better; the parts of RePASs, of which
/// one is better when low, are only reported as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in reports.
    pub name: &'static str,
    /// Whether [`conditioning::counts`] applies.
    pub conditioned: bool,
}

const fn conditioned(name: &'static str) -> Metric {
    Metric { name, conditioned: true }
}
const fn raw(name: &'static str) -> Metric {
    Metric { name, conditioned: false }
}

/// Every figure, in the order of reports.
pub const METRICS: [Metric; 12] = [
    conditioned("rouge_l"),
    conditioned("rouge_l_precision"),
    conditioned("rouge_l_recall"),
    conditioned("bert_recall"),
    conditioned("bert_k_precision"),
    conditioned("rb_alg"),
    conditioned("rb_llm"),
    conditioned("rl_f"),
    conditioned("repass"),
    raw("repass_entailment"),
    raw("repass_contradiction"),
    raw("repass_obligations"),
];

/// Whether all that Rouge-L and the IDK rules need is there: a reference, or answerability.
pub fn can_be_scored(tasks: &[crate::tasks::Task]) -> bool {
    tasks.iter().any(|task| task.target.is_some() || task.answerability.is_some())
}
