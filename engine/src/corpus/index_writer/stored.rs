//! What an earlier run has published: it is served until the source is read, and logged for the next start.

use std::sync::Arc;
use std::time::Instant;

use super::{IndexWriter, PAUSE, Report, Restored, RestoredPart};
use crate::component::{Delta, IndexError};
use crate::corpus::chunks::{Changes, Chunks, Numbers};
use crate::corpus::passage_log::PassageLog;
use crate::corpus::{CorpusState, Parts};
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::memory::give_back_soon;
use crate::panics::caught_async;
use crate::state::PASSAGE_LOG;

impl IndexWriter {
    /// Writes the log of passages anew, if it lacks what is published or has much that is not needed.
    pub(super) async fn renew_log(&mut self) {
        let is_due = |log: &PassageLog| log.version().is_none() || log.is_wasteful();
        // Without commits and stored passages, the source is being read for the first time.
        let has_all = self.commits.contains_key(&self.active) || self.stored.is_some();
        let may = has_all && !self.whole && self.log_failed.is_none_or(|failed| failed.elapsed() >= PAUSE);
        let Some(mut log) = self.log.take_if(|log| may && is_due(log)) else { return };
        let all = self.feeds.get(&self.active).map(Chunks::all).unwrap_or_default();
        let written = tokio::task::spawn_blocking(move || {
            let written = log.rewrite(&all);
            (log, written)
        });
        // Without its task, the log is lost: the next start reads the source first.
        let Ok((log, written)) = written.await else { return };
        let version = log.version();
        self.log = Some(log);
        self.log_failed = written.as_ref().err().map(|_| Instant::now());
        let noted = version.map_or(Ok(()), |version| self.epochs.note_version(&self.corpus, PASSAGE_LOG, version));
        if let (Parts::Served(served), Some(version)) = (&self.parts, version) {
            served.renewed(&self.corpus, &self.kept_as, version);
        }
        for error in [written.err().map(|error| error.to_string()), noted.err().map(|error| error.to_string())] {
            let Some(error) = error else { continue };
            tracing::warn!(corpus = %self.corpus, error,
                "cannot write the log of passages; the next start answers when it has read the source");
        }
    }

    /// Publishes what an earlier run has published. The changes of the feed are compared with it.
    pub(super) async fn restore(&mut self, restored: Restored) {
        let Restored { feed, passages, others, part, state, stored, source } = restored;
        let failed = |part: Option<RestoredPart>, reason: String| {
            part.into_iter().for_each(|part| drop(part.reply.send(Err(reason.clone()))));
        };
        if feed != self.active || !self.whole {
            failed(part, "its source is read already".to_owned());
            return stored.serve(None, &source);
        }
        let begun = Instant::now();
        let passages = match &part {
            Some(part) => self.at(part.log, passages),
            None => Ok(passages),
        };
        let passages = match passages {
            Ok(passages) => passages,
            Err(error) => {
                failed(part, format!("its stored passages are not those of the epoch: {error}"));
                return stored.serve(None, &source);
            }
        };
        let chunks = Chunks::keyed(passages.clone());
        let whole = chunks.whole();
        self.numbers.assign(&whole);
        self.feeds.insert(feed, chunks);
        let published = caught_async(|| self.publish_from(whole, Some(others))).await;
        match published.map_err(IndexError::from).flatten() {
            Ok(epoch) => {
                tracing::info!(corpus = %self.corpus, epoch, took = ?begun.elapsed(),
                    "the stored passages are served; they are compared with the source");
                state.send_if_modified(|state| {
                    // A reload may have ended the feed.
                    let waits = *state == CorpusState::Loading;
                    if waits {
                        *state = CorpusState::Stored { epoch };
                    }
                    waits
                });
                self.stored = Some(stored.clone());
                stored.serve(Some(passages), &source);
                if let Some(RestoredPart { version, reply, .. }) = part {
                    let _ = reply.send(Ok(self.kept(Some(version), true).0));
                }
            }
            Err(error) => {
                tracing::warn!(corpus = %self.corpus, %error, "cannot serve the stored passages");
                failed(part, error.to_string());
                self.feeds.insert(feed, Chunks::default());
                self.numbers = Numbers::default();
                self.whole = true;
                stored.serve(None, &source);
            }
        }
    }

    /// The passages at a version of the log. This process may have prepared more than the first one has published.
    fn at(&mut self, version: u64, newest: Keyed<Arc<Chunk>>) -> std::io::Result<Keyed<Arc<Chunk>>> {
        match &mut self.log {
            Some(log) if log.version() == Some(version) => Ok(newest),
            Some(log) => tokio::task::block_in_place(|| {
                drop(newest);
                log.read(version)
            }),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Compares the first changes of a feed with the stored passages, if there are any.
    pub(super) fn compare(&mut self, report: &Report, changes: Changes) -> Result<Delta, Changes> {
        let Some(stored) = self.stored.take_if(|_| report.feed == self.active) else { return Err(changes) };
        let Some(chunks) = self.feeds.get_mut(&report.feed) else { return Err(changes) };
        let (numbers, slots) = (&mut self.numbers, self.slots.iter_mut());
        let (delta, has_all) = tokio::task::block_in_place(|| {
            let delta = chunks.become_those(changes, numbers);
            let mut has_all = true;
            for slot in slots {
                has_all &= slot.index.confirm(&delta);
            }
            (delta, has_all)
        });
        self.whole |= !has_all;
        stored.forget();
        give_back_soon();
        tracing::info!(corpus = %self.corpus, added = delta.added.len(), removed = delta.removed.len(),
            "the stored passages are compared with the source");
        Ok(delta)
    }
}
