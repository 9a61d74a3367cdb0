//! `turnflow-stress shapes`: starts and answers with several numbers of processes and workers, on the documents and the
//! state of the run before.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::broker::kafka::Topics;
use crate::scale::{grow, texts, write};

/// Set in processes that are `turnflow` with the model `Random`.
pub(crate) const AS_TURNFLOW: &str = "TURNFLOW_STRESS_AS_TURNFLOW";

/// Processes and workers, as in `2x1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    processes: u16,
    workers: u16,
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (processes, workers) = text.split_once('x').context("write PROCESSESxWORKERS, as in 2x1")?;
        Ok(Self { processes: processes.parse()?, workers: workers.parse()? })
    }
}

/// What is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Retrieval {
    /// `Bm25`.
    Bm25,
    /// `Dense`, whose vectors have 384 random values.
    Dense,
}

/// Arguments of `shapes`.
#[derive(Args)]
pub(crate) struct ShapesArgs {
    /// Working directory, which must be empty or absent. It is left as it is afterwards.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Passages to start from: JSON Lines with `text`.
    #[arg(long, value_name = "FILE")]
    corpus: PathBuf,
    /// Questions: JSON Lines with `text`. They are repeated.
    #[arg(long, value_name = "FILE")]
    queries: PathBuf,
    /// Number of passages.
    #[arg(long, default_value_t = 100_000)]
    passages: usize,
    /// Number of turns, each of a conversation of its own.
    #[arg(long, default_value_t = 10_000)]
    turns: usize,
    /// Number of passages to find for a turn.
    #[arg(long, default_value_t = 10)]
    top: usize,
    /// What to search.
    #[arg(long, value_enum, default_value = "bm25")]
    retrieval: Retrieval,
    /// Read the turns from a topic of Kafka with eight partitions, and send the answers to another one. All processes read
    /// together then. The brokers are librdkafka's, in this process. The hits are not compared.
    #[arg(long)]
    kafka: bool,
    /// Processes and workers, in this order.
    #[arg(long, value_delimiter = ',', default_value = "1x1,1x2,2x1,4x1,1x1")]
    shapes: Vec<Shape>,
    /// How often each shape answers the turns; the fastest counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Also write what was measured to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A run of a cluster.
struct Ran {
    /// From its start to its end.
    seconds: f64,
    /// Time of all cores.
    cpu_s: f64,
    /// Contents that a model embedded.
    embedded: u64,
}

pub(crate) fn run(args: &ShapesArgs) -> anyhow::Result<()> {
    let given = texts(&args.corpus)?;
    let questions = texts(&args.queries)?;
    anyhow::ensure!(!given.is_empty() && !questions.is_empty(), "there are no passages or no questions");
    std::fs::create_dir_all(&args.dir)?;
    anyhow::ensure!(std::fs::read_dir(&args.dir)?.next().is_none(), "`{}` is not empty", args.dir.display());
    let dir = args.dir.canonicalize()?;
    write(&dir.join("passages.jsonl"), grow(&given, args.passages))?;
    let turns = write_turns(&questions, args.turns);
    let found = match args.retrieval {
        Retrieval::Bm25 => format!(r#"Bm25(input: "query", corpus: "docs", top: {})"#, args.top),
        Retrieval::Dense => format!(r#"Dense(input: "query", corpus: "docs", model: "random", top: {})"#, args.top),
    };
    let models = if args.retrieval == Retrieval::Dense { r#"models: { "random": Random() },"# } else { "" };
    let topics = args.kafka.then(|| Topics::start(&turns)).transpose()?;
    let (source, sink) = match &topics {
        None => (
            r#"JsonLines(path: "turns.jsonl")"#.to_owned(),
            r#"JsonLinesSink(input: "found", path: "answers.jsonl")"#.to_owned(),
        ),
        Some(topics) => {
            let servers = topics.servers();
            let sink = format!(r#"KafkaSink(input: "found", brokers: "{servers}", topic: "answers")"#);
            (format!(r#"Kafka(brokers: "{servers}", topic: "turns")"#), sink)
        }
    };
    let pipeline = format!(
        r#"Pipeline(
    {models}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "passages.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": {source},
        "query": LastTurn(input: "turns"),
        "found": {found},
        "out": {sink},
    }},
)"#
    );
    std::fs::write(dir.join("p.ron"), pipeline)?;
    let mut expected = None;
    let mut runs = Vec::new();
    for shape in &args.shapes {
        let first = once(&dir, *shape, None, args.kafka)?;
        let (mut best, mut cpu_s) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..args.rounds {
            let before = topics.as_ref().map_or(Ok(0), Topics::answers)?;
            let (empty, whole) = (once(&dir, *shape, None, args.kafka)?, once(&dir, *shape, Some(&turns), args.kafka)?);
            best = best.min(whole.seconds - empty.seconds);
            cpu_s = cpu_s.min(whole.cpu_s - empty.cpu_s);
            if let Some(topics) = &topics {
                let answers = usize::try_from(topics.answers()? - before)?;
                anyhow::ensure!(answers == args.turns, "{answers} of {} turns are answered", args.turns);
                continue;
            }
            let hits = answers(&dir)?;
            anyhow::ensure!(hits.len() == args.turns, "{} of {} turns are answered", hits.len(), args.turns);
            let expected = expected.get_or_insert_with(|| hits.clone());
            anyhow::ensure!(*expected == hits, "the hits of {shape:?} differ");
        }
        let (rate, cpu_us) = (args.turns as f64 / best, cpu_s * 1e6 / args.turns as f64);
        let Shape { processes, workers } = *shape;
        println!(
            "{processes} processes of {workers} workers: {} passages, {:?}: start and stop {:.2} s, {} embedded; {rate:.0} \
             turns a second, {cpu_us:.0} µs of a core for each{}",
            args.passages,
            args.retrieval,
            first.seconds,
            first.embedded,
            if args.kafka { "" } else { ", the same hits" }
        );
        runs.push(json!({
            "passages": args.passages, "processes": processes, "workers": workers, "turns_a_second": rate.round(),
            "cpu_us": cpu_us.round(), "start_s": first.seconds, "embedded": first.embedded,
        }));
    }
    if let Some(path) = &args.json {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::fs::write(path, format!("{:#}\n", json!({"cores": cores, "runs": runs})))?;
    }
    Ok(())
}

fn write_turns(questions: &[String], count: usize) -> String {
    let mut lines = String::new();
    for (number, text) in questions.iter().cycle().take(count).enumerate() {
        let turn = json!({"conversation_id": format!("c{number}"), "turn": 1, "speaker": "user", "text": text});
        let _ = writeln!(lines, "{turn}");
    }
    lines
}

/// Runs a cluster to its end on these turns.
fn once(dir: &Path, shape: Shape, turns: Option<&str>, kafka: bool) -> anyhow::Result<Ran> {
    std::fs::write(dir.join("turns.jsonl"), turns.unwrap_or_default())?;
    for former in ["answers.jsonl", "state/turns.redb"] {
        let former = dir.join(former);
        if former.exists() {
            std::fs::remove_file(former)?;
        }
    }
    let (begun, before) = (Instant::now(), cpu_of_children());
    let output = Command::new(std::env::current_exe()?)
        .env(AS_TURNFLOW, "1")
        .current_dir(dir)
        .args(["cluster", "p.ron", "--once", "--verbose", "--state", "state"])
        .args(["--processes", &shape.processes.to_string(), "--workers", &shape.workers.to_string()])
        .args(if kafka && turns.is_none() { &["--set", r#"nodes.turns.topic="none""#][..] } else { &[] })
        .stdin(Stdio::null())
        .output()?;
    let (seconds, cpu_s) = (begun.elapsed().as_secs_f64(), cpu_of_children() - before);
    let log = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "a cluster failed: {log}");
    let counts = log.split("embedded: ").skip(1);
    let counts = counts.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
    Ok(Ran { seconds, cpu_s, embedded: counts.sum() })
}

/// Seconds that the ended children of this process, and theirs, have computed.
fn cpu_of_children() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the result, and all zeros is a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The hits of each turn, by conversation.
fn answers(dir: &Path) -> anyhow::Result<std::collections::BTreeMap<String, String>> {
    let text = std::fs::read_to_string(dir.join("answers.jsonl"))?;
    let of = |line: &str| -> anyhow::Result<(String, String)> {
        let record: serde_json::Value = serde_json::from_str(line)?;
        let hits = record["hits"].as_array().context("no hits")?;
        let hits: Vec<String> = hits.iter().map(|hit| format!("{} {}", hit["passage"], hit["score"])).collect();
        Ok((record["conversation_id"].to_string(), hits.join(", ")))
    };
    text.lines().map(of).collect()
}
