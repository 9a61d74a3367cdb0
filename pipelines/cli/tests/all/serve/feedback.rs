//! What people say about answers: it is joined with the answer, if the server still knows that.

use super::*;

/// The lines of the file of feedback, which is in the state directory or in that of a pipeline.
fn lines(directory: &Path) -> Vec<Value> {
    fn all(directory: &Path, into: &mut Vec<Value>) {
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                all(&path, into);
            } else if path.ends_with("feedback.jsonl") {
                let text = std::fs::read_to_string(path).unwrap();
                into.extend(text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    all(&directory.join("state"), &mut found);
    found
}

/// Says that the answer with this id was helpful; returns whether it was joined.
async fn helped(server: &Server, id: &Value) -> bool {
    let told = server.ok("POST", "/v1/feedback", Some(json!({ "turn_id": id, "helpful": true }))).await;
    assert_eq!(told["kept"], true, "{told}");
    told["joined"].as_bool().unwrap()
}

/// Runs `turnflow import feedback`; returns the task's questions and the qrels.
fn imported(directory: &Path) -> (Vec<Value>, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_turnflow"))
        .current_dir(directory)
        .args(["import", "feedback", "state", "--output", "judged"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = |name: &str| std::fs::read_to_string(directory.join("judged").join(name)).unwrap();
    let tasks = text("tasks.jsonl");
    (tasks.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), text("qrels.tsv"))
}

#[tokio::test]
async fn an_id_alone_is_joined_with_its_answer() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let asked = json!({ "messages": [
        { "role": "user", "content": "What does a ticket cost?" }, { "role": "assistant", "content": "Four euros." },
        { "role": "user", "content": "When does the ferry leave?" },
    ] });
    let answer = server.ok("POST", "/v1/chat/completions", Some(asked)).await;
    assert!(helped(&server, &answer["id"]).await);
    assert!(!helped(&server, &json!("chatcmpl-unknown")).await, "it is kept, but not joined");
    let [joined, unknown] = &lines(directory.path())[..] else { panic!() };
    assert_eq!(
        (&joined["question"], &joined["answer"], &joined["turn"], &joined["passages"]),
        (
            &json!("When does the ferry leave?"),
            &json!(text(&answer)),
            &json!(2),
            &json!(["ferry.md#0", "notes/fees.md#0"])
        ),
        "{joined}"
    );
    assert_eq!(joined["history"][0], json!({ "speaker": "user", "text": "What does a ticket cost?" }), "{joined}");
    assert_eq!((&unknown["turn_id"], unknown.get("question")), (&json!("chatcmpl-unknown"), None));
    // An answer from elsewhere, with its question.
    let said =
        json!({ "turn_id": "elsewhere", "helpful": true, "question": "Who pays?", "passages": ["notes/fees.md#0"] });
    assert_eq!(server.ok("POST", "/v1/feedback", Some(said)).await["joined"], true);
    // A stream has the same id in each chunk.
    let body = json!({ "messages": [{ "role": "user", "content": "When does it return?" }], "stream": true });
    let request = server.client.post(format!("{}/v1/chat/completions", server.url)).json(&body);
    let stream = request.send().await.unwrap().text().await.unwrap();
    let chunk: Value = serde_json::from_str(stream.lines().next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert!(helped(&server, &chunk["id"]).await, "{chunk}");
    // A turn is named by its conversation and its number.
    let turn = json!({ "conversation_id": "c", "turn": 4, "speaker": "user", "text": "Who travels free?" });
    let record = server.ok("POST", "/v1/turns", Some(turn)).await;
    let said = json!({ "conversation_id": "c", "turn": 4, "helpful": false, "comment": "No." });
    assert_eq!(server.ok("POST", "/v1/feedback", Some(said)).await["joined"], true);
    let last = lines(directory.path()).pop().unwrap();
    assert_eq!((&last["answer"], &last["question"]), (&record["answer"], &json!("Who travels free?")));
    let metrics = server.client.get(format!("{}/metrics", server.url)).send().await.unwrap().text().await.unwrap();
    let count = "turnflow_feedback_total{pipeline=\"demo\",helpful=\"true\",joined=\"false\"} 1";
    assert!(metrics.lines().any(|line| line == count), "{metrics}");
    drop(server);
    let (tasks, qrels) = imported(directory.path());
    let questions: Vec<&Value> =
        tasks.iter().map(|task| &task["input"].as_array().unwrap().last().unwrap()["text"]).collect();
    assert!(questions.contains(&&json!("When does the ferry leave?")) && questions.len() == 3, "{tasks:?}");
    assert!(qrels.contains("::2\tferry.md#0\t1") && qrels.contains("elsewhere::1\tnotes/fees.md#0\t1"), "{qrels}");
}

#[tokio::test]
async fn what_is_stored_is_joined_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let ask = |input: &str| Some(json!({ "input": input, "metadata": { "conversation_id": "talk" } }));
    let first = server.ok("POST", "/v1/responses", ask("When does the ferry leave?")).await;
    let next = json!({ "input": "When does it return?", "previous_response_id": first["id"] });
    let second = server.ok("POST", "/v1/responses", Some(next)).await;
    let gone = server.ok("POST", "/v1/responses", ask("What does a ticket cost?")).await;
    let chat = server.chat("When does the ferry leave?").await;
    server.ok("DELETE", &format!("/v1/responses/{}", gone["id"].as_str().unwrap()), None).await;
    assert!(!helped(&server, &gone["id"]).await, "it was deleted, and what is in memory with it");
    drop(server);

    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    assert!(helped(&server, &second["id"]).await);
    assert!(!helped(&server, &gone["id"]).await, "it was deleted");
    assert!(!helped(&server, &chat["id"]).await, "completions are not stored");
    let line = &lines(directory.path())[1];
    assert_eq!(
        (&line["conversation_id"], &line["turn"], &line["question"], &line["answer"]),
        (&json!("talk"), &json!(2), &json!("When does it return?"), &second["output"][0]["content"][0]["text"]),
        "{line}"
    );
    assert_eq!(
        (&line["passages"], line["history"].as_array().map(Vec::len)),
        (&json!(["ferry.md#0"]), Some(2)),
        "{line}"
    );
    let (tasks, _) = imported(directory.path());
    assert_eq!((tasks.len(), &tasks[0]["turn"]), (1, &json!(2)), "{tasks:?}");
}

#[tokio::test]
async fn an_answer_is_joined_in_its_own_pipeline_and_for_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("other.ron"), PIPELINE.replace("\"demo\"", "\"other\"")).unwrap();
    let config =
        "Serve(tokens: [(name: \"ann\", token: Env(\"ANN\"), documents: Write), (name: \"bob\", token: Env(\"BOB\"))])";
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let arguments = ["other.ron", "--config", "serve.ron"];
    let variables = [("ANN", "ann-secret"), ("BOB", "bob-secret")];
    let server = Server::start(directory.path(), PIPELINE, &arguments, &variables);
    let document = json!({ "text": "The ferry to the island leaves at nine." });
    let path = "/v1/documents/ferry.md?wait=true&pipeline=other";
    assert!(groups::send(&server, "ann", "PUT", path, Some(document)).await.0 < 300);
    let asked = json!({ "model": "other", "messages": [{ "role": "user", "content": "When does the ferry leave?" }] });
    let (_, answer) = groups::send(&server, "ann", "POST", "/v1/chat/completions", Some(asked)).await;
    let said = json!({ "turn_id": answer["id"], "helpful": true });
    for (name, path, joined) in
        [("bob", "/v1/feedback", false), ("ann", "/v1/feedback?pipeline=demo", false), ("ann", "/v1/feedback", true)]
    {
        let (status, told) = groups::send(&server, name, "POST", path, Some(said.clone())).await;
        assert_eq!((status, &told["joined"]), (200, &json!(joined)), "{name} {path}: {told}");
    }
    let all = lines(directory.path());
    let of_other: Vec<_> = all.iter().filter(|line| line["pipeline"] == "other").collect();
    assert!(of_other.len() == 1 && of_other[0]["caller"] == "ann" && of_other[0]["question"].is_string(), "{all:?}");
}
