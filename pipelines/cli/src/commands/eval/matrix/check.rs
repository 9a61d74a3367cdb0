//! `turnflow check` on a matrix: its own mistakes, and those in the pipelines of its rows.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::Path;

use serde_json::Value as Json;

use crate::commands::check::CheckArgs;
use crate::commands::models::not_fetched;
use crate::commands::{catalog, say_what_fetches};
use crate::diagnostics;
use turnflow_eval::matrix::{ReadMatrix, plan_row, read};

/// Reports the mistakes in a matrix and in the pipelines of its rows, and returns their number. Those of a
/// pipeline that several rows share are reported once. As JSON, they are added to `all`.
pub(in crate::commands) fn check(file: &Path, args: &CheckArgs, all: &mut Vec<Json>) -> usize {
    let ReadMatrix { matrix, diagnostics, sources } = read(file, catalog());
    let mut found = vec![(diagnostics, sources)];
    for (matrix, row) in matrix.iter().flat_map(|matrix| matrix.rows.iter().map(move |row| (matrix, row))) {
        let files = row.config.file.iter().chain(&row.config.local);
        let planned = files.map(|file| plan_row(matrix, row, file, None, &args.set, catalog()));
        found.extend(planned.map(|planned| (planned.diagnostics, planned.sources)));
    }
    let color = std::io::stdout().is_terminal();
    let (mut missing, mut told, mut count) = (BTreeSet::new(), Vec::new(), 0);
    for (mut diagnostics, sources) in found {
        say_what_fetches(&mut diagnostics);
        let (models, mistakes) = not_fetched(diagnostics);
        missing.extend(models);
        let text = diagnostics::render(&mistakes, &sources, color);
        if mistakes.is_empty() || told.contains(&text) {
            continue;
        }
        count += mistakes.len();
        all.extend(diagnostics::to_json(&mistakes, &sources).as_array().cloned().unwrap_or_default());
        told.push(text);
    }
    if args.format.is_json() {
        return count;
    }
    match told.as_slice() {
        [] => println!("{}: no errors", file.display()),
        told => println!("{}\n", told.join("\n\n")),
    }
    if !missing.is_empty() {
        let names = missing.into_iter().collect::<Vec<_>>().join(" ");
        println!("  models not fetched yet; before a run: turnflow models fetch {names}");
    }
    count
}
