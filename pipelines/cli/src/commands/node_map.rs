//! The mappings of a pipeline's sources of turns, as a run uses them, for commands that read a log or records themselves.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::anyhow;
use turnflow_connectors::mapped::{ConversationsConfig, MapConfig};
use turnflow_engine::connector::SourcedTurn;
use turnflow_engine::record::TurnRecord;
use turnflow_engine::spec::{Sources, Tree, from_tree, load};
use turnflow_records::{Mapping, map_files};

use super::map::{columns, mapping_of};

/// The mapping of a node, if it has one: with the node's `conversations`, and with its `query` and `cursor` if it is an
/// `Sqlite`.
pub(super) fn of_node(file: &Path, node: &str) -> anyhow::Result<Option<Mapping>> {
    let loaded = load(file, &[]);
    let nodes = loaded.tree.as_ref().and_then(|tree| tree.get("nodes"));
    let Some(nodes) = nodes else { anyhow::bail!("{} is no pipeline: `turnflow check` says why", file.display()) };
    let tree = nodes.get(node).ok_or_else(|| anyhow!("{} has no node `{node}`", file.display()))?;
    of_tree(tree, &loaded.sources, &format!("`{node}`"))
}

/// The mapping of the first node that has one, and the node's name.
pub(super) fn of_first(file: &Path) -> anyhow::Result<Option<Mapping>> {
    let loaded = load(file, &[]);
    let Some(tree) = loaded.tree.as_ref() else { return Ok(None) };
    of_pipeline(tree, &loaded.sources)
}

/// The same of a pipeline that is read.
pub(super) fn of_pipeline(pipeline: &Tree, sources: &Sources) -> anyhow::Result<Option<Mapping>> {
    let nodes = pipeline.get("nodes").and_then(Tree::entries).unwrap_or_default();
    let node = nodes.iter().find(|node| node.value.get("map").is_some());
    node.map_or(Ok(None), |node| of_tree(&node.value, sources, "the pipeline"))
}

fn of_tree(node: &Tree, sources: &Sources, of: &str) -> anyhow::Result<Option<Mapping>> {
    let Some(map) = node.get("map") else { return Ok(None) };
    let wrong = |field: &str| {
        let (field, of) = (field.to_owned(), of.to_owned());
        move |error| anyhow!("the field `{field}` of {of}: {error}")
    };
    let mapping = match from_tree::<Option<MapConfig>>(map, sources).map_err(wrong("map"))? {
        Some(map) => mapping_of(&map, of)?,
        None => return Ok(None),
    };
    let mut options = mapping.options().clone();
    if let Some(conversations) = node.get("conversations") {
        let given = from_tree::<ConversationsConfig>(conversations, sources).map_err(wrong("conversations"))?;
        options = given.over(options);
    }
    if let Some(query) = node.get("query")
        && options.form().is_none()
    {
        let query = from_tree::<String>(query, sources).map_err(wrong("query"))?;
        options.query = Some(match node.get("cursor") {
            Some(cursor) => {
                let cursor = from_tree::<String>(cursor, sources).map_err(wrong("cursor"))?;
                format!("SELECT * FROM ({query}) ORDER BY \"{}\"", cursor.replace('"', "\"\""))
            }
            None => query,
        });
    }
    Ok(Some(mapping.with_options(options)))
}

/// Whether a log has turns as they are: its first record is one.
pub(super) fn is_own(log: &Path) -> bool {
    let Ok(file) = File::open(log) else { return true };
    let mut lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    lines.find(|line| !line.trim_ascii().is_empty()).is_none_or(|line| TurnRecord::parse(&line).is_ok())
}

/// What a mapping makes of a log.
pub(super) struct Turns {
    pub turns: Vec<SourcedTurn>,
    /// The places of the records that it refuses, and why.
    pub refused: Vec<(String, String)>,
}

/// The turns that a mapping makes of a log.
pub(super) fn turns(mapping: &Mapping, log: &Path) -> anyhow::Result<Turns> {
    let mapped = map_files(mapping, std::slice::from_ref(&log.to_path_buf()), Some(&columns))?;
    let position = log.display().to_string();
    let sourced = |turn: &turnflow_records::Turn| {
        let record = TurnRecord::read(&serde_json::to_vec(turn)?)?.0;
        Ok(SourcedTurn { record, position: position.clone(), history: None, place: None })
    };
    let turns = mapped.turns.iter().map(sourced).collect::<anyhow::Result<_>>()?;
    let refused = mapped.refused.iter().map(|(source, reason)| (source.to_string(), reason.clone()));
    Ok(Turns { turns, refused: refused.collect() })
}
