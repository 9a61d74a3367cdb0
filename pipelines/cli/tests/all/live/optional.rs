//! An optional model whose file is missing: the pipeline runs without it, its index waits on the disk, and a reload or
//! the next start catches up.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, BuildFuture, Capability, Catalog, Check, ComponentContext, ComponentError, Configured, Model,
    ModelConfig, ModelKind, loaded_at_once,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, RowScorer, Vector};
use turnflow_engine::plan::{ChangeKind, Plan, plan};
use turnflow_engine::run::Options;
use turnflow_engine::spec::{FilePath, load_str};

use crate::support::{Asked, Outcome};

/// A model that counts letters; its file has to be there. It also scores rows of one feature, which no node has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Letters {
    path: FilePath,
}

const DIMENSION: usize = 26;

impl Configured for Letters {}

impl ModelConfig for Letters {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
    }
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed, Capability::ScoreRows]
    }
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| {
            let failed = |error| BuildError::Component {
                component: context.id().to_owned(),
                source: ComponentError::new(format!("cannot read {}: {error}", self.path.written)),
            };
            let fingerprint = fs::read_to_string(&self.path.path).map_err(failed)?;
            let (embedder, rows): (Arc<dyn Embedder>, Arc<dyn RowScorer>) =
                (Arc::new(Counts), Arc::new(Foreign(["elsewhere.score".to_owned()])));
            let name = context.id().to_owned();
            Ok(Model { name, fingerprint, embedder: Some(embedder), rows: Some(rows), ..Model::default() })
        })
    }
}

struct Counts;

impl Embedder for Counts {
    fn dimension(&self) -> usize {
        DIMENSION
    }
    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let vector = |text: &String| {
            let mut counts = [0.0_f32; DIMENSION];
            text.bytes().filter(u8::is_ascii_lowercase).for_each(|letter| counts[usize::from(letter - b'a')] += 1.0);
            let length = counts.iter().map(|count| count * count).sum::<f32>().sqrt().max(1.0);
            counts.iter().map(|count| count / length).collect::<Vector>()
        };
        ready(Ok(texts.iter().map(vector).collect())).boxed()
    }
}

/// Scores rows of a feature that no node has.
struct Foreign([String; 1]);

impl RowScorer for Foreign {
    fn columns(&self) -> &[String] {
        &self.0
    }
    fn score(&self, rows: Vec<f32>, _: Priority) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        ready(Ok(rows)).boxed()
    }
}

fn catalog() -> Catalog {
    let mut catalog = turnflow::catalog();
    catalog.models.push(ModelKind::of::<Letters>("Letters", "counts letters"));
    catalog
}

const PIPELINE: &str = r#"Pipeline(
    models: { "letters": Letters(path: "letters.model", optional: true) },
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 20),
        "dense": Dense(input: "query", corpus: "docs", model: "letters", top: 20),
        "found": Fallback(inputs: ["dense", "lexical"]),
    },
)"#;

fn planned(dir: &Path) -> Plan {
    let planned = plan(load_str("test.ron", dir, PIPELINE, &[]), &catalog());
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

fn options(dir: &Path) -> Options {
    Options { state: Some(dir.join("state")), ..Options::default() }
}

fn ids(outcome: &Outcome) -> Vec<String> {
    outcome.of("found").iter().map(|hit| hit.chunk.id.to_string()).collect()
}

fn warnings(outcome: &Outcome) -> Vec<String> {
    outcome.last.as_ref().unwrap().warnings.to_vec()
}

/// The names of the index directories in the state directory.
fn indexes(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![dir.join("state")];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            directories.push(path);
        }
    }
    found
}

fn is_dense(name: &str) -> bool {
    name.starts_with("dense")
}

#[test]
fn an_index_waits_for_its_model_and_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("docs")).unwrap();
    fs::write(dir.join("docs/a.md"), "The ferry leaves at noon.").unwrap();
    fs::write(dir.join("docs/b.md"), "A gull sat on the lamp.").unwrap();
    let file = dir.join("letters.model");

    // With the model: all documents have vectors.
    fs::write(&file, "one").unwrap();
    let mut asked = Asked::start(planned(dir), options(dir));
    assert_eq!(ids(&asked.ask("ferry")), ["a.md", "b.md"]);
    assert!(asked.engine.lacking().is_empty());
    drop(asked);
    assert!(indexes(dir).iter().any(|name| is_dense(name)), "{:?}", indexes(dir));

    // Without it: BM25 answers, and documents change meanwhile.
    fs::remove_file(&file).unwrap();
    fs::write(dir.join("docs/b.md"), "A gull sat on the ferry.").unwrap();
    fs::write(dir.join("docs/c.md"), "Nets were mended.").unwrap();
    let mut asked = Asked::start(planned(dir), options(dir));
    let outcome = asked.ask("nets");
    assert_eq!(ids(&outcome), ["c.md"]);
    let told = warnings(&outcome);
    assert!(
        told.len() == 1 && told[0].starts_with("found: skipped `dense`: model `letters` is not loaded: "),
        "{told:?}"
    );
    assert_eq!(asked.engine.lacking()[0].name, std::sync::Arc::<str>::from("letters"));
    assert_eq!(asked.engine.status().lacking.len(), 1);
    assert!(asked.engine.epochs().current().corpora["docs"].indexes.keys().all(|key| !is_dense(key)));
    assert!(indexes(dir).iter().any(|name| is_dense(name)), "the index stays");
    // A reload without the file changes nothing.
    assert!(asked.engine.difference(&planned(dir)).is_empty());
    drop(asked);

    // With it again: the next start adds what is missing, and computes only that.
    fs::write(&file, "one").unwrap();
    let mut asked = Asked::start(planned(dir), options(dir));
    let outcome = asked.ask("nets");
    assert_eq!(ids(&outcome).len(), 3);
    assert_eq!((ids(&outcome)[0].as_str(), warnings(&outcome)), ("c.md", vec![]));
    assert_eq!(asked.embedded(), 2, "b.md and c.md");
    let mut cold = Asked::start(planned(dir), Options::default());
    assert_eq!(outcome.exact("dense"), cold.ask("nets").exact("dense"));
}

#[test]
fn a_reload_loads_the_model_when_its_file_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("docs")).unwrap();
    fs::write(dir.join("docs/a.md"), "The ferry leaves at noon.").unwrap();
    fs::write(dir.join("docs/b.md"), "A gull sat on the lamp.").unwrap();
    let mut asked = Asked::start(planned(dir), options(dir));
    assert_eq!(ids(&asked.ask("lamp")), ["b.md"]);
    fs::write(dir.join("letters.model"), "one").unwrap();
    let difference = asked.engine.reload(planned(dir), &|| false).unwrap();
    assert_eq!(difference.models["letters"], ChangeKind::Changed(vec!["it was not loaded".into()]));
    assert_eq!(difference.corpora["docs"], ChangeKind::Kept);
    let outcome = asked.ask("lamp");
    assert_eq!((ids(&outcome).len(), warnings(&outcome)), (2, vec![]));
    assert!(asked.engine.lacking().is_empty());
    // A file that goes while the model is loaded changes nothing.
    fs::remove_file(dir.join("letters.model")).unwrap();
    assert!(asked.engine.reload(planned(dir), &|| false).unwrap().is_empty());
    assert_eq!(ids(&asked.ask("lamp")).len(), 2);
}

/// The trees do not fit their node, so it fails, with the reason; another node uses the same model.
#[test]
fn a_node_that_cannot_use_an_optional_model_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("docs")).unwrap();
    fs::write(dir.join("docs/a.md"), "The ferry leaves at noon.").unwrap();
    fs::write(dir.join("letters.model"), "one").unwrap();
    let found = r#""a-ranked": TreeRerank(inputs: ["lexical"], model: "letters"),
        "found": Fallback(inputs: ["a-ranked", "dense"]),"#;
    let text = PIPELINE.replace(r#""found": Fallback(inputs: ["dense", "lexical"]),"#, found);
    let planned = plan(load_str("test.ron", dir, &text, &[]), &catalog());
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    let mut asked = Asked::start(planned.plan.unwrap(), options(dir));
    let outcome = asked.ask("noon");
    assert_eq!((ids(&outcome).as_slice(), outcome.of("dense").len()), (&["a.md".to_owned()][..], 1));
    let told = warnings(&outcome);
    assert!(
        told.len() == 1 && told[0].contains("skipped `a-ranked`") && told[0].contains("elsewhere.score"),
        "{told:?}"
    );
    assert_eq!(asked.engine.lacking().len(), 1);
}
