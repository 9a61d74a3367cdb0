//! `turnflow-stress edits`: makes many small edits and measures the files and bytes that accumulate.

use std::time::{Duration, Instant};

use turnflow_engine::component::DiskUsage;
use turnflow_engine::wording::count;

use crate::{Common, checks, start};

/// Time after which an edit is assumed to have changed nothing and to publish no epoch.
const NO_EPOCH: Duration = Duration::from_secs(2);
/// Number of lines in the table.
const LINES: u32 = 20;

/// Maximum files and bytes of the state directory; above it, storage grows with the edits. Allows for
/// small files that wait for maintenance, the segments of an index, and the data of each document.
fn bound(documents: usize, dense: bool) -> DiskUsage {
    let files = 250 + if dense { 3 * 300 } else { 0 };
    DiskUsage { files, bytes: 4_000_000 + 50_000 * documents as u64 + if dense { 40_000_000 } else { 0 } }
}

pub(crate) fn run(common: &Common, times: u32) -> anyhow::Result<()> {
    let mut world = common.world(false, None)?;
    let state = world.state();
    let engine = start(&world, common)?;
    let begun = Instant::now();
    let mut most = DiskUsage::default();
    let mut slowest = Duration::ZERO;
    println!("{:>8} {:>8} {:>8} {:>10} {:>10} {:>10}", "edits", "epoch", "files", "state kB", "maintained", "seconds");
    for edit in 1..=times {
        let epoch = engine.epochs().current().epoch;
        world.edit()?;
        let edited = Instant::now();
        while engine.epochs().current().epoch == epoch && edited.elapsed() < NO_EPOCH {
            engine.check()?;
            std::thread::park_timeout(Duration::from_millis(1));
        }
        if edited.elapsed() < NO_EPOCH {
            slowest = slowest.max(edited.elapsed());
        }
        if edit % 10 == 0 || edit == times {
            let now = DiskUsage::of(&state);
            most = DiskUsage { files: most.files.max(now.files), bytes: most.bytes.max(now.bytes) };
            if edit % (times / LINES).max(10) == 0 || edit == times {
                println!(
                    "{edit:>8} {:>8} {:>8} {:>10.0} {:>10} {:>10.1}",
                    engine.epochs().current().epoch,
                    now.files,
                    now.bytes as f64 / 1e3,
                    engine.maintenance().runs,
                    begun.elapsed().as_secs_f64()
                );
            }
        }
    }
    let counts = engine.maintenance();
    engine.stop();
    engine.join()?;
    println!(
        "at most {} and {:.0} kB; the slowest epoch took {slowest:.1?}",
        count(most.files, "file"),
        most.bytes as f64 / 1e3
    );
    println!("maintenance: {counts:?}");
    let mut wrong = checks::indexes(&world, &state)?;
    let bound = bound(common.documents, common.model.is_some());
    if most.files > bound.files || most.bytes > bound.bytes {
        wrong.push(format!("the state directory exceeds {bound:?}: {most:?}"));
    }
    if counts.failures > 0 {
        wrong.push(format!("maintenance failed {}", count(counts.failures, "time")));
    }
    let (told, well) = checks::turnflow(&world, &state, &["maintain"])?;
    print!("{told}");
    if !well {
        wrong.push("`turnflow maintain` failed".to_owned());
    }
    wrong.extend(checks::indexes(&world, &state)?);
    println!("{}", count(wrong.len(), "broken promise"));
    checks::verdict(&wrong)
}
