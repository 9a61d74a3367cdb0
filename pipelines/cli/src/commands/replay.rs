//! `turnflow replay`: replays a recorded log through a pipeline, and compares the results with another
//! pipeline, with other settings, or with recorded answers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::Plan;
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::run::{Options, TurnSources, default_state};
use turnflow_engine::spec::Override;

use super::answering::submit;
use super::output::check_file;
use super::{Fault, Outcome, PipelineArgs, WorkerArgs, node_map, start, write};
use turnflow_eval::replay::{
    Comparison, Log, LogError, Played, Recorded, Recorder, Sides, Turned, difference, ends, read_answers, read_log,
    recorded,
};
use turnflow_eval::tags::as_tagged;

/// Replay a recorded log through a pipeline; compare with another pipeline or with recorded answers.
///
/// Turns are answered as in a run: in order within a conversation. The history has the agent's turns
/// of the log, or otherwise the pipeline's current answers. No sink is written.
///
/// In a comparison with another pipeline (--against), or with the same one with other settings
/// (--against-set), each turn whose hits or answer differ is shown with the first node of the graph
/// whose value differs. To compare the documents that `turnflow tag` has stored with the current
/// ones, or with those of another tag:
///
///   turnflow replay p.ron --log turns.jsonl --against-tag monday
///   turnflow replay p.ron --log turns.jsonl --tag monday --against-tag tuesday
///
/// In a comparison with recorded answers (--answers), the query, hits and answer of a turn are
/// compared. Without a comparison, the answers are printed, one JSON object per line.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ReplayArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The log of turns, one JSON object per line.
    #[arg(long, value_name = "TURNS")]
    log: PathBuf,
    /// The pipeline to compare with.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Set one value in the pipeline to compare with. Without --against, this is FILE with the values
    /// of --set. May be repeated.
    #[arg(long = "against-set", value_name = "PATH=RON")]
    against_set: Vec<Override>,
    /// Use the documents of this tag instead of the current ones.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Use the documents of this tag in the pipeline to compare with.
    #[arg(long, value_name = "TAG")]
    against_tag: Option<String>,
    /// The state directory that contains the tags [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    tags: Option<PathBuf>,
    /// Recorded answers to compare with, as a sink writes them.
    #[arg(long, value_name = "ANSWERS", conflicts_with_all = ["against", "against_set", "against_tag"])]
    answers: Option<PathBuf>,
    /// The state directory for indexes and cached model outputs. Both pipelines use it, one after the
    /// other [default: in memory].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Write the result to this file as JSON.
    #[arg(short, long, visible_alias = "json", value_name = "OUT.json")]
    output: Option<PathBuf>,
    /// Exit with 1 if a turn differs.
    #[arg(long)]
    fail_on_difference: bool,
    #[command(flatten)]
    workers: WorkerArgs,
}

pub(super) fn run(args: &ReplayArgs) -> Outcome {
    check_file("--output", args.output.as_deref())?;
    let plan = args.pipeline.plan()?.running();
    let state = args.tags.clone().unwrap_or_else(|| default_state(&plan.name));
    let plan = tagged(plan, &state, args.tag.as_deref())?;
    let other = match (&args.against, args.against_set.is_empty() && args.against_tag.is_none()) {
        (None, true) => None,
        (file, _) => {
            let set = if file.is_some() { Vec::new() } else { args.pipeline.set.clone() };
            let file = file.clone().unwrap_or_else(|| args.pipeline.file.clone());
            let set = [set, args.against_set.clone()].concat();
            Some(tagged(PipelineArgs { file, set }.plan()?.running(), &state, args.against_tag.as_deref())?)
        }
    };
    let log = log(args)?;
    let then = args.answers.as_deref().map(read_answers).transpose().map_err(|error| Fault::Told(error.into()))?;
    for (position, reason) in &log.skipped {
        eprintln!("{position}: {reason}: skipped");
    }

    let file = args.pipeline.file.display().to_string();
    let of = |tag: &Option<String>| tag.as_ref().map(|tag| format!(" as of `{tag}`")).unwrap_or_default();
    let (played, records) = play(plan, args, &log, file.clone() + &of(&args.tag))?;
    let comparison = if let Some(other) = other {
        let name = match &args.against {
            Some(file) => file.display().to_string(),
            None if args.against_set.is_empty() => file,
            None => {
                let set: Vec<String> =
                    args.against_set.iter().map(|set| format!("{}={}", set.path, set.value)).collect();
                format!("{file} with {}", set.join(", "))
            }
        };
        let (other, _) = play(other, args, &log, name + &of(&args.against_tag))?;
        between(&log, &played, &other)
    } else if let Some(then) = then {
        with_recorded(&log, &records, &then, args)
    } else {
        for record in &records {
            println!("{}", serde_json::to_string(record)?);
        }
        return match &args.output {
            Some(path) => Ok(write(path, &format!("{:#}\n", serde_json::to_value(&records)?))?),
            None => Ok(()),
        };
    };
    print!("{}", comparison.to_text());
    if let Some(path) = &args.output {
        write(path, &format!("{:#}\n", comparison.to_json()))?;
    }
    if args.fail_on_difference && !comparison.differing.is_empty() { Err(Fault::Input) } else { Ok(()) }
}

/// The log; by the mapping of the pipeline's source, if it has another form.
fn log(args: &ReplayArgs) -> Result<Log, Fault> {
    let mapping = if node_map::is_own(&args.log) { None } else { node_map::of_first(&args.pipeline.file)? };
    let Some(mapping) = mapping else { return read_log(&args.log).map_err(|error| Fault::Told(error.into())) };
    let node_map::Turns { turns, refused } = node_map::turns(&mapping, &args.log)?;
    Log::of(turns, refused).ok_or_else(|| Fault::Told(LogError::Empty(args.log.clone()).into()))
}

/// The plan with the documents of a tag.
fn tagged(mut plan: Plan, state: &Path, tag: Option<&str>) -> Result<Plan, Fault> {
    if let Some(tag) = tag {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(as_tagged(&mut plan, state, tag)).map_err(|error| Fault::Told(error.into()))?;
    }
    Ok(plan)
}

/// Replays the log; returns the traces and the records that a sink would receive.
fn play(plan: Plan, args: &ReplayArgs, log: &Log, name: String) -> Result<(Played, Vec<AnswerRecord>), Fault> {
    let Some(end) = ends(&plan) else {
        return Err(Fault::Told(anyhow!(
            "no node of `{name}` outputs hits or answers, so there is nothing to compare"
        )));
    };
    let nodes = plan.nodes.iter().filter(|node| node.output.is_some());
    let nodes = nodes.map(|node| (node.id.clone(), node.kind_name)).collect();
    let recorder = Recorder::default();
    let options = Options {
        workers: args.workers.count(),
        state: args.state.clone(),
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        observer: Some(recorder.observer()),
        ..Options::default()
    };
    let mut plan = plan;
    plan.dead_letters = None;
    let engine = start(plan, options)?;
    let as_record = engine.recorder();
    submit(engine, &log.turns)?;
    let traces = recorder.take(log.asked());
    let mut records = Vec::new();
    for trace in &traces {
        let Some((item, given)) = trace.items.get(&*end) else {
            return Err(anyhow!("the pipeline stopped before all turns were answered").into());
        };
        let mut record = as_record(item);
        record.latency_ms = (record.latency_ms - given.elapsed().as_secs_f64() * 1000.0).max(0.0);
        records.push(record);
    }
    Ok((Played { name, nodes, end, traces }, records))
}

fn between(log: &Log, a: &Played, b: &Played) -> Comparison {
    let only = |these: &Played, others: &Played| {
        let own = these.nodes.iter().filter(|(id, _)| others.nodes.iter().all(|(other, _)| other != id));
        own.map(|(id, kind)| format!("`{id}` ({kind})")).collect()
    };
    let differing = log.asked().enumerate().filter_map(|(at, record)| {
        Some(Turned {
            conversation_id: record.conversation_id.clone(),
            turn: record.turn,
            question: record.text.clone(),
            difference: difference(a, b, at)?,
        })
    });
    let sides =
        Sides { before: a.name.clone(), after: b.name.clone(), only_before: only(a, b), only_after: only(b, a) };
    Comparison { sides, turns: a.traces.len(), differing: differing.collect() }
}

fn with_recorded(log: &Log, records: &[AnswerRecord], then: &Recorded, args: &ReplayArgs) -> Comparison {
    let mut met: HashMap<(&str, u32), usize> = HashMap::new();
    let mut differing = Vec::new();
    for (record, now) in log.asked().zip(records) {
        let at = met.entry((&record.conversation_id, record.turn)).or_default();
        let standing = then.get(&(record.conversation_id.clone(), record.turn)).and_then(|all| all.get(*at));
        *at += 1;
        if let Some(difference) = recorded(now, standing) {
            differing.push(Turned {
                conversation_id: record.conversation_id.clone(),
                turn: record.turn,
                question: record.text.clone(),
                difference,
            });
        }
    }
    let before = args.answers.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let sides = Sides { before, after: args.pipeline.file.display().to_string(), ..Sides::default() };
    Comparison { sides, turns: records.len(), differing }
}
