//! The models of all processes of a cluster serve the turns.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::cluster::{Cluster, free_address, turnflow};
use crate::support::{PATIENCE, model, root};

const QUESTIONS: [&str; 4] = [
    "What is the default of k1?",
    "What does b control?",
    "Which passages does the ranking prefer?",
    "What is an inverted index?",
];

async fn wait_until_ready(url: &str, log: &Path) {
    let (client, begun) = (reqwest::Client::new(), Instant::now());
    while !client.get(format!("{url}/readyz")).send().await.is_ok_and(|response| response.status().is_success()) {
        assert!(begun.elapsed() < PATIENCE, "{}", std::fs::read_to_string(log).unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Asks all questions at once; returns the text of each answer, and the number of its pieces.
async fn ask_all(url: &str) -> Vec<(String, usize)> {
    let asked = QUESTIONS.map(|question| async move {
        let body = json!({"messages": [{"role": "user", "content": question}], "stream": true});
        let sent = reqwest::Client::new().post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
        let told = sent.text().await.unwrap();
        let events = told.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let pieces = events.filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()));
        let pieces: Vec<String> = pieces.filter(|piece| !piece.is_empty()).collect();
        assert!(!pieces.is_empty(), "{told}");
        (pieces.concat(), pieces.len())
    });
    join_all(asked).await
}

#[tokio::test]
async fn text_from_another_process_is_streamed_and_is_that_of_one_process() {
    if model("minilm-int8").is_none() || model("smollm2").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let pipeline = root().join("pipelines/generate.ron");
    // A check that may replace the text would hold it back.
    let flag = r#"nodes: { "checked": SelfCheck(input: "answer", on_failure: Flag) }"#;
    let text = format!("Pipeline(include: {pipeline:?}, name: \"shared\", {flag})");
    std::fs::write(directory.join("p.ron"), text).unwrap();
    let address = free_address();
    let url = format!("http://{address}");
    let alone = {
        let log = std::fs::File::create(directory.join("alone.log")).unwrap();
        let arguments = ["serve", "p.ron", "--listen", &address, "--state", "alone"];
        let _alone = Cluster(turnflow(directory, &arguments).stderr(log).spawn().unwrap());
        wait_until_ready(&url, &directory.join("alone.log")).await;
        ask_all(&url).await
    };
    let _cluster = Cluster::start(directory, &["--processes", "2", "--workers", "1", "--listen", &address]);
    wait_until_ready(&url, &directory.join("log")).await;
    let told = ask_all(&url).await;
    for ((text, pieces), (expected, _)) in told.iter().zip(&alone) {
        assert_eq!(text, expected);
        // The first sentence comes as a whole, because it may say that there is no answer.
        let is_one_sentence = !text.trim_end_matches(['.', '!', '?']).contains(['.', '!', '?']);
        assert!(*pieces > 1 || is_one_sentence, "{text:?} came in {pieces} piece");
    }
    assert!(told.iter().any(|(_, pieces)| *pieces > 1), "{told:?}");
    // One process generates some of the texts, and the other one the others.
    let metrics = reqwest::get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let count =
        |line: &&str| line.starts_with("turnflow_node_seconds_count") && line.contains("\"models of process 1\"");
    let line = metrics.lines().find(count).unwrap_or_else(|| panic!("{metrics}"));
    let calls: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(calls > 0, "{line}");
}
