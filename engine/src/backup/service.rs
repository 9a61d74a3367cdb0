//! The task that keeps the copies up to date.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::copy::{Copy, Place};
use super::files::blocking;
use super::store::StoreError;
use super::write::{IndexCopy, Round, WriteError, remove_copy, timed};
use super::{Backup, DOCUMENTS};
use crate::panics::caught_async;

/// The interval between looks at the files.
const EVERY: Duration = Duration::from_secs(5);
/// The pause before a round begins again because a file was changed meanwhile.
const MOVED: Duration = Duration::from_millis(200);
/// After this many rounds in a row that a change has ended, it is a failure.
const MOST_MOVED: u32 = 50;
/// The first and the longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a stop waits for the last round, and how long it tries again in a run that ends by itself.
const LAST: Duration = Duration::from_secs(10);

/// What the task remembers between two rounds.
#[derive(Default)]
struct Task {
    copies: Vec<IndexCopy>,
    /// Whether copies of removed indexes were looked for.
    is_clean: bool,
    failing: Option<Instant>,
    pause: Duration,
    moved: u32,
}

impl Backup {
    /// Copies what changes, until the run ends.
    pub async fn work(self: Arc<Self>) {
        let is_complete = caught_async(|| self.copy_changes()).await.unwrap_or_else(|panic| {
            tracing::error!(error = %panic, "the backup has ended early");
            self.measures.failures.inc();
            *self.problem.lock() = Some(format!("it has ended early: {panic}"));
            false
        });
        self.ended.send_replace(Some(is_complete));
    }

    /// Returns whether everything is copied.
    async fn copy_changes(&self) -> bool {
        let mut task = Task::default();
        loop {
            let ending = self.ending.load(Ordering::Acquire);
            let pause = match self.round(&mut task).await {
                Ok(()) => {
                    self.succeeded(&mut task);
                    if ending {
                        return true;
                    }
                    EVERY
                }
                Err(WriteError::Taken) => {
                    tracing::error!(
                        store = self.store.address(),
                        pipeline = self.pipeline,
                        "another run writes the same backup, so this run has stopped its own: give each run a URL of its own, or restart the one that is to be backed up"
                    );
                    self.measures.failures.inc();
                    *self.problem.lock() = Some("another run writes the same backup".to_owned());
                    return false;
                }
                Err(WriteError::Store(StoreError::Moved)) if task.moved < MOST_MOVED => {
                    task.moved += 1;
                    MOVED
                }
                Err(WriteError::Store(error)) => self.failed(&mut task, &error),
            };
            if ending && task.failing.is_some_and(|since| since.elapsed() > LAST) {
                return false;
            }
            let pause = if ending { pause.min(PAUSES.0) } else { pause };
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn succeeded(&self, task: &mut Task) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.measures.complete.set(since.as_secs().try_into().unwrap_or(i64::MAX));
        *self.problem.lock() = None;
        if task.failing.take().is_some() {
            tracing::warn!(store = self.store.address(), "the backup is up to date again");
        }
        (task.moved, task.pause) = (0, Duration::ZERO);
    }

    /// Tells of a failure, once for each outage. Returns the pause before the next attempt.
    fn failed(&self, task: &mut Task, error: &StoreError) -> Duration {
        self.measures.failures.inc();
        *self.problem.lock() = Some(error.to_string());
        task.moved = 0;
        if task.failing.is_none() {
            task.failing = Some(Instant::now());
            tracing::warn!(store = self.store.address(), %error, "the backup cannot be written; will retry");
        }
        task.pause = (task.pause * 2).clamp(PAUSES.0, PAUSES.1);
        task.pause
    }

    /// Brings all copies up to date.
    async fn round(&self, task: &mut Task) -> Result<(), WriteError> {
        // Their encodings were stored here before they became obsolete, so this round copies them.
        let obsolete = self.obsolete.lock().clone();
        task.copies.append(&mut self.opened.lock());
        let (store, pipeline, writer, sent) = (&*self.store, &*self.pipeline, &self.writer, &self.measures.sent);
        let round = Round { store, pipeline, writer, sent };
        let (mut complete, mut failed) = (BTreeSet::new(), None);
        let (documents, is_last) = (self.documents.lock().clone(), self.ending.load(Ordering::Acquire));
        for copy in documents {
            // They change the files that are copied below.
            if let Err(error) = blocking(move || copy.write(is_last)).await {
                failed = Some(error);
            }
        }
        for copy in &mut task.copies {
            match copy.round(&round).await {
                Ok(true) => drop(complete.insert((&copy.place.corpus, &copy.place.index))),
                Ok(false) => {}
                // That is the index's, and the others can be copied.
                Err(WriteError::Store(error @ (StoreError::Moved | StoreError::Local(_)))) => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        for place in obsolete.iter().filter(|place| complete.contains(&(&place.corpus, &place.index))) {
            remove_copy(store, &place.key(pipeline)).await?;
            tracing::info!(
                process = place.process,
                corpus = place.corpus,
                key = place.index,
                "the backup of a process that is no longer in the cluster is removed: process 0 has its encodings"
            );
            self.obsolete.lock().remove(place);
        }
        if !task.is_clean {
            self.remove_unused().await?;
            task.is_clean = true;
        }
        Ok(())
    }

    /// Removes the copies of indexes that this state directory had and has no longer, because someone has removed them. What
    /// another state directory has copied stays: its disk may be lost, and the pipeline may come back to that index. So do
    /// documents, which cannot be computed again.
    async fn remove_unused(&self) -> Result<(), WriteError> {
        let own = format!("{}/process-{}", self.pipeline, self.shape.process);
        let keys = timed(0, self.store.list(&own)).await?;
        let places: BTreeSet<Place> = keys.iter().filter_map(|key| Place::of(key, &self.pipeline)).collect();
        for place in places {
            if place.index == DOCUMENTS {
                continue;
            }
            let directory = self.state.join("corpora").join(&place.corpus).join(&place.index);
            if self.known.lock().contains(&place) || directory.exists() {
                continue;
            }
            let Some((bytes, _)) = timed(0, self.store.read(&self.description_of(&place))).await? else {
                remove_copy(&*self.store, &place.key(&self.pipeline)).await?;
                continue;
            };
            if Copy::parse(&bytes).is_ok_and(|copy| copy.writer.state == self.writer.state) {
                tracing::info!(corpus = place.corpus, key = place.index, "the index is gone, and so is its backup");
                remove_copy(&*self.store, &place.key(&self.pipeline)).await?;
            }
        }
        Ok(())
    }

    /// Copies what has changed since the last round, for at most ten seconds; without a limit if the run `ends_by_itself`,
    /// as long as the store works. Blocks.
    pub fn finish(&self, runtime: &tokio::runtime::Handle, ends_by_itself: bool) {
        self.ending.store(true, Ordering::Release);
        self.wake.notify_one();
        let mut ended = self.ended.subscribe();
        let limit = if ends_by_itself { Duration::MAX } else { LAST };
        let ended = runtime.block_on(async {
            let ended = tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await;
            ended.ok().and_then(|ended| *ended.ok()?)
        });
        if ended != Some(true) {
            tracing::warn!(store = self.store.address(), "the backup is not up to date; the next run goes on with it");
        }
    }
}
