//! HotpotQA (Yang et al. 2018), and HQ-small, a sample of it with one collection of passages.
//!
//! | file | becomes |
//! |---|---|
//! | HQ-small's `collection.jsonl`: `{id, text}` | `corpus.jsonl` |
//! | its `train.jsonl`, `validation.jsonl`, `test.jsonl`: `{id, text, answer, supporting_ids}` | `tasks.jsonl` with the answer as `target`, `queries.jsonl`, `qrels.tsv` |
//! | predictions for it: `{id, answer, retrieved_docs: [[id, score]]}` | `answers.jsonl` |
//! | HotpotQA's own files: lists of `{_id, question, answer, type, level, supporting_facts, context}` | the same, and `corpus.jsonl` with the paragraphs of all contexts; a paragraph's id is its title |
//! | BEIR's `corpus.jsonl`, `queries.jsonl` and `qrels/*.tsv` | the same files |
//!
//! With several files of questions, the names have the split: `tasks.validation.jsonl`.

use serde_json::{Map, Value, json};

use super::input::Input;
use super::{ImportError, Job, Place, Question, suffixes, text};

const IDS: [&str; 2] = ["_id", "id"];
const CORPUS: &str = "corpus.jsonl";

/// Whether a file has passages, whose fields may be those of questions without answers.
fn is_collection(input: &Input, first: &Map<String, Value>) -> bool {
    let name = input.stem.to_lowercase();
    let named = |names: &[&str]| names.iter().any(|part| name.contains(part));
    first.contains_key("text")
        && !["answer", "supporting_ids", "question"].iter().any(|field| first.contains_key(*field))
        && (named(&["collection", "corpus", "passages"]) || !named(&["train", "dev", "validation", "test", "queries"]))
}

/// A list of texts; `None` if it is anything else.
fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| Some(text.as_str()?.to_owned())).collect()
}

pub(super) fn import(inputs: &[Input], job: &mut Job) -> Result<(), ImportError> {
    let (mut questions, mut tables) = (Vec::new(), Vec::new());
    for input in inputs {
        if input.extension == "tsv" {
            tables.push(input);
            continue;
        }
        let Some(first) = job.first(input)? else { continue };
        let has_id = IDS.iter().any(|name| first.contains_key(*name));
        match () {
            () if !has_id => job.skipped.add("not a file of HotpotQA", input.name.clone()),
            () if first.contains_key("retrieved_docs") => {
                job.objects(input, |job, place, _, row| prediction(job, place, &row))?
            }
            () if is_collection(input, &first) => job.objects(input, |job, place, _, row| passage(job, place, row))?,
            () if first.contains_key("question") || first.contains_key("text") => questions.push(input),
            () => job.skipped.add("not a file of HotpotQA", input.name.clone()),
        }
    }
    for (input, suffix) in questions.iter().zip(suffixes(&questions)) {
        job.objects(input, |job, place, _, object| question(job, place, &suffix, object))?;
    }
    for (input, suffix) in tables.iter().zip(suffixes(&tables)) {
        job.judgements(input, &format!("qrels{suffix}.tsv"))?;
    }
    Ok(())
}

fn passage(job: &mut Job, place: Place<'_>, mut row: Map<String, Value>) -> Result<(), ImportError> {
    let (Some(id), Some(said)) = (text(&row, &IDS), text(&row, &["text"])) else {
        return job.invalid("a passage needs `id` and `text`", place);
    };
    let title = text(&row, &["title"]).unwrap_or_default();
    row.retain(|name, _| !["_id", "id", "title", "text"].contains(&name.as_str()));
    job.passage(CORPUS, place, &id, (&title, &said), row)
}

fn prediction(job: &mut Job, place: Place<'_>, row: &Map<String, Value>) -> Result<(), ImportError> {
    let docs = row.get("retrieved_docs").and_then(Value::as_array);
    let context = |pair: &Value| Some(json!({"document_id": pair.get(0)?.as_str()?, "score": pair.get(1)?.as_f64()?}));
    let contexts: Option<Vec<Value>> = docs.and_then(|docs| docs.iter().map(context).collect());
    match (text(row, &IDS), contexts) {
        (Some(id), Some(contexts)) => {
            let answer = text(row, &["answer"]).unwrap_or_default();
            job.answer("answers.jsonl", place, &id, &contexts, &answer).map(drop)
        }
        _ => job.invalid("a prediction needs `id`, and pairs of id and score in `retrieved_docs`", place),
    }
}

fn question(job: &mut Job, place: Place<'_>, suffix: &str, object: Map<String, Value>) -> Result<(), ImportError> {
    let (Some(id), Some(asked)) = (text(&object, &IDS), text(&object, &["question", "text"])) else {
        return job.invalid("a question needs `id`, and `question` or `text`", place);
    };
    let supporting = match (object.get("supporting_ids"), object.get("supporting_facts")) {
        (Some(ids), _) if !ids.is_null() => texts(ids),
        (_, Some(facts)) if !facts.is_null() => facts.as_array().and_then(|facts| {
            let mut titles = Vec::new();
            for fact in facts {
                let title = fact.get(0)?.as_str()?.to_owned();
                // Several sentences of one paragraph may support the answer.
                if !titles.contains(&title) {
                    titles.push(title);
                }
            }
            Some(titles)
        }),
        _ => Some(Vec::new()),
    };
    let Some(contexts) = supporting else {
        return job.invalid("`supporting_ids` is a list of ids, or `supporting_facts` of pairs", place);
    };
    for paragraph in object.get("context").and_then(Value::as_array).into_iter().flatten() {
        let title = paragraph.get(0).and_then(Value::as_str);
        let (Some(title), Some(sentences)) = (title, paragraph.get(1).and_then(texts)) else {
            return job.invalid("`context` is a list of pairs of title and sentences", place);
        };
        // Questions share paragraphs.
        if !job.written.get(CORPUS).is_some_and(|ids| ids.contains(title)) {
            job.passage(CORPUS, place, title, (title, &sentences.concat()), Map::new())?;
        }
    }
    let target = text(&object, &["answer"]).filter(|answer| !answer.is_empty());
    let kind = object.get("type").map(|kind| ("question_type".to_owned(), kind.clone()));
    let level = object.get("level").map(|level| ("level".to_owned(), level.clone()));
    let extra = kind.into_iter().chain(level).collect();
    job.question(suffix, place, Question { id, text: asked, contexts, target, extra })
}
