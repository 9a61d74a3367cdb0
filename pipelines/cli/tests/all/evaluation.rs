//! `turnflow eval` on answers: what is scored without a pipeline and without judgements, what
//! judges on a server say, and what is told of a file of metrics that is wrong.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use turnflow::CATALOG;

use crate::support::root;

/// Answers every request by a function of what is asked, and counts them.
pub(crate) fn server(reply: fn(&str) -> &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || answer(stream, reply));
        }
    });
    (url, count)
}

fn answer(mut stream: TcpStream, reply: fn(&str) -> &'static str) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).ok()?;
    let asked: String = body["messages"].as_array()?.iter().filter_map(|message| message["content"].as_str()).collect();
    let message = json!({"role": "assistant", "content": reply(&asked)});
    let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()
}

fn files(directory: &Path) {
    let task = |id: &str, answerability: &str, target: &str| {
        json!({"task_id": id, "turn": 1, "answerability": answerability, "target": target,
               "input": [{"speaker": "user", "text": "When does the ferry leave?"}]})
    };
    let said = |id: &str, text: &str| {
        json!({"task_id": id, "predictions": [{"text": text}],
               "contexts": [{"document_id": "ferry", "text": "The ferry leaves at noon.", "score": 2.0}]})
    };
    let lines = |values: &[Value]| values.iter().map(|value| format!("{value}\n")).collect::<String>();
    let tasks = [
        task("a", "ANSWERABLE", "The ferry leaves at noon."),
        task("b", "UNANSWERABLE", "I do not know."),
        task("c", "UNDERSPECIFIED", "Which ferry?"),
    ];
    let answers = [said("a", "The ferry leaves at dusk."), said("b", "I do not know."), said("c", "At noon.")];
    fs::write(directory.join("tasks.jsonl"), lines(&tasks)).unwrap();
    fs::write(directory.join("answers.jsonl"), lines(&answers)).unwrap();
    fs::write(directory.join("qrels.tsv"), "query-id\tcorpus-id\tscore\na\tferry\t1\n").unwrap();
}

fn eval(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    command.args(["eval", "--tasks", "tasks.jsonl"]).args(arguments).current_dir(directory);
    command.env_remove("TURNFLOW_LOG").output().unwrap()
}

#[track_caller]
fn near(value: &Value, want: f64) {
    assert!((value.as_f64().unwrap() - want).abs() < 1e-9, "{value}, not {want}");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn answers_are_scored_without_a_pipeline_and_without_judgements() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let output = eval(directory.path(), &["--answers", "answers.jsonl", "--output", "out.json"]);
    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    assert!(out.starts_with("3 answers\n") && out.contains("not computed, since no `encoder` is declared"), "{out}");
    assert!(out.contains("excluded from the conditioned means: 1 tasks that are UNDERSPECIFIED"), "{out}");
    assert!(out.contains("under-abstention         0.5000  (1 of 2)"), "{out}");
    let figures: Value = serde_json::from_slice(&fs::read(directory.path().join("out.json")).unwrap()).unwrap();
    near(&figures["tasks"]["a"]["metrics"]["rouge_l"], 0.8);
    assert_eq!(
        (&figures["tasks"]["b"]["idk"], &figures["tasks"]["b"]["metrics"]["rouge_l"]),
        (&json!("yes"), &json!(1.0))
    );
    near(&figures["generation"]["metrics"]["rouge_l"], 0.9);
    assert!(figures.get("queries").is_none(), "{figures}");

    let both = eval(directory.path(), &["--answers", "answers.jsonl", "--qrels", "qrels.tsv", "--output", "out.json"]);
    assert!(both.status.success() && text(&both.stdout).contains("hits of `contexts`"), "{both:?}");
    let figures: Value = serde_json::from_slice(&fs::read(directory.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((figures["queries"].as_u64(), figures["metrics"]["recall@1"].as_f64()), (Some(1), Some(1.0)));
}

/// The judge's second run asks nothing: what it said is in the state directory.
#[test]
fn judges_on_a_server_are_asked_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    files(path);
    let (url, count) = server(|asked| match () {
        () if asked.contains("Label:") => {
            if asked.contains("Response: I do not know.") {
                "yes"
            } else {
                "no"
            }
        }
        () if asked.contains("Grade the assistant") => "It says dusk and not noon. Rating: [[4]]",
        () if asked.contains("Verdicts:") => "1: no",
        () => "1. The ferry leaves at dusk.",
    });
    let metrics = |url: &str| {
        format!(
            "Metrics(models: {{\"llm\": OpenAi(url: {url:?}, model: \"m\", retries: 0)}}, judge: \"llm\", idk: (judge: \"llm\"))"
        )
    };
    let arguments =
        ["--answers", "answers.jsonl", "--metrics", "metrics.ron", "--state", "state", "--json", "out.json"];
    let run = |url: &str| -> Value {
        fs::write(path.join("metrics.ron"), metrics(url)).unwrap();
        let output = eval(path, &arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&fs::read(path.join("out.json")).unwrap()).unwrap()
    };
    let first = run(&url);
    near(&first["tasks"]["a"]["metrics"]["rb_llm"], 0.4);
    near(&first["generation"]["metrics"]["rb_llm"], 0.7);
    near(&first["generation"]["metrics"]["rl_f"], 0.5);
    assert_eq!(first["generation"]["unjudged"], json!({}));

    // Of three tasks: labels, ratings, and statements with verdicts, some of them the same.
    let asked = count.load(Ordering::SeqCst);
    assert!((10..=12).contains(&asked), "{asked}");
    let again = run(&url);
    assert_eq!((first, asked), (again, count.load(Ordering::SeqCst)));
}

#[test]
fn a_file_of_metrics_is_checked_as_pipelines_are() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    for (metrics, words) in [
        ("Metrics(encodr: \"minilm\")", vec!["error[unknown-field]", "metrics.ron:1:9", "did you mean `encoder`?"]),
        (
            "Metrics(\n  judge: \"llm\",\n)",
            vec!["error[unknown-model]", "metrics.ron:2:10", "the file has no `models`"],
        ),
        (
            "Metrics(models: {\"m\": WordVectors(path: \"tasks.jsonl\", words: \"tasks.jsonl\")}, idk: (judge: \"m\"))",
            vec!["error[wrong-model]", "cannot generate text"],
        ),
        ("Metrics(repass: (labels: [Entailment]))", vec!["error[wrong-value]", "`Contradiction` must be among"]),
        ("Metrics(rouge: (stemer: true))", vec!["unknown field `stemer`", "did you mean `stemmer`?"]),
        ("Pipeline(nodes: {})", vec!["this file must contain `Metrics(…)`"]),
        ("Metrics(encoder: )", vec!["metrics.ron:1:"]),
    ] {
        fs::write(directory.path().join("metrics.ron"), metrics).unwrap();
        let output = eval(directory.path(), &["--answers", "answers.jsonl", "--metrics", "metrics.ron"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let told = text(&output.stderr);
        assert!(words.iter().all(|word| told.contains(word)), "{metrics}: {told}");
    }
}

#[test]
fn what_cannot_be_scored_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    files(path);
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"ferry\", \"text\": \"The ferry leaves at noon.\"}\n").unwrap();
    fs::write(path.join("turns.jsonl"), "").unwrap();
    fs::write(
        path.join("lexical.ron"),
        r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs"),
    },
)"#,
    )
    .unwrap();
    fs::write(path.join("metrics.ron"), "Metrics()").unwrap();
    for (arguments, code, words) in [
        (vec!["lexical.ron"], 1, "there is nothing to score"),
        (vec!["lexical.ron", "--metrics", "metrics.ron"], 1, "no node of this pipeline outputs Answers to a sink"),
        (vec!["--answers", "qrels.tsv"], 1, "qrels.tsv:1: not a prediction"),
        (vec!["lexical.ron", "--answers", "answers.jsonl"], 2, "cannot be used with"),
        (vec![], 2, "required"),
    ] {
        let output = eval(path, &arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains(words), "{arguments:?}: {output:?}");
    }
    // Hits alone are scored as before.
    let hits = eval(path, &["lexical.ron", "--qrels", "qrels.tsv"]);
    assert!(hits.status.success() && !text(&hits.stdout).contains("answers"), "{hits:?}");
}

/// Why it exists: nothing else reads these files where their models are not fetched.
#[test]
fn the_shipped_files_are_good_but_for_models_to_be_fetched() {
    for file in ["metrics.ron", "metrics-mtrag.ron", "metrics-local.ron"] {
        let planned = turnflow_eval::generation::config::read(&root().join("pipelines").join(file), &CATALOG);
        let wrong: Vec<_> = planned.diagnostics.iter().filter(|found| found.missing.is_none()).collect();
        assert!(wrong.is_empty(), "{file}: {wrong:?}");
        for missing in planned.diagnostics.iter().filter_map(|found| found.missing.as_deref()) {
            assert!(turnflow::models::fetches(missing).is_some(), "{file}: nothing fetches {}", missing.display());
        }
    }
}
