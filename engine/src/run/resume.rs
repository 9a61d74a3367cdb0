//! Where sources go on after a restart, judged by what sinks still have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::RunError;
use super::build::Workshop;
use crate::connector::{Mode, SinkMark};
use crate::durable::{Marks, SinkHandle, SourceCheckpoint};
use crate::turns::Generation;

/// Behind which place each source goes on; those that are not named begin at the beginning.
///
/// A source goes on if the files that its answers were written to are there and hold what they
/// held at the checkpoint. Otherwise answers are missing, and its turns are read again; those
/// whose answers are in every file are not answered again. A source whose answers are kept
/// nowhere goes on only if it is followed: a run over a whole log is meant to answer all of it.
pub(super) fn resume(
    shop: &Workshop,
    generation: &Generation,
) -> Result<BTreeMap<Arc<str>, SourceCheckpoint>, RunError> {
    let durable = &shop.shared.durable;
    let sources: BTreeSet<Arc<str>> = generation.sources().cloned().collect();
    let mut checkpoints: BTreeMap<Arc<str>, SourceCheckpoint> = BTreeMap::new();
    for source in &sources {
        if let Some(checkpoint) = durable.checkpoint(source)? {
            checkpoints.insert(source.clone(), checkpoint);
        }
    }
    let mut goes_on: BTreeMap<Arc<str>, bool> = BTreeMap::new();
    let mut whole: BTreeSet<Arc<str>> = BTreeSet::new();
    let sinks = generation.sinks();
    for (sink, from) in &sinks {
        let written = mark(sink, from, &checkpoints, |checkpoint| &checkpoint.written, u64::max);
        let since = mark(sink, from, &checkpoints, |checkpoint| &checkpoint.marks, u64::min);
        // That it has what it had is one question, what it got since another.
        let has_all = written.is_some() && recover(sink, written.as_ref())?;
        let since = since.filter(|_| has_all);
        recover(sink, since.as_ref())?;
        goes_on.insert(sink.id().clone(), since.is_some());
        if since.is_none() {
            whole.insert(sink.id().clone());
        }
    }
    let mut places = BTreeMap::new();
    let mut anew: BTreeSet<Arc<str>> = BTreeSet::new();
    for source in &sources {
        let reached: Vec<&Arc<SinkHandle>> =
            sinks.iter().filter(|(sink, from)| sink.is_kept() && from.contains(source)).map(|(sink, _)| sink).collect();
        let lacking: Vec<&Arc<str>> = reached.iter().map(|sink| sink.id()).filter(|id| !goes_on[*id]).collect();
        let known = checkpoints.get(source);
        let follows = !reached.is_empty() || shop.options.turns == Mode::Follow;
        match known.filter(|_| lacking.is_empty() && follows) {
            Some(checkpoint) => {
                tracing::info!(%source, line = checkpoint.place.line, "goes on behind this line");
                places.insert(source.clone(), checkpoint.clone());
            }
            None => {
                if known.is_some() && !lacking.is_empty() {
                    tracing::warn!(%source, ?lacking,
                        "these sinks do not have the answers that they had; the source is read from its beginning");
                }
                durable.forget(source)?;
                anew.insert(source.clone());
            }
        }
    }
    // What is read from the beginning may be answered anywhere in a file.
    for (sink, from) in &sinks {
        if sink.is_kept() && !whole.contains(sink.id()) && from.iter().any(|source| anew.contains(source)) {
            recover(sink, None)?;
        }
    }
    Ok(places)
}

fn recover(sink: &SinkHandle, since: Option<&SinkMark>) -> Result<bool, RunError> {
    sink.recover(since).map_err(|source| RunError::Source { name: format!("node {}", sink.id()), source })
}

/// Of the marks that its sources' checkpoints have of a sink, the first or the last; `None` if one
/// of the checkpoints does not know it.
fn mark(
    sink: &SinkHandle,
    from: &BTreeSet<Arc<str>>,
    checkpoints: &BTreeMap<Arc<str>, SourceCheckpoint>,
    of: impl Fn(&SourceCheckpoint) -> &Marks,
    choose: fn(u64, u64) -> u64,
) -> Option<SinkMark> {
    let mut chosen: Option<SinkMark> = None;
    for source in from {
        // One without a checkpoint is read from its beginning, and all of the file is then known.
        let Some(checkpoint) = checkpoints.get(source) else { continue };
        let mark = of(checkpoint).get(sink.id())?;
        match &chosen {
            Some(old) if choose(old.length, mark.length) == old.length => {}
            _ => chosen = Some(mark.clone()),
        }
    }
    chosen
}
