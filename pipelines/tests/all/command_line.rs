//! The command line as scripts use it: exit codes, what goes to which stream, and one clear
//! line where something is wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{answers, model, root, until};

/// Retrieval only: needs no model.
const LEXICAL: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "a<b & \"c\"": Bm25(input: "query", corpus: "docs"),
    },
)"#;

/// From questions to answers in a file.
const ANSWERING: &str = r#"Pipeline(
    models: { "minilm": Onnx(path: "model.onnx", tokenizer: "tokenizer.json") },
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm"),
        "answer": ExtractiveAnswer(input: "dense", model: "minilm"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

/// A directory with both pipelines, a corpus, a log with lines that are no turns, and files
/// that are no model.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("lexical.ron", LEXICAL);
    write("answering.ron", ANSWERING);
    write("bad.ron", "Pipeline(\n    nodes: {\n        \"é\": LastTurn(input: \"turns\"),\n    },\n)\n");
    write(
        "docs.jsonl",
        "{\"_id\": \"ferry\", \"text\": \"The ferry leaves the north pier at noon.\"}\n\
         {\"_id\": \"lamp\", \"text\": \"The keeper lights the lamp in the tower at dusk.\"}\n",
    );
    let turn = |conversation: &str, text: &str| {
        format!(
            "{{\"conversation_id\": \"{conversation}\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"{text}\"}}\n"
        )
    };
    let turns = [
        turn("a", "When does the ferry leave?"),
        "this is no turn\n".into(),
        "{\"conversation_id\": \"x\", \"turn\": 0, \"speaker\": \"user\", \"text\": \"?\"}\n".into(),
        turn("b", "Who lights the lamp?"),
    ];
    write("turns.jsonl", &turns.concat());
    write("model.onnx", "this is no model");
    write("tokenizer.json", "{}");
    directory
}

/// `turnflow` in a directory, with nothing of the caller's settings.
fn turnflow(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command.env_remove("TURNFLOW_LOG").env_remove("ORT_DYLIB_PATH").env_remove("RUST_BACKTRACE");
    command
}

/// What a command came to.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let Output { status, stdout, stderr } = output;
        let ended = Self {
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        };
        assert!(!ended.err.contains("panicked"), "{ended:?}");
        assert!(!ended.out.contains('\x1b') && !ended.err.contains('\x1b'), "colours where no terminal is: {ended:?}");
        ended
    }
}

fn run(directory: &Path, arguments: &[&str]) -> Ended {
    turnflow(directory, arguments).output().unwrap().into()
}

impl Ended {
    /// Ended with this code and nothing but one line on standard error, which has all of `words`.
    #[track_caller]
    fn one_line(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!((self.out.as_str(), self.err.lines().count()), ("", 1), "{self:?}");
        assert!(self.err.starts_with("error: "), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in {self:?}");
        }
    }

    #[track_caller]
    fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// Ends a process that would not end by itself, whatever the test comes to.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The arguments that put a real model in the place of the file that is none.
fn real_model(directory: &Path) -> Option<[String; 4]> {
    let path = model("minilm-int8")?;
    fs::copy(path.join("tokenizer.json"), directory.join("tokenizer.json")).unwrap();
    let file: PathBuf = path.join("model.onnx");
    let set = |what: &str, value: &str| [String::from("--set"), format!("models.minilm.{what}={value}")];
    let [[a, b], [c, d]] = [set("path", &format!("{file:?}")), set("threads", "1")];
    Some([a, b, c, d])
}

#[test]
fn check_tells_every_file_and_where() {
    let directory = directory();
    let good = run(directory.path(), &["check", "lexical.ron", "answering.ron"]).good();
    assert_eq!((good.out.as_str(), good.err.as_str()), ("lexical.ron: no mistakes\nanswering.ron: no mistakes\n", ""));

    let bad = run(directory.path(), &["check", "lexical.ron", "bad.ron"]);
    assert_eq!((bad.code, bad.err.as_str()), (Some(1), ""), "{bad:?}");
    assert!(bad.out.starts_with("lexical.ron: no mistakes\n"), "{bad:?}");
    assert!(bad.out.contains("error[unknown-input]") && bad.out.contains("--> bad.ron:3:30"), "{bad:?}");
    assert!(bad.out.ends_with("\n1 mistake\n"), "{bad:?}");

    let gone = run(directory.path(), &["check", "lexica.ron"]);
    assert_eq!(gone.code, Some(1), "{gone:?}");
    assert!(gone.out.contains("no file `lexica.ron`") && gone.out.contains("did you mean `lexical.ron`?"), "{gone:?}");
}

#[test]
fn check_as_json_has_file_line_and_column() {
    let directory = directory();
    let bad = run(directory.path(), &["check", "--format", "json", "lexical.ron", "bad.ron"]);
    assert_eq!((bad.code, bad.err.as_str()), (Some(1), ""), "{bad:?}");
    let told: Value = serde_json::from_str(&bad.out).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 1, "{told}");
    let text = fs::read_to_string(directory.path().join("bad.ron")).unwrap();
    let start = text.find("\"turns\"").unwrap();
    assert_eq!(told[0]["code"], "unknown-input");
    // The column counts characters, start and end count bytes.
    let place = serde_json::json!({"file": "bad.ron", "line": 3, "column": 30, "start": start, "end": start + 7});
    assert_eq!(told[0]["place"], place);

    let good = run(directory.path(), &["check", "--format", "json", "lexical.ron"]).good();
    assert_eq!(good.out, "[]\n");
}

#[test]
fn explain_shows_what_set_has_changed() {
    let directory = directory();
    let plain = run(directory.path(), &["explain", "lexical.ron"]).good();
    assert!(plain.out.contains("LastTurn") && plain.out.contains("Turns [turns] → Queries"), "{plain:?}");
    assert!(plain.out.contains("k1: 1.2") && plain.out.contains("top: 100"), "{plain:?}");
    let sets = ["explain", "lexical.ron", "--set", "corpora.docs.source.watch=false", "--set", "name=\"other\""];
    let set = run(directory.path(), &sets).good();
    assert!(set.out.contains("pipeline \"other\"") && set.out.contains("watch: false"), "{set:?}");

    let wrong = run(directory.path(), &["explain", "lexical.ron", "--set", "nodes.query.input=\"turn\""]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""), "{wrong:?}");
    assert!(
        wrong.err.contains("did you mean `turns`?") && wrong.err.contains("--set nodes.query.input:1:1"),
        "{wrong:?}"
    );
}

/// The names of the elements, if every one that opens closes.
fn elements(xml: &str) -> Vec<&str> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for part in xml.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag has an end");
        assert!(!text.contains('>'), "{part}");
        let entities = part.split('&').skip(1);
        entities
            .for_each(|rest| assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|e| rest.starts_with(e)), "{part}"));
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None => {
                let name = tag.split([' ', '/']).next().unwrap();
                all.push(name);
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

#[test]
fn graph_draws_every_node_in_three_forms() {
    let directory = directory();
    let graph = |arguments: &[&str]| run(directory.path(), &[&["graph", "lexical.ron"], arguments].concat()).good().out;
    let svg = graph(&[]);
    assert_eq!(elements(&svg).iter().filter(|name| **name == "g").count(), 4, "three nodes and a corpus: {svg}");
    assert!(svg.contains("a&lt;b &amp; &quot;c&quot;"), "{svg}");
    let dot = graph(&["--format", "dot"]);
    assert!(dot.starts_with("digraph") && dot.contains("\"turns\" -> \"query\""), "{dot}");
    let mermaid = graph(&["--format", "mermaid"]);
    assert!(mermaid.starts_with("flowchart LR\n") && mermaid.contains("n0 -->|Turns| n1"), "{mermaid}");
    assert_eq!(graph(&["-o", "picture.svg"]), "");
    assert_eq!(fs::read_to_string(directory.path().join("picture.svg")).unwrap(), svg);
}

#[test]
fn wrong_usage_ends_with_two() {
    let directory = directory();
    for arguments in [
        &["frobnicate"][..],
        &[],
        &["check"],
        &["explain", "lexical.ron", "--set", "nodes"],
        &["run", "lexical.ron", "--workers", "0"],
        &["graph", "lexical.ron", "--format", "png"],
    ] {
        let ended = run(directory.path(), arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.out.is_empty() && ended.err.contains("--help"), "{arguments:?}: {ended:?}");
    }
    let help = run(directory.path(), &["--help"]).good();
    assert!(help.out.contains("Exit codes: 0 done, 1 the input is at fault"), "{help:?}");
}

/// Why it exists: `turnflow explain … | head -1` must not end in a panic.
#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let directory = directory();
    for arguments in [&["explain", "lexical.ron"][..], &["check", "lexical.ron"], &["models", "list", "--root", "."]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended: Ended =
            turnflow(directory.path(), arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap().into();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn index_counts_and_does_nothing_twice() {
    let directory = directory();
    let index = |pipeline: &str, more: &[String]| {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        run(directory.path(), &[&["index", pipeline, "--state", "state"], more.as_slice()].concat()).good().out
    };
    for _ in 0..2 {
        let told = index("lexical.ron", &[]);
        assert!(told.starts_with("docs: 2 documents, 2 chunks, 0 chunks embedded, "), "{told}");
    }
    let Some(real) = real_model(directory.path()) else { return };
    let first = index("answering.ron", &real);
    assert!(first.starts_with("docs: 2 documents, 2 chunks, 2 chunks embedded, "), "{first}");
    let again = index("answering.ron", &real);
    assert!(again.starts_with("docs: 2 documents, 2 chunks, 0 chunks embedded, "), "{again}");
}

#[test]
fn ask_needs_answers() {
    let directory = directory();
    run(directory.path(), &["ask", "lexical.ron", "When?"]).one_line(1, &["Answers"]);
    let Some(real) = real_model(directory.path()) else { return };
    let ask = |more: &[&str]| {
        let real = real.iter().map(String::as_str);
        let arguments = ["ask", "answering.ron", "When does the ferry leave?", "--state", "state"];
        let arguments: Vec<&str> = arguments.into_iter().chain(more.iter().copied()).chain(real).collect();
        run(directory.path(), &arguments).good().out
    };
    let told = ask(&[]);
    assert!(told.starts_with("The ferry leaves the north pier at noon. [1]\n  [1] ferry ("), "{told}");
    let record: Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    assert_eq!((&record["status"], &record["hits"][0]["document"]), (&"answered".into(), &"ferry".into()), "{record}");
    let traced = ask(&["--trace"]);
    assert!(traced.contains("query: query \"When does the ferry leave?\"\n"), "{traced}");
    assert!(!directory.path().join("answers.jsonl").exists(), "a question asked by hand goes to no sink");
}

#[test]
fn models_that_cannot_be_used_are_told_in_a_line() {
    let directory = directory();
    let path = directory.path();
    let missing = run(path, &["check", "answering.ron", "--set", "models.minilm.path=\"modle.onnx\""]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.out.contains("error[no-such-path]") && missing.out.contains("`model.onnx`?"), "{missing:?}");

    fs::remove_file(path.join("tokenizer.json")).unwrap();
    let missing = run(path, &["index", "answering.ron"]);
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""), "found before anything runs: {missing:?}");
    assert!(missing.err.contains("error[no-such-path]"), "{missing:?}");

    let Some(real) = model("minilm-int8") else { return };
    fs::copy(real.join("tokenizer.json"), path.join("tokenizer.json")).unwrap();
    let library = root().join("models/onnxruntime/libonnxruntime.so");
    let with = |library: &Path| -> Ended {
        let mut command = turnflow(path, &["index", "answering.ron", "--state", "state"]);
        command.env("ORT_DYLIB_PATH", library).output().unwrap().into()
    };
    with(&library).one_line(3, &["model `minilm`", "model.onnx"]);
    with(&path.join("nowhere.so")).one_line(3, &["ORT_DYLIB_PATH", "nowhere.so", "unset it"]);
    with(&path.join("model.onnx")).one_line(3, &["cannot load", "model.onnx"]);
    // Neither set nor near the model.
    run(path, &["index", "answering.ron", "--state", "state"])
        .one_line(3, &["turnflow models fetch", "ORT_DYLIB_PATH"]);
}

#[test]
fn a_state_directory_that_cannot_be_used_is_told_in_a_line() {
    let directory = directory();
    let index = |state: &str| run(directory.path(), &["index", "lexical.ron", "--state", state]);
    // Root may write anywhere, but not under a file.
    index("docs.jsonl/state").one_line(3, &["docs.jsonl/state"]);
    fs::create_dir(directory.path().join("newer")).unwrap();
    fs::write(directory.path().join("newer/format"), "turnflow state 99\n").unwrap();
    index("newer").one_line(3, &["newer", "turnflow state 99"]);

    let mut command = turnflow(directory.path(), &["run", "lexical.ron", "--state", "held"]);
    let held = Ending(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    // Written by who has the lock.
    until("the state directory", || directory.path().join("held/format").exists());
    index("held").one_line(3, &["held", "in use by another turnflow process"]);
    drop(held);
    // The lock went with the process that had it, however that ended.
    index("held").good();
}

#[test]
fn a_run_answers_what_can_be_answered_and_keeps_the_rest() {
    let directory = directory();
    let path = directory.path();
    let run_once = |pipeline: &str, more: &[String]| {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        run(path, &[&["run", pipeline, "--once", "--state", "state"], more.as_slice()].concat()).good()
    };
    let letters = || -> Vec<Value> {
        let text = fs::read_to_string(path.join("state/dead-letters.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let ended = run_once("lexical.ron", &[]);
    assert_eq!(ended.out, "", "{ended:?}");
    assert!(ended.err.contains("2 turns answered, 2 dead letters"), "{ended:?}");
    let dead = letters();
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert_eq!((&dead[0]["position"], &dead[0]["record"]), (&"turns.jsonl:2".into(), &"this is no turn".into()));
    assert_eq!(dead[1]["position"], "turns.jsonl:3");
    for letter in &dead {
        assert_eq!(letter["source"], "turns");
        assert!(letter["reason"].as_str().is_some_and(|reason| reason.len() > 10), "{letter}");
    }

    let Some(real) = real_model(path) else { return };
    run_once("answering.ron", &real);
    let mut given = answers(&path.join("answers.jsonl"));
    given.sort_by(|a, b| a.conversation_id.cmp(&b.conversation_id));
    let given: Vec<(&str, &str)> =
        given.iter().map(|given| (&*given.conversation_id, &*given.hits[0].document)).collect();
    assert_eq!(given, [("a", "ferry"), ("b", "lamp")]);
}

#[test]
fn models_list_shows_what_is_there() {
    let directory = directory();
    let list = run(directory.path(), &["models", "list"]).good();
    assert!(list.out.lines().any(|line| line.starts_with("minilm-int8 ") && line.contains("missing")), "{list:?}");
    let json = run(directory.path(), &["models", "list", "--json"]).good();
    let models: Value = serde_json::from_str(&json.out).unwrap();
    assert!(models.as_array().unwrap().iter().any(|model| model["name"] == "minilm-int8"), "{models}");
}

/// Two lists of which one is better: what is learned says so, and can be included.
#[test]
fn learned_weights_are_a_file_to_include() {
    let directory = directory();
    let path = directory.path();
    fs::write(
        path.join("fused.ron"),
        r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "stemmed": Bm25(input: "query", corpus: "docs"),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace),
        "other": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, k1: 0.1),
        "fused": Hybrid(inputs: ["plain", "stemmed"]),
    },
)"#,
    )
    .unwrap();
    let task = |id: usize, text: &str| format!("{{\"_id\": \"q{id}\", \"text\": \"{text}\"}}\n");
    // Only stemming finds "leaving" in "leaves"; the other words are in both.
    let tasks: String = (0..10).map(|id| task(id, "the leaving in the tower at the")).collect();
    fs::write(path.join("tasks.jsonl"), tasks).unwrap();
    let qrels: String = (0..10).map(|id| format!("q{id}\tferry\t1\n")).collect();
    fs::write(path.join("qrels.tsv"), format!("query-id\tcorpus-id\tscore\n{qrels}")).unwrap();

    let labelled = ["--tasks", "tasks.jsonl", "--qrels", "qrels.tsv"];
    let tuned = run(path, &[&["tune", "fused.ron", "--node", "fused", "--out", "learned.ron"], &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("10 questions") && tuned.out.contains("learned, held out"), "{tuned:?}");
    fs::write(path.join("best.ron"), "Pipeline(include: [\"fused.ron\", \"learned.ron\"], name: \"best\")").unwrap();
    assert_eq!(run(path, &["check", "best.ron"]).code, Some(0));
    let explained = run(path, &["explain", "best.ron"]);
    assert!(explained.out.contains("weights: ["), "{explained:?}");

    let both = run(path, &[&["eval", "best.ron", "--hits", "plain,stemmed,fused"], &labelled[..]].concat());
    let figures = |node: &str| both.out.lines().find(|line| line.starts_with(node)).map(str::to_owned);
    assert!(figures("stemmed").is_some() && figures("fused").is_some(), "{both:?}");

    run(path, &[&["tune", "fused.ron", "--node", "plain"], &labelled[..]].concat())
        .one_line(1, &["no node `plain` has weights to learn", "`fused`"]);
    run(path, &[&["eval", "fused.ron", "--hits", "nope"], &labelled[..]].concat())
        .one_line(1, &["no node `nope` gives Hits"]);
}

#[test]
fn the_reference_is_at_hand() {
    let directory = directory();
    let list = run(directory.path(), &["docs"]);
    assert!(list.out.contains("RerankEnsemble") && list.out.contains("OpenAi"), "{list:?}");
    let one = run(directory.path(), &["docs", "Bm25"]);
    assert!(one.out.contains("`k1`") && !one.out.contains("`lambda`"), "{one:?}");
    run(directory.path(), &["docs", "Bm52"]).one_line(1, &["did you mean `Bm25`?"]);
}
