//! `turnflow-stress soak`: runs a steady load for a long time.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use turnflow_engine::component::DiskUsage;
use turnflow_engine::wording::count;

use crate::world::World;
use crate::{Common, checks, start};
use turnflow_eval::memory::resident;

/// The requested load.
pub(crate) struct Load {
    pub seconds: u64,
    pub rate: f64,
    pub edits: f64,
}

/// Measurements of one time interval.
struct Sample {
    seconds: f64,
    memory_mb: f64,
    files: f64,
    state_mb: f64,
    median_ms: f64,
    p99_ms: f64,
}

pub(crate) fn run(common: &Common, load: &Load) -> anyhow::Result<()> {
    let mut world = common.world(false, None)?;
    let state = world.state();
    let engine = start(&world, common)?;
    let begun = Instant::now();
    let every = Duration::from_secs_f64((load.seconds as f64 / 60.0).clamp(0.5, 60.0));
    let (mut said, mut edited) = (0u64, 0u64);
    let mut samples: Vec<Sample> = Vec::new();
    let mut next = begun + every;
    let mut read = 0;
    while begun.elapsed().as_secs() < load.seconds {
        engine.check()?;
        let now = begun.elapsed().as_secs_f64();
        while (said as f64) < now * load.rate {
            world.say()?;
            said += 1;
        }
        while (edited as f64) < now * load.edits {
            world.edit()?;
            edited += 1;
        }
        if Instant::now() >= next {
            next += every;
            samples.push(sample(&world, &state, now, &mut read)?);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    while engine.delivered() < world.count() {
        engine.check()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.stop();
    engine.join()?;
    let mut wrong = checks::answers(&world)?;
    wrong.extend(checks::indexes(&world, &state)?);
    println!(
        "{} and {} in {} s, {}",
        count(said, "turn"),
        count(edited, "edit"),
        load.seconds,
        count(common.workers, "worker")
    );
    println!(
        "{:>8} {:>10} {:>8} {:>10} {:>10} {:>10}",
        "seconds", "memory MB", "files", "state MB", "median ms", "99 % ms"
    );
    for sample in samples.iter().step_by((samples.len() / 12).max(1)) {
        let Sample { seconds, memory_mb, files, state_mb, median_ms, p99_ms } = sample;
        println!("{seconds:>8.0} {memory_mb:>10.0} {files:>8.0} {state_mb:>10.1} {median_ms:>10.2} {p99_ms:>10.2}");
    }
    for (name, of) in SERIES {
        println!("{name}: mean of the last quarter / mean of the second: {:.3}", growth(&samples, of));
    }
    let plots = world.dir.join("soak.svg");
    std::fs::write(&plots, svg(&samples))?;
    println!("plotted in {}; {}", plots.display(), count(wrong.len(), "broken promise"));
    checks::verdict(&wrong)
}

type Series = (&'static str, fn(&Sample) -> f64);

const SERIES: [Series; 5] = [
    ("memory, MB", |sample| sample.memory_mb),
    ("files of the state", |sample| sample.files),
    ("state, MB", |sample| sample.state_mb),
    ("latency, median, ms", |sample| sample.median_ms),
    ("latency, 99 %, ms", |sample| sample.p99_ms),
];

/// The mean of the last quarter divided by that of the second; the first quarter is warm-up.
fn growth(samples: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    let quarter = samples.len() / 4;
    let mean = |part: &[Sample]| part.iter().map(of).sum::<f64>() / part.len().max(1) as f64;
    if quarter == 0 {
        return f64::NAN;
    }
    mean(&samples[samples.len() - quarter..]) / mean(&samples[quarter..2 * quarter])
}

fn sample(world: &World, state: &Path, seconds: f64, read: &mut usize) -> anyhow::Result<Sample> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut text = String::new();
    let mut answers = std::fs::File::open(world.dir.join("answers.jsonl"))?;
    answers.seek(SeekFrom::Start(*read as u64))?;
    answers.read_to_string(&mut text)?;
    let whole = text.rfind('\n').map_or(0, |at| at + 1);
    *read += whole;
    let latency = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["latency_ms"].as_f64();
    let mut latencies: Vec<f64> = text[..whole].lines().filter_map(latency).collect();
    latencies.sort_by(f64::total_cmp);
    let at = |share: f64| latencies.get(((latencies.len() as f64 - 1.0) * share) as usize).copied().unwrap_or_default();
    let DiskUsage { files, bytes } = DiskUsage::of(state);
    Ok(Sample {
        seconds,
        memory_mb: resident().map_or(f64::NAN, |memory| memory.now),
        files: files as f64,
        state_mb: bytes as f64 / 1e6,
        median_ms: at(0.5),
        p99_ms: at(0.99),
    })
}

/// Plots one panel per series, each from zero.
fn svg(samples: &[Sample]) -> String {
    const PANEL: (f64, f64) = (640.0, 120.0);
    let height = (PANEL.1 + 30.0) * SERIES.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
        PANEL.0 + 90.0
    );
    let end = samples.last().map_or(1.0, |sample| sample.seconds);
    for (at, (name, of)) in SERIES.iter().enumerate() {
        let top = 24.0 + (PANEL.1 + 30.0) * at as f64;
        let most = samples.iter().map(of).fold(f64::MIN_POSITIVE, f64::max);
        let points: Vec<String> = samples
            .iter()
            .map(|sample| {
                let (x, y) = (70.0 + sample.seconds / end * PANEL.0, top + PANEL.1 * (1.0 - of(sample) / most));
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = write!(
            out,
            "<text x=\"70\" y=\"{:.0}\">{name}</text><rect x=\"70\" y=\"{top:.0}\" width=\"{}\" height=\"{}\" \
             fill=\"none\" stroke=\"#cccccc\"/><text x=\"64\" y=\"{:.0}\" text-anchor=\"end\">{most:.1}</text>\
             <text x=\"64\" y=\"{:.0}\" text-anchor=\"end\">0</text><polyline points=\"{}\" fill=\"none\" \
             stroke=\"#1f6feb\" stroke-width=\"1.5\"/>",
            top - 6.0,
            PANEL.0,
            PANEL.1,
            top + 10.0,
            top + PANEL.1,
            points.join(" ")
        );
    }
    let data: Vec<_> = samples.iter().map(|sample| json!([sample.seconds, sample.memory_mb, sample.files])).collect();
    let _ = write!(out, "<desc>{}</desc></svg>", json!(data));
    out
}
