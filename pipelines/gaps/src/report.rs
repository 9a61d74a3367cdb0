//! The groups as a person reads them: names, kinds, states, weights.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use turnflow_operators::words::content_words;

use crate::book::{Book, Question, Step};
use crate::edits::written;
use crate::groups::GroupId;
use crate::journal::{Near, Outcome};
use crate::vector::dot;

/// Terms of a gap.
const TERMS: usize = 4;
/// Passages of a gap.
const PASSAGES: usize = 5;
/// Likeness of question and passage below which a passage is about something else, if no answers tell.
const FAR: f32 = 0.35;
/// Answered questions from which bounds are taken.
const ENOUGH: usize = 20;
/// Seconds in a week.
const WEEK: f64 = 7.0 * 86_400.0;

/// What kind of gap it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// No document is about it.
    NoDocument,
    /// Documents are about it, and do not have the answer.
    NotAnswered,
    /// It is nothing that these documents are for.
    OutsideSubject,
    /// Not enough is known: no passage was compared with its questions.
    Unknown,
}

impl Kind {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoDocument => "no document is about it",
            Self::NotAnswered => "documents are about it, and do not have the answer",
            Self::OutsideSubject => "outside the subject",
            Self::Unknown => "unknown",
        }
    }
}

/// What became of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Some questions lack an answer.
    Open,
    /// Some questions lack an answer again, after all had one.
    Reopened,
    /// All questions have an answer.
    Settled,
    /// A person has put it aside.
    Dismissed,
}

/// A question of a gap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The question, as it was searched.
    pub question: Arc<str>,
    /// The conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn.
    pub turn: u32,
    /// When it was asked, in seconds since 1970.
    pub at: f64,
    /// What became of it.
    pub outcome: Outcome,
    /// Its present answer.
    pub answer: Arc<str>,
    /// The passages with which an edit settled it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settled_by: Vec<Arc<str>>,
    /// Its answers: epoch, outcome, and the documents that made the difference.
    pub history: Vec<(u64, Outcome, Vec<Arc<str>>)>,
}

/// A group of questions of which some lack an answer, or lacked one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    /// Its number, which stays.
    pub id: String,
    /// Its most central question.
    pub name: String,
    /// The words that tell it from other gaps.
    pub terms: Vec<String>,
    /// What kind it is.
    pub kind: Kind,
    /// What became of it.
    pub state: State,
    /// Documents that settled it or took its answers away last, and the epoch.
    pub by: Vec<Arc<str>>,
    /// The epoch of the last change of its state, if an edit changed it.
    pub epoch: Option<u64>,
    /// Why it was dismissed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of its questions.
    pub questions: usize,
    /// Number of those that lack an answer.
    pub open: usize,
    /// Number of conversations of its questions.
    pub conversations: usize,
    /// Number of people who asked, if the log says who.
    pub people: usize,
    /// When its first and its last question were asked, in seconds since 1970.
    pub first: f64,
    /// See `first`.
    pub last: f64,
    /// Number of its questions of the last seven days, and of the seven days before.
    pub this_week: usize,
    /// See `this_week`.
    pub last_week: usize,
    /// The passages that its questions find, the most frequent first.
    pub passages: Vec<Near>,
    /// Its questions, the oldest first.
    pub entries: Vec<Entry>,
}

/// All gaps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Number of turns with an outcome.
    pub turns: u64,
    /// Number of questions that lack an answer.
    pub open_questions: usize,
    /// Number of open gaps.
    pub open_gaps: usize,
    /// Number of questions of the first ten open gaps that lack an answer.
    pub first_ten: usize,
    /// Number of questions that lacked an answer and came in the last seven days, and in the seven days before.
    pub this_week: usize,
    /// See `this_week`.
    pub last_week: usize,
    /// The gaps: open ones first, by the number of their open questions.
    pub gaps: Vec<Gap>,
}

impl Report {
    /// The report at a time, in seconds since 1970.
    pub fn of(book: &Book, now: f64) -> Self {
        let members = book.members();
        let bounds = Bounds::of(book);
        let words = Frequencies::of(book, &members);
        let gap = |(group, own): (&GroupId, &Vec<usize>)| gap(book, *group, own, &bounds, &words, now);
        let mut gaps: Vec<Gap> = members.iter().map(gap).collect();
        let is_open = |gap: &Gap| matches!(gap.state, State::Open | State::Reopened);
        gaps.sort_by(|a, b| {
            let key = |gap: &Gap| (!is_open(gap), std::cmp::Reverse((gap.open, gap.conversations, gap.questions)));
            key(a).cmp(&key(b)).then_with(|| a.first.total_cmp(&b.first))
        });
        let open: Vec<&Gap> = gaps.iter().filter(|gap| is_open(gap)).collect();
        Self {
            turns: book.fine + book.questions.len() as u64,
            open_questions: open.iter().map(|gap| gap.open).sum(),
            open_gaps: open.len(),
            first_ten: open.iter().take(10).map(|gap| gap.open).sum(),
            this_week: gaps.iter().map(|gap| gap.this_week).sum(),
            last_week: gaps.iter().map(|gap| gap.last_week).sum(),
            gaps,
        }
    }
}

/// The most central question of a group: the one that is most like the mean.
pub fn name(book: &Book, own: &[usize]) -> String {
    let Some(&first) = own.first() else { return String::new() };
    let likeness = |at: usize| book.groups.likeness(at);
    // Of equal ones, the first.
    let central = own.iter().copied().reduce(|best, at| if likeness(at) > likeness(best) + 1e-4 { at } else { best });
    let text = &book.questions[central.unwrap_or(first)].asked.text;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn gap(book: &Book, group: GroupId, own: &[usize], bounds: &Bounds, words: &Frequencies, now: f64) -> Gap {
    let questions: Vec<&Question> = own.iter().map(|&at| &book.questions[at]).collect();
    let open = questions.iter().filter(|question| question.is_open()).count();
    let reason = book.dismissed.get(&group).cloned();
    let (state, by, epoch) = match (&reason, open) {
        (Some(_), _) => (State::Dismissed, Vec::new(), None),
        (None, 0) => change(&questions, State::Settled, |outcome| !outcome.is_gap()),
        (None, _) if was_settled(&questions) => change(&questions, State::Reopened, Outcome::is_gap),
        (None, _) => (State::Open, Vec::new(), None),
    };
    let people: HashSet<_> = questions.iter().filter_map(|question| question.asked.person.clone()).collect();
    let times = || questions.iter().map(|question| question.asked.at);
    let within = |from: f64, to: f64| times().filter(|at| *at > from && *at <= to).count();
    let entry = |question: &&Question| Entry {
        question: question.asked.text.clone(),
        conversation_id: question.asked.conversation.clone(),
        turn: question.asked.turn,
        at: question.asked.at,
        outcome: question.asked.outcome,
        answer: question.asked.answer.clone(),
        settled_by: settled_by(question),
        history: question.steps.iter().map(|step| (step.epoch, step.outcome, step.documents.clone())).collect(),
    };
    Gap {
        id: written(group),
        name: name(book, own),
        terms: words.terms(book, own),
        kind: bounds.kind(book, own),
        state,
        by,
        epoch,
        reason,
        questions: own.len(),
        open,
        conversations: book.conversations(own),
        people: people.len(),
        first: times().fold(f64::INFINITY, f64::min),
        last: times().fold(f64::NEG_INFINITY, f64::max),
        this_week: within(now - WEEK, f64::INFINITY),
        last_week: within(now - 2.0 * WEEK, now - WEEK),
        passages: passages(&questions),
        entries: questions.iter().map(entry).collect(),
    }
}

/// The passages of its answer that came with the edit that settled it.
fn settled_by(question: &Question) -> Vec<Arc<str>> {
    let settling = question.steps.windows(2).rfind(|pair| pair[0].outcome.is_gap() && !pair[1].outcome.is_gap());
    let Some([_, settled]) = settling.filter(|_| !question.is_open()) else { return Vec::new() };
    let near = question.asked.near.iter().filter(|near| settled.documents.contains(&near.document));
    near.map(|near| near.passage.clone()).collect()
}

/// Whether all questions that had come by some epoch had an answer, and one of them lost it later.
fn was_settled(questions: &[&Question]) -> bool {
    let lost = questions.iter().filter(|question| question.is_open()).filter_map(|question| {
        let steps = &question.steps;
        let lost = steps.windows(2).rfind(|pair| !pair[0].outcome.is_gap() && pair[1].outcome.is_gap());
        // An answer that had always been there, or one that came later than the question.
        lost.map(|pair| pair[1].at).or_else(|| question.asked.before.as_ref().and_then(|_| Some(steps.first()?.at)))
    });
    let Some(last) = lost.reduce(f64::min) else { return false };
    let had_answer = |question: &&Question| {
        let before = question.steps.iter().rfind(|step| step.at < last);
        before.map_or(question.asked.before.is_some() || question.asked.at >= last, |step| !step.outcome.is_gap())
    };
    questions.iter().all(had_answer)
}

/// A state, the documents of the last change towards it, and its epoch.
fn change(questions: &[&Question], state: State, is: impl Fn(Outcome) -> bool) -> (State, Vec<Arc<str>>, Option<u64>) {
    let changed = |question: &Question, at: usize| match at.checked_sub(1) {
        Some(before) => is(question.steps[at].outcome) && !is(question.steps[before].outcome),
        None => is(question.steps[at].outcome) && question.asked.before.is_some(),
    };
    let steps: Vec<&Step> = questions
        .iter()
        .flat_map(|question| question.steps.iter().enumerate().filter(|(at, _)| changed(question, *at)))
        .map(|(_, step)| step)
        .collect();
    let epoch = steps.iter().map(|step| step.epoch).max();
    let of_epoch = steps.iter().filter(|step| Some(step.epoch) == epoch);
    let by: BTreeSet<Arc<str>> = of_epoch.flat_map(|step| step.documents.iter().cloned()).collect();
    (state, by.into_iter().collect(), epoch)
}

fn passages(questions: &[&Question]) -> Vec<Near> {
    let mut found: BTreeMap<Arc<str>, (usize, Near)> = BTreeMap::new();
    for near in questions.iter().flat_map(|question| &question.asked.near) {
        let entry = found.entry(near.passage.clone()).or_insert_with(|| (0, near.clone()));
        entry.0 += 1;
        let both = [entry.1.likeness, near.likeness];
        entry.1.likeness = both.into_iter().flatten().reduce(f32::max);
    }
    let mut found: Vec<(usize, Near)> = found.into_values().collect();
    found.sort_by(|(a, one), (b, other)| {
        let likeness = |near: &Near| near.likeness.unwrap_or(f32::NEG_INFINITY);
        b.cmp(a).then_with(|| likeness(other).total_cmp(&likeness(one)))
    });
    found.into_iter().take(PASSAGES).map(|(_, near)| near).collect()
}

/// In how many gaps each word is.
struct Frequencies {
    gaps: HashMap<String, usize>,
    all: usize,
}

impl Frequencies {
    fn of(book: &Book, members: &BTreeMap<GroupId, Vec<usize>>) -> Self {
        let mut gaps: HashMap<String, usize> = HashMap::new();
        for own in members.values() {
            let words = own.iter().flat_map(|&at| content_words(&book.questions[at].asked.text));
            let distinct: HashSet<String> = words.map(|(key, _)| key).collect();
            distinct.into_iter().for_each(|key| *gaps.entry(key).or_default() += 1);
        }
        Self { gaps, all: members.len() }
    }

    /// The words that many questions of a gap have, and few other gaps.
    fn terms(&self, book: &Book, own: &[usize]) -> Vec<String> {
        let mut counts: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for (key, shown) in own.iter().flat_map(|&at| content_words(&book.questions[at].asked.text)) {
            counts.entry(key).or_insert((0, shown)).0 += 1;
        }
        let weight = |key: &str, count: usize| {
            let gaps = self.gaps.get(key).copied().unwrap_or(1) as f64;
            count as f64 * (1.0 + self.all as f64 / gaps).ln()
        };
        let mut terms: Vec<(f64, String)> =
            counts.into_iter().map(|(key, (count, shown))| (weight(&key, count), shown)).collect();
        terms.sort_by(|a, b| b.0.total_cmp(&a.0));
        terms.into_iter().take(TERMS).map(|(_, shown)| shown).collect()
    }
}

/// What is near, by the questions that have an answer.
struct Bounds {
    /// Likeness of question and passage below which no document is about the question.
    passage: f32,
    /// The mean of the answered questions, and the likeness to it below which a question is about something else.
    subject: Option<(Vec<f32>, f32)>,
}

impl Bounds {
    fn of(book: &Book) -> Self {
        if book.samples.len() < ENOUGH {
            return Self { passage: FAR, subject: None };
        }
        let low = |mut values: Vec<f32>, share: usize| {
            values.sort_by(f32::total_cmp);
            values[values.len() * share / 100]
        };
        let passage = low(book.samples.iter().map(|sample| sample.likeness).collect(), 5);
        let units: Vec<Vec<f32>> = book.samples.iter().map(|sample| sample.vector.unit()).collect();
        let mut mean = vec![0.0; units[0].len()];
        for unit in &units {
            mean.iter_mut().zip(unit).for_each(|(mean, value)| *mean += value / units.len() as f32);
        }
        let bound = low(units.iter().map(|unit| dot(&mean, unit)).collect(), 2);
        Self { passage, subject: Some((mean, bound)) }
    }

    /// What kind of gap the questions are.
    fn kind(&self, book: &Book, own: &[usize]) -> Kind {
        let of = |&at: &usize| {
            let near = &book.questions[at].asked.near;
            near.iter().filter_map(|near| near.likeness).reduce(f32::max)
        };
        let mut likeness: Vec<f32> = own.iter().filter_map(of).collect();
        let has_none = own.iter().all(|&at| book.questions[at].asked.near.is_empty());
        likeness.sort_by(f32::total_cmp);
        let is_far = match likeness.get(likeness.len() / 2) {
            Some(&middle) => middle < self.passage,
            None if has_none => true,
            None => return Kind::Unknown,
        };
        let is_outside = self.subject.as_ref().is_some_and(|(subject, bound)| {
            let mut mean = vec![0.0; subject.len()];
            for &at in own {
                mean.iter_mut().zip(book.groups.vector(at)).for_each(|(mean, value)| *mean += value);
            }
            dot(subject, &mean) / dot(&mean, &mean).sqrt().max(f32::MIN_POSITIVE) < *bound
        });
        match (is_far, is_outside) {
            (true, true) => Kind::OutsideSubject,
            (true, false) => Kind::NoDocument,
            (false, _) => Kind::NotAnswered,
        }
    }
}
