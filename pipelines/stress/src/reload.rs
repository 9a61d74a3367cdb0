//! `turnflow-stress reload`: reloads one process with many plans.

use std::time::{Duration, Instant};

use turnflow_engine::plan::plan_file;
use turnflow_engine::run::Engine;
use turnflow_engine::wording::count;

use crate::world::World;
use crate::{Common, checks, start};
use turnflow::CATALOG;
use turnflow_eval::memory::resident;

/// Pause between turns.
const BEAT: Duration = Duration::from_millis(4);

/// Latencies of turns, in milliseconds.
#[derive(Default)]
struct Latencies(Vec<f64>);

impl Latencies {
    fn at(&mut self, share: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0.get(((self.0.len() as f64 - 1.0) * share) as usize).copied().unwrap_or_default()
    }
}

pub(crate) fn run(common: &Common, times: u32) -> anyhow::Result<()> {
    let mut world = common.world(false, None)?;
    let engine = start(&world, common)?;
    let begun = Instant::now();
    let (mut applied, mut refused, mut nothing, mut longest) = (0u32, 0u32, 0u32, 0.0f64);
    let mut took = Latencies::default();
    // A baseline without reloads, to measure the latency that reloads add.
    let quiet = times.clamp(50, 2000);
    for _ in 0..quiet {
        world.say()?;
        std::thread::sleep(BEAT);
    }
    settle(&engine, &world)?;
    let mut memory = Vec::new();
    for round in 0..times {
        let valid = world.reshape()?;
        if world.random.below(3) == 0 {
            world.edit()?;
        }
        let planned = plan_file(&world.pipeline(), &[], &CATALOG);
        match planned.plan.filter(|_| planned.diagnostics.is_empty()) {
            None if valid => {
                return Err(anyhow::anyhow!("a valid pipeline was refused: {:?}", planned.diagnostics));
            }
            None => refused += 1,
            Some(plan) => {
                let reload_begun = Instant::now();
                let saying = std::thread::scope(|scope| -> anyhow::Result<bool> {
                    let reload = scope.spawn(|| engine.reload(plan.running(), &|| false));
                    while !reload.is_finished() {
                        world.say()?;
                        std::thread::sleep(BEAT);
                    }
                    let done = reload.join().map_err(|_| anyhow::anyhow!("the reload panicked"))?;
                    Ok(!done?.is_empty())
                })?;
                let seconds = reload_begun.elapsed().as_secs_f64();
                longest = longest.max(seconds);
                took.0.push(seconds * 1000.0);
                if saying { applied += 1 } else { nothing += 1 }
            }
        }
        world.say()?;
        engine.check()?;
        if round % (times / 20).max(1) == 0
            && let Ok(now) = resident()
        {
            memory.push(now.now);
        }
    }
    settle(&engine, &world)?;
    let generations = {
        let begun = Instant::now();
        while engine.generations() > 1 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        engine.generations()
    };
    engine.stop();
    engine.join()?;
    let mut wrong = checks::answers(&world)?;
    if generations != 1 {
        wrong.push(format!("{generations} plans are still active at the end"));
    }
    world.write_pipeline()?;
    wrong.extend(checks::indexes(&world, &world.state())?);
    let (mut before, mut during) = latencies(&world, quiet as usize)?;
    println!(
        "{}, {nothing} without a difference, {} refused, in {:.0} s, {}, {}",
        count(applied, "reload"),
        count(refused, "invalid file"),
        begun.elapsed().as_secs_f64(),
        count(common.workers, "worker"),
        count(world.count(), "turn")
    );
    println!(
        "a reload: median {:.1} ms, 95 % {:.1} ms, longest {:.1} ms",
        took.at(0.5),
        took.at(0.95),
        longest * 1000.0
    );
    println!(
        "a turn's latency: without reloads median {:.2} ms, 99 % {:.2} ms; with them median {:.2} ms, 99 % {:.2} ms",
        before.at(0.5),
        before.at(0.99),
        during.at(0.5),
        during.at(0.99)
    );
    let memory: Vec<String> = memory.iter().map(|mb| format!("{mb:.0}")).collect();
    println!("resident memory during the run, MB: {}", memory.join(" "));
    println!("{}", count(wrong.len(), "broken promise"));
    checks::verdict(&wrong)
}

/// Waits until all turns are answered.
fn settle(engine: &Engine, world: &World) -> anyhow::Result<()> {
    while engine.delivered() < world.count() {
        engine.check()?;
        std::thread::sleep(BEAT);
    }
    Ok(())
}

/// The latencies of the first answers, and of the others.
fn latencies(world: &World, first: usize) -> anyhow::Result<(Latencies, Latencies)> {
    let text = std::fs::read_to_string(world.dir.join("answers.jsonl"))?;
    let latency = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["latency_ms"].as_f64();
    let mut all: Vec<f64> = text.lines().filter_map(latency).collect();
    let rest = all.split_off(first.min(all.len()));
    Ok((Latencies(all), Latencies(rest)))
}
