//! The checkpoints of a process that is not the first of its cluster. The first process writes them into its database, so
//! that another number of processes finds all offsets and conversations in one place.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::store::Store;
use super::{ConversationChange, Durable, Key, SourceCheckpoint, StoreError, StoredConversation};
use crate::cluster::{Bytes, Peers, Topic};
use crate::connector::Offsets;

/// Where a source was left, with the epoch of that time.
pub(super) type Left = (Arc<str>, Offsets, u64);

/// What another process asks about the database.
#[derive(Serialize, Deserialize)]
pub(crate) enum StoreQuestion {
    /// The stored state of a conversation of a source.
    Conversation(Arc<str>, Arc<str>),
    /// Write a checkpoint of the partitions that the process reads.
    Write {
        /// Everything up to these offsets is applied.
        sources: Vec<Left>,
        /// The conversations that have changed.
        changes: Vec<(Key, ConversationChange)>,
    },
    /// Write where a source begins, unless that is known.
    Begin(Left),
}

/// The first process of the cluster.
pub(crate) struct First {
    peers: Weak<Peers>,
    handle: Handle,
    /// How many more conversations may be under way.
    loads: Arc<Semaphore>,
}

/// Conversations that are loaded at the same time: each needs a thread of the first process.
const LOADS: usize = 32;

impl First {
    pub fn new(peers: &Arc<Peers>, handle: Handle) -> Self {
        Self { peers: Arc::downgrade(peers), handle, loads: Arc::new(Semaphore::new(LOADS)) }
    }

    fn ask<T: DeserializeOwned>(
        &self,
        question: &StoreQuestion,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T> {
        let (peers, question) = (self.peers.upgrade(), serde_json::to_vec(question));
        async move {
            let answer = match (peers, question) {
                (Some(peers), Ok(question)) => peers.ask(0, Topic::Store, Bytes(question)).await,
                (None, _) => Err("it is ending".to_owned()),
                (_, Err(error)) => Err(error.to_string()),
            };
            let answer = answer.map_err(StoreError::First)?;
            serde_json::from_slice(&answer.0).map_err(|error| StoreError::First(error.to_string()))
        }
    }

    /// Loads a conversation, and passes it to `done`.
    pub(super) fn load(
        &self,
        source: &Arc<str>,
        conversation: &Arc<str>,
        done: impl FnOnce(Result<Option<StoredConversation>, StoreError>) + Send + 'static,
    ) {
        let asked = self.ask(&StoreQuestion::Conversation(source.clone(), conversation.clone()));
        let loads = self.loads.clone();
        self.handle.spawn(async move {
            let _one = loads.acquire().await;
            done(asked.await);
        });
    }

    /// Writes a checkpoint; blocks.
    pub(super) fn write(
        &self,
        sources: &[(Arc<str>, SourceCheckpoint)],
        changes: &HashMap<Key, ConversationChange>,
    ) -> Result<(), StoreError> {
        let left = |(source, SourceCheckpoint { offsets, epoch, .. }): &(Arc<str>, SourceCheckpoint)| {
            (source.clone(), offsets.clone(), *epoch)
        };
        let sources = sources.iter().map(left).collect();
        let changes = changes.iter().map(|(key, change)| (key.clone(), change.clone())).collect();
        self.handle.block_on(self.ask(&StoreQuestion::Write { sources, changes }))
    }

    /// Writes where a source begins; blocks.
    pub(super) fn begin(&self, source: &Arc<str>, offsets: Offsets, epoch: u64) -> Result<(), StoreError> {
        self.handle.block_on(self.ask(&StoreQuestion::Begin((source.clone(), offsets, epoch))))
    }
}

impl Durable {
    /// Has the first process of the cluster write the checkpoints from now on.
    pub(crate) fn keep_with(&self, first: First) {
        let _one = self.committing.lock();
        let _ = self.store.set(super::Kept::First(first));
    }

    /// Answers another process; blocks. The dead letters that the process has sent before are on disk before its checkpoint
    /// is.
    ///
    /// # Errors
    ///
    /// The database cannot be read or written.
    pub(crate) fn answer(&self, question: StoreQuestion) -> Result<Vec<u8>, StoreError> {
        let answer = match question {
            StoreQuestion::Conversation(source, conversation) => {
                let Some(store) = self.here() else { return Err(no_database()) };
                serde_json::to_vec(&self.load_here(store, &source, &conversation)?)
            }
            StoreQuestion::Write { sources, changes } => {
                let Some(store) = self.here() else { return Err(no_database()) };
                let _one = self.committing.lock();
                self.dead.settle().map_err(StoreError::DeadLetters)?;
                self.write_with_own(store, &sources, changes)?;
                serde_json::to_vec(&())
            }
            StoreQuestion::Begin((source, offsets, epoch)) => {
                let Some(store) = self.here() else { return Err(no_database()) };
                let _one = self.committing.lock();
                self.begin_here(store, &source, offsets, epoch)?;
                serde_json::to_vec(&())
            }
        };
        answer.map_err(|error| StoreError::First(error.to_string()))
    }

    /// Writes a checkpoint of another process. This process may have changes of the same conversations that could not be
    /// written when it gave the source away: they come before.
    fn write_with_own(
        &self,
        store: &Store,
        sources: &[Left],
        changes: Vec<(Key, ConversationChange)>,
    ) -> Result<(), StoreError> {
        let own: HashMap<Key, ConversationChange> = {
            let mut state = self.state.lock();
            changes.iter().filter_map(|(key, _)| state.pending.remove_entry(key)).collect()
        };
        let bytes = own.values().map(ConversationChange::bytes).sum();
        let all: Vec<_> = own.iter().map(|(key, change)| (key.clone(), change.clone())).chain(changes).collect();
        let written = store.write_parts(sources, &all);
        match &written {
            Ok(()) => drop(self.unwritten.fetch_sub(bytes, Ordering::AcqRel)),
            Err(_) => self.state.lock().put_back(own),
        }
        Ok(written?)
    }

    /// The database, if it is in this process.
    pub(super) fn here(&self) -> Option<&Store> {
        match self.store.get()? {
            super::Kept::Here(store) => Some(store),
            super::Kept::First(_) => None,
        }
    }
}

fn no_database() -> StoreError {
    StoreError::First("it has no checkpoints".to_owned())
}
