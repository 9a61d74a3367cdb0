//! `turnflow check`: reports all errors in pipeline files without running them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use turnflow_engine::plan::{Plan, PlannedModel};
use turnflow_engine::spec::{Entry, Override, Tree, load};

use super::eval::matrix;
use super::models::not_fetched;
use super::{Fault, FormatArgs, Outcome, catalog, mistakes, read, say_what_fetches};
use crate::diagnostics;
use crate::models::Manifest;
use turnflow_eval::generation::config;
use turnflow_eval::matrix::is_matrix;

/// Check pipeline files: syntax, names, types, values and paths. Models that `turnflow models` can
/// fetch may be missing.
///
/// Files that are not complete pipelines are reported and skipped: a list of models such as
/// `models.ron`, a file of tests (use `turnflow test`), and a fragment for inclusion. A fragment is
/// checked with each pipeline that includes it. A file is a fragment if none of its nodes has a
/// kind, as `tune` writes it; or if it has neither nodes nor a name, and only models, only corpora, or
/// members without a kind. A file of metrics for `eval --metrics` is checked as such, and so is a
/// matrix for `eval`, with the pipelines of its rows.
#[derive(Args)]
pub struct CheckArgs {
    /// Pipeline files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Set one value in each file. The value is RON. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON")]
    pub(super) set: Vec<Override>,
    #[command(flatten)]
    pub(super) format: FormatArgs,
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
        if is_matrix(file) {
            count += matrix::check(file, args, &mut all);
            continue;
        }
        let (found, sources, lacking) = if is_metrics(file) {
            let mut planned = config::read(file, catalog());
            say_what_fetches(&mut planned.diagnostics);
            (planned.diagnostics, planned.sources, Vec::new())
        } else {
            let planned = read(file, &args.set);
            let lacking = planned.plan.as_ref().map(lacking).unwrap_or_default();
            (planned.diagnostics, planned.sources, lacking)
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
                lacking.iter().for_each(|line| println!("  {line}"));
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

/// What a run of the plan would do without the optional models whose files are missing.
fn lacking(plan: &Plan) -> Vec<String> {
    let lacking = plan.models.iter().filter(|(_, model)| !model.missing.is_empty());
    let line = |(name, model): (&String, &PlannedModel)| {
        let without = plan.without(&|other| other == name);
        let list = |ids: &[Arc<str>]| ids.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
        let missing: Vec<String> = model.missing.iter().map(|path| path.display().to_string()).collect();
        let fetches = model.missing.iter().find_map(|path| crate::models::fetches(path));
        let fetch = fetches.map_or(String::new(), |model| format!("; `turnflow models fetch {model}` downloads it"));
        let fails = match (without.failing.as_slice(), without.replacing.as_slice()) {
            ([], _) => "no node that runs needs it".to_owned(),
            (failing, []) => format!("nodes that fail without it: {}", list(failing)),
            (failing, replacing) => {
                format!(
                    "nodes that fail without it: {}; nodes that use other inputs: {}",
                    list(failing),
                    list(replacing)
                )
            }
        };
        format!("optional model `{name}`: there is no {}; {fails}{fetch}", missing.join(" and no "))
    };
    lacking.map(line).collect()
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
