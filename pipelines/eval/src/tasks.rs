//! The tasks an evaluation runs.
//!
//! Tasks are JSON Lines, either MTRAG's tasks (`task_id`, `input`, …) or BEIR
//! queries (`_id`, `text`), recognised by their fields, or a JSON list of these,
//! such as ObliQA's questions (`QuestionID`, `Question`). Both turnflow's field
//! names and those of MTRAG's own files (`Answerability`, `Question Type`,
//! `Standalone Type`, …) are accepted, and the annotations of the last utterance (`enrichments`) if the
//! task has none. Some of these files contain `NaN`, which is not JSON; it is
//! read as `null`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use turnflow_engine::record::{Speaker, Utterance};

use super::import::list_elements;
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
    /// The corpus to search, if the task names one, by its name or an alias.
    pub collection: Option<String>,
    /// The conversation, oldest first; the last utterance is the question.
    pub input: Vec<Utterance>,
    /// MTRAG: `ANSWERABLE`, `PARTIAL`, `UNANSWERABLE` or `UNDERSPECIFIED`.
    pub answerability: Option<String>,
    /// MTRAG: the kinds of question (`Factoid`, `Comparative`, …).
    pub question_types: Vec<String>,
    /// MTRAG: its relation to the earlier turns (`Follow-up`, `Clarification`, `N/A`).
    pub multi_turn: Vec<String>,
    /// MTRAG: whether the question can be understood without the conversation; `None` if neither the
    /// task nor a rewriter says so.
    pub standalone: Option<bool>,
    /// Ids of the passages the reference answer was written from.
    pub contexts: Vec<String>,
    /// The reference answer.
    pub target: Option<String>,
    /// Further reference answers, each as good as `target`.
    pub other_targets: Vec<String>,
}

impl Task {
    /// All reference answers: none, if it has no `target`.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.target.iter().chain(&self.other_targets).map(String::as_str)
    }
}

/// A part of the tasks: what is learned on one part is measured on the other.
///
/// A conversation belongs to a part once and for all, by a hash of its first question, whatever else the file has. Letter
/// case and white space do not count. So all tasks of a conversation are in one part, and so are equal questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The half that weights and thresholds may be learned on.
    Learn,
    /// The half that is kept for measuring them.
    HeldOut,
}

impl Part {
    /// The part of a task.
    pub fn of(task: &Task) -> Self {
        let first = task.input.iter().find(|said| said.speaker == Speaker::User);
        let words = first.map(|said| said.text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase());
        match blake3::hash(words.unwrap_or_default().as_bytes()).as_bytes()[0] {
            0..=127 => Self::Learn,
            128..=255 => Self::HeldOut,
        }
    }

    /// The tasks of this part.
    pub fn choose(self, tasks: Vec<Task>) -> Vec<Task> {
        tasks.into_iter().filter(|task| Self::of(task) == self).collect()
    }
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

/// Why a line is not a task.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// It is not the JSON of a task.
    #[error("not a task")]
    Json(#[source] serde_json::Error),
    /// It lacks a required field.
    #[error("a task needs {0}")]
    Missing(&'static str),
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

/// Whether a question is standalone, as a value or as the name of its class.
#[derive(Deserialize)]
#[serde(untagged)]
enum Class {
    Is(bool),
    Name(String),
}

impl Class {
    /// `None` if the name is not that of a class.
    fn standalone(self) -> Option<bool> {
        let name = match self {
            Class::Is(standalone) => return Some(standalone),
            Class::Name(name) => name,
        };
        let letters: String = name.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect();
        match letters.as_str() {
            "standalone" | "yes" => Some(true),
            "nonstandalone" | "notstandalone" | "no" => Some(false),
            _ => None,
        }
    }
}

/// A reference answer: its text, or the utterance.
#[derive(Deserialize)]
#[serde(untagged)]
enum Reference {
    Text(String),
    Said { text: String },
}

/// An utterance with its annotations, which MTRAG's conversations have.
#[derive(Deserialize)]
struct Said {
    speaker: Speaker,
    text: Arc<str>,
    enrichments: Option<Annotations>,
}

/// The annotations of a question.
#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(alias = "Answerability")]
    answerability: Option<Many<String>>,
    #[serde(alias = "Question Type")]
    question_type: Option<Many<String>>,
    #[serde(alias = "Multi-Turn")]
    multi_turn: Option<Many<String>>,
    #[serde(alias = "Standalone Type", alias = "standalone_type")]
    standalone: Option<Many<Class>>,
}

/// Any line of a task file.
#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id", alias = "QuestionID")]
    task_id: Option<String>,
    #[serde(alias = "Question")]
    text: Option<String>,
    input: Option<Vec<Said>>,
    conversation_id: Option<String>,
    #[serde(alias = "Turn")]
    turn: Option<Number>,
    #[serde(alias = "Collection")]
    collection: Option<String>,
    #[serde(alias = "Answerability")]
    answerability: Option<Many<String>>,
    #[serde(alias = "Question Type")]
    question_type: Option<Many<String>>,
    #[serde(alias = "Multi-Turn")]
    multi_turn: Option<Many<String>>,
    #[serde(alias = "Standalone Type", alias = "standalone_type")]
    standalone: Option<Many<Class>>,
    contexts: Option<Vec<Context>>,
    target: Option<Many<String>>,
    targets: Option<Vec<Reference>>,
}

impl Line {
    /// The task, or what it lacks.
    fn task(self) -> Result<Task, &'static str> {
        let id = self.task_id.filter(|id| !id.is_empty()).ok_or("`task_id` or `_id`")?;
        let mut also = Annotations::default();
        let input = match (self.input, self.text) {
            (Some(mut input), _) => {
                also = input.last_mut().and_then(|last| last.enrichments.take()).unwrap_or_default();
                input.into_iter().map(|said| Utterance { speaker: said.speaker, text: said.text }).collect()
            }
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
        let standalone = Many::list(self.standalone.or(also.standalone)).into_iter().next();
        let mut targets: Vec<String> = match self.target {
            Some(targets) => Many::list(Some(targets)),
            None => self.targets.into_iter().flatten().map(Reference::text).collect(),
        };
        let other_targets = targets.split_off(targets.len().min(1));
        Ok(Task {
            conversation_id: self.conversation_id.unwrap_or_else(|| conversation.to_owned()),
            turn: turn.or(u32::try_from(asked).ok()).unwrap_or(1).max(1),
            collection: self.collection,
            input,
            answerability: Many::list(self.answerability.or(also.answerability)).into_iter().next(),
            question_types: Many::list(self.question_type.or(also.question_type)),
            multi_turn: Many::list(self.multi_turn.or(also.multi_turn)),
            standalone: standalone.and_then(Class::standalone),
            contexts: self.contexts.unwrap_or_default().into_iter().map(Context::id).collect(),
            target: targets.pop(),
            other_targets,
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

impl Reference {
    fn text(self) -> String {
        match self {
            Reference::Text(text) | Reference::Said { text } => text,
        }
    }
}

/// The JSON of a line without `NaN` and infinities, which Python's writers leave in it.
pub(crate) fn without_nan(json: &str) -> Cow<'_, str> {
    if !["NaN", "Infinity"].iter().any(|word| json.contains(word)) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    let (mut rest, mut quoted) = (json, false);
    while let Some(letter) = rest.chars().next() {
        let word = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| !quoted && rest.starts_with(word));
        // An escaped quotation mark does not end the text.
        let length = match word {
            Some(word) => word.len(),
            None if quoted && letter == '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            None => letter.len_utf8(),
        };
        quoted ^= letter == '"';
        out.push_str(if word.is_some() { "null" } else { &rest[..length] });
        rest = &rest[length..];
    }
    Cow::Owned(out)
}

/// Reads one line of a task file.
///
/// # Errors
///
/// The line is not the JSON of a task, or lacks a field.
pub fn read_task(json: &str) -> Result<Task, LineError> {
    let line: Line = match serde_json::from_str(json) {
        Ok(line) => line,
        Err(error) => match without_nan(json) {
            Cow::Borrowed(_) => return Err(LineError::Json(error)),
            Cow::Owned(json) => serde_json::from_str(&json).map_err(LineError::Json)?,
        },
    };
    line.task().map_err(LineError::Missing)
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
    let is_list = text.trim_start_matches('\u{feff}').trim_start().starts_with('[');
    let records: Vec<(usize, Cow<'_, str>)> = match is_list {
        true => list_elements(&text).into_iter().map(|(line, json)| (line, json.into())).collect(),
        false => lines(&text).map(|(line, json)| (line, json.into())).collect(),
    };
    for (line, json) in records {
        let task = read_task(&json).map_err(|error| match error {
            LineError::Json(source) => TasksError::Json { path: path.into(), line, source },
            LineError::Missing(field) => TasksError::Missing { path: path.into(), line, field },
        })?;
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

    /// Lines in the shapes that MTRAG publishes: a task as the shared task's organisers send it, one of
    /// MTRAG-UN, and one whose annotations are those of its last utterance.
    #[test]
    fn published_tasks_are_read_as_they_are() {
        let text = concat!(
            r#"{"conversation_id":"c0","task_id":"c0::1","task_type":"rag","turn":1,"#,
            r#""Collection":"mt-rag-clapnq-elser-512-100-20240503","dataset":"D","contexts":[],"#,
            r#""input":[{"speaker":"user","text":"NaN \"NaN\" Infinity?","metadata":{"created_at":5}}],"#,
            r#""Question Type":["Factoid"],"answerability":["UNANSWERABLE"],"Multi-Turn":NaN,"Validity":-Infinity}"#,
            "\n",
            r#"{"conversation_id":"c1","task_id":"c1<::>2","turn":"2","Collection":"ibmcloud","#,
            r#""contexts":[{"document_id":"ibmcld_1-0-9","text":"…","title":"T"}],"input":[{"speaker":"user","text":"a"},"#,
            r#"{"speaker":"agent","text":"b"},{"speaker":"user","text":"c"}],"targets":[{"speaker":"agent","text":"t"}],"#,
            r#""answerability":["PARTIAL"],"Question Type":["How-To","Keyword"],"Multi-Turn":["Follow-up"]}"#,
            "\n",
            r#"{"task_id":"c2<::>1","collection":"govt","input":[{"speaker":"user","text":"a","#,
            r#""enrichments":{"answerability":["ANSWERABLE"],"Question Type":["Opinion"],"Multi-Turn":["N/A"]}}]}"#,
        );
        let read = tasks("published", text).expect("three tasks");
        let kinds =
            |task: &Task| (task.answerability.clone(), task.question_types.join("+"), task.multi_turn.join("+"));
        assert_eq!(kinds(&read[0]), (Some("UNANSWERABLE".into()), "Factoid".into(), String::new()));
        assert_eq!(&*read[0].input[0].text, "NaN \"NaN\" Infinity?");
        assert_eq!((read[0].conversation_id.as_str(), read[0].turn), ("c0", 1));
        assert_eq!(kinds(&read[1]), (Some("PARTIAL".into()), "How-To+Keyword".into(), "Follow-up".into()));
        assert_eq!(
            (read[1].turn, read[1].collection.as_deref(), read[1].target.as_deref()),
            (2, Some("ibmcloud"), Some("t"))
        );
        assert_eq!(kinds(&read[2]), (Some("ANSWERABLE".into()), "Opinion".into(), "N/A".into()));
    }

    #[test]
    fn a_task_says_whether_its_question_is_standalone() {
        let read = |fields: &str| read_task(&format!(r#"{{"_id":"q","text":"t",{fields}}}"#)).expect(fields).standalone;
        for (fields, want) in [
            (r#""standalone":true"#, Some(true)),
            (r#""standalone":"no""#, Some(false)),
            (r#""Standalone Type":["Non-Standalone"]"#, Some(false)),
            (r#""Standalone Type":"standalone""#, Some(true)),
            (r#""Standalone Type":NaN"#, None),
            (r#""Standalone Type":["Validity"]"#, None),
            (r#""Multi-Turn":["Clarification"]"#, None),
        ] {
            assert_eq!(read(fields), want, "{fields}");
        }
    }

    #[test]
    fn a_task_may_have_several_reference_answers() {
        for fields in
            [r#""target":["a","b"]"#, r#""targets":["a","b"]"#, r#""targets":[{"speaker":"agent","text":"a"},"b"]"#]
        {
            let task = read_task(&format!(r#"{{"_id":"q","text":"t",{fields}}}"#)).expect(fields);
            assert_eq!((task.target.as_deref(), &task.other_targets[..]), (Some("a"), &["b".to_owned()][..]));
            assert_eq!(task.targets().collect::<Vec<_>>(), ["a", "b"]);
        }
        assert_eq!(read_task(r#"{"_id":"q","text":"t"}"#).expect("a task").targets().count(), 0);
    }

    /// The parts are the same in every version: figures of one are not those of the other.
    #[test]
    fn a_conversation_is_in_one_part_for_good() {
        let text: String = (0..200).map(|n| format!("{{\"_id\":\"q{n}\",\"text\":\"Question {n}?\"}}\n")).collect();
        let all = tasks("parts", &text).expect("tasks");
        let learn = Part::Learn.choose(all.clone());
        assert_eq!(learn.len() + Part::HeldOut.choose(all.clone()).len(), 200);
        let first: Vec<&str> = learn.iter().take(6).map(|task| task.id.as_str()).collect();
        assert_eq!((learn.len(), first), (85, vec!["q2", "q3", "q5", "q9", "q12", "q13"]));
        let later = r#"{"task_id":"c<::>2","input":[{"speaker":"user","text":" question  0? "},{"speaker":"agent","text":"b"},{"speaker":"user","text":"c"}]}"#;
        assert_eq!(Part::of(&read_task(later).expect("a task")), Part::of(&all[0]));
    }

    /// As ObliQA publishes its questions.
    #[test]
    fn tasks_may_be_a_list() {
        let text = "[\n  {\n  \"QuestionID\": \"q\",\n  \"Question\": \"Who [a]?\"\n  },\n  {\"_id\": \"r\", \"text\": \"?\"}\n]\n";
        let read = tasks("list", text).expect("two tasks");
        assert_eq!((read.len(), &*read[0].id, &*read[0].input[0].text, read[0].turn), (2, "q", "Who [a]?", 1));
        for (name, text, want) in [
            ("cut-list", &text[..40], ":2: not a task"),
            ("list-of-texts", "[\n\"q\"]", ":2: not a task"),
            ("nameless", "[\n\n{\"Question\": \"?\"}]", ":3: a task needs `task_id` or `_id`"),
        ] {
            let error = tasks(name, text).expect_err(name).to_string();
            assert!(error.contains(want), "{error}");
        }
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
