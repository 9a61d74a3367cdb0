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

/// The AI SDK sends the answers before as references.
#[tokio::test]
async fn an_answer_before_may_be_named_by_its_id_by_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[("TURNFLOW_TOKENS", "ada=one,bob=two")]);
    let send = async |token: &str, method: &str, path: &str, body: Value| {
        let request = server.client.request(method.parse().unwrap(), format!("{}{path}", server.url));
        let response = request.bearer_auth(token).json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let body = json!({ "title": "Island", "text": "The ferry to the island leaves at nine. It returns at noon." });
    send("one", "PUT", "/v1/documents/ferry.md?wait=true", body).await;
    let said = |text: &str| json!({ "role": "user", "content": text });
    let ask = json!({ "input": [said("When does the ferry leave?")] });
    let (_, first) = send("one", "POST", "/v1/responses", ask.clone()).await;
    let id = first["output"][0]["id"].clone();
    let after = |id: &Value| {
        let reference = json!({ "type": "item_reference", "id": id });
        json!({ "input": [said("When does the ferry leave?"), reference, said("Does the ferry return?")] })
    };
    let (status, second) = send("one", "POST", "/v1/responses", after(&id)).await;
    assert!(status == 200 && second.to_string().contains("leaves at nine"), "{status} {second}");
    // What is stored is the conversation, not the reference.
    let next = json!({ "input": "And how?", "previous_response_id": second["id"] });
    send("one", "DELETE", &format!("/v1/responses/{}", first["id"].as_str().unwrap()), json!({})).await;
    let (status, third) = send("one", "POST", "/v1/responses", next).await;
    assert!(status == 200 && third.to_string().contains("The ferry"), "{status} {third}");
    let not_stored = json!({ "input": "When does the ferry leave?", "store": false });
    let (_, not_stored) = send("one", "POST", "/v1/responses", not_stored).await;
    for (token, id) in [
        ("one", &id),
        ("two", &second["output"][0]["id"]),
        ("one", &not_stored["output"][0]["id"]),
        ("one", &second["id"]),
        ("one", &json!(null)),
    ] {
        let (status, error) = send(token, "POST", "/v1/responses", after(id)).await;
        assert_eq!((status, &error["error"]["code"]), (400, &json!("item_not_found")), "{id} {error}");
        assert_eq!(error["error"]["param"], "input[1]", "{error}");
    }
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
