//! The way of a document: source → documents → chunks → content hashes → prepared
//! contents → publication, as one differential dataflow a corpus.
//!
//! Time is the number of the source's commit. Chunking is stateless, and unchanged chunks of
//! an edited document cancel before anything is done with them. Contents are arranged by
//! hash, so that a content is prepared (embedded) when its first chunk appears and not
//! again. Publication waits until everything up to a commit is prepared; meanwhile turns
//! read the epoch before.

mod documents;
mod prepare;
mod publish;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use differential_dataflow::{AsCollection, Hashable, VecCollection};
use parking_lot::Mutex;
use timely::dataflow::operators::Exchange as _;
use timely::dataflow::{ProbeHandle, Scope};
use tokio::sync::{mpsc, watch};

use self::documents::documents;
use self::prepare::prepare;
use self::publish::{PublishJob, publish, publish_all};
use crate::component::{Chunker, Prepare};
use crate::connector::CorpusEvent;
use crate::dead_letter::DeadLetters;
use crate::document::{Chunk, Content, Document};
use crate::publish::{CorpusProgress, Publisher};
use crate::wake::WakeSlot;

/// A preparation or publication that fails is tried again after this, doubling up to the last.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

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

/// Builds the dataflow on this worker; the probe passes a commit when it is published.
pub fn build(scope: Scope<'_, u64>, shared: &CorpusShared) -> ProbeHandle<u64> {
    let ready_at = Rc::new(Cell::new(None));
    let documents = documents(scope, shared, ready_at.clone());
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
