//! MTRAG (Katsis et al. 2025) and MTRAG-UN (Rosenthal et al. 2026): conversations over four corpora.
//!
//! | file | becomes |
//! |---|---|
//! | `corpora/passage_level/NAME.jsonl.zip`: `{_id, title, text, …}` | `corpus/NAME.jsonl` |
//! | `generation_tasks/reference.jsonl` and `synthetic.jsonl` | `tasks.jsonl` |
//! | `generation_tasks/RAG.jsonl`, `reference+RAG.jsonl`: their `contexts` are retrieved passages | `tasks.rag.jsonl`, `tasks.reference-rag.jsonl` |
//! | `retrieval_tasks/NAME/NAME_lastturn.jsonl`, `…_rewrite.jsonl`, `…_questions.jsonl` | `queries.lastturn.jsonl`, `queries.rewrite.jsonl`, `queries.questions.jsonl` |
//! | `retrieval_tasks/NAME/qrels/dev.tsv`, `retrieval_tasks/qrels/NAME.tsv` | `qrels.tsv` |
//! | `conversations/conversations.json`; else the conversations of the tasks | `turns.jsonl` |
//! | `evaluations/NAME.json`: tasks, the answers of several models, and their scores | `evaluations/NAME/`; see [`evaluations`](super::evaluations) |
//!
//! Collections get the names of the corpora: `clapnq`, `cloud`, `fiqa` and `govt`. The corpora of whole
//! documents are skipped if those of passages are among the inputs, because the judgements name passages.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::input::Input;
use super::{ImportError, Job, Place, evaluations, safe, text};
use crate::tasks::{LineError, Task, read_task};

const IDS: [&str; 3] = ["_id", "id", "document_id"];

/// What a file contains.
enum Kind {
    Passages,
    Tasks,
    Queries,
    Conversations,
}

/// The name of the corpus that a collection or a file of it is published for.
fn corpus(collection: &str) -> String {
    let name = collection.strip_prefix("mt-rag-").unwrap_or(collection);
    match name.split('-').next().unwrap_or(name) {
        "ibmcloud" | "cloud" => "cloud".to_owned(),
        known @ ("clapnq" | "fiqa" | "govt") => known.to_owned(),
        _ => safe(collection),
    }
}

/// How a query was made: the end of its file's name.
fn strategy(stem: &str) -> Option<(&str, &str)> {
    stem.rsplit_once('_').filter(|(_, end)| ["lastturn", "rewrite", "questions"].contains(end))
}

fn kind(input: &Input, first: &Map<String, Value>) -> Option<Kind> {
    let has = |name: &str| first.contains_key(name);
    match () {
        () if has("messages") => Some(Kind::Conversations),
        () if has("input") => Some(Kind::Tasks),
        () if !has("text") || !IDS.iter().any(|name| has(name)) => None,
        () if strategy(&input.stem).is_some() => Some(Kind::Queries),
        () => Some(Kind::Passages),
    }
}

/// The utterances of a conversation, oldest first.
#[derive(Default)]
struct Conversation {
    id: String,
    collection: Option<String>,
    said: Vec<Said>,
}

struct Said {
    speaker: String,
    text: String,
    timestamp: Option<Value>,
}

impl Said {
    /// `None` if it is not an utterance of a user or an agent.
    fn read(utterance: &Value) -> Option<Self> {
        let speaker = utterance.get("speaker")?.as_str().filter(|name| ["user", "agent"].contains(name))?;
        let time = utterance.get("timestamp").or_else(|| utterance.get("metadata")?.get("created_at"));
        Some(Self {
            speaker: speaker.to_owned(),
            text: utterance.get("text")?.as_str()?.to_owned(),
            timestamp: time.filter(|time| time.is_number()).cloned(),
        })
    }
}

impl Conversation {
    fn questions(&self) -> impl Iterator<Item = &str> {
        self.said.iter().filter(|said| said.speaker == "user").map(|said| said.text.as_str())
    }

    /// Whether the questions of one conversation are the first ones of the other.
    fn continues(&self, other: &Self) -> bool {
        self.questions().next().is_some() && self.questions().zip(other.questions()).all(|(one, other)| one == other)
    }
}

/// The conversations of tasks, by id, each from its longest task.
#[derive(Default)]
struct Conversations {
    list: Vec<Conversation>,
    places: HashMap<String, usize>,
}

impl Conversations {
    fn add(&mut self, conversation: Conversation) {
        match self.places.get(&conversation.id) {
            Some(&at) if self.list[at].said.len() >= conversation.said.len() => {}
            Some(&at) => self.list[at] = conversation,
            None => {
                self.places.insert(conversation.id.clone(), self.list.len());
                self.list.push(conversation);
            }
        }
    }
}

pub(super) fn import(inputs: &[Input], job: &mut Job) -> Result<(), ImportError> {
    let passages: Vec<&str> =
        inputs.iter().filter(|input| input.is_in("passage_level")).map(|input| input.stem.as_str()).collect();
    let (mut tasks, mut conversations) = (Vec::new(), Vec::new());
    for input in inputs {
        if input.found && input.folders.iter().skip(1).any(|folder| folder == "scripts") {
            job.skipped.add("sample data of the evaluation scripts", input.name.clone());
            continue;
        }
        if input.is_in("document_level") && passages.contains(&input.stem.as_str()) {
            job.skipped.add("whole documents, whose passages are imported", input.name.clone());
            continue;
        }
        if input.extension == "tsv" {
            job.judgements(input, "qrels.tsv")?;
            continue;
        }
        if let Some(object) = job.only_object(input)?.filter(|object| object.contains_key("evaluations")) {
            evaluations::import(input, job, object)?;
            continue;
        }
        let Some(first) = job.first(input)? else { continue };
        match kind(input, &first) {
            Some(Kind::Passages) => {
                let file = format!("corpus/{}.jsonl", corpus(&input.stem));
                job.objects(input, |job, place, _, row| passage(job, place, &file, row))?;
            }
            Some(Kind::Queries) => queries(input, job)?,
            Some(Kind::Tasks) => tasks.push(input),
            Some(Kind::Conversations) => conversations.push(input),
            None => job.skipped.add("not a file of MTRAG", input.name.clone()),
        }
    }
    let mut spoken = Conversations::default();
    for input in tasks {
        let file = match input.stem.as_str() {
            "RAG" => "tasks.rag.jsonl",
            "reference+RAG" => "tasks.reference-rag.jsonl",
            _ => "tasks.jsonl",
        };
        job.objects(input, |job, place, line, row| {
            let Some(task) = task(job, place, file, line, &row)? else { return Ok(()) };
            spoken.add(Conversation {
                id: task.conversation_id.clone(),
                collection: task.collection.as_deref().map(corpus),
                said: row.get("input").and_then(Value::as_array).into_iter().flatten().filter_map(Said::read).collect(),
            });
            Ok(())
        })?;
    }
    for input in conversations {
        job.objects(input, |job, place, _, row| {
            match conversation(place, &row, &spoken) {
                Some(conversation) => spoken.add(conversation),
                None => job.invalid.add("a conversation needs `messages` with `speaker` and `text`", place.to_string()),
            }
            Ok(())
        })?;
    }
    spoken.list.iter().try_for_each(|conversation| turns(job, conversation))
}

fn passage(job: &mut Job, place: Place<'_>, file: &str, mut row: Map<String, Value>) -> Result<(), ImportError> {
    let (Some(id), Some(said)) = (text(&row, &IDS), text(&row, &["text"])) else {
        return job.invalid("a passage needs `_id` and `text`", place);
    };
    let title = text(&row, &["title"]).unwrap_or_default();
    row.retain(|name, value| {
        !(IDS.contains(&name.as_str()) || ["title", "text"].contains(&name.as_str()) || value.is_null())
    });
    job.passage(file, place, &id, (&title, &said), row)
}

fn queries(input: &Input, job: &mut Job) -> Result<(), ImportError> {
    let Some((collection, strategy)) = strategy(&input.stem) else { return Ok(()) };
    let (collection, file) = (corpus(collection), format!("queries.{strategy}.jsonl"));
    job.objects(input, |job, place, _, row| {
        let (Some(id), Some(said)) = (text(&row, &IDS), text(&row, &["text"])) else {
            return job.invalid("a query needs `_id` and `text`", place);
        };
        if !job.is_new(&file, &id, place, "another query has the id") {
            return Ok(());
        }
        let query = json!({"_id": id, "text": said, "collection": collection});
        job.outputs.line(&file, "query", "", &query.to_string())
    })
}

/// Writes a task; `None` if it is left out.
pub(super) fn task(
    job: &mut Job,
    place: Place<'_>,
    file: &str,
    line: &str,
    row: &Map<String, Value>,
) -> Result<Option<Task>, ImportError> {
    let task: Task = match read_task(line) {
        Ok(task) => task,
        Err(error) => {
            let reason = match error {
                LineError::Json(_) => "a field of a task has another type".to_owned(),
                missing @ LineError::Missing(_) => missing.to_string(),
            };
            return job.invalid(reason, place).map(|()| None);
        }
    };
    if !job.is_new(file, &task.id, place, "another task has the id") {
        return Ok(None);
    }
    let collection = task.collection.as_deref().map(corpus);
    let said: Vec<Value> = task.input.iter().map(|said| json!({"speaker": said.speaker, "text": said.text})).collect();
    let mut out = Map::new();
    out.insert("task_id".into(), json!(task.id));
    out.insert("conversation_id".into(), json!(task.conversation_id));
    out.insert("turn".into(), json!(task.turn));
    out.extend(collection.map(|name| ("collection".to_owned(), json!(name))));
    out.extend(task.answerability.as_ref().map(|kind| ("answerability".to_owned(), json!(kind))));
    for (name, kinds) in [("question_type", &task.question_types), ("multi_turn", &task.multi_turn)] {
        out.extend((!kinds.is_empty()).then(|| (name.to_owned(), json!(kinds))));
    }
    out.insert("input".into(), json!(said));
    out.insert("contexts".into(), json!(task.contexts));
    out.extend(task.target.as_ref().map(|target| ("target".to_owned(), json!(target))));
    let targets = row.get("targets").and_then(Value::as_array).filter(|targets| targets.len() > 1);
    out.extend(targets.map(|targets| ("targets".to_owned(), json!(targets))));
    job.outputs.line(file, "task", "", &Value::Object(out).to_string())?;
    Ok(Some(task))
}

/// A published conversation. Without an id of its own, it gets the id of the tasks that begin with the
/// same questions, else one of its author and its time.
fn conversation(place: Place<'_>, row: &Map<String, Value>, spoken: &Conversations) -> Option<Conversation> {
    let said: Option<Vec<Said>> = row.get("messages")?.as_array()?.iter().map(Said::read).collect();
    let collection = row.get("retriever").and_then(|retriever| retriever.get("collection")?.get("name")?.as_str());
    let mut conversation = Conversation {
        id: String::new(),
        collection: collection.map(corpus),
        said: said.filter(|said| !said.is_empty())?,
    };
    let of_tasks = || spoken.list.iter().find(|other| conversation.continues(other)).map(|other| other.id.clone());
    let author = || {
        let time = conversation.said.first()?.timestamp.as_ref()?;
        Some(format!("{}_{time}", text(row, &["author"])?))
    };
    let id = text(row, &["conversation_id", "id", "_id"]).or_else(of_tasks).or_else(author);
    conversation.id = id.unwrap_or_else(|| format!("{}-{}", place.0.stem, place.1));
    Some(conversation)
}

/// Writes the turns of a conversation. An agent's reply has the number of its question.
fn turns(job: &mut Job, conversation: &Conversation) -> Result<(), ImportError> {
    let mut turn = 0_u32;
    for said in &conversation.said {
        turn += u32::from(said.speaker == "user" || turn == 0);
        let mut out = Map::new();
        out.insert("conversation_id".into(), json!(conversation.id));
        out.insert("turn".into(), json!(turn));
        out.insert("speaker".into(), json!(said.speaker));
        out.insert("text".into(), json!(said.text));
        out.extend(conversation.collection.as_ref().map(|name| ("collection".to_owned(), json!(name))));
        out.extend(said.timestamp.clone().map(|time| ("timestamp".to_owned(), time)));
        job.outputs.line("turns.jsonl", "turn", "", &Value::Object(out).to_string())?;
    }
    Ok(())
}
