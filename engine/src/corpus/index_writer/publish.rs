//! Publishes the changes of a corpus, and tries again when that fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{IndexWriter, Report, Retry, committed, view};
use crate::component::{Delta, IndexError, Passages};
use crate::corpus::chunks::Numbers;
use crate::corpus::{CorpusState, Parts, RETRY};
use crate::memory::{MANY, give_back_soon};

impl IndexWriter {
    pub(super) async fn publish_changes(&mut self, report: Report, delta: Delta, commits: u64) {
        match self.publish(delta).await {
            Ok(epoch) => {
                tracing::debug!(corpus = %self.corpus, commits, epoch, "published");
                self.settle(epoch);
                report.tell(commits, epoch);
            }
            Err(error) => self.failed(Some((report, commits)), RETRY.0, &error),
        }
    }

    /// Schedules a retry of a failed publication; the failure of the first publication is final.
    pub(super) fn failed(&mut self, report: Option<(Report, u64)>, delay: Duration, error: &IndexError) {
        if matches!(&self.parts, Parts::Leading(lead) if lead.is_ending()) {
            // The next start publishes it.
            tracing::debug!(corpus = %self.corpus, %error, "not published: the cluster is ending");
            return;
        }
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
            "cannot publish the epoch; the previous one is still served");
        let at = tokio::time::Instant::now() + delay;
        let report = report.or_else(|| self.retry.take()?.report);
        self.retry = Some(Retry { report, delay, at });
    }

    /// Publishes what was added after its commit.
    pub(super) async fn publish_again(&mut self) {
        // Before the first changes there is nothing to publish, and they will have it.
        if committed(&self.commits, self.active).is_some() {
            self.try_again().await;
        }
    }

    pub(super) async fn try_again(&mut self) {
        let has_failed = self.retry.is_some();
        let (report, delay) = self.retry.take().map_or((None, RETRY.0), |retry| (retry.report, retry.delay));
        match self.publish(Delta::default()).await {
            Ok(epoch) => {
                match has_failed {
                    true => tracing::warn!(corpus = %self.corpus, epoch, "published after earlier failures"),
                    false => tracing::debug!(corpus = %self.corpus, epoch, "published what was missing"),
                }
                report.into_iter().for_each(|(report, commits)| report.tell(commits, epoch));
            }
            Err(error) => self.failed(report, (delay * 2).min(RETRY.1), &error),
        }
    }

    /// Clears a pending retry, whose changes are now published, and reports its commits.
    pub(super) fn settle(&mut self, epoch: u64) {
        let settled = self.retry.take().and_then(|retry| retry.report);
        settled.into_iter().for_each(|(report, commits)| report.tell(commits, epoch));
    }

    /// Applies a change to the indexes.
    async fn apply(&mut self, delta: &Delta, is_stored: bool) -> Result<(), IndexError> {
        let chunks = self.feeds.entry(self.active).or_default();
        for slot in &mut self.slots {
            let begun = Instant::now();
            match is_stored {
                true => slot.restore(delta).await?,
                false => slot.apply(delta, chunks, &self.preparing).await?,
            }
            tracing::debug!(corpus = %self.corpus, index = %slot.key, took = ?begun.elapsed(), "applied");
        }
        Ok(())
    }

    /// Applies net changes and publishes them in a new epoch. After an error nothing is published, and
    /// the next delta contains all chunks.
    pub(super) async fn publish(&mut self, delta: Delta) -> Result<u64, IndexError> {
        self.publish_from(delta, None).await
    }

    /// The same. `stored`: an earlier run has published this, and it is stored. What the other processes of a cluster have
    /// stored must have these versions.
    pub(super) async fn publish_from(&mut self, delta: Delta, stored: Option<Vec<u64>>) -> Result<u64, IndexError> {
        let is_stored = stored.is_some();
        // Other processes do not have it any more.
        if self.epochs.has_left(&self.corpus) {
            return Ok(self.epochs.current().epoch);
        }
        self.feeds.entry(self.active).or_default();
        self.forget_gone();
        let chunks = self.feeds.entry(self.active).or_default();
        let delta = match self.whole {
            // The first change of a corpus.
            true if delta.added.len() == chunks.counts().1 => Delta { removed: Vec::new(), whole: true, ..delta },
            true => chunks.whole(),
            false => delta,
        };
        let passages = Arc::new(if delta.whole { Passages::of(chunks.each()) } else { self.passages.next(&delta) });
        if delta.whole {
            // A switch that failed may have taken some.
            self.numbers = Numbers::besides(chunks);
        }
        let changed = !delta.is_empty();
        // The other processes prepare their parts meanwhile.
        let others = match &mut self.parts {
            Parts::Leading(lead) => Some(match stored {
                Some(versions) => tokio::spawn(lead.restore(&versions)),
                None => tokio::spawn(lead.prepare(committed(&self.commits, self.active))),
            }),
            Parts::Whole | Parts::Served(_) => None,
        };
        self.whole = true;
        let keeping = self.keep(&delta);
        // In a cluster, a commit may change nothing here.
        let applied = if changed { self.apply(&delta, is_stored).await } else { Ok(()) };
        self.kept_passages(keeping).await;
        applied?;
        if let Some(keeper) = self.keeper.as_mut().filter(|_| delta.whole && !is_stored) {
            keeper.clear();
        }
        let stored = self.stored_version();
        let chunks = self.feeds.entry(self.active).or_default();
        let mut next = view(chunks, &self.preparing, passages.clone(), self.slots.iter(), stored);
        if let Some(others) = others {
            let prepared = others.await.unwrap_or_else(|_| Err(IndexError::Feed));
            let (others, others_changed) = prepared?;
            self.preparing.progress.elsewhere.lock().clone_from(&others.lacking);
            if !changed && !others_changed {
                // The current epoch has the same passages.
                self.whole = false;
                return Ok(self.epochs.current().epoch);
            }
            next.add(others);
        }
        let size = delta.added.len() + delta.removed.len();
        // What is stored is what the last epoch of the earlier run had.
        let known = match is_stored {
            true => Some(Delta::default()),
            false => Some(delta).filter(|delta| !delta.whole),
        };
        // What other processes change is not known here.
        let known = known.filter(|_| matches!(self.parts, Parts::Whole));
        let epoch = self.epochs.publish(&self.corpus, next, known.map(Arc::new))?;
        if let Parts::Leading(lead) = &self.parts {
            let (manifests, epochs) = (lead.manifests().clone(), self.epochs.clone());
            manifests.announce(&epochs).await;
            manifests.note_stored().await;
        }
        self.passages = passages;
        self.preparing.progress.publications.fetch_add(1, Ordering::Relaxed);
        if size >= MANY {
            give_back_soon();
        }
        self.whole = false;
        Ok(epoch)
    }
}
