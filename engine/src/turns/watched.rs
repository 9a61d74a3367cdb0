//! What the values of standing turns depend on, and which of the turns a change of the corpora can reach.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::answers::AnswerKey;
use super::{Generation, Running};
use crate::component::{CorpusRef, Delta, Snapshot, StandingQueries, Watch};
use crate::publish::Change;
use crate::record::Value;

/// What the values of a turn depend on.
#[derive(Default)]
pub(super) struct Reads {
    /// The nodes that have read a corpus.
    pub nodes: Vec<NodeRead>,
    /// A node has failed: nothing is known of what it would have read.
    pub has_failed: bool,
    /// The values of the nodes before the sinks, if they go into the answer cache.
    pub values: Vec<(usize, Value, Arc<[String]>)>,
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

/// What one call of the pipeline has read, on its worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    family: u64,
    number: u32,
}

/// A slot as a later run gets it.
#[derive(Default, Serialize, Deserialize)]
pub struct SavedSlot {
    /// What the operators know, by node.
    nodes: Vec<(Arc<str>, Vec<u8>)>,
    /// The corpora of which any change reaches it.
    any: Vec<Arc<str>>,
}

/// What the indexes of each corpus lack.
pub type Missing = BTreeMap<Arc<str>, BTreeMap<String, u64>>;

/// What a slot is kept for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// A standing turn.
    Turn(Arc<str>),
    /// An answer in the cache.
    Cached(AnswerKey),
}

/// What a change reaches.
pub(super) enum Reached {
    /// Perhaps everything.
    All,
    /// These, and everything without a slot.
    Some(Vec<Owner>),
}

/// What the standing turns of a worker depend on.
#[derive(Default)]
pub(super) struct Watched {
    /// The family of plans that has answered them.
    family: u64,
    /// The operators' lists, by node. `None`: the operator can tell nothing.
    nodes: HashMap<usize, Option<Node>>,
    /// Turns that any change of a corpus reaches.
    any: HashMap<Arc<str>, BTreeSet<u32>>,
    /// What each slot is kept for; nothing: it is free.
    owners: Vec<Vec<Owner>>,
    /// Slots that are free again.
    free: Vec<u32>,
    /// What the indexes lacked when the turns were last compared.
    pub missing: Missing,
}

struct Node {
    corpus: Arc<str>,
    queries: Box<dyn StandingQueries>,
}

impl Watched {
    /// Adds what a turn has read. `None`: nothing is known of it, so every change may reach it.
    pub fn put(&mut self, generation: &Generation, reads: Reads, owners: Vec<Owner>) -> Option<Slot> {
        let family = generation.family;
        if family > self.family {
            // All turns are answered again by a plan of another family.
            *self = Self { family, missing: std::mem::take(&mut self.missing), ..Self::default() };
        }
        if reads.has_failed || family < self.family || owners.is_empty() {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.owners.push(Vec::new());
            (self.owners.len() - 1) as u32
        });
        self.owners[slot as usize] = owners;
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
        Some(Slot { family, number: slot })
    }

    /// A slot as a later run gets it.
    pub fn save(&self, generation: &Generation, slot: Slot) -> Option<SavedSlot> {
        if slot.family != self.family || self.family != generation.family {
            return None;
        }
        let saved = |(node, list): (&usize, &Option<Node>)| {
            let saved = list.as_ref()?.queries.save(slot.number)?;
            Some((generation.nodes.get(*node)?.id.clone(), saved))
        };
        let any = self.any.iter().filter(|(_, slots)| slots.contains(&slot.number)).map(|(corpus, _)| corpus.clone());
        Some(SavedSlot { nodes: self.nodes.iter().filter_map(saved).collect(), any: any.collect() })
    }

    /// Adds a slot of an earlier run for an owner. `None`: it is not understood, and nothing is known of the owner.
    pub fn restore(&mut self, generation: &Generation, saved: &SavedSlot, owner: Owner) -> Option<Slot> {
        let slot = self.put(generation, Reads::default(), vec![owner.clone()])?;
        let mut restored = |(id, saved): &(Arc<str>, Vec<u8>)| {
            let node = generation.nodes.iter().position(|node| node.id == *id);
            let list =
                node.and_then(|node| self.nodes.entry(node).or_insert_with(|| Node::of(generation, node)).as_mut());
            list.is_some_and(|list| list.queries.restore(slot.number, saved))
        };
        if !saved.nodes.iter().all(&mut restored) {
            self.remove(slot, &owner);
            return None;
        }
        for corpus in &saved.any {
            self.any.entry(corpus.clone()).or_default().insert(slot.number);
        }
        Some(slot)
    }

    /// Keeps a slot for another owner, too. Returns whether it is still there.
    pub fn share(&mut self, slot: Slot, owner: Owner) -> bool {
        let owners =
            self.owners.get_mut(slot.number as usize).filter(|owners| slot.family == self.family && !owners.is_empty());
        owners.is_some_and(|owners| {
            owners.push(owner);
            true
        })
    }

    /// An owner leaves a slot. It is free after the last one.
    pub fn remove(&mut self, Slot { family, number: slot }: Slot, owner: &Owner) {
        if family != self.family {
            return;
        }
        let Some(owners) = self.owners.get_mut(slot as usize).filter(|owners| !owners.is_empty()) else { return };
        owners.retain(|other| other != owner);
        if !owners.is_empty() {
            return;
        }
        self.nodes.values_mut().flatten().for_each(|node| node.queries.remove(slot));
        self.any.retain(|_, slots| {
            slots.remove(&slot);
            !slots.is_empty()
        });
        self.free.push(slot);
    }

    /// Notes an epoch that no turn has to be compared with.
    pub fn note(&mut self, now: &Snapshot) {
        self.missing = missing(now);
    }

    /// What a change reaches. `changes`: those since the last call, if all are known.
    pub fn reached(&mut self, changes: Option<Vec<Change>>, now: &Snapshot) -> Reached {
        let missing = missing(now);
        let is_complete = std::mem::replace(&mut self.missing, missing) == self.missing;
        let is_same = now.family == self.family;
        match changes.filter(|_| is_complete && is_same).and_then(|changes| self.slots(&changes, now, None)) {
            Some(slots) => {
                let owners = slots.into_iter().filter_map(|slot| self.owners.get(slot as usize));
                Reached::Some(owners.flatten().cloned().collect())
            }
            None => Reached::All,
        }
    }

    /// Which of these slots earlier changes reach: those after the epoch that their turns have read.
    pub fn reached_late(&mut self, slots: &[Slot], changes: Option<Vec<Change>>, now: &Snapshot) -> Vec<Slot> {
        let is_complete = missing(now) == self.missing && now.family == self.family;
        let among: BTreeSet<u32> =
            slots.iter().filter(|slot| slot.family == self.family).map(|slot| slot.number).collect();
        match changes.filter(|_| is_complete).and_then(|changes| self.slots(&changes, now, Some(&among))) {
            Some(reached) => {
                let is_reached = |slot: &&Slot| slot.family != self.family || reached.contains(&slot.number);
                slots.iter().filter(is_reached).copied().collect()
            }
            None => slots.to_vec(),
        }
    }

    /// The slots that these changes reach, of all or of some. `None`: perhaps all of them.
    fn slots(&mut self, changes: &[Change], now: &Snapshot, among: Option<&BTreeSet<u32>>) -> Option<BTreeSet<u32>> {
        let mut by_corpus: BTreeMap<&Arc<str>, Vec<Arc<Delta>>> = BTreeMap::new();
        for Change { corpus, delta } in changes {
            by_corpus.entry(corpus).or_default().push(delta.clone());
        }
        let mut reached = BTreeSet::new();
        for (corpus, deltas) in by_corpus {
            let view = now.corpora.get(corpus)?;
            reached.extend(self.any.get(corpus).into_iter().flatten());
            for node in self.nodes.values_mut().flatten().filter(|node| node.corpus == *corpus) {
                reached.extend(node.queries.reached(&deltas, view, among)?);
            }
        }
        Some(reached)
    }
}

/// What the indexes of each corpus lack.
fn missing(now: &Snapshot) -> Missing {
    let lacks = now.corpora.iter().filter(|(_, corpus)| !corpus.missing.is_empty());
    lacks.map(|(name, corpus)| (name.clone(), corpus.missing.clone())).collect()
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
