//! Hits after any history of a corpus are those of a cold rebuild.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use turnflow_engine::connector::Mode;
use turnflow_engine::run::Options;

use super::{LEXICAL, WORDS};
use crate::support::{Asked, Outcome, holds, model, plan_of};

/// An edit of a directory, as people and editors do it. A file is chosen among those that are there.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Write(usize, String),
    /// A sentence is added, the others stay.
    Extend(Index, String),
    Remove(Index),
    Rename(Index, usize),
    /// An editor writes beside the file and renames over it.
    Replace(Index, String),
}

pub(crate) fn sentence() -> impl Strategy<Value = String> {
    vec(select(WORDS), 4..24).prop_map(|words| format!("{}.", words.join(" ")))
}

/// Edits that follow each other.
pub(crate) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let text = || vec(sentence(), 1..=5).prop_map(|sentences| sentences.join(" "));
    let edit = prop_oneof![
        2 => (0..30_usize, text()).prop_map(|(name, text)| Edit::Write(name, text)),
        1 => (any::<Index>(), sentence()).prop_map(|(file, sentence)| Edit::Extend(file, sentence)),
        1 => any::<Index>().prop_map(Edit::Remove),
        1 => (any::<Index>(), 0..30_usize).prop_map(|(file, name)| Edit::Rename(file, name)),
        1 => (any::<Index>(), text()).prop_map(|(file, text)| Edit::Replace(file, text)),
    ];
    vec(edit, 1..=4)
}

/// Makes these edits.
pub(crate) fn disturb(docs: &Path, edits: &[Edit]) {
    for edit in edits {
        let mut files: Vec<_> = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| !path.ends_with("sync.md"));
        files.sort();
        let file = |at: &Index| (!files.is_empty()).then(|| at.get(&files));
        let named = |number: &usize| docs.join(format!("f{number}.md"));
        match edit {
            Edit::Write(name, text) => fs::write(named(name), text).unwrap(),
            Edit::Extend(at, sentence) => {
                let Some(path) = file(at) else { continue };
                let old = fs::read_to_string(path).unwrap();
                fs::write(path, format!("{old} {sentence}")).unwrap();
            }
            Edit::Remove(at) => drop(file(at).map(|path| fs::remove_file(path).unwrap())),
            Edit::Rename(at, name) => drop(file(at).map(|path| fs::rename(path, named(name)).unwrap())),
            Edit::Replace(at, text) => {
                let Some(path) = file(at) else { continue };
                let beside = docs.join(".beside.tmp");
                fs::write(&beside, text).unwrap();
                fs::rename(&beside, path).unwrap();
            }
        }
    }
}

/// A history of a corpus: edits and then questions, step by step.
#[derive(Clone, Debug)]
struct History {
    steps: Vec<(Vec<Edit>, Vec<String>)>,
    /// Edits while nothing runs, between two of the steps.
    unseen: Vec<Edit>,
    workers: usize,
}

fn history(steps: usize) -> impl Strategy<Value = History> {
    let steps = vec((edits(), vec(sentence(), 8)), steps);
    (steps, edits(), 1..=2_usize).prop_map(|(steps, unseen, workers)| History { steps, unseen, workers })
}

/// Lives through a history of a corpus, and compares it with a cold rebuild at every epoch.
fn live_through(history: &History, pipeline: &str, compare: impl Fn(&Outcome, &Outcome, &str)) {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    let state = dir.path().join("state");
    let options = Options { workers: history.workers, state: Some(state), ..Options::default() };
    let mut live = Asked::start(plan_of(dir.path(), pipeline), options.clone());
    for (step, (edits, questions)) in history.steps.iter().enumerate() {
        if step == history.steps.len() * 3 / 5 {
            // A restart in the middle, on the state that is there.
            drop(live);
            disturb(&docs, &history.unseen);
            live = Asked::start(plan_of(dir.path(), pipeline), options.clone());
        }
        disturb(&docs, edits);
        let mark = format!("sentinel{step}");
        fs::write(docs.join("sync.md"), &mark).unwrap();
        live.ask_until(&mark, "the newest epoch", |outcome| !outcome.of("plain").is_empty());

        let cold_options = Options { corpora: Mode::Once, ..Options::default() };
        let mut cold = Asked::start(plan_of(dir.path(), pipeline), cold_options);
        for question in questions {
            compare(&live.ask(question), &cold.ask(question), &format!("step {step}: {question}"));
        }
    }
}

/// Why it exists: incremental indexes that drift from what a rebuild would give are wrong
/// in a way that nobody notices.
#[test]
fn hits_equal_a_cold_rebuild_after_any_history() {
    holds(1, 3, history(10), |history| {
        live_through(&history, LEXICAL, |live, cold, place| {
            for node in ["stemmed", "plain", "fused"] {
                assert_eq!(live.exact(node), cold.exact(node), "{node}, {place}");
            }
        });
    });
}

/// The same of every retriever that a model is behind, and of what reranks from their indexes.
#[test]
fn every_retriever_equals_a_cold_rebuild() {
    let (Some(minilm), Some(splade), Some(glove)) = (model("minilm-int8"), model("splade"), model("glove")) else {
        return;
    };
    let onnx =
        |path: &Path| format!("path: {:?}, tokenizer: {:?}", path.join("model.onnx"), path.join("tokenizer.json"));
    let pipeline = format!(
        r#"Pipeline(
    models: {{
        "minilm": Onnx({}),
        "splade": OnnxSparse({}),
        "glove": WordVectors(path: {:?}, words: {:?}),
    }},
    corpora: {{ "docs": Corpus(source: Directory(path: "docs"), chunk: Sentences(size: 2, overlap: 1)) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, top: 20),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 20),
        "sparse": Sparse(input: "query", corpus: "docs", model: "splade", top: 20),
        "static": Static(input: "query", corpus: "docs", model: "glove", top: 20),
        "late": MultiVector(input: "query", corpus: "docs", model: "minilm", top: 20),
        "again": MultiVector(input: "dense", corpus: "docs", model: "minilm", top: 20),
        "hybrid": Hybrid(inputs: ["plain", "dense", "sparse", "static", "late", "again"], top: 20),
        "ranked": RerankEnsemble(input: "hybrid", corpus: "docs", members: [
            (by: Score), (by: BiEncoder, model: "minilm"), (by: Sparse, model: "splade"),
            (by: LateInteraction, model: "minilm"),
        ]),
        "different": Diversify(input: "ranked", corpus: "docs", model: "minilm", top: 5),
    }},
)"#,
        onnx(&minilm),
        onnx(&splade),
        glove.join("vectors.npy"),
        glove.join("words.txt"),
    );
    let compare = |live: &Outcome, cold: &Outcome, place: &str| {
        for node in ["plain", "dense", "static", "late", "again"] {
            assert_eq!(live.exact(node), cold.exact(node), "{node}, {place}");
        }
        // 32-bit products depend in their last bits on what else is in a batch.
        for node in ["sparse", "hybrid", "ranked", "different"] {
            let (live, cold) = (live.of(node), cold.of(node));
            assert_eq!(live.len(), cold.len(), "{node}, {place}");
            for (live, cold) in live.iter().zip(cold) {
                assert!((live.score - cold.score).abs() < 1e-3, "{node}, {place}: {} {}", live.score, cold.score);
            }
        }
    };
    holds(4, 1, history(5), |history| live_through(&history, &pipeline, compare));
}
