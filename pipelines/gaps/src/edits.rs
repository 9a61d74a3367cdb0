//! What an edit did: the record of an epoch that settled questions, or took their answers away.
//!
//! A record is a line of a log of turns as well, so a pipeline can read it (`JsonLines`) and send it to any sink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::book::{Book, Untold};
use crate::groups::GroupId;
use crate::report::name;

/// Questions that a record names for each group.
const NAMED: usize = 20;

/// What one or more epochs did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edit {
    /// `edits`, so that the record is a turn.
    pub conversation_id: &'static str,
    /// The number of the record, from 1.
    pub turn: u32,
    /// `user`, so that the record is a turn.
    pub speaker: &'static str,
    /// What was done, in a sentence.
    pub text: String,
    /// The last epoch that it tells of.
    pub epoch: u64,
    /// The documents that made the difference.
    pub documents: Vec<Arc<str>>,
    /// Questions that have an answer now, by group.
    pub settled: Vec<Settled>,
    /// Answers that do not hold any more.
    pub broken: Vec<Broken>,
}

/// The questions of a group that have an answer now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settled {
    /// The group.
    pub gap: String,
    /// Its name.
    pub name: String,
    /// Number of questions that have an answer now and lacked one.
    pub count: usize,
    /// Number of the group's questions.
    pub of: usize,
    /// Number of the group's questions that lack an answer still.
    pub open: usize,
    /// The first questions.
    pub questions: Vec<Arc<str>>,
    /// The documents that made the difference.
    pub documents: Vec<Arc<str>>,
}

/// A question that had an answer, and lacks one now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Broken {
    /// The conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn.
    pub turn: u32,
    /// The question.
    pub question: Arc<str>,
    /// The answer that it had.
    pub before: Arc<str>,
    /// The answer now.
    pub answer: Arc<str>,
    /// Its group.
    pub gap: String,
    /// The documents that made the difference.
    pub documents: Vec<Arc<str>>,
}

/// The number of a group, as it is written.
pub fn written(group: GroupId) -> String {
    format!("g{group}")
}

impl Edit {
    /// The record of what is not told yet; `None` if there is nothing.
    pub fn of(book: &Book) -> Option<Self> {
        let epoch = book.untold.iter().map(|untold| untold.epoch).max()?;
        let members = book.members();
        let mut groups: BTreeMap<GroupId, Vec<&Untold>> = BTreeMap::new();
        let mut broken = Vec::new();
        for untold in &book.untold {
            let group = book.groups.of(untold.question);
            if untold.is_settled {
                groups.entry(group).or_default().push(untold);
                continue;
            }
            let asked = &book.questions[untold.question].asked;
            broken.push(Broken {
                conversation_id: asked.conversation.clone(),
                turn: asked.turn,
                question: asked.text.clone(),
                before: untold.before.clone(),
                answer: asked.answer.clone(),
                gap: written(group),
                documents: untold.documents.clone(),
            });
        }
        let settled = groups.into_iter().map(|(group, changes)| {
            let own = members.get(&group).map(Vec::as_slice).unwrap_or_default();
            let question = |untold: &&Untold| book.questions[untold.question].asked.text.clone();
            Settled {
                gap: written(group),
                name: name(book, own),
                count: changes.len(),
                of: own.len(),
                open: own.iter().filter(|&&at| book.questions[at].is_open()).count(),
                questions: changes.iter().take(NAMED).map(question).collect(),
                documents: distinct(changes.iter().flat_map(|untold| &untold.documents)),
            }
        });
        let mut settled: Vec<Settled> = settled.collect();
        settled.sort_by_key(|one| std::cmp::Reverse(one.count));
        let documents = distinct(book.untold.iter().flat_map(|untold| &untold.documents));
        let text = sentence(&documents, &settled, &broken);
        let turn = book.told + 1;
        Some(Self { conversation_id: "edits", turn, speaker: "user", text, epoch, documents, settled, broken })
    }
}

fn distinct<'a>(documents: impl Iterator<Item = &'a Arc<str>>) -> Vec<Arc<str>> {
    documents.cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// `refunds.md: 14 of 17 questions like "…" are answered now; 2 answers do not hold any more`.
fn sentence(documents: &[Arc<str>], settled: &[Settled], broken: &[Broken]) -> String {
    let mut parts: Vec<String> = settled.iter().take(3).map(one_group).collect();
    if settled.len() > 3 {
        let rest: usize = settled[3..].iter().map(|one| one.count).sum();
        let groups = settled.len() - 3;
        parts.push(format!("{rest} more in {groups} {}", if groups == 1 { "gap" } else { "gaps" }));
    }
    match broken.len() {
        0 => {}
        1 => parts.push("1 answer does not hold any more".to_owned()),
        many => parts.push(format!("{many} answers do not hold any more")),
    }
    let what = parts.join("; ");
    match documents {
        [] => what,
        [one] => format!("{one}: {what}"),
        [one, other] => format!("{one}, {other}: {what}"),
        [one, rest @ ..] => format!("{one} and {} more documents: {what}", rest.len()),
    }
}

fn one_group(settled: &Settled) -> String {
    let Settled { name, count, of, .. } = settled;
    match of {
        1 => format!("\"{name}\" is answered now"),
        _ => {
            format!("{count} of {of} questions like \"{name}\" {} answered now", if *count == 1 { "is" } else { "are" })
        }
    }
}

/// Bytes at the end of the file in which its last record is looked for.
const END: u64 = 4 << 20;
/// All records begin with so many equal bytes.
const BEGIN: usize = 8;

/// Appends a record to the file of edits, unless it has it: a process was killed after it wrote it.
///
/// # Errors
///
/// The file cannot be read or written.
pub fn append(path: &Path, edit: &Edit) -> io::Result<()> {
    let mut line = serde_json::to_vec(edit)?;
    line.push(b'\n');
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(END);
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    (&mut file).take(END).read_to_end(&mut end)?;
    // A torn line is the one that comes now.
    let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let begin = end[..whole.saturating_sub(1)].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let last: Option<serde_json::Value> = serde_json::from_slice(&end[begin..whole]).ok();
    if last.is_some_and(|last| last["turn"] == edit.turn) {
        return Ok(());
    }
    let torn = &end[whole..];
    if !line.starts_with(&torn[..torn.len().min(BEGIN)]) {
        return Err(io::Error::other("what follows its last line is no record of this program: move the file away"));
    }
    if whole > 0 || start == 0 {
        file.set_len(start + whole as u64)?;
    }
    file.write_all(&line)?;
    file.sync_data()
}
