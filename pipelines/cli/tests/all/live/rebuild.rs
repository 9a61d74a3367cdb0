//! Hits after any history of a corpus are those of a cold rebuild.

use std::fs;
use std::path::Path;

use turnflow_engine::connector::Mode;
use turnflow_engine::run::Options;

use super::{LEXICAL, WORDS};
use crate::support::{Asked, Outcome, Random, model, plan_of};

fn sentence(random: &mut Random) -> String {
    let words: Vec<&str> = (0..4 + random.below(20)).map(|_| *random.pick(WORDS)).collect();
    format!("{}.", words.join(" "))
}

/// A history of a directory: files that come, change, move and go, as people and editors do it.
pub(crate) fn disturb(docs: &Path, random: &mut Random) {
    let files = || -> Vec<std::path::PathBuf> {
        let mut files: Vec<_> = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| !path.ends_with("sync.md"));
        files.sort();
        files
    };
    let text = |random: &mut Random| {
        let text: Vec<String> = (0..1 + random.below(5)).map(|_| sentence(random)).collect();
        text.join(" ")
    };
    for _ in 0..1 + random.below(4) {
        let there = files();
        match random.below(6) {
            0 | 1 => fs::write(docs.join(format!("f{}.md", random.below(30))), text(random)).unwrap(),
            2 if !there.is_empty() => {
                // One sentence changes, the others stay.
                let path = random.pick(&there).clone();
                let old = fs::read_to_string(&path).unwrap();
                fs::write(&path, format!("{old} {}", sentence(random))).unwrap();
            }
            3 if !there.is_empty() => fs::remove_file(random.pick(&there)).unwrap(),
            4 if !there.is_empty() => {
                let to = docs.join(format!("f{}.md", random.below(30)));
                fs::rename(random.pick(&there), to).unwrap();
            }
            5 if !there.is_empty() => {
                // An editor writes beside the file and renames over it.
                let path = random.pick(&there).clone();
                let beside = docs.join(".beside.tmp");
                fs::write(&beside, text(random)).unwrap();
                fs::rename(&beside, &path).unwrap();
            }
            _ => {}
        }
    }
}

/// Lives through a history of a corpus, and compares it with a cold rebuild at every epoch.
fn live_through(seed: u64, steps: usize, pipeline: &str, compare: impl Fn(&Outcome, &Outcome, &str)) {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    let mut random = Random::new(seed);
    let state = dir.path().join("state");
    let options = Options { workers: 1 + seed as usize % 2, state: Some(state), ..Options::default() };
    let mut live = Asked::start(plan_of(dir.path(), pipeline), options.clone());
    for step in 0..steps {
        if step == steps * 3 / 5 {
            // A restart in the middle, on the state that is there.
            drop(live);
            disturb(&docs, &mut random);
            live = Asked::start(plan_of(dir.path(), pipeline), options.clone());
        }
        disturb(&docs, &mut random);
        let mark = format!("sentinel{seed}x{step}");
        fs::write(docs.join("sync.md"), &mark).unwrap();
        live.ask_until(&mark, "the newest epoch", |outcome| !outcome.of("plain").is_empty());

        let cold_options = Options { corpora: Mode::Once, ..Options::default() };
        let mut cold = Asked::start(plan_of(dir.path(), pipeline), cold_options);
        for _ in 0..8 {
            let question = sentence(&mut random);
            compare(&live.ask(&question), &cold.ask(&question), &format!("seed {seed}, step {step}: {question}"));
        }
    }
}

/// Why it exists: incremental indexes that drift from what a rebuild would give are wrong
/// in a way that nobody notices.
#[test]
fn hits_equal_a_cold_rebuild_after_any_history() {
    for seed in 1..=3 {
        live_through(seed, 10, LEXICAL, |live, cold, place| {
            for node in ["stemmed", "plain", "fused"] {
                assert_eq!(live.exact(node), cold.exact(node), "{node}, {place}");
            }
        });
    }
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
    live_through(4, 5, &pipeline, |live, cold, place| {
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
    });
}
