//! Runs tasks through a pipeline, for the commands that score the results.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Map, json};
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::plan::Plan;
use turnflow_engine::record::{Answer, Hit, Item, Speaker, TurnRecord, Value};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::wording::count;

use super::trace::describe;
use super::{EngineArgs, Fault, progress, start};
use turnflow_eval::tasks::Task;

/// The result of a task.
#[derive(Default)]
pub(super) struct Answered {
    hits: BTreeMap<String, Vec<Hit>>,
    /// The text that each of these nodes searched for.
    queries: BTreeMap<String, Arc<str>>,
    /// Whether the question is standalone, as the rewriter of the node's query says.
    classes: BTreeMap<String, bool>,
    /// The last answer of a node.
    pub answer: Option<Arc<Answer>>,
    /// The answers that each end of the graph got.
    pub answers: BTreeMap<String, Arc<Answer>>,
    /// The answer's warnings, each as `node: warning`.
    pub warnings: Arc<[String]>,
    /// Why a node failed.
    pub failure: Option<String>,
    /// The values of all nodes, if requested.
    pub trace: Vec<(String, String)>,
}

impl Answered {
    /// A result that does not come from a pipeline: the hits, recorded for `node`, and the answer.
    pub fn given(node: &str, hits: Vec<Hit>, answer: Option<Arc<Answer>>, failure: Option<String>) -> Self {
        Self { hits: BTreeMap::from([(node.to_owned(), hits)]), answer, failure, ..Self::default() }
    }

    /// The hits of a node.
    pub fn hits(&self, node: &str) -> &[Hit] {
        self.hits.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The text that a node searched for: the first part, if the query was decomposed.
    pub fn query(&self, node: &str) -> Option<&str> {
        self.queries.get(node).map(|text| &**text)
    }

    /// Whether the question is standalone, as the model says that rewrote the node's query, or else that
    /// of the answer; `None` if no model says so.
    pub fn standalone(&self, node: &str) -> Option<bool> {
        let of_answer = || self.answer.as_ref().and_then(|answer| answer.query.standalone);
        self.classes.get(node).copied().or_else(of_answer)
    }

    /// The answer's text; empty without an answer.
    pub fn text(&self) -> &str {
        self.answer.as_ref().map_or("", |answer| &answer.text)
    }
}

/// The results of all tasks.
pub(super) struct Answers {
    /// Results by task id.
    pub by_task: HashMap<Arc<str>, Answered>,
    /// Time from the first task to the last answer, without indexing.
    pub seconds: f64,
}

/// Runs every task and keeps the hits of these nodes; with `traced`, also the values of all nodes.
pub(super) fn answer_tasks(
    plan: Plan,
    engine: &EngineArgs,
    tasks: &[Task],
    nodes: &[String],
    traced: bool,
) -> Result<Answers, Fault> {
    answer_checked(plan, engine, tasks, nodes, traced, &|_| Ok(()))
}

/// The same, if `check` finds nothing wrong with the corpora, which are indexed by then.
pub(super) fn answer_checked(
    plan: Plan,
    engine: &EngineArgs,
    tasks: &[Task],
    nodes: &[String],
    traced: bool,
    check: &dyn Fn(&Engine) -> Result<(), Fault>,
) -> Result<Answers, Fault> {
    let results: Arc<Mutex<HashMap<Arc<str>, Answered>>> = Arc::default();
    let (for_observer, nodes) = (results.clone(), nodes.to_vec());
    // A failure inside the graph may have a fallback: only the results of the leaves count.
    let is_end = |at: usize| !plan.nodes.iter().any(|node| node.inputs.contains(&at));
    let ends = (0..plan.nodes.len()).filter(|at| is_end(*at)).map(|at| plan.nodes[at].id.clone());
    let counting: Vec<Arc<str>> = ends.chain(nodes.iter().map(|node| node.as_str().into())).collect();
    let observer = move |id: &str, item: &Item| {
        let Ok(mut results) = for_observer.lock() else { return };
        let result = results.entry(item.turn.conversation_id.clone()).or_default();
        if traced && item.value != Value::Turn {
            result.trace.push((id.to_owned(), describe(&item.value)));
        }
        match &item.value {
            Value::Hits(hits) if nodes.iter().any(|node| node == id) => {
                result.hits.insert(id.to_owned(), hits.hits.clone());
                result.classes.extend(hits.query.standalone.map(|standalone| (id.to_owned(), standalone)));
                result.queries.extend(hits.query.searches().first().map(|text| (id.to_owned(), text.clone())));
            }
            _ if !counting.iter().any(|node| **node == *id) => {}
            Value::Answer(answer) => {
                result.answers.insert(id.to_owned(), answer.clone());
                result.answer = Some(answer.clone());
                result.warnings = item.warnings.clone();
            }
            Value::Failed(failure) => {
                result.answer = None;
                result.failure.get_or_insert(format!("node `{}`: {}", failure.node, failure.reason));
            }
            _ => {}
        }
    };
    let options = Options {
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        observer: Some(Arc::new(observer)),
        ..engine.options(&plan)
    };
    let engine = start(plan, options)?;
    check(&engine)?;
    let begun = Instant::now();
    submit(engine, &tasks.iter().map(turn).collect::<Vec<_>>())?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut results = results.lock().map_err(|_| anyhow!("a worker panicked"))?;
    Ok(Answers { by_task: std::mem::take(&mut results), seconds })
}

/// Submits all turns and waits until they are answered.
pub(super) fn submit(engine: Engine, turns: &[SourcedTurn]) -> Result<(), Fault> {
    let asked = turns.iter().filter(|turn| turn.record.speaker == Speaker::User);
    let all = asked.count();
    let (bar, mut minutes) = (progress::bar(all as u64, "answering"), progress::Minutes::new());
    let mut tell = |delivered: usize| {
        bar.set_position(delivered as u64);
        minutes.tell(|| format!("answering: {delivered} of {} answered", count(all, "turn")));
    };
    for turn in turns {
        if !engine.submit(turn.clone()) {
            engine.check()?;
            return Err(anyhow!("the pipeline stopped before all turns were answered").into());
        }
        tell(engine.delivered());
    }
    engine.end_turns();
    while !engine.has_ended() {
        engine.check()?;
        tell(engine.delivered());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    bar.finish_and_clear();
    Ok(engine.join()?)
}

/// The turn of a task. Several tasks may belong to one conversation, each with its own history, so
/// each becomes a separate conversation here, named after the task.
fn turn(task: &Task) -> SourcedTurn {
    let (question, before) = match task.input.split_last() {
        Some((last, before)) => (&*last.text, before),
        None => ("", &[][..]),
    };
    SourcedTurn {
        record: TurnRecord {
            conversation_id: task.id.as_str().into(),
            turn: task.turn.max(1),
            speaker: Speaker::User,
            text: question.into(),
            collection: task.collection.as_deref().map(Into::into),
            timestamp: None,
            // For the operator that uses a task's own passages.
            extra: Map::from_iter([("contexts".to_owned(), json!(task.contexts))]),
        },
        position: task.id.clone(),
        history: Some(before.to_vec()),
        place: None,
    }
}
