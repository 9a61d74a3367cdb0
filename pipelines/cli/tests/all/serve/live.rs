//! Live answers over HTTP: a stream goes on after the answer, counts as an open stream, and ends with its token.

use futures::StreamExt as _;
use serde_json::{Value, json};

use super::{PIPELINE, Server, until};

/// A stream of events.
struct Events {
    response: std::pin::Pin<Box<dyn futures::Stream<Item = Vec<u8>> + Send>>,
    text: String,
}

impl Events {
    async fn of(server: &Server, token: Option<&str>, body: &Value) -> Result<Self, (u16, Value)> {
        let request = server.client.post(format!("{}/v1/turns", server.url)).json(body);
        let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
        let response = request.send().await.unwrap();
        if response.status() != 200 {
            return Err((response.status().as_u16(), response.json().await.unwrap()));
        }
        // A connection that breaks ends the stream.
        let pieces = response.bytes_stream().filter_map(|piece| async { Some(piece.ok()?.to_vec()) });
        Ok(Self { response: Box::pin(pieces), text: String::new() })
    }

    /// The next event with one of these names.
    async fn next(&mut self, names: &[&str]) -> Option<(String, Value)> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n").map(|(a, b)| (a.to_owned(), b.to_owned())) {
                self.text = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(name), Some(data)) = (field("event: "), field("data: "))
                    && names.contains(&name)
                {
                    return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
                }
            }
            let piece = self.response.next().await?;
            self.text.push_str(&String::from_utf8_lossy(&piece));
        }
    }
}

fn turn(text: &str, live: bool) -> Value {
    json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": text, "live": live})
}

#[tokio::test]
async fn a_live_answer_is_told_when_it_changes_and_ends_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let mut live = Events::of(&server, None, &turn("When does the ferry leave?", true)).await.ok().unwrap();
    let (_, first) = live.next(&["answer"]).await.unwrap();
    assert!(first["answer"].as_str().unwrap().contains("nine"), "{first}");
    // What another question asks for reaches nobody here.
    let put = async |id: &str, text: &str| {
        server.ok("PUT", &format!("/v1/documents/{id}?wait=true"), Some(json!({"title": "Island", "text": text}))).await
    };
    put("notes/fees.md", "A ticket costs five euros.").await;
    put("ferry.md", "The ferry to the island leaves at ten. It returns at noon.").await;
    let (name, second) = live.next(&["answer", "revised"]).await.unwrap();
    assert_eq!((name.as_str(), &second["revision"]), ("revised", &json!(1)));
    assert!(second["answer"].as_str().unwrap().contains("ten"), "{second}");
    until(async || server.ok("GET", "/v1/pipelines/demo/status", None).await["turns"]["standing"] == 1).await;

    for (body, problem) in [
        (json!([turn("a", true), turn("b", false)]), "`live` belongs to the last record"),
        (json!({"conversation_id": "c", "turn": 1, "speaker": "agent", "text": "x", "live": true}), "`live` belongs"),
        (json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": "x", "live": "yes"}), "true or false"),
    ] {
        let (status, error) = Events::of(&server, None, &body).await.err().unwrap();
        assert_eq!(status, 400);
        assert!(error["error"]["message"].as_str().unwrap().contains(problem), "{error}");
    }
    // A client that leaves is forgotten.
    let other = Events::of(&server, None, &turn("What does a ticket cost?", true)).await.ok().unwrap();
    until(async || server.ok("GET", "/v1/pipelines/demo/status", None).await["turns"]["standing"] == 2).await;
    drop(other);
    until(async || server.ok("GET", "/v1/pipelines/demo/status", None).await["turns"]["standing"] == 1).await;
    server.signal(libc::SIGTERM);
    let (name, end) = live.next(&["end", "revised"]).await.unwrap();
    assert_eq!((name.as_str(), &end["reason"]), ("end", &json!("the server is stopping")));
    assert!(server.ended().await.success());
}

#[tokio::test]
async fn live_streams_of_a_token_are_bounded_and_take_no_slot_of_a_request() {
    let directory = tempfile::tempdir().unwrap();
    let config = "Serve(limits: (token_streams: 2, token_concurrency: 2, streams: 3))";
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let tokens = [("TURNFLOW_TOKENS", "a=first,b=second")];
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &tokens);
    let mut open = Vec::new();
    // Each holds the slot of a request until its answer, and two of them are all that `a` may have.
    for token in ["first", "first", "second"] {
        let mut events =
            Events::of(&server, Some(token), &turn("When does the ferry leave?", true)).await.ok().unwrap();
        events.next(&["answer"]).await.unwrap();
        open.push(events);
    }
    let refused = async |token: &str| {
        let (status, error) = Events::of(&server, Some(token), &turn("x", true)).await.err().unwrap();
        assert_eq!(status, 429);
        error["error"]["message"].as_str().unwrap().to_owned()
    };
    assert!(refused("first").await.contains("for this token"));
    assert!(!refused("second").await.contains("for this token"));
    // The slots are free for other requests.
    let mut done = Events::of(&server, Some("first"), &turn("When does the ferry leave?", false)).await.ok().unwrap();
    assert!(done.text.is_empty());
    while done.response.next().await.is_some() {}
    open.remove(0);
    until(async || Events::of(&server, Some("first"), &turn("x", true)).await.is_ok()).await;
}
