//! A pipeline inside another program: searches the handbook for the words on the command line with
//! BM25, and prints the best sections. No model is needed.
//!
//! ```console
//! $ search_in_process reciprocal rank fusion
//! ```

use std::path::Path;

use anyhow::{Context, bail};
use turnflow::CATALOG;
use turnflow_engine::ask::{AskRequest, Event};
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::plan;
use turnflow_engine::run::{Engine, Options, TurnSources};
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
        bail!("usage: give the words to search for");
    }
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let planned = plan(load_str("example", base, PIPELINE, &[]), &CATALOG);
    let plan = planned.plan.with_context(|| format!("{:?}", planned.diagnostics))?;

    // The pipeline's own sources are not read; this program asks the turns.
    let options = Options { corpora: Mode::Once, sources: TurnSources::None, ..Options::default() };
    let engine = Engine::start(plan, options)?;
    let mut events = engine.ask(AskRequest::new(words));
    loop {
        match events.blocking_next().context("the pipeline ended early")? {
            Event::Answer { record } => {
                for hit in &record.hits {
                    println!("{:.2}  {}", hit.score, hit.passage);
                }
                break;
            }
            Event::Failed { reason } => bail!(reason),
            // Text that a model generates, and with `trace` the value of each node.
            Event::Started { .. } | Event::Node { .. } | Event::Delta { .. } | Event::Revised { .. } => {}
        }
    }
    engine.join()?;
    Ok(())
}
