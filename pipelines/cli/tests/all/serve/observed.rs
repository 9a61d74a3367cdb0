//! Metrics: those of a server, those of `run --metrics`, and those that the dashboard shows.

use super::*;
use crate::support::root;

/// The names of the metrics in a text of Prometheus.
fn names(metrics: &str) -> Vec<&str> {
    metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

#[tokio::test]
async fn the_dashboard_shows_metrics_that_exist() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    server.chat("When does the ferry leave?").await;
    let metrics = server.ok("GET", "/metrics", None).await;
    let metrics = metrics.as_str().unwrap();
    let known = names(metrics);
    let dashboard = std::fs::read_to_string(root().join("examples/grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut expressions = Vec::new();
    collect(&dashboard, &mut expressions);
    assert!(expressions.len() >= 10, "{expressions:?}");
    for expression in expressions {
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("turnflow_")) {
            let name = ["_bucket", "_count", "_sum", "_total"].into_iter().find_map(|end| word.strip_suffix(end));
            let name = name.unwrap_or(word);
            assert!(known.contains(&name), "`{word}` is in the dashboard, but there is only {known:?}");
        }
    }
    // As the labels that it filters and sums by.
    for label in ["pipeline=\"demo\"", "component=\"found\"", "status=\"200\"", "le=\""] {
        assert!(metrics.contains(label), "{label}: {metrics}");
    }
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
        assert!(names(metrics.as_str().unwrap()).contains(&name), "{name}: {metrics}");
    }
    let status = server.ok("GET", "/v1/pipelines/demo/status", None).await;
    assert!(status.to_string().contains("docs"), "{status}");
    // It only shows: nothing can be asked, and no page of another site may look.
    assert_eq!(server.send("POST", "/v1/chat/completions", Some(json!({}))).await.0, 404);
    let foreign = server.client.get(format!("{}/metrics", server.url)).header("Host", "evil.example");
    assert_eq!(foreign.send().await.unwrap().status().as_u16(), 403);
}
