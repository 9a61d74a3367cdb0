//! The results of a run, task by task, for the report.

use serde_json::{Map, Value as Json};
use turnflow_engine::record::{Hit, Status};

use super::evaluation::Found;
use crate::commands::answering::Answered;
use turnflow_eval::matrix::{Conditioning, answer_figures};
use turnflow_eval::metrics::{Qrels, Scores};
use turnflow_eval::report::{HitReport, Report, TaskReport};
use turnflow_eval::tasks::{Speaker, Task};

/// Number of passages shown per task.
const HITS: usize = 10;
/// Number of characters shown per passage.
const CHARACTERS: usize = 500;

/// Completes the head of a report with figures and tasks.
pub(super) fn make(
    head: Report,
    tasks: &[Task],
    found: &Found,
    qrels: Option<&Qrels>,
    scores: Option<&Scores>,
    figures: &Map<String, Json>,
) -> Report {
    let node = found.nodes.last().cloned().unwrap_or_default();
    let empty = Answered::default();
    let of_answer = |id: &str| Some(answer_figures(figures.get("tasks")?.get(id)?, Conditioning::Paper));
    let report = |task: &Task| {
        let result = found.results.get(task.id.as_str()).unwrap_or(&empty);
        let judged = qrels.and_then(|qrels| qrels.get(&task.id));
        let hit = |hit: &Hit| HitReport {
            passage: hit.chunk.id.to_string(),
            score: f64::from(hit.score),
            text: hit.chunk.text.chars().take(CHARACTERS).collect(),
            grade: judged
                .and_then(|judged| judged.get(&*hit.chunk.id).or_else(|| judged.get(&*hit.chunk.document)).copied()),
        };
        let answer = result.answer.as_deref();
        let status = match (answer.map(|answer| answer.status), &result.failure) {
            (_, Some(_)) | (Some(Status::Failed), _) => "failed",
            (Some(Status::Answered), None) => "answered",
            (Some(Status::Idk), None) => "idk",
            (None, None) => "",
        };
        let speaker = |speaker: Speaker| match speaker {
            Speaker::User => "user",
            Speaker::Agent => "agent",
        };
        TaskReport {
            id: task.id.clone(),
            turn: task.turn,
            collection: task.collection.clone(),
            answerability: task.answerability.clone(),
            standalone: task.standalone.filter(|_| task.turn > 1),
            said: task.input.iter().map(|one| (speaker(one.speaker).to_owned(), one.text.to_string())).collect(),
            query: answer.map(|answer| answer.query.text.to_string()).unwrap_or_default(),
            answer: result.text().to_owned(),
            status: status.to_owned(),
            target: task.target.clone(),
            error: result.failure.clone(),
            warnings: result.warnings.to_vec(),
            checks: answer.map(|answer| answer.checks.clone()).unwrap_or_default(),
            retrieval: scores
                .and_then(|scores| scores.per_query.get(&task.id))
                .map(|figures| figures.iter().map(|(name, value)| (name.to_owned(), value)).collect())
                .unwrap_or_default(),
            generation: of_answer(&task.id).unwrap_or_default(),
            hits: result.hits(&node).iter().take(HITS).map(hit).collect(),
            trace: result.trace.clone(),
        }
    };
    let tasks = tasks.iter().map(report).collect();
    let mut figures = figures.clone();
    // The tasks already have these figures.
    figures.remove("tasks");
    Report { hits: node, figures, tasks, ..head }
}
