//! What the sink keeps: the journal, its contents, and the lines of new answers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use turnflow_engine::component::{ComponentContext, ComponentError};
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::metrics::{Counter, Gauge};
use turnflow_engine::record::{AnswerRecord, HitRecord};

use crate::book::Book;
use crate::edits::{self, Edit};
use crate::groups::Change;
use crate::journal::{Again, Asked, FORM, Journal, Line, Near, Outcome, Sample};
use crate::sink::GapsConfig;
use crate::vector::Codes;

/// Questions of a group whose passages are compared with them.
const COMPARED: usize = 8;
/// Passages that are compared with a question.
const PASSAGES: usize = 3;
/// Characters of an answer that are kept.
const ANSWER: usize = 600;

/// An answer that the journal does not have.
pub(crate) struct New {
    pub record: AnswerRecord,
    pub outcome: Outcome,
    /// The answer before, if there was one and it is known.
    pub before: Option<Arc<str>>,
    /// The documents that made the difference to the answer before.
    pub documents: Vec<Arc<str>>,
    pub need: Need,
}

/// What an answer is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A further answer of a question in a group.
    Again,
    /// A question that lacks an answer.
    Group,
    /// A question with an answer, to compare others with.
    Sample,
    /// A question with an answer.
    Count,
}

/// The journal and its contents.
pub(crate) struct Kept {
    pub config: GapsConfig,
    pub model: Arc<str>,
    pub journal: Journal,
    pub book: Book,
    /// When the last answer came.
    pub last: Option<Instant>,
    /// The book has something that could not be written.
    pub is_stale: bool,
    /// Whether it was said that an edit cannot be written.
    pub has_warned: bool,
}

impl Kept {
    pub fn open(config: &GapsConfig, model: Arc<str>) -> Result<Self, ConnectorError> {
        let mut book = Book::new(config.threshold);
        let journal = Journal::open(&config.path.path, |line| book.take(line))?;
        let (config, last) = (config.clone(), None);
        let mut kept = Self { config, model, journal, book, last, is_stale: false, has_warned: false };
        kept.begin()?;
        Ok(kept)
    }

    /// Writes the first line; if another model made the vectors, says so.
    fn begin(&mut self) -> Result<(), ConnectorError> {
        match &self.book.model {
            Some(model) if *model == self.model => Ok(()),
            Some(_) if self.book.questions.is_empty() => self.write(vec![self.first()]),
            Some(_) => {
                let path = self.config.path.path.display();
                let reason = format!(
                    "`{path}` has vectors of another model than `{}` is now: move the file away to begin anew, or take the \
                     former model",
                    self.config.model
                );
                Err(ComponentError::new(reason).into())
            }
            None => self.write(vec![self.first()]),
        }
    }

    fn first(&self) -> Line {
        Line::Journal { form: FORM, model: self.model.clone() }
    }

    /// Writes lines and takes them in.
    fn write(&mut self, lines: Vec<Line>) -> Result<(), ConnectorError> {
        self.journal.append(&lines)?;
        lines.into_iter().for_each(|line| self.book.take(line));
        Ok(())
    }

    /// Tells what the edits did.
    pub fn tell(&mut self, meters: &Meters) {
        let Some(edit) = Edit::of(&self.book).filter(|_| !self.is_stale) else { return };
        let path = self.config.edits.as_ref().map(|edits| edits.path.clone());
        let written = path.map_or(Ok(()), |path| {
            edits::append(&path, &edit).map_err(|error| format!("cannot write `{}`: {error}", path.display()))
        });
        let written = written
            .and_then(|()| self.write(vec![Line::Told { number: edit.turn }]).map_err(|error| error.to_string()));
        if let Err(error) = written {
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!(error, "what an edit did cannot be written; it is tried again");
            }
            return;
        }
        self.has_warned = false;
        meters.settled.inc_by(edit.settled.iter().map(|one| one.count as u64).sum());
        meters.broken.inc_by(edit.broken.len() as u64);
        meters.show(&self.book);
        tracing::info!(epoch = edit.epoch, "{}", edit.text);
    }
}

impl Kept {
    /// How many of an answer's passages are compared with its question, and the question's vector.
    pub fn compared(&self, new: &New, vector: Option<&Codes>) -> (usize, Option<Codes>) {
        let passages = PASSAGES.min(new.record.hits.len());
        match (new.need, vector) {
            (Need::Sample, Some(codes)) => (1, Some(codes.clone())),
            (Need::Group, Some(codes)) if self.book.groups.likely_size(&codes.unit()) < COMPARED => {
                (passages, Some(codes.clone()))
            }
            // An edit has brought other passages to a question whose passages were compared.
            (Need::Again, _) if new.outcome.is_gap() => {
                let known = self.book.question(&new.record.key).filter(|known| {
                    let is_known = |hit: &HitRecord| known.asked.near.iter().any(|near| near.passage == hit.passage);
                    known.asked.near.iter().any(|near| near.likeness.is_some())
                        && !new.record.hits.iter().take(PASSAGES).all(is_known)
                });
                known.map_or((0, None), |known| (passages, Some(known.asked.vector.clone())))
            }
            _ => (0, None),
        }
    }

    /// Reads the journal again, if the book has something that could not be written.
    pub fn refresh(&mut self) -> Result<(), ConnectorError> {
        if self.is_stale {
            let mut book = Book::new(self.config.threshold);
            self.journal = Journal::open(&self.config.path.path, |line| book.take(line))?;
            self.book = book;
            self.is_stale = false;
        }
        Ok(())
    }

    /// The lines of new answers, which the book has already.
    pub fn lines(&mut self, new: Vec<New>, vectors: Vec<Option<Codes>>, likeness: Vec<Vec<f32>>) -> Vec<Line> {
        let mut lines = Vec::new();
        for ((new, vector), likeness) in new.into_iter().zip(vectors).zip(likeness) {
            let New { record, outcome, before, documents, need } = new;
            match (need, vector) {
                (Need::Again, _) => {
                    let known = self.book.question(&record.key);
                    // An edit makes a difference only if the question gets an answer by it, or loses it.
                    let documents = match known.is_some_and(|known| known.is_open() != outcome.is_gap()) {
                        true => documents,
                        false => Vec::new(),
                    };
                    let mut near = near(&record, &likeness);
                    for near in near.iter_mut().filter(|near| near.likeness.is_none()) {
                        let known =
                            known.and_then(|known| known.asked.near.iter().find(|known| known.passage == near.passage));
                        near.likeness = known.and_then(|known| known.likeness);
                    }
                    let again = Again {
                        key: record.key.clone(),
                        revision: record.revision,
                        at: now(),
                        outcome,
                        answer: short(&record.answer),
                        epoch: record.stamp.epoch,
                        documents,
                        near,
                    };
                    lines.push(Line::Again(Box::new(again)));
                }
                (Need::Group, Some(vector)) => {
                    self.group(&record, outcome, (before, documents), &likeness, vector, &mut lines);
                    continue;
                }
                (Need::Sample, Some(vector)) => {
                    lines.push(fine(&record));
                    if let Some(&likeness) = likeness.first() {
                        lines.push(Line::Sample(Box::new(Sample { vector, likeness })));
                    }
                }
                _ => lines.push(fine(&record)),
            }
            let taken = lines.len() - if need == Need::Sample { 2.min(lines.len()) } else { 1 };
            lines[taken..].iter().for_each(|line| self.book.take(line.clone()));
        }
        let tidied = self.book.groups.tidy();
        lines.extend(self.noted(tidied));
        lines
    }

    /// Puts a question into a group.
    fn group(
        &mut self,
        record: &AnswerRecord,
        outcome: Outcome,
        (before, documents): (Option<Arc<str>>, Vec<Arc<str>>),
        likeness: &[f32],
        vector: Codes,
        lines: &mut Vec<Line>,
    ) {
        let (group, changes) = self.book.groups.add(&vector.unit());
        let asked = Asked {
            key: record.key.clone(),
            revision: record.revision,
            conversation: record.conversation_id.clone(),
            turn: record.turn,
            person: person(record),
            // An answer that goes is a gap from now on.
            at: if before.is_some() { now() } else { time(record) },
            text: record.query.clone(),
            outcome,
            answer: short(&record.answer),
            epoch: record.stamp.epoch,
            near: near(record, likeness),
            documents,
            before,
            group,
            vector,
        };
        lines.push(Line::Asked(Box::new(asked.clone())));
        self.book.asked_in_group(asked);
        lines.extend(self.noted(changes));
    }

    /// The lines of changes that the groups have already.
    fn noted(&mut self, changes: Vec<Change>) -> Vec<Line> {
        let noted = changes.into_iter().map(|change| match change {
            Change::Merged { from, into } => {
                self.book.note_merged(from, into);
                Line::Merged { from, into }
            }
            Change::Moved { member, into } => Line::Moved { question: member, into },
        });
        noted.collect()
    }
}

/// What the metrics show.
pub(crate) struct Meters {
    open: Gauge,
    questions: Gauge,
    settled: Counter,
    broken: Counter,
}

impl Meters {
    pub fn of(context: &ComponentContext) -> Self {
        Self {
            open: context.gauge("gaps_open", "Groups of questions of which some lack an answer"),
            questions: context.gauge("gaps_open_questions", "Questions that lack an answer"),
            settled: context.counter("gaps_settled", "Questions that lacked an answer and have one after an edit"),
            broken: context.counter("gaps_broken", "Questions that had an answer and lack one after an edit"),
        }
    }

    pub fn show(&self, book: &Book) {
        let open: Vec<usize> = (0..book.questions.len()).filter(|&at| book.questions[at].is_open()).collect();
        let groups: std::collections::HashSet<_> = open.iter().map(|&at| book.groups.of(at)).collect();
        self.open.set(groups.len() as i64);
        self.questions.set(open.len() as i64);
    }
}

/// The beginning of an answer.
pub(crate) fn short(text: &str) -> Arc<str> {
    match text.char_indices().nth(ANSWER) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Who asked, if the record says.
fn person(record: &AnswerRecord) -> Option<Arc<str>> {
    let principal = record.extra.get("principal");
    let named = ["user", "id", "name"].iter().find_map(|name| principal?.get(*name));
    let user = named.or_else(|| record.extra.get("user")).or_else(|| record.extra.get("user_id"))?;
    user.as_str().map(Arc::from).or_else(|| user.as_i64().map(|user| user.to_string().into()))
}

fn fine(record: &AnswerRecord) -> Line {
    Line::Fine { key: record.key.clone(), revision: record.revision, epoch: record.stamp.epoch, at: time(record) }
}

/// When a turn was asked, in seconds since 1970.
fn time(record: &AnswerRecord) -> f64 {
    record.timestamp.filter(|time| *time > 0.0).unwrap_or_else(now)
}

fn near(record: &AnswerRecord, likeness: &[f32]) -> Vec<Near> {
    let hits = record.hits.iter().take(PASSAGES).enumerate();
    let near = hits.map(|(at, hit)| Near {
        passage: hit.passage.clone(),
        document: hit.document.clone(),
        likeness: likeness.get(at).copied(),
    });
    near.collect()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs_f64()).unwrap_or_default()
}
