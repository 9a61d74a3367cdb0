//! A cluster that is served over HTTP, by its first process and by all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Cluster, LEXICAL, free_address, pipeline, signal, turnflow, words};
use crate::support::{PATIENCE, model};

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

/// Three processes that are served, each with an address.
pub struct Served {
    pub directory: tempfile::TempDir,
    pub processes: Vec<Cluster>,
    addresses: Vec<String>,
    pub client: reqwest::Client,
    token: &'static str,
}

impl Served {
    async fn start(pipeline: &str) -> Self {
        Self::start_by(pipeline, "secret", |_, _, hosts| (hosts.to_vec(), Vec::new())).await
    }

    /// Starts them with a token. In the directory, `of` says for each process where it finds the processes, and further
    /// arguments.
    pub async fn start_by(
        pipeline: &str,
        token: &'static str,
        of: impl Fn(&Path, usize, &[String]) -> (Vec<String>, Vec<String>),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("p.ron"), pipeline).unwrap();
        let listeners: Vec<_> = (0..6).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut hosts: Vec<String> = listeners.iter().map(|of| of.local_addr().unwrap().to_string()).collect();
        drop(listeners);
        let addresses = hosts.split_off(3);
        std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (rate: 0))").unwrap();
        let start = |process: usize| {
            let (number, state) = (process.to_string(), format!("s{process}"));
            let to = std::fs::File::create(directory.path().join(format!("log{process}"))).unwrap();
            let (seen, further) = of(directory.path(), process, &hosts);
            let file = format!("hosts{process}");
            std::fs::write(directory.path().join(&file), seen.join("\n")).unwrap();
            let mut command = turnflow(directory.path(), &["serve", "p.ron", "--workers", "1", "--hosts", &file]);
            command.args(further).args(["--config", "serve.ron"]).args([
                "--process",
                &number,
                "--state",
                &state,
                "--listen",
                &addresses[process],
            ]);
            Cluster(command.env("TURNFLOW_TOKENS", format!("web={token}")).stderr(to).spawn().unwrap())
        };
        let processes = (0..3).map(start).collect();
        let served = Self { directory, processes, addresses, client: reqwest::Client::new(), token };
        for process in 0..3 {
            served.until(process, "/readyz", |status, _| status == 200).await;
        }
        served
    }

    pub fn log(&self, process: usize) -> String {
        std::fs::read_to_string(self.directory.path().join(format!("log{process}"))).unwrap()
    }

    pub fn url(&self, process: usize, path: &str) -> String {
        format!("http://{}{path}", self.addresses[process])
    }

    /// Waits until a process responds so.
    pub async fn until(&self, process: usize, path: &str, is_so: impl Fn(u16, &str) -> bool) {
        let begun = Instant::now();
        let mut last = String::new();
        loop {
            let request = self.client.get(self.url(process, path)).bearer_auth(self.token);
            if let Ok(response) = request.send().await {
                let status = response.status().as_u16();
                last = response.text().await.unwrap_or_default();
                if is_so(status, &last) {
                    return;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "{process} {path}: {last}: {}", self.log(process));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Puts a document, by way of a process; returns when it is published.
    pub async fn put(&self, process: usize, number: u64, text: &str) {
        let body = json!({ "text": text, "metadata": { "part": number % 5 } });
        let put = self.client.put(self.url(process, &format!("/v1/documents/d{number}?wait=true")));
        let put = put.bearer_auth(self.token).json(&body).send().await.unwrap();
        assert!(put.status().is_success(), "{}", put.text().await.unwrap());
    }

    /// Ends the cluster with a signal to a process, and checks that all end in order.
    pub async fn stop(mut self, process: usize) {
        signal(i32::try_from(self.processes[process].0.id()).unwrap(), libc::SIGTERM);
        let begun = Instant::now();
        for process in 0..3 {
            let status = loop {
                if let Some(status) = self.processes[process].0.try_wait().unwrap() {
                    break status;
                }
                assert!(begun.elapsed() < PATIENCE, "{process}: {}", self.log(process));
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let log = self.log(process);
            assert!(status.success() && !log.contains("panic"), "{process}: {status}: {log}");
        }
    }
}

/// What a turn finds: the passages and their scores, to the last bit.
type Found = Vec<(String, u64)>;

/// Every process answers the turns that it is asked, and all give the same answers to a question at an epoch, while the
/// documents and the pipeline change.
#[tokio::test]
async fn every_process_gives_the_same_answers() {
    let Some(model) = model("minilm-int8") else { return };
    let pipeline = pipeline(&model).replace("JsonLines(path: \"corpus.jsonl\")", "Documents()");
    let pipeline = pipeline.replace("JsonLines(path: \"turns.jsonl\")", "Stdin()").replace(", access: \"groups\"", "");
    let cluster = Served::start(&pipeline).await;
    for number in 0..30 {
        cluster.put(number as usize % 3, number, &words(number * 31, 12)).await;
    }
    // By question and epoch: what each process has found.
    let mut found: BTreeMap<(u64, u64), BTreeMap<usize, Found>> = BTreeMap::new();
    let ask = async |process: usize, question: u64| {
        let record = json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": words(question * 977, 4),
            "part": question % 5 });
        let asked = cluster.client.post(cluster.url(process, "/v1/turns")).bearer_auth("secret").json(&record);
        let answer: Value = asked.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["error"], Value::Null, "{process}: {answer}");
        let hits = answer["hits"].as_array().unwrap().iter();
        let hits = hits.map(|hit| (hit["passage"].to_string(), hit["score"].as_f64().unwrap().to_bits()));
        (question, answer["stamp"]["epoch"].as_u64().unwrap(), process, hits.collect::<Found>())
    };
    for round in 0..40 {
        let (put, number) = (words(round * 7 + 5, 12), round % 30);
        let change = cluster.put(round as usize % 3, number, &put);
        let asked = (0..3).flat_map(|process| (0..4).map(move |question| (process, question)));
        let asked = futures::future::join_all(asked.map(|(process, question)| ask(process, question)));
        for (question, epoch, process, hits) in tokio::join!(change, asked).1 {
            found.entry((question, epoch)).or_default().insert(process, hits);
        }
    }
    let mut of_all = 0;
    for (key, by_process) in &found {
        let (_, first) = by_process.first_key_value().unwrap();
        assert!(by_process.values().all(|hits| hits == first), "{key:?}: {by_process:#?}");
        of_all += usize::from(by_process.len() == 3 && !first.is_empty());
    }
    assert!(of_all > 10, "{of_all}: {:?}", found.keys());
    // A change that is published is found in each process at once.
    for number in 0..9 {
        cluster.put(number as usize % 3, 100 + number, &format!("zeppelin{number}")).await;
        for process in 0..3 {
            let url = cluster.url(process, &format!("/v1/search?query=zeppelin{number}&node=lexical"));
            let hits: Value = cluster.client.get(url).bearer_auth("secret").send().await.unwrap().json().await.unwrap();
            assert_eq!(hits["hits"][0]["document"], format!("d{}", 100 + number), "{process}: {hits}");
        }
    }
    // A reload takes place in all of them while they answer.
    let more = r#""more": Bm25(input: "query", corpus: "docs", tokenizer: Cjk, top: 3), "fused""#;
    let changed =
        pipeline.replace("\"fused\": Rrf", &format!("{more}: Rrf")).replace("\"moved\"]", "\"moved\", \"more\"]");
    assert_ne!(changed, pipeline);
    std::fs::write(cluster.directory.path().join("p.ron"), changed).unwrap();
    signal(i32::try_from(cluster.processes[0].0.id()).unwrap(), libc::SIGHUP);
    let is_new = |process: usize| {
        let path = if process == 0 { "/v1/pipelines" } else { "/process/v1/pipelines" };
        cluster.until(process, path, |_, described| described.contains("\"more\""))
    };
    let asked = async {
        for round in 0..30 {
            let all = (0..3).map(|process| ask(process, round % 4));
            futures::future::join_all(all).await;
        }
    };
    tokio::join!(is_new(0), is_new(1), is_new(2), asked);
    let mut last = Vec::new();
    for process in 0..3 {
        let url = cluster.url(process, "/v1/search?query=harbour+tide+lamp&node=more");
        let hits = cluster.client.get(url).bearer_auth("secret").send().await.unwrap();
        let mut hits = hits.json::<Value>().await.unwrap()["hits"].clone();
        for hit in hits.as_array_mut().unwrap() {
            // Each process links to itself, and opens the document, whichever process has it, without a token.
            let (url, own, text) = (hit["url"].take(), hit["page"].take(), hit["text"].as_str().unwrap());
            assert_eq!(own, url, "the document has no page of its own");
            let page = cluster.client.get(url.as_str().unwrap()).send().await.unwrap();
            assert_eq!(page.status().as_u16(), 200, "{url}");
            assert!(page.text().await.unwrap().contains(text), "{url}");
        }
        last.push(hits);
    }
    assert!(last[0].as_array().is_some_and(|hits| hits.len() == 3), "{last:?}");
    assert!(last[1] == last[0] && last[2] == last[0], "{last:#?}");
    cluster.stop(2).await;
}

/// As behind a load balancer.
#[tokio::test]
async fn every_process_of_a_cluster_serves_everything() {
    let pipeline = LEXICAL.replace(r#"JsonLines(path: "corpus.jsonl", watch: true)"#, "Documents()");
    let pipeline = pipeline.replace("JsonLines(path: \"turns.jsonl\", follow: true)", "Stdin()");
    let cluster = Served::start(&pipeline).await;
    let client = cluster.client.clone();
    let url = |process: usize, path: &str| cluster.url(process, path);
    for number in 0..12 {
        cluster.put(number as usize % 3, number, &format!("{} number{number}", words(number, 8))).await;
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
        // Each process has answered what it was asked; process 0 has the documents.
        let metrics = client.get(url(process, "/metrics")).bearer_auth("secret").send().await.unwrap();
        let metrics = metrics.text().await.unwrap();
        let counted = "route=\"/v1/chat/completions\",status=\"200\"} 12";
        assert!(metrics.contains(counted), "{process}: {metrics}");
        assert_eq!(metrics.contains("route=\"/v1/documents/"), process == 0, "{process}: {metrics}");
    }
    // What is said about an answer through the process that has given it is joined with it, though process 0 keeps it.
    for process in 0..3 {
        let question = json!({ "messages": [{ "role": "user", "content": "number7" }] });
        let asked = client.post(url(process, "/v1/chat/completions")).bearer_auth("secret").json(&question);
        let answer: Value = asked.send().await.unwrap().json().await.unwrap();
        let said = json!({ "turn_id": answer["id"], "helpful": true });
        let told = client.post(url(process, "/v1/feedback")).bearer_auth("secret").json(&said).send().await.unwrap();
        assert_eq!(told.json::<Value>().await.unwrap()["joined"], true, "{process}");
    }
    let kept = std::fs::read_to_string(cluster.directory.path().join("s0/feedback.jsonl")).unwrap();
    assert_eq!(kept.matches("\"question\":\"number7\"").count(), 3, "{kept}");
    let own = client.get(url(2, "/process/v1/pipelines/lexical/status")).bearer_auth("secret").send().await.unwrap();
    assert!(own.status().is_success(), "{}", own.text().await.unwrap());
    // After a reload, each process describes the new pipeline.
    std::fs::write(cluster.directory.path().join("p.ron"), pipeline.replace("top: 5", "top: 4")).unwrap();
    signal(i32::try_from(cluster.processes[0].0.id()).unwrap(), libc::SIGHUP);
    for (process, path) in [(0, "/v1/pipelines"), (1, "/process/v1/pipelines"), (2, "/process/v1/pipelines")] {
        cluster.until(process, path, |_, described| described.contains("top: 4")).await;
    }
    // A stop of any process ends all, after the running requests.
    cluster.stop(1).await;
}

/// Why it exists: a process was stopped, every question waited for it, and `/readyz` said that all was well.
#[tokio::test]
async fn a_stopped_process_is_doubted_and_then_lost() {
    let pipeline = LEXICAL.replace(r#"JsonLines(path: "corpus.jsonl", watch: true)"#, "Documents()");
    let mut cluster =
        Served::start(&pipeline.replace("JsonLines(path: \"turns.jsonl\", follow: true)", "Stdin()")).await;
    cluster.put(0, 1, "The ferry leaves at nine.").await;
    let stopped = i32::try_from(cluster.processes[2].0.id()).unwrap();
    signal(stopped, libc::SIGSTOP);
    for process in 0..2 {
        cluster.until(process, "/readyz", |status, _| status == 503).await;
    }
    for process in 0..2 {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = cluster.processes[process].0.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "{process}: {}", cluster.log(process));
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let log = cluster.log(process);
        assert!(status.code() == Some(4) && log.contains("lost process"), "{process}: {status}: {log}");
    }
    signal(stopped, libc::SIGCONT);
    let begun = Instant::now();
    while cluster.processes[2].0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "{}", cluster.log(2));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
