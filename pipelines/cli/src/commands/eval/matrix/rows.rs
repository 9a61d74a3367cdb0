//! The rows of a matrix: what each needs, whether its result is kept, and its run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use turnflow_engine::plan::Plan;
use turnflow_engine::record::PortType;
use turnflow_engine::spec::{Diagnostic, Kind, Tree};
use turnflow_engine::wording::count;

use super::data::{Data, RowData};
use crate::commands::eval::evaluation::{Ready, Subject};
use crate::commands::eval::{EvalArgs, generation, hits_nodes, wanted};
use crate::commands::{EngineArgs, Fault, catalog, one_line, say_what_fetches};
use crate::diagnostics;
use turnflow_eval::matrix::{Hashes, Matrix, PlannedRow, Provenance, Row, RowResult, plan_row};

/// What is to be done for a row.
pub(super) enum Prepared {
    /// It has no pipeline file.
    NoFile,
    /// `--rows` does not choose it, and it has no valid result.
    NotChosen,
    /// Its result is kept.
    Kept(Box<RowResult>),
    /// It cannot be run.
    Failed(String),
    /// It is to be run.
    Ready(Box<ReadyRow>),
}

/// A row that can be run.
pub(super) struct ReadyRow {
    plan: Plan,
    nodes: Vec<String>,
    data: Rc<RowData>,
    provenance: Provenance,
    /// The state directory, which rows with the same corpora share.
    state: PathBuf,
    file: String,
    models: BTreeMap<String, String>,
}

/// Prepares rows; remembers what it has told and hashed.
pub(super) struct Preparing<'a> {
    matrix: &'a Matrix,
    args: &'a EvalArgs,
    results: &'a Path,
    hashes: Hashes,
    told: BTreeSet<String>,
    needs_answers: bool,
}

impl<'a> Preparing<'a> {
    pub fn new(matrix: &'a Matrix, args: &'a EvalArgs, results: &'a Path) -> Self {
        let needs_answers = matrix.columns.iter().any(|column| column.is_of_answers());
        Self { matrix, args, results, hashes: Hashes::default(), told: BTreeSet::new(), needs_answers }
    }

    /// Plans a row and compares it with its stored result. Mistakes in its pipeline are printed.
    pub fn prepare(&mut self, row: &Row, is_chosen: bool, data: &mut Data) -> Result<Prepared, Fault> {
        let Some(file) = row.config.pipeline_file(self.args.local) else { return Ok(Prepared::NoFile) };
        let data_of_row = data.of(self.matrix, row, self.args)?;
        let planned = plan_row(self.matrix, row, file, Some(&data.directory), &self.args.set, catalog());
        let ready = match self.ready(row, planned, data_of_row) {
            Ok(ready) => ReadyRow { file: file.written.clone(), ..ready },
            Err(reason) if is_chosen => return Ok(Prepared::Failed(reason)),
            Err(_) => return Ok(Prepared::NotChosen),
        };
        let stored = RowResult::read(self.results, &row.name).filter(|stored| stored.provenance == ready.provenance);
        Ok(match stored {
            Some(stored) if !(is_chosen && self.args.again) => Prepared::Kept(Box::new(stored)),
            _ if !is_chosen => Prepared::NotChosen,
            _ => Prepared::Ready(Box::new(ready)),
        })
    }

    fn ready(&mut self, row: &Row, planned: PlannedRow, data: Rc<RowData>) -> Result<ReadyRow, String> {
        let PlannedRow { plan, tree, mut diagnostics, sources } = planned;
        say_what_fetches(&mut diagnostics);
        let (Some(plan), Some(tree), true) = (plan, tree, diagnostics.is_empty()) else {
            let text = diagnostics::render(&diagnostics, &sources, std::io::stderr().is_terminal());
            if self.told.insert(text.clone()) {
                eprintln!("{text}\n");
            }
            return Err(in_short(&diagnostics));
        };
        let wanted_hits: Vec<String> = row.config.hits.iter().cloned().collect();
        let nodes = hits_nodes(&plan, &wanted_hits, data.qrels.is_some()).map_err(reason)?;
        let gives_answers = plan.nodes.iter().any(|node| node.output == Some(PortType::Answers));
        let only_hits = row.config.only_hits || !self.needs_answers || !gives_answers;
        let mut provenance = Provenance {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pipeline: plan.hash.to_string(),
            hits: nodes.last().cloned().unwrap_or_default(),
            only_hits,
            conditioning: self.matrix.config.conditioning,
            tasks: data.tasks_hash.clone(),
            qrels: data.qrels_hash.clone(),
            ..Provenance::default()
        };
        let plan = wanted(plan, &nodes, only_hits);
        let state = state(self.args.engine.state.as_deref(), self.results, &plan)?;
        provenance.add_files(&plan, &tree, &sources, &mut self.hashes).map_err(|error| error.to_string())?;
        if let Some(metrics) = self.matrix.config.metrics_file(self.args.local).filter(|_| !only_hits) {
            let hash = Provenance::of_metrics(&metrics.path, &mut self.hashes);
            provenance.metrics = Some(hash.map_err(|error| format!("the file of metrics: {error}"))?);
        }
        let models = model_names(&plan, &tree);
        Ok(ReadyRow { plan, nodes, data, provenance, state, file: String::new(), models })
    }
}

/// What the models of a plan are: the name at their server, or the directory of their file.
fn model_names(plan: &Plan, tree: &Tree) -> BTreeMap<String, String> {
    let named = |name: &String| {
        let model = tree.get("models")?.get(name)?;
        let text = |field: &str| match &model.get(field)?.kind {
            Kind::Scalar(value) => value.clone().into_rust::<String>().ok(),
            _ => None,
        };
        let directory =
            || Path::new(&text("path")?).parent()?.file_name().map(|name| name.to_string_lossy().into_owned());
        Some((name.clone(), text("model").or_else(directory)?))
    };
    let operators = plan.nodes.iter().flat_map(|node| node.operators());
    let used: BTreeSet<&str> = operators.flat_map(|operator| operator.models()).map(|used| used.name).collect();
    plan.models.keys().filter(|name| used.contains(name.as_str())).filter_map(named).collect()
}

/// The state directory of a plan. Rows whose corpora have the same definitions share one, with its indexes and its
/// cached outputs of models; other corpora of the same name would replace each other's passages there.
fn state(given: Option<&Path>, results: &Path, plan: &Plan) -> Result<PathBuf, String> {
    let corpus = |corpus: &turnflow_engine::plan::PlannedCorpus| {
        let tokenizer = corpus.tokenizer.as_ref().and_then(|model| plan.models.get(model));
        let tokenizer = tokenizer.map(|model| model.definition.to_string());
        (corpus.name.to_string(), corpus.definition.to_string(), tokenizer)
    };
    let corpora: Vec<_> = plan.corpora.iter().map(corpus).collect();
    let hash = Hashes::of_json(&corpora).map_err(|error| error.to_string())?;
    let base = given.map_or_else(|| results.join("state"), Path::to_owned);
    Ok(base.join(hash.get(..12).unwrap_or(&hash)))
}

/// Evaluates a row.
pub(super) fn run_row(matrix: &Matrix, row: &Row, ready: ReadyRow, args: &EvalArgs) -> Result<RowResult, String> {
    let ReadyRow { plan, nodes, data, provenance, state, file, models } = ready;
    let RowData { tasks, qrels, .. } = &*data;
    let engine = EngineArgs { state: Some(state), workers: args.engine.workers };
    let evaluate = || -> Result<RowResult, Fault> {
        let metrics = matrix.config.metrics_file(args.local).filter(|_| !provenance.only_hits);
        let metrics = metrics.map(|metrics| generation::Metrics::read(&metrics.path)).transpose()?;
        if let Some(state) = engine.state.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(state)?;
        }
        let subject = Subject { tasks, qrels: qrels.as_ref(), nodes };
        let mut evaluation = Ready::new(subject, Some(plan), metrics, &engine)?.run(&engine, None, false)?;
        evaluation.score_answers(tasks)?;
        let (failed, first_failure) = evaluation.failed.clone();
        let seconds = evaluation.found.seconds.unwrap_or_default();
        let mut result = RowResult {
            name: row.name.clone(),
            file,
            models,
            provenance,
            seconds,
            failed,
            first_failure,
            ..RowResult::default()
        };
        let figures = std::mem::take(&mut evaluation.figures);
        result.set_figures(&evaluation.named, evaluation.scores(), figures, matrix.config.conditioning);
        Ok(result)
    };
    let result = evaluate().map_err(reason)?;
    match &result.first_failure {
        Some(first) if result.failed == tasks.len() => Err(format!("every task failed, the first with: {first}")),
        Some(first) => {
            let tasks = count(tasks.len(), "task");
            eprintln!("warning: row {:?}: {} of {tasks} failed, the first with: {first}", row.name, result.failed);
            Ok(result)
        }
        None => Ok(result),
    }
}

/// The reason of a failure, in one line.
fn reason(fault: Fault) -> String {
    match fault {
        Fault::Input => "mistakes in its files".to_owned(),
        Fault::Told(error) | Fault::Run(error) | Fault::Lost(error) => one_line(&error),
        Fault::Ended(code) => format!("a process ended with exit code {code}"),
    }
}

/// The first of several mistakes, and the number of the others.
fn in_short(diagnostics: &[Diagnostic]) -> String {
    let Some(first) = diagnostics.first() else { return "its pipeline cannot be read".to_owned() };
    let help: Vec<&String> = first.help.iter().filter(|help| help.starts_with("`turnflow models fetch")).collect();
    let help = help.first().map_or(String::new(), |help| format!("; {help}"));
    let more = match diagnostics.len() - 1 {
        0 => String::new(),
        more => format!(" (and {})", count(more, "more error")),
    };
    format!("{}{help}{more}", first.message)
}
