//! Watches the answers by rules, and tells when an alert fires and when it clears.
//!
//! ```ron
//! Alerts(input: "final", path: "alerts.jsonl", rules: {
//!     "declined": (of: Declined, fire: Above(0.3), clear: Some(0.2), window_s: 3600, at_least: 20, for_s: 300),
//!     "slow": (of: Latency(0.95), fire: Above(5), clear: Some(3)),
//!     "silent": (of: Failed, fire: Above(0.1), no_data: Alert),
//! })
//! ```
//!
//! Each alert is a line of the file `path` when it fires, and another one when it clears. A line is a record of a log of
//! turns, too: `JsonLines(path: "alerts.jsonl")` brings it to any sink. Windows, states and what was told are kept with the
//! state of the run: after a kill, no alert is lost, and none is told twice.
//!
//! A turn counts once, with its newest answer. The answers of callers count as well. Cost: one line of the journal for a
//! delivery, which waits for the disk, and a few hundred bytes of memory for each answer in the longest window, but at least
//! for 10,000 and at most for 200,000.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, built, config};
use turnflow_engine::connector::{AlertStates, AnswerSink, ConnectorError, Delivery};
use turnflow_engine::spec::FilePath;

use crate::config::{Clock, RuleConfig};
use crate::kept::{Member, Now, States};

/// How often the rules are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Fields of `Alerts`.
#[config]
pub struct AlertsConfig {
    /// Input node that produces answers.
    _input: String,
    /// The file of alerts: a line when one fires, and a line when it clears. Only this node writes it. It is created if it
    /// does not exist.
    pub path: FilePath,
    /// The rules, by name.
    pub rules: BTreeMap<String, RuleConfig>,
    /// The journal of a node `Gaps`, for rules with `of: Gap`. Default: none.
    pub gaps: Option<FilePath>,
    /// Whose time counts: `Answered` or `Asked`.
    #[field(default = Clock::Answered)]
    pub time: Clock,
}

/// Entry in the table of sinks.
pub const KIND: SinkKind = SinkKind::of::<AlertsConfig>("Alerts", "rules that watch the answers, and tell of alerts");

impl SinkConfig for AlertsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a directory, not a file", self.path.written));
        }
        if self.rules.is_empty() {
            check.error("missing-field", "rules", "there is no rule");
        }
        let has_gaps = self.gaps.is_some();
        check.within("rules", |check| {
            for (name, rule) in &self.rules {
                check.within(name, |check| {
                    use turnflow_engine::component::fields::Configured;
                    rule.check_ranges(check);
                    rule.validate(has_gaps, check);
                });
            }
        });
    }

    fn another_file(&self) -> Option<PathBuf> {
        Some(self.path.path.clone())
    }

    fn takes_callers(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        // Whole milliseconds are the same when they are read back.
        let now =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0);
        built(self.sink(context, Arc::new(now)).map(|sink| Box::new(sink) as Box<dyn AnswerSink>))
    }
}

impl AlertsConfig {
    /// Opens the sink, and starts the task that looks at the rules between answers.
    fn sink(&self, context: &ComponentContext, now: Now) -> Result<AlertsSink, ConnectorError> {
        let io =
            |source| ConnectorError::Io { action: "create the directory of", path: context.id().to_owned(), source };
        let directory = context.state_directory().map_err(io)?;
        let member = Arc::new(Member::open(context.id(), Arc::new(self.clone()), directory, now)?);
        let (of_task, shutdown) = (Arc::downgrade(&member), context.shutdown().clone());
        context.runtime().spawn(async move {
            let mut has_warned = false;
            loop {
                tokio::select! {
                    () = tokio::time::sleep(TICK) => {}
                    () = shutdown.cancelled() => return,
                }
                let Some(member) = of_task.upgrade() else { return };
                match member.kept.lock().tick() {
                    Ok(()) => has_warned = false,
                    Err(error) if !std::mem::replace(&mut has_warned, true) => {
                        tracing::warn!(%error, "the state of alerts cannot be written; it is tried again");
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(AlertsSink { member })
    }
}

/// The sink.
pub struct AlertsSink {
    member: Arc<Member>,
}

impl AnswerSink for AlertsSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        // One line, which waits for the disk: the sink has a thread of its own.
        async move { self.member.kept.lock().take(delivery.answers()) }.boxed()
    }

    fn alerts(&self) -> Option<Arc<dyn AlertStates>> {
        Some(Arc::new(States(Arc::downgrade(&self.member.kept))))
    }
}
