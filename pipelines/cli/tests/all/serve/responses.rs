//! Stored responses: `previous_response_id`, and who may read them.

use super::*;

#[tokio::test]
async fn stored_responses_survive_a_kill_and_belong_to_their_callers() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = [("TURNFLOW_TOKENS", "ada=one,bob=two")];
    let mut server = Server::start(directory.path(), PIPELINE, &[], &tokens);
    let send = async |server: &Server, token: &str, method: &str, path: &str, body: Option<Value>| {
        let request = server.client.request(method.parse().unwrap(), format!("{}{path}", server.url));
        let request = body.iter().fold(request.bearer_auth(token), reqwest::RequestBuilder::json);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let body = json!({ "title": "Island", "text": "The ferry to the island leaves at nine. It returns at noon." });
    send(&server, "one", "PUT", "/v1/documents/ferry.md?wait=true", Some(body)).await;
    let ask = json!({ "input": "When does the ferry leave?" });
    let (status, first) = send(&server, "one", "POST", "/v1/responses", Some(ask)).await;
    assert!(status == 200 && first["store"] == true, "{status} {first}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &tokens);

    let id = first["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}");
    assert_eq!(send(&server, "one", "GET", &path, None).await, (200, first.clone()));
    assert_eq!(send(&server, "two", "GET", &path, None).await.0, 404);
    assert_eq!(send(&server, "two", "DELETE", &path, None).await.0, 404);
    let next = json!({ "input": "And why then?", "previous_response_id": id });
    let (status, refused) = send(&server, "two", "POST", "/v1/responses", Some(next.clone())).await;
    assert!(status == 400 && refused["error"]["code"] == "previous_response_not_found", "{status} {refused}");
    // The question finds nothing without the conversation before it.
    let (status, second) = send(&server, "one", "POST", "/v1/responses", Some(next)).await;
    assert!(status == 200 && second["previous_response_id"] == id, "{status} {second}");
    assert!(second["output"][0]["content"][0]["text"].as_str().unwrap().contains("leaves at nine"), "{second}");
    assert_eq!(send(&server, "one", "DELETE", &path, None).await.1["deleted"], true);
    assert_eq!(send(&server, "one", "GET", &path, None).await.0, 404);
}

#[tokio::test]
async fn a_server_may_store_none() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(responses: (keep: 0))").unwrap();
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[]);
    server.fill().await;
    let first = server.ok("POST", "/v1/responses", Some(json!({ "input": "When does the ferry leave?" }))).await;
    assert_eq!(first["store"], false, "{first}");
    let next = json!({ "input": "Why?", "previous_response_id": first["id"] });
    assert_eq!(server.send("POST", "/v1/responses", Some(next)).await.0, 400);
    assert!(!directory.path().join("state/responses.redb").exists());
}
