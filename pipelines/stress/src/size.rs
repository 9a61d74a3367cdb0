//! `turnflow-stress size`: memory and starts of growing corpora. Each size is measured in a process of its own: when it
//! indexes the corpus, and when it starts again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use turnflow_engine::ask::{AskRequest, Event};
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::plan;
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load_str;

use crate::random_model;
use crate::scale::{grow, texts, write};

/// Number of questions.
const QUESTIONS: usize = 50;
/// Time until memory that was freed is given back.
const SETTLE: Duration = Duration::from_secs(3);

/// What is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Retrieval {
    /// `Bm25`.
    Bm25,
    /// `Bm25` and `Dense`, whose vectors have 384 random values.
    Hybrid,
}

#[derive(Args)]
pub(crate) struct SizeArgs {
    /// Working directory, which must be empty or absent. It is left as it is afterwards.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Passages to start from: JSON Lines with `text`.
    #[arg(long, value_name = "FILE")]
    corpus: PathBuf,
    /// What to index.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bm25,hybrid")]
    retrieval: Vec<Retrieval>,
    /// Numbers of passages.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    passages: Vec<usize>,
    /// Measure in this process, in a directory that has the passages; print JSON.
    #[arg(long, hide = true)]
    alone: bool,
}

/// What a process measures of itself. Memory is in bytes.
struct Measured {
    /// Seconds from the start to the first answer.
    first_answer_s: f64,
    /// Seconds from the start until the source is read, and compared with what is stored.
    read_s: f64,
    /// Median time of an answer, in milliseconds.
    answer_ms: f64,
    memory: Memory,
}

#[derive(Clone, Copy)]
struct Memory {
    /// Memory that no file backs.
    anonymous: u64,
    /// Resident pages of mapped files. The operating system drops them if it needs the memory.
    mapped: u64,
    /// The greatest resident size so far.
    peak: u64,
}

impl Measured {
    fn to_json(&self) -> Value {
        let Memory { anonymous, mapped, peak } = self.memory;
        json!([self.first_answer_s, self.answer_ms, anonymous, mapped, peak, self.read_s])
    }

    fn of(json: &Value) -> Option<Self> {
        let time = |at: usize| json.get(at)?.as_f64();
        let bytes = |at: usize| json.get(at)?.as_u64();
        let memory = Memory { anonymous: bytes(2)?, mapped: bytes(3)?, peak: bytes(4)? };
        Some(Self { first_answer_s: time(0)?, answer_ms: time(1)?, memory, read_s: time(5)? })
    }
}

impl Memory {
    fn now() -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").context("there is no /proc")?;
        let field = |name: &str| -> anyhow::Result<u64> {
            let rest = status.lines().find_map(|line| line.strip_prefix(name)).context("a field is missing")?;
            Ok(rest.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
        };
        Ok(Self { anonymous: field("RssAnon:")?, mapped: field("RssFile:")?, peak: field("VmHWM:")? })
    }
}

pub(crate) fn run(args: &SizeArgs) -> anyhow::Result<()> {
    if args.alone {
        let retrieval = args.retrieval.first().context("--retrieval is required")?;
        println!("{}", measure(&args.dir, *retrieval, &args.corpus)?.to_json());
        return Ok(());
    }
    let given = texts(&args.corpus)?;
    anyhow::ensure!(!given.is_empty(), "there are no passages");
    std::fs::create_dir_all(&args.dir)?;
    anyhow::ensure!(std::fs::read_dir(&args.dir)?.next().is_none(), "`{}` is not empty", args.dir.display());
    for passages in &args.passages {
        let dir = args.dir.join(passages.to_string());
        std::fs::create_dir_all(&dir)?;
        let dir = dir.canonicalize()?;
        write(&dir.join("passages.jsonl"), grow(&given, *passages))?;
        let text = std::fs::metadata(dir.join("passages.jsonl"))?.len();
        for retrieval in &args.retrieval {
            for start in ["indexed", "started again"] {
                let Measured { first_answer_s, answer_ms, memory, read_s } = in_a_process(args, &dir, *retrieval)?;
                let each = |bytes: u64| bytes as f64 / *passages as f64;
                println!(
                    "{passages} passages of {:.0} bytes, {retrieval:?}, {start}: first answer after {first_answer_s:.2} s, \
                     then {answer_ms:.1} ms; source read after {read_s:.2} s; anonymous memory {:.0} bytes a passage, mapped {:.0}, peak {:.0}",
                    each(text),
                    each(memory.anonymous),
                    each(memory.mapped),
                    each(memory.peak)
                );
            }
        }
    }
    Ok(())
}

fn in_a_process(args: &SizeArgs, dir: &Path, retrieval: Retrieval) -> anyhow::Result<Measured> {
    let retrieval = retrieval.to_possible_value().context("no such retrieval")?;
    let output = Command::new(std::env::current_exe()?)
        .args(["size", "--alone", "--retrieval", retrieval.get_name(), "--dir"])
        .arg(dir)
        .arg("--corpus")
        .arg(&args.corpus)
        .output()?;
    let error = || format!("a process failed: {}", String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(output.status.success(), error());
    serde_json::from_slice(&output.stdout).ok().as_ref().and_then(Measured::of).with_context(error)
}

/// A pipeline that searches for passages.
fn pipeline(retrieval: Retrieval) -> String {
    let bm25 = r#"Bm25(input: "query", corpus: "docs", top: 10)"#;
    let (models, nodes) = match retrieval {
        Retrieval::Bm25 => ("", format!(r#""found": {bm25}"#)),
        Retrieval::Hybrid => (
            r#"models: { "random": Random() },"#,
            format!(
                r#""words": {bm25},
        "vectors": Dense(input: "query", corpus: "docs", model: "random", top: 10),
        "found": Rrf(inputs: ["words", "vectors"], top: 10)"#
            ),
        ),
    };
    format!(
        r#"Pipeline(
    {models}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "passages.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        {nodes},
        "answer": ExtractiveAnswer(input: "found", passages: 1),
    }},
)"#
    )
}

fn measure(dir: &Path, retrieval: Retrieval, corpus: &Path) -> anyhow::Result<Measured> {
    let questions = texts(corpus)?;
    let begun = Instant::now();
    let catalog = random_model::catalog();
    let planned = plan(load_str("size", dir, &pipeline(retrieval), &[]), &catalog);
    let plan = planned.plan.with_context(|| format!("the pipeline is invalid: {:#?}", planned.diagnostics))?;
    let options = Options {
        workers: std::thread::available_parallelism().map_or(1, usize::from),
        corpora: Mode::Follow,
        sources: TurnSources::None,
        sinks: false,
        state: Some(dir.join(format!("state-{retrieval:?}"))),
        ..Options::default()
    };
    let engine = Engine::start(plan, options)?;
    ask(&engine, questions.first().context("there are no questions")?)?;
    let first_answer_s = begun.elapsed().as_secs_f64();
    engine.wait_ready()?;
    let read_s = begun.elapsed().as_secs_f64();
    let mut took = Vec::new();
    let step = (questions.len() / QUESTIONS).max(1);
    for question in questions.iter().step_by(step).take(QUESTIONS) {
        let asked = Instant::now();
        ask(&engine, question)?;
        took.push(asked.elapsed());
    }
    took.sort_unstable();
    let answer_ms = took.get(took.len() / 2).copied().unwrap_or_default().as_secs_f64() * 1000.0;
    std::thread::sleep(SETTLE);
    let memory = Memory::now()?;
    engine.stop();
    engine.join()?;
    Ok(Measured { first_answer_s, answer_ms, memory, read_s })
}

fn ask(engine: &Engine, text: &str) -> anyhow::Result<()> {
    let mut events = engine.ask(AskRequest::new(text));
    futures::executor::block_on(async {
        while let Some(event) = events.next().await {
            match event {
                Event::Answer { .. } => return Ok(()),
                Event::Failed { reason } => anyhow::bail!("a question has failed: {reason}"),
                Event::Started { .. } | Event::Node { .. } | Event::Delta { .. } | Event::Revised { .. } => {}
            }
        }
        anyhow::bail!("the run has ended")
    })
}
