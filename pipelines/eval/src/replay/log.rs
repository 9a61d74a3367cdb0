//! Reads recorded turns and recorded answers.

use std::collections::{HashMap, HashSet};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;
use turnflow_engine::connector::SourcedTurn;
use turnflow_engine::record::{AnswerRecord, IN_ROW, Speaker, TurnRecord};

/// Why a file of records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A line is not an answer record.
    #[error("`{}`, line {line}: not an answer record: {reason}", path.display())]
    Answer {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The log has no user turn.
    #[error("`{}` has no user turn", .0.display())]
    Empty(PathBuf),
}

/// A log of conversations.
pub struct Log {
    /// Its records, in order.
    pub turns: Vec<SourcedTurn>,
    /// Positions of lines that are not turns, with the reasons.
    pub skipped: Vec<(String, String)>,
}

impl Log {
    /// The log with these records; `None` if no user speaks in it. Where its agent speaks, too, nothing of ours stands
    /// between two questions in a row.
    pub fn of(mut turns: Vec<SourcedTurn>, skipped: Vec<(String, String)>) -> Option<Self> {
        let is_agent = |turn: &&SourcedTurn| turn.record.speaker == Speaker::Agent;
        let answered: HashSet<Arc<str>> =
            turns.iter().filter(is_agent).map(|turn| turn.record.conversation_id.clone()).collect();
        let mut last: HashMap<Arc<str>, Speaker> = HashMap::new();
        for SourcedTurn { record, .. } in &mut turns {
            let before = last.insert(record.conversation_id.clone(), record.speaker);
            let is_user = record.speaker == Speaker::User;
            if is_user && before == Some(Speaker::User) && answered.contains(&record.conversation_id) {
                record.extra.insert(IN_ROW.to_owned(), true.into());
            }
        }
        let log = Self { turns, skipped };
        let is_asked = log.asked().next().is_some();
        is_asked.then_some(log)
    }

    /// The user turns.
    pub fn asked(&self) -> impl Iterator<Item = &TurnRecord> {
        self.turns.iter().map(|turn| &turn.record).filter(|record| record.speaker == Speaker::User)
    }
}

/// Reads a log of turns. Lines that are not turns are skipped, as in a run.
///
/// # Errors
///
/// The file cannot be read, or has no user turn.
pub fn read_log(path: &Path) -> Result<Log, LogError> {
    let (mut turns, mut skipped) = (Vec::new(), Vec::new());
    for (at, line) in lines(path)?.enumerate() {
        let line = line.map_err(|source| LogError::Io { path: path.to_owned(), source })?;
        let position = format!("{}:{}", path.display(), at + 1);
        if line.trim_ascii().is_empty() {
            continue;
        }
        match TurnRecord::parse(&line) {
            Ok(record) => turns.push(SourcedTurn { record, position, history: None, place: None }),
            Err(error) => skipped.push((position, error.to_string())),
        }
    }
    Log::of(turns, skipped).ok_or_else(|| LogError::Empty(path.to_owned()))
}

/// Recorded answers, by conversation and turn.
pub type Recorded = HashMap<(Arc<str>, u32), Vec<AnswerRecord>>;

/// Reads recorded answers: of each turn, the newest one that is not retracted. If several turns have
/// the same number, their answers are in file order.
///
/// # Errors
///
/// The file cannot be read, or a line is not an answer record.
pub fn read_answers(path: &Path) -> Result<Recorded, LogError> {
    let mut answers = Recorded::new();
    for (at, line) in lines(path)?.enumerate() {
        let line = line.map_err(|source| LogError::Io { path: path.to_owned(), source })?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |reason: String| LogError::Answer { path: path.to_owned(), line: at + 1, reason };
        let json: Json = serde_json::from_slice(&line).map_err(|error| wrong(error.to_string()))?;
        if json.get("retracted").and_then(Json::as_bool) == Some(true) {
            let field = |name: &str| json.get(name).ok_or_else(|| wrong(format!("missing field `{name}`")));
            let conversation = field("conversation_id")?.as_str().unwrap_or_default();
            let turn = field("turn")?.as_u64().unwrap_or_default() as u32;
            answers.remove(&(Arc::from(conversation), turn));
            continue;
        }
        let record: AnswerRecord = serde_json::from_value(json).map_err(|error| wrong(error.to_string()))?;
        let standing = answers.entry((record.conversation_id.clone(), record.turn)).or_default();
        match standing.last_mut().filter(|_| record.revision > 0) {
            Some(before) => *before = record,
            None => standing.push(record),
        }
    }
    Ok(answers)
}

fn lines(path: &Path) -> Result<impl Iterator<Item = std::io::Result<Vec<u8>>>, LogError> {
    let file = std::fs::File::open(path).map_err(|source| LogError::Io { path: path.to_owned(), source })?;
    Ok(std::io::BufReader::new(file).split(b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_turns_are_skipped_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("turns.jsonl");
        let turn = |speaker: &str| format!(r#"{{"conversation_id":"c","turn":1,"speaker":"{speaker}","text":"x"}}"#);
        std::fs::write(&path, format!("{}\n\n{{\n{}", turn("user"), turn("agent"))).unwrap();
        let log = read_log(&path).unwrap();
        assert_eq!((log.turns.len(), log.asked().count(), log.skipped.len()), (2, 1, 1));
        assert!(log.skipped[0].0.ends_with("turns.jsonl:3"), "{:?}", log.skipped);
        std::fs::write(&path, turn("agent")).unwrap();
        assert!(matches!(read_log(&path), Err(LogError::Empty(_))));
    }
}
