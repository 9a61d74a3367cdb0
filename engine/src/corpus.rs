//! The way of a document: source → documents → chunks → content hashes → prepared
//! contents → publication, as one differential dataflow a corpus.
//!
//! Time is the number of the source's commit. Chunking is stateless, and unchanged chunks of
//! an edited document cancel before anything is done with them. Contents are arranged by
//! hash, so that a content is prepared (embedded) when its first chunk appears and not
//! again. Publication waits until everything up to a commit is prepared; meanwhile turns
//! read the epoch before.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use differential_dataflow::{AsCollection, Hashable, VecCollection};
use parking_lot::Mutex;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, Exchange as _, probe};
use timely::dataflow::{ProbeHandle, Scope, StreamVec};
use timely::progress::Antichain;
use tokio::sync::{mpsc, watch};

use crate::component::{Chunker, IndexError, Prepare};
use crate::connector::CorpusEvent;
use crate::dead_letter::DeadLetters;
use crate::document::{Chunk, Content, Document};
use crate::publish::{CorpusProgress, Publisher};
use crate::wake::WakeSlot;

/// Documents handed to the dataflow before the worker looks after others.
const EVENTS_A_STEP: usize = 2_000;
/// Contents prepared by one call.
const CONTENTS_A_CALL: usize = 256;
/// A preparation or publication that fails is tried again after this, doubling up to the last.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Attempts at preparing contents before their chunks go without.
const PREPARE_ATTEMPTS: u32 = 4;

/// How far a corpus has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorpusState {
    /// What was there at the start is not published yet.
    Loading,
    /// Published; `commits` of the source are in.
    Ready {
        /// Source commits that are published.
        commits: u64,
        /// The epoch of the last of them.
        epoch: u64,
    },
    /// The first publication failed.
    Failed(String),
}

type Changes = Vec<(Arc<Chunk>, isize)>;
type PublishJob = (Changes, u64);

/// What all workers share of one corpus.
#[derive(Clone)]
pub struct CorpusShared {
    /// The corpus.
    pub name: Arc<str>,
    /// Counters.
    pub progress: Arc<CorpusProgress>,
    chunker: Arc<dyn Chunker>,
    preparations: Vec<Arc<dyn Prepare>>,
    handle: tokio::runtime::Handle,
    dead: DeadLetters,
    /// Taken by the worker that reads the source.
    events: Arc<Mutex<Option<Receiver<CorpusEvent>>>>,
    jobs: mpsc::UnboundedSender<PublishJob>,
    state: watch::Receiver<CorpusState>,
    source_wake: WakeSlot,
    publish_wake: WakeSlot,
}

impl CorpusShared {
    /// Starts the publishing task; `publisher`'s indexes tell what must be prepared.
    #[expect(clippy::too_many_arguments, reason = "what a corpus is made of, each used once")]
    pub fn start(
        name: Arc<str>,
        chunker: Arc<dyn Chunker>,
        preparations: Vec<Arc<dyn Prepare>>,
        publisher: Publisher,
        events: Receiver<CorpusEvent>,
        source_wake: WakeSlot,
        handle: tokio::runtime::Handle,
        dead: DeadLetters,
    ) -> Self {
        let (jobs, todo) = mpsc::unbounded_channel();
        let (report, state) = watch::channel(CorpusState::Loading);
        let publish_wake = WakeSlot::default();
        handle.spawn(publish_all(name.clone(), publisher, todo, report, publish_wake.clone()));
        Self {
            name,
            progress: Arc::default(),
            chunker,
            preparations,
            handle,
            dead,
            events: Arc::new(Mutex::new(Some(events))),
            jobs,
            state,
            source_wake,
            publish_wake,
        }
    }

    /// Tells how far the corpus has come.
    pub fn state(&self) -> watch::Receiver<CorpusState> {
        self.state.clone()
    }
}

/// Applies deltas in order; a delta that fails is tried again until it goes in.
async fn publish_all(
    name: Arc<str>,
    mut publisher: Publisher,
    mut todo: mpsc::UnboundedReceiver<PublishJob>,
    report: watch::Sender<CorpusState>,
    wake: WakeSlot,
) {
    while let Some((mut changes, commits)) = todo.recv().await {
        let mut delay = RETRY.0;
        loop {
            match publisher.publish(std::mem::take(&mut changes)).await {
                Ok(epoch) => {
                    tracing::debug!(corpus = %name, commits, epoch, "published");
                    report.send_replace(CorpusState::Ready { commits, epoch });
                    break;
                }
                Err(error) => {
                    tracing::error!(corpus = %name, %error, "the epoch could not be published; the one before goes on serving");
                    if *report.borrow() == CorpusState::Loading {
                        report.send_replace(CorpusState::Failed(error.to_string()));
                        return;
                    }
                }
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY.1);
        }
        wake.wake();
    }
}

/// Builds the dataflow on this worker; the probe passes a commit when it is published.
pub fn build(scope: Scope<'_, u64>, shared: &CorpusShared) -> ProbeHandle<u64> {
    let ready_at = Rc::new(Cell::new(None));
    let documents = source(scope, shared, ready_at.clone());
    let chunker = shared.chunker.clone();
    let chunks: VecCollection<'_, u64, Arc<Chunk>> = documents
        .exchange(|(document, _, _): &(Arc<Document>, u64, isize)| document.id.hashed())
        .as_collection()
        .flat_map(move |document| chunker.chunk(&document).into_iter().map(Arc::new))
        .consolidate();
    let contents = chunks.clone().map(|chunk| Content { hash: chunk.hash, chunk }).distinct();
    let prepared = prepare(scope, contents, shared);
    publish(scope, chunks, prepared, shared, ready_at)
}

/// Turns "this document is now that" into additions and retractions.
fn source<'s>(
    scope: Scope<'s, u64>,
    shared: &CorpusShared,
    ready_at: Rc<Cell<Option<u64>>>,
) -> StreamVec<'s, u64, (Arc<Document>, u64, isize)> {
    let mut builder = OperatorBuilder::new(format!("Documents {:?}", shared.name), scope);
    let (output, stream) = builder.new_output::<Vec<(Arc<Document>, u64, isize)>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let address = builder.operator_info().address;
    let activator = scope.activator_for(address.clone());
    let events = if scope.index() == 0 { shared.events.lock().take() } else { None };
    let progress = shared.progress.clone();
    let publish_wake = shared.publish_wake.clone();
    if events.is_some() {
        shared.source_wake.set(scope.worker().sync_activator_for(address.to_vec()));
    }
    builder.build(move |mut capabilities| {
        let mut capability = events.as_ref().and(capabilities.pop());
        capabilities.clear();
        let mut documents: HashMap<Arc<str>, Arc<Document>> = HashMap::new();
        move |_| {
            let (Some(events), Some(held)) = (&events, &mut capability) else { return };
            let mut output = output.activate();
            let mut ended = false;
            for count in 0.. {
                if count == EVENTS_A_STEP {
                    activator.activate();
                    break;
                }
                let event = match events.try_recv() {
                    Ok(event) => event,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        ended = true;
                        break;
                    }
                };
                let now = *held.time();
                match event {
                    CorpusEvent::Change(id, new) => {
                        let new = new.map(Arc::new);
                        let old = match &new {
                            Some(new) if documents.get(&id) == Some(new) => continue,
                            Some(new) => documents.insert(id, new.clone()),
                            None => documents.remove(&id),
                        };
                        let mut session = output.session(&*held);
                        if let Some(old) = old {
                            session.give((old, now, -1));
                        }
                        if let Some(new) = new {
                            session.give((new, now, 1));
                        }
                        progress.documents.store(documents.len() as u64, Ordering::Relaxed);
                    }
                    CorpusEvent::Commit => {
                        tracing::debug!(commit = now, "read");
                        held.downgrade(&(now + 1));
                    }
                    CorpusEvent::Ready => {
                        ready_at.set(Some(now));
                        // The commit before may have passed already, and no time passes with
                        // this: nothing else would tell the publishing operator.
                        publish_wake.wake();
                    }
                    CorpusEvent::End => ended = true,
                }
            }
            if ended {
                capability = None;
            }
        }
    });
    stream
}

/// Hands new contents to the preparations, off the worker, and lets time pass when they
/// are done. Gives no records: its frontier is what it says.
fn prepare<'s>(
    scope: Scope<'s, u64>,
    contents: VecCollection<'s, u64, Content>,
    shared: &CorpusShared,
) -> StreamVec<'s, u64, ()> {
    let mut builder = OperatorBuilder::new(format!("Prepare {:?}", shared.name), scope);
    let mut input = builder.new_input(contents.inner, Pipeline);
    let (_output, stream) = builder.new_output::<Vec<()>>();
    let address = builder.operator_info().address.to_vec();
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(address));
    let shared = shared.clone();
    builder.build(move |_| {
        let done: Arc<Mutex<Vec<u64>>> = Arc::default();
        let mut running: HashMap<u64, (Capability<u64>, usize)> = HashMap::new();
        move |_| {
            input.for_each_stamp(|time, batches| {
                let mut new: Vec<Content> = batches
                    .flat_map(|batch| batch.drain(..))
                    .filter_map(|(content, _, diff)| (diff > 0).then_some(content))
                    .collect();
                if shared.preparations.is_empty() || new.is_empty() {
                    return;
                }
                let Some(capability) = time.retain_least(0) else { return };
                // Neighbours in length share batches, so calls of neighbours end one after
                // another and not all at the end: progress can be seen.
                new.sort_by_key(|content| (content.chunk.title.len() + content.chunk.text.len(), content.hash));
                shared.progress.prepare.fetch_add(new.len() as u64, Ordering::Relaxed);
                let at = *capability.time();
                let calls = &mut running.entry(at).or_insert((capability, 0)).1;
                while !new.is_empty() {
                    let part = new.split_off(new.len().saturating_sub(CONTENTS_A_CALL));
                    *calls += 1;
                    let (shared, done, wake) = (shared.clone(), done.clone(), wake.clone());
                    shared.handle.clone().spawn(async move {
                        prepare_part(&shared, part).await;
                        done.lock().push(at);
                        wake.wake();
                    });
                }
            });
            for at in done.lock().drain(..) {
                if let Some((_, calls)) = running.get_mut(&at) {
                    *calls -= 1;
                    if *calls == 0 {
                        running.remove(&at);
                    }
                }
            }
        }
    });
    stream
}

async fn prepare_part(shared: &CorpusShared, part: Vec<Content>) {
    for preparation in &shared.preparations {
        let mut delay = RETRY.0;
        for attempt in 1..=PREPARE_ATTEMPTS {
            match preparation.clone().prepare(part.clone()).await {
                Ok(prepared) => {
                    shared.progress.embedded.fetch_add(prepared.embedded as u64, Ordering::Relaxed);
                    break;
                }
                Err(error) if attempt < PREPARE_ATTEMPTS => {
                    tracing::warn!(corpus = %shared.name, %error, attempt, "contents could not be prepared; trying again");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(RETRY.1);
                }
                Err(error) => give_up(shared, preparation, &part, &error).await,
            }
        }
    }
    tracing::debug!(corpus = %shared.name, contents = part.len(), "prepared");
    shared.progress.prepared.fetch_add(part.len() as u64, Ordering::Relaxed);
}

/// One bad content must not keep its neighbours out: each is tried alone, and told of if
/// it fails alone too.
async fn give_up(shared: &CorpusShared, preparation: &Arc<dyn Prepare>, part: &[Content], error: &IndexError) {
    for content in part {
        let alone = preparation.clone().prepare(vec![content.clone()]).await;
        match alone {
            Ok(prepared) => {
                shared.progress.embedded.fetch_add(prepared.embedded as u64, Ordering::Relaxed);
            }
            Err(_) => {
                let reason = format!("could not be prepared for indexing: {error}");
                shared.dead.write(&shared.name, &content.chunk.id, &reason, content.chunk.text.as_bytes());
            }
        }
    }
}

/// Collects what is complete and hands it to the publishing task, one delta at a time.
fn publish<'s>(
    scope: Scope<'s, u64>,
    chunks: VecCollection<'s, u64, Arc<Chunk>>,
    prepared: StreamVec<'s, u64, ()>,
    shared: &CorpusShared,
    ready_at: Rc<Cell<Option<u64>>>,
) -> ProbeHandle<u64> {
    let mut builder = OperatorBuilder::new(format!("Publish {:?}", shared.name), scope);
    let mut chunks = builder.new_input(chunks.inner, Exchange::new(|_: &(Arc<Chunk>, u64, isize)| 0));
    let mut prepared = builder.new_input(prepared, Exchange::new(|_: &()| 0));
    let (_output, stream) = builder.new_output::<Vec<()>>();
    let address = builder.operator_info().address.to_vec();
    let first = scope.index() == 0;
    if first {
        shared.publish_wake.set(scope.worker().sync_activator_for(address));
    }
    let (jobs, state) = (shared.jobs.clone(), shared.state.clone());
    builder.build(move |mut capabilities| {
        let mut pending: Vec<(Arc<Chunk>, u64, isize)> = Vec::new();
        // Held at the first commit that is not published, so that the probe tells which are.
        let mut capability = if first { capabilities.pop() } else { None };
        capabilities.clear();
        let mut sent = None;
        move |frontiers| {
            chunks.for_each_stamp(|_, batches| pending.extend(batches.flat_map(|batch| batch.drain(..))));
            prepared.for_each_stamp(|_, _| {});
            let Some(held) = &mut capability else { return };
            let complete = complete_until(&frontiers[0].frontier().to_owned(), &frontiers[1].frontier().to_owned());
            let published = match &*state.borrow() {
                CorpusState::Ready { commits, .. } => Some(*commits),
                CorpusState::Loading => None,
                CorpusState::Failed(_) => return,
            };
            if let Some(published) = published
                && published >= *held.time()
                && published < u64::MAX
            {
                held.downgrade(&published);
            }
            // The first epoch is what was there at the start, whole. The source that says
            // so is on this worker, before the times that it lets pass.
            let Some(ready_at) = ready_at.get() else {
                if complete == u64::MAX {
                    capability = None;
                }
                return;
            };
            if sent == published && complete >= ready_at && sent.is_none_or(|sent| complete > sent) {
                let (mut changes, rest): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut pending).into_iter().partition(|(_, time, _)| *time < complete);
                pending = rest;
                let mut changes: Vec<(Arc<Chunk>, isize)> =
                    changes.drain(..).map(|(chunk, _, diff)| (chunk, diff)).collect();
                differential_dataflow::consolidation::consolidate(&mut changes);
                if changes.is_empty() && sent.is_some() && complete < u64::MAX {
                    // Nothing to publish; the next delta will say that these commits are in.
                    return;
                }
                tracing::debug!(commits = complete, changes = changes.len(), "complete");
                sent = Some(complete);
                let _ = jobs.send((changes, complete));
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

/// Times before this are complete on both inputs; `u64::MAX` when all are.
fn complete_until(chunks: &Antichain<u64>, prepared: &Antichain<u64>) -> u64 {
    let least = |frontier: &Antichain<u64>| frontier.elements().first().copied().unwrap_or(u64::MAX);
    least(chunks).min(least(prepared))
}
