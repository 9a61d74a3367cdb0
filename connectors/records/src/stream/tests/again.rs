//! What comes again, and what follows calls, as records come.

use super::*;

#[test]
fn messages_without_an_id_count_once_also_after_restarts() {
    let mut lines = String::new();
    for at in 0..12 {
        let speaker = if at % 2 == 0 { "user" } else { "agent" };
        let line = format!("{{\"c\": \"c\", \"s\": \"{speaker}\", \"t\": \"t{}\", \"at\": {at}}}\n", at % 4);
        lines += &line;
        lines += &line;
    }
    let code = "#: {\"once_by_content\": true}\n{conversation: .c, speaker: .s, text: .t, order: .at, time: .at}";
    let log = Log::of(code, &lines);
    let expected = log.whole();
    assert_eq!(expected.len(), 12);
    let twice: Vec<usize> = (0..24).chain(0..24).collect();
    for settle in [0, 3, 100] {
        assert_eq!(log.streamed(&twice, settle, &[5, 17, 30]).0, expected, "{settle}");
    }
}

/// Responses that bring their history along, and responses that follow them.
#[test]
fn messages_follow_answers_of_calls() {
    let said = |text: &str| format!(r#"{{"type": "message", "role": "assistant", "content": "{text}"}}"#);
    let lines = [
        format!(
            r#"{{"request": {{"input": "When?"}}, "response": {{"id": "r1", "created_at": 100, "output": [{}]}}}}"#,
            said("Ten.")
        ),
        format!(
            r#"{{"request": {{"input": [{{"role": "user", "content": "When?"}}, {}, {{"role": "user", "content": "Where?"}}]}}, "response": {{"id": "r2", "created_at": 110, "output": [{}]}}}}"#,
            said("Ten."),
            said("Here.")
        ),
        format!(
            r#"{{"request": {{"input": "Why?", "previous_response_id": "r2"}}, "response": {{"id": "r3", "created_at": 120, "output": [{}]}}}}"#,
            said("So.")
        ),
        r#"{"request": {"input": "Who?", "previous_response_id": "r3"}, "response": null, "error": "timeout"}"#
            .to_owned(),
    ];
    let log = Log::of(crate::presets::preset("openai-responses").unwrap(), &lines.join("\n"));
    let expected = log.whole();
    assert_eq!(expected.len(), 7);
    assert!(expected.iter().all(|turn| turn.starts_with("r1 ")), "{expected:?}");
    for settle in [0, 1, 100] {
        assert_eq!(log.streamed(&[0, 1, 2, 3], settle, &[2]).0, expected, "{settle}");
    }
}

/// A chat that is written anew, with an answer that was regenerated meanwhile.
#[test]
fn chats_that_are_written_anew_give_what_they_have_at_the_end() {
    let message =
        |id: &str, role: &str, text: &str| format!(r#"{{"id": "{id}", "role": "{role}", "content": "{text}"}}"#);
    let (one, two) = (message("1", "user", "When?"), message("2", "assistant", "Nine."));
    let (other, three) = (message("2b", "assistant", "Ten."), message("3", "user", "Where?"));
    let chat = |of: &[&str]| format!(r#"{{"id": "c", "messages": [{}]}}"#, of.join(", "));
    let lines =
        [chat(&[&one]), chat(&[&one, &two]), chat(&[&one]), chat(&[&one, &other]), chat(&[&one, &other, &three])];
    let log = Log::of(crate::presets::preset("ai-sdk-messages").unwrap(), &lines.join("\n"));
    let expected = ["c 1 user When?", "c 1 agent Ten.", "c 2 user Where?"];
    assert_eq!(log.whole(), expected);
    assert_eq!(log.streamed(&[0, 1, 2, 3, 4], 100, &[3]).0, expected);
    // What was said before it was taken back stays.
    let live = ["c 1 user When?", "c 1 agent Nine.", "c 1 agent Ten.", "c 2 user Where?"];
    assert_eq!(log.streamed(&[0, 1, 2, 3, 4], 0, &[3]).0, live);
}

#[test]
fn messages_and_calls_of_a_conversation_are_in_one_order() {
    let code = r#"if .q then {id, conversation: "c", order: .at, messages: [{speaker: "user", text: .q}], answer: {speaker: "agent", text: .a}}
        else {id, conversation: "c", speaker: "user", text: .t, order: .at} end"#;
    for lines in [
        r#"{"id": 1, "q": "When?", "a": "Ten.", "at": 2}
{"id": 2, "t": "Hi.", "at": 1}
{"id": 3, "t": "Thanks.", "at": 3}"#,
        r#"{"id": 1, "t": "Thanks.", "at": 3}
{"id": 2, "q": "When?", "a": "Ten.", "at": 2}
{"id": 3, "t": "Hi.", "at": 1}"#,
    ] {
        let log = Log::of(code, lines);
        let expected = ["c 1 user Hi.", "c 2 user When?", "c 2 agent Ten.", "c 3 user Thanks."];
        assert_eq!(log.whole(), expected);
        for settle in [2, 100] {
            assert_eq!(log.streamed(&[0, 1, 2], settle, &[1, 2]).0, expected, "{settle} {lines}");
        }
    }
}

/// A process that goes on has what it needs to know until when a message waits.
#[test]
fn what_waits_longer_is_stored_anew() {
    let log = Log::of(
        "{id, conversation: \"c\", speaker: \"user\", text: .t, time: .at}",
        "{\"id\": 1, \"t\": \"One\", \"at\": 1}\n{\"id\": 2, \"t\": \"two?\", \"at\": 2}",
    );
    let options = Options { burst_s: 5.0, ..Options::default() };
    let (mut stream, mut memory) = (Stream::new(options, BTreeMap::new(), 0), InMemory::default());
    stream.take(log.items(0), "log:1", 5);
    stream.take(log.items(1), "log:2", 8);
    let released = stream.release(5, false, &mut memory);
    assert_eq!((released.turns.len(), &released.waiting[..]), (0, &[0][..]));
    assert_eq!(stream.held(0).unwrap().due, Some(8));
}
