//! What another version of the documents would do to answers: which questions get an answer, lose theirs, or get another
//! one, and which document's change did it.

mod html;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::publish::Change;
use turnflow_engine::record::{AnswerRecord, Status};

/// What has become of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// There was an answer, and there is none.
    Lost,
    /// There is another answer.
    Changed,
    /// There was no answer, and there is one.
    Gained,
    /// The answer is the same, and its passages are others.
    Passages,
}

impl Fate {
    /// All of them, the worst first.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Changed, Self::Gained, Self::Passages];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Changed => "changed",
            Self::Gained => "gained",
            Self::Passages => "passages",
        }
    }

    /// What has become of an answer; `None` if it is the same.
    fn of(before: &AnswerRecord, after: &AnswerRecord) -> Option<Self> {
        let has_answer = |record: &AnswerRecord| record.status == Status::Answered;
        let passages = |record: &AnswerRecord| -> Vec<(Arc<str>, String)> {
            record.hits.iter().map(|hit| (hit.passage.clone(), hit.text.to_string())).collect()
        };
        let is_same_text = before.answer.split_whitespace().eq(after.answer.split_whitespace());
        match (has_answer(before), has_answer(after)) {
            (true, false) => Some(Self::Lost),
            (false, true) => Some(Self::Gained),
            (true, true) if !is_same_text => Some(Self::Changed),
            _ if passages(before) != passages(after) => Some(Self::Passages),
            _ => None,
        }
    }
}

/// A side of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The outcome.
    pub status: Status,
    /// The answer.
    pub answer: Arc<str>,
    /// Why the turn failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The passages, best first.
    pub passages: Vec<Arc<str>>,
}

impl Side {
    fn of(record: &AnswerRecord) -> Self {
        let passages = record.hits.iter().map(|hit| hit.passage.clone()).collect();
        Self { status: record.status, answer: record.answer.clone(), error: record.error.clone(), passages }
    }
}

/// A question whose answer is another one.
#[derive(Clone, Debug, Serialize)]
pub struct Affected {
    /// Its conversation.
    pub conversation_id: Arc<str>,
    /// The number of its turn.
    pub turn: u32,
    /// The question.
    pub question: Arc<str>,
    /// What has become of the answer.
    pub fate: Fate,
    /// The answer before.
    pub before: Side,
    /// The answer after.
    pub after: Side,
    /// Passages of the old answer that are no longer there.
    pub vanished: Vec<Arc<str>>,
    /// The changed documents that the answers are based on. Empty: their passages are the same, and the ranks have changed
    /// with the whole.
    pub edits: Vec<Arc<str>>,
}

/// What a document's change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Edit {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Some of its passages are others.
    Edited,
}

/// What two versions of the documents differ in.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    documents: BTreeMap<Arc<str>, Edit>,
    /// Passages that are gone; those with another text are not.
    gone: BTreeSet<Arc<str>>,
}

impl Changed {
    /// The net effect of changes, one after the other.
    pub fn of(changes: &[Change]) -> Self {
        /// How often a passage is there more, and each of its contents.
        type Net = (i32, BTreeMap<String, i32>);
        // By document and passage.
        let mut passages: BTreeMap<(Arc<str>, Arc<str>), Net> = BTreeMap::new();
        for Change { delta, .. } in changes {
            for (chunks, sign) in [(&delta.removed, -1), (&delta.added, 1)] {
                for chunk in chunks {
                    let passage = passages.entry((chunk.document.clone(), chunk.id.clone())).or_default();
                    passage.0 += sign;
                    let content = format!("{:?} {:?} {:?}", chunk.hash, chunk.metadata, chunk.readers);
                    *passage.1.entry(content).or_default() += sign;
                }
            }
        }
        let mut documents = BTreeMap::new();
        let mut gone = BTreeSet::new();
        for ((document, id), (net, contents)) in passages {
            if net == 0 && contents.values().all(|count| *count == 0) {
                continue;
            }
            // A document begins with its first passage.
            let is_first = *id == *document || id.strip_prefix(&*document) == Some("#0");
            let edit = documents.entry(document).or_insert(Edit::Edited);
            match net {
                0 => {}
                1.. if is_first => *edit = Edit::Added,
                1.. => {}
                _ => {
                    gone.insert(id);
                    if is_first {
                        *edit = Edit::Removed;
                    }
                }
            }
        }
        Self { documents, gone }
    }
}

/// The whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Impact {
    /// The pipeline, and what is other after.
    pub pipeline: String,
    /// What is other after.
    pub change: String,
    /// Number of questions.
    pub questions: usize,
    /// Number of questions that were answered again, because the difference can reach them.
    pub answered_again: u64,
    /// Seconds for all answers before, and from the change until all answers were those after.
    pub seconds: (f64, f64),
    /// The documents that differ. `None`: too much differs to be compared.
    pub documents: Option<BTreeMap<Arc<str>, Edit>>,
    /// The questions whose answers are others.
    pub affected: Vec<Affected>,
}

/// A question with its answers before and after.
pub struct Asked {
    /// The question.
    pub question: Arc<str>,
    /// The answer before.
    pub before: AnswerRecord,
    /// The answer after; `None`: the same.
    pub after: Option<AnswerRecord>,
}

impl Impact {
    /// Compares the answers. `changed`: what the documents differ in, if that is known.
    pub fn of(
        (pipeline, change): (String, String),
        asked: Vec<Asked>,
        changed: Option<Changed>,
        answered_again: u64,
        seconds: (f64, f64),
    ) -> Self {
        let questions = asked.len();
        let none = Changed::default();
        let known = changed.as_ref().unwrap_or(&none);
        let affected = |Asked { question, before, after }: Asked| {
            let after = after?;
            let fate = Fate::of(&before, &after)?;
            let hits = || before.hits.iter().chain(&after.hits);
            let edits: BTreeSet<Arc<str>> =
                hits().map(|hit| &hit.document).filter(|id| known.documents.contains_key(*id)).cloned().collect();
            let vanished =
                before.hits.iter().map(|hit| &hit.passage).filter(|id| known.gone.contains(*id)).cloned().collect();
            Some(Affected {
                conversation_id: before.conversation_id.clone(),
                turn: before.turn,
                question,
                fate,
                before: Side::of(&before),
                after: Side::of(&after),
                vanished,
                edits: edits.into_iter().collect(),
            })
        };
        let mut affected: Vec<Affected> = asked.into_iter().filter_map(affected).collect();
        // Stable: within a fate, in the order of the log.
        affected.sort_by_key(|one| one.fate);
        let documents = changed.map(|changed| changed.documents);
        Self { pipeline, change, questions, answered_again, seconds, documents, affected }
    }

    /// The number of questions with this fate.
    pub fn count(&self, fate: Fate) -> usize {
        self.affected.iter().filter(|one| one.fate == fate).count()
    }

    /// Whether a passage that an answer was based on is gone.
    pub fn has_vanished(&self) -> bool {
        self.affected.iter().any(|one| !one.vanished.is_empty())
    }

    /// What each changed document did: the number of questions by fate. Documents that did nothing are left out.
    fn by_document(&self) -> BTreeMap<&str, BTreeMap<Fate, usize>> {
        let mut all: BTreeMap<&str, BTreeMap<Fate, usize>> = BTreeMap::new();
        for one in &self.affected {
            for document in &one.edits {
                *all.entry(document).or_default().entry(one.fate).or_default() += 1;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
