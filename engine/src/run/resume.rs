//! Where sources go on after a restart, judged by what sinks still have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::RunError;
use super::build::RuntimeContext;
use crate::connector::{Mode, SinkPosition, SourceOffset};
use crate::durable::SourceCheckpoint;
use crate::sinks::SinkHandle;
use crate::turns::Generation;

/// Behind which place each source goes on; those that are not named begin at the beginning.
///
/// A source goes on if the files that its answers were written to are there and hold what they
/// held at the checkpoint; one that the checkpoint does not know is new beside others, and gets what
/// comes. Otherwise answers are missing, and its turns are read again; those
/// whose answers are in every file are not answered again. A source whose answers are kept
/// nowhere goes on only if it is followed: a run over a whole log is meant to answer all of it.
pub(super) fn resume(
    context: &RuntimeContext,
    generation: &Generation,
) -> Result<BTreeMap<Arc<str>, SourceCheckpoint>, RunError> {
    let durable = &context.shared.durable;
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
    let files: Vec<PathBuf> = sinks.iter().filter_map(|(sink, _)| Some(sink.file()?.to_owned())).collect();
    for (sink, from) in &sinks {
        let known: Vec<&SourceCheckpoint> = from.iter().filter_map(|source| checkpoints.get(source)).collect();
        // That it has what it had is one question, what it got since another. A sink that no
        // checkpoint knows is new: it lacks nothing, and gets what comes.
        let mut has_all = true;
        for had in last_of_each(known.iter().filter_map(|checkpoint| checkpoint.written.get(sink.id()))) {
            has_all = has_all && recover(sink, Some(had), &files)?;
        }
        let since = first(known.iter().map(|checkpoint| checkpoint.marks.get(sink.id()))).filter(|_| has_all);
        // Without a mark all that it has is looked into; that is no reason to answer all again.
        let keeps = recover(sink, since, &files)?;
        goes_on.insert(sink.id().clone(), has_all && keeps);
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
        // Where all of its sinks are new, nothing of what was answered is in any of them.
        let is_kept = |checkpoint: &&SourceCheckpoint| {
            reached.is_empty() || reached.iter().any(|sink| checkpoint.written.contains_key(sink.id()))
        };
        let known = checkpoints.get(source).filter(is_kept);
        let follows = !reached.is_empty() || context.options.turns == Mode::Follow;
        match known.filter(|_| lacking.is_empty() && follows) {
            Some(checkpoint) => {
                for SourceOffset { partition, line, .. } in checkpoint.offsets.iter() {
                    tracing::info!(%source, %partition, line, "resuming after this line");
                }
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
            recover(sink, None, &files)?;
        }
    }
    Ok(places)
}

fn recover(sink: &SinkHandle, since: Option<&SinkPosition>, files: &[PathBuf]) -> Result<bool, RunError> {
    sink.recover(since, files).map_err(|source| RunError::Source { name: format!("node {}", sink.id()), source })
}

/// The last mark of each file.
fn last_of_each<'a>(marks: impl Iterator<Item = &'a SinkPosition>) -> Vec<&'a SinkPosition> {
    let mut last: BTreeMap<&str, &SinkPosition> = BTreeMap::new();
    for mark in marks {
        let known = last.entry(&mark.log).or_insert(mark);
        if known.length < mark.length {
            *known = mark;
        }
    }
    last.into_values().collect()
}

/// The first of the marks; `None` if one is missing, or they are of several files.
fn first<'a>(marks: impl Iterator<Item = Option<&'a SinkPosition>>) -> Option<&'a SinkPosition> {
    let mut first: Option<&SinkPosition> = None;
    for mark in marks {
        let mark = mark?;
        match first {
            Some(known) if known.log != mark.log => return None,
            Some(known) if known.length <= mark.length => {}
            _ => first = Some(mark),
        }
    }
    first
}
