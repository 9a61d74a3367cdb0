//! `turnflow maintain`: everything that is stored, kept in shape now.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use turnflow_engine::component::{Footprint, Maintained};
use turnflow_engine::connector::Mode;
use turnflow_engine::durable::Durable;
use turnflow_engine::maintenance::{MaintenanceError, StoreName};
use turnflow_engine::memo::{Memo, MemoLimits};
use turnflow_engine::run::{MaintenanceReport, Options};
use turnflow_engine::state::StateDirectory;

use super::{EngineArgs, Fault, Outcome, PipelineArgs, start};

/// Merge, compact and clean up what is stored, all of it and now.
///
/// The corpora are brought up to date first, as `turnflow index` does. Then the segments of
/// inverted indexes are merged into one, encodings that no passage has are let go, small files
/// are made large and old versions removed; outputs of models that were not asked for in
/// `maintenance.memo_days`, and conversations past `conversations.idle_s`, expire. A run does
/// the same within limits by itself. No other process may use the state directory.
#[derive(Args)]
pub struct MaintainArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one object with everything.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &MaintainArgs) -> Outcome {
    let plan = args.pipeline.plan()?.running();
    let options = Options { corpora: Mode::Once, answer: false, ..args.engine.options(&plan) };
    let directory: PathBuf = options.state.clone().unwrap_or_default();
    if !directory.join("format").is_file() {
        let path = directory.display();
        let told = anyhow!("`{path}` is no state directory: `turnflow index` or `turnflow run` makes one");
        return Err(Fault::Told(told));
    }
    let (memo, idle_s) = (MemoLimits::of(&plan.maintenance), plan.conversations.idle_s);
    let before = Footprint::of(&directory);
    let engine = start(plan, options)?;
    let mut report = engine.maintain();
    engine.join()?;
    {
        let _held = StateDirectory::open(&directory)?;
        let expired = Memo::maintain(&directory, &memo).map_err(MaintenanceError::Memo).transpose();
        report.extend(expired.map(|outcome| (StoreName::Memo, outcome)));
        let expired = Durable::maintain(&directory, idle_s).map_err(MaintenanceError::Conversations).transpose();
        report.extend(expired.map(|outcome| (StoreName::Conversations, outcome)));
    }
    let after = Footprint::of(&directory);
    if args.json {
        println!("{:#}", as_json(&report, before, after));
    } else {
        tell(&report, before, after);
    }
    let failed = report.into_iter().find_map(|(_, outcome)| outcome.err());
    failed.map_or(Ok(()), |error| Err(Fault::Run(error.into())))
}

fn tell(report: &MaintenanceReport, before: Footprint, after: Footprint) {
    for (store, outcome) in report {
        match outcome {
            Ok(Maintained { before, after, took, did }) => {
                let did = if did.is_empty() { "nothing to do".to_owned() } else { did.join(", ") };
                println!("{store}: {did}; {}, {:.1} s", change(*before, *after), took.as_secs_f64());
            }
            Err(error) => println!("{store}: failed: {error}"),
        }
    }
    println!("the state directory: {}", change(before, after));
}

fn change(before: Footprint, after: Footprint) -> String {
    if before == after {
        return format!("{} files, {}", after.files, bytes(after.bytes));
    }
    format!("{} → {} files, {} → {}", before.files, after.files, bytes(before.bytes), bytes(after.bytes))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        _ => format!("{:.0} MB", bytes as f64 / 1e6),
    }
}

fn as_json(report: &MaintenanceReport, before: Footprint, after: Footprint) -> serde_json::Value {
    let print = |of: &Footprint| json!({"files": of.files, "bytes": of.bytes});
    let store = |(store, outcome): &(StoreName, Result<Maintained, MaintenanceError>)| {
        let (corpus, index) = match store {
            StoreName::Index(corpus, index) => (Some(&**corpus), Some(index.as_str())),
            StoreName::Memo | StoreName::Conversations => (None, None),
        };
        let done = outcome.as_ref().ok();
        json!({
            "store": store.to_string(),
            "corpus": corpus,
            "index": index,
            "did": done.map(|done| done.did.clone()),
            "before": done.map(|done| print(&done.before)),
            "after": done.map(|done| print(&done.after)),
            "seconds": done.map_or(Duration::ZERO, |done| done.took).as_secs_f64(),
            "error": outcome.as_ref().err().map(ToString::to_string),
        })
    };
    let stores: Vec<_> = report.iter().map(store).collect();
    json!({"stores": stores, "before": print(&before), "after": print(&after)})
}
