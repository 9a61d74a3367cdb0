//! Plans the pipeline of a row.

use std::path::Path;

use turnflow_engine::component::Catalog;
use turnflow_engine::plan::{Plan, Planned, plan};
use turnflow_engine::record::PortType;
use turnflow_engine::spec::{Diagnostic, Entry, FilePath, Kind, Loaded, Override, Sources, Tree, load};

use super::{Matrix, Row};
use crate::setting::put;

/// The plan of a row's pipeline.
pub struct PlannedRow {
    /// The plan, if the only mistakes are missing files.
    pub plan: Option<Plan>,
    /// The pipeline, with the values that the row sets.
    pub tree: Option<Tree>,
    /// Every mistake, in the pipeline file and in the row.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for rendering the diagnostics.
    pub sources: Sources,
}

/// Plans the pipeline `file` with the overrides of the command line, the values that the row sets, and the
/// documents in the directory of the data. Without that directory, the corpora keep their documents.
pub fn plan_row(
    matrix: &Matrix,
    row: &Row,
    file: &FilePath,
    data: Option<&Path>,
    overrides: &[Override],
    catalog: &Catalog,
) -> PlannedRow {
    let Loaded { mut sources, tree, mut diagnostics } = load(&file.path, overrides);
    // Positions in the matrix file are shifted behind the texts of the pipeline.
    let first =
        sources_of(&matrix.sources).map(|source| sources.add(source)).fold(None, |first, at| first.or(Some(at)));
    let shift = first.unwrap_or_default();
    let at_file = ["local", "file"]
        .into_iter()
        .filter_map(|field| row.tree.get(field))
        .find(|tree| matches!(&tree.kind, Kind::Scalar(ron::Value::String(written)) if *written == file.written));
    if let Some(written) = at_file {
        // The file cannot be read.
        for diagnostic in diagnostics.iter_mut().filter(|diagnostic| diagnostic.span.is_none()) {
            diagnostic.span = Some(shifted(written.clone(), shift).span);
        }
    }
    let Some(mut tree) = tree else { return PlannedRow { plan: None, tree: None, diagnostics, sources } };
    let mut values: Vec<(Entry, &str)> = Vec::new();
    for entry in matrix.tree.get("corpora").and_then(Tree::entries).unwrap_or_default() {
        let mut entry = entry.clone();
        if let (Some(data), Kind::Scalar(ron::Value::String(path))) = (data, &mut entry.value.kind) {
            *path = data.join(&*path).to_string_lossy().into_owned();
            entry.key.text = format!("corpora.{}.source.path", entry.key.text);
            values.push((entry, "unknown-corpus"));
        } else if tree.get("corpora").and_then(|corpora| corpora.get(&entry.key.text)).is_none() {
            let known = tree.get("corpora").and_then(Tree::entries).unwrap_or_default();
            let key = shifted(entry.value.clone(), shift).span;
            let diagnostic = Diagnostic::new("unknown-corpus", key, unknown(row, &entry.key.text));
            diagnostics.push(diagnostic.choices(&entry.key.text, known.iter().map(|entry| entry.key.text.as_str())));
        }
    }
    values.extend(row.set.iter().cloned().map(|entry| (entry, "unknown-path")));
    for (Entry { mut key, value }, code) in values {
        key.span.source += shift;
        if let Err((part, choices)) = put(&mut tree, &key.text, shifted(value, shift)) {
            let diagnostic = Diagnostic::new(code, key.span, unknown(row, &key.text));
            diagnostics.push(diagnostic.choices(&part, choices.iter().map(String::as_str)));
        }
    }
    if !diagnostics.is_empty() {
        return PlannedRow { plan: None, tree: Some(tree), diagnostics, sources };
    }
    let loaded = Loaded { sources, tree: Some(tree.clone()), diagnostics };
    let Planned { plan, mut diagnostics, sources } = plan(loaded, catalog);
    if let (Some(plan), Some(hits), Some(place)) = (&plan, &row.config.hits, row.tree.get("hits")) {
        let giving = plan.nodes.iter().filter(|node| node.output == Some(PortType::Hits));
        let giving: Vec<&str> = giving.map(|node| &*node.id).collect();
        if !giving.contains(&hits.as_str()) {
            let message = format!("Row {:?}: no node `{hits}` of its pipeline outputs Hits", row.name);
            let diagnostic = Diagnostic::new("unknown-input", shifted(place.clone(), shift).span, message);
            diagnostics.push(diagnostic.choices(hits, giving));
        }
    }
    PlannedRow { plan, tree: Some(tree), diagnostics, sources }
}

fn unknown(row: &Row, path: &str) -> String {
    format!("Row {:?}: its pipeline has no `{path}`", row.name)
}

/// The texts of a matrix file.
fn sources_of(sources: &Sources) -> impl Iterator<Item = turnflow_engine::spec::Source> + '_ {
    (0..sources.files().count()).map(|at| sources.get(at).clone())
}

/// The tree with positions in other texts.
fn shifted(mut tree: Tree, by: usize) -> Tree {
    tree.span.source += by;
    match &mut tree.kind {
        Kind::Map(entries) | Kind::Struct(_, entries) => {
            for entry in entries {
                entry.key.span.source += by;
                entry.value = shifted(entry.value.clone(), by);
            }
        }
        Kind::Seq(items) | Kind::Tuple(_, items) => {
            items.iter_mut().for_each(|item| *item = shifted(item.clone(), by));
        }
        Kind::Scalar(_) => {}
    }
    if let Kind::Struct(Some(name), _) | Kind::Tuple(Some(name), _) = &mut tree.kind {
        name.span.source += by;
    }
    tree
}
