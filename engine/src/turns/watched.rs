//! What the values of standing turns depend on, and which of the turns a change of the corpora can reach.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Generation, Running};
use crate::component::{CorpusRef, Delta, Snapshot, StandingQueries, Watch};
use crate::publish::Change;

/// What the values of a turn depend on.
#[derive(Default)]
pub(super) struct Reads {
    /// The nodes that have read a corpus.
    pub nodes: Vec<NodeRead>,
    /// A node has failed: nothing is known of what it would have read.
    pub has_failed: bool,
}

/// What a node has read for a turn.
pub(super) struct NodeRead {
    /// Its place in the generation.
    pub node: usize,
    /// The corpora, without aliases; `None` for one that was not there.
    pub corpora: Vec<Option<Arc<str>>>,
    /// What decides whether a change can reach its value, as far as its operator has said it.
    pub watch: Option<Watch>,
}

/// A standing turn on its worker, as a plan has answered it.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    plan: u64,
    number: u32,
}

/// Which turns a change reaches.
pub(super) enum Reached {
    /// Perhaps all.
    All,
    /// Those in these slots, and those without a slot.
    Some(BTreeSet<u32>),
}

impl Reached {
    /// Whether it reaches a turn. `None`: a turn of which nothing is known.
    pub fn has(&self, slot: Option<Slot>) -> bool {
        match (self, slot) {
            (Self::Some(slots), Some(slot)) => slots.contains(&slot.number),
            (Self::All, _) | (_, None) => true,
        }
    }
}

/// What the standing turns of a worker depend on.
#[derive(Default)]
pub(super) struct Watched {
    /// The generation that has answered them.
    plan: u64,
    /// The operators' lists, by node. `None`: the operator can tell nothing.
    nodes: HashMap<usize, Option<Node>>,
    /// Turns that any change of a corpus reaches.
    any: HashMap<Arc<str>, BTreeSet<u32>>,
    /// Slots that are free again, and the first one that was never used.
    free: Vec<u32>,
    next: u32,
    /// What the indexes lacked when the turns were last compared.
    missing: BTreeMap<Arc<str>, BTreeMap<String, u64>>,
}

struct Node {
    corpus: Arc<str>,
    queries: Box<dyn StandingQueries>,
}

impl Watched {
    /// Adds an answered turn. `None`: nothing is known of it, so every change may reach it.
    pub fn put(&mut self, generation: &Generation, plan: u64, reads: Reads) -> Option<Slot> {
        if plan > self.plan {
            // All turns are answered again by a new plan.
            *self = Self { plan, missing: std::mem::take(&mut self.missing), ..Self::default() };
        }
        if reads.has_failed || plan < self.plan {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        for NodeRead { node, corpora, watch } in reads.nodes {
            let list = self.nodes.entry(node).or_insert_with(|| Node::of(generation, node));
            let is_told = match (list, watch) {
                (Some(list), Some(watch)) if corpora.iter().flatten().all(|corpus| *corpus == list.corpus) => {
                    list.queries.put(slot, watch)
                }
                _ => false,
            };
            if !is_told {
                for corpus in corpora.into_iter().flatten() {
                    self.any.entry(corpus).or_default().insert(slot);
                }
            }
        }
        Some(Slot { plan, number: slot })
    }

    /// Forgets a turn.
    pub fn remove(&mut self, Slot { plan, number: slot }: Slot) {
        if plan != self.plan {
            return;
        }
        self.nodes.values_mut().flatten().for_each(|node| node.queries.remove(slot));
        self.any.retain(|_, slots| {
            slots.remove(&slot);
            !slots.is_empty()
        });
        self.free.push(slot);
    }

    /// The turns that a change reaches. `changes`: those since the last call, if all are known.
    pub fn reached(&mut self, changes: Option<Vec<Change>>, now: &Snapshot) -> Reached {
        let lacks = now.corpora.iter().filter(|(_, corpus)| !corpus.missing.is_empty());
        let missing: BTreeMap<_, _> = lacks.map(|(name, corpus)| (name.clone(), corpus.missing.clone())).collect();
        let is_complete = std::mem::replace(&mut self.missing, missing) == self.missing;
        let (Some(changes), true) = (changes, is_complete && now.plan == self.plan) else { return Reached::All };
        let mut by_corpus: BTreeMap<&Arc<str>, Vec<Arc<Delta>>> = BTreeMap::new();
        for Change { corpus, delta } in &changes {
            by_corpus.entry(corpus).or_default().push(delta.clone());
        }
        let mut reached = BTreeSet::new();
        for (corpus, deltas) in by_corpus {
            let Some(view) = now.corpora.get(corpus) else { return Reached::All };
            reached.extend(self.any.get(corpus).into_iter().flatten());
            for node in self.nodes.values_mut().flatten().filter(|node| node.corpus == *corpus) {
                match node.queries.reached(&deltas, view) {
                    Some(slots) => reached.extend(slots),
                    None => return Reached::All,
                }
            }
        }
        Reached::Some(reached)
    }
}

impl Node {
    fn of(generation: &Generation, at: usize) -> Option<Self> {
        let node = generation.nodes.get(at)?;
        let (Running::Operator(operator), [CorpusRef::Named(name)]) = (&node.running, &node.corpora[..]) else {
            return None;
        };
        let corpus: Arc<str> = generation.aliases.corpus(name).cloned().unwrap_or_else(|| name.as_str().into());
        Some(Self { corpus, queries: operator.standing(generation.scores_matter(at))? })
    }
}
