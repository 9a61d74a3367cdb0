//! Calls of models: whole, as streams, failed, with their histories.

use super::{of_files, turns_of};
use crate::{Mapping, map_files};

#[test]
fn responses_bring_their_history_along_or_fail() {
    let history = r#"{"request": {"input": [{"role": "user", "content": "When?"}], "store": false}, "response": {"id": "r1", "object": "response", "created_at": 100, "status": "completed", "output": [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "At nine."}]}]}}
{"request": {"input": [{"role": "user", "content": "When?"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "At nine."}]}, {"role": "user", "content": "Where?"}]}, "response": {"id": "r2", "created_at": 160, "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]}]}}
{"request": {"input": "And then?", "previous_response_id": "r2"}, "response": {"id": "r3", "created_at": 170, "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]}}"#;
    assert_eq!(
        of_files("openai-responses", &[("log.jsonl", history)]),
        [
            "r1 1 user When?",
            "r1 1 agent At nine.",
            "r1 2 user Where?",
            "r1 2 agent Here.",
            "r1 3 user And then?",
            "r1 3 agent No."
        ]
    );
    // Two that failed, one of them tried again, and one in the middle of its stream.
    let failed = r#"{"request": {"input": "When?"}, "response": {"id": "r1", "created_at": 100, "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "At nine."}]}]}}
{"request": {"input": "Where?", "previous_response_id": "r1"}, "response": {"error": {"message": "rate limit"}}}
{"request": {"input": "Where?", "previous_response_id": "r1"}, "response": null, "error": "timeout"}
{"request": {"input": "Where?", "previous_response_id": "r1"}, "response": {"id": "r4", "created_at": 140, "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]}]}}
{"request": {"input": "Why?", "previous_response_id": "r4"}, "response": [{"type": "response.created", "response": {"id": "r5", "created_at": 150, "status": "in_progress", "output": []}}, {"type": "response.output_text.delta", "delta": "Be"}]}
{"request": {"input": "Alone?"}, "response": {"id": "r6", "created_at": 160, "status": "failed", "error": {"code": "server_error"}, "output": []}}"#;
    assert_eq!(
        of_files("openai-responses", &[("log.jsonl", failed)]),
        [
            "r1 1 user When?",
            "r1 1 agent At nine.",
            "r1 2 user Where?",
            "r1 2 agent Here.",
            "r1 3 user Why?",
            "r6 1 user Alone?"
        ]
    );
}

/// Streams of three APIs, as a proxy records their bodies.
#[test]
fn streams_are_read_whole_or_not_at_all() {
    let files = [
        ("1.request.json", r#"{"model": "m", "input": "When?", "stream": true}"#),
        (
            "1.response.sse",
            "event: response.created\ndata: {\"type\": \"response.created\", \"response\": {\"id\": \"r1\", \"created_at\": 100}}\n\n\
             data: {\"type\": \"response.output_text.delta\", \"delta\": \"At \"}\n\n\
             data: {\"type\": \"response.output_text.delta\", \"delta\": \"nine.\"}\n\n\
             data: {\"type\": \"response.completed\", \"response\": {\"id\": \"r1\", \"created_at\": 100, \"output\": [{\"type\": \"message\", \"content\": [{\"type\": \"output_text\", \"text\": \"At nine.\"}]}]}}\n\n",
        ),
        ("2.request.json", r#"{"model": "m", "input": "Where?", "previous_response_id": "r1"}"#),
        (
            "2.response.json",
            r#"{"id": "r2", "object": "response", "created_at": 110, "output": [{"type": "message", "content": [{"type": "output_text", "text": "Here."}]}]}"#,
        ),
        ("3.request.json", r#"{"model": "m", "input": "Why?", "previous_response_id": "r2", "stream": true}"#),
        ("3.response.sse", "data: {\"type\": \"response.output_text.delta\", \"delta\": \"Be\"}\n\n"),
        (
            "4.request.json",
            r#"{"max_tokens": 9, "metadata": {"chat": "c"}, "messages": [{"role": "user", "content": "Who?"}]}"#,
        ),
        (
            "4.response.sse",
            "data: {\"type\": \"message_start\", \"message\": {\"id\": \"m1\", \"role\": \"assistant\", \"content\": []}}\n\n\
             data: {\"type\": \"content_block_delta\", \"index\": 0, \"delta\": {\"type\": \"thinking_delta\", \"thinking\": \"hm\"}}\n\n\
             data: {\"type\": \"content_block_delta\", \"index\": 1, \"delta\": {\"type\": \"text_delta\", \"text\": \"Not \"}}\n\n\
             data: {\"type\": \"content_block_delta\", \"index\": 1, \"delta\": {\"type\": \"text_delta\", \"text\": \"me.\"}}\n\n\
             data: {\"type\": \"message_stop\"}\n\n",
        ),
    ];
    assert_eq!(
        of_files("openai-sse-capture", &files),
        [
            "call 1 1 user When?",
            "call 1 1 agent At nine.",
            "call 1 2 user Where?",
            "call 1 2 agent Here.",
            "call 1 3 user Why?",
            "c 1 user Who?",
            "c 1 agent Not me."
        ]
    );
}

#[test]
fn a_reply_may_be_a_list_of_chunks_or_the_text_of_a_stream() {
    let chunks = r#"{"id": "q", "timestamp": 100, "request": {"stream": true, "messages": [{"role": "user", "content": "When?"}]}, "response": [{"id": "x", "choices": [{"delta": {"content": "At "}}]}, {"id": "x", "choices": [{"delta": {"content": "nine."}, "finish_reason": "stop"}]}]}
{"id": "r", "timestamp": 110, "request": {"messages": [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At nine."}, {"role": "user", "content": "Where?"}]}, "response": [{"id": "y", "choices": [{"delta": {"content": "He"}}]}]}
{"id": "s", "timestamp": 120, "request": "{\"messages\": [{\"role\": \"user\", \"content\": \"Who?\"}]}", "response": "data: {\"id\": \"z\", \"choices\": [{\"delta\": {\"content\": \"You.\"}}]}\n\ndata: [DONE]\n\n"}"#;
    let expected = [
        "call x 1 user When?",
        "call x 1 agent At nine.",
        "call x 2 user Where?",
        "call s 1 user Who?",
        "call s 1 agent You.",
    ];
    assert_eq!(of_files("openai-chat", &[("log.jsonl", chunks)]), expected);
    let anthropic = r#"{"timestamp": 100, "request": {"max_tokens": 9, "messages": [{"role": "user", "content": "When?"}]}, "response": [{"type": "message_start", "message": {"id": "m1", "role": "assistant"}}, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "At nine."}}, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]}
{"timestamp": 110, "request": {"max_tokens": 9, "messages": [{"role": "user", "content": "Fails?"}]}, "response": {"type": "error", "error": {"type": "overloaded_error"}}, "session_id": "s"}"#;
    assert_eq!(
        of_files("anthropic-messages", &[("log.jsonl", anthropic)]),
        ["call m1 1 user When?", "call m1 1 agent At nine.", "s 1 user Fails?"]
    );
    let responses = r#"{"request": {"input": "When?"}, "response": [{"type": "response.created", "response": {"id": "r1", "created_at": 100, "status": "in_progress", "output": []}}, {"type": "response.completed", "response": {"id": "r1", "created_at": 100, "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "At nine."}]}]}}]}"#;
    assert_eq!(of_files("openai-responses", &[("log.jsonl", responses)]), ["r1 1 user When?", "r1 1 agent At nine."]);
}

/// An answer without a time of its own has that of its record.
#[test]
fn answers_have_times() {
    for (name, log) in [
        (
            "openai-chat",
            r#"{"timestamp": 100, "request": {"messages": [{"role": "user", "content": "When?"}]}, "response": {"id": "r1", "choices": [{"message": {"role": "assistant", "content": "At ten."}}]}}"#,
        ),
        (
            "anthropic-messages",
            r#"{"timestamp": 100, "request": {"max_tokens": 9, "messages": [{"role": "user", "content": "When?"}]}, "response": {"id": "m1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "Nine."}]}}"#,
        ),
        (
            "openai-responses",
            r#"{"request": {"input": "When?"}, "response": {"id": "r1", "created_at": 100, "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "At nine."}]}]}}"#,
        ),
    ] {
        let times: Vec<Option<f64>> = turns_of(name, &[("log.jsonl", log)]).iter().map(|turn| turn.timestamp).collect();
        assert_eq!(times, [Some(100.0), Some(100.0)], "{name}");
    }
}

/// A span of a call, whose messages were recorded up to a limit.
fn span(id: u32, input: &str, limit: usize, output: &str) -> String {
    let attribute = |key: &str, value: &str| serde_json::json!({"key": key, "value": {"stringValue": value}});
    let input = input.get(..limit).unwrap_or(input);
    let span = serde_json::json!({"spanId": id.to_string(), "traceId": "t", "startTimeUnixNano": format!("177270130{id}000000000"),
        "endTimeUnixNano": format!("177270130{id}500000000"), "attributes": [
        attribute("gen_ai.operation.name", "chat"), attribute("gen_ai.conversation.id", "c"),
        attribute("gen_ai.input.messages", input), attribute("gen_ai.output.messages", output)]});
    serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).to_string()
}

fn said(of: &[(&str, &str)]) -> String {
    let messages: Vec<_> = of
        .iter()
        .map(|(role, text)| serde_json::json!({"role": role, "parts": [{"type": "text", "content": text}]}))
        .collect();
    serde_json::to_string(&messages).unwrap()
}

/// Limits of the lengths of attributes cut JSON anywhere.
#[test]
fn messages_that_are_cut_off_are_read_as_far_as_they_go() {
    let answer = said(&[("assistant", "At ten.")]);
    let first = [("user", "When does the ferry leave?")];
    let second = [first[0], ("assistant", "At ten."), ("user", "And in winter?")];
    let third = [&second[..], &[("assistant", "At ten."), ("user", "Why?")]].concat();
    for preset in ["otlp", "otel-genai-spans"] {
        // All of it, the last text in the middle, and an old one in the middle.
        let (two, three) = (said(&second), said(&third));
        let log = [
            span(1, &said(&first), 1_000, &answer),
            span(2, &two, two.find(" winter").unwrap(), &answer),
            span(3, &three, three.find("ferry").unwrap(), &said(&[("assistant", "So.")])),
        ];
        let found = of_files(preset, &[("spans.jsonl", &log.join("\n"))]);
        let expected = [
            "c 1 user When does the ferry leave?",
            "c 1 agent At ten.",
            "c 2 user And in",
            "c 2 agent At ten.",
            "c 2 agent So.",
        ];
        assert_eq!(found, expected, "{preset}");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("spans.jsonl");
        std::fs::write(&path, span(4, "[{broken", 1_000, &answer)).unwrap();
        let mapped = map_files(&Mapping::of(super::preset(preset).unwrap()).unwrap(), &[path], None).unwrap();
        assert_eq!(mapped.turns.len(), 0, "{preset}: {:?}", mapped.turns);
        assert!(mapped.refused[0].1.contains("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"), "{preset}: {:?}", mapped.refused);
        // The others of its batch are read.
        let path = place.path().join("batch.jsonl");
        let batch = [span(1, &said(&first), 1_000, &answer), span(4, "[{broken", 1_000, &answer)];
        let spans = batch.map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            line["resourceSpans"][0]["scopeSpans"][0]["spans"][0].clone()
        });
        let batch = serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]});
        std::fs::write(&path, batch.to_string()).unwrap();
        let mapped = map_files(&Mapping::of(super::preset(preset).unwrap()).unwrap(), &[path], None).unwrap();
        assert_eq!(mapped.turns.len(), 2, "{preset}: {:?}", mapped.turns);
        assert!(mapped.refused[0].1.starts_with("1 of 2 spans"), "{preset}: {:?}", mapped.refused);
    }
}
