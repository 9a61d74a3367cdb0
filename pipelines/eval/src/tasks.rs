//! The tasks an evaluation runs.
//!
//! Tasks are JSON Lines, either MTRAG's tasks (`task_id`, `input`, …) or BEIR
//! queries (`_id`, `text`), recognised by their fields. Both turnflow's field
//! names and those of MTRAG's own files (`Answerability`, `Question Type`, …)
//! are accepted.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use turnflow_engine::record::{Speaker, Utterance};

use super::trec::lines;

/// One question to answer, with the conversation before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    /// The id used in judgements.
    pub id: String,
    /// Its conversation. Several tasks may share a conversation, each with its
    /// own complete `input`.
    pub conversation_id: String,
    /// The user's turn that asks it, counted from 1.
    pub turn: u32,
    /// The corpus to search, if the task names one.
    pub collection: Option<String>,
    /// The conversation, oldest first; the last utterance is the question.
    pub input: Vec<Utterance>,
    /// MTRAG: `ANSWERABLE`, `PARTIAL`, `UNANSWERABLE` or `UNDERSPECIFIED`.
    pub answerability: Option<String>,
    /// MTRAG: the kinds of question (`Factoid`, `Comparative`, …).
    pub question_types: Vec<String>,
    /// MTRAG: its relation to the earlier turns (`Follow-up`, `Clarification`, `N/A`).
    pub multi_turn: Vec<String>,
    /// Ids of the passages the reference answer was written from.
    pub contexts: Vec<String>,
    /// The reference answer.
    pub target: Option<String>,
}

/// Why a task file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TasksError {
    /// The file cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line is not the JSON of a task.
    #[error("{}:{line}: not a task", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A task lacks a required field.
    #[error("{}:{line}: a task needs {field}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is missing.
        field: &'static str,
    },
    /// Two tasks have the same id.
    #[error("{}:{line}: duplicate task id `{id}`", path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The later task's line, counted from 1.
        line: usize,
        /// The id.
        id: String,
    },
}

/// A list, which some files write as a single value.
#[derive(Deserialize)]
#[serde(untagged)]
enum Many<T> {
    One(T),
    List(Vec<T>),
}

impl<T> Many<T> {
    fn list(given: Option<Many<T>>) -> Vec<T> {
        match given {
            Some(Many::One(value)) => vec![value],
            Some(Many::List(values)) => values,
            None => Vec::new(),
        }
    }
}

/// The number of a turn; the published tasks write it as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u32),
    Text(String),
}

/// A reference passage: its id, or the passage itself.
#[derive(Deserialize)]
#[serde(untagged)]
enum Context {
    Id(String),
    Passage { document_id: String },
}

/// Any line of a task file.
#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id")]
    task_id: Option<String>,
    text: Option<String>,
    input: Option<Vec<Utterance>>,
    conversation_id: Option<String>,
    turn: Option<Number>,
    #[serde(alias = "Collection")]
    collection: Option<String>,
    #[serde(alias = "Answerability")]
    answerability: Option<Many<String>>,
    #[serde(alias = "Question Type")]
    question_type: Option<Many<String>>,
    #[serde(alias = "Multi-Turn")]
    multi_turn: Option<Many<String>>,
    contexts: Option<Vec<Context>>,
    target: Option<String>,
    targets: Option<Vec<Utterance>>,
}

impl Line {
    /// The task, or what it lacks.
    fn task(self) -> Result<Task, &'static str> {
        let id = self.task_id.filter(|id| !id.is_empty()).ok_or("`task_id` or `_id`")?;
        let input = match (self.input, self.text) {
            (Some(input), _) => input,
            (None, Some(text)) => utterances(&text),
            (None, None) => return Err("`input` or `text`"),
        };
        if input.last().is_none_or(|last| last.speaker != Speaker::User) {
            return Err("an `input` that ends with the user");
        }
        // MTRAG's ids are `conversation<::>turn`.
        let (conversation, turn) = id.rsplit_once("<::>").unwrap_or((&id, ""));
        let asked = input.iter().filter(|said| said.speaker == Speaker::User).count();
        let turn = match self.turn {
            Some(Number::Number(turn)) => Some(turn),
            Some(Number::Text(text)) => text.trim().parse().ok(),
            None => turn.parse().ok(),
        };
        Ok(Task {
            conversation_id: self.conversation_id.unwrap_or_else(|| conversation.to_owned()),
            turn: turn.or(u32::try_from(asked).ok()).unwrap_or(1).max(1),
            collection: self.collection,
            input,
            answerability: Many::list(self.answerability).into_iter().next(),
            question_types: Many::list(self.question_type),
            multi_turn: Many::list(self.multi_turn),
            contexts: self.contexts.unwrap_or_default().into_iter().map(Context::id).collect(),
            target: self.target.or_else(|| Some(self.targets?.into_iter().next()?.text.to_string())),
            id,
        })
    }
}

impl Context {
    fn id(self) -> String {
        match self {
            Context::Id(id) | Context::Passage { document_id: id } => id,
        }
    }
}

/// A query's text as utterances: one by the user, or several if its lines begin
/// with MTRAG's `|user|:` and `|agent|:`.
fn utterances(text: &str) -> Vec<Utterance> {
    let marks = [("|user|:", Speaker::User), ("|agent|:", Speaker::Agent)];
    let marked = |line: &str| {
        let mut hits = marks.iter();
        hits.find_map(|(mark, speaker)| Some((*speaker, line.strip_prefix(mark)?.trim().to_owned())))
    };
    let mut said: Vec<Utterance> = Vec::new();
    for line in text.lines() {
        match (marked(line), said.last_mut()) {
            (Some((speaker, text)), _) => said.push(Utterance { speaker, text: text.into() }),
            (None, Some(last)) => last.text = format!("{}\n{line}", last.text).into(),
            (None, None) => break,
        }
    }
    if said.is_empty() {
        said.push(Utterance { speaker: Speaker::User, text: text.into() });
    }
    said
}

/// Reads a task file, in file order.
///
/// A BEIR query's turn is 1 unless its id ends in `<::>turn`.
///
/// # Errors
///
/// The file cannot be read, a line is not a task, or two tasks have the same id.
pub fn read_tasks(path: &Path) -> Result<Vec<Task>, TasksError> {
    let unread = |source| TasksError::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let (mut tasks, mut seen) = (Vec::new(), BTreeSet::new());
    for (line, json) in lines(&text) {
        let fault = |source| TasksError::Json { path: path.into(), line, source };
        let parsed: Line = serde_json::from_str(json).map_err(fault)?;
        let missing = |field| TasksError::Missing { path: path.into(), line, field };
        let task = parsed.task().map_err(missing)?;
        if !seen.insert(task.id.clone()) {
            return Err(TasksError::Duplicate { path: path.into(), line, id: task.id });
        }
        tasks.push(task);
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `text` from a temporary file.
    fn tasks(name: &str, text: &str) -> Result<Vec<Task>, TasksError> {
        let path = std::env::temp_dir().join(format!("turnflow-{}-{name}.jsonl", std::process::id()));
        std::fs::write(&path, text).expect("a temporary file");
        let read = read_tasks(&path);
        std::fs::remove_file(&path).expect("the temporary file");
        read
    }

    #[test]
    fn reads_mtrag_and_beir_lines_side_by_side() {
        let text = concat!(
            "\u{feff}",
            r#"{"task_id":"c<::>2","conversation_id":"c","turn":2,"collection":"govt","input":["#,
            r#"{"speaker":"user","text":"a"},{"speaker":"agent","text":"b"},{"speaker":"user","text":"c"}],"#,
            r#""answerability":"PARTIAL","question_type":"Factoid","multi_turn":["Follow-up"],"contexts":["p"]}"#,
            "\r\n\n",
            r#"{"_id":"q","text":"why?","metadata":{}}"#,
            "\n",
            r#"{"_id":"c<::>3","text":"|user|: one\n|agent|: two\nlines\n|user|: three "}"#,
            "\n",
            r#"{"task_id":"x","turn":"4","input":[{"speaker":"user","text":"a","metadata":{}}],"#,
            r#""Answerability":["ANSWERABLE"],"Question Type":["Opinion","How-To"],"targets":[{"speaker":"agent","text":"t"}],"#,
            r#""contexts":[{"document_id":"d","text":"…"}]}"#,
        );
        let read = tasks("mixed", text).expect("four tasks");
        let [mtrag, beir, marked, published] = &read[..] else { panic!("{} tasks", read.len()) };
        assert_eq!((mtrag.turn, mtrag.input.len(), mtrag.collection.as_deref()), (2, 3, Some("govt")));
        assert_eq!(
            (&mtrag.question_types[..], &mtrag.contexts[..]),
            (&["Factoid".to_owned()][..], &["p".to_owned()][..])
        );
        assert_eq!((beir.id.as_str(), beir.conversation_id.as_str(), beir.turn), ("q", "q", 1));
        assert_eq!(beir.input, [Utterance { speaker: Speaker::User, text: "why?".into() }]);
        assert_eq!((marked.conversation_id.as_str(), marked.turn), ("c", 3));
        assert_eq!(marked.input[1], Utterance { speaker: Speaker::Agent, text: "two\nlines".into() });
        assert_eq!(&*marked.input[2].text, "three");
        assert_eq!((published.turn, published.target.as_deref()), (4, Some("t")));
        assert_eq!((published.answerability.as_deref(), published.contexts[0].as_str()), (Some("ANSWERABLE"), "d"));
        assert_eq!(published.question_types, ["Opinion", "How-To"]);
    }

    #[test]
    fn errors_name_the_line() {
        let good = r#"{"_id":"q","text":"t"}"#;
        for (name, bad, expected) in [
            ("json", "{", "not a task"),
            ("id", r#"{"text":"t"}"#, "a task needs `task_id` or `_id`"),
            ("text", r#"{"_id":"r"}"#, "a task needs `input` or `text`"),
            ("last", r#"{"task_id":"r","input":[]}"#, "a task needs an `input` that ends with the user"),
            ("twice", good, "duplicate task id `q`"),
        ] {
            let error = tasks(name, &format!("{good}\n\n{bad}\n")).expect_err(name).to_string();
            assert!(error.ends_with(&format!(".jsonl:3: {expected}")), "{error}");
        }
        let missing = read_tasks(Path::new("no/such/file")).expect_err("no file");
        assert!(missing.to_string().starts_with("no/such/file"), "{missing}");
    }
}
