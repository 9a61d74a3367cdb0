//! `/v1/models` and `/v1/embeddings`: models that answer and models for embeddings are told apart.

use serde_json::json;

use super::{PIPELINE, Server};

/// The same pipeline with two models for embeddings. Their server is never asked.
fn with_embedders() -> String {
    let model = |dimension: usize| {
        format!("OpenAiEmbedder(url: \"http://127.0.0.1:9/v1\", model: \"m\", dimension: {dimension})")
    };
    PIPELINE
        .replace("corpora:", &format!("models: {{ \"small\": {}, \"large\": {} }},\n    corpora:", model(2), model(3)))
}

#[tokio::test]
async fn models_that_answer_and_models_for_embeddings_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &with_embedders(), &[], &[]);
    let listed = server.ok("GET", "/v1/models", None).await;
    let listed: Vec<_> =
        listed["data"].as_array().unwrap().iter().map(|of| (&of["id"], &of["type"], &of["dimensions"])).collect();
    let (chat, embedding) = (json!("chat"), json!("embedding"));
    assert_eq!(
        listed,
        [
            (&json!("demo"), &chat, &json!(null)),
            (&json!("demo/large"), &embedding, &json!(3)),
            (&json!("demo/small"), &embedding, &json!(2)),
        ]
    );
    assert_eq!(server.ok("GET", "/v1/models/demo/small", None).await["type"], "embedding");
    let chat = |model: &str| json!({ "model": model, "messages": [{ "role": "user", "content": "When?" }] });
    let embed = |model: &str| json!({ "model": model, "input": "a ferry" });
    let respond = |model: &str| json!({ "model": model, "input": "When?" });
    for (path, body, status, told) in [
        (
            "/v1/chat/completions",
            chat("demo/small"),
            404,
            "`demo/small` is a model for embeddings and gives no answers: send it to /v1/embeddings. The models that answer: demo",
        ),
        ("/v1/responses", respond("demo/large"), 404, "is a model for embeddings"),
        ("/v1/chat/completions", chat("gpt"), 404, "the model `gpt` does not exist. The models that answer: demo"),
        (
            "/v1/embeddings",
            embed("gpt"),
            404,
            "the model `gpt` does not exist. The models for embeddings: demo/large, demo/small",
        ),
        (
            "/v1/embeddings",
            embed("demo"),
            400,
            "`demo` has several models for embeddings: name one of demo/large, demo/small",
        ),
    ] {
        let (got, error) = server.send("POST", path, Some(body)).await;
        assert_eq!((got, &error["error"]["param"]), (status, &json!("model")), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(told), "{error}");
    }
}

#[tokio::test]
async fn a_pipeline_without_a_model_for_embeddings_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let (status, error) = server.send("POST", "/v1/embeddings", Some(json!({ "model": "demo", "input": "a" }))).await;
    let told = "`demo` is a pipeline without a model for embeddings. The models for embeddings: none";
    assert_eq!((status, &error["error"]["message"]), (404, &json!(told)), "{error}");
}
