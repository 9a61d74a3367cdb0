//! What outlives a process, and the changes of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::observation::Observation;
use crate::record::Record;
use crate::rule::State;

/// The change of a rule's state, and the record that tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The rule.
    pub rule: String,
    /// Its state now.
    pub state: State,
    /// The record, if people are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
}

/// What outlives a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Since when the answers are watched.
    pub begun: Option<f64>,
    /// The present, as it was known last.
    pub now: f64,
    /// Number of records that were made.
    pub made: u32,
    /// Number of records that are in the file.
    pub told: u32,
    /// The answers, in their order.
    pub observations: VecDeque<Observation>,
    /// Turns whose answers were taken back and whose revisions follow; whether the answers held.
    #[serde(default)]
    pub before: BTreeMap<Arc<str>, bool>,
    /// The rules that are not `Ok`.
    #[serde(default)]
    pub states: BTreeMap<String, State>,
    /// Records that are not in the file.
    #[serde(default)]
    pub outbox: VecDeque<Record>,
}

impl Saved {
    /// Sets the state of a rule.
    pub fn set(&mut self, rule: &str, state: State) {
        match state {
            State::Ok => drop(self.states.remove(rule)),
            state => drop(self.states.insert(rule.to_owned(), state)),
        }
    }

    /// Puts the present back, after a clock was put right: nothing is later than now.
    pub fn put_back(&mut self, now: f64) {
        let Self { observations, states, begun, .. } = self;
        observations.iter_mut().for_each(|one| one.at = one.at.min(now));
        *begun = begun.map(|begun| begun.min(now));
        for state in states.values_mut() {
            match state {
                State::Ok => {}
                State::Pending { since, .. } => *since = since.min(now),
                State::Firing { since, back, .. } => {
                    *since = since.min(now);
                    *back = back.map(|back| back.min(now));
                }
            }
        }
        self.now = now;
    }
}
