//! A pipeline inside another program: words on the command line are looked for in the
//! handbook, by BM25, and the sections that have them are printed. No model is needed.
//!
//! ```console
//! $ search_in_process reciprocal rank fusion
//! ```

use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use turnflow::CATALOG;
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::plan::plan;
use turnflow_engine::record::{Item, Speaker, TurnRecord, Value};
use turnflow_engine::run::{Engine, Options};
use turnflow_engine::spec::load_str;

const PIPELINE: &str = r#"Pipeline(
    corpora: { "handbook": Corpus(source: Directory(path: "handbook"), chunk: Headings()) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "handbook", top: 3),
    },
)"#;

fn main() -> anyhow::Result<()> {
    let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        bail!("what is to be looked for?");
    }
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let planned = plan(load_str("example", base, PIPELINE, &[]), &CATALOG);
    let plan = planned.plan.with_context(|| format!("{:?}", planned.diagnostics))?;

    // Every value that a node gives is told to an observer, on the worker that gives it.
    let (sender, found) = mpsc::channel();
    let sender = Mutex::new(sender);
    let observer = move |node: &str, item: &Item| {
        if let (Value::Hits(hits), Ok(sender)) = (&item.value, sender.lock()) {
            let _ = sender.send((node.to_owned(), hits.clone()));
        }
    };
    let options =
        Options { corpora: Mode::Once, manual_turns: true, observer: Some(Arc::new(observer)), ..Options::default() };
    let engine = Engine::start(plan, options)?;
    let record = TurnRecord {
        conversation_id: "example".into(),
        turn: 1,
        speaker: Speaker::User,
        text: words.into(),
        collection: None,
        timestamp: None,
        extra: serde_json::Map::new(),
    };
    engine.submit(SourcedTurn { record, position: "command line".into(), history: None, place: None });
    let (node, hits) = found.recv().context("the pipeline ended early")?;
    for hit in &hits.hits {
        println!("{node}: {:.2}  {}  {}", hit.score, hit.chunk.id, hit.chunk.title);
    }
    engine.join()?;
    Ok(())
}
