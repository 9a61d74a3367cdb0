//! Scores answers: against references, against passages, by judges, and by whether the question is
//! answerable. One file per metric; [`conditioning`] defines how scores count.
//!
//! | metric | computed by | requires |
//! |---|---|---|
//! | `rouge_l`, `rouge_l_precision`, `rouge_l_recall` | [`rouge`] | a reference |
//! | `exact_match`, `token_f1`, `token_recall`, `hotpot_f1` | [`span`] | one or more references |
//! | `extractiveness` | [`rouge`] | – |
//! | `bert_recall` | [`bert_score`] | a reference, an encoder |
//! | `bert_k_precision` | [`bert_score`] | an encoder |
//! | `rb_alg` | [`reference_based`] | a reference, an encoder |
//! | `rb_llm` | [`judge`] | a reference, a language model |
//! | `rl_f` | [`faithfulness`] | a language model |
//! | `repass` and its parts | [`repass`] | an NLI model |
//! | `words`, `characters` | [`scorer`]: the answer's length | – |

pub mod bert_score;
pub mod clarification;
pub mod conditioning;
pub mod config;
pub mod faithfulness;
pub mod idk;
pub mod judge;
mod porter;
pub mod prompts;
#[cfg(test)]
mod published;
pub mod reference_based;
pub mod repass;
pub mod report;
pub mod rouge;
pub mod scorer;
pub mod span;
#[cfg(test)]
mod tests;

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The question is answered.
    Answered,
    /// The pipeline says that it does not know.
    Idk,
    /// The task failed and has no answer.
    Failed,
}

/// The response of a system to a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The answer; empty if the task failed.
    pub text: String,
    /// The outcome.
    pub status: Status,
    /// The passages that the answer is based on, best first.
    pub passages: Vec<String>,
}

impl Response {
    /// The response of a failed task.
    pub fn failed() -> Self {
        Self { text: String::new(), status: Status::Failed, passages: Vec::new() }
    }
}

/// A metric: its name, and whether it is conditioned on answerability.
///
/// Conditioned metrics are between 0 and 1, and higher is better. The parts of RePASs are only reported
/// raw, since one of them is better when low. So are lengths and extractiveness, of which neither is better.
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

/// All metrics, in report order.
pub const METRICS: [Metric; 21] = [
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
    conditioned("repass_any"),
    raw("repass_obligations_any"),
    conditioned("exact_match"),
    conditioned("token_f1"),
    conditioned("token_recall"),
    conditioned("hotpot_f1"),
    raw("extractiveness"),
    raw("words"),
    raw("characters"),
];

/// Whether any task can be scored without models: with a reference (ROUGE-L, exact match, token F1) or answerability (IDK rules).
pub fn can_be_scored(tasks: &[crate::tasks::Task]) -> bool {
    tasks.iter().any(|task| task.target.is_some() || task.answerability.is_some())
}
