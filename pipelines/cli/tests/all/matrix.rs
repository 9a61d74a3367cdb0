//! `turnflow eval` with a matrix: its table, what is run again and what is not, rows that fail, and mistakes. The
//! shipped tables of the papers check.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command_line::{Ended, run};
use crate::support::{root, until};

/// Two kinds of words: stemming finds more.
const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "none.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, top: 3),
        "answer": ExtractiveAnswer(input: "found", passages: 1),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

const ROWS: &str = r#"
        Row(name: "plain", file: "pipe.ron", hits: "found", paper: {"R@1": 24.5}, note: "a <b> | c"),
        Row(name: "stemmed", file: "pipe.ron", hits: "found", set: {"nodes.found.tokenizer": English}),
        (name: "published", paper: {"R@1": 80}, note: "no file: it is not described"),"#;

fn matrix(rows: &str) -> String {
    format!(
        r#"Matrix(
    title: "Words & <stems>",
    tasks: "tasks.jsonl",
    qrels: "qrels.tsv",
    corpora: {{"docs": "docs.jsonl"}},
    baseline: "plain",
    columns: [
        Column(metric: "recall@1", title: "R@1"),
        Column(metric: "recall@1", title: "R@1 later", by: ("turn", "later")),
        Column(metric: "rouge_l"),
    ],
    rows: [{rows}
    ],
)"#
    )
}

/// A directory with the pipeline, the matrix, and in `data` eight tasks of which one shares a word with its passage.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("data")).unwrap();
    write("pipe.ron", PIPELINE);
    write("matrix.ron", &matrix(ROWS));
    write("turns.jsonl", "");
    write("none.jsonl", "");
    let things = ["lamp", "boat", "bell", "door", "rope", "sail", "hook", "mast"];
    let doc = |thing: &&str| format!("{}\n", json!({"_id": thing, "text": format!("the {thing} hangs here")}));
    write("data/docs.jsonl", &things.iter().map(doc).collect::<String>());
    let task = |(at, thing): (usize, &&str)| {
        let asked = if at == 0 { (*thing).to_owned() } else { format!("{thing}s") };
        let task = json!({"task_id": thing, "turn": 1 + at % 2, "target": format!("the {thing} hangs here"),
            "answerability": "ANSWERABLE", "input": [{"speaker": "user", "text": asked}]});
        format!("{task}\n")
    };
    write("data/tasks.jsonl", &things.iter().enumerate().map(task).collect::<String>());
    let qrels: String = things.iter().map(|thing| format!("{thing}\t{thing}\t1\n")).collect();
    write("data/qrels.tsv", &format!("query-id\tcorpus-id\tscore\n{qrels}"));
    directory
}

const EVAL: [&str; 6] = ["eval", "matrix.ron", "--data", "data", "--results", "results"];

fn eval(directory: &Path, more: &[&str]) -> Ended {
    run(directory, &[&EVAL, more].concat())
}

/// The stored results of rows: name and inode, which differs if a result was written again.
fn stored(directory: &Path) -> Vec<(String, u64)> {
    let files = fs::read_dir(directory.join("results/rows")).unwrap().map(|entry| entry.unwrap());
    let mut found: Vec<_> =
        files.map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().ino())).collect();
    found.sort();
    found
}

fn results(directory: &Path) -> Value {
    serde_json::from_slice(&fs::read(directory.join("results/results.json")).unwrap()).unwrap()
}

#[test]
fn a_table_compares_the_rows() {
    let directory = directory();
    let path = directory.path();
    let ended = eval(path, &[]).good();
    assert_eq!(ended.err, "", "no progress in a pipe");
    let line = |start: &str| ended.out.lines().find(|line| line.starts_with(start)).map(str::to_owned).unwrap();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&line("plain"))[1..4], ["12.5", "0.0", "12.5"]);
    assert_eq!(words(&line("stemmed"))[1..4], ["100.0", "100.0", "100.0"]);
    assert!(line("  to plain").contains("+87.5 (+62.5 to +100.0)"), "{}", ended.out);
    assert!(ended.out.contains("  paper") && ended.out.contains("  no pipeline file"), "{}", ended.out);

    let json = results(path);
    let cell = &json["rows"][1]["cells"][0];
    assert_eq!((cell["value"].as_f64(), cell["tasks"].as_u64()), (Some(100.0), Some(8)));
    // Seven of eight tasks are better: 2 of 128 arrangements are as great.
    let p = cell["difference"]["p"].as_f64().unwrap();
    assert!((p - 2.0 / 128.0).abs() < 0.004 && cell["difference"]["better"] == 7, "{cell}");
    assert_eq!(json["rows"][1]["cells"][1]["tasks"], 4);
    assert_eq!(json["rows"][1]["set"], json!(["nodes.found.tokenizer = English"]));
    let provenance = &json["rows"][0]["outcome"]["done"]["provenance"];
    assert!(provenance["corpora"]["docs"].is_string() && provenance["hits"] == "found", "{provenance}");
    assert_eq!(json["rows"][2]["outcome"], "no_file");

    let table = fs::read_to_string(path.join("results/table.md")).unwrap();
    assert!(table.starts_with("## Words &amp; &lt;stems>\n"), "{table}");
    let interval = &json["rows"][0]["cells"][0]["interval"];
    let [low, high] = ["low", "high"].map(|end| interval[end].as_f64().unwrap());
    assert!(table.contains(&format!("| plain | 12.5 ({low:.1} to {high:.1}) | 24.5 | -12.0 | 0.0 (")), "{table}");
    assert!(table.contains("| `pipe.ron` | – | a &lt;b> \\| c |"), "{table}");
    assert!(table.contains("Differences to plain:") && table.contains("**+87.5**"), "{table}");
    let page = fs::read_to_string(path.join("results/index.html")).unwrap();
    assert!(page.contains("Words &amp; &lt;stems&gt;") && page.contains("a &lt;b&gt; | c"), "{page}");
    assert!(page.ends_with("</html>\n") && !page.contains("<script") && !page.contains("http"), "{page}");
}

#[test]
fn only_what_has_changed_is_run_again() {
    let directory = directory();
    let path = directory.path();
    let first = eval(path, &[]).good();
    let before = stored(path);
    assert_eq!(before.len(), 2);
    // All figures are kept, the seconds too.
    assert_eq!(eval(path, &[]).good().out, first.out);
    assert_eq!(stored(path), before);

    let again = eval(path, &["--rows", "stemmed", "--again"]).good();
    let after = stored(path);
    assert!(after[0] == before[0] && after[1] != before[1], "{after:?}");
    assert!(again.out.contains("plain") && again.out.contains("12.5"), "{again:?}");

    fs::write(path.join("matrix.ron"), matrix(&ROWS.replace("English", "EnglishUnstemmed"))).unwrap();
    let changed = eval(path, &["--rows", "plain"]).good();
    assert!(changed.out.contains("stemmed") && changed.out.contains("  not run"), "{changed:?}");
    assert_eq!(stored(path), after);
    let changed = eval(path, &[]).good();
    assert!(changed.out.lines().any(|line| line.starts_with("stemmed") && line.contains("12.5")), "{changed:?}");
    let last = stored(path);
    assert!(last[0] == after[0] && last[1] != after[1], "{last:?}");

    // Other documents change all rows, and a sample is other tasks.
    let mut docs = fs::read_to_string(path.join("data/docs.jsonl")).unwrap();
    docs += "{\"_id\": \"more\", \"text\": \"lamps\"}\n";
    fs::write(path.join("data/docs.jsonl"), docs).unwrap();
    eval(path, &[]).good();
    let others = stored(path);
    assert!(others[0] != last[0] && others[1] != last[1], "{others:?}");
    let sample = eval(path, &["--sample", "3"]).good();
    assert!(stored(path)[0] != others[0] && results(path)["rows"][0]["cells"][0]["tasks"] == 3, "{sample:?}");
}

/// A process that is killed after its first row: the next one runs the others.
#[test]
fn a_killed_run_continues_with_the_next_row() {
    let directory = directory();
    let path = directory.path();
    let more: String = (0..20)
        .map(|k1| format!("\n        Row(name: \"k1 {k1}\", file: \"pipe.ron\", hits: \"found\", set: {{\"nodes.found.k1\": {k1}.5}}),"))
        .collect();
    fs::write(path.join("matrix.ron"), matrix(&format!("{ROWS}{more}"))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    let mut child = command.args(EVAL).current_dir(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the first row", || path.join("results/rows/plain.json").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let complete = |name: &String| name.ends_with(".json");
    let before: Vec<_> = stored(path).into_iter().filter(|(name, _)| complete(name)).collect();
    assert!(!before.is_empty());
    let ended = eval(path, &[]).good();
    assert!(ended.out.contains("k1 19"), "{ended:?}");
    let after: Vec<_> = stored(path).into_iter().filter(|(name, _)| complete(name)).collect();
    assert_eq!(after.len(), 22);
    assert!(before.iter().all(|row| after.contains(row)), "{before:?} {after:?}");
}

#[test]
fn a_row_that_fails_does_not_stop_the_others() {
    let directory = directory();
    let path = directory.path();
    let dense = PIPELINE
        .replace("nodes: {", "models: {\"m\": Onnx(path: \"gone.onnx\", tokenizer: \"gone.json\")},\n    nodes: {");
    fs::write(path.join("dense.ron"), dense).unwrap();
    let broken = PIPELINE.replace("top: 3", "top: 3, modle: 1");
    fs::write(path.join("broken.ron"), broken).unwrap();
    let rows = r#"
        Row(name: "gone", file: "pip.ron"),
        Row(name: "no model", file: "dense.ron"),
        Row(name: "broken", file: "broken.ron"),
        Row(name: "typo", file: "pipe.ron", set: {"nodes.fond.top": 2}),
        Row(name: "no hits", file: "pipe.ron", hits: "answer"),"#;
    fs::write(path.join("matrix.ron"), matrix(&format!("{ROWS}{rows}"))).unwrap();
    let ended = eval(path, &[]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    for line in [
        "failed: there is no file `pip.ron`",
        "gone.onnx",
        "unknown field `modle`",
        "failed: Row \"typo\": its pipeline has no `nodes.fond.top`",
        "failed: Row \"no hits\": no node `answer` of its pipeline outputs Hits",
    ] {
        assert!(ended.out.contains(line), "{line}: {ended:?}");
    }
    for mark in ["--> matrix.ron:", "did you mean `found`?", "did you mean `pipe.ron`?", "error: 5 rows failed"] {
        assert!(ended.err.contains(mark), "{mark}: {ended:?}");
    }
    assert!(ended.out.lines().any(|line| line.starts_with("stemmed") && line.contains("100.0")), "{ended:?}");
    let table = fs::read_to_string(path.join("results/table.md")).unwrap();
    assert!(table.contains("failed: Row \"typo\""), "{table}");
    // Rows that are not chosen do not count.
    eval(path, &["--rows", "plain,stemmed"]).good();
    // `check` finds the same mistakes, without the data.
    let check = run(path, &["check", "matrix.ron"]);
    assert_eq!(check.code, Some(1), "{check:?}");
    assert!(check.out.contains("matrix.ron:") && check.out.contains("unknown field `modle`"), "{check:?}");
}

#[test]
fn settings_are_crossed_with_the_rows() {
    let directory = directory();
    let path = directory.path();
    let rows = r#"
        Row(name: "plain", file: "pipe.ron", hits: "found"),
        Row(name: "published", paper: {"R@1": 80.0}),"#;
    let settings = r#"settings: {
        "tokens": [(name: "as written", set: {"nodes.found.tokenizer": Whitespace}), Variant(name: "stems", set: {"nodes.found.tokenizer": English})],
        "top": [(name: "1", set: {"nodes.found.top": 1}), (name: "3", set: {"nodes.found.top": 3})],
    },"#;
    let text = matrix(rows).replace(
        "    baseline: \"plain\",",
        &format!("    baseline: \"plain / tokens as written / top 1\",\n    {settings}"),
    );
    fs::write(path.join("matrix.ron"), &text).unwrap();
    let ended = eval(path, &["--rows", "plain"]).good();
    let names: Vec<String> =
        results(path)["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
    let both =
        ["tokens as written / top 1", "tokens as written / top 3", "tokens stems / top 1", "tokens stems / top 3"];
    assert_eq!(names[..4], both.map(|name| format!("plain / {name}")));
    assert_eq!(names[4], "published");
    assert!(ended.out.lines().any(|line| line.starts_with("plain / tokens stems / top 1") && line.contains("100.0")));
    assert_eq!(run(path, &["check", "matrix.ron"]).good().out, "matrix.ron: no errors\n");
}

#[test]
fn mistakes_in_a_matrix_have_positions() {
    let directory = directory();
    let path = directory.path();
    let good = matrix(ROWS);
    for (old, new, words) in [
        (
            "metric: \"rouge_l\"",
            "metric: \"rouge_i\"",
            vec!["matrix.ron:10:24", "no metric `rouge_i`", "did you mean `rouge_l`?"],
        ),
        ("(\"turn\", \"later\")", "(\"turns\", \"later\")", vec!["not grouped by `turns`", "did you mean `turn`?"]),
        ("title: \"R@1 later\", ", "title: \"R@1\", ", vec!["two columns have the title `R@1`"]),
        ("baseline: \"plain\"", "baseline: \"plan\"", vec!["matrix.ron:6:15", "did you mean `plain`?"]),
        (
            "paper: {\"R@1\": 24.5}",
            "paper: {\"R@2\": 24.5}",
            vec!["`paper` has a figure for `R@2`", "did you mean `R@1`?"],
        ),
        ("hits: \"found\", paper", "hit: \"found\", paper", vec!["unknown field `hit`", "did you mean `hits`?"]),
        ("name: \"stemmed\"", "name: \"plain\"", vec!["two rows have the name \"plain\""]),
        ("name: \"published\", ", "", vec!["missing field `name`"]),
        ("set: {\"nodes.found.tokenizer\": English}", "set: [1]", vec!["`set` must be a map"]),
        ("tasks: \"tasks.jsonl\",", "", vec!["missing field `tasks`"]),
        ("    rows: [", "    rows: [Column(metric: \"mrr\"),", vec!["expected `Row(…)`"]),
        ("corpora: {\"docs\"", "corpora: {\"dosc\"", vec!["its pipeline has no `", "did you mean `docs`?"]),
    ] {
        assert!(good.contains(old), "{old}");
        fs::write(path.join("matrix.ron"), good.replace(old, new)).unwrap();
        let check = run(path, &["check", "matrix.ron"]);
        assert_eq!((check.code, check.err.as_str()), (Some(1), ""), "{check:?}");
        assert!(words.iter().all(|word| check.out.contains(word)), "{words:?}: {check:?}");
        let json = run(path, &["check", "--json", "matrix.ron"]);
        let told: Value = serde_json::from_str(&json.out).unwrap();
        assert!(told[0]["place"]["line"].is_u64(), "{json:?}");
        // A mistake in the matrix itself stops the run; one in a row's pipeline is the row's.
        let eval = eval(path, &[]);
        let code = if new.contains("dosc") { 3 } else { 1 };
        assert!(eval.code == Some(code) && words.iter().all(|word| eval.err.contains(word)), "{words:?}: {eval:?}");
    }
}

#[test]
fn the_arguments_of_a_matrix_and_of_a_pipeline_are_told_apart() {
    let directory = directory();
    let path = directory.path();
    for (arguments, words) in [
        (vec!["eval", "matrix.ron"], "--results"),
        (
            vec!["eval", "matrix.ron", "--results", "results", "--qrels", "data/qrels.tsv"],
            "`--qrels` does not go with a matrix",
        ),
        (vec!["eval", "pipe.ron", "--tasks", "data/tasks.jsonl", "--data", "data"], "`--data` is for a matrix"),
        (vec!["eval", "pipe.ron"], "--tasks <TASKS>"),
    ] {
        let ended = run(path, &arguments);
        assert!(ended.code == Some(2) && ended.err.contains(words) && ended.err.contains("Usage: "), "{ended:?}");
    }
    run(path, &["eval", "matrix.ron", "--results", "results"]).one_line(1, &["`tasks.jsonl`", "`--data DIR`"]);
    eval(path, &["--rows", "plan"]).one_line(1, &["no row \"plan\"", "did you mean \"plain\"?"]);
    assert!(!path.join("results").exists());
}

/// The tables of the papers: every file checks, and each row names a pipeline or says why there is none.
#[test]
fn the_shipped_tables_check() {
    let tables = fs::read_dir(root().join("pipelines/tables")).unwrap().map(|entry| entry.unwrap().path());
    let mut tables: Vec<_> = tables.filter(|path| path.extension().is_some_and(|end| end == "ron")).collect();
    tables.sort();
    assert!(tables.len() >= 15, "{tables:?}");
    let catalog = turnflow::catalog();
    for table in &tables {
        let found = turnflow_eval::matrix::read(table, &catalog);
        let matrix = found.matrix.unwrap_or_else(|| panic!("{}: {:#?}", table.display(), found.diagnostics));
        for row in &matrix.rows {
            let what = format!("{}: {}", table.display(), row.name);
            assert!(!row.config.paper.is_empty() || !row.config.note.is_empty(), "{what}");
        }
    }
    let names: Vec<&str> = tables.iter().map(|table| table.to_str().unwrap()).collect();
    let check = run(&root(), &[&["check"], &names[..]].concat()).good();
    assert_eq!(check.out.matches(": no errors\n").count(), tables.len(), "{check:?}");
}
