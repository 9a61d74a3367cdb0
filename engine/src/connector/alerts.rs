//! What a sink that watches the answers says of its rules.

use std::sync::Arc;

use serde::Serialize;

/// The state of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AlertStatus {
    /// Its node.
    pub node: Arc<str>,
    /// Its name.
    pub rule: String,
    /// `ok`, `pending` (it is wrong, but not for long enough) or `firing`.
    pub state: &'static str,
    /// What is measured now; `None` while there are too few answers.
    pub value: Option<f64>,
    /// The threshold.
    pub threshold: f64,
    /// Number of answers in the window.
    pub n: usize,
    /// Since when it is wrong, in seconds since 1970.
    pub since: Option<f64>,
    /// The name of the alert, if it fires.
    pub alert: Option<String>,
}

/// The states of the rules of a sink.
pub trait AlertStates: Send + Sync {
    /// The states now, by name.
    fn alerts(&self) -> Vec<AlertStatus>;
}
