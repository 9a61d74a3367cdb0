//! The index writer of a corpus: one task that has its indexes, and applies changes to them one
//! after another.
//!
//! Chunks come from a *feed*: a source and a chunker, as a dataflow. One feed is active; what it
//! tells is applied and published. Another may be staged: its chunks are only gathered, until
//! a switch makes the indexes those of its chunks by the difference of the two, in one epoch.
//! So a corpus whose chunker changes is served from the old chunks until the new ones are all
//! there, and nothing that both have is indexed again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::chunks::{Changes, Chunks, difference};
use super::prepare::Preparing;
use super::slot::Slot;
use super::{CorpusState, RETRY};
use crate::component::{CorpusSnapshot, Delta, Index, IndexError, Maintained, MaintenanceLimits};
use crate::document::Chunk;
use crate::maintenance::MaintenanceError;
use crate::panics::caught_async;
use crate::publish::Epochs;
use crate::wake::WakeSlot;

/// To whom a feed's progress is told.
#[derive(Clone)]
pub(super) struct Report {
    pub feed: u64,
    pub state: Arc<watch::Sender<CorpusState>>,
    pub wake: WakeSlot,
}

impl Report {
    /// So many commits are in.
    fn tell(&self, commits: u64, epoch: u64) {
        self.state.send_replace(CorpusState::Ready { commits, epoch });
        self.wake.wake();
    }
}

/// An index that a corpus is to get, filled as of some moment.
pub struct AddedIndex {
    /// Its key.
    pub key: String,
    /// The index.
    pub index: Box<dyn Index>,
    /// What it was filled with.
    pub filled: Vec<Arc<Chunk>>,
}

/// What an index writer is asked for.
pub(super) enum Job {
    /// A feed's net changes, with the commits that are then in.
    Changes(Report, Changes, u64),
    /// The chunks of the active feed.
    Chunks(oneshot::Sender<Vec<Arc<Chunk>>>),
    /// The view after a switch. The index writer then waits for whether it is published.
    Switch {
        feed: Option<u64>,
        added: Vec<AddedIndex>,
        reply: oneshot::Sender<Result<CorpusSnapshot, IndexError>>,
        published: oneshot::Receiver<bool>,
    },
    /// Tells when all that was asked for before is done.
    Barrier(oneshot::Sender<()>),
    /// A feed's chunks are to be gathered.
    Stage(u64),
    /// They are not any more.
    Forget(u64),
    /// Indexes other than these go.
    Keep(BTreeSet<String>),
    /// An index is to be kept in shape.
    Maintain(MaintenanceRequest),
}

/// What is asked of the maintenance of an index.
pub(super) struct MaintenanceRequest {
    pub key: String,
    pub limits: MaintenanceLimits,
    /// It is given up after this.
    pub within: Option<Duration>,
    /// It is put off while anything else waits, or an epoch is due.
    pub yields: bool,
    /// `None`: it was put off.
    pub reply: oneshot::Sender<Option<Result<Maintained, MaintenanceError>>>,
}

/// Has the indexes of one corpus.
pub(super) struct IndexWriter {
    corpus: Arc<str>,
    slots: Vec<Slot>,
    /// The feed whose chunks are indexed.
    active: u64,
    feeds: BTreeMap<u64, Chunks>,
    /// Nothing has been applied yet, or something failed: indexes are to compare all.
    whole: bool,
    epochs: Arc<Epochs>,
    preparing: Preparing,
    retry: Option<Retry>,
}

/// A publication that failed and is to be tried again.
struct Retry {
    /// To whom it is told, and the commits that are then in; `None`: nothing new is in it.
    report: Option<(Report, u64)>,
    delay: Duration,
    at: tokio::time::Instant,
}

impl IndexWriter {
    /// For indexes that have just been opened, and their first feed.
    pub fn new(
        corpus: Arc<str>,
        active: u64,
        indexes: Vec<(String, Box<dyn Index>)>,
        epochs: Arc<Epochs>,
        preparing: Preparing,
    ) -> Self {
        let slot = |(key, index)| Slot::new(key, index, None);
        let slots = indexes.into_iter().map(slot).collect();
        let feeds = BTreeMap::from([(active, Chunks::default())]);
        Self { corpus, slots, active, feeds, whole: true, epochs, preparing, retry: None }
    }

    /// Works until nobody can ask any more.
    pub async fn run(mut self, mut todo: mpsc::UnboundedReceiver<Job>) {
        loop {
            // What failed does not keep anybody waiting, a reload that may be the cure least of all.
            let job = match &self.retry {
                Some(retry) => match tokio::time::timeout_at(retry.at, todo.recv()).await {
                    Ok(Some(job)) => Some(job),
                    Ok(None) => return,
                    Err(_) => None,
                },
                None => match todo.recv().await {
                    Some(job) => Some(job),
                    None => return,
                },
            };
            // Components' panics are caught where they are called. Whatever else panics must not
            // end this task: nothing would be published any more, and nobody would be told.
            let (waits, delay) = match &job {
                Some(Job::Changes(report, _, commits)) => (Some((report.clone(), *commits)), RETRY.0),
                Some(_) => (None, RETRY.0),
                None => self.retry.as_ref().map_or((None, RETRY.0), |retry| (retry.report.clone(), retry.delay)),
            };
            let others_wait = !todo.is_empty();
            if let Err(panic) = caught_async(|| self.work(job, others_wait)).await {
                self.whole = true;
                self.failed(waits, (delay * 2).min(RETRY.1), &IndexError::Panicked(panic));
            }
        }
    }

    /// Does what is asked for, or else tries again what failed.
    async fn work(&mut self, job: Option<Job>, others_wait: bool) {
        let Some(job) = job else { return self.try_again().await };
        match job {
            Job::Changes(report, changes, commits) => self.changes(report, changes, commits).await,
            Job::Chunks(reply) => {
                let chunks = self.feeds.entry(self.active).or_default();
                let _ = reply.send(chunks.all());
            }
            Job::Switch { feed, added, reply, published } => self.switch(feed, added, reply, published).await,
            Job::Barrier(reply) => drop(reply.send(())),
            Job::Stage(feed) => drop(self.feeds.entry(feed).or_default()),
            // The active feed's are what is indexed.
            Job::Forget(feed) if feed == self.active => {}
            Job::Forget(feed) => drop(self.feeds.remove(&feed)),
            Job::Keep(keys) => {
                self.slots.retain(|slot| keys.contains(&slot.key));
                self.epochs.trim(&self.corpus, &keys);
            }
            Job::Maintain(upkeep) => self.maintain(upkeep, others_wait).await,
        }
    }

    async fn changes(&mut self, report: Report, changes: Changes, commits: u64) {
        let delta = self.feeds.get_mut(&report.feed).map(|chunks| chunks.absorb(changes));
        let Some(delta) = delta.filter(|_| report.feed == self.active) else {
            report.tell(commits, self.epochs.current().epoch);
            return;
        };
        match self.publish(delta).await {
            Ok(epoch) => {
                tracing::debug!(corpus = %self.corpus, commits, epoch, "published");
                self.settle(epoch);
                report.tell(commits, epoch);
            }
            Err(error) => self.failed(Some((report, commits)), RETRY.0, &error),
        }
    }

    /// Has a publication that failed tried again, unless it is the first of all.
    fn failed(&mut self, report: Option<(Report, u64)>, delay: Duration, error: &IndexError) {
        self.preparing.progress.failures.fetch_add(1, Ordering::Relaxed);
        match report {
            Some((report, _)) if *report.state.borrow() == CorpusState::Loading => {
                report.state.send_replace(CorpusState::Failed(error.to_string()));
            }
            report => self.put_off(report, delay, error),
        }
    }

    fn put_off(&mut self, report: Option<(Report, u64)>, delay: Duration, error: &IndexError) {
        tracing::error!(corpus = %self.corpus, %error,
            "the epoch could not be published; the one before goes on serving");
        let at = tokio::time::Instant::now() + delay;
        let report = report.or_else(|| self.retry.take()?.report);
        self.retry = Some(Retry { report, delay, at });
    }

    async fn try_again(&mut self) {
        let Some(Retry { report, delay, .. }) = self.retry.take() else { return };
        match self.publish(Delta::default()).await {
            Ok(epoch) => {
                tracing::warn!(corpus = %self.corpus, epoch, "what could not be published is");
                report.into_iter().for_each(|(report, commits)| report.tell(commits, epoch));
            }
            Err(error) => self.failed(report, (delay * 2).min(RETRY.1), &error),
        }
    }

    /// What could not be published before is, with something else.
    fn settle(&mut self, epoch: u64) {
        let settled = self.retry.take().and_then(|retry| retry.report);
        settled.into_iter().for_each(|(report, commits)| report.tell(commits, epoch));
    }

    /// Applies net changes and publishes the epoch that has them. After an error nothing is
    /// published; the next time, indexes compare all chunks.
    async fn publish(&mut self, delta: Delta) -> Result<u64, IndexError> {
        let chunks = self.feeds.entry(self.active).or_default();
        let delta = if self.whole { chunks.whole() } else { delta };
        self.whole = true;
        for slot in &mut self.slots {
            let begun = Instant::now();
            slot.apply(&delta, chunks, &self.preparing).await?;
            tracing::debug!(corpus = %self.corpus, index = %slot.key, took = ?begun.elapsed(), "applied");
        }
        let epoch = self.epochs.publish(&self.corpus, view(chunks, self.slots.iter()))?;
        self.preparing.progress.publications.fetch_add(1, Ordering::Relaxed);
        self.whole = false;
        Ok(epoch)
    }

    /// Keeps an index in shape. Nothing is published meanwhile, and turns go on.
    async fn maintain(&mut self, upkeep: MaintenanceRequest, others_wait: bool) {
        let MaintenanceRequest { key, limits, within, yields, reply } = upkeep;
        let slot = self.slots.iter_mut().find(|slot| slot.key == key);
        // An index of which nothing is published yet does not know what is in use.
        let Some(slot) = slot.filter(|_| !(self.whole || yields && others_wait)) else {
            let _ = reply.send(None);
            return;
        };
        let failed = |source| MaintenanceError::Index { corpus: self.corpus.clone(), index: key.clone(), source };
        let index = &mut slot.index;
        let work = async {
            let done = caught_async(|| index.maintain(limits)).await;
            done.map_err(IndexError::from).flatten()
        };
        let done = match within {
            None => work.await.map_err(failed),
            Some(within) => match tokio::time::timeout(within, work).await {
                Ok(done) => done.map_err(failed),
                Err(_) => {
                    let (corpus, index) = (self.corpus.clone(), key.clone());
                    Err(MaintenanceError::TooLong { corpus, index, seconds: within.as_secs() })
                }
            },
        };
        // After a panic it may be anything: the next change names all there is.
        self.whole |= matches!(&done, Err(MaintenanceError::Index { source: IndexError::Panicked(_), .. }));
        if let Some(version) = slot.index.version()
            && let Err(error) = self.epochs.note_version(&self.corpus, &key, version)
        {
            tracing::warn!(corpus = %self.corpus, %error, "a restart will find another version than is noted");
        }
        let _ = reply.send(Some(done));
    }

    async fn switch(
        &mut self,
        feed: Option<u64>,
        added: Vec<AddedIndex>,
        reply: oneshot::Sender<Result<CorpusSnapshot, IndexError>>,
        published: oneshot::Receiver<bool>,
    ) {
        let target = feed.unwrap_or(self.active);
        let mut joining = Vec::new();
        let view = self.prepare_switch(target, added, &mut joining).await;
        let good = view.is_ok();
        let heard = reply.send(view).is_ok();
        if good && heard && published.await.unwrap_or(false) {
            self.slots.append(&mut joining);
            if target != self.active {
                self.feeds.remove(&self.active);
                self.active = target;
            }
            self.settle(self.epochs.current().epoch);
        } else if target != self.active || !good {
            // The indexes have moved, and are to come back.
            if target != self.active {
                self.feeds.remove(&target);
            }
            self.whole = true;
            match self.publish(Delta::default()).await {
                Ok(epoch) => self.settle(epoch),
                Err(error) => self.failed(None, RETRY.0, &error),
            }
        }
    }

    async fn prepare_switch(
        &mut self,
        target: u64,
        added: Vec<AddedIndex>,
        joining: &mut Vec<Slot>,
    ) -> Result<CorpusSnapshot, IndexError> {
        let (Some(chunks), Some(before)) = (self.feeds.get(&target), self.feeds.get(&self.active)) else {
            return Err(IndexError::Feed);
        };
        let delta = if self.whole { chunks.whole() } else { difference(before, chunks) };
        let nothing = !delta.whole && delta.added.is_empty() && delta.removed.is_empty();
        self.whole = true;
        for slot in &mut self.slots {
            if slot.reader.is_none() || !nothing {
                slot.apply(&delta, chunks, &self.preparing).await?;
            }
        }
        self.whole = false;
        for AddedIndex { key, index, filled } in added {
            let joined = index.preparation();
            let mut slot = Slot::new(key, index, joined);
            let filled = Chunks::of(filled);
            let delta = if filled.is_empty() { chunks.whole() } else { difference(&filled, chunks) };
            slot.apply(&delta, chunks, &self.preparing).await?;
            joining.push(slot);
        }
        Ok(view(chunks, self.slots.iter().chain(&*joining)))
    }
}

/// What readers of an epoch get of these chunks.
fn view<'a>(chunks: &Chunks, slots: impl Iterator<Item = &'a Slot>) -> CorpusSnapshot {
    let (documents, chunks) = chunks.counts();
    let mut view = CorpusSnapshot { documents, chunks, ..CorpusSnapshot::default() };
    for slot in slots {
        view.indexes.extend(slot.reader.clone().map(|reader| (slot.key.clone(), reader)));
        view.versions.extend(slot.index.version().map(|version| (slot.key.clone(), version)));
    }
    view
}

#[cfg(test)]
mod tests;
