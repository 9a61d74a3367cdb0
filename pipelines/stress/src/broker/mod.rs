//! `turnflow-stress broker`: kills turnflow, a broker or a database, or both, at random moments, while turns are
//! published. Then counts the answers in a file, and in the broker's own sink.

mod divided;
pub(crate) mod kafka;
mod nats;
mod postgres;
mod redis;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use turnflow_engine::wording::count;

use crate::checks;
use turnflow_eval::random::Random;

/// Range of the lifetime of a process of turnflow, in milliseconds. One in four gets the short range.
const LIFE: (usize, usize) = (50, 1500);
const SHORT_LIFE: (usize, usize) = (1, 120);
/// Range of how long the broker is away, in milliseconds.
const AWAY: (usize, usize) = (20, 800);
/// The file of the answers.
const FILE: &str = "answers.jsonl";
/// How long all turns may take to be answered before what they are published to is made again.
const CALM: Duration = Duration::from_millis(700);
/// Number of conversations.
const CONVERSATIONS: usize = 12;
/// How long everything that was asked may take in the end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Which broker or database.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Nats,
    Kafka,
    Postgres,
    Redis,
}

/// Arguments of `broker`.
#[derive(Args)]
pub(crate) struct BrokerArgs {
    /// Which broker or database.
    kind: Kind,
    /// Working directory; its content is deleted.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Number of kills of turnflow.
    #[arg(long, default_value_t = 200)]
    times: u32,
    /// Number of worker threads.
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// Number of processes that read the turns together. It changes now and then, and so does the pipeline. Answers then
    /// go to the broker only, or to a file too.
    #[arg(long, default_value_t = 1)]
    processes: usize,
    /// Seed of the random turns and moments.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// At the beginning and in the end, the broker is away for so many seconds while turnflow runs.
    #[arg(long, default_value_t = 0)]
    away: u64,
}

/// A broker or a database under test.
trait Broker {
    /// The node of the pipeline that reads turns.
    fn source(&self) -> String;
    /// The node that sends the answers of `hits`.
    fn sink(&self) -> String;
    /// Publishes a turn. Returns when the broker has stored it; stores it once, however often it tries.
    fn publish(&mut self, turn: &Value) -> anyhow::Result<()>;
    /// Kills the broker. What it has acknowledged stays.
    fn down(&mut self) -> anyhow::Result<()>;
    /// Starts the broker again.
    fn up(&mut self) -> anyhow::Result<()>;
    /// What the sink has stored, in its order: the key of the delivery, and the record.
    fn answers(&mut self) -> anyhow::Result<Vec<(String, Value)>>;
    /// Deletes what turns are published to, and makes it again, with numbers that begin again too. Returns whether the
    /// broker can.
    fn make_again(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }
}

struct World {
    dir: PathBuf,
    random: Random,
    /// The last turn of each conversation.
    turns: [u32; CONVERSATIONS],
    workers: u16,
    /// How often what turns are published to was made again.
    made_again: u32,
}

/// How often the broker was away.
#[derive(Default)]
struct Absences {
    count: u32,
    /// When it comes back, while it is away.
    back: Option<Instant>,
}

impl Absences {
    /// Brings the broker back if it is away.
    fn end(&mut self, broker: &mut dyn Broker) -> anyhow::Result<()> {
        if self.back.take().is_some() { broker.up() } else { Ok(()) }
    }
}

/// What is asked in a turn.
fn text(conversation: usize, turn: u32) -> String {
    format!("What does conversation {conversation} say about topic {}?", turn % 7)
}

impl World {
    /// When the next kill comes, and whether that is early.
    fn life(&mut self) -> (Instant, bool) {
        let is_short = self.random.below(4) == 0;
        let (from, to) = if is_short { SHORT_LIFE } else { LIFE };
        (Instant::now() + millis(from + self.random.below(to - from)), is_short)
    }

    /// Publishes turns, or has the broker go away or come back, or neither. Returns the number that decided it, below 24;
    /// from 13 on, it is free for other events.
    fn moment(&mut self, broker: &mut dyn Broker, absences: &mut Absences) -> anyhow::Result<usize> {
        if absences.back.is_some_and(|back| Instant::now() >= back) {
            absences.end(broker)?;
        }
        let drawn = self.random.below(24);
        match drawn {
            0..=11 if absences.back.is_none() => {
                for _ in 0..1 + self.random.below(4) {
                    self.say(broker)?;
                }
            }
            12 if absences.back.is_none() => {
                broker.down()?;
                absences.count += 1;
                absences.back = Some(Instant::now() + millis(AWAY.0 + self.random.below(AWAY.1 - AWAY.0)));
            }
            _ => {}
        }
        Ok(drawn)
    }

    /// Makes again what turns are published to, if all turns are answered: otherwise it is the broker that loses them.
    fn make_again(&mut self, broker: &mut dyn Broker) -> anyhow::Result<()> {
        let until = Instant::now() + CALM;
        let asked = self.asked();
        let keys = |records: &[Value]| records.iter().map(key_of).collect::<BTreeSet<_>>();
        while keys(&answered(&self.dir.join(FILE))?) != asked {
            if Instant::now() > until {
                return Ok(());
            }
            std::thread::sleep(millis(20));
        }
        let sent: Vec<Value> = broker.answers()?.into_iter().map(|(_, record)| record).collect();
        if keys(&sent) == asked && !asked.is_empty() {
            self.made_again += u32::from(broker.make_again()?);
        }
        Ok(())
    }

    fn say(&mut self, broker: &mut dyn Broker) -> anyhow::Result<()> {
        let conversation = self.random.below(CONVERSATIONS);
        self.turns[conversation] += 1;
        let turn = self.turns[conversation];
        let text = text(conversation, turn);
        broker.publish(&json!({
            "conversation_id": format!("c{conversation}"), "turn": turn, "speaker": "user", "text": text,
        }))
    }

    fn start(&self, how: &[&str]) -> anyhow::Result<Child> {
        let mut log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        writeln!(log, "-- a process starts")?;
        Command::new(crate::turnflow()?)
            .arg("run")
            .arg(self.dir.join("pipeline.ron"))
            .arg("--state")
            .arg(self.dir.join("state"))
            .args(["--workers", &self.workers.to_string()])
            .args(how)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot run turnflow")
    }

    fn ended(&self, what: &str, status: ExitStatus) -> anyhow::Error {
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let last = log.rsplit("-- a process starts\n").next().unwrap_or_default();
        anyhow::anyhow!("{what}: the process exited early ({status}):\n{last}")
    }

    fn asked(&self) -> BTreeSet<(String, u64)> {
        let turns = |(conversation, last): (usize, &u32)| {
            (1..=u64::from(*last)).map(move |turn| (format!("c{conversation}"), turn))
        };
        self.turns.iter().enumerate().flat_map(turns).collect()
    }
}

pub(crate) fn run(args: &BrokerArgs) -> anyhow::Result<()> {
    let BrokerArgs { kind, dir, times, workers, processes, seed, away } = args;
    if dir.exists() {
        let is_ours = dir.join("pipeline.ron").exists() || std::fs::read_dir(dir)?.next().is_none();
        anyhow::ensure!(is_ours, "`{}` is not empty and was not created by this command", dir.display());
        std::fs::remove_dir_all(dir)?;
    }
    std::fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let started: anyhow::Result<Option<Box<dyn Broker>>> = match kind {
        Kind::Nats => nats::start(),
        Kind::Kafka => kafka::start(),
        Kind::Postgres => postgres::start(),
        Kind::Redis => redis::start(),
    };
    let Some(mut broker) = started? else { return Ok(()) };
    write_world(&dir, &*broker)?;
    let mut world =
        World { dir, random: Random::new(*seed), turns: [0; CONVERSATIONS], workers: *workers, made_again: 0 };
    if *processes > 1 {
        return divided::run(&mut world, &mut *broker, *times, *processes);
    }
    if *away > 0 {
        broker.down()?;
        absence(&mut world, &mut *broker, Duration::from_secs(*away))?;
    }
    let begun = Instant::now();
    let (mut short, mut absences) = (0, Absences::default());
    for kill in 0..*times {
        let mut child = world.start(&[])?;
        let (end, is_short) = world.life();
        short += usize::from(is_short);
        while Instant::now() < end {
            let drawn = world.moment(&mut *broker, &mut absences)?;
            if drawn == 13 && absences.back.is_none() && world.random.below(3) == 0 {
                world.make_again(&mut *broker)?;
            }
            if let Some(status) = child.try_wait()? {
                return Err(world.ended(&format!("kill {kill}"), status));
            }
            std::thread::sleep(millis(world.random.below(40)));
        }
        child.kill().and_then(|()| child.wait()).context("cannot kill the process")?;
        // The turns may all be answered when the process is killed.
        if absences.back.is_none() && world.random.below(6) == 0 {
            world.make_again(&mut *broker)?;
        }
    }
    let killed = begun.elapsed().as_secs_f64();
    absences.end(&mut *broker)?;
    if *away > 0 {
        world.say(&mut *broker)?;
        absence(&mut world, &mut *broker, Duration::from_secs(*away))?;
    }
    let mut child = world.start(&["--once"])?;
    let status = wait(&mut child)?;
    let mut wrong = Vec::new();
    if !status.success() {
        wrong.push(world.ended("the last run", status).to_string());
    }
    wrong.extend(of_file(&world)?);
    let sent = broker.answers()?;
    let (repeated, found) = of_sink(&world, &sent);
    wrong.extend(found);
    println!(
        "{} ({short} of them early) and {} of {kind:?} in {killed:.0} s, {}: {}, {} made again, {repeated} in the broker twice; {}",
        count(*times, "kill"),
        count(absences.count, "kill"),
        count(*workers, "worker"),
        count(world.asked().len(), "turn"),
        count(world.made_again, "stream"),
        count(wrong.len(), "broken promise")
    );
    checks::verdict(&wrong)
}

/// The broker is away while turnflow runs; then turns are answered again, without a restart.
fn absence(world: &mut World, broker: &mut dyn Broker, away: Duration) -> anyhow::Result<()> {
    let mut child = world.start(&[])?;
    // At the beginning, it is away already.
    if !world.asked().is_empty() {
        std::thread::sleep(Duration::from_secs(2));
        broker.down()?;
    }
    std::thread::sleep(away);
    broker.up()?;
    let up = Instant::now();
    for _ in 0..20 {
        world.say(broker)?;
    }
    let expected = world.asked().len();
    while answered(&world.dir.join(FILE))?.len() < expected {
        if let Some(status) = child.try_wait()? {
            return Err(world.ended("while the broker was away", status));
        }
        anyhow::ensure!(up.elapsed() < PATIENCE, "turns are not answered after the broker is back");
        std::thread::sleep(millis(20));
    }
    println!("{} s away; all turns answered {:.1} s after the return", away.as_secs(), up.elapsed().as_secs_f64());
    child.kill().and_then(|()| child.wait()).context("cannot kill the process")?;
    Ok(())
}

fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("the last run does not end");
        }
        std::thread::sleep(millis(20));
    }
}

fn millis(millis: usize) -> Duration {
    Duration::from_millis(millis as u64)
}

fn write_world(dir: &Path, broker: &dyn Broker) -> anyhow::Result<()> {
    let row =
        |topic: usize| json!({"_id": format!("d{topic}"), "text": format!("Document {topic} is about topic {topic}.")});
    let rows: String = (0..7).map(|topic| format!("{}\n", row(topic))).collect();
    std::fs::write(dir.join("docs.jsonl"), rows)?;
    let (source, sink) = (broker.source(), broker.sink());
    let pipeline = format!(
        "Pipeline(\n    corpora: {{ \"docs\": Corpus(source: JsonLines(path: \"docs.jsonl\"), chunk: Whole()) }},\n    nodes: {{\n        \
         \"turns\": {source},\n        \"query\": LastTurn(input: \"turns\"),\n        \
         \"hits\": Bm25(input: \"query\", corpus: \"docs\"),\n        \
         \"out\": JsonLinesSink(input: \"hits\", path: \"{FILE}\"),\n        \"sent\": {sink},\n    }},\n)\n"
    );
    Ok(std::fs::write(dir.join("pipeline.ron"), pipeline)?)
}

/// The answers in a file.
fn answered(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be incomplete while it is being written.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The conversation and the turn of an answer.
fn key_of(record: &Value) -> (String, u64) {
    let conversation = record["conversation_id"].as_str().unwrap_or_default();
    (conversation.to_owned(), record["turn"].as_u64().unwrap_or_default())
}

/// Each turn is in the file once, and in the order of its conversation.
fn of_file(world: &World) -> anyhow::Result<Vec<String>> {
    let mut times: BTreeMap<(String, u64), usize> = BTreeMap::new();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for answer in answered(&world.dir.join(FILE))? {
        let key = key_of(&answer);
        if answer["status"] == "failed" {
            wrong.push(format!("turn {} of {} failed: {}", key.1, key.0, answer["error"]));
        }
        let before = last.insert(key.0.clone(), key.1).unwrap_or_default();
        if before >= key.1 {
            wrong.push(format!("turn {} of {} is answered after turn {before}", key.1, key.0));
        }
        *times.entry(key).or_default() += 1;
    }
    wrong.extend(differences(&world.asked(), &times, "in the file", true));
    Ok(wrong)
}

/// Each turn is in the broker's sink at least once, each time with the same key. Returns how many are there again.
fn of_sink(world: &World, sent: &[(String, Value)]) -> (usize, Vec<String>) {
    let mut keys: BTreeMap<(String, u64), BTreeSet<&str>> = BTreeMap::new();
    let mut times: BTreeMap<(String, u64), usize> = BTreeMap::new();
    for (key, record) in sent {
        keys.entry(key_of(record)).or_default().insert(key);
        *times.entry(key_of(record)).or_default() += 1;
    }
    let several = keys.iter().filter(|(_, keys)| keys.len() > 1);
    let mut wrong: Vec<String> =
        several.map(|((conversation, turn), _)| format!("turn {turn} of {conversation} has several keys")).collect();
    wrong.extend(differences(&world.asked(), &times, "in the broker", false));
    (times.values().filter(|times| **times > 1).count(), wrong)
}

fn differences(
    asked: &BTreeSet<(String, u64)>,
    times: &BTreeMap<(String, u64), usize>,
    place: &str,
    is_once: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for key in asked {
        match times.get(key) {
            None => wrong.push(format!("turn {} of {} is not answered {place}", key.1, key.0)),
            Some(times) if *times > 1 && is_once => {
                wrong.push(format!("turn {} of {} is answered {times} times {place}", key.1, key.0));
            }
            Some(_) => {}
        }
    }
    let unknown = times.keys().filter(|key| !asked.contains(key));
    wrong.extend(unknown.map(|(conversation, turn)| format!("turn {turn} of {conversation} was never asked")));
    wrong
}
