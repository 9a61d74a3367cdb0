//! Replays conversations through a pipeline, records the output of every node, and finds where two
//! replays first differ.

mod diff;
mod log;
mod record;
mod report;

pub use diff::{Difference, difference, recorded};
pub use log::{Log, LogError, Recorded, read_answers, read_log};
pub use record::{Played, Recorder, Trace, ends};
pub use report::{Comparison, Sides, Turned};
