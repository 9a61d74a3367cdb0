//! What a journal says: the questions that lacked an answer, their groups, and what became of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::groups::{GroupId, Groups};
use crate::journal::{Again, Asked, Line, Outcome, Sample};

/// One answer of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The epoch that was read.
    pub epoch: u64,
    /// When, in seconds since 1970.
    pub at: f64,
    /// What became of the question.
    pub outcome: Outcome,
    /// The documents that made the difference.
    pub documents: Vec<Arc<str>>,
}

/// A question that lacks an answer, or lacked one.
#[derive(Clone, Debug)]
pub struct Question {
    /// As it came first, with its present answer, outcome, passages and revision.
    pub asked: Asked,
    /// Its answers, the oldest first.
    pub steps: Vec<Step>,
}

impl Question {
    /// Whether it lacks an answer now.
    pub fn is_open(&self) -> bool {
        self.asked.outcome.is_gap()
    }
}

/// A change that is not told yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Untold {
    /// The epoch.
    pub epoch: u64,
    /// The question's place in [`Book::questions`].
    pub question: usize,
    /// Whether it has an answer now, and lacked one before; otherwise it is the other way round.
    pub is_settled: bool,
    /// The answer before.
    pub before: Arc<str>,
    /// The documents that made the difference.
    pub documents: Vec<Arc<str>>,
}

/// The contents of a journal.
#[derive(Debug)]
pub struct Book {
    /// The questions, in the order of the journal.
    pub questions: Vec<Question>,
    /// Their groups: members have the numbers of questions.
    pub groups: Groups,
    /// The fingerprint of the vectors' model.
    pub model: Option<Arc<str>>,
    /// Questions with an answer.
    pub samples: Vec<Sample>,
    /// Changes that no record of an edit tells yet.
    pub untold: Vec<Untold>,
    /// Number of records of edits.
    pub told: u32,
    /// Reasons by dismissed group.
    pub dismissed: BTreeMap<GroupId, String>,
    /// Where the members of merged groups are.
    pub merged: HashMap<GroupId, GroupId>,
    /// Number of turns that were answered at once.
    pub fine: u64,
    places: HashMap<Arc<str>, usize>,
    /// Epochs and revisions of turns that have always had an answer.
    answered: HashMap<Arc<str>, (u64, u32)>,
}

impl Book {
    /// An empty one. `threshold`: the least likeness of a question and its group.
    pub fn new(threshold: Option<f32>) -> Self {
        Self {
            questions: Vec::new(),
            groups: Groups::new(threshold),
            model: None,
            samples: Vec::new(),
            untold: Vec::new(),
            told: 0,
            dismissed: BTreeMap::new(),
            merged: HashMap::new(),
            fine: 0,
            places: HashMap::new(),
            answered: HashMap::new(),
        }
    }

    /// The question of a turn.
    pub fn question(&self, key: &str) -> Option<&Question> {
        self.places.get(key).map(|&at| &self.questions[at])
    }

    /// The epoch and the revision of the last answer of a turn that is known. A process that was killed may have delivered
    /// a revision whose number the next one gives to another answer, of a later epoch.
    pub fn last(&self, key: &str) -> Option<(u64, u32)> {
        let asked = self.question(key).map(|question| (question.asked.epoch, question.asked.revision));
        asked.or_else(|| self.answered.get(key).copied())
    }

    /// Where a group's members are now.
    pub fn present(&self, group: GroupId) -> GroupId {
        let mut group = group;
        while let Some(&into) = self.merged.get(&group) {
            group = into;
        }
        group
    }

    /// The questions of each group, by number, without those that were deleted.
    pub fn members(&self) -> BTreeMap<GroupId, Vec<usize>> {
        let mut members: BTreeMap<GroupId, Vec<usize>> = BTreeMap::new();
        for (at, question) in self.questions.iter().enumerate() {
            if question.asked.outcome == Outcome::Withdrawn {
                continue;
            }
            members.entry(self.groups.of(at)).or_default().push(at);
        }
        members
    }

    /// Takes in a line that is in the journal.
    pub fn take(&mut self, line: Line) {
        match line {
            Line::Journal { model, .. } => self.model = Some(model),
            Line::Fine { key, revision, epoch, .. } => {
                if self.answered.insert(key, (epoch, revision)).is_none() {
                    self.fine += 1;
                }
            }
            Line::Asked(asked) => self.asked(*asked),
            Line::Again(again) => self.again(*again),
            Line::Merged { from, into } => self.merged(from, into),
            Line::Moved { question, into } => {
                if question < self.questions.len() {
                    self.groups.shift(question, into);
                }
            }
            Line::Sample(sample) => self.samples.push(*sample),
            Line::Told { number } => {
                self.told = number;
                self.untold.clear();
            }
            Line::Dismissed { group, reason, .. } => {
                let group = self.present(group);
                match reason {
                    Some(reason) => self.dismissed.insert(group, reason),
                    None => self.dismissed.remove(&group),
                };
            }
        }
    }

    /// Takes in a question that is in its group already, as [`Groups::add`] has put it.
    pub fn asked_in_group(&mut self, asked: Asked) {
        if self.answered.remove(&asked.key).is_some() {
            self.fine -= 1;
        }
        let step =
            Step { epoch: asked.epoch, at: asked.at, outcome: asked.outcome, documents: asked.documents.clone() };
        let question = self.questions.len();
        if let Some(before) = asked.before.clone() {
            let documents = asked.documents.clone();
            self.untold.push(Untold { epoch: asked.epoch, question, is_settled: false, before, documents });
        }
        self.places.insert(asked.key.clone(), question);
        self.questions.push(Question { asked, steps: vec![step] });
    }

    fn asked(&mut self, asked: Asked) {
        self.groups.put(&asked.vector.unit(), asked.group);
        self.asked_in_group(asked);
    }

    fn again(&mut self, again: Again) {
        let Some(&at) = self.places.get(&again.key) else { return };
        let Again { revision, at: when, outcome, answer, epoch, documents, near, .. } = again;
        let question = &mut self.questions[at];
        let before = std::mem::replace(&mut question.asked.answer, answer);
        let was = std::mem::replace(&mut question.asked.outcome, outcome);
        question.asked.revision = revision;
        question.asked.epoch = epoch;
        question.asked.near = near;
        question.steps.push(Step { epoch, at: when, outcome, documents: documents.clone() });
        if outcome == Outcome::Withdrawn {
            self.untold.retain(|untold| untold.question != at);
            return;
        }
        // A process that was killed had not noted that its answer came back.
        let was_gap = if was == Outcome::Withdrawn { outcome.is_gap() } else { was.is_gap() };
        if was_gap == outcome.is_gap() {
            return;
        }
        // Answered and lost again before anybody was told: nothing has changed.
        let undone = self.untold.iter().position(|untold| untold.question == at);
        match undone {
            Some(place) => drop(self.untold.remove(place)),
            None => {
                let is_settled = !outcome.is_gap();
                self.untold.push(Untold { epoch, question: at, is_settled, before, documents });
            }
        }
    }

    fn merged(&mut self, from: GroupId, into: GroupId) {
        self.groups.merge(from, into);
        self.note_merged(from, into);
    }

    /// Notes that a group has joined another one.
    pub fn note_merged(&mut self, from: GroupId, into: GroupId) {
        self.merged.insert(from, into);
        if let Some(reason) = self.dismissed.remove(&from) {
            self.dismissed.entry(into).or_insert(reason);
        }
    }

    /// The conversations of some questions.
    pub fn conversations(&self, questions: &[usize]) -> usize {
        questions.iter().map(|&at| &*self.questions[at].asked.conversation).collect::<HashSet<_>>().len()
    }
}
