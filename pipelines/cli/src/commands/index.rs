//! `turnflow index`: updates the corpora's indexes.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use turnflow_connectors::stdout::plain;
use turnflow_engine::connector::Mode;
use turnflow_engine::publish::{CorpusProgress, Lacking};
use turnflow_engine::run::{Engine, MOST_REASONS, Options};
use turnflow_engine::wording::count;
use turnflow_server::{Outline, Served};

use super::backup::BackupArgs;
use super::{EngineArgs, FormatArgs, Outcome, PipelineArgs, incomplete, member, progress};
use crate::status_socket::StatusSocket;

/// Update the corpora's indexes and exit.
#[derive(Args)]
pub struct IndexArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    backup: BackupArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &IndexArgs) -> Outcome {
    let plan = args.pipeline.plan()?.running();
    let backup = args.backup.store()?;
    let (turns, corpora, file) = (Mode::Once, Mode::Once, Some(args.pipeline.file.clone()));
    let options = Options { turns, corpora, file, answer: false, backup, ..args.engine.options(&plan) };
    let (begun, state, outline) = (Instant::now(), options.state.clone(), Outline::of(&plan));
    let name = plan.name.clone();
    let engine = Arc::new(Engine::start(plan, options).map_err(member::failed)?);
    // For `turnflow top`.
    let served = Served::new(name, engine.clone(), outline);
    let status = state.as_deref().and_then(|state| StatusSocket::open(state, served.clone()));
    progress::wait_ready(&engine, || false)?;
    let view = engine.epochs().current();
    let mut corpora = Vec::new();
    let mut lacking = 0;
    for (name, progress, _) in engine.corpora() {
        let empty = CorpusProgress::get(&progress.empty);
        let (documents, chunks) = view.corpora.get(&name).map_or((0, 0), |view| (view.documents, view.chunks));
        let embedded = CorpusProgress::get(&progress.embedded);
        let (read, unreadable) = (CorpusProgress::get(&progress.documents), progress.unreadable());
        let Lacking { missing, problem, .. } = progress.lacking();
        let problem = problem.unwrap_or_default();
        lacking += missing;
        let seconds = begun.elapsed().as_secs_f64();
        match args.format.is_json() {
            true => corpora.push(json!({
                "corpus": name, "read": read, "empty": empty, "documents": documents, "unreadable": unreadable,
                "unreadable_because": progress.unreadable_because(MOST_REASONS), "chunks": chunks,
                "embedded": embedded, "seconds": seconds,
                "missing": missing, "missing_because": (missing > 0).then_some(problem),
            })),
            false => {
                println!(
                    "{name}: {}, {}, {} embedded, {seconds:.1} seconds",
                    count(documents, "document"),
                    count(chunks, "chunk"),
                    count(embedded, "chunk"),
                );
                if unreadable > 0 {
                    println!("{name}: {unreadable} could not be read:");
                    let reasons = progress.unreadable_because(MOST_REASONS);
                    let further = unreadable.saturating_sub(reasons.len() as u64);
                    reasons.iter().for_each(|reason| println!("    {}", plain(reason)));
                    if further > 0 {
                        println!("    and {further} more: see the dead letters");
                    }
                }
                if missing > 0 {
                    println!("{name}: {} missing: {problem}", count(missing, "chunk"));
                }
            }
        }
    }
    let dead = engine.dead_letters();
    drop((status, served));
    match Arc::try_unwrap(engine) {
        Ok(engine) => engine.join()?,
        Err(engine) => engine.check()?,
    }
    if args.format.is_json() {
        println!("{:#}", json!({ "corpora": corpora, "dead_letters": dead }));
    } else if dead > 0 {
        println!("{}", count(dead, "dead letter"));
    }
    incomplete(lacking)
}
