//! Sources and their threads: the feeds of corpora, and the sources of turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::{CHANNEL, RuntimeContext};
use crate::cluster::Share;
use crate::component::{BuildError, Models};
use crate::connector::{
    Arrived, ConnectorError, CorpusOutput, DocumentStore, Mode, Offsets, PageViews, Stop, StopHandle, TakesRequests,
    TurnOutput, TurnQueue, TurnSource,
};
use crate::corpus::{CorpusIndexes, CorpusShared};
use crate::durable::OffsetTracker;
use crate::panics::caught;
use crate::plan::{NodeKind, PlannedCorpus, PlannedNode};
use crate::run::RunError;
use crate::turns::{SourceHandle, TurnBacklog};
use crate::wake::WakeSlot;

/// A source's thread and its stop handle.
pub(in crate::run) struct SourceThread {
    stop: Option<StopHandle>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Whether its error ends the run.
    serving: Arc<AtomicBool>,
    fault: Arc<Mutex<Option<RunError>>>,
}

impl SourceThread {
    /// That of a source that another process reads.
    fn elsewhere() -> Self {
        Self { stop: None, thread: None, serving: Arc::default(), fault: Arc::default() }
    }

    /// Asks the source to stop.
    pub fn stop(&mut self) {
        self.stop = None;
    }

    /// Stops the source and waits for its end.
    pub fn end(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// From now on, an error of the source ends the run.
    pub fn serves(&self) {
        self.serving.store(true, Ordering::Release);
    }

    /// The error of a source that does not serve yet.
    pub fn fault(&self) -> Option<RunError> {
        self.fault.lock().take()
    }
}

/// A feed of a corpus and its thread.
pub(in crate::run) struct Feed {
    pub shared: CorpusShared,
    pub source: SourceThread,
    /// The store of its documents, if a program may change them.
    pub documents: Option<Arc<dyn DocumentStore>>,
    pub page_views: Option<Arc<dyn PageViews>>,
}

/// A source of turns and its thread, if it has one.
pub(in crate::run) struct TurnFeed {
    pub handle: Arc<SourceHandle>,
    pub source: Option<SourceThread>,
    /// The queue that it reads, if a program fills it.
    pub queue: Option<Arc<dyn TurnQueue>>,
    /// What takes the requests of other programs for it.
    pub requests: Option<Arc<dyn TakesRequests>>,
}

impl TurnFeed {
    /// A source that is not read here.
    pub fn unread(handle: Arc<SourceHandle>) -> Self {
        Self { handle, source: None, queue: None, requests: None }
    }

    /// Ends the source's thread. The turns that it has read are answered until the handle says that it has ended.
    pub fn end(&mut self) -> Arc<SourceHandle> {
        self.source.iter_mut().for_each(|thread| thread.end());
        self.handle.wake.wake();
        self.handle.clone()
    }
}

/// The sending end of a turn source's channel.
pub(in crate::run) struct Manual {
    /// The source's node.
    pub source: Arc<str>,
    pub sender: Sender<Arrived>,
    pub wake: WakeSlot,
}

impl RuntimeContext {
    /// The number of the next feed.
    pub fn feed_number(&self) -> u64 {
        self.number()
    }

    /// Starts a feed: builds its source and starts the source's thread.
    pub fn feed(
        &self,
        number: u64,
        planned: &PlannedCorpus,
        models: &Models,
        indexes: &CorpusIndexes,
        serves: bool,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Feed, RunError> {
        let tokenizer = planned.tokenizer.as_ref().and_then(|model| models.get(model));
        let chunker = planned.chunker.build(tokenizer.and_then(|model| model.tokenizer.clone()));
        let (sender, events) = crossbeam_channel::bounded(CHANNEL);
        let source_wake = WakeSlot::default();
        let shape = self.options.shape();
        let shared =
            CorpusShared::new(number, chunker, planned.schema.clone(), indexes, events, source_wake.clone(), shape);
        if !shape.is_first() {
            return Ok(Feed { shared, source: SourceThread::elsewhere(), documents: None, page_views: None });
        }
        let (stop_handle, stop) = Stop::new();
        let wake = Arc::new(move || source_wake.wake());
        let progress = &shared.progress;
        // What the corpus was read from before does not matter any more.
        [&progress.unreadable, &progress.uncut].into_iter().for_each(|unreadable| unreadable.clear());
        let output = CorpusOutput::new(sender, wake, self.dead.clone(), planned.name.clone(), stop)
            .telling(progress.unreadable.clone());
        let used = planned.source.models().into_iter();
        let used = used.filter_map(|used| Some((used.name.to_owned(), models.get(used.name)?.clone()))).collect();
        let context = self.component(&planned.name).using(used);
        let source = self.built("corpus", &planned.name, || planned.source.build(&context), is_cancelled)?;
        let failed =
            |source: ConnectorError| BuildError::Connector { of: "corpus", name: planned.name.to_string(), source };
        let asked = caught(|| (source.documents(), source.page_views()));
        let (documents, page_views) = asked.map_err(|panic| failed(panic.into()))?;
        if let Some(documents) = &documents {
            self.back_up_documents(&planned.name, documents, is_cancelled)?;
        }
        let mode = self.options.corpora;
        let source = self.thread(format!("corpus {}", planned.name), stop_handle, serves, move || {
            let result = caught(|| source.run(mode, output.clone()));
            output.end();
            result?
        })?;
        Ok(Feed { shared, source, documents, page_views })
    }

    /// Makes the handle of a turn source; [`RuntimeContext::read`] starts the source.
    pub fn source(&self, node: &PlannedNode, divided: bool) -> (Arc<SourceHandle>, Manual) {
        let (sender, receiver) = crossbeam_channel::bounded(CHANNEL);
        let handle = Arc::new(SourceHandle {
            id: node.id.clone(),
            kind_name: node.kind_name,
            is_queue: matches!(&node.kind, NodeKind::Source(source) if source.is_queue()),
            file: match &node.kind {
                NodeKind::Source(source) => source.file().map(std::path::Path::to_owned),
                NodeKind::Operator(_) | NodeKind::Sink(_) => None,
            },
            number: self.number(),
            divided,
            receiver: Mutex::new(Some(receiver)),
            wake: WakeSlot::default(),
            conversation_wakes: Mutex::default(),
            caught_up: Arc::default(),
            tracker: Arc::new(OffsetTracker::new(node.id.clone())),
            backlog: TurnBacklog::default(),
            ended: AtomicBool::new(false),
        });
        let (source, wake) = (node.id.clone(), handle.wake.clone());
        (handle, Manual { source, sender, wake })
    }

    /// What this process reads of a source.
    pub fn share(&self, divided: bool) -> Share {
        if divided { self.options.shape().share() } else { Share::WHOLE }
    }

    /// Starts a source's thread.
    pub fn read(
        &self,
        handle: Arc<SourceHandle>,
        source: Box<dyn TurnSource>,
        to: Manual,
        resume: Offsets,
        mode: Mode,
    ) -> Result<TurnFeed, RunError> {
        let failed = |source: ConnectorError| BuildError::Connector { of: "node", name: handle.id.to_string(), source };
        let taken = caught(|| (source.queue(), source.requests()));
        let (queue, requests) = taken.map_err(|panic| failed(panic.into()))?;
        let (stop_handle, stop) = Stop::new();
        let (for_output, wake) = (to.wake.clone(), to.wake);
        let wakes = Arc::new(move || for_output.wake());
        let output = TurnOutput::new(to.sender, wakes, self.dead.clone(), handle.id.clone(), stop);
        if resume.iter().any(|offset| offset.end > 0) {
            self.dead.goes_on();
        }
        let begins_anew = resume.is_empty() && self.shared.durable.is_kept();
        let mut output = output.resuming(resume).telling(handle.caught_up.clone());
        output = output.acknowledged_by(handle.tracker.acknowledgements().clone());
        if begins_anew {
            let (tracker, shared) = (handle.tracker.clone(), self.shared.clone());
            let share = self.share(handle.divided);
            output = output.beginning(Arc::new(move |offsets| {
                let epoch = shared.epochs.current().epoch;
                let own = share.of(&offsets);
                // Before the tracker knows it: a checkpoint that lacks a partition makes it look like a later one.
                if let Err(error) = shared.durable.begin(tracker.source(), offsets, epoch) {
                    tracing::warn!(%error, source = %tracker.source(), "cannot commit the beginning of the log");
                }
                tracker.resume(own, shared.durable.marks());
            }));
        }
        let source = self.thread(format!("node {}", handle.id), stop_handle, true, move || {
            let result = caught(|| source.run(mode, output));
            // The channel has closed with the output: wake the worker to notice it.
            wake.wake();
            result?
        })?;
        Ok(TurnFeed { handle, source: Some(source), queue, requests })
    }

    fn thread(
        &self,
        name: String,
        stop: StopHandle,
        serves: bool,
        body: impl FnOnce() -> Result<(), ConnectorError> + Send + 'static,
    ) -> Result<SourceThread, RunError> {
        let (errors, pool) = (self.errors.clone(), self.pool.clone());
        let (serving, fault) = (Arc::new(AtomicBool::new(serves)), Arc::new(Mutex::new(None)));
        let (is_serving, told) = (serving.clone(), fault.clone());
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || match body() {
                Ok(()) | Err(ConnectorError::Stopped(_)) => {}
                Err(source) if is_serving.load(Ordering::Acquire) => {
                    errors.lock().push(RunError::Source { name, source });
                    pool.abort();
                }
                Err(source) => *told.lock() = Some(RunError::Source { name, source }),
            })
            .map_err(|error| RunError::Thread { what: "a source's thread", reason: error.to_string() })?;
        Ok(SourceThread { stop: Some(stop), thread: Some(thread), serving, fault })
    }
}
