//! Evaluation of pipelines: import of benchmarks, tasks and judgements, metrics and their significance, matrices of
//! rows to compare, tuning, calibration, replays and their differences, tests in pipeline files, and verification.

pub mod adapting;
pub mod breakdown;
pub mod calibration;
pub mod correlation;
pub mod generation;
pub mod impact;
pub mod import;
pub mod matrix;
pub mod memory;
pub mod metrics;
pub mod published;
pub mod random;
pub mod replay;
pub mod report;
mod setting;
pub mod significance;
pub mod tags;
pub mod tasks;
pub mod testing;
pub mod trec;
pub mod tuning;
pub mod verify;
