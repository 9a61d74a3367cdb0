//! Conversations played through a pipeline again, with what every node gave, and where two
//! such plays part.

mod diff;
mod log;
mod record;
mod report;

pub use diff::{Parting, part, recorded};
pub use log::{Log, LogError, Recorded, read_answers, read_log};
pub use record::{Played, Recorder, Trace, ends};
pub use report::{Comparison, Sides, Turned};
