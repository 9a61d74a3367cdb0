//! The operator that collects complete and prepared changes and sends them to the index writer.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::mpsc::WeakUnboundedSender;

use differential_dataflow::VecCollection;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::probe;
use timely::dataflow::{ProbeHandle, Scope, StreamVec};
use timely::progress::Antichain;

use super::chunks::Changes;
use super::index_writer::{Job, Report};
use super::{CorpusShared, CorpusState, FeedProgress};
use crate::cluster::Targets;
use crate::document::Chunk;

/// Maximum bytes of changes that wait unconsolidated.
const MOST_PENDING: usize = 16 << 20;

/// Approximate bytes of a change.
fn bytes_of((chunk, ..): &(Arc<Chunk>, u64, isize)) -> usize {
    256 + chunk.text.len()
}

/// The changes of a part of a corpus that the first process has not asked for. They outlive the dataflow, which ends with
/// its source.
struct Part {
    changes: Vec<(Arc<Chunk>, u64, isize)>,
    targets: Arc<Targets>,
    jobs: WeakUnboundedSender<Job>,
    report: Report,
}

impl Drop for Part {
    fn drop(&mut self) {
        let changes = Mutex::new(before(&mut self.changes, u64::MAX));
        let (jobs, report) = (self.jobs.clone(), self.report.clone());
        self.targets.end(Box::new(move |target| {
            // Before the source is read, nothing has changed.
            let changes = if target.is_read { std::mem::take(&mut *changes.lock()) } else { Changes::new() };
            if let Some(jobs) = jobs.upgrade() {
                let _ = jobs.send(Job::Prepare(report.clone(), changes, target));
            }
        }));
    }
}

/// Collects complete and prepared changes and sends them to the index writer, one delta at a time.
pub(super) fn publish<'s>(
    scope: Scope<'s, u64>,
    chunks: VecCollection<'s, u64, Arc<Chunk>>,
    prepared: StreamVec<'s, u64, ()>,
    shared: &CorpusShared,
    feed: Rc<FeedProgress>,
) -> ProbeHandle<u64> {
    let mut builder = OperatorBuilder::new(format!("Publish {:?}", shared.name), scope);
    let here = shared.shape.first_worker();
    let mut chunks = builder.new_input(chunks.inner, Exchange::new(move |_: &(Arc<Chunk>, u64, isize)| here as u64));
    let mut prepared = builder.new_input(prepared, Exchange::new(move |_: &()| here as u64));
    let (_output, stream) = builder.new_output::<Vec<()>>();
    let address = builder.operator_info().address.to_vec();
    let first = scope.index() == here;
    if first {
        shared.publish_wake.set(scope.worker().sync_activator_for(address));
    }
    let (progress, source_wake) = (shared.progress.clone(), shared.source_wake.clone());
    let (jobs, state) = (shared.jobs.clone(), shared.state.subscribe());
    let (shape, targets) = (shared.shape, shared.targets.clone());
    let report = Report { feed: shared.feed, state: shared.state.clone(), wake: shared.publish_wake.clone() };
    builder.build(move |mut capabilities| {
        let mut pending: Vec<(Arc<Chunk>, u64, isize)> = Vec::new();
        let mut part = (first && !shape.is_first()).then(|| Part {
            changes: Vec::new(),
            targets: targets.clone(),
            jobs: jobs.downgrade(),
            report: report.clone(),
        });
        let (mut bytes, mut bound) = (0, MOST_PENDING);
        // Held at the first unpublished commit, so that the probe shows which commits are published.
        let mut capability = if first && shape.is_first() { capabilities.pop() } else { None };
        capabilities.clear();
        let mut sent = None;
        move |frontiers| {
            chunks.for_each_stamp(|_, batches| {
                for change in batches.flat_map(|batch| batch.drain(..)) {
                    bytes += bytes_of(&change);
                    pending.push(change);
                }
            });
            prepared.for_each_stamp(|_, _| {});
            let complete = complete_until(&frontiers[0].frontier().to_owned(), &frontiers[1].frontier().to_owned());
            if let Some(part) = &mut part {
                progress.passed.store(complete, Ordering::Relaxed);
                part.changes.append(&mut pending);
                // The first process decides what an epoch has.
                while let Some(target) = targets.take(complete) {
                    let changes = before(&mut part.changes, target.commits);
                    let _ = jobs.send(Job::Prepare(report.clone(), changes, target));
                }
                return;
            }
            let Some(held) = &mut capability else { return };
            progress.passed.store(complete, Ordering::Relaxed);
            if feed.backlog.borrow_mut().passed(complete) {
                source_wake.wake();
            }
            let published = match &*state.borrow() {
                CorpusState::Ready { commits, .. } => Some(*commits),
                CorpusState::Loading | CorpusState::Stored { .. } => None,
                CorpusState::Failed(_) => {
                    capability = None;
                    return;
                }
            };
            if let Some(published) = published
                && published >= *held.time()
                && published < u64::MAX
            {
                held.downgrade(&published);
            }
            // The first epoch contains all initial documents. The source operator is on this worker and
            // sets `ready_at` before it advances time.
            let Some(ready_at) = feed.ready_at.get() else {
                if complete == u64::MAX {
                    capability = None;
                }
                return;
            };
            if bytes > bound {
                // Nothing is published for long: changes that undo each other must not pile up.
                pending.iter_mut().filter(|(_, time, _)| *time < complete).for_each(|(_, time, _)| *time = 0);
                differential_dataflow::consolidation::consolidate_updates(&mut pending);
                bytes = pending.iter().map(bytes_of).sum();
                bound = MOST_PENDING.max(2 * bytes);
            }
            if sent == published && complete >= ready_at && sent.is_none_or(|sent| complete > sent) {
                let changes = before(&mut pending, complete);
                bytes = pending.iter().map(bytes_of).sum();
                bound = MOST_PENDING.max(2 * bytes);
                tracing::debug!(commits = complete, changes = changes.len(), "complete");
                sent = Some(complete);
                let _ = jobs.send(Job::Changes(report.clone(), changes, complete));
            }
            if published == Some(u64::MAX) {
                capability = None;
            }
        }
    });
    let probe = ProbeHandle::new();
    probe::Probe::probe_with(stream, &probe);
    probe
}

/// Takes the net changes before a time.
fn before(pending: &mut Vec<(Arc<Chunk>, u64, isize)>, time: u64) -> Changes {
    let (changes, rest): (Vec<_>, Vec<_>) = std::mem::take(pending).into_iter().partition(|(_, at, _)| *at < time);
    *pending = rest;
    let mut changes: Changes = changes.into_iter().map(|(chunk, _, diff)| (chunk, diff)).collect();
    differential_dataflow::consolidation::consolidate(&mut changes);
    changes
}

/// Times before this are complete on both inputs; `u64::MAX` when all are.
fn complete_until(chunks: &Antichain<u64>, prepared: &Antichain<u64>) -> u64 {
    let least = |frontier: &Antichain<u64>| frontier.elements().first().copied().unwrap_or(u64::MAX);
    least(chunks).min(least(prepared))
}
