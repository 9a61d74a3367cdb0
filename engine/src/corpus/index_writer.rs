//! The index writer of a corpus: one task that owns its indexes and applies changes one after another.
//!
//! Chunks come from a *feed*: the dataflow of a source and a chunker. One feed is active; its changes
//! are applied and published. Another feed may be staged: its chunks are only collected, until a
//! switch applies the difference between the two feeds in one epoch. So when the chunker of a corpus
//! changes, the old chunks are served until all new ones exist, and chunks that both feeds have
//! are not indexed again.

mod maintain;
mod publish;
mod stored;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::chunks::{Changes, Chunks, Numbers};
use super::prepare::Preparing;
use super::slot::Slot;
use super::stored::Stored;
use super::{CorpusState, Parts, RETRY, Switched};
use crate::cluster::{Prepared, Target};
use crate::component::{CorpusSnapshot, Index, IndexError, Maintained, MaintenanceLimits, PassageStore, Passages};
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::maintenance::MaintenanceError;
use crate::panics::caught_async;
use crate::publish::{Epochs, Lacking};
use crate::state::PASSAGES;
use crate::wake::WakeSlot;

/// After they could not be written, passages are not stored for this long.
const PAUSE: Duration = Duration::from_secs(60);

/// Reports a feed's progress.
#[derive(Clone)]
pub(super) struct Report {
    pub feed: u64,
    pub state: Arc<watch::Sender<CorpusState>>,
    pub wake: WakeSlot,
}

impl Report {
    /// Reports the number of published commits.
    fn tell(&self, commits: u64, epoch: u64) {
        self.state.send_replace(CorpusState::Ready { commits, epoch });
        self.wake.wake();
    }
}

/// A filled index to be added to a corpus.
pub struct AddedIndex {
    /// Its key.
    pub key: String,
    /// The index.
    pub index: Box<dyn Index>,
    /// The chunks that it was filled with.
    pub filled: Vec<Arc<Chunk>>,
}

/// A job for the index writer.
pub(super) enum Job {
    /// Apply a feed's net changes; the last field is the number of commits after them.
    Changes(Report, Changes, u64),
    /// Apply net changes for the first process.
    Prepare(Report, Changes, Target),
    /// Reply with the chunks of the active feed.
    Chunks(oneshot::Sender<Vec<Arc<Chunk>>>),
    /// Reply with the view after a switch, then wait until `published` tells whether it takes effect.
    Switch {
        feed: Option<u64>,
        added: Vec<AddedIndex>,
        reply: oneshot::Sender<Result<Switched, IndexError>>,
        published: oneshot::Receiver<bool>,
        /// The version under which the first process of a cluster keeps the view.
        version: Option<u64>,
    },
    /// Reply when all earlier jobs are done.
    Barrier(oneshot::Sender<()>),
    /// Serve passages that an earlier run has published, before the first changes.
    Restore(Restored),
    /// Start collecting a feed's chunks, with its definition of the corpus.
    Stage(u64, Arc<str>),
    /// Drop a feed's chunks.
    Forget(u64),
    /// Drop all indexes except these.
    Keep(BTreeSet<String>),
    /// Publish the passages of contents that were prepared after their commit.
    Found,
    /// Publish what another process of a cluster has found.
    Again,
    /// Store prepared data that is not published.
    Save,
    /// Maintain an index.
    Maintain(MaintenanceRequest),
}

/// The version under which a process keeps the part that it restores for the first process, and the answer.
pub(crate) struct RestoredPart {
    /// The version.
    pub version: u64,
    /// The version of the store that has the passages.
    pub stored: u64,
    /// Gets what is restored.
    pub reply: oneshot::Sender<Result<Prepared, String>>,
}

/// Serves stored passages; in another process than the first of a cluster, as a part for the first one.
pub(crate) type Restore = Box<dyn FnOnce(Option<RestoredPart>) + Send>;

/// Passages that an earlier run has published.
pub(super) struct Restored {
    pub feed: u64,
    pub passages: Keyed<Arc<Chunk>>,
    /// The versions that the stores of the other processes of a cluster must have.
    pub others: Vec<u64>,
    pub part: Option<RestoredPart>,
    pub state: Arc<watch::Sender<CorpusState>>,
    pub stored: Arc<Stored>,
    /// The source, which waits.
    pub source: WakeSlot,
}

/// A request to maintain an index.
pub(super) struct MaintenanceRequest {
    pub key: String,
    pub limits: MaintenanceLimits,
    /// Time limit.
    pub within: Option<Duration>,
    /// Whether to postpone it while another job waits.
    pub yields: bool,
    /// `None` if it was postponed.
    pub reply: oneshot::Sender<Option<Result<Maintained, MaintenanceError>>>,
}

/// The index writer of one corpus.
pub(super) struct IndexWriter {
    corpus: Arc<str>,
    slots: Vec<Slot>,
    /// The feed whose chunks are indexed.
    active: u64,
    feeds: BTreeMap<u64, Chunks>,
    /// Numbers of the active feed's chunks.
    numbers: Numbers,
    /// The passages as they were last published.
    passages: Arc<Passages>,
    /// The next delta must contain all chunks: nothing has been applied yet, or an apply failed.
    whole: bool,
    epochs: Arc<Epochs>,
    parts: Parts,
    /// The number of commits whose changes each feed has.
    commits: BTreeMap<u64, u64>,
    preparing: Preparing,
    retry: Option<Retry>,
    /// Stored passages of the active feed that are not compared with the source yet.
    stored: Option<Arc<Stored>>,
    /// Keeps what is published, for the next start.
    keeper: Option<Box<dyn PassageStore>>,
    /// When it could not be written.
    keeping_failed: Option<Instant>,
    /// The definitions of the corpus of staged feeds.
    definitions: BTreeMap<u64, Arc<str>>,
    /// The versions under which the first process of a cluster has the passages that are published here.
    kept_as: Vec<u64>,
    /// Number of contents that were missing here when the first process of a cluster asked.
    told: u64,
}

/// A failed publication that will be retried.
struct Retry {
    /// Where to report success, and the number of commits to report; `None` if it adds no commits.
    report: Option<(Report, u64)>,
    delay: Duration,
    at: tokio::time::Instant,
}

impl IndexWriter {
    /// Creates an index writer for newly opened indexes and their first feed.
    pub fn new(
        corpus: Arc<str>,
        active: u64,
        indexes: Vec<(String, Box<dyn Index>)>,
        epochs: Arc<Epochs>,
        parts: Parts,
        preparing: Preparing,
    ) -> Self {
        let slot = |(key, index)| Slot::new(key, index, None);
        let slots = indexes.into_iter().map(slot).collect();
        let feeds = BTreeMap::from([(active, Chunks::default())]);
        let (numbers, passages) = (Numbers::default(), Arc::default());
        let (whole, commits, retry) = (true, BTreeMap::new(), None);
        let (stored, keeper, keeping_failed, definitions) = (None, None, None, BTreeMap::new());
        Self {
            corpus,
            slots,
            active,
            feeds,
            numbers,
            passages,
            whole,
            epochs,
            parts,
            commits,
            preparing,
            retry,
            stored,
            keeper,
            keeping_failed,
            definitions,
            kept_as: Vec::new(),
            told: 0,
        }
    }

    /// The same, with what keeps the published passages.
    pub fn keeping(mut self, keeper: Option<Box<dyn PassageStore>>) -> Self {
        self.keeper = keeper;
        self
    }

    /// Runs jobs until all senders are dropped.
    pub async fn run(mut self, mut todo: mpsc::UnboundedReceiver<Job>) {
        loop {
            // A pending retry does not block other jobs: a reload may fix the failure.
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
            // Panics of components are caught where they are called. Any other panic must not end this
            // task, which would silently stop all publication.
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
            self.maintain_stored().await;
            self.tell_missing();
        }
    }

    /// Tells the first process of a cluster that what is missing here has changed since it asked.
    fn tell_missing(&mut self) {
        let Parts::Served(parts) = &self.parts else { return };
        let missing = self.preparing.progress.lacking_here().missing;
        if committed(&self.commits, self.active).is_some() && missing < self.told {
            self.told = missing;
            parts.found(&self.corpus);
        }
    }

    /// Stores prepared data that is not published. Preparing a large corpus takes long, and nothing of it is published
    /// before the end.
    async fn save(&mut self) {
        for slot in &mut self.slots {
            let saved = caught_async(|| slot.index.save()).await.map_err(IndexError::from).flatten();
            if let Err(error) = saved {
                tracing::warn!(corpus = %self.corpus, index = %slot.key, %error, "cannot store prepared data");
                // A panic may have left the index in any state.
                self.whole |= matches!(error, IndexError::Panicked(_));
            }
            note(&self.epochs, &self.corpus, slot);
        }
    }

    /// Runs a job; without one, retries the failed publication.
    async fn work(&mut self, job: Option<Job>, others_wait: bool) {
        let Some(job) = job else { return self.try_again().await };
        match job {
            Job::Changes(report, changes, commits) => self.changes(report, changes, commits).await,
            Job::Prepare(report, changes, target) => self.prepare(report, changes, target).await,
            Job::Chunks(reply) => {
                let chunks = self.feeds.entry(self.active).or_default();
                let _ = reply.send(chunks.all());
            }
            Job::Switch { feed, added, reply, published, version } => {
                self.switch(feed, added, reply, published, version).await;
            }
            Job::Barrier(reply) => drop(reply.send(())),
            Job::Restore(restored) => self.restore(restored).await,
            Job::Stage(feed, definition) => {
                self.feeds.entry(feed).or_default();
                self.definitions.insert(feed, definition);
            }
            // The chunks of the active feed are indexed and must stay.
            Job::Forget(feed) if feed == self.active => {}
            Job::Forget(feed) => self.forget(feed),
            Job::Keep(keys) => {
                let gone: Vec<Slot> = self.slots.extract_if(.., |slot| !keys.contains(&slot.key)).collect();
                let gone = gone.iter().filter_map(|slot| slot.index.preparation());
                gone.for_each(|preparation| self.preparing.forget_index(&preparation));
                self.epochs.trim(&self.corpus, &keys);
                match &self.parts {
                    Parts::Whole => {}
                    Parts::Leading(lead) => lead.trim(&self.epochs, &keys),
                    Parts::Served(parts) => parts.trim(&self.corpus, &keys),
                }
            }
            Job::Found => {
                self.whole = true;
                match &self.parts {
                    // It decides what an epoch has.
                    Parts::Served(parts) => parts.found(&self.corpus),
                    Parts::Whole | Parts::Leading(_) => self.publish_again().await,
                }
            }
            Job::Again => self.publish_again().await,
            Job::Save => self.save().await,
            Job::Maintain(upkeep) => self.maintain(upkeep, others_wait).await,
        }
    }

    fn forget(&mut self, feed: u64) {
        self.preparing.forget_feed(feed);
        self.feeds.remove(&feed);
        self.commits.remove(&feed);
        self.definitions.remove(&feed);
    }

    /// Applies changes for the first process, which tries again after an error. Those of a staged feed are only
    /// collected.
    async fn prepare(&mut self, report: Report, changes: Changes, Target { commits, is_read, version, reply }: Target) {
        if is_read && self.feeds.contains_key(&report.feed) {
            self.commits.insert(report.feed, commits);
        }
        // Stored passages are compared with all documents of the source.
        let compared = if is_read { self.compare(&report, changes) } else { Err(changes) };
        let (delta, changed) = match compared {
            Ok(delta) => {
                let changed = self.whole || !delta.is_empty();
                (Some(delta), changed)
            }
            Err(changes) => {
                let changed = self.whole || !changes.is_empty();
                let delta = self.feeds.get_mut(&report.feed).map(|chunks| chunks.absorb(changes));
                let delta = delta.filter(|_| report.feed == self.active);
                delta.iter().for_each(|delta| self.numbers.assign(delta));
                (delta, changed)
            }
        };
        if let Some(delta) = delta.filter(|_| changed)
            && let Err(error) = self.publish(delta).await
        {
            self.preparing.progress.failures.fetch_add(1, Ordering::Relaxed);
            tracing::error!(corpus = %self.corpus, %error, "cannot prepare the epoch");
            let _ = reply.send(Err(error.to_string()));
            return;
        }
        self.forget_gone();
        let (prepared, epoch) = self.kept(version, changed && report.feed == self.active);
        let prepared = Prepared { changed, ..prepared };
        if is_read {
            report.tell(commits, epoch);
        }
        let _ = reply.send(Ok(prepared));
    }

    /// Keeps the published part for the first process under a version. Also returns its epoch.
    fn kept(&mut self, version: Option<u64>, changed: bool) -> (Prepared, u64) {
        if changed {
            self.kept_as.clear();
        }
        let current = self.epochs.current();
        let view = current.corpora.get(&self.corpus).cloned().unwrap_or_default();
        let (documents, chunks, stored) = (view.documents, view.chunks, self.stored_version());
        let view_missing = view.missing.clone();
        if let (Parts::Served(served), Some(version)) = (&self.parts, version) {
            served.keep(&self.corpus, version, view);
            self.kept_as.push(version);
            // The others are released.
            self.kept_as.retain(|version| served.version(&self.corpus, *version).is_some());
        }
        let lacking = Lacking { indexes: view_missing, ..self.preparing.progress.lacking_here() };
        self.told = lacking.missing;
        (Prepared { documents, chunks, changed, stored, lacking }, current.epoch)
    }

    /// Forgets what waits and is in no feed any more.
    fn forget_gone(&self) {
        self.preparing.forget_gone(&self.feeds, &self.commits);
    }

    async fn changes(&mut self, report: Report, changes: Changes, commits: u64) {
        if self.feeds.contains_key(&report.feed) {
            self.commits.insert(report.feed, commits);
        }
        let changes = match self.compare(&report, changes) {
            // In a cluster, other parts may have changed.
            Ok(delta) if delta.is_empty() && !self.whole && !matches!(self.parts, Parts::Leading(_)) => {
                self.forget_gone();
                return report.tell(commits, self.epochs.current().epoch);
            }
            Ok(delta) => return self.publish_changes(report, delta, commits).await,
            Err(changes) => changes,
        };
        if changes.is_empty() && !self.whole && !matches!(self.parts, Parts::Leading(_)) {
            // The commits change no passage, so the current epoch has them.
            self.forget_gone();
            report.tell(commits, self.epochs.current().epoch);
            return;
        }
        let delta = self.feeds.get_mut(&report.feed).map(|chunks| chunks.absorb(changes));
        let Some(delta) = delta.filter(|_| report.feed == self.active) else {
            report.tell(commits, self.epochs.current().epoch);
            return;
        };
        self.numbers.assign(&delta);
        self.publish_changes(report, delta, commits).await;
    }
}

/// The number of commits whose changes a feed has; `None` until its source is read.
fn committed(commits: &BTreeMap<u64, u64>, feed: u64) -> Option<u64> {
    commits.get(&feed).copied()
}

/// Records the version on disk of a published index.
fn note(epochs: &Epochs, corpus: &Arc<str>, slot: &Slot) {
    let version = slot.reader.as_ref().and_then(|_| slot.index.version());
    if let Some(Err(error)) = version.map(|version| epochs.note_version(corpus, &slot.key, version)) {
        tracing::warn!(%corpus, %error, "cannot record the index version; a restart finds another");
    }
}

fn view<'a>(
    chunks: &Chunks,
    preparing: &Preparing,
    passages: Arc<Passages>,
    slots: impl Iterator<Item = &'a Slot>,
    stored: Option<u64>,
) -> CorpusSnapshot {
    let all = chunks;
    let (documents, chunks) = all.counts();
    let mut view = CorpusSnapshot { documents, chunks, passages, ..CorpusSnapshot::default() };
    for slot in slots {
        let missing = slot.index.preparation().map_or(0, |preparation| preparing.count_waiting(&preparation, all));
        view.missing.extend((missing > 0).then(|| (slot.key.clone(), missing)));
        view.indexes.extend(slot.reader.clone().map(|reader| (slot.key.clone(), reader)));
        view.versions.extend(slot.index.version().map(|version| (slot.key.clone(), version)));
    }
    view.versions.extend(stored.map(|version| (PASSAGES.to_owned(), version)));
    view
}

#[cfg(test)]
mod tests;
