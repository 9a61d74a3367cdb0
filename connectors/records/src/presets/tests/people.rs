//! Agents that are people, and hand-overs to them.

use super::turns_of;
use crate::{Mapping, map_files};

/// The turns as `speaker text`, with `!` for those of people, and the same when what is said after a hand-over is left out.
fn turns(name: &str, log: &str) -> (Vec<String>, Vec<String>) {
    let shown = |turn: &crate::Turn| {
        let mark = if turn.fields.get("by_person").is_some() { "!" } else { "" };
        format!("{}{mark} {}", turn.speaker, turn.text)
    };
    let all = turns_of(name, &[("log.jsonl", log)]).iter().map(shown).collect();
    let code = super::preset(name).unwrap();
    let code = match code.strip_prefix("#: {") {
        Some(rest) => format!("#: {{\"until_hand_over\": true, {rest}"),
        None => format!("#: {{\"until_hand_over\": true}}\n{code}"),
    };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("log.jsonl");
    std::fs::write(&path, log).unwrap();
    let mapped = map_files(&Mapping::of(&code).unwrap(), &[path], None).unwrap();
    (all, mapped.turns.iter().map(shown).collect())
}

#[test]
fn people_who_answer_are_agents_and_take_conversations_over() {
    let chatwoot = r#"{"event": "message_created", "id": 1, "content": "A person, please.", "message_type": "incoming", "created_at": "2026-03-05T09:00:00Z", "account": {"id": 1}, "conversation": {"id": 7}, "sender": {"type": "contact"}}
{"event": "conversation_status_changed", "id": 7, "status": "open", "updated_at": 1772701210, "messages": [{"account_id": 1}]}
{"event": "message_created", "id": 2, "content": "Hello?", "message_type": "incoming", "created_at": "2026-03-05T09:00:20Z", "account": {"id": 1}, "conversation": {"id": 7}, "sender": {"type": "contact"}}
{"event": "message_created", "id": 3, "content": "Here I am.", "message_type": "outgoing", "created_at": "2026-03-05T09:00:30Z", "account": {"id": 1}, "conversation": {"id": 7}, "sender": {"type": "user"}}
{"event": "conversation_status_changed", "id": 7, "status": "pending", "updated_at": 1772701240, "messages": [{"account_id": 1}]}
{"event": "message_created", "id": 4, "content": "When?", "message_type": "incoming", "created_at": "2026-03-05T09:00:50Z", "account": {"id": 1}, "conversation": {"id": 7}, "sender": {"type": "contact"}}
{"event": "message_created", "id": 5, "content": "At ten.", "message_type": "outgoing", "created_at": "2026-03-05T09:00:51Z", "account": {"id": 1}, "conversation": {"id": 7}, "sender": {"type": "agent_bot"}}"#;
    let (all, answered) = turns("chatwoot-webhooks", chatwoot);
    let expected = ["user A person, please.", "user Hello?", "agent! Here I am.", "user When?", "agent At ten."];
    assert_eq!(all, expected);
    assert_eq!(answered, [expected[0], expected[2], expected[3], expected[4]]);

    let intercom = r#"{"type": "conversation", "id": "7", "created_at": 100, "source": {"id": "s", "body": "<p>Help.</p>", "author": {"type": "user"}}, "conversation_parts": {"conversation_parts": [{"id": "1", "part_type": "comment", "body": "<p>Which ferry?</p>", "author": {"type": "bot"}, "created_at": 110}, {"id": "2", "part_type": "assignment", "body": null, "author": {"type": "bot"}, "assigned_to": {"type": "admin", "id": "9"}, "created_at": 120}, {"id": "3", "part_type": "comment", "body": "<p>That one.</p>", "author": {"type": "user"}, "created_at": 130}, {"id": "4", "part_type": "comment", "body": "<p>At ten.</p>", "author": {"type": "admin"}, "created_at": 140}, {"id": "5", "part_type": "close", "body": null, "author": {"type": "admin"}, "created_at": 150}, {"id": "6", "part_type": "comment", "body": "<p>Where?</p>", "author": {"type": "user"}, "created_at": 160}]}}"#;
    let (all, answered) = turns("intercom-conversations", intercom);
    let expected = ["user Help.", "agent Which ferry?", "user That one.", "agent! At ten.", "user Where?"];
    assert_eq!(all, expected);
    assert_eq!(answered, [expected[0], expected[1], expected[3], expected[4]]);

    let framework = r#"{"type": "message", "id": "1", "timestamp": "2026-03-05T09:00:00Z", "conversation": {"id": "c"}, "from": {"id": "29:u"}, "text": "When?"}
{"type": "event", "name": "handoff.initiate", "id": "2", "timestamp": "2026-03-05T09:00:10Z", "conversation": {"id": "c"}, "from": {"id": "28:b"}}
{"type": "message", "id": "3", "timestamp": "2026-03-05T09:00:20Z", "conversation": {"id": "c"}, "from": {"id": "29:u"}, "text": "Hello?"}
{"type": "event", "name": "handoff.status", "id": "4", "timestamp": "2026-03-05T09:00:30Z", "conversation": {"id": "c"}, "from": {"id": "28:b"}, "value": {"state": "completed"}}
{"type": "message", "id": "5", "timestamp": "2026-03-05T09:00:40Z", "conversation": {"id": "c"}, "from": {"id": "29:u"}, "text": "Where?"}"#;
    let (all, answered) = turns("bot-framework-activities", framework);
    assert_eq!(all, ["user When?", "user Hello?", "user Where?"]);
    assert_eq!(answered, ["user When?", "user Where?"]);
}
