//! A queue of answers that people judge.
//!
//! [`sink`] takes the answers of a pipeline, and a [`rule`] says which of them people should look at. [`book`] is what the
//! [`journal`] says: which answers are open, and which were judged. [`queue`] brings the two together, for the sink, the
//! server and `turnflow review`, which may all use one journal at the same time.
//!
//! [`verdicts`] reads verdicts from JSON Lines, and [`export`] writes what was judged as tasks, judgements and tests.

pub mod book;
pub mod export;
pub mod item;
pub mod journal;
pub mod queue;
pub mod rule;
pub mod sink;
#[cfg(test)]
mod tests;
pub mod verdicts;

/// The sinks of this crate.
pub static SINKS: &[turnflow_engine::component::SinkKind] = &[sink::KIND];
