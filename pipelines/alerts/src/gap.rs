//! Follows the journal of a `Gaps`: how many new questions each gap has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use turnflow_gaps::edits::written;
use turnflow_gaps::groups::GroupId;
use turnflow_gaps::journal::Line;

use crate::record::Example;
use crate::watch::Growth;

/// Questions that a record names.
const EXAMPLES: usize = 5;

/// A question that lacked an answer.
struct Question {
    at: f64,
    group: GroupId,
    is_open: bool,
    conversation: Arc<str>,
    turn: u32,
    text: Arc<str>,
}

/// A journal, as far as it is read.
pub(crate) struct Gaps {
    path: PathBuf,
    read: u64,
    questions: Vec<Question>,
    places: HashMap<Arc<str>, usize>,
    dismissed: BTreeSet<GroupId>,
}

impl Gaps {
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: 0, questions: Vec::new(), places: HashMap::new(), dismissed: BTreeSet::new() }
    }

    /// Reads the whole lines that are new.
    pub fn follow(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // No question lacks an answer yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        if length < self.read {
            // It was moved away, and another one has begun.
            *self = Self::new(std::mem::take(&mut self.path));
        }
        if length == self.read {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        let (mut reader, mut bytes) = (BufReader::new(file), Vec::new());
        loop {
            bytes.clear();
            let read = reader.read_until(b'\n', &mut bytes)?;
            if bytes.last() != Some(&b'\n') {
                return Ok(());
            }
            self.read += read as u64;
            self.take(serde_json::from_slice(&bytes)?);
        }
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Asked(asked) => {
                self.places.insert(asked.key.clone(), self.questions.len());
                self.questions.push(Question {
                    at: asked.at,
                    group: asked.group,
                    is_open: asked.outcome.is_gap(),
                    conversation: asked.conversation,
                    turn: asked.turn,
                    text: asked.text,
                });
            }
            Line::Again(again) => {
                let question = self.places.get(&again.key).and_then(|place| self.questions.get_mut(*place));
                question.into_iter().for_each(|question| question.is_open = again.outcome.is_gap());
            }
            Line::Merged { from, into } => {
                self.questions.iter_mut().filter(|one| one.group == from).for_each(|one| one.group = into);
            }
            Line::Moved { question, into } => {
                self.questions.get_mut(question).into_iter().for_each(|question| question.group = into);
            }
            Line::Dismissed { group, reason, .. } => match reason {
                Some(_) => drop(self.dismissed.insert(group)),
                None => drop(self.dismissed.remove(&group)),
            },
            Line::Journal { .. } | Line::Fine { .. } | Line::Sample(_) | Line::Told { .. } => {}
        }
    }

    /// The gap that has most new questions after a time.
    pub fn growth(&self, after: f64) -> Growth {
        let is_new = |one: &&Question| one.is_open && one.at > after && !self.dismissed.contains(&one.group);
        let mut numbers: BTreeMap<GroupId, usize> = BTreeMap::new();
        self.questions.iter().filter(is_new).for_each(|one| *numbers.entry(one.group).or_default() += 1);
        // Of several, the oldest.
        let Some((group, n)) = numbers.into_iter().max_by_key(|(group, n)| (*n, std::cmp::Reverse(*group))) else {
            return Growth::default();
        };
        let example = |one: &Question| Example {
            conversation_id: one.conversation.clone(),
            turn: one.turn,
            question: one.text.clone(),
        };
        let own = self.questions.iter().rev().filter(is_new).filter(|one| one.group == group);
        Growth { n, gap: Some(written(group)), examples: own.take(EXAMPLES).map(example).collect() }
    }
}
