//! Questions without an answer, in groups that follow the documents.
//!
//! [`sink`] takes the answers of a pipeline and writes a [`journal`]; [`book`] is what a journal says. [`groups`] puts
//! questions together by their [`vector`]s, [`report`] names the groups and says what kind of gap each is, and [`edits`]
//! tells what an epoch settled and what it broke.
//!
//! All state is the journal: the sink reads it at its start, and `turnflow gaps` reads it at any time.

pub mod book;
pub mod edits;
pub mod groups;
pub mod journal;
mod kept;
pub mod report;
pub mod sink;
#[cfg(test)]
mod tests;
pub mod vector;

/// The sinks of this crate.
pub static SINKS: &[turnflow_engine::component::SinkKind] = &[sink::KIND];
