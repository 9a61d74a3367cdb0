//! What a journal says: which answers are open, and which were judged. The texts stay in the file; the book knows where.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use turnflow_engine::connector::Judgement;

use crate::item::{Version, turn_of};
use crate::journal::{Line, Place};

/// Answers without room that are known, so that they do not count twice when they are delivered again.
const KNOWN_LEFT: usize = 20_000;

/// An answer in the queue.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its id.
    pub id: Arc<str>,
    /// The line with its text.
    pub place: Place,
    /// Its version.
    pub version: Version,
    /// A hash of what it says.
    pub says: Box<str>,
    /// The rules that took it.
    pub rules: Vec<Arc<str>>,
    /// Its last verdict: the line, the place in the line, and the number of the verdict.
    pub verdict: Option<(Place, usize, u64)>,
    /// Hashes of what all its verdicts say, the last one last.
    pub said: Vec<[u8; 8]>,
}

/// A hash of what a verdict says, and who says so, at whatever time.
pub fn said(judgement: &Judgement) -> [u8; 8] {
    let timeless = Judgement { at: 0.0, ..judgement.clone() };
    let hash = blake3::hash(&serde_json::to_vec(&timeless).unwrap_or_default());
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// The book.
#[derive(Debug, Default)]
pub struct Book {
    /// By number. An open answer that is replaced keeps its number, and so its place in the queue.
    entries: BTreeMap<u64, Entry>,
    /// The numbers of the answers of a turn, by the first part of their ids. All but the last one were judged.
    turns: HashMap<Box<str>, Vec<u64>>,
    /// The numbers of answers that were judged, by the number of the verdict.
    judged: BTreeMap<u64, u64>,
    open: BTreeSet<u64>,
    next: u64,
    verdicts: u64,
    /// Number of answers for which there was no room.
    pub left_out: u64,
    left: VecDeque<(Box<str>, Version)>,
    known_left: HashSet<(Box<str>, Version)>,
}

impl Book {
    /// Takes a line of the journal.
    pub fn take(&mut self, line: &Line, place: Place) {
        match line {
            Line::Journal { .. } => {}
            Line::Item(queued) => {
                let (item, version) = (&queued.item, (queued.item.epoch, queued.item.revision));
                let entry = Entry {
                    id: item.id.clone(),
                    place,
                    version,
                    says: queued.says.as_str().into(),
                    rules: item.rules.clone(),
                    verdict: None,
                    said: Vec::new(),
                };
                let numbers = self.turns.entry(turn_of(&queued.key).into()).or_default();
                let replaced = numbers.last().copied().filter(|number| self.open.contains(number));
                let number = replaced.unwrap_or(self.next);
                if replaced.is_none() {
                    self.next += 1;
                    numbers.push(number);
                }
                self.entries.insert(number, entry);
                self.open.insert(number);
            }
            Line::Left(left) => {
                let known = (turn_of(&left.key).into_boxed_str(), (left.epoch, left.revision));
                self.left_out += 1;
                self.known_left.insert(known.clone());
                self.left.push_back(known);
                if self.left.len() > KNOWN_LEFT
                    && let Some(oldest) = self.left.pop_front()
                {
                    self.known_left.remove(&oldest);
                }
            }
            Line::Gone { key } => {
                for number in self.turns.remove(&*turn_of(key)).unwrap_or_default() {
                    self.open.remove(&number);
                    let verdict = self.entries.remove(&number).and_then(|entry| entry.verdict);
                    verdict.map(|(_, _, verdict)| self.judged.remove(&verdict));
                }
            }
            Line::Judged(all) => {
                for (at, judged) in all.iter().enumerate() {
                    let Some(number) = self.number(&judged.id) else { continue };
                    let Some(entry) = self.entries.get_mut(&number) else { continue };
                    self.verdicts += 1;
                    if let Some((_, _, before)) = entry.verdict.replace((place, at, self.verdicts)) {
                        self.judged.remove(&before);
                    }
                    entry.said.push(said(&judged.judgement));
                    self.judged.insert(self.verdicts, number);
                    self.open.remove(&number);
                }
            }
        }
    }

    /// The last answer of each turn that was judged, the turn that was queued first first.
    pub fn last_judged(&self) -> impl Iterator<Item = &Entry> {
        let is_judged = |number: &u64| self.entries[number].verdict.is_some();
        let last = self.turns.values().filter_map(|numbers| numbers.iter().copied().rfind(is_judged));
        let last: BTreeSet<u64> = last.collect();
        last.into_iter().map(|number| &self.entries[&number])
    }

    /// The numbers of the answers of the turn that an id names.
    fn of_turn(&self, id: &str) -> &[u64] {
        let turn = id.split_once('-').map_or(id, |(turn, _)| turn);
        self.turns.get(turn).map(Vec::as_slice).unwrap_or_default()
    }

    fn number(&self, id: &str) -> Option<u64> {
        self.of_turn(id).iter().copied().find(|number| *self.entries[number].id == *id)
    }

    /// The answer with this id.
    pub fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.get(&self.number(id)?)
    }

    /// The last answer of the turn that an id names.
    pub fn last_of(&self, id: &str) -> Option<&Entry> {
        self.entries.get(self.of_turn(id).last()?)
    }

    /// The last answer of the turn with this key.
    pub fn last(&self, key: &str) -> Option<&Entry> {
        self.last_of(&turn_of(key))
    }

    /// Whether this answer is known to have found no room.
    pub fn is_left(&self, key: &str, version: Version) -> bool {
        self.known_left.contains(&(turn_of(key).into(), version))
    }

    /// Number of answers that are open, and of those that were judged.
    pub fn counts(&self) -> (usize, usize) {
        (self.open.len(), self.judged.len())
    }

    /// The open answers after this one, the oldest first; `None` if there is no such answer.
    pub fn open_after(&self, after: Option<&str>) -> Option<impl Iterator<Item = &Entry>> {
        let first = match after {
            // It may have been judged, or replaced, meanwhile.
            Some(id) => self.number(id).or_else(|| self.of_turn(id).last().copied())? + 1,
            None => 0,
        };
        Some(self.open.range(first..).map(|number| &self.entries[number]))
    }

    /// The judged answers after this one, the newest verdict first; `None` if there is no such answer.
    pub fn judged_after(&self, after: Option<&str>) -> Option<impl Iterator<Item = &Entry>> {
        let end = match after {
            Some(id) => self.entry(id)?.verdict?.2,
            None => u64::MAX,
        };
        Some(self.judged.range(..end).rev().map(|(_, number)| &self.entries[number]))
    }
}
