//! The rules, their windows and their states. It is a function of what it is told: it knows no file and no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use turnflow_engine::connector::AlertStatus;

use crate::config::{Measure, RuleConfig};
use crate::observation::{Observation, What};
use crate::record::{Example, Making};
use crate::rule::{Because, Reading, Said, State};
use crate::saved::{Change, Saved};
use crate::tally::Tally;

/// Answers that are remembered, however short the windows are: an answer that is delivered again is known by them.
const REMEMBERED: usize = 10_000;
/// Answers that are kept, however long the windows are.
const MOST: usize = 200_000;
/// Turns that a record names.
const EXAMPLES: usize = 5;

/// A rule and its window.
#[derive(Debug)]
struct Window {
    rule: RuleConfig,
    /// The number of its first answer.
    from: u64,
    tally: Tally,
}

/// The largest growth of a gap, for a rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Growth {
    /// Number of its new questions.
    pub n: usize,
    /// The gap.
    pub gap: Option<String>,
    /// The newest of them.
    pub examples: Vec<Example>,
}

/// The rules at work.
#[derive(Debug)]
pub struct Watch {
    node: Arc<str>,
    /// What outlives the process.
    pub saved: Saved,
    /// The number of the first observation.
    first: u64,
    answers: HashMap<Arc<str>, u64>,
    lost: HashMap<Arc<str>, u64>,
    windows: BTreeMap<String, Window>,
    /// By rule, the growth of gaps.
    pub growth: BTreeMap<String, Growth>,
    /// Before this plus its window, a rule does not know that answers are missing.
    since: f64,
}

impl Watch {
    /// Goes on with what was saved. `since`: since when this process watches.
    pub fn new(node: &str, saved: Saved, since: f64) -> Self {
        let mut watch = Self {
            node: node.into(),
            saved: Saved { observations: VecDeque::new(), ..saved },
            first: 0,
            answers: HashMap::new(),
            lost: HashMap::new(),
            windows: BTreeMap::new(),
            growth: BTreeMap::new(),
            since,
        };
        saved.observations.into_iter().for_each(|observation| watch.push(observation));
        watch
    }

    /// Takes other rules, and measures their windows anew.
    pub fn set_rules(&mut self, rules: &BTreeMap<String, RuleConfig>) {
        let window = |rule: &RuleConfig| Window { rule: rule.clone(), from: self.first, tally: Tally::default() };
        self.windows = rules.iter().map(|(name, rule)| (name.clone(), window(rule))).collect();
        self.growth.retain(|name, _| rules.contains_key(name));
        for window in self.windows.values_mut() {
            for value in self.saved.observations.iter().filter_map(|one| one.value(&window.rule.of)) {
                window.tally.add(&window.rule.of, value);
            }
        }
        self.evict();
    }

    /// The numbers in `checks` that the rules read.
    pub fn checks(&self) -> BTreeSet<String> {
        self.windows.values().filter_map(|window| window.rule.of.check().map(str::to_owned)).collect()
    }

    /// The present.
    pub fn now(&self) -> f64 {
        self.saved.now
    }

    /// Since when this process watches.
    pub fn since(&self) -> f64 {
        self.since
    }

    /// The longest window, in seconds.
    pub fn longest(&self) -> f64 {
        self.windows.values().map(|window| window.rule.window_s).fold(0.0, f64::max)
    }

    fn at(&self, number: u64) -> Option<&Observation> {
        self.saved.observations.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn revision(&self, numbers: &HashMap<Arc<str>, u64>, key: &str) -> Option<&Observation> {
        self.at(*numbers.get(key)?)
    }

    /// Whether this was told before: an answer is delivered again after a kill.
    pub fn knows(&self, observation: &Observation) -> bool {
        let Observation { key, revision, what, .. } = observation;
        let answer = self.revision(&self.answers, key);
        let lost = self.revision(&self.lost, key).map(|lost| lost.revision);
        match what {
            What::Answer(_) => answer.map(|answer| answer.revision).max(lost) >= Some(*revision),
            What::Retracted(_) => answer.map(|answer| answer.revision).max(lost) > Some(*revision),
            What::Gone => answer.is_none_or(|answer| answer.what == What::Gone),
            What::Lost => true,
        }
    }

    /// Takes something that was not told before.
    pub fn note(&mut self, observation: Observation) {
        let known = self.answers.get(&observation.key).copied().filter(|number| *number >= self.first);
        match observation.what.clone() {
            What::Lost => {}
            What::Retracted(held) => drop(self.saved.before.insert(observation.key, held)),
            What::Gone => {
                self.saved.before.remove(&observation.key);
                let lost = self.lost.get(&observation.key).copied();
                for number in known.into_iter().chain(lost) {
                    self.change(number, |one| one.what = What::Gone);
                }
            }
            What::Answer(mut answer) => {
                let held = known.and_then(|number| match &self.at(number)?.what {
                    What::Answer(before) => Some(before.holds()),
                    _ => None,
                });
                let held = self.saved.before.remove(&observation.key).or(held).unwrap_or_default();
                let Observation { at, revision, .. } = observation;
                let holds = answer.holds();
                match known {
                    Some(number) => self.change(number, |one| {
                        if let What::Answer(before) = &one.what {
                            // Nobody waits for a revision.
                            answer.seconds = before.seconds;
                        }
                        (one.revision, one.what) = (revision, What::Answer(answer));
                    }),
                    None if revision == 0 => self.push(observation.clone()),
                    None => {}
                }
                if revision == 0 {
                    return;
                }
                if let Some(number) = self.lost.get(&observation.key).copied().filter(|_| holds) {
                    self.change(number, |one| (one.revision, one.what) = (revision, What::Gone));
                }
                if held && !holds {
                    self.push(Observation { at, what: What::Lost, ..observation });
                }
            }
        }
    }

    fn push(&mut self, observation: Observation) {
        let number = self.first + self.saved.observations.len() as u64;
        let numbers = if observation.what == What::Lost { &mut self.lost } else { &mut self.answers };
        numbers.insert(observation.key.clone(), number);
        for window in self.windows.values_mut() {
            if let Some(value) = observation.value(&window.rule.of) {
                window.tally.add(&window.rule.of, value);
            }
        }
        self.saved.observations.push_back(observation);
    }

    /// Changes an observation in the windows that have it.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Observation)) {
        let Some(at) = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok()) else { return };
        let Some(observation) = self.saved.observations.get_mut(at) else { return };
        let before = observation.clone();
        change(observation);
        for window in self.windows.values_mut().filter(|window| window.from <= number) {
            let of = &window.rule.of;
            before.value(of).iter().for_each(|value| window.tally.remove(of, *value));
            observation.value(of).iter().for_each(|value| window.tally.add(of, *value));
        }
    }

    /// Moves the present on; it never goes back.
    pub fn advance(&mut self, now: f64) {
        self.saved.now = now.max(self.saved.now);
        self.saved.begun.get_or_insert(now);
        self.evict();
    }

    /// Puts the present back, after a clock was put right.
    pub fn put_back(&mut self, now: f64) {
        self.since = self.since.min(now);
        self.saved.put_back(now);
    }

    /// Takes what is too old out of the windows, and forgets what no window has.
    fn evict(&mut self) {
        let (now, first) = (self.saved.now, self.first);
        let kept = self.saved.observations.len();
        let over = first + kept.saturating_sub(MOST) as u64;
        for window in self.windows.values_mut() {
            let old = |at: usize| self.saved.observations.get(at).filter(|one| one.at <= now - window.rule.window_s);
            let mut next = window.from.max(first);
            while let Ok(at) = usize::try_from(next - first) {
                let gone = match next < over {
                    true => self.saved.observations.get(at),
                    false => old(at),
                };
                let Some(gone) = gone else { break };
                if let Some(value) = gone.value(&window.rule.of) {
                    window.tally.remove(&window.rule.of, value);
                }
                next += 1;
            }
            window.from = next;
        }
        let all = first + kept as u64;
        // While a journal is read, there are no windows yet.
        let unused = self.windows.values().map(|window| window.from).min().unwrap_or(first);
        let until = unused.min(all.saturating_sub(REMEMBERED as u64)).max(over);
        while self.first < until {
            let Some(gone) = self.saved.observations.pop_front() else { break };
            for numbers in [&mut self.answers, &mut self.lost] {
                if numbers.get(&gone.key) == Some(&self.first) {
                    numbers.remove(&gone.key);
                }
            }
            self.first += 1;
        }
    }

    /// What a rule reads: the measure, the number of answers and the gap.
    fn reading(&self, name: &str, window: &Window) -> (Reading, usize) {
        let Window { rule, tally, .. } = window;
        if rule.of == Measure::Gap {
            let n = self.growth.get(name).map_or(0, |growth| growth.n);
            return (Reading::Value(n as f64), n);
        }
        let watched = self.saved.begun.unwrap_or(self.saved.now).max(self.since);
        let reading = match tally.value(&rule.of) {
            Some(value) if rule.of.is_count() || tally.n >= rule.at_least => Reading::Value(value),
            None if self.saved.now - watched >= rule.window_s => Reading::Empty,
            _ => Reading::TooFew,
        };
        (reading, tally.n)
    }

    /// Looks at all rules, and changes their states.
    pub fn evaluate(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, window) in &self.windows {
            // A rule that clears for one reason may fire at once for another.
            loop {
                let before = self.saved.states.get(name).copied().unwrap_or_default();
                let (reading, n) = self.reading(name, window);
                let Some((mut state, said)) = window.rule.step(before, reading, self.saved.now) else { break };
                if said == Some(Said::Fires)
                    && let State::Firing { alert, .. } = &mut state
                {
                    *alert = self.saved.made + 1;
                }
                let record = said.and_then(|said| {
                    let of = if said == Said::Fires { state } else { before };
                    let State::Firing { because, since, alert, .. } = of else { return None };
                    self.saved.made += 1;
                    let number = self.saved.made;
                    let value = if let Reading::Value(value) = reading { Some(value) } else { None };
                    let growth = self.growth.get(name).cloned().unwrap_or_default();
                    let making = Making {
                        node: &self.node,
                        number,
                        at: self.saved.now,
                        rule: name,
                        said,
                        because,
                        since,
                        alert,
                        value,
                        n,
                        gap: growth.gap,
                        examples: match (said, &window.rule.of) {
                            (Said::Clears, _) => Vec::new(),
                            (Said::Fires, Measure::Gap) => growth.examples,
                            (Said::Fires, _) => examples(&self.saved.observations, self.first, window),
                        },
                    };
                    Some(making.record(Some(&window.rule)))
                });
                self.saved.set(name, state);
                changes.push(Change { rule: name.clone(), state, record });
            }
        }
        changes
            .iter()
            .filter_map(|change| change.record.clone())
            .for_each(|record| self.saved.outbox.push_back(record));
        changes
    }

    /// Clears the alerts of rules that are gone.
    pub fn clear_removed(&mut self) -> Vec<Change> {
        let gone: Vec<_> = self.saved.states.iter().filter(|(name, _)| !self.windows.contains_key(*name)).collect();
        let gone: Vec<(String, State)> = gone.into_iter().map(|(name, state)| (name.clone(), *state)).collect();
        let mut changes = Vec::new();
        for (rule, state) in gone {
            let record = match state {
                State::Firing { since, alert, .. } => {
                    self.saved.made += 1;
                    let making = Making {
                        node: &self.node,
                        number: self.saved.made,
                        at: self.saved.now,
                        rule: &rule,
                        said: Said::Clears,
                        because: Because::Removed,
                        since,
                        alert,
                        value: None,
                        n: 0,
                        gap: None,
                        examples: Vec::new(),
                    };
                    Some(making.record(None))
                }
                _ => None,
            };
            self.saved.outbox.extend(record.clone());
            self.saved.set(&rule, State::Ok);
            changes.push(Change { rule, state: State::Ok, record });
        }
        changes
    }

    /// The rules as people see them.
    pub fn status(&self) -> Vec<AlertStatus> {
        let status = |(name, window): (&String, &Window)| {
            let (reading, n) = self.reading(name, window);
            let (state, since, alert) = match self.saved.states.get(name).copied().unwrap_or_default() {
                State::Ok => ("ok", None, None),
                State::Pending { since, .. } => ("pending", Some(since), None),
                State::Firing { since, alert, .. } => ("firing", Some(since), Some(alert)),
            };
            AlertStatus {
                node: self.node.clone(),
                rule: name.clone(),
                state,
                value: if let Reading::Value(value) = reading { Some(value) } else { None },
                threshold: window.rule.fire.value(),
                n,
                since,
                alert: alert.map(|number| format!("{}/{number}", self.node)),
            }
        };
        self.windows.iter().map(status).collect()
    }

    /// The rules that measure the growth of gaps, with the beginnings of their windows.
    pub fn of_gaps(&self) -> Vec<(String, f64)> {
        let gaps = self.windows.iter().filter(|(_, window)| window.rule.of == Measure::Gap);
        gaps.map(|(name, window)| (name.clone(), self.saved.now - window.rule.window_s)).collect()
    }
}

/// The newest turns of a window that are on the wrong side.
fn examples(observations: &VecDeque<Observation>, first: u64, window: &Window) -> Vec<Example> {
    let Window { rule, from, .. } = window;
    let is_wrong = |one: &Observation| {
        let value = one.value(&rule.of)?;
        let is_so = match rule.of.is_share() {
            true => rule.fire.is_passed(value),
            false if rule.of.is_count() => true,
            false => rule.fire.is_passed(value),
        };
        is_so.then(|| Example {
            conversation_id: one.conversation.clone(),
            turn: one.turn,
            question: one.question.clone(),
        })
    };
    let before = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX).min(observations.len());
    observations.range(before..).rev().filter_map(is_wrong).take(EXAMPLES).collect()
}
