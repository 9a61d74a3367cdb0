//! A served pipeline: its engine, its outline, and what is kept for its callers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use turnflow_engine::run::Engine;

use crate::answered::RecentAnswers;
use crate::feedback::FeedbackLog;
use crate::links::LinkKey;
use crate::outline::Outline;
use crate::pipelines::LastReload;
use crate::stored::ResponseStore;

/// A served pipeline.
pub struct Served {
    name: Arc<str>,
    engine: Arc<Engine>,
    outline: RwLock<Arc<Outline>>,
    reload: RwLock<Option<LastReload>>,
    /// How many reloads have succeeded, and how many have failed.
    reloads: [AtomicU64; 2],
    responses: OnceLock<Arc<ResponseStore>>,
    shares: OnceLock<Arc<ResponseStore>>,
    hides_problems: AtomicBool,
    link_key: OnceLock<LinkKey>,
    feedback: OnceLock<Arc<FeedbackLog>>,
    recent: RecentAnswers,
}

impl Served {
    /// A running engine, under the pipeline's name.
    pub fn new(name: impl Into<Arc<str>>, engine: Arc<Engine>, outline: Outline) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            engine,
            outline: RwLock::new(Arc::new(outline)),
            reload: RwLock::default(),
            reloads: Default::default(),
            responses: OnceLock::new(),
            shares: OnceLock::new(),
            hides_problems: AtomicBool::new(false),
            link_key: OnceLock::new(),
            feedback: OnceLock::new(),
            recent: RecentAnswers::default(),
        })
    }

    /// The pipeline's name, which is the model's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Stores its responses here.
    pub fn keep_responses(&self, store: ResponseStore) {
        let _ = self.responses.set(Arc::new(store));
    }

    /// Stores the turns that callers share here.
    pub fn keep_shares(&self, store: ResponseStore) {
        let _ = self.shares.set(Arc::new(store));
    }

    /// The store of shared turns, if turns can be shared.
    pub(crate) fn shares(&self) -> Option<Arc<ResponseStore>> {
        self.shares.get().cloned()
    }

    /// Keeps the feedback on its answers here.
    pub fn keep_feedback(&self, log: FeedbackLog) {
        let _ = self.feedback.set(Arc::new(log));
    }

    /// Where the feedback on its answers is kept, if it is.
    pub(crate) fn feedback(&self) -> Option<Arc<FeedbackLog>> {
        self.feedback.get().cloned()
    }

    /// What callers were answered of late.
    pub(crate) fn recent(&self) -> &RecentAnswers {
        &self.recent
    }

    /// Signs links to its documents with this key. Without one, they work until the process ends.
    pub fn sign_links(&self, key: LinkKey) {
        let _ = self.link_key.set(key);
    }

    /// The key that signs links to its documents.
    pub(crate) fn link_key(&self) -> &LinkKey {
        self.link_key.get_or_init(turnflow_engine::keyed::secret_key)
    }

    /// The store of its responses, if they are stored.
    pub fn responses(&self) -> Option<Arc<ResponseStore>> {
        self.responses.get().cloned()
    }

    /// The outline of the running plan.
    pub fn outline(&self) -> Arc<Outline> {
        self.outline.read().clone()
    }

    /// Adopts the outline of a plan after a reload.
    pub fn adopt(&self, outline: Outline) {
        *self.outline.write() = Arc::new(outline);
    }

    /// Records the outcome of a reload.
    pub fn reloaded(&self, reload: LastReload) {
        self.reloads[usize::from(!reload.ok)].fetch_add(1, Ordering::Relaxed);
        *self.reload.write() = Some(reload);
    }

    /// How many reloads have succeeded, and how many have failed.
    pub(crate) fn reloads(&self) -> [u64; 2] {
        self.reloads.each_ref().map(|number| number.load(Ordering::Relaxed))
    }

    /// The outcome of the last reload; `None` if there was none.
    pub fn last_reload(&self) -> Option<LastReload> {
        let mut last = self.reload.read().clone();
        if self.hides_problems.load(Ordering::Acquire) {
            last.iter_mut().for_each(|last| last.problems.clear());
        }
        last
    }

    /// Omits the problems of reloads, which contain lines of the pipeline file.
    pub fn hide_problems(&self) {
        self.hides_problems.store(true, Ordering::Release);
    }
}
