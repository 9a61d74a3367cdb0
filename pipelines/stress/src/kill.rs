//! `turnflow-stress kill`: a process that is killed again and again.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use crate::power::Power;
use crate::world::World;
use crate::{Common, checks};

/// How long a process lives, in milliseconds; one in four dies while it recovers.
const LIFE: (usize, usize) = (50, 1500);
const SHORT_LIFE: (usize, usize) = (1, 120);
/// By how much a clock may be off.
const JUMP_S: usize = 60 * 86_400;

/// What a kill takes with it.
#[derive(Args)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    common: Common,
    /// How often.
    #[arg(long, default_value_t = 200)]
    times: u32,
    /// Each kill is a loss of power: of what turnflow has written, only that survives which was
    /// synchronised, and at random some of the rest. SHIM is the library that notes what is
    /// synchronised (`cc -shared -fPIC -o power.so pipelines/stress/power.c`); Linux only.
    #[arg(long, value_name = "SHIM")]
    power: Option<PathBuf>,
}

pub(crate) fn run(args: &KillArgs) -> anyhow::Result<()> {
    let KillArgs { common, times, power } = args;
    let mut world = common.world(true)?;
    let power = power.as_ref().map(|shim| Power::new(&world, shim)).transpose()?;
    let state = world.state();
    let begun = Instant::now();
    let (mut edits, mut reshapes, mut short, mut jumps, mut rotations) = (0, 0, 0, 0, 0);
    for kill in 0..*times {
        // One in three wakes up by a clock that is off by up to 60 days.
        let jump = if world.random.below(3) == 0 { world.random.below(2 * JUMP_S) as i64 - JUMP_S as i64 } else { 0 };
        jumps += u32::from(jump != 0);
        world.starts();
        let mut child = start(&world, common, "--watch", jump, power.as_ref())?;
        let (from, to) = if world.random.below(4) == 0 { SHORT_LIFE } else { LIFE };
        short += usize::from(to == SHORT_LIFE.1);
        let end = Instant::now() + Duration::from_millis((from + world.random.below(to - from)) as u64);
        let mut was_invalid = false;
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
            if let Some(status) = child.try_wait()? {
                // It may have begun by reading a file that was just being made invalid.
                if status.code() == Some(1) && was_invalid {
                    break;
                }
                let log = std::fs::read_to_string(world.dir.join("log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(anyhow::anyhow!("kill {kill}: the process ended by itself ({status}): {last:?}"));
            }
            std::thread::sleep(Duration::from_millis(world.random.below(40) as u64));
        }
        child.kill().and_then(|()| child.wait()).context("the process cannot be killed")?;
        if let Some(power) = &power {
            power.lose(&mut world.random)?;
        }
        if world.random.below(3) == 0 {
            rotate(&mut world, power.as_ref())?;
            rotations += 1;
        }
        // What a process finds at its start must be a valid file.
        world.write_pipeline()?;
    }
    let killed = begun.elapsed().as_secs_f64();
    let status = start(&world, common, "--once", 0, None)?.wait()?;
    let mut wrong = checks::answers(&world)?;
    if !status.success() {
        wrong.insert(0, format!("the last run ended badly: {status}"));
    }
    wrong.extend(checks::indexes(&world, &state)?);
    println!(
        "{times} kills ({short} of them early) in {killed:.0} s, {} workers: {} turns, {edits} edits, {reshapes} \
         changes of the pipeline, {rotations} rotations, {jumps} jumps of the clock{}; {} broken promises",
        common.workers,
        world.count(),
        if power.is_some() { ", each kill a loss of power" } else { "" },
        wrong.len()
    );
    checks::verdict(&wrong)
}

fn rotate(world: &mut World, power: Option<&Power>) -> anyhow::Result<()> {
    world.rotate()?;
    power.map_or(Ok(()), |power| power.note(&world.out()))
}

fn start(world: &World, common: &Common, how: &str, clock_off_s: i64, power: Option<&Power>) -> anyhow::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(world.dir.join("log"))?;
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
        .context("turnflow cannot be run")
}
