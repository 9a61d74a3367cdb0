use super::*;
use crate::{Mapping, map_files};

mod calls;
mod chats;
mod languages;
mod people;
mod reports;

/// The turns that a preset makes of files.
fn turns_of(name: &str, files: &[(&str, &str)]) -> Vec<crate::Turn> {
    let place = tempfile::tempdir().unwrap();
    for (file, text) in files {
        std::fs::write(place.path().join(file), text).unwrap();
    }
    let mapped = map_files(&Mapping::of(preset(name).unwrap()).unwrap(), &[place.path().to_owned()], None).unwrap();
    assert!(mapped.refused.is_empty(), "{name}: {:?}", mapped.refused);
    mapped.turns
}

/// These as `conversation turn speaker text`.
fn of_files(name: &str, files: &[(&str, &str)]) -> Vec<String> {
    let shown = |turn: crate::Turn| format!("{} {} {} {}", turn.conversation_id, turn.turn, turn.speaker, turn.text);
    turns_of(name, files).into_iter().map(shown).collect()
}

/// These as `conversation turn speaker text`, with the time if there is one.
fn timed(name: &str, file: &str, text: &str) -> Vec<String> {
    let shown = |turn: crate::Turn| {
        let time = turn.timestamp.map_or(String::new(), |time| format!(" {time}"));
        format!("{} {} {} {}{time}", turn.conversation_id, turn.turn, turn.speaker, turn.text)
    };
    turns_of(name, &[(file, text)]).into_iter().map(shown).collect()
}

fn turns(name: &str, file: &str, text: &str) -> Vec<String> {
    of_files(name, &[(file, text)])
}

/// Small logs in forms of which the other tests have none.
#[test]
fn further_forms_become_turns() {
    for (name, file, text, expected) in [
        (
            "openai-chat",
            "log.jsonl",
            r#"{"request": {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "When?"}]}]}, "response": {"id": "r1", "created": 1772709820, "choices": [{"message": {"role": "assistant", "content": "At ten."}}]}}
{"request": {"messages": [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At ten."}, {"role": "user", "content": "Where?"}]}, "response": {"id": "r2", "created": 1772709830, "choices": [{"message": {"role": "assistant", "content": "Here."}}]}}
{"request": {"messages": [{"role": "user", "content": "Fails?"}]}, "response": {"error": {"message": "busy"}}, "session_id": "s"}"#,
            &[
                "call r1 1 user When?",
                "call r1 1 agent At ten.",
                "call r1 2 user Where?",
                "call r1 2 agent Here.",
                "s 1 user Fails?",
            ][..],
        ),
        (
            "anthropic-messages",
            "log.jsonl",
            r#"{"custom_id": "a", "params": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "When?"}]}}
{"custom_id": "a", "result": {"type": "succeeded", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "At ten."}]}}}
{"custom_id": "b", "result": {"type": "errored", "error": {}}}
{"session_id": "s", "request": {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}, {"type": "text", "text": "Where?"}]}]}, "response": {"id": "msg_2", "role": "assistant", "content": [{"type": "text", "text": "Here."}, {"type": "tool_use", "name": "t"}]}}"#,
            &["call a 1 user When?", "call a 1 agent At ten.", "s 1 user Where?", "s 1 agent Here."],
        ),
        (
            "langsmith-runs",
            "runs.jsonl",
            r#"{"id": "1", "trace_id": "1", "run_type": "chain", "parent_run_id": null, "start_time": "2026-03-05T11:23:40", "end_time": "2026-03-05T11:23:41", "error": null, "extra": {"metadata": {"thread_id": "t"}}, "inputs": {"question": "When?"}, "outputs": {"answer": "At ten."}}
{"id": "2", "trace_id": "1", "run_type": "llm", "parent_run_id": "1", "start_time": "2026-03-05T11:23:40", "inputs": {"messages": []}, "outputs": {}}
{"id": "3", "trace_id": "3", "run_type": "llm", "parent_run_id": null, "start_time": "2026-03-05T11:24:40", "end_time": "2026-03-05T11:24:41", "extra": {"metadata": {"thread_id": "t"}}, "inputs": {"messages": [[{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {"content": "Where?", "type": "human"}}]]}, "outputs": {"generations": [[{"text": "Here.", "message": {"kwargs": {"content": "Here.", "type": "ai"}}}]]}}
{"id": "4", "trace_id": "4", "run_type": "chain", "parent_run_id": null, "start_time": "2026-03-05T11:25:40", "end_time": "2026-03-05T11:25:41", "error": "broke", "extra": {"metadata": {"thread_id": "t"}}, "inputs": {"input": "Why?"}, "outputs": null}"#,
            &["t 1 user When?", "t 1 agent At ten.", "t 2 user Where?", "t 2 agent Here.", "t 3 user Why?"],
        ),
        (
            "llamaindex-chat-store",
            "chat_store.json",
            r#"{"store": {"ann": [{"role": "system", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "Be brief."}]}, {"role": "user", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "When?"}]}, {"role": "assistant", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "At ten."}]}], "bo": [{"role": "user", "content": "Where?", "additional_kwargs": {}}]}, "class_name": "SimpleChatStore"}"#,
            &["ann 1 user When?", "ann 1 agent At ten.", "bo 1 user Where?"],
        ),
        (
            "ai-sdk-messages",
            "chats.jsonl",
            r#"{"id": "c", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "When?"}]}]}
{"id": "c", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "When?"}]}, {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "At ten.", "state": "done"}]}]}
{"chatId": "d", "id": "m9", "role": "user", "parts": [{"type": "text", "text": "Where?"}], "createdAt": "2026-03-05T11:23:40Z"}"#,
            &["c 1 user When?", "c 1 agent At ten.", "d 1 user Where?"],
        ),
        (
            "librechat-export",
            "export.json",
            r#"{"conversationId": "c", "endpoint": "openAI", "title": "x", "branches": true, "recursive": false, "messages": [
  {"messageId": "1", "parentMessageId": "00000000-0000-0000-0000-000000000000", "conversationId": "c", "isCreatedByUser": true, "sender": "User", "text": "When?", "createdAt": "2026-03-05T11:23:40Z"},
  {"messageId": "2", "parentMessageId": "1", "isCreatedByUser": false, "sender": "GPT", "text": "", "content": [{"type": "think", "think": "hm"}, {"type": "text", "text": "At nine."}], "createdAt": "2026-03-05T11:23:41Z"},
  {"messageId": "3", "parentMessageId": "1", "isCreatedByUser": false, "sender": "GPT", "text": "At ten.", "createdAt": "2026-03-05T11:23:50Z"},
  {"messageId": "4", "parentMessageId": "3", "isCreatedByUser": true, "sender": "User", "text": "Where?", "createdAt": "2026-03-05T11:24:00Z"}]}"#,
            &["c 1 user When?", "c 1 agent At ten.", "c 2 user Where?"],
        ),
        (
            "claude-export",
            "conversations.json",
            r#"[{"uuid": "c", "name": "x", "created_at": "2026-03-05T11:23:40Z", "chat_messages": [
  {"uuid": "1", "sender": "human", "text": "When?", "content": [{"type": "text", "text": "When?"}], "created_at": "2026-03-05T11:23:40Z", "attachments": [], "files": []},
  {"uuid": "2", "sender": "assistant", "text": "", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "At ten."}, {"type": "tool_use", "name": "t"}], "created_at": "2026-03-05T11:23:41Z"}]},
  {"uuid": "empty", "chat_messages": []}]"#,
            &["c 1 user When?", "c 1 agent At ten."],
        ),
        (
            "botpress-messages",
            "messages.jsonl",
            r#"{"messages": [{"id": "m2", "createdAt": "2026-03-05T11:23:41Z", "type": "text", "direction": "outgoing", "userId": "b", "conversationId": "c", "payload": {"type": "text", "text": "At ten."}, "tags": {}}, {"id": "m1", "createdAt": "2026-03-05T11:23:40Z", "type": "text", "direction": "incoming", "userId": "u", "conversationId": "c", "payload": {"type": "text", "text": "When?"}}], "meta": {}}
{"id": "m3", "createdAt": "2026-03-05T11:23:45Z", "type": "image", "direction": "incoming", "conversationId": "c", "payload": {"imageUrl": "x"}}"#,
            &["c 1 user When?", "c 1 agent At ten."],
        ),
        (
            "intercom-conversations",
            "webhooks.jsonl",
            r#"{"type": "notification_event", "topic": "conversation.user.created", "data": {"item": {"type": "conversation", "id": "7", "created_at": 1772709820, "source": {"id": "s", "body": "<p>When?</p>", "author": {"type": "user", "id": "u"}}, "conversation_parts": {"type": "conversation_part.list", "conversation_parts": []}}}}
{"type": "notification_event", "topic": "conversation.admin.replied", "data": {"item": {"type": "conversation", "id": "7", "created_at": 1772709820, "source": {"id": "s", "body": "<p>When?</p>", "author": {"type": "user"}}, "conversation_parts": {"conversation_parts": [{"type": "conversation_part", "id": "1", "part_type": "note", "body": "<p>Ask Bo.</p>", "author": {"type": "admin"}, "created_at": 1772709825}, {"type": "conversation_part", "id": "2", "part_type": "comment", "body": "<p>At ten.</p>", "author": {"type": "admin"}, "created_at": 1772709830}]}}}}
{"type": "notification_event", "topic": "ping", "data": {"item": {"type": "ping"}}}"#,
            &["7 1 user When?", "7 1 agent At ten."],
        ),
        (
            "teams-graph-messages",
            "messages.jsonl",
            r#"{"value": [{"id": "10", "replyToId": null, "messageType": "message", "createdDateTime": "2026-03-05T11:23:40.1Z", "chatId": null, "channelIdentity": {"teamId": "t", "channelId": "c"}, "from": {"user": {"id": "u", "displayName": "Ann"}}, "body": {"contentType": "html", "content": "<div><at id=\"0\">Bot</at>&nbsp;When?</div>"}}, {"id": "11", "replyToId": "10", "messageType": "message", "createdDateTime": "2026-03-05T11:23:41.1Z", "channelIdentity": {"channelId": "c"}, "from": {"application": {"id": "b"}, "user": null}, "body": {"contentType": "text", "content": "At ten."}}, {"id": "12", "replyToId": "10", "messageType": "systemEventMessage", "createdDateTime": "2026-03-05T11:23:41.1Z", "body": {"content": "x"}}]}
{"id": "20", "messageType": "message", "createdDateTime": "2026-03-05T11:24:40Z", "chatId": "dm", "from": {"user": {"id": "u"}}, "body": {"contentType": "text", "content": "Nothing."}, "deletedDateTime": "2026-03-05T11:25:40Z"}"#,
            &["c/10 1 user When?", "c/10 1 agent At ten."],
        ),
        (
            "discord-gateway",
            "events.jsonl",
            r#"{"op": 0, "t": "MESSAGE_CREATE", "s": 1, "d": {"id": "1", "type": 0, "channel_id": "c", "guild_id": "g", "content": "<@99> When?", "author": {"id": "u"}, "mentions": [{"id": "99", "bot": true}], "timestamp": "2026-03-05T11:23:40.000000+00:00"}}
{"op": 0, "t": "TYPING_START", "s": 2, "d": {}}
{"op": 0, "t": "MESSAGE_CREATE", "s": 3, "d": {"id": "2", "type": 19, "channel_id": "c", "guild_id": "g", "content": "At ten.", "author": {"id": "99", "bot": true}, "message_reference": {"message_id": "1"}, "timestamp": "2026-03-05T11:23:41.000000+00:00"}}
{"op": 0, "t": "MESSAGE_CREATE", "s": 4, "d": {"id": "3", "type": 0, "channel_id": "dm", "content": "Where?", "author": {"id": "u"}, "timestamp": "2026-03-05T11:23:50.000000+00:00"}}
{"op": 0, "t": "MESSAGE_UPDATE", "s": 5, "d": {"id": "3", "type": 0, "channel_id": "dm", "content": "And where?", "author": {"id": "u"}, "timestamp": "2026-03-05T11:23:50.000000+00:00", "edited_timestamp": "2026-03-05T11:23:55.000000+00:00"}}
{"op": 0, "t": "MESSAGE_CREATE", "s": 6, "d": {"id": "4", "type": 0, "channel_id": "dm", "content": "Here.", "author": {"id": "99", "bot": true}, "timestamp": "2026-03-05T11:23:56.000000+00:00"}}
{"op": 0, "t": "MESSAGE_CREATE", "s": 7, "d": {"id": "5", "type": 0, "channel_id": "c", "guild_id": "g", "content": "Hi Bo.", "author": {"id": "u"}, "timestamp": "2026-03-05T11:24:40.000000+00:00"}}"#,
            &["1 1 user When?", "1 1 agent At ten.", "dm 1 user And where?", "dm 1 agent Here."],
        ),
        (
            "openllmetry-spans",
            "spans.jsonl",
            r#"{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "1", "traceId": "t", "startTimeUnixNano": "1772709820000000000", "endTimeUnixNano": "1772709821000000000", "attributes": [{"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}}, {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "When?"}}, {"key": "gen_ai.completion.0.role", "value": {"stringValue": "assistant"}}, {"key": "gen_ai.completion.0.content", "value": {"stringValue": "At ten."}}, {"key": "traceloop.association.properties.session_id", "value": {"stringValue": "s"}}]}, {"spanId": "2", "attributes": [{"key": "http.method", "value": {"stringValue": "GET"}}]}]}]}]}"#,
            &["s 1 user When?", "s 1 agent At ten."],
        ),
    ] {
        assert_eq!(turns(name, file, text), expected, "{name}");
    }
}

/// What programs send in OpenTelemetry's protocol, by the names of many instrumentations.
#[test]
fn spans_and_log_records_of_all_instrumentations_become_turns() {
    let log = include_str!("tests/otlp.jsonl");
    let mut turns = turns("otlp", "otlp.jsonl", log);
    // Turns of a conversation stay in their order.
    turns.sort_by(|one, other| one.split(' ').next().cmp(&other.split(' ').next()));
    assert_eq!(
        turns,
        [
            "content 1 user Why?",
            "content 1 agent So.",
            "details 1 user What?",
            "details 1 agent This.",
            "events 1 user Where?",
            "events 1 agent Here.",
            "failed 1 user Fails?",
            "fuse 1 user Who?",
            "fuse 1 agent You.",
            "sdk 1 user How?",
            "sdk 1 agent By foot.",
            "t1 1 user When?",
            "t1 1 agent At ten.",
        ]
    );
}
