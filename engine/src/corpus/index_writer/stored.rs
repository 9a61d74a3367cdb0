//! What an earlier run has published: it is served until the source is read, and kept for the next start.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{IndexWriter, PAUSE, Report, Restored, RestoredPart};
use crate::component::{Delta, IndexError, PassageStore, Upkeep};
use crate::corpus::chunks::{Changes, Chunks, Numbers};
use crate::corpus::{CorpusState, Parts};
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::memory::give_back_soon;
use crate::panics::caught_async;
use crate::state::PASSAGES;

/// A change that is being stored: what keeps the passages, and whether it could be written.
pub(super) type Keeping = JoinHandle<(Box<dyn PassageStore>, io::Result<()>)>;

impl IndexWriter {
    /// The version on disk that has the published passages.
    pub(super) fn stored_version(&self) -> Option<u64> {
        self.keeper.as_ref().and_then(|keeper| keeper.version())
    }

    /// Begins to store a change beside the indexes, if the passages before it are stored.
    pub(super) fn keep(&mut self, delta: &Delta) -> Option<Keeping> {
        let may = !delta.whole && !delta.is_empty();
        let mut keeper = self.keeper.take_if(|keeper| may && keeper.version().is_some())?;
        let delta = delta.clone();
        Some(tokio::spawn(async move {
            let appended = keeper.append(delta).await;
            (keeper, appended)
        }))
    }

    /// Waits until a change is stored.
    pub(super) async fn kept_passages(&mut self, keeping: Option<Keeping>) {
        // Without its task, there is no keeper any more: the next start reads the source first.
        let Some(Ok((keeper, appended))) = futures::future::OptionFuture::from(keeping).await else { return };
        self.keeper = Some(keeper);
        if let Err(error) = appended {
            tracing::warn!(corpus = %self.corpus, %error, "cannot store the published passages");
            self.keeping_failed = Some(Instant::now());
        }
    }

    /// Stores all passages if what is published is not stored, or if much that is not needed is. Merges what many small
    /// changes have left.
    pub(super) async fn maintain_stored(&mut self) {
        // Without commits and stored passages, the source is being read for the first time.
        let has_all = self.commits.contains_key(&self.active) || self.stored.is_some();
        let may = has_all && !self.whole && self.keeping_failed.is_none_or(|failed| failed.elapsed() >= PAUSE);
        let due = self.keeper.as_ref().filter(|_| may).and_then(|keeper| keeper.upkeep());
        let Some((mut keeper, due)) = self.keeper.take_if(|_| due.is_some()).zip(due) else { return };
        let all = (due == Upkeep::WriteAll).then(|| self.feeds.get(&self.active).map(Chunks::all).unwrap_or_default());
        // Much is computed meanwhile.
        let handle = Handle::current();
        let written = spawn_blocking(move || {
            let written = handle.block_on(keeper.maintain(all));
            (keeper, written)
        });
        let Ok((mut keeper, written)) = written.await else { return };
        self.keeping_failed = written.as_ref().err().map(|_| Instant::now());
        let version = keeper.version();
        let noted = version.map_or(Ok(()), |version| self.epochs.note_version(&self.corpus, PASSAGES, version));
        if noted.is_ok()
            && let Err(error) = keeper.forget_earlier().await
        {
            tracing::warn!(corpus = %self.corpus, %error, "cannot remove earlier versions of the stored passages");
        }
        self.keeper = Some(keeper);
        if let (Parts::Served(served), Some(version)) = (&self.parts, version) {
            served.renewed(&self.corpus, &self.kept_as, version);
        }
        for error in [written.err().map(|error| error.to_string()), noted.err().map(|error| error.to_string())] {
            let Some(error) = error else { continue };
            tracing::warn!(corpus = %self.corpus, error,
                "cannot store the published passages; the next start answers when it has read the source");
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
            Some(part) => self.at(part.stored, passages).await,
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

    /// The stored passages at a version. This process may have prepared more than the first one has published.
    async fn at(&mut self, version: u64, newest: Keyed<Arc<Chunk>>) -> io::Result<Keyed<Arc<Chunk>>> {
        match &mut self.keeper {
            Some(keeper) if keeper.version() == Some(version) => Ok(newest),
            Some(keeper) => {
                drop(newest);
                keeper.read(version).await
            }
            None => Err(io::ErrorKind::NotFound.into()),
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
