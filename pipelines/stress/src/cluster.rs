//! `turnflow-stress cluster`: kills processes of a cluster repeatedly.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use turnflow_engine::wording::count;

use crate::processes::{children, send, stop, wait_for};
use crate::world::World;
use crate::{Common, checks};

/// Range of the time between two disturbances, in milliseconds. One in four is of the short range, during recovery.
const LIFE: (usize, usize) = (100, 2500);
const SHORT_LIFE: (usize, usize) = (1, 150);

/// Arguments of `cluster`.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    common: Common,
    /// Number of disturbances.
    #[arg(long, default_value_t = 200)]
    times: u32,
    /// Number of processes. It changes now and then, from 1 to one more.
    #[arg(long, default_value_t = 3)]
    processes: usize,
}

/// What was done.
#[derive(Default)]
struct Done {
    kills: u32,
    all: u32,
    twice: u32,
    supervisors: u32,
    stopped: u32,
    rescaled: u32,
}

pub(crate) fn run(args: &ClusterArgs) -> anyhow::Result<()> {
    let ClusterArgs { common, times, processes } = args;
    let mut world = common.world(true, None)?;
    let state = world.state();
    let begun = Instant::now();
    let mut done = Done::default();
    let mut size = *processes;
    let (mut edits, mut rotations, mut reloads) = (0, 0, 0);
    let mut cluster = start(&world, common, size)?;
    for _ in 0..*times {
        let (from, to) = if world.random.below(4) == 0 { SHORT_LIFE } else { LIFE };
        let end = Instant::now() + Duration::from_millis((from + world.random.below(to - from)) as u64);
        while Instant::now() < end {
            match world.random.below(12) {
                0..=5 => (0..1 + world.random.below(4)).try_for_each(|_| world.say())?,
                6..=8 => {
                    world.edit()?;
                    edits += 1;
                }
                9 => {
                    world.rotate()?;
                    rotations += 1;
                }
                10 => {
                    world.reshape_valid()?;
                    reloads += 1;
                }
                _ => {}
            }
            if let Some(status) = cluster.try_wait()? {
                let log = std::fs::read_to_string(world.dir.join("log")).unwrap_or_default();
                let last = log.rsplit("-- a cluster starts\n").next().unwrap_or_default();
                anyhow::bail!("the cluster ended early ({status}):\n{last}");
            }
            std::thread::sleep(Duration::from_millis(world.random.below(40) as u64));
        }
        let members = children(cluster.id());
        let one = (!members.is_empty()).then(|| members[world.random.below(members.len())]);
        match world.random.below(10) {
            0 => {
                members.iter().for_each(|member| send(*member, libc::SIGKILL));
                done.all += 1;
            }
            1 => {
                one.into_iter().for_each(|member| send(member, libc::SIGKILL));
                std::thread::sleep(Duration::from_millis(world.random.below(900) as u64));
                let members = children(cluster.id());
                let one = (!members.is_empty()).then(|| members[world.random.below(members.len())]);
                one.into_iter().for_each(|member| send(member, libc::SIGKILL));
                done.twice += 1;
            }
            2 => {
                cluster.kill().and_then(|()| cluster.wait()).context("cannot kill the supervisor")?;
                wait_for(&members)?;
                cluster = start(&world, common, size)?;
                done.supervisors += 1;
            }
            3 => {
                // A part that answers late.
                one.into_iter().for_each(|member| send(member, libc::SIGSTOP));
                std::thread::sleep(Duration::from_millis(100 + world.random.below(1500) as u64));
                one.into_iter().for_each(|member| send(member, libc::SIGCONT));
                done.stopped += 1;
            }
            4 => {
                stop(cluster, &members)?;
                world.reshape_valid()?;
                size = 1 + world.random.below(processes + 1);
                cluster = start(&world, common, size)?;
                done.rescaled += 1;
            }
            _ => {
                one.into_iter().for_each(|member| send(member, libc::SIGKILL));
                done.kills += 1;
            }
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let members = children(cluster.id());
    stop(cluster, &members)?;
    let status = command(&world, common, *processes)?.arg("--once").spawn()?.wait()?;
    let mut wrong = checks::answers(&world)?;
    if !status.success() {
        wrong.insert(0, format!("the last run failed: {status}"));
    }
    // One process takes everything over.
    wrong.extend(checks::indexes(&world, &state)?);
    let Done { kills, all, twice, supervisors, stopped, rescaled } = done;
    println!(
        "{} in {took:.0} s on {processes} processes ({kills} of one process, {all} of all, {twice} twice within a second, \
         {supervisors} of the supervisor, {stopped} stopped for a while, {rescaled} with another number of processes): {}, \
         {}, {}, {}; {}",
        count(*times, "disturbance"),
        count(world.count(), "turn"),
        count(edits, "edit"),
        count(rotations, "rotation"),
        count(reloads, "other pipeline"),
        count(wrong.len(), "broken promise")
    );
    checks::verdict(&wrong)
}

fn command(world: &World, common: &Common, processes: usize) -> anyhow::Result<Command> {
    let mut log = OpenOptions::new().create(true).append(true).open(world.dir.join("log"))?;
    writeln!(log, "-- a cluster starts")?;
    let mut command = Command::new(crate::turnflow()?);
    command.arg("cluster").arg(world.pipeline()).arg("--state").arg(world.state());
    command.args(["--processes", &processes.to_string(), "--workers", &common.workers.to_string()]);
    command.args(["--max-pause", "0.2"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(command)
}

fn start(world: &World, common: &Common, processes: usize) -> anyhow::Result<Child> {
    command(world, common, processes)?.arg("--watch").spawn().context("cannot run turnflow")
}
