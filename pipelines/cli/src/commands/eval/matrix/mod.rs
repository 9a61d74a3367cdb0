//! `turnflow eval` with a matrix: evaluates its rows one after another, keeps their results, and writes the table.
//!
//! Each row's result is stored as soon as the row ends, so a run that is interrupted continues with the next row. A
//! row that cannot be run does not stop the others.

mod check;
mod data;
mod rows;

use std::collections::BTreeSet;
use std::fs;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use turnflow_engine::append::replace;
use turnflow_engine::spec::did_you_mean;
use turnflow_engine::wording::count;

pub(in crate::commands) use self::check::check;
use self::data::Data;
use self::rows::{Prepared, Preparing, run_row};
use super::{EvalArgs, generation};
use crate::commands::output::check_directory;
use crate::commands::{Fault, Outcome, catalog, told};
use turnflow_eval::matrix::{Finished, Matrix, Table, read};

/// The table's files in the directory of results.
const FILES: [&str; 3] = ["results.json", "table.md", "index.html"];

pub(super) fn run(args: &EvalArgs, file: &Path, results: &Path) -> Outcome {
    let found = read(file, catalog());
    let Some(matrix) = found.matrix else { return Err(told(&found.diagnostics, &found.sources)) };
    check_directory("--results", Some(results), &FILES)?;
    let chosen = chosen(&matrix, &args.rows)?;
    let mut data = Data::open(&matrix, args, file)?;
    // Mistakes in the file of metrics concern all rows.
    if let Some(metrics) = matrix.config.metrics_file(args.local) {
        generation::Metrics::read(&metrics.path)?;
    }
    let mut preparing = Preparing::new(&matrix, args, results);
    let mut prepared = Vec::new();
    for (row, is_chosen) in matrix.rows.iter().zip(&chosen) {
        prepared.push(preparing.prepare(row, *is_chosen, &mut data)?);
    }

    let total = prepared.iter().filter(|row| matches!(row, Prepared::Ready(_))).count();
    let (mut at, mut rows) = (0, Vec::new());
    for (row, prepared) in matrix.rows.iter().zip(prepared) {
        let result = match prepared {
            Prepared::NoFile | Prepared::NotChosen => None,
            Prepared::Kept(result) => Some(Ok(*result)),
            Prepared::Failed(reason) => Some(Err(reason)),
            Prepared::Ready(ready) => {
                at += 1;
                tell(&format!("row {at} of {total}: {}", row.name));
                let result = run_row(&matrix, row, *ready, args);
                match &result {
                    Ok(result) => {
                        result.write(results)?;
                        tell(&format!("row {at} of {total}: {} took {:.1} s", row.name, result.seconds));
                    }
                    Err(reason) => eprintln!("warning: row {:?} failed: {reason}", row.name),
                }
                Some(result)
            }
        };
        rows.push((row.config.pipeline_file(args.local).map(|file| file.written.clone()), result));
    }
    finish(&matrix, args, results, &rows)
}

/// Prints and writes the table.
fn finish(matrix: &Matrix, args: &EvalArgs, results: &Path, rows: &[Finished]) -> Outcome {
    let table = Table::new(matrix, args.local, rows);
    print!("{}", table.to_text());
    fs::create_dir_all(results).with_context(|| format!("cannot create `{}`", results.display()))?;
    let json = format!("{:#}\n", serde_json::to_value(&table)?);
    for (name, text) in FILES.into_iter().zip([json, table.to_markdown(), table.to_html()]) {
        let path = results.join(name);
        replace(&path, text.as_bytes()).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    println!("tables: {}, {}", results.join(FILES[1]).display(), results.join(FILES[2]).display());
    match table.failed() {
        0 => Ok(()),
        failed => Err(Fault::Run(anyhow!("{} failed; the table has the reasons", count(failed, "row")))),
    }
}

/// Shows progress, on a terminal only.
fn tell(line: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{line}");
    }
}

/// Which rows `--rows` chooses: all of them without it. The name of a row with variants chooses all of these.
fn chosen(matrix: &Matrix, wanted: &[String]) -> Result<Vec<bool>, Fault> {
    let names = || matrix.rows.iter().flat_map(|row| [row.name.as_str(), row.base.as_str()]);
    let mut found = BTreeSet::new();
    for given in wanted {
        // A name may have a comma.
        let parts: Vec<&str> = match names().any(|name| name == given) {
            true => vec![given],
            false => given.split(',').map(str::trim).collect(),
        };
        for part in parts {
            if !names().any(|name| name == part) {
                let near = did_you_mean(part, names()).map(|near| format!("; did you mean {near:?}?"));
                return Err(Fault::Told(anyhow!(
                    "`--rows`: the matrix has no row {part:?}{}",
                    near.unwrap_or_default()
                )));
            }
            found.insert(part.to_owned());
        }
    }
    let is_chosen = |name: &str, base: &str| wanted.is_empty() || found.contains(name) || found.contains(base);
    Ok(matrix.rows.iter().map(|row| is_chosen(&row.name, &row.base)).collect())
}
