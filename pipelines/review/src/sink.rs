//! Keeps answers that people judge.
//!
//! ```ron
//! Review(input: "final", path: "review.jsonl", rules: {
//!     "declined": (of: Declined),
//!     "weak": (of: Low("confidence", 0.5)),
//!     "sample": (share: 0.05),
//! })
//! ```
//!
//! A rule looks at one answer. An answer that a rule takes is in the queue once, also after a kill, until somebody judges
//! it: on the page, by `/v1/review`, or with `turnflow review`. `turnflow review FILE --export DIR` makes tasks, judgements
//! and tests of the verdicts. A sample is drawn by a hash of the turn, so a run that reads a log again draws the same one.
//!
//! In a pipeline with `mode: Live`, a revision replaces the open answer to its turn. If the former answer was judged, the
//! revision is queued if it says something else and a rule takes it. The answers of callers are queued as well. With
//! `max_open` open answers, further ones are counted and left out.
//!
//! Everything is in the journal at `path`, with the questions, the answers and the beginnings of the passages, and stays
//! there. Cost: for a delivery with an answer that a rule takes, one write that waits for the disk; a few hundred bytes of
//! memory for each answer in the queue, judged or not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, built, config};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery, ReviewQueue};
use turnflow_engine::metrics::Gauge;
use turnflow_engine::spec::FilePath;

use crate::queue::{Counts, Queue, Wanted};
use crate::rule::RuleConfig;

/// Fields of `Review`.
#[config]
pub struct ReviewConfig {
    /// Input node that produces answers.
    _input: String,
    /// The journal: a file that only this node and `turnflow review` write. It is created if it does not exist.
    pub path: FilePath,
    /// The rules, by name. An answer that one of them takes is queued.
    pub rules: BTreeMap<String, RuleConfig>,
    /// Most open answers. While there are so many, further ones are counted and left out.
    #[field(default = 1000, range = 1..=100_000)]
    pub max_open: usize,
}

/// Entry in the table of sinks.
pub const KIND: SinkKind = SinkKind::of::<ReviewConfig>("Review", "a queue of answers that people judge");

impl SinkConfig for ReviewConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a directory, not a file", self.path.written));
        }
        if self.rules.is_empty() {
            check.error("missing-field", "rules", "there is no rule");
        }
        check.within("rules", |check| {
            for (name, rule) in &self.rules {
                check.within(name, |check| {
                    use turnflow_engine::component::fields::Configured;
                    rule.check_ranges(check);
                    rule.validate(check);
                });
            }
        });
    }

    // It locks its file only while it writes, for `turnflow review` writes verdicts during a run.
    fn another_file(&self) -> Option<PathBuf> {
        Some(self.path.path.clone())
    }

    fn takes_callers(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        built(self.sink(context).map(|sink| Box::new(sink) as Box<dyn AnswerSink>))
    }
}

impl ReviewConfig {
    /// Opens the sink.
    ///
    /// # Errors
    ///
    /// The journal cannot be read or written.
    pub fn sink(&self, context: &ComponentContext) -> Result<ReviewSink, ConnectorError> {
        let queue = Arc::new(Queue::open(context.id(), &self.path.path)?);
        let meters = Meters {
            open: context.gauge("review_open", "Answers in the review queue that nobody has judged"),
            judged: context.gauge("review_judged", "Answers in the review queue that were judged"),
            left_out: context.gauge("review_left_out", "Answers that were left out because the review queue was full"),
        };
        meters.show(queue.counts()?);
        Ok(ReviewSink { config: self.clone(), queue, meters, is_full: false })
    }
}

struct Meters {
    open: Gauge,
    judged: Gauge,
    left_out: Gauge,
}

impl Meters {
    fn show(&self, Counts { open, judged, left_out }: Counts) {
        self.open.set(open as i64);
        self.judged.set(judged as i64);
        self.left_out.set(left_out as i64);
    }
}

/// The sink.
pub struct ReviewSink {
    config: ReviewConfig,
    queue: Arc<Queue>,
    meters: Meters,
    is_full: bool,
}

impl AnswerSink for ReviewSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        // A write, which waits for the disk: the sink has a thread of its own.
        async move {
            let wanted = Wanted { rules: &self.config.rules, max_open: self.config.max_open };
            let counts = self.queue.take(delivery.answers(), &wanted)?;
            self.meters.show(counts);
            let is_full = counts.open >= self.config.max_open;
            if is_full && !self.is_full {
                tracing::warn!(
                    open = counts.open,
                    "the review queue is full: further answers are counted and left out"
                );
            }
            self.is_full = is_full;
            Ok(())
        }
        .boxed()
    }

    fn review(&self) -> Option<Arc<dyn ReviewQueue>> {
        Some(self.queue.clone())
    }
}
