//! Several processes read the turns of a broker together. They are killed one by one or all at once, their number changes,
//! and the pipeline changes.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;
use turnflow_engine::wording::count;

use super::{Absences, Broker, PATIENCE, World, answered, key_of, millis, of_sink, text};
use crate::checks;
use crate::processes::{children, send, stop, wait_for};

/// Number of the user's turns in a query.
const LAST: u32 = 3;

/// What was done.
#[derive(Default)]
struct Done {
    kills: u32,
    all: u32,
    supervisors: u32,
    stops: u32,
    reloads: u32,
}

pub(super) fn run(world: &mut World, broker: &mut dyn Broker, times: u32, processes: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut done = Done::default();
    let mut size = processes;
    write(world, broker, None)?;
    let mut cluster = start(world, size)?;
    let mut absences = Absences::default();
    for _ in 0..times {
        let (end, _) = world.life();
        while Instant::now() < end {
            if world.moment(broker, &mut absences)? == 13 {
                done.reloads += 1;
                // Another file each time: a sink that returns gets only new answers, whatever is in its file.
                let file = (world.random.below(3) == 0).then_some(done.reloads);
                write(world, broker, file)?;
            }
            if let Some(status) = cluster.try_wait()? {
                return Err(world.ended("the cluster", status));
            }
            std::thread::sleep(millis(world.random.below(40)));
        }
        if absences.back.is_none() {
            broker.answers()?;
        }
        let members = children(cluster.id());
        match world.random.below(10) {
            0 => {
                members.iter().for_each(|member| send(*member, libc::SIGKILL));
                done.all += 1;
            }
            1 => {
                cluster.kill().and_then(|()| cluster.wait()).context("cannot kill the supervisor")?;
                wait_for(&members)?;
                size = 1 + world.random.below(processes + 1);
                cluster = start(world, size)?;
                done.supervisors += 1;
            }
            2 => {
                stop(cluster, &members)?;
                size = 1 + world.random.below(processes + 1);
                cluster = start(world, size)?;
                done.stops += 1;
            }
            _ if members.is_empty() => {}
            _ => {
                send(members[world.random.below(members.len())], libc::SIGKILL);
                done.kills += 1;
            }
        }
    }
    let took = begun.elapsed().as_secs_f64();
    absences.end(broker)?;
    let asked = world.asked().len();
    let until = Instant::now() + PATIENCE;
    let answered_by_now = |broker: &mut dyn Broker| -> anyhow::Result<usize> {
        let answers = broker.answers()?;
        Ok(answers.iter().map(|(_, record)| key_of(record)).collect::<std::collections::BTreeSet<_>>().len())
    };
    while answered_by_now(broker)? < asked && Instant::now() < until {
        std::thread::sleep(millis(300));
    }
    let members = children(cluster.id());
    stop(cluster, &members)?;
    let sent = broker.answers()?;
    let (repeated, mut wrong) = of_sink(world, &sent);
    wrong.extend(histories(&sent));
    wrong.extend(of_files(world)?);
    let Done { kills, all, supervisors, stops, reloads } = done;
    let absences = absences.count;
    println!(
        "{} in {took:.0} s on {processes} processes ({kills} of one process, {all} of all, {supervisors} of the supervisor, \
         {stops} stopped), {absences} times without the broker, {}: {}, {repeated} in the broker twice; {}",
        count(times, "disturbance"),
        count(reloads, "other pipeline"),
        count(asked, "turn"),
        count(wrong.len(), "broken promise")
    );
    checks::verdict(&wrong)
}

/// Writes the pipeline. All processes read the turns together, unless answers go to a file too.
fn write(world: &mut World, broker: &dyn Broker, file: Option<u32>) -> anyhow::Result<()> {
    let (source, sink) = (broker.source(), broker.sink());
    let hits = 1 + world.random.below(9);
    let mut nodes = format!(
        "\"turns\": {source},\n        \"query\": UserTurns(input: \"turns\", last: {LAST}),\n        \
         \"hits\": Bm25(input: \"query\", corpus: \"docs\", top: {hits}),\n        \"sent\": {sink},\n"
    );
    if let Some(file) = file {
        nodes += &format!("        \"out\": JsonLinesSink(input: \"hits\", path: \"answers-{file}.jsonl\"),\n");
    }
    let pipeline = format!(
        "Pipeline(\n    corpora: {{ \"docs\": Corpus(source: JsonLines(path: \"docs.jsonl\"), chunk: Whole()) }},\n    \
         nodes: {{\n        {nodes}    }},\n)\n"
    );
    let (path, new) = (world.dir.join("pipeline.ron"), world.dir.join("pipeline.ron.new"));
    std::fs::write(&new, pipeline)?;
    Ok(std::fs::rename(new, path)?)
}

fn start(world: &World, processes: usize) -> anyhow::Result<Child> {
    let mut log = OpenOptions::new().create(true).append(true).open(world.dir.join("log"))?;
    writeln!(log, "-- a process starts")?;
    let mut command = Command::new(crate::turnflow()?);
    command.arg("cluster").arg(world.dir.join("pipeline.ron")).arg("--state").arg(world.dir.join("state"));
    command.args(["--processes", &processes.to_string(), "--workers", &world.workers.to_string()]);
    command.args(["--watch", "--max-pause", "0.2", "--verbose"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().context("cannot run turnflow")
}

/// Each answer was made with the turns before it, and the first answers of a conversation are in its order.
fn histories(sent: &[(String, Value)]) -> Vec<String> {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (_, record) in sent {
        let (id, turn) = key_of(record);
        let conversation = id.trim_start_matches('c').parse().unwrap_or_default();
        let newest = u32::try_from(turn).unwrap_or_default();
        let turns = newest.saturating_sub(LAST - 1).max(1)..=newest;
        let expected = turns.map(|turn| text(conversation, turn)).collect::<Vec<_>>().join(" ");
        let query = record["query"].as_str().unwrap_or_default();
        if query != expected {
            wrong.push(format!("turn {turn} of {id} was answered with {query:?} instead of {expected:?}"));
        }
        if record["status"] == "failed" {
            wrong.push(format!("turn {turn} of {id} failed: {}", record["error"]));
        }
        let before = last.entry(id.clone()).or_default();
        if turn > *before + 1 {
            wrong.push(format!("turn {turn} of {id} is answered after turn {before}"));
        }
        *before = turn.max(*before);
    }
    wrong
}

/// No turn is in a file twice.
fn of_files(world: &World) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(&world.dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with("answers-") {
            continue;
        }
        let mut times: BTreeMap<(String, u64), usize> = BTreeMap::new();
        answered(&path)?.iter().for_each(|record| *times.entry(key_of(record)).or_default() += 1);
        let several = times.into_iter().filter(|(_, times)| *times > 1);
        wrong.extend(several.map(|((id, turn), times)| format!("turn {turn} of {id} is in {name} {times} times")));
    }
    Ok(wrong)
}
