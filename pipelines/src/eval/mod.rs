//! Evaluation: tasks, judgements, runs, and the figures that say what a run is worth.

pub mod breakdown;
pub mod calibration;
pub mod generation;
pub mod metrics;
pub mod significance;
pub mod tasks;
pub mod trec;
pub mod tuning;
