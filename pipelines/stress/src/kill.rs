//! `turnflow-stress kill`: kills a process repeatedly.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use turnflow_engine::wording::count;

use crate::disk::Disk;
use crate::embedder::{Embedder, Mood};
use crate::power::Power;
use crate::world::World;
use crate::{Common, checks};

/// Range of the lifetime of a process, in milliseconds. One in four gets the short range and is killed
/// during recovery.
const LIFE: (usize, usize) = (50, 1500);
const SHORT_LIFE: (usize, usize) = (1, 120);
/// Maximum clock error in either direction, in seconds.
const JUMP_S: usize = 60 * 86_400;

/// Arguments of `kill`.
#[derive(Args)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    common: Common,
    /// Number of kills.
    #[arg(long, default_value_t = 200)]
    times: u32,
    /// Simulate a power loss at each kill: synced data survives, and a random part of the other
    /// writes. SHIM is the library that records what is synced (build it with
    /// `cc -shared -fPIC -o power.so pipelines/stress/power.c`); Linux only.
    #[arg(long, value_name = "SHIM")]
    power: Option<PathBuf>,
    /// Keep the state and the answers in DIR, a separate small file system, and fill it up and free
    /// it at random (for example a tmpfs of 200 MB; answers need most of it).
    #[arg(long, value_name = "DIR", conflicts_with = "power")]
    full: Option<PathBuf>,
    /// With `--embedder`: in the end, documents change while its server is away for so many seconds. Then all passages must
    /// be there without a restart.
    #[arg(long, default_value_t = 0, requires = "embedder")]
    away: u64,
}

pub(crate) fn run(args: &KillArgs) -> anyhow::Result<()> {
    let KillArgs { common, times, power, full, away } = args;
    let mut world = common.world(true, full.as_deref())?;
    let mut disk = full.as_deref().map(Disk::new).transpose()?;
    let power = power.as_ref().map(|shim| Power::new(&world, shim)).transpose()?;
    let state = world.state();
    let begun = Instant::now();
    let (mut edits, mut reshapes, mut short, mut jumps, mut rotations, mut ended) = (0, 0, 0, 0, 0, 0);
    // The first passages come while the server is away.
    if let Some(embedder) = &mut world.embedder {
        embedder.go_away(&mut world.random);
    }
    for kill in 0..*times {
        // One process in three starts with a clock that is wrong by up to 60 days.
        let jump = if world.random.below(3) == 0 { world.random.below(2 * JUMP_S) as i64 - JUMP_S as i64 } else { 0 };
        jumps += u32::from(jump != 0);
        world.starts();
        let mut child = start(&world, common, "--watch", jump, power.as_ref())?;
        let (from, to) = if world.random.below(4) == 0 { SHORT_LIFE } else { LIFE };
        short += usize::from(to == SHORT_LIFE.1);
        let end = Instant::now() + Duration::from_millis((from + world.random.below(to - from)) as u64);
        let mut was_invalid = false;
        let mut was_full = disk.as_ref().is_some_and(Disk::is_full);
        let mut adds_sink = kill == times / 3;
        while Instant::now() < end {
            if std::mem::take(&mut adds_sink) {
                world.add_sink()?;
            }
            match world.random.below(12) {
                0..=5 => {
                    for _ in 0..1 + world.random.below(4) {
                        world.say()?;
                    }
                }
                6 | 7 => {
                    world.edit()?;
                    edits += 1;
                }
                8 => {
                    was_invalid |= !world.reshape()?;
                    reshapes += 1;
                }
                9 | 10 => {
                    rotate(&mut world, power.as_ref())?;
                    rotations += 1;
                }
                _ => {}
            }
            change_embedder(&mut world);
            if power.is_none() && world.random.below(12) == 0 {
                world.pack(false)?;
            }
            if let Some(disk) = &mut disk {
                disk.change(&mut world.random)?;
                was_full |= disk.is_full();
            }
            if let Some(status) = child.try_wait()? {
                // Without room for its state, a process ends with an error.
                if status.code() == Some(3) && was_full {
                    ended += 1;
                    break;
                }
                // The process may have read the invalid file at its start.
                if status.code() == Some(1) && was_invalid {
                    break;
                }
                let log = std::fs::read_to_string(world.dir.join("log")).unwrap_or_default();
                let last = log.rsplit("-- a process starts\n").next().unwrap_or_default();
                return Err(anyhow::anyhow!("kill {kill}: the process exited early ({status}):\n{last}"));
            }
            std::thread::sleep(Duration::from_millis(world.random.below(40) as u64));
        }
        child.kill().and_then(|()| child.wait()).context("cannot kill the process")?;
        if let Some(power) = &power {
            power.lose(&mut world.random)?;
        }
        if world.random.below(3) == 0 {
            rotations += while_down(&mut world, power.as_ref())?;
        }
        // A process must find a valid file when it starts.
        world.write_pipeline()?;
    }
    let killed = begun.elapsed().as_secs_f64();
    if let Some(disk) = &mut disk {
        disk.free(0)?;
    }
    if *away > 0 {
        absence(&mut world, common, Duration::from_secs(*away))?;
    }
    if let Some(embedder) = &mut world.embedder {
        embedder.set(Mood::Well);
    }
    let status = start(&world, common, "--once", 0, None)?.wait()?;
    let mut wrong = checks::answers(&world)?;
    if !status.success() {
        wrong.insert(0, format!("the last run failed: {status}"));
    }
    wrong.extend(checks::indexes(&world, &state)?);
    println!(
        "{} ({short} of them early) in {killed:.0} s, {}: {}, {}, {} of the pipeline, {} ({}), {} of the clock{}{}; {}",
        count(*times, "kill"),
        count(common.workers, "worker"),
        count(world.count(), "turn"),
        count(edits, "edit"),
        count(reshapes, "change"),
        count(rotations, "rotation"),
        world.names(),
        count(jumps, "jump"),
        match (&power, &disk) {
            (Some(_), _) => ", each kill a loss of power".to_owned(),
            (_, Some(disk)) =>
                format!(", the disk full {} ({} ended by it)", count(disk.times, "time"), count(ended, "run")),
            _ => String::new(),
        },
        world.embedder.as_ref().map_or_else(String::new, |embedder| {
            format!(
                ", {} of the embedding server, which embedded {}",
                count(embedder.absences, "absence"),
                embedder.texts()
            )
        }),
        count(wrong.len(), "broken promise")
    );
    checks::verdict(&wrong)
}

/// Has the embedding server go away now and then, and come back.
fn change_embedder(world: &mut World) {
    let (away, back) = (world.random.below(14) == 0, world.random.below(8) == 0);
    let Some(embedder) = &mut world.embedder else { return };
    match embedder.is_well() {
        true if away => embedder.go_away(&mut world.random),
        false if back => embedder.set(Mood::Well),
        _ => {}
    }
}

/// What happens while no process runs: files are rotated, some of them several times with turns in between, and packed.
/// Returns the number of rotations.
fn while_down(world: &mut World, power: Option<&Power>) -> anyhow::Result<u32> {
    let times = 1 + world.random.below(4) as u32;
    let is_one = world.random.below(2) == 0;
    for _ in 0..times {
        for _ in 0..world.random.below(4) {
            world.say()?;
        }
        if is_one {
            world.rotate_one("turns")?;
        } else {
            world.rotate()?;
        }
    }
    if power.is_none() && world.random.below(3) == 0 {
        world.pack(true)?;
    }
    power.map_or(Ok(()), |power| power.note(&world.out()))?;
    Ok(times)
}

/// The embedding server is away while documents change; then all passages must be prepared without a restart.
fn absence(world: &mut World, common: &Common, away: Duration) -> anyhow::Result<()> {
    let mut child = start(world, common, "--watch", 0, None)?;
    let set =
        |world: &mut World, mood| world.embedder.iter_mut().for_each(|embedder: &mut Embedder| embedder.set(mood));
    let begun = Instant::now();
    let mut mood = Mood::Unavailable;
    while begun.elapsed() < away {
        set(world, mood);
        world.edit()?;
        world.say()?;
        std::thread::sleep((away / 6).min(Duration::from_secs(10)));
        mood = if mood == Mood::Refuses { Mood::Hangs } else { Mood::Refuses };
    }
    set(world, Mood::Well);
    let up = Instant::now();
    loop {
        let (text, _) = checks::turnflow(world, &world.state(), &["top", "--format", "json"])?;
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
        let status = values.next().and_then(Result::ok).unwrap_or_default();
        let corpus = &status["status"]["corpora"][0];
        if corpus["state"] == "ready" && corpus["missing"] == 0 && corpus["preparing"] == 0 {
            break;
        }
        if let Some(status) = child.try_wait()? {
            anyhow::bail!("the process ended while the embedding server was away ({status})");
        }
        anyhow::ensure!(
            up.elapsed() < Duration::from_secs(300),
            "passages are missing after the server is back: {text}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{} s away; all passages were there {:.1} s after the return", away.as_secs(), up.elapsed().as_secs_f64());
    child.kill().and_then(|()| child.wait()).context("cannot kill the process")?;
    Ok(())
}

fn rotate(world: &mut World, power: Option<&Power>) -> anyhow::Result<()> {
    world.rotate()?;
    power.map_or(Ok(()), |power| power.note(&world.out()))
}

fn start(world: &World, common: &Common, how: &str, clock_off_s: i64, power: Option<&Power>) -> anyhow::Result<Child> {
    let mut log = OpenOptions::new().create(true).append(true).open(world.dir.join("log"))?;
    writeln!(log, "-- a process starts")?;
    let mut command = Command::new(crate::turnflow()?);
    if let Some(power) = power {
        power.watch(&mut command);
    }
    command
        .arg("run")
        .arg(world.pipeline())
        .arg("--state")
        .arg(world.state())
        .env("TURNFLOW_CLOCK_OFFSET_S", clock_off_s.to_string())
        .args(["--workers", &common.workers.to_string(), how])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot run turnflow")
}
