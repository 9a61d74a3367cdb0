//! `turnflow check`: reports all errors in pipeline files without running them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use turnflow_engine::spec::{Entry, Override, Tree, load};

use super::models::not_fetched;
use super::{Fault, FormatArgs, Outcome, catalog, mistakes, read, say_what_fetches};
use crate::diagnostics;
use crate::models::Manifest;
use turnflow_eval::generation::config;

/// Check pipeline files: syntax, names, types, values and paths. Models that `turnflow models` can
/// fetch may be missing.
///
/// Files that are not complete pipelines are reported and skipped: a list of models such as
/// `models.ron`, a file of tests (use `turnflow test`), and a fragment for inclusion. A fragment is
/// checked with each pipeline that includes it. A file is a fragment if none of its nodes has a
/// kind, as `tune` writes it; or if it has neither nodes nor a name, and only models, only corpora, or
/// members without a kind. A file of metrics for `eval --metrics` is checked as such.
#[derive(Args)]
pub struct CheckArgs {
    /// Pipeline files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Set one value in each file. The value is RON. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON")]
    set: Vec<Override>,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &CheckArgs) -> Outcome {
    let mut all = Vec::new();
    let mut count = 0;
    for file in &args.files {
        if let Some(what) = no_pipeline(file) {
            if !args.format.is_json() {
                println!("{}: {what}: not checked on its own", file.display());
            }
            continue;
        }
        let (found, sources) = if is_metrics(file) {
            let mut planned = config::read(file, catalog());
            say_what_fetches(&mut planned.diagnostics);
            (planned.diagnostics, planned.sources)
        } else {
            let planned = read(file, &args.set);
            (planned.diagnostics, planned.sources)
        };
        let (missing, mistakes) = not_fetched(found);
        count += mistakes.len();
        match args.format.is_json() {
            true => {
                let told = diagnostics::to_json(&mistakes, &sources);
                all.extend(told.as_array().cloned().unwrap_or_default());
            }
            false => {
                if mistakes.is_empty() {
                    println!("{}: no errors", file.display());
                } else {
                    let color = std::io::stdout().is_terminal();
                    println!("{}\n", diagnostics::render(&mistakes, &sources, color));
                }
                if !missing.is_empty() {
                    let names = missing.into_iter().collect::<Vec<_>>().join(" ");
                    println!("  models not fetched yet; before a run: turnflow models fetch {names}");
                }
            }
        }
    }
    if args.format.is_json() {
        println!("{:#}", serde_json::Value::Array(all));
    } else if count > 0 {
        println!("{}", mistakes(count));
    }
    if count == 0 { Ok(()) } else { Err(Fault::Input) }
}

/// Whether it is a file of metrics, for `eval --metrics`.
fn is_metrics(file: &Path) -> bool {
    load(file, &[]).tree.is_some_and(|tree| tree.name().is_some_and(|name| name.text == "Metrics"))
}

/// A description of a file that is not a complete pipeline, but valid; otherwise `None`.
fn no_pipeline(file: &Path) -> Option<&'static str> {
    if std::fs::read_to_string(file).is_ok_and(|text| Manifest::parse(&text).is_ok()) {
        return Some("a list of models to fetch");
    }
    if file.to_string_lossy().ends_with(".test.ron") {
        return Some("tests of a pipeline, run by `turnflow test`");
    }
    let loaded = load(file, &[]);
    let tree = loaded.tree.filter(|_| loaded.diagnostics.is_empty())?;
    is_fragment(&tree).then_some("a fragment to be included")
}

/// Whether a file is a fragment for inclusion: none of its nodes has a kind, so they change nodes
/// of another file; or it has no nodes and no name, and either changes members of another file or is
/// a single section that several pipelines share.
fn is_fragment(tree: &Tree) -> bool {
    if tree.name().is_none_or(|name| name.text != "Pipeline") {
        return false;
    }
    let members = |field: &str| tree.get(field).and_then(Tree::entries).unwrap_or_default();
    let kindless = |member: &&Entry| member.value.name().is_none();
    if tree.get("nodes").is_some() {
        let nodes = members("nodes");
        return !nodes.is_empty() && nodes.iter().filter(kindless).count() == nodes.len();
    }
    let [models, corpora] = [members("models"), members("corpora")];
    let changes = models.iter().chain(corpora).any(|member| kindless(&member));
    tree.get("name").is_none() && (changes || models.is_empty() != corpora.is_empty())
}
