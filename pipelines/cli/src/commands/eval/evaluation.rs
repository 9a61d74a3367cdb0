//! One evaluation: runs the tasks through a pipeline, or takes given answers, and scores them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Map, Value as Json, json};
use turnflow_engine::plan::{Plan, PlannedNode};
use turnflow_engine::record::PortType;
use turnflow_engine::run::Engine;

use super::inputs::by_corpus;
use super::{generation, judged, predictions, table};
use crate::commands::answering::{Answered, Answers, answer_checked};
use crate::commands::{EngineArgs, Fault};
use turnflow_eval::breakdown::by_kind;
use turnflow_eval::generation::can_be_scored;
use turnflow_eval::generation::report::Report;
use turnflow_eval::metrics::{self, Level, Qrels, Run, Scores};
use turnflow_eval::tasks::Task;

/// A node's hits and their scores.
pub(super) struct Scored {
    pub run: Run,
    pub level: Option<Level>,
    pub scores: Scores,
}

impl Scored {
    fn of(node: &str, results: &HashMap<Arc<str>, Answered>, qrels: &Qrels) -> Self {
        let (run, level) = scored_run(node, results, qrels);
        let scores = metrics::score(qrels, &run);
        Self { run, level, scores }
    }
}

/// The results to score.
pub(super) struct Found {
    pub results: HashMap<Arc<str>, Answered>,
    /// The nodes with hits.
    pub nodes: Vec<String>,
    pub seconds: Option<f64>,
}

impl Found {
    /// The node whose hits are in files; empty if there is none.
    pub fn node(&self) -> &str {
        self.nodes.last().map_or("", String::as_str)
    }
}

/// What an evaluation scores.
pub(super) struct Subject<'a> {
    pub tasks: &'a [Task],
    pub qrels: Option<&'a Qrels>,
    /// The nodes whose hits are scored.
    pub nodes: Vec<String>,
}

/// An evaluation whose models of metrics are loaded: errors of models are reported before a pipeline runs, which
/// may take an hour.
pub(super) struct Ready<'a> {
    subject: Subject<'a>,
    plan: Option<Plan>,
    scorer: Option<generation::Loaded>,
    /// The tasks with the names of the corpora. Figures are grouped by them; predictions keep the names of the tasks.
    named: Vec<Task>,
    state: Option<PathBuf>,
}

/// An evaluation with its figures.
pub(super) struct Evaluation {
    /// The tasks with the names of the corpora, and with the classes of their questions.
    pub named: Vec<Task>,
    pub found: Found,
    /// The scores of each node.
    pub scored: Vec<(String, Scored)>,
    /// The number of failed tasks, and why the first one failed.
    pub failed: (usize, Option<String>),
    pub figures: Map<String, Json>,
    scorer: Option<generation::Loaded>,
    state: Option<PathBuf>,
}

impl<'a> Ready<'a> {
    /// Prepares the evaluation of a plan, or of given answers without one. `metrics` are those of a file, if it is
    /// given.
    pub fn new(
        subject: Subject<'a>,
        plan: Option<Plan>,
        metrics: Option<generation::Metrics>,
        engine: &EngineArgs,
    ) -> Result<Self, Fault> {
        let tasks = subject.tasks;
        let is_answer = |node: &PlannedNode| node.output == Some(PortType::Answers);
        let gives_answers = plan.as_ref().is_none_or(|plan| plan.nodes.iter().any(is_answer));
        if metrics.is_some() && !gives_answers {
            let what = "no node of this pipeline outputs Answers to a sink, so `--metrics` has nothing to score";
            return Err(Fault::Told(anyhow!(what)));
        }
        // Without judgements of hits, the answers are all there is: how many say that they do not know, at least.
        let scores_answers = gives_answers && (metrics.is_some() || subject.qrels.is_none() || can_be_scored(tasks));
        if subject.qrels.is_none() && !scores_answers {
            let what = "there is nothing to score: hits need judgements (`--qrels`), and this pipeline has no answers";
            return Err(Fault::Told(anyhow!(what)));
        }
        let scorer = scores_answers.then(|| metrics.unwrap_or_default().load()).transpose()?;
        let named = plan.as_ref().map_or_else(|| tasks.to_vec(), |plan| by_corpus(tasks, plan));
        let state = match &plan {
            Some(plan) => engine.options(plan).state,
            None => engine.state.clone(),
        };
        Ok(Self { subject, plan, scorer, named, state })
    }

    /// Runs the tasks, or reads the given answers, and scores the hits.
    pub fn run(self, engine: &EngineArgs, answers: Option<&Path>, traced: bool) -> Result<Evaluation, Fault> {
        let Self { subject: Subject { tasks, qrels, nodes }, plan, scorer, mut named, state } = self;
        let found = match (plan, answers) {
            (Some(plan), _) => {
                let check = |engine: &Engine| qrels.map_or(Ok(()), |qrels| judged::check_corpora(engine, qrels));
                let Answers { by_task, seconds } = answer_checked(plan, engine, tasks, &nodes, traced, &check)?;
                Found { results: by_task, nodes, seconds: Some(seconds) }
            }
            (None, path) => {
                let path = path.ok_or_else(|| anyhow!("neither a pipeline nor answers"))?;
                let results = predictions::read(path, tasks).map_err(|error| Fault::Told(error.into()))?;
                qrels.map_or(Ok(()), |qrels| judged::check_answers(path, &results, &nodes, qrels))?;
                Found { results, nodes, seconds: None }
            }
        };
        // In the order of the tasks, so that each run names the same failure.
        let failures = tasks.iter().filter_map(|task| found.results.get(task.id.as_str())?.failure.as_ref());
        let failed = (failures.clone().count(), failures.clone().next().cloned());
        let mut figures = Map::from_iter([("failed".to_owned(), json!(failed.0))]);
        figures.extend(found.seconds.map(|seconds| ("seconds".to_owned(), json!(seconds))));
        if let Some(standalone) = classify(&mut named, &found) {
            figures.insert("standalone".to_owned(), standalone);
        }
        let scored: Vec<(String, Scored)> = match qrels {
            Some(qrels) => {
                found.nodes.iter().map(|node| (node.clone(), Scored::of(node, &found.results, qrels))).collect()
            }
            None => Vec::new(),
        };
        add_figures(&scored, &named, &mut figures);
        Ok(Evaluation { named, found, scored, failed, figures, scorer, state })
    }
}

impl Evaluation {
    /// The scores of the last node.
    pub fn scores(&self) -> Option<&Scores> {
        self.scored.last().map(|(_, scored)| &scored.scores)
    }

    /// Scores the answers and adds the figures; `None` if answers are not scored. The outputs of judges are cached in
    /// the state directory.
    pub fn score_answers(&mut self, tasks: &[Task]) -> Result<Option<Report>, Fault> {
        let Some(scorer) = self.scorer.take() else { return Ok(None) };
        let responses = generation::responses(tasks, &self.found.results, self.found.node());
        scorer.score(&self.named, &responses, self.state.as_deref(), &mut self.figures).map(Some)
    }
}

/// Adds the figures of the hits.
fn add_figures(scored: &[(String, Scored)], tasks: &[Task], figures: &mut Map<String, Json>) {
    let Some((node, Scored { level, scores, .. })) = scored.last() else { return };
    let nodes = scored.iter().map(|(node, scored)| (node.clone(), json!(scored.scores.mean)));
    for (name, value) in [
        ("queries", json!(scores.per_query.len())),
        ("metrics", json!(scores.mean)),
        ("by", json!(by_kind(tasks, scores))),
        ("hits", json!(node)),
        ("level", json!(level)),
        ("nodes", Json::Object(nodes.collect())),
        ("intervals", table::intervals(scores)),
    ] {
        figures.insert(name.to_owned(), value);
    }
}

/// Completes which questions are standalone: the class that the rewriter of the query gave counts
/// before that of the task. Returns how many later turns have each, and how many have none; `None` if
/// none has one.
fn classify(tasks: &mut [Task], found: &Found) -> Option<Json> {
    let node = found.node();
    let (mut rewriter, mut own, mut unknown) = (0, 0, 0);
    for task in tasks.iter_mut().filter(|task| task.turn > 1) {
        let said = found.results.get(task.id.as_str()).and_then(|result| result.standalone(node));
        match (said, task.standalone) {
            (Some(_), _) => rewriter += 1,
            (None, Some(_)) => own += 1,
            (None, None) => unknown += 1,
        }
        task.standalone = said.or(task.standalone);
    }
    (rewriter + own > 0).then(|| json!({"rewriter": rewriter, "task": own, "unknown": unknown}))
}

/// The run over passages, or over documents if that is what the judgements name.
pub(in crate::commands) fn scored_run(
    node: &str,
    results: &HashMap<Arc<str>, Answered>,
    qrels: &Qrels,
) -> (Run, Option<Level>) {
    let mut run = Run::new();
    let mut documents: BTreeMap<String, String> = BTreeMap::new();
    for (id, result) in results {
        let given = result.hits(node);
        let hits = given.iter().map(|hit| (hit.chunk.id.to_string(), f64::from(hit.score)));
        run.insert(id.to_string(), hits.collect());
        for hit in given {
            documents.insert(hit.chunk.id.to_string(), hit.chunk.document.to_string());
        }
    }
    let document_ids: BTreeSet<&str> = documents.values().map(String::as_str).collect();
    let level = metrics::level(qrels, |id| documents.contains_key(id), |id| document_ids.contains(id));
    if level == Some(Level::Document) {
        run = metrics::to_documents(&run, |passage| documents.get(passage).map(String::as_str));
    }
    (run, level)
}
