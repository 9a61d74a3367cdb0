//! A turn is shared by a link, for whoever has it, and only while its caller may still read it.

use super::groups::{send, start};
use super::*;

/// The turn as the page of a link gets it.
async fn opened(server: &Server, link: &str) -> (u16, Value) {
    let link = link.split_once("/shared/").map(|(_, rest)| rest).unwrap();
    let (id, query) = link.split_once('?').unwrap();
    let page = server.client.get(format!("{}/shared/{id}?{query}", server.url)).send().await.unwrap();
    assert!(page.status() == 200 && page.text().await.unwrap().contains("/page/shared.js"));
    server.send("GET", &format!("/shared/{id}/turn?{query}"), None).await
}

#[tokio::test]
async fn a_turn_is_shown_to_whoever_has_its_link_while_its_caller_may_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), r#"["board"]"#);
    let document = json!({ "title": "Boats", "text": "The ferry leaves at nine.", "groups": ["board"] });
    let put = |document: Value| send(&server, "admin", "PUT", "/v1/documents/ferry?wait=true", Some(document));
    assert_eq!(put(document.clone()).await.0, 200);
    let question = "When does the ferry leave?";
    let turn = json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": question });
    let (_, record) = send(&server, "ann", "POST", "/v1/turns", Some(turn)).await;
    assert_eq!(record["answer"].as_str().map(|answer| answer.contains("at nine")), Some(true), "{record}");
    let request = |record: &Value| Some(json!({ "question": question, "record": record }));

    // Only what was answered, and to whom it was answered.
    let mut forged = record.clone();
    forged["answer"] = json!("The ferry leaves at ten. [1]");
    let mut other = record.clone();
    other["hits"][0]["metadata"]["url"] = json!("https://evil.example");
    for (name, body) in [
        ("ann", request(&forged)),
        ("ann", request(&other)),
        ("bob", request(&record)),
        ("ann", Some(json!({ "question": "Another question?", "record": record }))),
    ] {
        let (status, told) = send(&server, name, "POST", "/v1/shares", body).await;
        assert_eq!((status, &told["error"]["code"]), (400, &json!("not_answered_here")), "{told}");
    }
    // A program such as a browser writes whole numbers without a fraction.
    let mut written = record.clone();
    written["latency_ms"] = json!(1);
    let (status, shared) = send(&server, "ann", "POST", "/v1/shares", request(&written)).await;
    assert_eq!(status, 200, "{shared}");
    let (id, link) = (shared["id"].as_str().unwrap(), shared["url"].as_str().unwrap());
    let (status, shown) = opened(&server, link).await;
    assert_eq!((status, &shown["question"], &shown["record"]["answer"]), (200, &json!(question), &record["answer"]));
    assert_eq!(shown["record"]["hits"][0]["text"], "The ferry leaves at nine.", "{shown}");
    // The link to the whole document is the caller's own.
    let citation = &shown["citations"][0];
    assert!(citation["passage"].is_string() && citation.get("url").is_none(), "{shown}");
    let citation = &record["citations"][0];
    assert!(shown["record"].get("proof").is_none(), "{shown}");

    // Without its signature, or with that of something else, it shows nothing.
    let bare = link.split_once("&key=").unwrap().0;
    assert_eq!(opened(&server, bare).await.0, 403);
    let of_document = citation["url"].as_str().unwrap().split_once("&key=").unwrap().1.split('#').next().unwrap();
    assert_eq!(opened(&server, &format!("{bare}&key={of_document}")).await.0, 403);

    // The passage is not shown when its document is closed to the caller.
    put(json!({ "title": "Boats", "text": "The ferry leaves at nine.", "groups": ["staff"] })).await;
    let (_, shown) = opened(&server, link).await;
    assert_eq!((&shown["record"]["hits"][0]["text"], &shown["question"]), (&Value::Null, &json!(question)), "{shown}");
    // Nor is the answer, which says the same.
    assert!(shown["record"]["answer"].is_null() && !shown.to_string().contains("at nine"), "{shown}");
    put(document).await;
    let shown = opened(&server, link).await.1;
    assert_ne!(shown["record"]["hits"][0]["text"], Value::Null);
    assert_eq!(shown["record"]["answer"], record["answer"]);

    // Who has left the group shares nothing of it any more.
    drop(server);
    let server = start(directory.path(), r#"["staff"]"#);
    assert_eq!(opened(&server, link).await.0, 403);
    let (status, told) = send(&server, "ann", "POST", "/v1/shares", request(&record)).await;
    assert_eq!((status, &told["error"]["code"]), (400, &json!("not_answered_here")), "{told}");
    drop(server);
    let server = start(directory.path(), r#"["board"]"#);
    until(async || opened(&server, link).await.0 == 200).await;
    assert_eq!(send(&server, "bob", "DELETE", &format!("/v1/shares/{id}"), None).await.0, 404);
    assert_eq!(send(&server, "ann", "DELETE", &format!("/v1/shares/{id}"), None).await.0, 200);
    assert_eq!(opened(&server, link).await.0, 403);
}

#[tokio::test]
async fn a_server_without_tokens_shares_by_the_id_alone() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let turn = json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?" });
    let record = server.ok("POST", "/v1/turns", Some(turn)).await;
    let body = json!({ "pipeline": "demo", "question": "When does the ferry leave?", "record": record });
    let shared = server.ok("POST", "/v1/shares", Some(body)).await;
    let (status, shown) = opened(&server, shared["url"].as_str().unwrap()).await;
    assert_eq!((status, &shown["record"]["answer"]), (200, &record["answer"]));
    assert_eq!(server.send("GET", "/shared/0123/turn?pipeline=demo", None).await.0, 403);
}
