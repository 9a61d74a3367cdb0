//! Alerts: rules over windows that watch the answers of a pipeline and tell somebody.
//!
//! [`sink`] takes the answers. [`observation`] is what a rule reads of one, [`tally`] the measure of a window, and [`rule`]
//! the state of a rule: it decides when an alert fires and when it clears. [`watch`] brings them together; it knows no file
//! and no clock. `gap.rs` follows the journal of a `Gaps`.
//!
//! `kept.rs` keeps all of it over a restart: each delivery is one line of the [`journal`], with its observations and with
//! the records of the alerts that they caused. Then the records go to the file of alerts (`outbox.rs`), which has each of
//! them once.

pub mod config;
mod gap;
pub mod journal;
mod kept;
pub mod observation;
mod outbox;
pub mod record;
pub mod rule;
pub mod saved;
pub mod sink;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod watch;

/// The sinks of this crate.
pub static SINKS: &[turnflow_engine::component::SinkKind] = &[sink::KIND];
