//! A cluster that is served over HTTP, by its first process and by all of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Cluster, LEXICAL, free_address, signal, turnflow, words};
use crate::support::PATIENCE;

#[tokio::test]
async fn a_cluster_is_served_by_its_first_process() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let pipeline = LEXICAL.replace(r#"JsonLines(path: "corpus.jsonl", watch: true)"#, "Documents()");
    std::fs::write(
        directory.join("p.ron"),
        pipeline.replace("JsonLines(path: \"turns.jsonl\", follow: true)", "Stdin()"),
    )
    .unwrap();
    let listen = free_address();
    let url = format!("http://{listen}");
    let _cluster = Cluster::start(directory, &["--processes", "3", "--workers", "1", "--listen", &listen]);
    let client = reqwest::Client::new();
    let begun = Instant::now();
    while !client.get(format!("{url}/readyz")).send().await.is_ok_and(|response| response.status().is_success()) {
        assert!(begun.elapsed() < PATIENCE, "{}", std::fs::read_to_string(directory.join("log")).unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for number in 0..20 {
        let body = json!({ "text": format!("{} number{number}", words(number, 8)) });
        let put = client.put(format!("{url}/v1/documents/d{number}?wait=true")).json(&body).send().await.unwrap();
        assert!(put.status().is_success(), "{}", put.text().await.unwrap());
    }
    // Each document is found when the request that puts it has returned, whichever process has it.
    for number in 0..20 {
        let found = client.get(format!("{url}/v1/search?query=number{number}")).send().await.unwrap();
        let found: Value = found.json().await.unwrap();
        assert_eq!(found["hits"][0]["document"], format!("d{number}"), "{found}");
    }
    let metrics = client.get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.lines().any(|line| line.contains("component=\"process 2\"")), "{metrics}");
}

/// As behind a load balancer.
#[tokio::test]
async fn every_process_of_a_cluster_serves_everything() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let pipeline = LEXICAL.replace(r#"JsonLines(path: "corpus.jsonl", watch: true)"#, "Documents()");
    let pipeline = pipeline.replace("JsonLines(path: \"turns.jsonl\", follow: true)", "Stdin()");
    std::fs::write(directory.join("p.ron"), pipeline).unwrap();
    let listeners: Vec<_> = (0..6).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<String> = listeners.iter().map(|of| of.local_addr().unwrap().to_string()).collect();
    drop(listeners);
    let (hosts, served) = addresses.split_at(3);
    std::fs::write(directory.join("hosts"), hosts.join("\n")).unwrap();
    let log = |process: usize| std::fs::read_to_string(directory.join(format!("log{process}"))).unwrap();
    let start = |process: usize| {
        let (number, state) = (process.to_string(), format!("s{process}"));
        let to = std::fs::File::create(directory.join(format!("log{process}"))).unwrap();
        let mut command = turnflow(directory, &["serve", "p.ron", "--workers", "1", "--hosts", "hosts"]);
        command.args(["--process", &number, "--state", &state, "--listen", &served[process]]);
        Cluster(command.env("TURNFLOW_TOKENS", "web=secret").stderr(to).spawn().unwrap())
    };
    let mut processes = [start(0), start(1), start(2)];
    let client = reqwest::Client::new();
    let url = |process: usize, path: &str| format!("http://{}{path}", served[process]);
    let begun = Instant::now();
    for process in 0..3 {
        while !client.get(url(process, "/readyz")).send().await.is_ok_and(|response| response.status().is_success()) {
            assert!(begun.elapsed() < PATIENCE, "{process}: {}", log(process));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for number in 0..12 {
        let body = json!({ "text": format!("{} number{number}", words(number, 8)) });
        let put = client.put(url(number as usize % 3, &format!("/v1/documents/d{number}?wait=true")));
        let put = put.bearer_auth("secret").json(&body).send().await.unwrap();
        assert!(put.status().is_success(), "{}", put.text().await.unwrap());
    }
    for (number, process) in (0..12).flat_map(|number| (0..3).map(move |process| (number, process))) {
        let question =
            json!({ "messages": [{ "role": "user", "content": format!("number{number}") }], "stream": true });
        let asked = client.post(url(process, "/v1/chat/completions")).bearer_auth("secret").json(&question);
        let answer = asked.send().await.unwrap().text().await.unwrap();
        assert!(answer.contains(&format!("number{number}")) && answer.ends_with("data: [DONE]\n\n"), "{answer}");
    }
    for process in 0..3 {
        let status = |token| client.get(url(process, "/v1/models")).bearer_auth(token).send();
        assert_eq!(status("wrong").await.unwrap().status().as_u16(), 401);
        assert_eq!(status("secret").await.unwrap().status().as_u16(), 200);
        // The metrics are those of the process that is called.
        let metrics = client.get(url(process, "/metrics")).bearer_auth("secret").send().await.unwrap();
        let answers = metrics.text().await.unwrap().contains("route=\"/v1/chat/completions\"");
        assert_eq!(answers, process == 0, "{process}");
    }
    let own = client.get(url(2, "/process/v1/pipelines/lexical/status")).bearer_auth("secret").send().await.unwrap();
    assert!(own.status().is_success(), "{}", own.text().await.unwrap());
    // After a reload, each process describes the new pipeline.
    let changed = std::fs::read_to_string(directory.join("p.ron")).unwrap().replace("top: 5", "top: 4");
    std::fs::write(directory.join("p.ron"), changed).unwrap();
    signal(i32::try_from(processes[0].0.id()).unwrap(), libc::SIGHUP);
    for (process, path) in [(0, "/v1/pipelines"), (1, "/process/v1/pipelines"), (2, "/process/v1/pipelines")] {
        let begun = Instant::now();
        loop {
            let described = client.get(url(process, path)).bearer_auth("secret").send().await.unwrap();
            let described = described.text().await.unwrap();
            if described.contains("top: 4") {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{process}: {described}: {}", log(process));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // A stop of any process ends all, after the running requests.
    signal(i32::try_from(processes[1].0.id()).unwrap(), libc::SIGTERM);
    for (process, Cluster(child)) in processes.iter_mut().enumerate() {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "{process}: {}", log(process));
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(status.success(), "{process}: {status}: {}", log(process));
        assert!(!log(process).contains("panic"), "{}", log(process));
    }
}
