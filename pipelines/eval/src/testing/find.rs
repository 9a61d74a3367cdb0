//! Finds and reads the tests of a pipeline; mistakes are reported with positions, as in pipeline files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnflow_engine::component::Catalog;
use turnflow_engine::plan::plan_models;
use turnflow_engine::spec::{Diagnostic, Kind, Loaded, Source, Sources, Span, Tree, from_tree, load, parse};

use super::config::TestConfig;
use super::replies::{last_line, with_replies};

/// One test.
pub struct Test {
    /// Its configuration.
    pub config: TestConfig,
    /// Its tree in the file.
    pub tree: Tree,
}

/// A pipeline with its tests.
pub struct Found {
    /// The pipeline's file.
    pub file: PathBuf,
    /// The pipeline, to be adapted to each test.
    pub pipeline: Option<Tree>,
    /// The valid tests.
    pub tests: Vec<Test>,
    /// Every mistake.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for rendering the diagnostics.
    pub sources: Sources,
}

/// Reads a pipeline and its tests, given the file of either. The tests may use everything in `catalog`,
/// and `Replies`.
pub fn find(file: &Path, catalog: &Catalog) -> Found {
    let catalog = with_replies(catalog);
    let name = file.to_string_lossy();
    let (pipeline, beside) = match name.strip_suffix(".test.ron") {
        Some(stem) => (PathBuf::from(format!("{stem}.ron")), file.to_owned()),
        None => (file.to_owned(), file.with_extension("test.ron")),
    };
    let Loaded { mut sources, tree, mut diagnostics } = load(&pipeline, &[]);
    let mut trees = Vec::new();
    if let Some(own) = tree.as_ref().and_then(|tree| tree.get("tests")) {
        list(own, &mut trees, &mut diagnostics);
    }
    // A named test file must exist; the default one next to a pipeline need not.
    if beside.exists() || beside == file {
        match std::fs::read_to_string(&beside) {
            Ok(text) => {
                let base = beside.parent().map(Path::to_owned).unwrap_or_default();
                let source = Source { name: beside.display().to_string(), base, text: Arc::from(text) };
                let source = sources.add(source);
                match parse(&sources, source) {
                    Ok(tree) => list(&tree, &mut trees, &mut diagnostics),
                    Err(mistakes) => diagnostics.extend(mistakes),
                }
            }
            Err(error) => {
                let message = format!("cannot read `{}`: {error}", beside.display());
                diagnostics.push(Diagnostic::new("unreadable-file", None, message));
            }
        }
    }
    let mut tests = Vec::new();
    for tree in trees {
        let read = read(&tree, &sources, &catalog, &mut diagnostics);
        tests.extend(read.map(|config| Test { config, tree }));
    }
    Found { file: pipeline, pipeline: tree, tests, diagnostics, sources }
}

/// Collects the tests of a list, or a single test.
fn list(tree: &Tree, into: &mut Vec<Tree>, diagnostics: &mut Vec<Diagnostic>) {
    match &tree.kind {
        Kind::Seq(items) => into.extend(items.iter().cloned()),
        Kind::Struct(Some(name), _) if name.text == "Test" => into.push(tree.clone()),
        _ => {
            let message = format!("tests must be a list of `Test(…)`, not {}", tree.describe());
            diagnostics.push(Diagnostic::new("wrong-type", tree.span, message).label("expected `[Test(…), …]`"));
        }
    }
}

fn read(tree: &Tree, sources: &Sources, catalog: &Catalog, diagnostics: &mut Vec<Diagnostic>) -> Option<TestConfig> {
    let loaded = Loaded { sources: sources.clone(), tree: Some(tree.clone()), diagnostics: Vec::new() };
    let planned =
        plan_models::<TestConfig>(loaded, "Test", |tree, sources| Ok(Box::new(from_tree(tree, sources)?)), catalog);
    diagnostics.extend(planned.diagnostics);
    let (config, _) = planned.plan?;
    let before = diagnostics.len();
    check(&config, tree, diagnostics);
    (diagnostics.len() == before).then_some(config)
}

/// Reports invalid values of settings and expectations.
fn check(config: &TestConfig, tree: &Tree, diagnostics: &mut Vec<Diagnostic>) {
    if let Some(set) = tree.get("set").filter(|set| !matches!(set.kind, Kind::Map(_))) {
        let message = format!("Test {:?}: `set` must be a map, not {}", config.name, set.describe());
        let label = "expected {\"nodes.fused.top\": 5}";
        diagnostics.push(Diagnostic::new("wrong-type", set.span, message).label(label));
    }
    for (at, expect) in config.expect.iter().enumerate() {
        let place = |field: &str| span(tree, at, field);
        if let Some(turn) = expect.turn.filter(|_| config.records.is_empty())
            && !(1..=config.asked()).contains(&turn)
        {
            let message = format!("Test {:?}: the user has no turn {turn}", config.name);
            let label = format!("expected 1 to {}", config.asked());
            diagnostics.push(Diagnostic::new("out-of-range", place("turn"), message).label(label));
        }
        if let Some(Err(error)) = expect.answer_matches.as_deref().map(regex::Regex::new) {
            let message = format!("Test {:?}: `answer_matches` is not a valid regular expression", config.name);
            let diagnostic = Diagnostic::new("wrong-value", place("answer_matches"), message);
            diagnostics.push(diagnostic.label(last_line(&error)));
        }
    }
}

/// The span of a field of an expectation, or of the expectation if it lacks the field.
pub(super) fn span(tree: &Tree, expect: usize, field: &str) -> Span {
    let item = match tree.get("expect").map(|tree| &tree.kind) {
        Some(Kind::Seq(items)) => items.get(expect),
        _ => None,
    };
    item.and_then(|item| item.get(field)).or(item).map_or(tree.span, |tree| tree.span)
}
