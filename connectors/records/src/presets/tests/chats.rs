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
