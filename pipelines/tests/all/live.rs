//! Pipelines that run: live corpora, live logs, and what must hold of both.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use turnflow::CATALOG;
use turnflow_engine::component::{Catalog, CorpusSourceConfig, CorpusSourceKind};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode};
use turnflow_engine::document::{Document, Markup};
use turnflow_engine::plan::plan;
use turnflow_engine::record::{Status, Value};
use turnflow_engine::run::{Engine, Options};
use turnflow_engine::spec::{from_tree, load_str};

use crate::support::{Asked, Outcome, Random, answers, data, model, plan_of, until};

const WORDS: &[&str] = &[
    "harbour", "ferry", "tide", "lamp", "keeper", "storm", "signal", "anchor", "rope", "chart", "compass", "gull",
    "island", "north", "wind", "sail", "boat", "net", "salt", "fog", "The", "of", "running", "boats",
];

fn sentence(random: &mut Random) -> String {
    let words: Vec<&str> = (0..4 + random.below(20)).map(|_| *random.pick(WORDS)).collect();
    format!("{}.", words.join(" "))
}

const LEXICAL: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Sentences(size: 2, overlap: 1)) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "stemmed": Bm25(input: "query", corpus: "docs", tokenizer: English, top: 20),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, k1: 1.5, b: 0.6, top: 20),
        "fused": Rrf(inputs: ["stemmed", "plain"], top: 20),
    },
)"#;

/// A history of a directory: files that come, change, move and go, as people and editors do it.
fn disturb(docs: &Path, random: &mut Random) {
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

fn dense(model: &Path, source: &str) -> String {
    format!(
        r#"Pipeline(
    models: {{ "minilm": Onnx(path: {:?}, tokenizer: {:?}) }},
    corpora: {{ "docs": Corpus(source: {source}, chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 10),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 10),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 10),
    }},
)"#,
        model.join("model.onnx"),
        model.join("tokenizer.json")
    )
}

fn rows(path: &Path, rows: &[String]) {
    let lines: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(id, text)| serde_json::json!({"_id": format!("r{id}"), "text": text}).to_string())
        .collect();
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

/// One row edited in a file of 500 costs one embedding; a duplicate none; a restart none.
#[test]
fn only_what_changed_is_embedded() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("docs.jsonl");
    let mut texts: Vec<String> = (0..500).map(|n| format!("Row {n} tells of {}.", WORDS[n % 20])).collect();
    texts[499] = texts[0].clone();
    rows(&path, &texts);
    let options = Options { state: Some(dir.path().join("state")), ..Options::default() };
    let text = dense(&model, "JsonLines(path: \"docs.jsonl\")");
    let mut asked = Asked::start(plan_of(dir.path(), &text), options.clone());
    assert_eq!(asked.embedded(), 499, "a duplicate is embedded once");

    texts[123] = "Row 123 tells of a zeppelin.".into();
    rows(&path, &texts);
    asked.ask_until("zeppelin", "the edited row", |outcome| outcome.documents("lexical") == ["r123"]);
    assert_eq!(asked.embedded(), 500, "one edited row is one embedding");

    texts[7] = texts[8].clone();
    rows(&path, &texts);
    asked.ask_until("Row 7", "the row that is another's copy", |outcome| outcome.documents("lexical")[0] != "r7");
    assert_eq!(asked.embedded(), 500, "a copy is none");
    drop(asked);

    let mut asked = Asked::start(plan_of(dir.path(), &text), options);
    assert_eq!(asked.embedded(), 0, "a restart embeds nothing");
    let nearest = asked.ask("an airship, the zeppelin").documents("dense");
    assert_eq!(nearest[0], "r123");
}

#[test]
fn a_renamed_file_costs_no_embedding() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("old.md"), "The keeper winds the lamp at dusk.").unwrap();
    fs::write(docs.join("other.md"), "Nets are mended in winter.").unwrap();
    let text = dense(&model, "Directory(path: \"docs\")");
    let mut asked = Asked::start(plan_of(dir.path(), &text), Options::default());
    assert_eq!(asked.embedded(), 2);
    fs::rename(docs.join("old.md"), docs.join("new.md")).unwrap();
    let found = |outcome: &crate::support::Outcome| outcome.documents("lexical") == ["new.md"];
    asked.ask_until("Who winds the lamp?", "the file under its new name", found);
    assert_eq!(asked.ask("Who winds the lamp?").documents("dense").len(), 2);
    assert_eq!(asked.embedded(), 2);
}

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

/// The whole way on files: a followed log with agent turns, malformed lines, a rotation, and
/// a corpus that changes at known places; the answers are the same on any number of workers.
#[test]
fn answers_do_not_depend_on_the_number_of_workers() {
    let Some(model) = model("minilm-int8") else { return };
    let Some(mtrag) = data("mtrag") else { return };
    let turns = fs::read_to_string(mtrag.join("turns.dev.jsonl")).unwrap();
    let lines: Vec<&str> = turns.lines().take(160).collect();
    let corpus: String = fs::read_to_string(mtrag.join("corpus/clapnq.jsonl"))
        .unwrap()
        .lines()
        .take(60)
        .map(|line| format!("{line}\n"))
        .collect();
    let mut all = Vec::new();
    for workers in [1, 2, 4] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("docs.jsonl"), &corpus).unwrap();
        let text = format!(
            r#"Pipeline(
    models: {{ "minilm": Onnx(path: {:?}, tokenizer: {:?}) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": UserTurns(input: "turns", last: 2),
        "lexical": Bm25(input: "query", corpus: "docs", top: 20),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 20),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 10),
        "answer": ExtractiveAnswer(input: "fused", model: "minilm", passages: 2),
        "final": IdkNormalize(input: "answer", min_support: 0.3),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
    }},
)"#,
            model.join("model.onnx"),
            model.join("tokenizer.json")
        );
        let mut log = fs::File::create(dir.path().join("turns.jsonl")).unwrap();
        let options = Options { workers, state: Some(dir.path().join("state")), ..Options::default() };
        let mut engine = Engine::start(plan_of(dir.path(), &text), options).unwrap();
        let mut asked = 0;
        let mut epoch = 0;
        for (part, lines) in lines.chunks(40).enumerate() {
            if part > 0 {
                // The corpus changes between parts: rows come, one goes.
                let row =
                    format!("{{\"_id\": \"new{part}\", \"text\": \"A ferry named Part {part} sails at noon.\"}}\n");
                let kept: String = corpus.lines().skip(part).map(|line| format!("{line}\n")).collect();
                fs::write(dir.path().join("docs.jsonl"), kept + &row).unwrap();
                until("the next epoch", || engine.epochs().current().epoch > epoch);
            } else {
                engine.wait_ready().unwrap();
            }
            epoch = engine.epochs().current().epoch;
            for line in lines {
                writeln!(log, "{line}").unwrap();
                asked += usize::from(line.contains("\"speaker\": \"user\""));
            }
            writeln!(log, "not a turn").unwrap();
            log.flush().unwrap();
            until("the part's answers", || engine.delivered() == asked);
            if part == 1 {
                // Rotation: the log moves away, and a new one begins.
                fs::rename(dir.path().join("turns.jsonl"), dir.path().join("turns.jsonl.1")).unwrap();
                log = fs::File::create(dir.path().join("turns.jsonl")).unwrap();
            }
        }
        until("the dead letters", || engine.dead_letters() == 4);
        engine.stop();
        engine.join().unwrap();
        let mut records: Vec<_> = answers(&dir.path().join("answers.jsonl"))
            .into_iter()
            .map(|answer| {
                let hits: Vec<_> =
                    answer.hits.iter().map(|hit| (hit.passage.to_string(), hit.score.to_bits())).collect();
                (
                    answer.conversation_id.to_string(),
                    answer.turn,
                    answer.status,
                    answer.query,
                    answer.answer,
                    hits,
                    answer.stamp,
                )
            })
            .collect();
        assert_eq!(records.len(), asked);
        records.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        assert!(records.iter().any(|record| record.2 == Status::Answered));
        all.push(records);
    }
    assert_eq!(all[0], all[1], "1 and 2 workers");
    assert_eq!(all[0], all[2], "1 and 4 workers");
}

/// A corpus of one document whose source says late that it has read all.
#[derive(Debug, serde::Deserialize)]
struct LateConfig {}

struct Late;

impl CorpusSourceConfig for LateConfig {
    fn explain(&self) -> String {
        String::new()
    }

    fn build(&self) -> Box<dyn CorpusSource> {
        Box::new(Late)
    }
}

impl CorpusSource for Late {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let (id, text) = ("a".into(), "the ferry leaves".into());
        let document = Document { id, title: "".into(), text, markup: Markup::Plain };
        let _ = output.change("a", Some(document)).and_then(|()| output.commit());
        // Long enough for the workers to let the commit pass and to park.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let _ = output.ready();
        let _ = output.stop().receiver().recv();
        Ok(())
    }
}

static LATE: &[CorpusSourceKind] = &[CorpusSourceKind {
    name: "Late",
    summary: "says late that it has read all",
    parse: |tree, sources| Ok(Box::new(from_tree::<LateConfig>(tree, sources)?)),
}];

/// Saying so moves no time; an engine that slept on then would never become ready.
#[test]
fn a_source_may_say_late_that_it_has_read_all() {
    let text = LEXICAL.replace("Directory(path: \"docs\")", "Late()");
    let catalog = Catalog { corpus_sources: LATE, ..CATALOG };
    let planned = plan(load_str("late.ron", Path::new("."), &text, &[]), &catalog);
    let mut late = Asked::start(planned.plan.unwrap(), Options::default());
    assert_eq!(late.ask("ferry").documents("plain"), ["a"]);
}
