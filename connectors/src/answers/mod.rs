//! `Answers`: a durable log of answers for a program to read.
//!
//! ```ron
//! Answers(input: "final")
//! ```
//!
//! A program reads the log through [`AnswerLog`], which `Engine::answer_log` returns; `turnflow serve` serves it as
//! `GET /v1/answers`. Answers are numbered. A reader continues after the last answer that it has seen, also after a
//! restart. In a live pipeline, revisions and retractions are separate answers.
//!
//! The log is the file `answers.redb` in the sink's directory in the state directory. It contains each answer exactly
//! once, however often the process is killed. Beyond `keep` and `keep_mb`, the oldest answers of the caller who has the
//! most are removed, so that one caller's answers do not push out another's. A damaged
//! file is not modified, and the start fails. Without a state directory, the log is kept in memory and lost when the
//! engine ends, with a warning.
//!
//! ```
//! # use turnflow_connectors::answers::AnswersConfig;
//! # let ron = r#"
//! (input: "final", keep: 1000)
//! # "#;
//! # let config: AnswersConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.keep, 1000);
//! ```

mod store;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use turnflow_engine::component::{
    Building, ComponentContext, ComponentError, Models, SinkConfig, SinkKind, SinkMode, built, config,
};
use turnflow_engine::connector::{
    AnswerLog, AnswerSink, AnswersOf, ConnectorError, Delivery, KeptAnswers, LoggedAnswer, Recovered, RecoveredAnswers,
    Search, SinkPosition, Syncing,
};
use turnflow_engine::record::AnswerRecord;

use self::store::{Bounds, Encoded, Store};
use crate::open_once::{Opened, Place};
use crate::turns::failed;

/// Name of the file.
const FILE: &str = "answers.redb";
/// Size of a page, in bytes; it ends with the answer that reaches it.
const PAGE_BYTES: usize = 4 << 20;

/// Fields of `Answers`.
#[config]
pub struct AnswersConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// Maximum number of answers in the log, at least 1000; the oldest ones of the caller who has the most are removed. A
    /// restart finds only answers in the log, so half of this must exceed the number of answers between two checkpoints,
    /// which are a second apart.
    #[field(default = 100_000, range = 1000..=100_000_000)]
    pub keep: u64,
    /// Maximum size of all answers in the log, in MiB.
    #[field(default = 1024, range = 1..=1 << 20)]
    pub keep_mb: u64,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

impl AnswersConfig {
    pub(crate) fn open(&self, place: Place) -> Result<Answers, ConnectorError> {
        let bounds = Bounds { answers: self.keep, bytes: self.keep_mb << 20 };
        Ok(Answers { store: Store::open(place).map_err(failed)?, bounds })
    }
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind::of::<AnswersConfig>("Answers", "a durable log of answers for a program to read");

impl SinkConfig for AnswersConfig {
    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        let sink = Place::of(context, FILE).and_then(|place| self.open(place));
        built(sink.map(|sink| Box::new(sink) as Box<dyn AnswerSink>))
    }
}

/// Appends answers to a log.
pub struct Answers {
    store: Arc<Opened<Store>>,
    bounds: Bounds,
}

impl Answers {
    fn put(&self, delivery: Delivery<'_>) -> Result<(), ConnectorError> {
        let refused = |error: serde_json::Error| ConnectorError::Refused { reason: error.to_string() };
        let encoded: Result<Vec<Encoded>, _> = delivery.answers().iter().map(Encoded::of).collect();
        self.store.append(&encoded.map_err(refused)?, self.bounds).map_err(failed)
    }
}

impl AnswerSink for Answers {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        // One transaction, which waits for the disk: the sink has a separate thread.
        async move { self.put(delivery) }.boxed()
    }

    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        Some(self)
    }

    fn log(&self) -> Option<Arc<dyn AnswerLog>> {
        Some(Arc::new(Log { store: Arc::downgrade(&self.store), last: self.store.last() }))
    }
}

impl KeptAnswers for Answers {
    fn mark(&self) -> SinkPosition {
        SinkPosition { log: self.store.id().clone(), length: *self.store.last().borrow(), content: None }
    }

    fn syncing(&mut self) -> Syncing {
        // Each delivery is on disk when it is acknowledged.
        Box::new(|| Ok(()))
    }

    fn recover(&mut self, search: Search<'_>) -> Result<Recovered, ConnectorError> {
        let until = *self.store.last().borrow();
        let is_own = |since: &&SinkPosition| since.log == *self.store.id() && since.length <= until;
        let since = search.since.filter(is_own);
        let after = since.map_or(0, |since| since.length);
        let count = self.store.count(after, until).map_err(failed)?;
        let answers = Earlier { store: self.store.clone(), after, until, count };
        Ok(Recovered { is_there: search.since.is_none() || since.is_some(), answers: Box::new(answers) })
    }
}

/// Answers of earlier processes, read on demand.
struct Earlier {
    store: Arc<Opened<Store>>,
    after: u64,
    until: u64,
    count: usize,
}

impl RecoveredAnswers for Earlier {
    fn count(&self) -> usize {
        self.count
    }

    fn found(&mut self, key: &str) -> Option<Arc<str>> {
        self.record(key).map(|record| record.answer)
    }

    fn record(&mut self, key: &str) -> Option<AnswerRecord> {
        match self.store.find(key, self.after, self.until) {
            Ok(json) => serde_json::from_slice(&json?).ok(),
            Err(error) => {
                tracing::warn!(%error, "cannot look up an answer of an earlier process; writing it again");
                None
            }
        }
    }
}

/// A program's handle to a log. It does not keep the log open: readers notice when the sink is removed.
struct Log {
    store: Weak<Opened<Store>>,
    last: watch::Receiver<u64>,
}

impl AnswerLog for Log {
    fn read(&self, of: AnswersOf<'_>, after: u64, limit: usize) -> Result<Vec<LoggedAnswer>, ConnectorError> {
        let store = self.store.upgrade().ok_or_else(|| ComponentError::new("the sink no longer exists"))?;
        let page = store.page(of, after, limit, PAGE_BYTES).map_err(failed)?;
        let decode = |(number, json): (u64, Vec<u8>)| {
            let damaged = |error| ComponentError::new(format!("cannot read answer {number} of the log: {error}"));
            let record = serde_json::from_slice(&json).map_err(damaged)?;
            Ok(LoggedAnswer { number, record, bytes: json.len() })
        };
        page.into_iter().map(decode).collect()
    }

    fn last(&self) -> watch::Receiver<u64> {
        self.last.clone()
    }
}
