//! Durable turns: `Turns()` and `Answers()` behind `POST /v1/turns?durable=true` and `GET /v1/answers`.

use std::collections::BTreeMap;

use super::*;

/// A pipeline whose turns, documents and answers come and go over HTTP.
pub fn pipeline(mode: &str) -> String {
    let nodes = r#"        "final": IdkNormalize(input: "answer"),
        "out": Answers(input: "final"),
"#;
    let pipeline = PIPELINE.replace("Stdin()", "Turns()");
    let pipeline = pipeline.replace("        \"final\": IdkNormalize(input: \"answer\"),\n", nodes);
    pipeline.replace("name: \"demo\",", &format!("name: \"demo\",\n    mode: {mode},"))
}

fn turn(conversation: &str, turn: u32, text: &str) -> Value {
    json!({ "conversation_id": conversation, "turn": turn, "speaker": "user", "text": text })
}

/// The events of a stream, as `id event` and data.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    async fn open(server: &Server, path: &str, seen: Option<u64>) -> Self {
        let request = server.client.get(format!("{}{path}", server.url)).header("Accept", "text/event-stream");
        let request = seen.into_iter().fold(request, |request, seen| request.header("Last-Event-ID", seen));
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        Self { response, text: String::new() }
    }

    /// The next event's id, name and data.
    async fn next(&mut self) -> (u64, String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let (id, name, data) = (field("id: "), field("event: "), field("data: "));
                self.text = rest.to_owned();
                if let (Some(id), Some(name), Some(data)) = (id, name, data) {
                    return (id.parse().unwrap(), name, serde_json::from_str(&data).unwrap());
                }
                continue;
            }
            let bytes = tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("an event").unwrap();
            self.text += std::str::from_utf8(&bytes.expect("the stream goes on")).unwrap();
        }
    }
}

#[tokio::test]
async fn durable_turns_are_answered_in_order_and_their_answers_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline("Once"), &[], &[]);
    server.fill().await;
    let one = server.ok("POST", "/v1/turns?durable=true&wait=true", Some(turn("a", 1, "When does the ferry leave?")));
    let one = one.await;
    assert_eq!((&one["conversation_id"], &one["turn"], &one["status"]), (&json!("a"), &json!(1), &json!("answered")));
    assert!(one["answer"].as_str().unwrap().contains("nine"), "{one}");
    assert!(one["turn_id"].as_str().unwrap().starts_with("turn-"), "{one}");

    // The engine has the history: the second question of the conversation needs it.
    let two = [turn("a", 2, "And when does it return?"), turn("b", 1, "What does a ticket cost?")];
    let two = server.ok("POST", "/v1/turns?durable=true&wait=true", Some(json!(two))).await;
    assert!(two[0]["query"].as_str().unwrap().contains("ferry"), "{two}");
    assert!(two[1]["answer"].as_str().unwrap().contains("four euros"), "{two}");

    let queued = server.send("POST", "/v1/turns?durable=true", Some(turn("b", 2, "Who travels free?"))).await;
    assert_eq!((queued.0, &queued.1["queued"]), (202, &json!(1)), "{}", queued.1);
    let mut events = Events::open(&server, "/v1/answers?after=0", None).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (id, name, data) = events.next().await;
        assert_eq!((&data["number"], &*name), (&json!(id), "answer"));
        seen.push((data["conversation_id"].as_str().unwrap().to_owned(), data["turn"].as_u64().unwrap()));
    }
    let of = |conversation: &str| seen.iter().filter(|(of, _)| of == conversation).map(|(_, turn)| *turn).collect();
    assert_eq!((of("a"), of("b")), (vec![1_u64, 2], vec![1_u64, 2]));
    // A client that has seen the second one comes again.
    assert_eq!(Events::open(&server, "/v1/answers", Some(2)).await.next().await.0, 3);

    let list = server.ok("GET", "/v1/answers?conversation_id=b", None).await;
    assert_eq!((list["data"].as_array().unwrap().len(), &list["has_more"]), (2, &json!(false)), "{list}");
    let none = server.ok("GET", "/v1/answers?conversation_id=a&after=3", None).await;
    assert_eq!((&none["data"], &none["has_more"]), (&json!([]), &json!(false)), "{none}");
    let first = server.ok("GET", "/v1/answers?limit=1", None).await;
    assert_eq!((&first["next"], &first["has_more"], &first["last"]), (&json!(1), &json!(true), &json!(4)));
}

#[tokio::test]
async fn what_a_durable_turn_cannot_have_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline("Once"), &[], &[]);
    for (path, body, reason) in [
        ("/v1/turns?durable=true&stream=true", turn("a", 1, "?"), "read `/v1/answers`"),
        ("/v1/turns?wait=true", turn("a", 1, "?"), "`wait` needs `durable=true`"),
        ("/v1/turns?durable=true", json!({ "text": "?" }), "not a turn record"),
        (
            "/v1/turns?durable=true",
            json!({ "conversation_id": "a", "turn": 1, "speaker": "user", "text": "?", "history": [{ "speaker": "user", "text": "!" }] }),
            "a durable turn accepts no `history`",
        ),
        (
            "/v1/turns?durable=true",
            json!({ "conversation_id": "a", "turn": 1, "speaker": "user", "text": "?", "adjust": { "skip": ["found"] } }),
            "a durable turn accepts no `adjust`",
        ),
    ] {
        let (status, told) = server.send("POST", path, Some(body)).await;
        assert!(status == 400 && told.to_string().contains(reason), "{path}: {status} {told}");
    }
    assert_eq!(server.send("GET", "/v1/answers?limit=0", None).await.0, 400);
    let garbage = server.client.get(format!("{}/v1/answers?stream=true", server.url)).header("Last-Event-ID", "x");
    assert_eq!(garbage.send().await.unwrap().status().as_u16(), 400);
    assert_eq!(server.ok("GET", "/v1/answers", None).await["last"], 0, "nothing was queued");

    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let (status, told) = server.send("POST", "/v1/turns?durable=true", Some(turn("a", 1, "?"))).await;
    assert!(status == 400 && told.to_string().contains("has no source `Turns`"), "{status} {told}");
    let (status, told) = server.send("GET", "/v1/answers", None).await;
    assert!(status == 404 && told.to_string().contains("has no sink `Answers`"), "{status} {told}");
}

#[tokio::test]
async fn a_live_answer_is_revised_while_a_client_listens() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline("Live()"), &[], &[]);
    server.fill().await;
    let mut events = Events::open(&server, "/v1/answers?conversation_id=a", None).await;
    server.ok("POST", "/v1/turns?durable=true&wait=true", Some(turn("a", 1, "When does the ferry leave?"))).await;
    let (_, name, first) = events.next().await;
    assert!(name == "answer" && first["answer"].as_str().unwrap().contains("nine"), "{first}");
    let body = json!({ "title": "Island", "text": "The ferry to the island leaves at ten. It returns at noon." });
    server.ok("PUT", "/v1/documents/ferry.md?wait=true", Some(body)).await;
    let (_, name, retraction) = events.next().await;
    assert_eq!((&*name, &retraction["retracted"], &retraction["revision"]), ("retracted", &json!(true), &json!(0)));
    let (_, name, second) = events.next().await;
    assert!(name == "answer" && second["answer"].as_str().unwrap().contains("ten"), "{second}");
    assert_eq!(second["revision"], 1);
}

#[tokio::test]
async fn a_caller_with_a_token_sees_the_answers_of_its_own_turns() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = [("TURNFLOW_TOKENS", "ada=one,bob=two")];
    let server = Server::start(directory.path(), &pipeline("Once"), &[], &tokens);
    let send = async |token: &str, request: reqwest::RequestBuilder| {
        let response = request.bearer_auth(token).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let post = format!("{}/v1/turns?durable=true&wait=true", server.url);
    for (token, conversation) in [("one", "a"), ("two", "b"), ("one", "c")] {
        let mut asked = turn(conversation, 1, "When does the ferry leave?");
        // Who asks is what the server knows.
        asked["principal"] = json!({ "name": "ada" });
        let (status, answer) = send(token, server.client.post(&post).json(&asked)).await;
        assert!(status == 200 && answer.get("principal").is_none(), "{status} {answer}");
    }
    let list = format!("{}/v1/answers", server.url);
    for (token, expected) in [("one", vec!["a", "c"]), ("two", vec!["b"])] {
        let (_, found) = send(token, server.client.get(&list)).await;
        let found: Vec<&str> =
            found["data"].as_array().unwrap().iter().map(|of| of["conversation_id"].as_str().unwrap()).collect();
        assert_eq!(found, expected);
        let (_, other) = send(token, server.client.get(format!("{list}?conversation_id=b"))).await;
        assert_eq!(other["data"].as_array().unwrap().len(), usize::from(token == "two"));
    }
    assert_eq!(server.client.get(&list).send().await.unwrap().status().as_u16(), 401);
    // A conversation of the same name is another one, so nobody reads what another caller has said.
    for (token, number, text) in [("one", 1, "My number is 4711"), ("two", 1, "ferry?"), ("one", 2, "And the ferry?")] {
        let (_, answer) = send(token, server.client.post(&post).json(&turn("shared", number, text))).await;
        assert_eq!(answer["conversation_id"], "shared", "{answer}");
        assert_eq!(answer.to_string().contains("4711"), token == "one", "{answer}");
    }
}

/// Why it exists: a stop waited for streams that never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_streams_of_answers() {
    let directory = tempfile::tempdir().unwrap();
    // Longer than the test waits.
    std::fs::write(directory.path().join("serve.ron"), "Serve(drain_s: 600.0)").unwrap();
    let mut server = Server::start(directory.path(), &pipeline("Once"), &["--config", "serve.ron"], &[]);
    let mut stream = server.client.get(format!("{}/v1/answers?stream=true", server.url)).send().await.unwrap();
    server.ok("POST", "/v1/turns?durable=true&wait=true", Some(turn("a", 1, "ferry?"))).await;
    assert!(stream.chunk().await.unwrap().is_some());
    server.signal(libc::SIGTERM);
    let mut rest = String::new();
    while let Ok(Some(chunk)) = stream.chunk().await {
        rest += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(rest.contains("event: end") && rest.contains("the server is stopping"), "{rest}");
    server.ended().await;
}

/// Why it exists: a pipeline that got `Turns` by a reload could not use it before the next start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_adds_durable_turns_and_removes_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let durable = pipeline("Once");
    let only_turns = PIPELINE.replace("Stdin()", "Turns()");
    let post = "/v1/turns?durable=true&wait=true";
    server
        .reload(&only_turns, async || {
            let (status, told) = server.send("POST", post, Some(turn("a", 1, "ferry?"))).await;
            status == 400 && told.to_string().contains("has no sink")
        })
        .await;
    server.reload(&durable, async || server.send("GET", "/v1/answers", None).await.0 == 200).await;
    let one = server.ok("POST", post, Some(turn("a", 1, "When does the ferry leave?"))).await;
    assert!(one["answer"].as_str().unwrap().contains("nine"), "{one}");
    server.ok("POST", "/v1/turns?durable=true", Some(turn("a", 2, "And when does it return?"))).await;
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let server = Server::start(directory.path(), &durable, &[], &[]);
    let mut events = Events::open(&server, "/v1/answers?after=0", None).await;
    for number in [1, 2] {
        let (id, _, data) = events.next().await;
        assert_eq!((id, &data["turn"]), (number, &json!(number)), "{data}");
    }
    assert_eq!(server.ok("GET", "/v1/answers", None).await["last"], 2, "each turn is answered once");
    // The stream of a sink that goes away ends, and says so.
    server.reload(PIPELINE, async || server.send("GET", "/v1/answers", None).await.0 == 404).await;
    let mut rest = String::new();
    while let Some(chunk) = tokio::time::timeout(PATIENCE, events.response.chunk()).await.unwrap().unwrap() {
        rest += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(rest.contains("event: end") && rest.contains("the sink no longer exists"), "{rest}");
}

/// A server leaves a log to `turnflow run` unless it is told to read it.
#[tokio::test]
async fn a_server_reads_the_queue_and_not_the_log_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("log.jsonl"), format!("{}\n", turn("log", 1, "ferry?"))).unwrap();
    let both = pipeline("Once").replace(
        "        \"query\":",
        "        \"log\": JsonLines(path: \"log.jsonl\"),\n        \"logged\": LastTurn(input: \"log\"),\n        \"kept\": \
         Bm25(input: \"logged\", corpus: \"docs\"),\n        \"to\": Answers(input: \"kept\"),\n        \"query\":",
    );
    let server = Server::start(directory.path(), &both, &[], &[]);
    server.fill().await;
    server.ok("POST", "/v1/turns?durable=true&wait=true", Some(turn("a", 1, "ferry?"))).await;
    let listed = server.ok("GET", "/v1/answers", None).await.to_string();
    assert!(!listed.contains("\"log\""), "{listed}");
    drop(server);
    let server = Server::start(directory.path(), &both, &["--sources"], &[]);
    let answered = async || server.ok("GET", "/v1/pipelines/demo/status", None).await["turns"]["answered"].clone();
    until(async || answered().await.as_u64().is_some_and(|count| count > 0)).await;
}

/// Why it exists: what is acknowledged is answered, exactly once, however often the process is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_are_acknowledged_are_answered_once_across_kills() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (rate: 0.0))").unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..5 {
        let mut server = Server::start(directory.path(), &pipeline("Once"), &["--config", "serve.ron"], &[]);
        if round == 0 {
            server.fill().await;
        }
        let (client, url) = (server.client.clone(), server.url.clone());
        let writer = tokio::spawn(async move {
            let mut done = Vec::new();
            for number in 1.. {
                let asked = turn(&format!("c{round}-{}", number % 5), number, "When does the ferry leave?");
                let sent = client.post(format!("{url}/v1/turns?durable=true")).json(&asked).send().await;
                let Ok(response) = sent.and_then(reqwest::Response::error_for_status) else { break };
                let Ok(told) = response.json::<Value>().await else { break };
                done.push((told["turns"][0]["turn_id"].as_str().unwrap().to_owned(), number));
            }
            done
        });
        // Killed once some turns are answered, and others are not.
        let begun = Instant::now();
        let before = server.ok("GET", "/v1/answers?limit=1", None).await["last"].as_u64().unwrap();
        while server.ok("GET", "/v1/answers?limit=1", None).await["last"].as_u64().unwrap() < before + 20 {
            assert!(begun.elapsed() < PATIENCE, "no answers");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        acknowledged.extend(writer.await.unwrap());
    }
    let server = Server::start(directory.path(), &pipeline("Once"), &[], &[]);
    let begun = Instant::now();
    let found = loop {
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        let mut after = json!(0);
        loop {
            let page = server.ok("GET", &format!("/v1/answers?limit=1000&after={after}"), None).await;
            for answer in page["data"].as_array().unwrap() {
                *found.entry(answer["turn_id"].as_str().unwrap().to_owned()).or_default() += 1;
            }
            after = page["next"].clone();
            if page["has_more"] == false {
                break;
            }
        }
        if acknowledged.keys().all(|id| found.contains_key(id)) {
            break found;
        }
        let missing = acknowledged.iter().filter(|(id, _)| !found.contains_key(*id)).count();
        assert!(begun.elapsed() < PATIENCE, "{missing} of {} are not answered", acknowledged.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let twice: Vec<_> = found.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "answered twice: {twice:?}");
}
