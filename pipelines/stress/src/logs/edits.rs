//! A log whose messages are edited and deleted after they were answered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use turnflow_eval::random::Random;

use super::{Log, World};

/// How many of the last questions may be edited or deleted.
const RECENT: usize = 100;

/// One question.
struct Question {
    conversation: String,
    /// Its present text; `None`: it is deleted.
    text: Option<String>,
    version: u64,
}

/// A file to which messages, edits and deletions are appended.
pub(super) struct Edits {
    path: PathBuf,
    questions: BTreeMap<u64, Question>,
}

impl Edits {
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("messages.jsonl"), questions: BTreeMap::new() }
    }

    fn append(&self, records: &[Value]) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        file.write_all(lines.as_bytes()).context("cannot write the log")
    }
}

impl Log for Edits {
    fn source(&self) -> String {
        let program =
            "{id, conversation: .c, speaker: .s, text: .t, order: .id, version: .v, removed: (.gone // false)}";
        format!(
            "Files(glob: \"messages.jsonl\", every_s: 0.05, map: Jq({program:?}), \
             conversations: (settle_s: 0.2, revise: true))"
        )
    }

    fn write(&mut self, records: &[Value]) -> anyhow::Result<()> {
        let mut all = records.to_vec();
        for record in &mut all {
            record["v"] = 1.into();
            let Some(id) = record["id"].as_u64().filter(|_| record["s"] == "user") else { continue };
            let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
            let new = || Question { conversation: text("c"), text: Some(text("t")), version: 1 };
            self.questions.entry(id).or_insert_with(new);
        }
        self.append(&all)
    }

    fn disturb(&mut self, random: &mut Random) -> anyhow::Result<bool> {
        let recent = self.questions.len().min(RECENT);
        if recent == 0 {
            return Ok(false);
        }
        let Some((id, question)) = self.questions.iter_mut().rev().nth(random.below(recent)) else { return Ok(false) };
        let Some(text) = &question.text else { return Ok(false) };
        question.version += 1;
        let mut record = json!({"id": id, "v": question.version});
        if random.below(5) == 0 {
            question.text = None;
            record["gone"] = true.into();
        } else {
            // The number of the question ends its text.
            let text = format!("Once more: {text}");
            record["t"] = text.clone().into();
            question.text = Some(text);
        }
        self.append(&[record])?;
        Ok(true)
    }

    /// Each question has one answer that stands, to its present text, and a deleted one has none. Nothing is written twice.
    fn wrong(&self, world: &World) -> Vec<String> {
        let (mut wrong, mut written, mut standing) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        for record in world.records() {
            let key = record["key"].as_str().unwrap_or_default().to_owned();
            let is_retracted = record["retracted"] == true;
            if !written.insert((key.clone(), record["revision"].as_u64(), is_retracted)) || record["revision"] != 0 {
                wrong.push(format!("written twice: {record}"));
            }
            match is_retracted {
                true => drop(standing.remove(&key)),
                false => drop(standing.insert(key, record)),
            }
        }
        let mut by_question: BTreeMap<(String, String), usize> = BTreeMap::new();
        for record in standing.values() {
            let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
            *by_question.entry((text("conversation_id"), text("query"))).or_default() += 1;
        }
        for (id, question) in &self.questions {
            let Some(text) = &question.text else { continue };
            match by_question.remove(&(question.conversation.clone(), text.clone())).unwrap_or_default() {
                1 => {}
                answers => wrong.push(format!("message {id} ({text:?}) has {answers} answers")),
            }
        }
        wrong.extend(by_question.into_keys().map(|question| format!("{question:?} was taken back, and stands")));
        wrong
    }
}
