//! What each node does: its calls, failures and times, as metrics and for the status of a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::component::{CorpusRef, Snapshot, Warnings};
use crate::inference::tokens::ByModel;
use crate::metrics::{Counter, Gauge, Histogram, Metrics};
use crate::record::{AnswerRecord, Turn, Value};

/// How long a source is away before answers say so: most absences end after the first attempts.
const AWAY: Duration = Duration::from_secs(10);

/// Upper bounds of the classes of durations, in seconds. Calls beyond the last are in one more class.
pub const BOUNDS_S: [f64; 20] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0,
    120.0, 300.0,
];

/// Durations in classes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Durations {
    /// Their number.
    pub count: u64,
    /// Their sum, in seconds.
    pub sum_s: f64,
    /// The number in each class of [`BOUNDS_S`], and beyond the last.
    pub classes: Vec<u64>,
}

impl Durations {
    /// The duration that this share (0 to 1) of them does not exceed, in seconds: interpolated within
    /// its class. `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.count as f64;
        let (mut before, mut from) = (0.0, 0.0);
        for (at, &number) in self.classes.iter().enumerate() {
            let number = number as f64;
            let to = BOUNDS_S.get(at).copied().unwrap_or(from);
            if number > 0.0 && before + number >= wanted {
                return Some(from + (to - from) * ((wanted - before) / number).clamp(0.0, 1.0));
            }
            (before, from) = (before + number, to);
        }
        None
    }

    /// The durations since an earlier state.
    pub fn since(&self, earlier: &Self) -> Self {
        let class = |(at, now): (usize, &u64)| now.saturating_sub(earlier.classes.get(at).copied().unwrap_or(0));
        Self {
            count: self.count.saturating_sub(earlier.count),
            sum_s: (self.sum_s - earlier.sum_s).max(0.0),
            classes: self.classes.iter().enumerate().map(class).collect(),
        }
    }
}

/// Durations recorded by several threads.
#[derive(Debug, Default)]
pub(crate) struct Clocked {
    classes: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

impl Clocked {
    pub fn note(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let class = BOUNDS_S.partition_point(|bound| *bound < seconds);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn get(&self) -> Durations {
        let classes: Vec<u64> = self.classes.iter().map(|class| class.load(Ordering::Relaxed)).collect();
        let sum_s = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        Durations { count: classes.iter().sum(), sum_s, classes }
    }
}

/// The activity of an operator, over all generations and workers.
#[derive(Debug)]
pub(crate) struct NodeActivity {
    failures: Counter,
    running: Gauge,
    seconds: Histogram,
    clocked: Clocked,
}

impl NodeActivity {
    fn new(metrics: &Metrics, node: &str) -> Self {
        Self {
            failures: metrics.counter(node, "node_failures", "Failed calls of the node"),
            running: metrics.gauge(node, "node_running", "Running calls of the node"),
            seconds: metrics.histogram(node, "node_seconds", "Durations of the node's calls in seconds", &BOUNDS_S),
            clocked: Clocked::default(),
        }
    }

    pub fn begins(&self) {
        self.running.inc();
    }

    pub fn ends(&self, took: Duration, has_failed: bool) {
        self.running.dec();
        self.seconds.observe(took.as_secs_f64());
        self.clocked.note(took);
        if has_failed {
            self.failures.inc();
        }
    }
}

/// A call whose time is recorded, also if it is cancelled.
pub(crate) struct Timed {
    activity: Arc<NodeActivity>,
    begun: Instant,
    has_failed: bool,
}

impl Timed {
    pub fn begin(activity: Arc<NodeActivity>) -> Self {
        activity.begins();
        Self { activity, begun: Instant::now(), has_failed: false }
    }

    /// Ends the call.
    pub fn end(mut self, has_failed: bool) {
        self.has_failed = has_failed;
    }

    /// Ends a call that has failed.
    pub fn fails(self) {
        self.end(true);
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.activity.ends(self.begun.elapsed(), self.has_failed);
    }
}

/// The calls of an operator since the engine's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Calls {
    /// Running calls.
    pub running: i64,
    /// Failed calls.
    pub failures: u64,
    /// Durations of the finished calls.
    pub durations: Durations,
}

/// Observes every operator call and every answer, for example to export them as spans. It
/// is called on workers and must be quick.
pub trait TurnWatcher: Send + Sync {
    /// An operator has returned a value; the call began this long ago.
    fn called(&self, turn: &Turn, node: &str, value: &Value, took: Duration);
    /// A turn has its answer; it was asked this long ago.
    fn answered(&self, turn: &Turn, record: &AnswerRecord, took: Duration);
}

/// The turns of a source.
#[derive(Debug)]
struct TurnActivity {
    seconds: Histogram,
    failures: Counter,
}

/// The tokens of a language model.
#[derive(Clone, Debug)]
pub(crate) struct Spending {
    prompt: Counter,
    completion: Counter,
}

/// The activity of all operators and sources.
#[derive(Debug, Default)]
pub struct Activity {
    metrics: Metrics,
    nodes: Mutex<HashMap<Arc<str>, Arc<NodeActivity>>>,
    sources: Mutex<HashMap<Arc<str>, Arc<TurnActivity>>>,
    models: Mutex<HashMap<Arc<str>, Spending>>,
    turns: Clocked,
}

impl Activity {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    pub(crate) fn node(&self, id: &Arc<str>) -> Arc<NodeActivity> {
        let mut nodes = self.nodes.lock();
        nodes.entry(id.clone()).or_insert_with(|| Arc::new(NodeActivity::new(&self.metrics, id))).clone()
    }

    /// Records an answer to a turn of a source, or of a caller in its place.
    pub(crate) fn answered(&self, source: &Arc<str>, took: Duration, has_failed: bool) {
        let of = self.sources.lock().get(source).cloned();
        let of = of.unwrap_or_else(|| {
            let seconds = "Times from reading a turn to its answer in seconds";
            let new = Arc::new(TurnActivity {
                seconds: self.metrics.histogram(source, "turn_seconds", seconds, &BOUNDS_S),
                failures: self.metrics.counter(source, "turn_failures", "Failed turns of the source"),
            });
            self.sources.lock().entry(source.clone()).or_insert(new).clone()
        });
        of.seconds.observe(took.as_secs_f64());
        self.turns.note(took);
        if has_failed {
            of.failures.inc();
        }
    }

    /// Warns of corpora whose source has been away for a while.
    pub(crate) fn warn_of_absences(
        &self,
        corpora: &[CorpusRef],
        turn: &Turn,
        snapshot: &Snapshot,
        warnings: &Warnings,
    ) {
        for name in corpora.iter().filter_map(|corpus| snapshot.name_of(corpus, turn)) {
            if self.metrics.away(name).is_some_and(|absence| absence.lasts() >= AWAY) {
                warnings.add(format!("the source of `{name}` cannot be reached: what has changed there is missing"));
            }
        }
    }

    /// Counts the tokens of a call of language models. Those of texts in the inference cache cost nothing.
    pub fn spent(&self, tokens: &ByModel) {
        for (model, tokens) in tokens {
            let counters = self.spending(model);
            counters.prompt.inc_by(tokens.prompt - tokens.cached_prompt);
            counters.completion.inc_by(tokens.completion - tokens.cached_completion);
        }
    }

    /// The counters of a language model, which are in the metrics from now on.
    pub(crate) fn spending(&self, model: &Arc<str>) -> Spending {
        let mut models = self.models.lock();
        let new = || Spending {
            prompt: self.metrics.counter(model, "prompt_tokens", "Tokens of prompts that the model has read"),
            completion: self.metrics.counter(model, "completion_tokens", "Tokens that the model has written"),
        };
        models.entry(model.clone()).or_insert_with(new).clone()
    }

    /// Counts a record of a source that came a second time.
    pub(crate) fn repeated(&self, source: &str) {
        let help = "Records with the conversation, turn and text of an earlier one, which are not answered again";
        self.metrics.counter(source, "repeated_records", help).inc();
    }

    /// Counts a turn of a source that came again with another text.
    pub(crate) fn replaced(&self, source: &str) {
        let help = "Records with another text for an earlier turn, which are its new version";
        self.metrics.counter(source, "replaced_turns", help).inc();
    }

    /// Counts turns of a source whose answers are taken back, because what they answer was deleted or replaced.
    pub(crate) fn withdrawn(&self, source: &str, turns: u64) {
        let help = "Turns whose answers were taken back, because the question was deleted or replaced";
        self.metrics.counter(source, "withdrawn_turns", help).inc_by(turns);
    }

    /// Times from reading a turn to its first answer.
    pub fn turns(&self) -> Durations {
        self.turns.get()
    }

    /// The calls of an operator; nothing for a name that no operator has had.
    pub fn calls(&self, id: &str) -> Calls {
        let Some(node) = self.nodes.lock().get(id).cloned() else { return Calls::default() };
        Calls { running: node.running.get(), failures: node.failures.get(), durations: node.clocked.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_class() {
        let clocked = Clocked::default();
        assert_eq!(clocked.get().quantile(0.5), None);
        for _ in 0..90 {
            clocked.note(Duration::from_millis(2));
        }
        let before = clocked.get();
        for _ in 0..10 {
            clocked.note(Duration::from_secs(1000));
        }
        let all = clocked.get();
        let median = all.quantile(0.5).unwrap();
        assert!((0.001..=0.0025).contains(&median), "{median}");
        assert_eq!(all.quantile(0.99), Some(300.0));
        let new = all.since(&before);
        assert_eq!((new.count, new.quantile(0.1)), (10, Some(300.0)));
        assert!((all.sum_s - 10_000.18).abs() < 1e-6);
    }
}
