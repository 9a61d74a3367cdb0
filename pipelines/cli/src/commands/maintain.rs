//! `turnflow maintain`: maintains all stores now.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use turnflow_engine::cache::{CacheLimits, InferenceCache};
use turnflow_engine::component::CorpusSnapshot;
use turnflow_engine::component::{DiskUsage, Maintained};
use turnflow_engine::connector::Mode;
use turnflow_engine::durable::Durable;
use turnflow_engine::maintenance::{MaintenanceError, StoreName};
use turnflow_engine::run::{MaintenanceReport, Options};
use turnflow_engine::state::{PASSAGES, StateDirectory};
use turnflow_engine::wording::count;

use super::backup::BackupArgs;
use super::{EngineArgs, Fault, FormatArgs, Outcome, PipelineArgs, check_state, start};

/// Merge, compact and clean up all stores in the state directory.
///
/// First, the corpora are updated, as by `turnflow index`. Then the segments of inverted
/// indexes are merged into one, encodings that no passage uses are deleted, small files are merged,
/// and old versions are removed. Cached model outputs that were not used for
/// `maintenance.memo_days`, and conversations idle for longer than `conversations.idle_s`, expire. A
/// run does the same automatically, within limits. No other process may use the state directory.
#[derive(Args)]
pub struct MaintainArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    backup: BackupArgs,
    /// Also remove indexes that no retriever on a path to a sink uses. Without this option, they are
    /// only listed. Pipelines with the same name share a state directory: another pipeline then
    /// rebuilds the indexes that it needs.
    #[arg(long)]
    unused: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// An index that the pipeline does not use.
struct Unused {
    path: PathBuf,
    disk_usage: DiskUsage,
    removed: bool,
}

pub(super) fn run(args: &MaintainArgs) -> Outcome {
    let plan = args.pipeline.plan()?.running();
    let backup = args.backup.store()?;
    // The indexes of another pipeline would be removed as unused.
    let file = Some(args.pipeline.file.clone());
    let options =
        Options { turns: Mode::Once, corpora: Mode::Once, answer: false, backup, file, ..args.engine.options(&plan) };
    let directory: PathBuf = options.state.clone().unwrap_or_default();
    check_state(&directory)?;
    let (memo, idle_s) = (CacheLimits::of(&plan.maintenance), plan.conversations.idle_s);
    let before = DiskUsage::of(&directory);
    let engine = start(plan, options)?;
    let mut report = engine.maintain();
    // Keep only the names: readers hold the models, and models hold the inference cache.
    let published: Vec<(Arc<str>, Vec<String>)> = engine.epochs().current().corpora.iter().map(named).collect();
    let lacking = engine.lacking();
    engine.join()?;
    let mut unused = Vec::new();
    {
        let held = StateDirectory::open(&directory)?;
        // The index of a model that is not loaded is in use, and its name is not known.
        if let Some(model) = lacking.first() {
            eprintln!(
                "warning: model `{}` is not loaded, so unused indexes cannot be told from its own, and none is removed: {}",
                model.name, model.reason
            );
        }
        let found = if lacking.is_empty() { unnamed(&held, &published) } else { Ok(Vec::new()) };
        for path in found.with_context(|| format!("cannot read `{}`", directory.display()))? {
            let disk_usage = DiskUsage::of(&path);
            if args.unused {
                std::fs::remove_dir_all(&path).with_context(|| format!("cannot remove `{}`", path.display()))?;
            }
            unused.push(Unused { path, disk_usage, removed: args.unused });
        }
        let expired = InferenceCache::maintain(&directory, &memo).map_err(MaintenanceError::InferenceCache).transpose();
        report.extend(expired.map(|outcome| (StoreName::InferenceCache, outcome)));
        let expired = Durable::maintain(&directory, idle_s).map_err(MaintenanceError::Conversations).transpose();
        report.extend(expired.map(|outcome| (StoreName::Conversations, outcome)));
    }
    let after = DiskUsage::of(&directory);
    if args.format.is_json() {
        println!("{:#}", as_json(&report, &unused, before, after));
    } else {
        tell(&report, &unused, before, after);
    }
    let failed = report.into_iter().find_map(|(_, outcome)| outcome.err());
    failed.map_or(Ok(()), |error| Err(Fault::Run(error.into())))
}

fn named((corpus, view): (&Arc<str>, &Arc<CorpusSnapshot>)) -> (Arc<str>, Vec<String>) {
    (corpus.clone(), view.indexes.keys().cloned().collect())
}

/// The directories of unpublished indexes, and the passages of unpublished corpora.
fn unnamed(state: &StateDirectory, published: &[(Arc<str>, Vec<String>)]) -> std::io::Result<Vec<PathBuf>> {
    let of = |(corpus, keys): &(Arc<str>, Vec<String>)| {
        let paths = keys.iter().map(String::as_str).chain([PASSAGES]).map(|key| state.index_path(corpus, key));
        paths.collect::<Vec<_>>()
    };
    let named: BTreeSet<PathBuf> = published.iter().flat_map(of).collect();
    let mut unnamed = Vec::new();
    let corpora = state.path().join("corpora");
    if corpora.is_dir() {
        let directories = std::fs::read_dir(&corpora)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        for corpus in directories {
            for index in std::fs::read_dir(corpus)? {
                unnamed.extend(Some(index?.path()).filter(|path| path.is_dir() && !named.contains(path)));
            }
        }
    }
    unnamed.sort();
    Ok(unnamed)
}

fn tell(report: &MaintenanceReport, unused: &[Unused], before: DiskUsage, after: DiskUsage) {
    for (store, outcome) in report {
        match outcome {
            Ok(Maintained { before, after, took, did }) => {
                let did = if did.is_empty() { "nothing to do".to_owned() } else { did.join(", ") };
                println!("{store}: {did}; {}, {:.1} s", change(*before, *after), took.as_secs_f64());
            }
            Err(error) => println!("{store}: failed: {error}"),
        }
    }
    for Unused { path, disk_usage, removed } in unused {
        let (path, bytes) = (path.display(), bytes(disk_usage.bytes));
        match removed {
            true => println!("removed {path}, {bytes}: no retriever uses it"),
            false => println!("unused by any retriever: {path}, {bytes}; --unused removes it"),
        }
    }
    println!("state directory: {}", change(before, after));
}

fn change(before: DiskUsage, after: DiskUsage) -> String {
    if before == after {
        return format!("{}, {}", count(after.files, "file"), bytes(after.bytes));
    }
    format!("{} → {}, {} → {}", before.files, count(after.files, "file"), bytes(before.bytes), bytes(after.bytes))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        _ => format!("{:.0} MB", bytes as f64 / 1e6),
    }
}

fn as_json(report: &MaintenanceReport, unused: &[Unused], before: DiskUsage, after: DiskUsage) -> serde_json::Value {
    let print = |of: &DiskUsage| json!({"files": of.files, "bytes": of.bytes});
    let store = |(store, outcome): &(StoreName, Result<Maintained, MaintenanceError>)| {
        let (corpus, index) = match store {
            StoreName::Index(corpus, index) => (Some(&**corpus), Some(index.as_str())),
            StoreName::InferenceCache | StoreName::Conversations => (None, None),
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
    let unused: Vec<_> =
        unused.iter().map(|of| json!({"path": of.path, "bytes": of.disk_usage.bytes, "removed": of.removed})).collect();
    json!({"stores": stores, "unused": unused, "before": print(&before), "after": print(&after)})
}
