//! Feedback: what users said about answers, in the turn logs of a running system.
//!
//! | file | gives |
//! |---|---|
//! | turn logs: records with `speaker` | conversations, and feedback in the field `feedback` of a record |
//! | feedback: records with `helpful`, as `POST /v1/feedback` keeps them in `feedback.jsonl` | what people said about answers and passages; with the `question` in it, it needs no log |
//! | answers: records with `status` and `hits`, as sinks write them | the passages that an answer was based on |
//!
//! The field `feedback` is an object or a list of objects, with these fields:
//!
//! - `turn`: the turn of the answer. Default: the last turn of the user before the record.
//! - `accepted`: whether the answer was accepted. An accepted answer makes the passages that it cites relevant, or its
//!   first passage if it cites none. An answer that was not accepted says nothing about passages.
//! - `helpful`, `unhelpful`: ids of passages that are relevant, and of passages that are not.
//!
//! What is written: `tasks.jsonl` with the conversation up to the question, `queries.jsonl` and `qrels.tsv`. What users
//! say last about a passage counts.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::input::Input;
use super::{ImportError, Job, Place, text};

/// A turn of the user: conversation and number.
type Key = (String, u64);

/// The files of the inputs.
#[derive(Default)]
struct Files<'a> {
    logs: Vec<&'a Input>,
    answers: Vec<&'a Input>,
    said: Vec<&'a Input>,
}

/// A question with the conversation before it.
struct Asked {
    before: Vec<(&'static str, String)>,
    text: String,
    collection: Option<Value>,
}

/// An answer, as far as feedback needs it.
#[derive(Default)]
struct Answered {
    text: String,
    /// The passages that it cites, or its first one.
    based_on: Vec<String>,
}

/// What users said about the passages of a turn: 1 for relevant, 0 for not.
type Judged = BTreeMap<String, i64>;

/// What the logs have of the conversations with feedback.
#[derive(Default)]
struct Found {
    asked: BTreeMap<Key, Asked>,
    judged: BTreeMap<Key, Judged>,
}

pub(super) fn import(inputs: &[Input], job: &mut Job) -> Result<(), ImportError> {
    let files = files(inputs, job)?;
    let mut with_feedback: HashSet<String> = HashSet::new();
    for log in &files.logs {
        job.objects(log, |_, _, _, record| {
            if record.contains_key("feedback") {
                with_feedback.extend(text(&record, &["conversation_id"]));
            }
            Ok(())
        })?;
    }
    for said in &files.said {
        job.objects(said, |_, _, _, record| {
            with_feedback.extend(text(&record, &["conversation_id"]));
            Ok(())
        })?;
    }
    let answers = answers(&files, job, &with_feedback)?;
    let mut found = conversations(&files, job, &with_feedback, &answers)?;
    let mut thumbs = Thumbs::new();
    for said in &files.said {
        job.objects(said, |job, place, _, record| kept(job, place, &record, &answers, &mut found, &mut thumbs))?;
    }
    // What is said about a passage counts more than what is said about the whole answer.
    for ((key, _), passages) in thumbs {
        let judged = found.judged.entry(key).or_default();
        passages.into_iter().flatten().for_each(|id| _ = judged.entry(id).or_insert(1));
    }
    write(job, &found)
}

fn files<'a>(inputs: &'a [Input], job: &mut Job) -> Result<Files<'a>, ImportError> {
    let mut files = Files::default();
    for input in inputs {
        let Some(first) = job.first(input)? else { continue };
        match () {
            () if first.contains_key("speaker") => files.logs.push(input),
            () if first.get("helpful").is_some_and(Value::is_boolean) => files.said.push(input),
            () if first.contains_key("status") && first.contains_key("answer") => files.answers.push(input),
            () => job.skipped.add("neither a turn log nor answers", input.name.clone()),
        }
    }
    Ok(files)
}

/// The last revision of each answer.
fn answers(files: &Files<'_>, job: &mut Job, of: &HashSet<String>) -> Result<HashMap<Key, Answered>, ImportError> {
    let mut answers = HashMap::new();
    for input in &files.answers {
        job.objects(input, |job, place, _, record| {
            let Some(key) = key(&record) else {
                return job.invalid("an answer needs `conversation_id` and `turn`", place);
            };
            if !of.contains(&key.0) {
                return Ok(());
            }
            if record.get("retracted").and_then(Value::as_bool) == Some(true) {
                answers.remove(&key);
                return Ok(());
            }
            let hits = record.get("hits").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let passage = |hit: &Value| Some(hit.get("passage")?.as_str()?.to_owned());
            let cited = record.get("checks").and_then(|checks| checks.get("citations")).and_then(Value::as_array);
            let cited = cited.into_iter().flatten().filter_map(|number| number.as_u64()?.checked_sub(1));
            let mut based_on: Vec<String> = cited.filter_map(|at| passage(hits.get(at as usize)?)).collect();
            if based_on.is_empty() {
                based_on.extend(hits.first().and_then(passage));
            }
            let text = text(&record, &["answer"]).unwrap_or_default();
            answers.insert(key, Answered { text, based_on });
            Ok(())
        })?;
    }
    Ok(answers)
}

/// The questions of the conversations with feedback, and the judged passages.
fn conversations(
    files: &Files<'_>,
    job: &mut Job,
    of: &HashSet<String>,
    answers: &HashMap<Key, Answered>,
) -> Result<Found, ImportError> {
    let Found { mut asked, mut judged } = Found::default();
    let mut said: HashMap<String, Vec<(&'static str, String)>> = HashMap::new();
    // The last turn of the user, and whether the log has its answer.
    let mut last: HashMap<String, (u64, bool)> = HashMap::new();
    for input in &files.logs {
        job.objects(input, |job, place, _, record| {
            let (Some((conversation, turn)), Some(text)) = (key(&record), text(&record, &["text"])) else {
                return job.invalid("a turn needs `conversation_id`, `turn` and `text`", place);
            };
            if !of.contains(&conversation) {
                return Ok(());
            }
            if let Some(feedback) = record.get("feedback") {
                let before = last.get(&conversation).map(|(turn, _)| *turn);
                judge(job, place, (&conversation, before), feedback, answers, &mut judged)?;
            }
            let said = said.entry(conversation.clone()).or_default();
            if record.get("speaker").and_then(Value::as_str) == Some("agent") {
                said.push(("agent", text));
                last.entry(conversation).and_modify(|(_, has_answer)| *has_answer = true);
                return Ok(());
            }
            // An answer that the log does not have is in the answers.
            if let Some((turn, false)) = last.get(&conversation) {
                let answer = answers.get(&(conversation.clone(), *turn));
                said.extend(answer.map(|answer| ("agent", answer.text.clone())));
            }
            last.insert(conversation.clone(), (turn, false));
            let collection = record.get("collection").cloned();
            let question = Asked { before: said.clone(), text: text.clone(), collection };
            // A log that was rotated may repeat records; the first ones count.
            if asked.contains_key(&(conversation.clone(), turn)) {
                job.skipped.add("another record has the turn", place.to_string());
                return Ok(());
            }
            asked.insert((conversation, turn), question);
            said.push(("user", text));
            Ok(())
        })?;
    }
    Ok(Found { asked, judged })
}

/// What each caller has said last about an answer: the passages of an answer that helped, or nothing. Who was wrong presses
/// the other thumb.
type Thumbs = HashMap<(Key, Option<String>), Option<Vec<String>>>;

/// Adds a line of the server's file of feedback.
fn kept(
    job: &mut Job,
    place: Place<'_>,
    record: &Map<String, Value>,
    answers: &HashMap<Key, Answered>,
    found: &mut Found,
    thumbs: &mut Thumbs,
) -> Result<(), ImportError> {
    let Some(helpful) = record.get("helpful").and_then(Value::as_bool) else {
        return job.invalid("feedback needs `helpful`, true or false", place);
    };
    let Some(key) = key(record).or_else(|| of_id(record)) else {
        job.skipped.add("feedback that names no conversation and turn", place.to_string());
        return Ok(());
    };
    if let Some(question) = text(record, &["question"]).filter(|_| !found.asked.contains_key(&key)) {
        let said = record.get("history").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let utterance = |said: &Value| {
            let speaker = if said.get("speaker")?.as_str()? == "agent" { "agent" } else { "user" };
            Some((speaker, said.get("text")?.as_str()?.to_owned()))
        };
        let before = said.iter().filter_map(utterance).collect();
        found
            .asked
            .insert(key.clone(), Asked { before, text: question, collection: record.get("collection").cloned() });
    }
    let judged = found.judged.entry(key.clone()).or_default();
    if let Some(passage) = text(record, &["passage"]) {
        judged.insert(passage, i64::from(helpful));
        return Ok(());
    }
    let caller = text(record, &["caller"]);
    if !helpful {
        // An answer that did not help says nothing about single passages.
        thumbs.insert((key, caller), None);
        return Ok(());
    }
    let cited = record.get("passages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut based_on: Vec<String> = cited.iter().filter_map(|id| Some(id.as_str()?.to_owned())).collect();
    if based_on.is_empty() {
        based_on = answers.get(&key).map(|answer| answer.based_on.clone()).unwrap_or_default();
    }
    thumbs.insert((key, caller), Some(based_on));
    Ok(())
}

/// Adds what a field `feedback` says.
fn judge(
    job: &mut Job,
    place: Place<'_>,
    (conversation, before): (&str, Option<u64>),
    feedback: &Value,
    answers: &HashMap<Key, Answered>,
    judged: &mut BTreeMap<Key, Judged>,
) -> Result<(), ImportError> {
    let each = feedback.as_array().map_or(std::slice::from_ref(feedback), Vec::as_slice);
    for one in each {
        let Some(one) = one.as_object() else { return job.invalid("`feedback` is not an object", place) };
        let known = ["turn", "accepted", "helpful", "unhelpful"];
        if let Some(other) = one.keys().find(|key| !known.contains(&key.as_str())) {
            return job.invalid(format!("`feedback` has no field `{other}`"), place);
        }
        let turn = match one.get("turn") {
            None => before,
            Some(turn) => match turn.as_u64() {
                Some(turn) => Some(turn),
                None => return job.invalid("`turn` of `feedback` is not a number", place),
            },
        };
        let Some(turn) = turn else { return job.invalid("feedback before the first turn", place) };
        let key = (conversation.to_owned(), turn);
        let mut grades = Vec::new();
        match one.get("accepted").map(Value::as_bool) {
            None | Some(Some(false)) => {}
            Some(None) => return job.invalid("`accepted` is not true or false", place),
            Some(Some(true)) => match answers.get(&key) {
                Some(answer) => grades.extend(answer.based_on.iter().map(|id| (id.clone(), 1))),
                None => job.skipped.add("an accepted answer that is not among the answers", place.to_string()),
            },
        }
        for (field, grade) in [("helpful", 1), ("unhelpful", 0)] {
            let ids = match one.get(field) {
                None => continue,
                Some(Value::String(id)) => Some(vec![id.clone()]),
                Some(Value::Array(ids)) => ids.iter().map(|id| Some(id.as_str()?.to_owned())).collect(),
                Some(_) => None,
            };
            let Some(ids) = ids else {
                return job.invalid(format!("`{field}` is not a list of passages"), place);
            };
            grades.extend(ids.into_iter().map(|id| (id, grade)));
        }
        judged.entry(key).or_default().extend(grades);
    }
    Ok(())
}

fn write(job: &mut Job, found: &Found) -> Result<(), ImportError> {
    for (key, grades) in &found.judged {
        let (conversation, turn) = key;
        let id = format!("{conversation}::{turn}");
        let Some(question) = found.asked.get(key) else {
            job.skipped.add("feedback on a turn that is not in the log", id);
            continue;
        };
        let is_written = |id: &String| !id.is_empty() && !id.contains(['\t', '\n', '\r']);
        if grades.is_empty() || !grades.keys().chain([&id]).all(is_written) {
            job.skipped.add("feedback without a usable passage", id);
            continue;
        }
        for (passage, grade) in grades {
            job.judgement("qrels.tsv", &id, passage, *grade)?;
        }
        let query = json!({"_id": id, "text": question.text}).to_string();
        job.outputs.line("queries.jsonl", "query", "", &query)?;
        let before = question.before.iter().map(|(speaker, text)| (*speaker, text));
        let input: Vec<Value> = before
            .chain([("user", &question.text)])
            .map(|(speaker, text)| json!({"speaker": speaker, "text": text}))
            .collect();
        let mut task = Map::new();
        task.insert("task_id".into(), json!(id));
        task.insert("conversation_id".into(), json!(conversation));
        task.insert("turn".into(), json!(turn));
        task.extend(question.collection.clone().map(|collection| ("collection".to_owned(), collection)));
        task.insert("input".into(), json!(input));
        job.outputs.line("tasks.jsonl", "task", "", &Value::Object(task).to_string())?;
    }
    Ok(())
}

/// The conversation and the number of a turn.
fn key(record: &Map<String, Value>) -> Option<Key> {
    Some((text(record, &["conversation_id"])?, record.get("turn")?.as_u64()?))
}

/// The key of feedback that has its question, and names the answer by an id.
fn of_id(record: &Map<String, Value>) -> Option<Key> {
    text(record, &["question"])?;
    let said = record.get("history").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let users = said.iter().filter(|said| said.get("speaker").and_then(Value::as_str) == Some("user")).count();
    Some((text(record, &["turn_id"])?, users as u64 + 1))
}
