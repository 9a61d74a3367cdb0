//! Decides where sources resume after a restart, from the checkpoints and the contents of sinks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::RunError;
use super::build::RuntimeContext;
use crate::connector::{Mode, Search, SinkPosition, SourceOffset};
use crate::durable::SourceCheckpoint;
use crate::sinks::SinkHandle;
use crate::turns::Generation;

/// The checkpoint after which each source resumes; a source without one starts at the beginning.
///
/// A source resumes if the files of its sinks still have their contents of the checkpoint. Otherwise
/// answers are missing, and the source is read from the beginning; turns whose answers are in every
/// file are not answered again. A sink that the checkpoint does not contain is new next to others, and
/// gets only later answers. A source whose answers cannot be read back from any sink resumes only if
/// it is followed: a run with `--once` answers the whole log.
pub(super) fn resume(
    context: &RuntimeContext,
    generation: &Generation,
) -> Result<BTreeMap<Arc<str>, SourceCheckpoint>, RunError> {
    resume_some(context, generation, &generation.sources().cloned().collect())
}

/// The same for sources that a reload adds. If an earlier process has read one of them, its last answers are searched
/// in sinks that are written to meanwhile.
pub(super) fn resume_some(
    context: &RuntimeContext,
    generation: &Generation,
    sources: &BTreeSet<Arc<str>>,
) -> Result<BTreeMap<Arc<str>, SourceCheckpoint>, RunError> {
    let durable = &context.shared.durable;
    let mut all: BTreeMap<Arc<str>, SourceCheckpoint> = BTreeMap::new();
    for source in generation.sources() {
        if let Some(checkpoint) = durable.checkpoint(source)? {
            all.insert(source.clone(), checkpoint);
        }
    }
    let mut checkpoints = all.clone();
    checkpoints.retain(|source, _| sources.contains(source));
    let mut goes_on: BTreeMap<Arc<str>, bool> = BTreeMap::new();
    let mut whole: BTreeSet<Arc<str>> = BTreeSet::new();
    let every = generation.sinks();
    // The former files of each sink.
    let mut formers: BTreeMap<Arc<str>, Vec<SinkPosition>> = BTreeMap::new();
    for (sink, _) in &every {
        formers.insert(sink.id().clone(), durable.former(sink.id())?);
    }
    let sinks: Vec<_> =
        every.iter().filter(|(_, from)| from.is_empty() || from.iter().any(|of| sources.contains(of))).collect();
    let files: Vec<PathBuf> = every.iter().filter_map(|(sink, _)| Some(sink.file()?.to_owned())).collect();
    let of_others = |sink: &SinkHandle| -> Vec<SinkPosition> {
        let marks = all.values().flat_map(|checkpoint| checkpoint.marks.iter().chain(&checkpoint.written));
        let former = formers.iter().flat_map(|(id, positions)| positions.iter().map(move |position| (id, position)));
        marks.chain(former).filter(|(id, _)| **id != *sink.id()).map(|(_, position)| position.clone()).collect()
    };
    for (sink, from) in sinks.iter().copied() {
        let others_had = of_others(sink);
        let search = Search { others: &files, others_had: &others_had, ..Search::default() };
        let known: Vec<&SourceCheckpoint> = from.iter().filter_map(|source| checkpoints.get(source)).collect();
        // First check whether the sink still has its earlier contents, then find what it got since.
        // A sink that no checkpoint knows is new and lacks nothing.
        let former = &formers[sink.id()];
        let mut has_all = true;
        for had in last_of_each(known.iter().filter_map(|checkpoint| checkpoint.written.get(sink.id()))) {
            has_all = has_all && recover(sink, Search { since: Some(had), former, ..search })?;
        }
        let since = first(known.iter().map(|checkpoint| checkpoint.marks.get(sink.id()))).filter(|_| has_all);
        // Without a position, all its contents are searched; that alone does not force a replay.
        let keeps = recover(sink, Search { since, former, ..search })?;
        goes_on.insert(sink.id().clone(), has_all && keeps);
        if since.is_none() {
            whole.insert(sink.id().clone());
        }
    }
    let mut places = BTreeMap::new();
    let mut anew: BTreeSet<Arc<str>> = BTreeSet::new();
    for source in sources {
        let reached: Vec<&Arc<SinkHandle>> = sinks
            .iter()
            .copied()
            .filter(|(sink, from)| sink.is_kept() && from.contains(source))
            .map(|(sink, _)| sink)
            .collect();
        let lacking: Vec<&Arc<str>> = reached.iter().map(|sink| sink.id()).filter(|id| !goes_on[*id]).collect();
        // If all its sinks are new, none of them has any of its answers.
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
                        "these sinks have lost answers; the source is read from the beginning");
                }
                durable.forget(source)?;
                anew.insert(source.clone());
            }
        }
    }
    // The answers of a source that is read from the beginning may be anywhere in a file.
    for (sink, from) in sinks {
        if sink.is_kept() && !whole.contains(sink.id()) && from.iter().any(|source| anew.contains(source)) {
            // So they may in a former file.
            let former = formers[sink.id()].iter().cloned();
            let whole: Vec<SinkPosition> = former.map(|position| SinkPosition { length: 0, ..position }).collect();
            let others_had = of_others(sink);
            recover(sink, Search { since: None, former: &whole, others: &files, others_had: &others_had })?;
        }
    }
    Ok(places)
}

fn recover(sink: &SinkHandle, search: Search<'_>) -> Result<bool, RunError> {
    sink.recover(search).map_err(|source| RunError::Source { name: format!("node {}", sink.id()), source })
}

/// The last position of each file.
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

/// The first position; `None` if one is missing, or they are in different files.
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
