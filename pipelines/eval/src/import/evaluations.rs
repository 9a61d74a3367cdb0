//! MTRAG's evaluations: the answers of several models to the same tasks, with the scores that people and metrics gave.
//!
//! `evaluations/NAME.json` is one object: `tasks`, `documents`, `metrics` and `evaluations`, each of which is
//! `{task_id, model_id, model_response, annotations}`. It becomes a folder `evaluations/NAME/`:
//!
//! - `tasks.jsonl`: the tasks;
//! - `answers/MODEL.jsonl`: the answers of a model, with the texts of the tasks' reference passages;
//! - `published.jsonl`: `{task_id, model, scores, people}` for each answer: the metrics' scores by name, and the
//!   judgements of people by property.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::input::Input;
use super::mtrag::task;
use super::{ImportError, Job, Place, safe, text};

pub(super) fn import(input: &Input, job: &mut Job, file: Map<String, Value>) -> Result<(), ImportError> {
    let folder = format!("evaluations/{}", safe(&input.stem));
    let place = Place(input, 1);
    let list = |name: &str| file.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let objects = |name: &str| list(name).iter().filter_map(Value::as_object);
    let by_people: BTreeSet<&str> = objects("metrics")
        .filter(|metric| metric.get("author").and_then(Value::as_str) == Some("human"))
        .filter_map(|metric| metric.get("name")?.as_str())
        .collect();
    let passages: BTreeMap<String, String> =
        objects("documents").filter_map(|row| Some((text(row, &["document_id"])?, text(row, &["text"])?))).collect();

    let tasks_file = format!("{folder}/tasks.jsonl");
    let mut contexts: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in list("tasks") {
        let Some(object) = row.as_object() else {
            job.invalid("a task is not an object", place)?;
            continue;
        };
        let Some(task) = task(job, place, &tasks_file, &row.to_string(), object)? else { continue };
        let mut of_task = Vec::new();
        for id in &task.contexts {
            match passages.get(id) {
                Some(text) => of_task.push(json!({"document_id": id, "text": text})),
                None => job.skipped.add("a reference passage that the file lacks", place.to_string()),
            }
        }
        contexts.insert(task.id, of_task);
    }
    for row in list("evaluations") {
        let said = row.as_object().and_then(|row| {
            let [task, model, answer] = ["task_id", "model_id", "model_response"].map(|name| text(row, &[name]));
            Some((task?, model?, answer?))
        });
        let Some((task, model, answer)) = said else {
            job.invalid("an evaluation needs `task_id`, `model_id` and `model_response`", place)?;
            continue;
        };
        let Some(of_task) = contexts.get(&task) else {
            job.skipped.add("an answer to a task that the file lacks", place.to_string());
            continue;
        };
        let model = safe(&model);
        if !job.answer(&format!("{folder}/answers/{model}.jsonl"), place, &task, of_task, &answer)? {
            continue;
        }
        let (mut scores, mut people) = (Map::new(), Map::new());
        for (name, given) in row.get("annotations").and_then(Value::as_object).into_iter().flatten() {
            let given = given.as_object();
            let values: Vec<Value> = given
                .into_iter()
                .flat_map(|given| given.values())
                .filter_map(|one| number(one.get("value")?))
                .collect();
            match values.as_slice() {
                [] => {}
                _ if by_people.contains(name.as_str()) => drop(people.insert(name.clone(), json!(values))),
                [value, ..] => drop(scores.insert(name.clone(), value.clone())),
            }
        }
        let published = json!({"task_id": task, "model": model, "scores": scores, "people": people});
        job.outputs.line(&format!("{folder}/published.jsonl"), "score", "", &published.to_string())?;
    }
    Ok(())
}

/// A number, which may be written as text.
fn number(value: &Value) -> Option<Value> {
    match value {
        Value::Number(_) => Some(value.clone()),
        Value::String(text) => text.trim().parse::<f64>().ok().filter(|number| number.is_finite()).map(|n| json!(n)),
        _ => None,
    }
}
