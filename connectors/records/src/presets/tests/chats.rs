//! Chats that are written anew.

use super::of_files;

fn chat(of: &[(&str, &str)]) -> String {
    let messages: Vec<_> = of
        .iter()
        .map(|(id, text)| {
            let role = if text.ends_with('?') { "user" } else { "assistant" };
            serde_json::json!({"id": id, "role": role, "parts": [{"type": "text", "text": text}]})
        })
        .collect();
    serde_json::json!({"id": "c", "messages": messages}).to_string()
}

#[test]
fn what_a_chat_does_not_have_any_more_is_no_turn() {
    let first = chat(&[("1", "When?"), ("2", "At ten.")]);
    let longer = chat(&[("1", "When?"), ("2", "At ten."), ("3", "Where?"), ("4", "Here.")]);
    for (later, expected) in [
        // Another answer, a shorter chat, another question at its beginning.
        (
            chat(&[("1", "When?"), ("2b", "At nine."), ("3", "Why?")]),
            &["c 1 user When?", "c 1 agent At nine.", "c 2 user Why?"][..],
        ),
        (first.clone(), &["c 1 user When?", "c 1 agent At ten."]),
        (chat(&[("1b", "Who?"), ("2c", "You.")]), &["c 1 user Who?", "c 1 agent You."]),
    ] {
        let log = [&*first, &*longer, &*later].join("\n");
        assert_eq!(of_files("ai-sdk-messages", &[("log.jsonl", &log)]), expected, "{later}");
    }
}

#[test]
fn of_questions_at_the_beginning_the_present_one_counts() {
    let message = |id: &str, parent: &str, is_user: bool, text: &str, time: u32| {
        serde_json::json!({"messageId": id, "parentMessageId": parent, "isCreatedByUser": is_user, "text": text,
            "createdAt": format!("2026-03-05T11:23:{time}Z")})
    };
    let none = "00000000-0000-0000-0000-000000000000";
    let chat = serde_json::json!({"conversationId": "c", "messages": [
        message("1", none, true, "When?", 40), message("2", "1", false, "At ten.", 41),
        message("3", none, true, "Where?", 42), message("4", "3", false, "Here.", 43)]});
    let found = of_files("librechat-export", &[("export.json", &chat.to_string())]);
    assert_eq!(found, ["c 1 user Where?", "c 1 agent Here."]);
}

/// As in ggml-org/llama.cpp#25501: the export has all versions of a message.
#[test]
fn of_the_versions_of_an_answer_the_present_one_counts() {
    let message = |id: &str, parent: Option<&str>, role: &str, content: &str, time: u64| {
        let kind = if parent.is_some() { "text" } else { "root" };
        serde_json::json!({"convId": "c", "id": id, "parent": parent, "role": role, "type": kind, "content": content,
            "timestamp": 1_783_619_815_000_u64 + time, "children": []})
    };
    let messages = [
        message("0", None, "system", "", 0),
        message("1", Some("0"), "user", "When?", 1),
        message("2", Some("1"), "assistant", "At ten.", 2),
        message("3", Some("1"), "assistant", "At nine.", 3),
        message("4", Some("0"), "user", "Where?", 4),
        message("5", Some("4"), "assistant", "Here.", 5),
    ];
    let session = serde_json::json!({"type": "session", "harness": "llama.app", "id": "c", "currNode": "5"});
    let line = |message| serde_json::json!({"type": "message", "message": message}).to_string();
    let lines = |number| messages[..number].iter().map(line).collect::<Vec<_>>().join("\n");
    let expected = ["c 1 user When?", "c 1 agent At nine."];
    assert_eq!(of_files("llama-ui-export", &[("c.jsonl", &format!("{session}\n{}", lines(4)))]), expected);
    let edited = of_files("llama-ui-export", &[("c.jsonl", &format!("{session}\n{}", lines(6)))]);
    assert_eq!(edited, ["c 1 user Where?", "c 1 agent Here."]);
    let whole = serde_json::json!([{"conv": {"id": "c", "currNode": "3"}, "messages": messages[..4]}]);
    assert_eq!(of_files("llama-ui-export", &[("c.json", &whole.to_string())]), expected);
}

#[test]
fn chats_of_telegram_desktop_have_their_agent() {
    let chat = |kind: &str| {
        serde_json::json!({"name": "Ferry", "type": kind, "id": 777, "messages": [
            {"id": 1, "type": "service", "date": "2026-03-05T11:23:39", "action": "joined_telegram"},
            {"id": 2, "type": "message", "date": "2026-03-05T11:23:40", "date_unixtime": "1772706220", "from": "Ann",
             "from_id": "user5", "text": ["When does it ", {"type": "bold", "text": "leave"}, "?"]},
            {"id": 3, "type": "message", "date": "2026-03-05T11:23:41", "date_unixtime": "1772706221", "from": "Ferry",
             "from_id": "user777", "text": "At ten."}]})
    };
    let asked = ["777 1 user When does it leave?", "777 1 agent At ten."];
    assert_eq!(of_files("telegram-export", &[("result.json", &chat("bot_chat").to_string())]), asked);
    let all = serde_json::json!({"chats": {"about": "", "list": [chat("bot_chat")]}, "contacts": {"list": []}});
    assert_eq!(of_files("telegram-export", &[("result.json", &all.to_string())]), asked);
    let helped = of_files("telegram-export", &[("result.json", &chat("personal_chat").to_string())]);
    assert!(helped.iter().any(|turn| turn.ends_with("user At ten.")), "{helped:?}");
}
