//! Errors in pipeline files: `tests/diagnostics` has one bad file per diagnostic code, and beside it a
//! snapshot with the text that a user sees. `INSTA_UPDATE=always` accepts new texts; read the difference as
//! that user would.
//!
//! The first lines of a file may be `// --set PATH=RON`, as on the command line.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use turnflow::diagnostics;
use turnflow_engine::component::{
    BuildFuture, Capability, ComponentContext, Configured, Model, ModelConfig, ModelKind, loaded_at_once,
};
use turnflow_engine::plan::{Planned, plan_file};
use turnflow_engine::spec::Override;

use crate::support::root;

/// Relative to the package, where tests run: so no text depends on where the tree is.
const DIRECTORY: &str = "tests/diagnostics";

/// The catalog's models can do everything that there is to do; this one cannot.
#[derive(Debug)]
struct TokenizerOnly;

impl Configured for TokenizerOnly {}

impl ModelConfig for TokenizerOnly {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Tokenize]
    }
    fn load<'a>(&'a self, _: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| unreachable!("it is only planned with"))
    }
}

static TOKENIZER_ONLY: ModelKind = ModelKind {
    name: "TokenizerOnly",
    summary: "cuts, and does not embed",
    fields: TokenizerOnly::fields,
    parse: |_, _| Ok(Box::new(TokenizerOnly)),
};

fn planned(file: &Path) -> Planned {
    let bytes = fs::read(file).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let sets = text.lines().map_while(|line| line.strip_prefix("// --set "));
    let sets: Vec<Override> = sets.map(|set| set.parse().unwrap()).collect();
    let mut catalog = turnflow::catalog();
    if file.ends_with("wrong-model.ron") {
        catalog.models.push(TOKENIZER_ONLY);
    }
    plan_file(file, &sets, &catalog)
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(DIRECTORY).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "ron"));
    files.sort();
    files
}

#[test]
fn each_bad_file_is_told_as_it_should_be() {
    let files = files();
    assert!(files.len() > 40, "{files:?}");
    for file in files {
        let planned = planned(&file);
        assert!(planned.plan.is_none() && !planned.diagnostics.is_empty(), "{} has no error", file.display());
        let text = diagnostics::render(&planned.diagnostics, &planned.sources, false);
        let name = file.file_stem().unwrap().to_str().unwrap();
        insta::with_settings!({
            snapshot_path => "../diagnostics",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, { insta::assert_snapshot!(name, text) });
    }
}

/// Why it exists: several mistakes at once are told in the order in which they are read, and
/// no mistake is told twice.
#[test]
fn mistakes_come_in_the_order_of_the_file_and_once() {
    for file in files() {
        let told = planned(&file).diagnostics;
        let places: Vec<_> = told.iter().map(|told| told.span.map(|span| (span.source, span.start))).collect();
        assert!(places.is_sorted(), "{}: {places:?}", file.display());
        // A kind's name may lack several fields; else a place is wrong in one way.
        let mut once = BTreeSet::new();
        for told in &told {
            assert!(once.insert((told.span, told.message.clone())), "{}: {}", file.display(), told.message);
        }
    }
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The first argument of each call of `function` in the text, where it is a literal.
fn literals<'t>(text: &'t str, function: &str) -> Vec<&'t str> {
    let calls = text.split(function).skip(1);
    calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

/// The codes of all errors, as the source has them.
fn codes() -> BTreeSet<String> {
    let mut found = Vec::new();
    for package in
        ["engine", "operators", "connectors", "pipelines/alerts", "pipelines/eval", "pipelines/server", "pipelines/cli"]
    {
        sources(&root().join(package).join("src"), &mut found);
    }
    let mut codes: BTreeSet<String> = BTreeSet::new();
    for file in found {
        let text = fs::read_to_string(file).unwrap();
        let calls = ["Diagnostic::new(", "check.error("].map(|function| literals(&text, function)).concat();
        codes.extend(calls.into_iter().map(str::to_owned));
    }
    assert!(codes.len() > 20, "{codes:?}");
    codes
}

/// The codes of the errors in the bad files, among them those that the source passes on in a variable.
fn told() -> BTreeSet<String> {
    files().iter().flat_map(|file| planned(file).diagnostics).map(|told| told.code.to_owned()).collect()
}

#[test]
fn every_code_has_a_bad_file() {
    let (codes, told) = (codes(), told());
    let missing: Vec<_> = codes.difference(&told).collect();
    assert!(missing.is_empty(), "no file of {DIRECTORY} shows {missing:?}");
}

#[test]
fn the_handbook_lists_every_code() {
    let page = fs::read_to_string(root().join("examples/handbook/troubleshooting.md")).unwrap();
    let (_, list) = page.split_once("## Codes of errors\n").unwrap();
    let (list, _) = list.split_once("\n## ").unwrap();
    // A line has codes, then a colon and the explanation.
    let heads = list.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(": "));
    let listed: BTreeSet<String> =
        heads.flat_map(|(codes, _)| codes.split(", ")).map(|code| code.trim_matches('`').to_owned()).collect();
    assert_eq!(listed, &codes() | &told());
}

/// Why it exists: editors and scripts jump to where `--format json` points.
#[test]
fn json_has_the_places_that_the_text_has() {
    let planned = planned(&Path::new(DIRECTORY).join("many.ron"));
    let json = diagnostics::to_json(&planned.diagnostics, &planned.sources);
    let text = diagnostics::render(&planned.diagnostics, &planned.sources, false);
    for told in json.as_array().unwrap() {
        let place = &told["place"];
        let (file, line, column) = (place["file"].as_str().unwrap(), &place["line"], &place["column"]);
        assert!(text.contains(&format!("--> {file}:{line}:{column}\n")), "{told}");
    }
}
