//! Metrics: those of a server, those of `run --metrics`, and those that the dashboard and the alerting rules name.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::support::root;

/// A pipeline with something of each kind that is counted.
const COUNTED: &str = r#"Pipeline(
    name: "demo",
    mode: Live,
    models: {
        "llm": OpenAi(url: "http://127.0.0.1:1/v1", model: "m", retries: 0),
        "gone": Onnx(path: "gone.onnx", tokenizer: "gone.json", optional: true),
    },
    corpora: { "docs": Corpus(source: Documents(), chunk: Sentences(size: 2, overlap: 0)) },
    nodes: {
        "log": JsonLines(path: "turns.jsonl", follow: true),
        "far": Redis(url: "redis://127.0.0.1:1", stream: "turns"),
        "query": Rewrite(input: "log", model: "llm"),
        "found": Bm25(input: "query", corpus: "docs", top: 5),
        "near": Dense(input: "query", corpus: "docs", model: "gone"),
        "hits": Fallback(inputs: ["near", "found"]),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "out.jsonl"),
        "alerts": Alerts(input: "answer", path: "alerts.jsonl", rules: {
            "fast": (of: Latency(0.5), fire: Below(600), at_least: 1),
        }),
        "review": Review(input: "answer", path: "review.jsonl", rules: { "sample": (of: Any) }),
        "also": UserTurns(input: "far"),
        "kept": JsonLinesSink(input: "also", path: "kept.jsonl"),
    },
)"#;

/// The type of each family in a text of Prometheus, and the samples by their names.
struct Exposed<'t> {
    types: BTreeMap<&'t str, &'t str>,
    samples: BTreeMap<&'t str, Vec<(&'t str, f64)>>,
}

/// Reads a text in one of the two formats, and checks that it keeps to the rules.
fn exposed(text: &str, is_open: bool) -> Exposed<'_> {
    let (mut types, mut samples) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
    let (mut family, mut kind) = ("", "");
    let mut seen = BTreeSet::new();
    assert!(text.ends_with('\n') && !text.contains('\r'));
    let body = match is_open {
        true => text.strip_suffix("# EOF\n").expect("the last line"),
        false => text,
    };
    for line in body.lines() {
        assert!(!line.is_empty() && !line.starts_with("# EOF"), "{text}");
        if let Some(rest) = line.strip_prefix("# ") {
            let (what, rest) = rest.split_once(' ').unwrap();
            let (name, rest) = rest.split_once(' ').unwrap();
            assert!(what == "HELP" || what == "TYPE" || is_open && what == "UNIT", "{line}");
            if name != family {
                // All lines of a family are together.
                assert!(seen.insert(name), "{name} is there twice");
                (family, kind) = (name, "");
            }
            if what == "TYPE" {
                assert!(matches!(rest, "counter" | "gauge" | "histogram"), "{line}");
                assert!(types.insert(name, rest).is_none(), "{line}");
                kind = rest;
            }
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let (name, rest) = line.split_at(end);
        let (labels, value) = rest.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(labels.is_empty() || labels.starts_with('{') && labels.ends_with('}'), "{line}");
        let ends: &[&str] = match (kind, is_open) {
            ("counter", true) => &["_total"],
            ("histogram", _) => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        assert!(ends.iter().any(|end| name.strip_suffix(end) == Some(family)), "{line} in {family}, a {kind}");
        assert!(kind != "counter" || value >= 0.0 && name.ends_with("_total"), "{line}");
        samples.entry(name).or_default().push((labels, value));
    }
    for (name, all) in &samples {
        let unique: BTreeSet<&str> = all.iter().map(|(labels, _)| *labels).collect();
        assert_eq!(unique.len(), all.len(), "{name} has two samples with the same labels");
    }
    for (name, _) in types.iter().filter(|(_, kind)| **kind == "histogram") {
        let buckets = &samples[format!("{name}_bucket").as_str()];
        let all = buckets.iter().filter(|(labels, _)| labels.contains("le=\"+Inf\"")).map(|(_, value)| value);
        let counts = samples[format!("{name}_count").as_str()].iter().map(|(_, value)| value);
        assert_eq!(all.sum::<f64>(), counts.sum::<f64>(), "{name}");
    }
    Exposed { types, samples }
}

impl Server {
    async fn metrics(&self, accept: &str) -> (String, String) {
        let request = self.client.get(format!("{}/metrics", self.url)).header("Accept", accept);
        let response = request.send().await.unwrap();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        (kind, response.text().await.unwrap())
    }
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_name_metrics_that_exist() {
    let directory = tempfile::tempdir().unwrap();
    let record = json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?"});
    std::fs::write(directory.path().join("turns.jsonl"), format!("no record\n{record}\n")).unwrap();
    std::fs::create_dir(directory.path().join("copy")).unwrap();
    let backup = format!("file://{}/copy", directory.path().display());
    let server = Server::start(directory.path(), COUNTED, &["--sources", "--backup", &backup], &[]);
    server.ok("PUT", "/v1/documents/empty.md?wait=true", Some(json!({"text": " "}))).await;
    server.fill().await;
    server.chat("When does the ferry leave?").await;
    let answered = || std::fs::read_to_string(directory.path().join("out.jsonl")).is_ok_and(|text| text.contains('\n'));
    until(async || answered()).await;
    let fires = || std::fs::read_to_string(directory.path().join("alerts.jsonl")).is_ok_and(|text| text.contains('\n'));
    until(async || fires()).await;
    let (kind, open) = server.metrics("application/openmetrics-text; version=1.0.0").await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    exposed(&open, true);
    let (kind, text) = server.metrics("*/*").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    let Exposed { types, samples } = exposed(&text, false);
    let read = |name: &str| std::fs::read_to_string(root().join("examples").join(name)).unwrap();
    let mut expressions = Vec::new();
    collect(&serde_json::from_str(&read("grafana.json")).unwrap(), &mut expressions);
    assert!(expressions.len() >= 20, "{expressions:?}");
    let rules = read("prometheus-alerts.yml");
    let rules = rules.lines().filter_map(|line| line.trim_start().strip_prefix("expr: "));
    expressions.extend(rules.map(str::to_owned));
    assert!(expressions.len() >= 40, "{expressions:?}");
    for expression in &expressions {
        for word in words(expression) {
            assert!(samples.contains_key(word), "`{word}` is in {expression}, but there is only {types:?}");
        }
    }
    // The handbook names each of them, and no other.
    let page = read("handbook/monitoring.md");
    let named: BTreeSet<&str> = words(&page).collect();
    // The answer cache, feedback and mappings are not in this pipeline.
    let absent = ["turnflow_feedback_total"];
    for word in named.iter().filter(|word| !absent.contains(word)) {
        assert!(types.contains_key(word), "`{word}` is in the handbook, but there is only {types:?}");
    }
    let unnamed = types.keys().filter(|name| !named.contains(*name)).collect::<Vec<_>>();
    assert!(unnamed.is_empty(), "the handbook says nothing about {unnamed:?}");
    let value = |name: &str, labels: &str| {
        let found = samples[name].iter().find(|(of, _)| of.contains(labels));
        found.unwrap_or_else(|| panic!("{name}{labels}: {text}")).1
    };
    for (name, labels, expected) in [
        ("turnflow_documents", "component=\"docs\"", 2.0),
        ("turnflow_documents_read", "component=\"docs\"", 3.0),
        ("turnflow_documents_empty", "component=\"docs\"", 1.0),
        ("turnflow_dead_letters_total", "component=\"log\"", 1.0),
        ("turnflow_dead_letters_total", "component=\"docs\"", 0.0),
        ("turnflow_source_waiting", "component=\"log\"", 0.0),
        ("turnflow_source_lag_seconds", "component=\"log\"", 0.0),
        ("turnflow_source_connected", "component=\"far\"", 0.0),
        ("turnflow_sink_failing", "component=\"out\"", 0.0),
        ("turnflow_alert_firing", "component=\"alerts\",rule=\"fast\"", 1.0),
        ("turnflow_alert_pending", "rule=\"fast\"", 0.0),
        ("turnflow_model_lacking", "component=\"gone\"", 1.0),
        ("turnflow_prompt_tokens_total", "component=\"llm\"", 0.0),
        ("turnflow_reloads_total", "outcome=\"failed\"", 0.0),
    ] {
        assert_eq!(value(name, labels), expected, "{name}{labels}");
    }
    // As the labels that they filter and sum by.
    for label in ["pipeline=\"demo\"", "component=\"found\"", "status=\"200\"", "le=\""] {
        assert!(text.contains(label), "{label}: {text}");
    }
    // A reload that fails is counted.
    std::fs::write(directory.path().join("pipeline.ron"), "Pipeline(").unwrap();
    server.signal(libc::SIGHUP);
    let failed = "turnflow_reloads_total{pipeline=\"demo\",outcome=\"failed\"} 1";
    until(async || server.metrics("*/*").await.1.lines().any(|line| line == failed)).await;
}

/// The names of metrics in a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.len() > "turnflow_".len() && word.starts_with("turnflow_"))
}

/// The queries of a dashboard.
fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let own = ["expr", "query"].iter().filter_map(|name| fields.get(*name)?.as_str());
            into.extend(own.map(str::to_owned));
            fields.values().for_each(|value| collect(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

#[tokio::test]
async fn a_run_shows_its_metrics() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("pipeline.ron"),
        PIPELINE.replace("Documents()", "JsonLines(path: \"d.jsonl\")"),
    )
    .unwrap();
    std::fs::write(directory.path().join("d.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at nine.\"}\n")
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    command.current_dir(directory.path()).args(["run", "pipeline.ron", "--state", "state", "--metrics", "127.0.0.1:0"]);
    // The turns come from its input, which stays open.
    let child =
        command.env("TURNFLOW_LOG", "info").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| {
        let (_, rest) = line.split_once("metrics")?;
        let (_, rest) = rest.split_once("http://")?;
        Some(rest.chars().take_while(|letter| letter.is_ascii_digit() || ".:".contains(*letter)).collect::<String>())
    });
    std::thread::spawn(move || lines.for_each(|line| println!("run: {line}")));
    let url = format!("http://{}", address.expect("an address"));
    let server = Server { child, url, client: reqwest::Client::new(), directory: directory.path().to_owned() };
    until(async || server.send("GET", "/readyz", None).await.0 == 200).await;
    let metrics = server.ok("GET", "/metrics", None).await;
    for name in ["turnflow_epoch", "turnflow_turns_running", "turnflow_turns_waiting"] {
        assert!(exposed(metrics.as_str().unwrap(), false).types.contains_key(name), "{name}: {metrics}");
    }
    let status = server.ok("GET", "/v1/pipelines/demo/status", None).await;
    assert!(status.to_string().contains("docs"), "{status}");
    // It only shows: nothing can be asked, and no page of another site may look.
    assert_eq!(server.send("POST", "/v1/chat/completions", Some(json!({}))).await.0, 404);
    let foreign = server.client.get(format!("{}/metrics", server.url)).header("Host", "evil.example");
    assert_eq!(foreign.send().await.unwrap().status().as_u16(), 403);
}
