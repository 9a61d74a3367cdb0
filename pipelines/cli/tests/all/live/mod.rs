//! Pipelines that run: live corpora, live logs, and what must hold of both.

mod disks;
mod documents;
mod embedding;
mod follow;
mod former;
mod gates;
mod kept;
mod late;
mod maintain;
mod optional;
mod outage;
mod permitted;
mod queues;
mod reached;
pub(crate) mod rebuild;
mod recorded;
mod reload;
mod restarted;
mod resume;
mod similar;
mod standing;
mod swapped;
mod taken_back;
mod unreadable;
mod workers;

use std::fs;

use turnflow_engine::record::Value;
use turnflow_engine::run::Options;

use crate::support::{Asked, plan_of};

const WORDS: &[&str] = &[
    "harbour", "ferry", "tide", "lamp", "keeper", "storm", "signal", "anchor", "rope", "chart", "compass", "gull",
    "island", "north", "wind", "sail", "boat", "net", "salt", "fog", "The", "of", "running", "boats",
];

pub(crate) const LEXICAL: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Sentences(size: 2, overlap: 1)) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "stemmed": Bm25(input: "query", corpus: "docs", tokenizer: English, top: 20),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, k1: 1.5, b: 0.6, top: 20),
        "fused": Rrf(inputs: ["stemmed", "plain"], top: 20),
    },
)"#;

/// A turn's text is words, whatever it looks like.
#[test]
fn hostile_questions_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("docs")).unwrap();
    fs::write(dir.path().join("docs/a.md"), "Legislation: the harbour act of 1847. Boats AND nets.").unwrap();
    let mut asked = Asked::start(plan_of(dir.path(), LEXICAL), Options { workers: 2, ..Options::default() });
    let long = "harbour ".repeat(12_500);
    for question in [
        "Legislation: \"",
        "((((\"",
        "]})> unbalanced",
        "AND OR NOT",
        "harbour^99 ~2 *:* field:value [a TO b]",
        "",
        "   ",
        "\u{1f6a2}\u{1f6a2}",
        "nul\0nul",
        "\u{202e}ruobrah\u{202c}",
        "\u{feff}harbour",
        "a\u{300}\u{301}\u{302}",
        &long,
    ] {
        let outcome = asked.ask(question);
        assert!(matches!(outcome.last.unwrap().value, Value::Hits(_)), "{question:?}");
    }
    let hits = asked.ask("Legislation: \"harbour").hits["stemmed"].len();
    assert!(hits > 0, "the engine goes on");
}
