//! `turnflow eval` on answers: what is scored without a pipeline and without judgements, what
//! judges on a server say, and what is told of a file of metrics that is wrong.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use turnflow::CATALOG;

use crate::support::{request_body, root};

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
    let body = request_body(&stream)?;
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
    assert!(out.contains("counted by the scripts of MTRAG: 1 UNDERSPECIFIED task"), "{out}");
    assert!(out.contains("under-abstention         0.5000  (1 of 2)"), "{out}");
    let figures: Value = serde_json::from_slice(&fs::read(directory.path().join("out.json")).unwrap()).unwrap();
    near(&figures["tasks"]["a"]["metrics"]["rouge_l"], 0.8);
    assert_eq!(
        (&figures["tasks"]["b"]["idk"], &figures["tasks"]["b"]["metrics"]["rouge_l"]),
        (&json!("yes"), &json!(1.0))
    );
    near(&figures["generation"]["metrics"]["rouge_l"], 0.9);
    // The scripts count the answer that does not ask back, too.
    assert!(out.contains("rouge_l                     0.9000      2      0.6000      3"), "{out}");
    near(&figures["tasks"]["c"]["by_scripts"]["rouge_l"], 0.0);
    assert!(figures.get("queries").is_none(), "{figures}");

    let both = eval(directory.path(), &["--answers", "answers.jsonl", "--qrels", "qrels.tsv", "--output", "out.json"]);
    assert!(both.status.success() && text(&both.stdout).contains("hits of `contexts`"), "{both:?}");
    let figures: Value = serde_json::from_slice(&fs::read(directory.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((figures["queries"].as_u64(), figures["metrics"]["recall@1"].as_f64()), (Some(1), Some(1.0)));
}

/// With the judgements of something else, every score would be 0.
#[test]
fn judgements_of_other_tasks_or_documents_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    files(path);
    let pipeline = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs"),
        "out": Stdout(input: "hits"),
    },
)"#;
    fs::write(path.join("p.ron"), pipeline).unwrap();
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"ferry\", \"text\": \"The ferry leaves at noon.\"}\n").unwrap();
    let judged = |qrels: &str, given: &[&str]| {
        fs::write(path.join("qrels.tsv"), format!("query-id\tcorpus-id\tscore\n{qrels}")).unwrap();
        let ended = eval(path, &[given, &["--qrels", "qrels.tsv"]].concat());
        (ended.status.code(), text(&ended.stderr).to_owned())
    };
    for given in [&["p.ron"][..], &["--answers", "answers.jsonl"]] {
        let (code, told) = judged("x\tferry\t1\n", given);
        assert!(code == Some(1) && told.contains("`x`") && told.contains("`a`"), "{given:?}: {told}");
        let (code, told) = judged("a\tpier\t1\n", given);
        assert!(code == Some(1) && told.contains("`pier`") && told.contains("`ferry`"), "{given:?}: {told}");
        let (code, told) = judged("a\tferry\t1\n", given);
        assert!(code == Some(0) && told.contains("judges 1 of 3 tasks") && told.contains("`b`"), "{given:?}: {told}");
    }
    let (code, told) = judged("a\tferry\t1\nb\tpier\t1\n", &["p.ron"]);
    assert!(code == Some(0) && told.contains("1 of 2 judged ids are not in the corpora, such as `pier`"), "{told}");
}

#[test]
fn idk_answers_are_counted_without_an_answerability() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let tasks = fs::read_to_string(directory.path().join("tasks.jsonl")).unwrap();
    let unlabelled = tasks.replace("\"answerability\"", "\"other\"");
    fs::write(directory.path().join("tasks.jsonl"), unlabelled).unwrap();
    let output = eval(directory.path(), &["--answers", "answers.jsonl"]);
    let out = text(&output.stdout);
    assert!(output.status.success() && out.contains("so nothing is conditioned"), "{output:?}");
    assert!(out.contains("\nno answerability              1        0        2\n"), "{out}");
    assert!(!out.contains("over-abstention"), "{out}");
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
fn a_part_of_the_tasks_runs() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let all = fs::read_to_string(directory.path().join("tasks.jsonl")).unwrap();
    let (mut several, mut answers) = (String::new(), String::new());
    for n in 0..8 {
        let line = all.lines().next().unwrap().replace("\"a\"", &format!("\"q{n}\""));
        several += &format!("{}\n", line.replace("When does the ferry leave?", &format!("Question {n}?")));
        answers += &format!("{{\"task_id\": \"q{n}\", \"predictions\": [{{\"text\": \"At noon.\"}}]}}\n");
    }
    fs::write(directory.path().join("tasks.jsonl"), several).unwrap();
    fs::write(directory.path().join("answers.jsonl"), answers).unwrap();
    for (part, tasks) in [("learn", "3 answers"), ("held-out", "5 answers"), ("all", "8 answers")] {
        let output = eval(directory.path(), &["--answers", "answers.jsonl", "--part", part]);
        assert!(output.status.success() && text(&output.stdout).starts_with(tasks), "{part}: {output:?}");
    }
    fs::write(directory.path().join("tasks.jsonl"), "{\"_id\":\"q2\",\"text\":\"Question 2?\",\"target\":\"a\"}")
        .unwrap();
    let none = eval(directory.path(), &["--answers", "answers.jsonl", "--part", "held-out"]);
    assert!(text(&none.stderr).contains("has no tasks in the part `held-out`"), "{none:?}");
}

/// As questions without judgements are published: how many answers say that they do not know is counted.
#[test]
fn tasks_may_have_neither_judgements_nor_references() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let questions = r#"[{"QuestionID": "a", "Question": "When?"}, {"QuestionID": "b", "Question": "Why?"}]"#;
    fs::write(directory.path().join("tasks.jsonl"), questions).unwrap();
    let output = eval(directory.path(), &["--answers", "answers.jsonl"]);
    let out = text(&output.stdout);
    assert!(
        output.status.success() && out.contains("\nno answerability              1        0        1\n"),
        "{output:?}"
    );
    assert!(out.contains("not computed, since no task has a `target`"), "{out}");
}

#[test]
fn published_answers_are_scored_beside_their_published_scores() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let task = |id: &str, answerability: &str, target: &str| {
        json!({"task_id": id, "Answerability": [answerability], "targets": [{"text": target}], "contexts": [],
               "input": [{"speaker": "user", "text": "When does the ferry leave?"}]})
    };
    let evaluation = |id: &str, said: &str, rouge: f64| {
        let people = json!({"1": {"value": "100"}, "2": {"value": "0"}});
        json!({"task_id": id, "model_id": "m", "model_response": said,
               "annotations": {"RougeL": {"system": {"value": rouge}}, "win-rate": people}})
    };
    let file = json!({
        "metrics": [{"name": "win-rate", "author": "human"}],
        "tasks": [task("a", "ANSWERABLE", "The ferry leaves at noon."), task("b", "UNANSWERABLE", "I do not know.")],
        "evaluations": [evaluation("a", "The ferry leaves at dusk.", 0.8), evaluation("b", "I do not know.", 0.9)],
    });
    fs::write(path.join("all.json"), file.to_string()).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.args(arguments).current_dir(path).env_remove("TURNFLOW_LOG").output().unwrap()
    };
    assert!(run(&["import", "mtrag", "all.json", "--output", "in"]).status.success());
    let output = run(&["eval", "--published", "in/evaluations/all", "--output", "out.json"]);
    let out = text(&output.stdout);
    assert!(output.status.success() && out.starts_with("2 answers of 1 model to 2 tasks\n"), "{output:?}");
    let words: Vec<&str> = out.split_whitespace().collect();
    assert!(words.windows(4).any(|words| words == ["rouge_l", "2", "1", "0.0500"]), "{out}");
    assert!(out.contains("not compared, because ours needs a model") && out.contains("   50.00"), "{out}");
    let figures: Value = serde_json::from_slice(&fs::read(path.join("out.json")).unwrap()).unwrap();
    near(&figures["models"]["m"]["rouge_l"]["ours"], 0.9);
    near(&figures["tasks"]["m"]["b"]["by_scripts"]["rouge_l"], 1.0);
    let both = run(&["eval", "--published", "in/evaluations/all", "--tasks", "in/evaluations/all/tasks.jsonl"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    let none = run(&["eval", "--published", "in"]);
    assert!(none.status.code() == Some(1) && text(&none.stderr).contains("tasks.jsonl"), "{none:?}");
}

#[test]
fn a_judge_that_fails_is_said_to_fail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    files(path);
    let metrics = r#"Metrics(
        models: {"llm": OpenAi(url: "http://127.0.0.1:1/v1", model: "m", retries: 0)},
        judge: "llm", idk: (judge: "llm"),
    )"#;
    fs::write(path.join("metrics.ron"), metrics).unwrap();
    let output = eval(path, &["--answers", "answers.jsonl", "--metrics", "metrics.ron"]);
    let out = text(&output.stdout);
    assert!(output.status.success() && out.contains("idk: 3 calls failed, the first with:"), "{output:?}");
    assert!(out.contains("no answer could be labelled") && !out.contains("no task has an"), "{out}");
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

/// The lines of a file of JSON Lines.
fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Two tasks, passages, and a pipeline with answers from the tasks' own passages and from retrieved ones.
fn subtask_files(directory: &Path) {
    let task = |id: &str, asked: &str, contexts: &[&str]| {
        json!({"task_id": id, "conversation_id": "c", "turn": 1, "collection": "govt", "contexts": contexts,
               "target": "At noon.", "input": [{"speaker": "user", "text": asked}]})
    };
    let lines = |values: &[Value]| values.iter().map(|value| format!("{value}\n")).collect::<String>();
    let tasks = [task("c<::>1", "When does the ferry leave?", &["ferry"]), task("c<::>2", "Is it dark?", &[])];
    fs::write(directory.join("tasks.jsonl"), lines(&tasks)).unwrap();
    let mut passages = vec![json!({"_id": "ferry", "title": "Ferries", "text": "The ferry leaves at noon."})];
    passages.extend((0..12).map(|n| json!({"_id": format!("ferry-{n:02}"), "text": "Another ferry leaves."})));
    fs::write(directory.join("docs.jsonl"), lines(&passages)).unwrap();
    fs::write(directory.join("turns.jsonl"), "").unwrap();
    fs::write(directory.join("qrels.tsv"), "query-id\tcorpus-id\tscore\nc<::>1\tferry\t1\n").unwrap();
    fs::write(
        directory.join("both.ron"),
        r#"Pipeline(
    corpora: { "govt": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "references": References(input: "query", corpus: FromTurn),
        "found": Bm25(input: "query", corpus: FromTurn),
        "both": Append(inputs: ["references", "found"]),
        "b": ExtractiveAnswer(input: "references", passages: 9),
        "c": ExtractiveAnswer(input: "found", passages: 2),
        "out-b": JsonLinesSink(input: "b", path: "b.jsonl"),
        "out-c": JsonLinesSink(input: "c", path: "c.jsonl"),
    },
)"#,
    )
    .unwrap();
}

#[test]
fn subtasks_are_written_in_mtrags_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    subtask_files(path);
    let arguments = ["both.ron", "--qrels", "qrels.tsv", "--hits", "found", "--subtasks", "out"];
    let output = eval(path, &arguments);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("subtask C: out/taskc.jsonl"), "{output:?}");
    let [a, b, c] = ["a", "b", "c"].map(|name| rows(&path.join(format!("out/task{name}.jsonl"))));

    let keys = |row: &Value| row.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&a[0]), "conversation_id task_id Collection input contexts");
    assert_eq!(keys(&b[0]), "conversation_id task_id Collection input contexts predictions");
    assert_eq!(keys(&c[0]), keys(&b[0]));
    assert_eq!((&a[0]["task_id"], &a[1]["task_id"]), (&json!("c<::>1"), &json!("c<::>2")));
    // The name by which the benchmark finds the qrels.
    assert_eq!(a[0]["Collection"], "mt-rag-govt-elser-512-100-20240611");
    let ids = |row: &Value| {
        let contexts = row["contexts"].as_array().unwrap();
        contexts.iter().map(|context| context["document_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Ten of thirteen passages; of those with the same score, the last by id, as trec_eval ranks them.
    let found = ids(&a[0]);
    assert_eq!((found.len(), &*found[0], &*found[1], &*found[9]), (10, "ferry", "ferry-11", "ferry-03"));
    assert!(a[0]["contexts"][0]["score"].as_f64().unwrap() > a[0]["contexts"][1]["score"].as_f64().unwrap());
    assert_eq!((ids(&b[0]), ids(&b[1])), (vec!["ferry".to_owned()], vec![]));
    assert_eq!(
        b[0]["contexts"][0],
        json!({"document_id": "ferry", "title": "Ferries", "text": "The ferry leaves at noon.", "score": 1.0})
    );
    assert_eq!(ids(&c[0]).len(), 2, "the passages of the answer, not all hits");
    assert_eq!(b[0]["predictions"], json!([{"text": "The ferry leaves at noon."}]));
    assert_eq!(b[1]["predictions"], json!([{"text": ""}]));

    // Hits that mix references and retrieved passages are not a retrieval run.
    let output =
        eval(path, &["both.ron", "--qrels", "qrels.tsv", "--hits", "both", "--only-hits", "--subtasks", "none"]);
    let told = text(&output.stderr);
    assert!(output.status.success() && told.contains("subtask A is not written: the scored hits"), "{output:?}");
    assert!(told.contains("subtask C is not written: no answer is generated from retrieved"), "{told}");
    assert_eq!(fs::read_dir(path.join("none")).unwrap().count(), 0);
    // More contexts than the format permits.
    let more =
        ["both.ron", "--qrels", "qrels.tsv", "--hits", "found", "--subtasks", "more", "--set", "nodes.c.passages=11"];
    let output = eval(path, &more);
    assert!(
        text(&output.stderr).contains("subtask C is not written: the answer to `c<::>1` has 11 passages"),
        "{output:?}"
    );
    assert!(path.join("more/taskb.jsonl").exists() && !path.join("more/taskc.jsonl").exists());

    fs::write(path.join("tasks.jsonl"), "{\"_id\": \"q\", \"text\": \"When?\"}\n").unwrap();
    fs::write(path.join("qrels.tsv"), "query-id\tcorpus-id\tscore\nq\tferry\t1\n").unwrap();
    let output = eval(path, &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        text(&output.stderr).contains("`--subtasks` needs a `collection` for each task: `q` has none"),
        "{output:?}"
    );
}

/// The rewriter's class counts before the task's own; a question without either is in neither group.
#[test]
fn figures_are_by_standalone_and_non_standalone_questions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (url, _) = server(|asked| match () {
        () if asked.contains("User: And at dusk?") => r#"{"class": "non-standalone", "reworded version": "ferry"}"#,
        () if asked.contains("User: Where is the ferry?") => r#"{"class": "standalone"}"#,
        () => "no class",
    });
    let task = |id: &str, turn: u32, asked: &str, own: Option<bool>| {
        let said = |speaker: &str, text: &str| json!({"speaker": speaker, "text": text});
        let before = [said("user", "Hello?"), said("agent", "Hello.")];
        let input: Vec<Value> = before.into_iter().filter(|_| turn > 1).chain([said("user", asked)]).collect();
        json!({"task_id": id, "turn": turn, "input": input, "standalone": own, "target": "At noon."})
    };
    let tasks = [
        task("first", 1, "Where is the ferry?", Some(true)),
        task("no", 2, "And at dusk?", None),
        task("yes", 3, "Where is the ferry?", Some(false)),
        task("own", 4, "Which ferry?", Some(true)),
        task("unknown", 5, "Which one?", None),
    ];
    fs::write(path.join("tasks.jsonl"), tasks.map(|task| format!("{task}\n")).concat()).unwrap();
    let judged = ["first", "no", "yes", "own", "unknown"].map(|id| format!("{id}\tferry\t1\n")).concat();
    fs::write(path.join("qrels.tsv"), format!("query-id\tcorpus-id\tscore\n{judged}")).unwrap();
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"ferry\", \"text\": \"The ferry leaves at noon.\"}\n").unwrap();
    fs::write(path.join("turns.jsonl"), "").unwrap();
    let pipeline = r#"Pipeline(
    models: { "llm": OpenAi(url: "URL", model: "m", retries: 0) },
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": Rewrite(input: "turns", model: "llm", form: Json),
        "parts": Decompose(input: "query"),
        "found": Bm25(input: "parts", corpus: "docs"),
        "answer": ExtractiveAnswer(input: "found"),
        "out": JsonLinesSink(input: "answer", path: "out.jsonl"),
    },
)"#;
    fs::write(path.join("rewrite.ron"), pipeline.replace("URL", &url)).unwrap();
    let output = eval(path, &["rewrite.ron", "--qrels", "qrels.tsv", "--output", "out.json"]);
    assert!(output.status.success(), "{output:?}");
    let figures: Value = serde_json::from_slice(&fs::read(path.join("out.json")).unwrap()).unwrap();
    assert_eq!(figures["standalone"], json!({"rewriter": 2, "task": 1, "unknown": 1}));
    let by = &figures["by"]["standalone"];
    assert_eq!((&by["yes"]["queries"], &by["no"]["queries"]), (&json!(2), &json!(1)), "{by:#}");
    // "And at dusk?" finds the ferry only as it is reworded.
    assert_eq!(by["no"]["metrics"]["recall@2"], 1.0);
    let answers = &figures["generation"]["by"]["standalone"];
    assert_eq!((&answers["yes"]["tasks"], &answers["no"]["tasks"]), (&json!(2), &json!(1)), "{answers:#}");
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
