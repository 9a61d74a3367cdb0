//! Learns the query adapter of a dense retriever's model.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use anyhow::anyhow;
use ndarray::Array2;
use turnflow_engine::component::{Capability, Inventory, Model, Models};
use turnflow_engine::connector::Mode;
use turnflow_engine::inference::{Priority, Role};
use turnflow_engine::plan::{NodeKind, Plan, PlannedNode};
use turnflow_engine::run::{Options, TurnSources};
use turnflow_engine::spec::Override;
use turnflow_engine::wording::count;
use turnflow_eval::adapting::{COMPARED, Learned, Passages, Question, Settings, learn};
use turnflow_eval::metrics::Qrels;
use turnflow_eval::tasks::Task;
use turnflow_eval::verify::{definitions, index_contents};
use turnflow_operators::models::adapter;

use super::super::answering::{Answered, answer_tasks};
use super::super::{Fault, Outcome, start};
use super::{TuneArgs, fold, planned, warn_of_failures};

/// Number of texts per call of the model.
const TEXTS: usize = 256;

/// The kinds of models that take an adapter.
const KINDS: [&str; 2] = ["Onnx", "OpenAiEmbedder"];

/// The name of the bi-encoder of a dense retriever; `None` for other nodes.
pub(super) fn model_of(node: &PlannedNode) -> Option<String> {
    let NodeKind::Operator(config) = &node.kind else { return None };
    let embeds = config.models().into_iter().find(|used| used.capability == Capability::Embed);
    embeds.filter(|_| node.kind_name == "Dense").map(|used| used.name.to_owned())
}

/// Learns an adapter and writes its file, unless it makes held-out questions worse.
pub(super) fn run(args: &TuneArgs, model: &str, tasks: &[Task], qrels: &Qrels) -> Outcome {
    let folds = usize::from(args.folds);
    let found = vectors(args, &args.node, model, tasks, qrels)?;
    let settings = Settings { seed: args.seed, ..Settings::default() };
    println!(
        "{}, {}, model `{model}`",
        count(found.questions.len(), "question"),
        count(found.passages.ids.len(), "passage")
    );
    let learned = learn(&found.vectors, &found.questions, &found.passages, qrels, folds, &settings)
        .ok_or_else(|| Fault::Told(anyhow!("the adapter could not be learned")))?;
    println!("{:>24} {:>8} {:>24}", "before", "held out", "difference (95 %)");
    for (name, difference) in &learned.differences {
        let value = |figures: &turnflow_eval::metrics::Figures| 100.0 * figures.get(name).unwrap_or_default();
        let of = difference.interval;
        println!(
            "  {name:<12} {:>9.1} {:>8.1} {:>+8.1} ({:+.1} to {:+.1}), p = {:.4}",
            value(&learned.before),
            value(&learned.held_out),
            100.0 * of.mean,
            100.0 * of.low,
            100.0 * of.high,
            difference.p,
        );
    }
    let is_better = learned.differences.iter().any(|(_, difference)| difference.interval.mean > 0.0);
    if !is_better || learned.differences.iter().any(|(_, difference)| difference.interval.mean < 0.0) {
        println!("held-out questions do not gain by every metric: nothing is written");
        return Ok(());
    }
    if let Some(path) = &args.output {
        let about = about(args, &learned, found.questions.len());
        let bytes = adapter::adapter(learned.weight, &found.model, about).to_bytes();
        let bytes = bytes.map_err(|reason| anyhow!("the adapter cannot be written: {reason}"))?;
        std::fs::write(path, bytes).map_err(|error| anyhow!("cannot write `{}`: {error}", path.display()))?;
        println!("written to {}; set it as `adapter` of the model `{model}`", path.display());
    }
    Ok(())
}

/// What the file says about its origin.
fn about(args: &TuneArgs, learned: &Learned, questions: usize) -> BTreeMap<String, String> {
    let name = args.tasks.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut about = BTreeMap::from([("tasks".to_owned(), name), ("questions".to_owned(), questions.to_string())]);
    for metric in COMPARED {
        let value = |figures: &turnflow_eval::metrics::Figures| figures.get(metric).unwrap_or_default();
        let told = format!("{:.4} held out, {:.4} before", value(&learned.held_out), value(&learned.before));
        about.insert(metric.to_owned(), told);
    }
    about
}

/// The vectors of the labelled questions and of all passages.
pub(super) struct Found {
    /// The model's fingerprints.
    pub model: Model,
    pub vectors: Array2<f32>,
    pub questions: Vec<Question>,
    pub passages: Passages,
}

/// The vectors for the model of a dense retriever.
pub(super) fn vectors(args: &TuneArgs, node: &str, model: &str, tasks: &[Task], qrels: &Qrels) -> Result<Found, Fault> {
    let plan = bare(args, model)?;
    let nodes = [node.to_owned()];
    let answers = answer_tasks(plan.towards(&[node]), &args.engine, tasks, &nodes, false)?.by_task;
    warn_of_failures(&answers);

    // The published vectors, without turns.
    let plan = bare(args, model)?.towards(&[node]);
    let options = Options {
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        answer: false,
        ..args.engine.options(&plan)
    };
    let engine = start(plan, options)?;
    let models = engine.models();
    let contents =
        index_contents(&engine.epochs().current(), &definitions(&bare(args, model)?.towards(&[node]), &models)?)?;
    let (passages, corpora) = passages(contents.indexes.into_values().flatten());
    let rows: HashMap<&str, usize> = passages.ids.iter().map(String::as_str).zip(0..).collect();
    let labelled = labelled(args, node, tasks, qrels, &answers, &rows, &corpora);
    if labelled.is_empty() {
        engine.join()?;
        let message = "no task has a judged passage in this corpus: an adapter is learned from judged passages";
        return Err(Fault::Told(anyhow!(message)));
    }
    let (texts, questions): (Vec<String>, Vec<Question>) = labelled.into_iter().unzip();
    let (loaded, vectors) = embed(&models, model, &texts)?;
    engine.join()?;
    // Without its parts: they keep the run's inference cache open.
    let (fingerprint, of_passages) = (loaded.fingerprint.clone(), loaded.passages.clone());
    let model = Model { fingerprint, passages: of_passages, ..Model::default() };
    Ok(Found { model, vectors, questions, passages })
}

/// The plan without an adapter of this model.
fn bare(args: &TuneArgs, model: &str) -> Result<Plan, Fault> {
    let without = Override { path: format!("models.{model}.adapter"), value: "None".to_owned() };
    planned(args, &[without]).map_err(|first| {
        let kinds = KINDS.join("` and `");
        Fault::Told(anyhow!("model `{model}` without an adapter: {first} (models of the kinds `{kinds}` take one)"))
    })
}

/// All passages with their vectors, and the rows of each corpus.
fn passages(indexes: impl Iterator<Item = Inventory>) -> (Passages, Vec<Range<usize>>) {
    let (mut ids, mut values, mut corpora) = (Vec::new(), Vec::new(), Vec::new());
    let mut dimension = 0;
    for index in indexes {
        let from = ids.len();
        let Some(encodings) = &index.values else { continue };
        for (id, passage) in &index.passages {
            let Some(encoding) = encodings.get(&passage.hash) else { continue };
            dimension = encoding.values.len();
            values.extend(encoding.values.iter().map(|(_, value)| *value));
            ids.push(id.to_string());
        }
        corpora.push(from..ids.len());
    }
    let vectors = Array2::from_shape_vec((ids.len(), dimension), values).unwrap_or_default();
    (Passages { ids, vectors }, corpora)
}

/// The questions with a judged passage, with the texts that they were searched with.
fn labelled(
    args: &TuneArgs,
    node: &str,
    tasks: &[Task],
    qrels: &Qrels,
    answers: &HashMap<Arc<str>, Answered>,
    rows: &HashMap<&str, usize>,
    corpora: &[Range<usize>],
) -> Vec<(String, Question)> {
    let question = |task: &Task| {
        let judged = qrels.get(&task.id)?.iter().filter(|(_, grade)| **grade > 0);
        let relevant: Vec<usize> = judged.filter_map(|(id, _)| rows.get(id.as_str()).copied()).collect();
        let answered = answers.get(&*task.id)?;
        let text = answered.query(node)?.to_string();
        let searched = answered.hits(node).first().and_then(|hit| rows.get(&*hit.chunk.id));
        let corpus = corpora.iter().find(|range| searched.is_some_and(|row| range.contains(row)))?;
        let fold = fold(args.seed, &task.conversation_id, u64::from(args.folds));
        let relevant: Vec<usize> = relevant.into_iter().filter(|row| corpus.contains(row)).collect();
        let question = Question { id: task.id.clone(), relevant, corpus: corpus.clone(), fold };
        (!question.relevant.is_empty()).then_some((text, question))
    };
    tasks.iter().filter_map(question).collect()
}

/// The vectors of queries, of shape `[texts, dimension]`.
fn embed(models: &Models, model: &str, texts: &[String]) -> Result<(Arc<Model>, Array2<f32>), Fault> {
    let loaded = models.get(model).cloned();
    let loaded = loaded.ok_or_else(|| anyhow!("the model `{model}` is not loaded"))?;
    let embedder = loaded.embedder.clone().ok_or_else(|| anyhow!("the model `{model}` cannot embed texts"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut values = Vec::new();
    for some in texts.chunks(TEXTS) {
        let vectors = runtime.block_on(embedder.embed(some.to_vec(), Role::Query, Priority::Turn))?;
        values.extend(vectors.iter().flat_map(|vector| vector.iter().copied()));
    }
    let vectors = Array2::from_shape_vec((texts.len(), embedder.dimension()), values)?;
    Ok((loaded, vectors))
}
