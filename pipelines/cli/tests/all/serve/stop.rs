//! `stop` of a chat completion ends the answer, whoever writes it.

use super::*;

#[tokio::test]
async fn an_answer_ends_before_the_first_of_the_words() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let body = |stop: Value, stream: bool| {
        let messages = json!([{ "role": "user", "content": "When does the ferry leave?" }]);
        Some(json!({ "messages": messages, "stop": stop, "stream": stream }))
    };
    for stop in [json!(" leaves"), json!(["xyz", "nine", " leaves"])] {
        let answer = server.ok("POST", "/v1/chat/completions", body(stop.clone(), false)).await;
        assert_eq!(text(&answer), "The ferry to the island", "{answer}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        // The sources are still known; they are at the end of what is left.
        assert_eq!(choice["message"]["annotations"][0]["url_citation"]["end_index"], 23, "{answer}");
        let Value::String(stream) = server.ok("POST", "/v1/chat/completions", body(stop, true)).await else { panic!() };
        let chunks = stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let deltas: Vec<Value> = chunks.map(|chunk| chunk["choices"][0]["delta"].clone()).collect();
        let whole: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
        assert_eq!(whole, "The ferry to the island", "{stream}");
        assert!(deltas.iter().any(|delta| delta["annotations"].is_array()), "{stream}");
    }
    for none in [json!(null), json!([])] {
        let answer = server.ok("POST", "/v1/chat/completions", body(none, false)).await;
        assert!(text(&answer).contains("leaves at nine"), "{answer}");
    }
    for wrong in [json!(""), json!(7), json!([""])] {
        let (status, error) = server.send("POST", "/v1/chat/completions", body(wrong, false)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("stop")), "{error}");
    }
}
