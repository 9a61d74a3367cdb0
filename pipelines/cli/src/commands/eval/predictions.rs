//! Predictions in MTRAG's format: one line per task, with its contexts and its answer.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use turnflow_engine::document::Chunk;
use turnflow_engine::record::{Answer, Hit, Query, Status};

use crate::commands::answering::Answered;
use turnflow_eval::tasks::Task;
use turnflow_eval::trec::lines;

/// The name of the contexts of a file of predictions, in place of a node.
pub(super) const NODE: &str = "contexts";

/// Number of contexts per prediction.
const CONTEXTS: usize = 10;

/// Why predictions cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum PredictionsError {
    /// The file cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A line is not a prediction.
    #[error("{}:{line}: not a prediction", path.display())]
    Json { path: PathBuf, line: usize, source: serde_json::Error },
    /// Two lines have the same task.
    #[error("{}:{line}: duplicate prediction for the task `{id}`", path.display())]
    Duplicate { path: PathBuf, line: usize, id: String },
    /// The file has no prediction for any of the tasks.
    #[error("{}: it has no prediction for any of the tasks", path.display())]
    Foreign { path: PathBuf },
}

#[derive(Deserialize)]
struct Line {
    task_id: String,
    #[serde(default)]
    contexts: Vec<Context>,
    #[serde(default)]
    predictions: Vec<Prediction>,
}

#[derive(Deserialize)]
struct Context {
    #[serde(default)]
    document_id: String,
    #[serde(default)]
    text: String,
    /// The document, if the context is a part of it.
    document: Option<String>,
    score: Option<f32>,
}

#[derive(Deserialize)]
struct Prediction {
    #[serde(default)]
    text: String,
    /// Missing in files of other programs: then the text decides.
    status: Option<Status>,
}

/// One line per task: MTRAG's fields, the node's first hits and the answer.
pub(super) fn text(node: &str, tasks: &[Task], results: &HashMap<Arc<str>, Answered>) -> String {
    let empty = Answered::default();
    let line = |task: &Task| {
        let result = results.get(task.id.as_str()).unwrap_or(&empty);
        let context = |hit: &Hit| {
            let mut context = json!({"document_id": hit.chunk.id, "text": hit.chunk.text, "score": hit.score});
            // Judgements may name the document that a passage was cut from.
            if hit.chunk.document != hit.chunk.id {
                context["document"] = json!(hit.chunk.document);
            }
            context
        };
        // A failed task has no prediction: an empty one would count as an empty answer.
        let answer = result.answer.as_ref().filter(|answer| answer.status != Status::Failed);
        let predictions: Vec<Json> =
            answer.iter().map(|answer| json!({"text": answer.text, "status": answer.status})).collect();
        let contexts: Vec<Json> = result.hits(node).iter().take(CONTEXTS).map(context).collect();
        let said: Vec<Json> =
            task.input.iter().map(|utterance| json!({"speaker": utterance.speaker, "text": utterance.text})).collect();
        let prediction = json!({
            "task_id": task.id,
            "conversation_id": task.conversation_id,
            "turn": task.turn,
            "Collection": task.collection,
            "input": said,
            "contexts": contexts,
            "predictions": predictions,
        });
        format!("{prediction}\n")
    };
    tasks.iter().map(line).collect()
}

/// Reads the predictions of these tasks. Predictions of other tasks are ignored, and a task without a
/// prediction counts as failed.
pub(super) fn read(path: &Path, tasks: &[Task]) -> Result<HashMap<Arc<str>, Answered>, PredictionsError> {
    let unread = |source| PredictionsError::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let mut results: HashMap<Arc<str>, Answered> = HashMap::new();
    for (line, json) in lines(&text) {
        let fault = |source| PredictionsError::Json { path: path.into(), line, source };
        let parsed: Line = serde_json::from_str(json).map_err(fault)?;
        if results.contains_key(parsed.task_id.as_str()) {
            return Err(PredictionsError::Duplicate { path: path.into(), line, id: parsed.task_id });
        }
        results.insert(parsed.task_id.as_str().into(), parsed.answered());
    }
    if !tasks.iter().any(|task| results.contains_key(task.id.as_str())) {
        return Err(PredictionsError::Foreign { path: path.into() });
    }
    for task in tasks {
        let missing = || Answered::given(NODE, Vec::new(), None, Some("it has no prediction".to_owned()));
        results.entry(task.id.as_str().into()).or_insert_with(missing);
    }
    results.retain(|id, _| tasks.iter().any(|task| task.id == **id));
    Ok(results)
}

impl Line {
    fn answered(self) -> Answered {
        let hit = |(at, context): (usize, Context)| {
            let Context { document_id, text, document, score } = context;
            let document = document.as_deref().unwrap_or(&document_id);
            let chunk = Chunk::new(document_id.as_str().into(), document.into(), "".into(), text.into());
            // Without scores, the order is the ranking.
            Hit { chunk: Arc::new(chunk), score: score.unwrap_or(1.0 / (at + 1) as f32) }
        };
        let hits: Vec<Hit> = self.contexts.into_iter().enumerate().map(hit).collect();
        let answer = self.predictions.into_iter().next().map(|prediction| {
            Arc::new(Answer {
                query: Query::new(""),
                text: prediction.text.into(),
                status: prediction.status.unwrap_or(Status::Answered),
                hits: hits.clone(),
                support: None,
                checks: Default::default(),
            })
        });
        let failure = answer.is_none().then(|| "it has no prediction".to_owned());
        Answered::given(NODE, hits, answer, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_eval::tasks::read_tasks;

    #[test]
    fn what_is_written_is_read_again() {
        let directory = std::env::temp_dir().join(format!("turnflow-{}-predictions", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let file = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let tasks = file("tasks.jsonl", "{\"_id\":\"a\",\"text\":\"?\"}\n{\"_id\":\"b\",\"text\":\"!\"}\n");
        let tasks = read_tasks(&tasks).expect("tasks");
        let said = file(
            "said.jsonl",
            "{\"task_id\":\"a\",\"contexts\":[{\"document_id\":\"d\",\"text\":\"T\",\"score\":2.5},{\"document_id\":\"e\",\
             \"text\":\"U\",\"title\":\"\"}],\"predictions\":[{\"text\":\"A.\"}]}\n\n{\"task_id\":\"other\"}\n",
        );
        let results = read(&said, &tasks).expect("predictions");
        assert_eq!((results.len(), results["a"].text(), results["b"].text()), (2, "A.", ""));
        assert!(results["b"].failure.is_some() && results["a"].failure.is_none());
        assert_eq!(results["a"].hits(NODE).iter().map(|hit| hit.score).collect::<Vec<_>>(), [2.5, 0.5]);
        let written = text(NODE, &tasks[..1], &results);
        let again = read(&file("again.jsonl", &written), &tasks[..1]).expect("predictions");
        assert_eq!(text(NODE, &tasks[..1], &again), written);

        // A failed task is read as failed, and an IDK answer as IDK.
        assert!(text(NODE, &tasks[1..], &results).contains("\"predictions\":[]"));
        let idk = "{\"task_id\":\"a\",\"contexts\":[{\"document_id\":\"d#1\",\"document\":\"d\"}],\
                   \"predictions\":[{\"text\":\"Hm\",\"status\":\"idk\"}]}";
        let idk = read(&file("idk.jsonl", idk), &tasks[..1]).expect("predictions");
        assert_eq!(idk["a"].answer.as_ref().expect("an answer").status, Status::Idk);
        assert_eq!(&*idk["a"].hits(NODE)[0].chunk.document, "d");

        for (name, text, want) in [
            ("no.jsonl", "{", "no.jsonl:1: not a prediction"),
            (
                "twice.jsonl",
                "{\"task_id\":\"a\"}\n{\"task_id\":\"a\"}",
                "twice.jsonl:2: duplicate prediction for the task `a`",
            ),
            ("foreign.jsonl", "{\"task_id\":\"x\"}", "foreign.jsonl: it has no prediction for any of the tasks"),
        ] {
            let error = read(&file(name, text), &tasks).err().expect(name).to_string();
            assert!(error.ends_with(want), "{error}");
        }
        std::fs::remove_dir_all(&directory).expect("the directory");
    }
}
