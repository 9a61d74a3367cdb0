//! Snapshots: the contents of all corpora at an epoch, which turns read.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Aliases, CorpusRef, OperatorError, Passages, Permitted};
use crate::cluster::{OtherParts, OtherShards, Restriction};
use crate::filter::Filter;
use crate::record::Turn;
use crate::state::passages_of;

/// A corpus at an epoch.
#[derive(Clone, Default)]
pub struct CorpusSnapshot {
    /// Number of documents with chunks.
    pub documents: usize,
    /// Number of chunks.
    pub chunks: usize,
    /// Number of chunks that an index lacks because a model's server is away, by index key; of indexes that lack some.
    pub missing: BTreeMap<String, u64>,
    /// The readers by index key; each of the type that its operators expect.
    pub indexes: BTreeMap<String, Arc<dyn Any + Send + Sync>>,
    /// The version of each index on disk, by index key.
    pub versions: BTreeMap<String, u64>,
    /// The passages by their metadata.
    pub passages: Arc<Passages>,
    /// The parts of the corpus that other processes have.
    pub(crate) others: Option<Arc<OtherShards>>,
}

/// Numbers by key, less others. Those that are 0 are left out.
pub(crate) fn less(all: &BTreeMap<String, u64>, some: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let rest = all.iter().map(|(key, n)| (key.clone(), n.saturating_sub(some.get(key).copied().unwrap_or_default())));
    rest.filter(|(_, n)| *n > 0).collect()
}

impl CorpusSnapshot {
    /// Adds the parts that other processes have.
    pub(crate) fn add(&mut self, others: OtherShards) {
        self.documents += others.documents;
        self.chunks += others.chunks;
        others
            .lacking
            .indexes
            .iter()
            .for_each(|(key, missing)| *self.missing.entry(key.clone()).or_default() += missing);
        let stored = (1..).zip(others.stored());
        self.versions.extend(stored.filter_map(|(process, version)| Some((passages_of(process), (*version)?))));
        self.others = Some(Arc::new(others));
    }

    /// The part that this process has, alone.
    pub(crate) fn own_part(&self) -> Self {
        let Some(others) = &self.others else { return self.clone() };
        let (documents, chunks) = (self.documents - others.documents, self.chunks - others.chunks);
        let missing = less(&self.missing, &others.lacking.indexes);
        Self { documents, chunks, missing, others: None, ..self.clone() }
    }

    /// The same with these indexes only.
    pub(crate) fn with_indexes(&self, keys: &BTreeSet<String>) -> Self {
        let mut view = self.clone();
        view.indexes.retain(|key, _| keys.contains(key));
        view.versions.retain(|key, _| keys.contains(key));
        view
    }

    /// The passages that a turn may find: those for which the filter is true, that meet the caller's condition, and that
    /// the principal may read. Every operator that reads passages from a corpus must keep to them.
    pub fn permitted(&self, filter: Option<&Filter>, turn: &Turn) -> Permitted {
        self.passages.permitted(filter, turn)
    }

    /// The cost of [`CorpusSnapshot::permitted`], for [`Operator::weight`](super::Operator::weight).
    pub fn weight_of_filter(&self, filter: Option<&Filter>, turn: &Turn) -> usize {
        self.passages.weight(filter, turn)
    }

    /// The reader of an index.
    ///
    /// # Errors
    ///
    /// There is no such index, or other processes have parts of it.
    pub fn index<T: Send + Sync + 'static>(&self, key: &str) -> Result<Arc<T>, OperatorError> {
        if self.others.is_some() {
            return Err(OperatorError::Divided(key.to_owned()));
        }
        self.part(key)
    }

    /// The reader of an index, or of the part that this process has. The caller also asks
    /// [`CorpusSnapshot::other_parts`].
    pub fn part<T: Send + Sync + 'static>(&self, key: &str) -> Result<Arc<T>, OperatorError> {
        self.indexes
            .get(key)
            .and_then(|index| index.clone().downcast::<T>().ok())
            .ok_or_else(|| OperatorError::NoIndex(key.to_owned()))
    }

    /// The parts of an index that other processes have, and what a turn may find in them. `None` if this process has
    /// the whole index.
    pub fn other_parts(&self, key: &str, filter: Option<&Filter>, turn: &Turn) -> Option<OtherParts> {
        let (shards, index) = (self.others.clone()?, key.to_owned());
        Some(OtherParts { shards, index, restriction: Restriction::of(filter, turn) })
    }
}

/// All corpora at an epoch.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Counts publications, also across restarts.
    pub epoch: u64,
    /// The number of the plan that answers turns of this epoch; counts from 1 in a process.
    pub plan: u64,
    /// The number of the first of the plans that give the same answers from the same passages as this one.
    pub family: u64,
    /// Corpora by name.
    pub corpora: BTreeMap<Arc<str>, Arc<CorpusSnapshot>>,
    /// Other names of the corpora.
    pub aliases: Arc<Aliases>,
    /// In a cluster, keeps the epoch in the other processes until it is dropped.
    pub lease: Option<Arc<dyn Any + Send + Sync>>,
}

impl Snapshot {
    /// The corpus of this name, else the one with such an alias.
    pub fn corpus(&self, name: &str) -> Option<&Arc<CorpusSnapshot>> {
        self.corpora.get(name).or_else(|| self.corpora.get(self.aliases.corpus(name)?))
    }

    /// The name of the corpus that a turn reads, and not an alias; `None` if there is none.
    pub(crate) fn real_name(&self, corpus: &CorpusRef, turn: &Turn) -> Option<Arc<str>> {
        let name = self.name_of(corpus, turn)?;
        let known = self.corpora.get_key_value(name).map(|(name, _)| name);
        known.or_else(|| self.aliases.corpus(name)).cloned()
    }

    /// The name of the corpus that a turn reads, if there is one.
    pub(crate) fn name_of<'a>(&'a self, corpus: &'a CorpusRef, turn: &'a Turn) -> Option<&'a str> {
        match corpus {
            CorpusRef::Named(name) => Some(name),
            CorpusRef::FromTurn => {
                let name = turn.collection.as_deref()?;
                if self.corpora.contains_key(name) { Some(name) } else { self.aliases.corpus(name).map(|name| &**name) }
            }
        }
    }
}
