//! `turnflow torture kill`: a process that is killed again and again.

use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::super::Outcome;
use super::world::World;
use super::{Common, checks};

/// How long a process lives, in milliseconds; one in four dies while it recovers.
const LIFE: (usize, usize) = (50, 1500);
const SHORT_LIFE: (usize, usize) = (1, 120);
/// By how much a clock may be off.
const JUMP_S: usize = 60 * 86_400;

pub(super) fn run(common: &Common, times: u32) -> Outcome {
    let mut world = common.world()?;
    let state = world.state();
    let begun = Instant::now();
    let (mut edits, mut reshapes, mut short, mut jumps) = (0, 0, 0, 0);
    for kill in 0..times {
        // One in three wakes up by a clock that is off by up to 60 days.
        let jump = if world.random.below(3) == 0 { world.random.below(2 * JUMP_S) as i64 - JUMP_S as i64 } else { 0 };
        jumps += u32::from(jump != 0);
        let mut child = start(&world, common, "--watch", jump)?;
        let (from, to) = if world.random.below(4) == 0 { SHORT_LIFE } else { LIFE };
        short += usize::from(to == SHORT_LIFE.1);
        let end = Instant::now() + Duration::from_millis((from + world.random.below(to - from)) as u64);
        let mut was_invalid = false;
        while Instant::now() < end {
            match world.random.below(10) {
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
                _ => {}
            }
            if let Some(status) = child.try_wait()? {
                // It may have begun by reading a file that was just being made invalid.
                if status.code() == Some(1) && was_invalid {
                    break;
                }
                let log = std::fs::read_to_string(world.dir.join("log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(anyhow::anyhow!("kill {kill}: the process ended by itself ({status}): {last:?}").into());
            }
            std::thread::sleep(Duration::from_millis(world.random.below(40) as u64));
        }
        child.kill().and_then(|()| child.wait()).context("the process cannot be killed")?;
        // What a process finds at its start must be a valid file.
        world.write_pipeline()?;
    }
    let killed = begun.elapsed().as_secs_f64();
    let status = start(&world, common, "--once", 0)?.wait()?;
    let mut wrong = checks::answers(&world)?;
    if !status.success() {
        wrong.insert(0, format!("the last run ended badly: {status}"));
    }
    wrong.extend(checks::indexes(&world, &state)?);
    println!(
        "{times} kills ({short} of them early) in {killed:.0} s, {} workers: {} turns, {edits} edits, {reshapes} \
         changes of the pipeline, {jumps} jumps of the clock; {} broken promises",
        common.workers,
        world.count(),
        wrong.len()
    );
    Ok(checks::verdict(&wrong)?)
}

fn start(world: &World, common: &Common, how: &str, clock_off_s: i64) -> anyhow::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(world.dir.join("log"))?;
    Command::new(std::env::current_exe()?)
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
