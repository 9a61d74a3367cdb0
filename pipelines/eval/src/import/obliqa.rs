//! ObliQA: regulatory passages and questions (Gokhan et al. 2024), and the answers of RIRAG.
//!
//! | file | becomes |
//! |---|---|
//! | `StructuredRegulatoryDocuments/*.json` or its archive: lists of `{DocumentID, PassageID, Passage}` | `corpus.jsonl`; a passage's id is `DocumentID-PassageID` |
//! | `ObliQA_train.json`, `ObliQA_dev.json`, `ObliQA_test.json`: lists of `{QuestionID, Question, Passages, Group}` | `tasks.jsonl`, `queries.jsonl`, `qrels.tsv` |
//! | the shared task's unseen questions: lists of `{QuestionID, Question}` | `tasks.jsonl`, `queries.jsonl` |
//! | answers as RePASs scores them: lists of `{QuestionID, RetrievedPassages, Answer}` | `answers.jsonl` |
//!
//! With several files of questions, the names have the split: `tasks.dev.jsonl`. Passages without
//! text are headings of other passages and are skipped. A few ids occur twice; the first passage with
//! text is kept.

use serde_json::{Map, Value, json};

use super::input::Input;
use super::{ImportError, Job, Question, suffixes, text};

/// The id of a passage in the corpus.
fn id(passage: &Map<String, Value>) -> Option<String> {
    Some(format!("{}-{}", text(passage, &["DocumentID"])?, text(passage, &["PassageID"])?))
}

pub(super) fn import(inputs: &[Input], job: &mut Job) -> Result<(), ImportError> {
    let (mut corpora, mut questions, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for input in inputs {
        let Some(first) = job.first(input)? else { continue };
        let has = |name: &str| first.contains_key(name);
        match () {
            () if has("QuestionID") && has("Answer") => answers.push(input),
            () if has("QuestionID") => questions.push(input),
            () if has("PassageID") => corpora.push(input),
            () => job.skipped.add("not a file of ObliQA", input.name.clone()),
        }
    }
    for input in corpora {
        job.objects(input, |job, place, _, passage| {
            let (Some(id), Some(document), Some(said)) =
                (id(&passage), text(&passage, &["DocumentID"]), text(&passage, &["Passage"]))
            else {
                return job.invalid("a passage needs `DocumentID`, `PassageID` and `Passage`", place);
            };
            let extra = Map::from_iter([("document".to_owned(), json!(document))]);
            job.passage("corpus.jsonl", place, &id, ("", &said), extra)
        })?;
    }
    for (input, suffix) in questions.iter().zip(suffixes(&questions)) {
        job.objects(input, |job, place, _, object| {
            let (Some(question_id), Some(question)) = (text(&object, &["QuestionID"]), text(&object, &["Question"]))
            else {
                return job.invalid("a question needs `QuestionID` and `Question`", place);
            };
            let passages = object.get("Passages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let contexts: Option<Vec<String>> = passages.iter().map(|passage| id(passage.as_object()?)).collect();
            let Some(contexts) = contexts else {
                return job.invalid("a passage of a question needs `DocumentID` and `PassageID`", place);
            };
            let extra = object.get("Group").map(|group| ("group".to_owned(), group.clone())).into_iter().collect();
            job.question(&suffix, place, Question { id: question_id, text: question, contexts, target: None, extra })
        })?;
    }
    for input in answers {
        job.objects(input, |job, place, _, object| {
            let (Some(id), Some(answer)) = (text(&object, &["QuestionID"]), text(&object, &["Answer"])) else {
                return job.invalid("an answer needs `QuestionID` and `Answer`", place);
            };
            let passages = object.get("RetrievedPassages").and_then(Value::as_array);
            let contexts: Vec<Value> = passages.into_iter().flatten().map(|text| json!({"text": text})).collect();
            if contexts.iter().any(|context| !context["text"].is_string()) {
                return job.invalid("`RetrievedPassages` is a list of texts", place);
            }
            job.answer("answers.jsonl", place, &id, &contexts, &answer).map(drop)
        })?;
    }
    Ok(())
}
