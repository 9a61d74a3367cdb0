//! `turnflow-stress logs`: kills turnflow at random moments while another program writes a log in a form of its own: files
//! that are rotated and packed, one file, one whose messages are edited, a database, or spans that are sent. Then counts the
//! answers.

mod chats;
mod edits;
mod files;
mod otlp;
mod sqlite;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use turnflow_engine::wording::count;
use turnflow_eval::random::Random;

use crate::checks;

/// Range of the lifetime of a process, in milliseconds. One in four gets the short range.
const LIFE: (usize, usize) = (50, 1500);
const SHORT_LIFE: (usize, usize) = (1, 120);
/// The file of the answers.
const FILE: &str = "answers.jsonl";
/// Number of conversations.
const CONVERSATIONS: usize = 12;
/// How long everything that was asked may take in the end.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long is waited in the end for what is answered a second time.
const CALM: Duration = Duration::from_secs(2);
/// What makes messages of the records.
const PROGRAM: &str = "{id, conversation: .c, speaker: .s, text: .t, order: .id}";

/// What is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Logs that are rotated, packed and written again, read by `Files`.
    Files,
    /// Chats in a file each, which are written anew, packed, and written again, read by `Files`.
    Chats,
    /// One log, read by `JsonLines` with a mapping.
    JsonLines,
    /// A database, read by `Sqlite`.
    Sqlite,
    /// Spans, taken by `Otlp`.
    Otlp,
    /// One log whose messages are edited and deleted, read by `Files` with `revise`.
    Edits,
}

/// Arguments of `logs`.
#[derive(Args)]
pub(crate) struct LogsArgs {
    /// What is written.
    kind: Kind,
    /// Working directory; its content is deleted.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Number of kills.
    #[arg(long, default_value_t = 50)]
    times: u32,
    /// Number of worker threads.
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// Seed of the random questions and moments.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// A log that another program writes.
trait Log {
    /// The node of the pipeline that reads it.
    fn source(&self) -> String;
    /// Writes records. Returns when they are written for good; only then they must be answered.
    fn write(&mut self, records: &[Value]) -> anyhow::Result<()>;
    /// Rotates or packs something, if that is done to such logs. Returns whether it was.
    fn disturb(&mut self, _random: &mut Random) -> anyhow::Result<bool> {
        Ok(false)
    }
    /// Whether records can be written while turnflow does not run.
    fn is_passive(&self) -> bool {
        true
    }
    /// What is wrong with the answers.
    fn wrong(&self, world: &World) -> Vec<String> {
        world.wrong()
    }
}

struct World {
    dir: PathBuf,
    random: Random,
    /// Number of the questions of each conversation.
    asked: [u32; CONVERSATIONS],
    /// The number of the last message.
    last: u64,
    /// Messages that are written once more, soon.
    again: Vec<Value>,
    workers: u16,
}

impl World {
    /// Writes some messages, now and then two in the wrong order, and some of them once more.
    fn say(&mut self, log: &mut dyn Log) -> anyhow::Result<()> {
        let mut records = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let conversation = self.random.below(CONVERSATIONS);
            self.asked[conversation] += 1;
            let (name, number) = (format!("c{conversation}"), self.asked[conversation]);
            let text = format!("What does {name} say about topic {}, question {number}?", number % 7);
            self.last += 1;
            records.push(json!({"id": self.last, "c": name, "s": "user", "t": text}));
            if self.random.below(3) == 0 {
                self.last += 1;
                records.push(json!({"id": self.last, "c": name, "s": "agent", "t": format!("Answer {number}.")}));
            }
        }
        if records.len() > 1 && self.random.below(4) == 0 {
            let at = self.random.below(records.len() - 1);
            records.swap(at, at + 1);
        }
        if self.random.below(5) == 0 {
            self.again.extend(records.first().cloned());
        }
        if self.random.below(3) == 0 {
            records.append(&mut self.again);
        }
        log.write(&records)
    }

    fn start(&self) -> anyhow::Result<Child> {
        let mut log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        writeln!(log, "-- a process starts")?;
        Command::new(crate::turnflow()?)
            .arg("run")
            .arg(self.dir.join("pipeline.ron"))
            .arg("--state")
            .arg(self.dir.join("state"))
            .args(["--workers", &self.workers.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot run turnflow")
    }

    fn is_running(&self, child: &mut Child, what: &str) -> anyhow::Result<()> {
        let Some(status) = child.try_wait()? else { return Ok(()) };
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let last = log.rsplit("-- a process starts\n").next().unwrap_or_default();
        anyhow::bail!("{what}: the process exited early ({status}):\n{last}")
    }

    fn questions(&self) -> usize {
        self.asked.iter().map(|asked| *asked as usize).sum()
    }

    /// What the sink has written.
    fn records(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.join(FILE)).unwrap_or_default();
        // The last line may be incomplete while it is being written.
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect()
    }

    /// The answers, as conversation, turn and the number of the question.
    fn answered(&self) -> Vec<(String, u64, u32)> {
        let of = |record: Value| {
            let question = record["query"].as_str()?.rsplit_once("question ")?.1.trim_end_matches('?').parse().ok()?;
            Some((record["conversation_id"].as_str()?.to_owned(), record["turn"].as_u64()?, question))
        };
        self.records().into_iter().filter_map(of).collect()
    }

    /// Each question is answered once.
    fn wrong(&self) -> Vec<String> {
        let mut times: BTreeMap<(String, u32), Vec<u64>> = BTreeMap::new();
        for (conversation, turn, question) in self.answered() {
            times.entry((conversation, question)).or_default().push(turn);
        }
        let mut wrong = Vec::new();
        for (conversation, last) in self.asked.iter().enumerate() {
            let mut turns = Vec::new();
            for question in 1..=*last {
                match times.remove(&(format!("c{conversation}"), question)).unwrap_or_default()[..] {
                    [turn] => turns.push(turn),
                    [] => wrong.push(format!("question {question} of c{conversation} is not answered")),
                    ref several => {
                        wrong.push(format!(
                            "question {question} of c{conversation} is answered {} times",
                            several.len()
                        ));
                    }
                }
            }
            turns.sort_unstable();
            if turns.windows(2).any(|pair| pair[0] + 1 != pair[1]) && wrong.is_empty() {
                wrong.push(format!("the turns of c{conversation} are not numbered one after another: {turns:?}"));
            }
        }
        wrong.extend(
            times
                .into_keys()
                .map(|(conversation, question)| format!("question {question} of {conversation} was never asked")),
        );
        wrong
    }
}

pub(crate) fn run(args: &LogsArgs) -> anyhow::Result<()> {
    let LogsArgs { kind, dir, times, workers, seed } = args;
    if dir.exists() {
        let is_ours = dir.join("pipeline.ron").exists() || std::fs::read_dir(dir)?.next().is_none();
        anyhow::ensure!(is_ours, "`{}` is not empty and was not created by this command", dir.display());
        std::fs::remove_dir_all(dir)?;
    }
    std::fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let mut log: Box<dyn Log> = match kind {
        Kind::Files => Box::new(files::Files::new(&dir, true)?),
        Kind::JsonLines => Box::new(files::Files::new(&dir, false)?),
        Kind::Chats => Box::new(chats::Chats::new(&dir)?),
        Kind::Sqlite => Box::new(sqlite::Database::new(&dir)?),
        Kind::Otlp => Box::new(otlp::Sender::new()?),
        Kind::Edits => Box::new(edits::Edits::new(&dir)),
    };
    write_world(&dir, &*log)?;
    let (asked, again) = ([0; CONVERSATIONS], Vec::new());
    let mut world = World { dir, random: Random::new(*seed), asked, last: 0, again, workers: *workers };
    let begun = Instant::now();
    let (mut short, mut disturbed) = (0, 0);
    for kill in 0..*times {
        let mut child = world.start()?;
        let is_short = world.random.below(4) == 0;
        let (from, to) = if is_short { SHORT_LIFE } else { LIFE };
        short += usize::from(is_short);
        let end = Instant::now() + Duration::from_millis((from + world.random.below(to - from)) as u64);
        while Instant::now() < end {
            match world.random.below(8) {
                0..=4 => world.say(&mut *log)?,
                5 => disturbed += usize::from(log.disturb(&mut world.random)?),
                _ => {}
            }
            world.is_running(&mut child, &format!("kill {kill}"))?;
            std::thread::sleep(Duration::from_millis(world.random.below(40) as u64));
        }
        child.kill().and_then(|()| child.wait()).context("cannot kill the process")?;
        for _ in 0..world.random.below(4) {
            if log.is_passive() {
                world.say(&mut *log)?;
            }
            disturbed += usize::from(log.disturb(&mut world.random)?);
        }
    }
    let killed = begun.elapsed().as_secs_f64();
    let mut child = world.start()?;
    // What was sent and not taken is sent again now.
    world.say(&mut *log)?;
    let until = Instant::now() + PATIENCE;
    while !log.wrong(&world).is_empty() && Instant::now() < until {
        world.is_running(&mut child, "the last run")?;
        log.write(&[])?;
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(CALM);
    child.kill().and_then(|()| child.wait()).context("cannot kill the process")?;
    let wrong = log.wrong(&world);
    println!(
        "{} ({short} of them early) in {killed:.0} s, {}: {} in {kind:?}, {}; {}",
        count(*times, "kill"),
        count(*workers, "worker"),
        count(world.questions(), "question"),
        count(disturbed, if matches!(kind, Kind::Edits) { "edit" } else { "rotation" }),
        count(wrong.len(), "broken promise")
    );
    checks::verdict(&wrong)
}

fn write_world(dir: &Path, log: &dyn Log) -> anyhow::Result<()> {
    let row =
        |topic: usize| json!({"_id": format!("d{topic}"), "text": format!("Document {topic} is about topic {topic}.")});
    let rows: String = (0..7).map(|topic| format!("{}\n", row(topic))).collect();
    std::fs::write(dir.join("docs.jsonl"), rows)?;
    let pipeline = format!(
        "Pipeline(\n    corpora: {{ \"docs\": Corpus(source: JsonLines(path: \"docs.jsonl\"), chunk: Whole()) }},\n    nodes: {{\n        \
         \"turns\": {},\n        \"query\": LastTurn(input: \"turns\"),\n        \
         \"hits\": Bm25(input: \"query\", corpus: \"docs\"),\n        \
         \"out\": JsonLinesSink(input: \"hits\", path: \"{FILE}\"),\n    }},\n)\n",
        log.source()
    );
    Ok(std::fs::write(dir.join("pipeline.ron"), pipeline)?)
}
