//! What waits together: rows with marks, parts with edits between them, and messages beside what they share.

use super::edits::told;
use super::*;

#[test]
fn a_mark_that_says_something_is_a_question_of_its_row() {
    let burst = |options: &mut Options| options.burst_s = 5.0;
    let tick = (16, r#"{"id": 9, "c": "b", "s": "user", "t": "Other?"}"#);
    let taken_back = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "at": 1}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "oops?", "at": 2}"#),
        (12, r#"{"id": 3, "c": "a", "s": "user", "t": "two?", "at": 3, "back": true}"#),
        tick,
    ];
    let starts = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "at": 1, "begin": true}"#),
        (14, r#"{"id": 2, "c": "a", "s": "user", "t": "two?", "at": 2}"#),
        tick,
    ];
    for records in [&taken_back[..], &starts] {
        let told = told(records, 5, &burst);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.iter().any(|turn| turn.contains("1 user One\ntwo?")), "{told:?}");
    }
}

/// The parts of a message have its time, and what follows them follows that.
#[test]
fn parts_of_a_question_are_in_its_row() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "m": "x", "o": 1}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "two", "m": "x", "at": 1, "o": 2}"#),
        (14, r#"{"id": 3, "c": "a", "s": "user", "t": "three?", "at": 9, "o": 3}"#),
        (16, r#"{"id": 4, "c": "b", "s": "user", "t": "Other?", "o": 4}"#),
    ];
    for settle in [5, 100] {
        let told = told(&records, settle, &|options| options.burst_s = 5.0);
        assert!(told.contains(&"1 user One two\nthree? None {}".to_owned()), "{told:?}");
    }
}

#[test]
fn marks_of_users_take_back_one_question_each() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?"}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "Two?"}"#),
        (12, r#"{"id": 3, "c": "a", "s": "user", "back": true}"#),
        (14, r#"{"id": 4, "c": "a", "s": "user", "back": true}"#),
        (16, r#"{"id": 5, "c": "a", "s": "user", "t": "Three?"}"#),
    ];
    for settle in [5, 100] {
        assert_eq!(told(&records, settle, &|_| {}), ["1 user Three? None {}"], "{settle}");
    }
}

#[test]
fn an_edit_of_an_earlier_message_is_not_between_parts() {
    let records = [
        (1, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (10, r#"{"id": 2, "c": "a", "s": "user", "t": "Two", "o": 2, "m": "x"}"#),
        (11, r#"{"id": 1, "t": "One."}"#),
        (14, r#"{"id": 3, "c": "a", "s": "user", "t": "three?", "o": 3, "m": "x"}"#),
        (15, r#"{"id": 4, "c": "b", "s": "user", "t": "Other?", "o": 4}"#),
    ];
    let told = told(&records, 5, &|_| {});
    assert!(told.contains(&"2 user Two three? None {}".to_owned()), "{told:?}");
}

#[test]
fn the_parts_of_a_message_that_is_before_what_is_due_are_due() {
    let records = [
        (10, r#"{"id": 2, "c": "a", "s": "agent", "t": "Hm.", "o": 2}"#),
        (11, r#"{"id": 2, "gone": true}"#),
        (12, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "o": 1, "m": "x"}"#),
        (14, r#"{"id": 3, "c": "a", "s": "user", "t": "two?", "o": 3, "m": "x"}"#),
        (15, r#"{"id": 4, "c": "b", "s": "user", "t": "Other?", "o": 4}"#),
    ];
    assert_eq!(told(&records, 5, &|_| {}), ["1 user One two? None {}", "1 user Other? None {}"]);
}

/// What is between them may be deleted as long as it waits.
#[test]
fn a_part_waits_for_what_is_between_it_and_a_further_one() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "o": 1, "m": "x"}"#),
        (13, r#"{"id": 2, "c": "a", "s": "agent", "t": "Hm.", "o": 2}"#),
        (14, r#"{"id": 3, "c": "a", "s": "user", "t": "two?", "o": 3, "m": "x"}"#),
        (16, r#"{"id": 2, "gone": true}"#),
        (19, r#"{"id": 4, "c": "b", "s": "user", "t": "Other?", "o": 4}"#),
    ];
    let expected = ["1 user One two? None {}", "1 user Other? None {}"];
    for burst_s in [0.0, 5.0] {
        assert_eq!(told(&records, 5, &|options| options.burst_s = burst_s), expected, "{burst_s}");
    }
    // It is not deleted.
    let kept = [&records[..3], &records[4..]].concat();
    let expected = ["1 user One None {}", "1 agent Hm. None {}", "2 user two? None {}", "1 user Other? None {}"];
    assert_eq!(told(&kept, 5, &|_| {}), expected);
}

#[test]
fn a_question_waits_for_what_is_between_it_and_the_next_one_of_its_row() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "o": 1}"#),
        (13, r#"{"id": 2, "c": "a", "s": "agent", "t": "Hm.", "o": 2}"#),
        (14, r#"{"id": 3, "c": "a", "s": "user", "t": "two?", "o": 3}"#),
        (16, r#"{"id": 2, "gone": true}"#),
        (19, r#"{"id": 4, "c": "b", "s": "user", "t": "Other?", "o": 4}"#),
    ];
    let burst = |options: &mut Options| options.burst_s = 5.0;
    assert_eq!(told(&records, 5, &burst), ["1 user One\ntwo? None {}", "1 user Other? None {}"]);
    let kept = [&records[..3], &records[4..]].concat();
    let expected = ["1 user One None {}", "1 agent Hm. None {}", "2 user two? None {}", "1 user Other? None {}"];
    assert_eq!(told(&kept, 5, &burst), expected);
}

#[test]
fn a_question_waits_for_a_mark_that_takes_it_back_if_another_one_is_deleted() {
    for between in
        [r#"{"id": 2, "c": "a", "s": "user", "t": "Two?", "o": 2}"#, r#"{"id": 2, "c": "a", "begin": true, "o": 2}"#]
    {
        let records = [
            (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
            (13, between),
            (14, r#"{"id": 3, "c": "a", "back": true, "o": 3}"#),
            (16, r#"{"id": 2, "gone": true}"#),
            (19, r#"{"id": 4, "c": "b", "s": "user", "t": "Other?", "o": 4}"#),
        ];
        assert_eq!(told(&records, 5, &|_| {}), ["1 user Other? None {}"], "{between}");
        let kept = [&records[..3], &records[4..]].concat();
        assert_eq!(told(&kept, 5, &|_| {}), ["1 user One? None {}", "1 user Other? None {}"], "{between}");
    }
}

#[test]
fn what_messages_share_is_no_message_that_others_come_before() {
    let log = Log::of(
        "{id, join: .j, conversation: .c, speaker: .s, text: .t, order: .at}",
        r#"{"j": 5, "c": "c"}
{"id": 5, "j": 5, "s": "user", "t": "Five?", "at": 5}
{"id": 4, "c": "c", "s": "user", "t": "Four?", "at": 4}
{"id": 9, "c": "b", "s": "user", "t": "Other?", "at": 9}
{"id": 3, "c": "c", "s": "user", "t": "Three?", "at": 3}"#,
    );
    let expected = ["b 1 user Other?", "c 1 user Three?", "c 2 user Four?", "c 3 user Five?"];
    assert_eq!(log.whole(), expected);
    assert_eq!(log.streamed(&[0, 1, 2, 3, 4], 3, &[]).0, expected);
}

/// An edit shares with others what its message does, but not who speaks.
#[test]
fn an_edit_that_comes_first_is_a_part_as_its_message() {
    let log = Log::of(
        "{id, join: .j, conversation: .c, speaker: .s, text: .t, order: .at, merge: .m, version: .v}",
        r#"{"id": 1, "c": "c", "s": "user", "t": "One", "at": 1, "m": "x", "v": 1}
{"id": 2, "t": "two?", "v": 2}
{"j": 2, "c": "c"}
{"id": 2, "j": 2, "s": "user", "t": "tow?", "at": 2, "m": "x", "v": 1}"#,
    );
    for settle in [3, 100] {
        assert_eq!(log.streamed(&[0, 1, 2, 3], settle, &[]).0, ["c 1 user One two?"], "{settle}");
    }
}

#[test]
fn a_late_edit_is_of_the_conversation_of_its_turn() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "agent", "t": "Yse."}"#),
        (20, r#"{"id": 1, "c": "b", "t": "Yes.", "v": 2}"#),
        (30, r#"{"id": 1, "c": "b", "gone": true}"#),
    ];
    let change = |options: &mut Options| (options.revise, options.with_agent) = (true, true);
    assert_eq!(told(&records, 0, &change), ["1 agent Yse. None {}", "1 agent Yes. None {}", "1 agent  None {}"]);
}

#[test]
fn a_late_text_is_of_the_conversation_of_its_message() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "o": 1}"#),
        (30, r#"{"id": 2, "c": "b", "s": "user", "t": "Other?", "o": 5}"#),
        (32, r#"{"id": 1, "c": "b", "t": "One?", "o": 1}"#),
        (36, r#"{"id": 3, "c": "b", "s": "user", "t": "Another?", "o": 6}"#),
    ];
    let expected = ["1 user Other? None {}", "1 user One? None {}", "2 user Another? None {}"];
    assert_eq!(told(&records, 5, &|_| {}), expected);
}

/// A message without a text is between others only when it comes first.
#[test]
fn what_says_nothing_again_is_a_part_of_nothing() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "", "o": 1, "m": "x"}"#),
        (11, r#"{"id": 2, "c": "a", "s": "agent", "t": "Hello.", "o": 2}"#),
        (30, r#"{"id": 1, "c": "a", "s": "user", "t": "", "o": 1, "m": "x"}"#),
        (31, r#"{"id": 3, "c": "a", "s": "user", "t": "One?", "o": 3, "m": "x"}"#),
    ];
    assert_eq!(told(&records, 5, &|_| {}), ["1 agent Hello. None {}", "2 user One? None {}"]);
}

#[test]
fn what_waits_for_no_agent_is_counted_as_messages_and_versions() {
    let log = Log::of(
        "#: {\"with_agent\": true}\n{id, conversation: \"c\", speaker: \"user\", text: .t, version: .v}",
        "{\"id\": 1, \"t\": \"Oen?\", \"v\": 1}\n{\"id\": 1, \"t\": \"One?\", \"v\": 2}\n{\"id\": 2, \"t\": \"Two?\"}",
    );
    let expected = LeftOut::from([("another version", 1), ("without the agent", 2)]);
    for settle in [1, 100] {
        assert_eq!(log.streamed(&[0, 1, 2], settle, &[]).1, expected, "{settle}");
    }
}

/// On a branch, what follows a message that came with it has the next number.
#[test]
fn messages_of_one_branch_are_numbered_on() {
    let code = "#: {\"branch\": true}\n{id, conversation: (.c // \"c\"), parent: .to, speaker: .s, text: .t, \
        starts: (.begin == true), removed: (.gone == true)}";
    let starts = r#"{"id": 1, "s": "user", "t": "One?"}
{"id": 2, "to": 1, "s": "user", "t": "Two?"}
{"id": 3, "to": 2, "begin": true}
{"id": 4, "to": 2, "s": "user", "t": "Three?"}
{"id": 3, "to": 4, "s": "agent", "t": "Yes."}"#;
    let deleted = r#"{"id": 1, "s": "user", "t": "One?"}
{"id": 2, "to": 1, "s": "user", "t": "Two?"}
{"id": 3, "to": 2, "s": "user", "t": "Three?"}
{"id": 2, "gone": true}"#;
    let trees = r#"{"id": 1, "s": "user", "t": "One?"}
{"id": 2, "s": "user", "t": "Two?"}
{"id": 3, "to": 1, "s": "user", "t": "Three?"}"#;
    let elsewhere = r#"{"id": 1, "s": "user", "t": "One?"}
{"id": 2, "to": 1, "s": "user", "t": "Two?"}
{"id": 3, "to": 2, "c": "d", "s": "user", "t": "Three?"}"#;
    for lines in [starts, deleted, trees, elsewhere] {
        let log = Log::of(code, lines);
        let order: Vec<usize> = (0..log.lines.len()).collect();
        assert_eq!(log.streamed(&order, 100, &[]).0, log.whole(), "{lines}");
    }
}

#[test]
fn what_became_no_turn_is_not_deleted_after_it_was_one() {
    let log = Log::of(
        "{id, conversation: \"c\", speaker: .s, text: .t, removed: (.gone == true)}",
        "{\"id\": 1, \"s\": \"user\", \"t\": \" \"}\n{\"id\": 1, \"s\": \"user\", \"t\": \" \"}\n{\"id\": 1, \"gone\": true}",
    );
    let expected = [("again after it was left out", 1), ("deleted", 1), ("without text", 1)];
    assert_eq!(log.streamed(&[0, 1, 2], 0, &[]).1, LeftOut::from(expected));
}

#[test]
fn what_an_earlier_version_remembered_is_read() {
    let mut memory = InMemory::default();
    let turned = r#"{"id":"a","said":5,"version":"3","fields":{"x":1}}"#;
    memory.set("i:1", Some(format!(r#"{{"conversation":"a","turn":2,"turned":{turned}}}"#)));
    let said = known::get::<known::Said>(&mut memory, "1").unwrap();
    let turned = said.turned.unwrap();
    assert_eq!((said.turn, said.part, turned.rank, turned.fields_version), (2, 0, 0, None));
    assert_eq!(turned.version, Some(Val::from(3_isize)));
}

#[test]
fn a_turn_has_one_time() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1, "f": {"timestamp": 5}}"#),
        (20, r#"{"id": 1, "t": "Two?"}"#),
        (30, r#"{"id": 2, "c": "a", "s": "user", "t": "Three?", "f": {"timestamp": 5}}"#),
    ];
    let expected = ["1 user One? Some(1.0) {}", "1 user Two? Some(1.0) {}", r#"2 user Three? None {"timestamp":5}"#];
    assert_eq!(told(&records, 0, &|options| options.revise = true), expected);
}

#[test]
fn marks_of_rasa_without_a_time_are_not_one() {
    let log = Log::of(
        crate::presets::preset("rasa-events").unwrap(),
        r#"{"sender_id": "c", "event": "user", "text": "One?"}
{"sender_id": "c", "event": "user", "text": "Two?"}
{"sender_id": "c", "event": "rewind"}
{"sender_id": "c", "event": "rewind"}
{"sender_id": "c", "event": "user", "text": "Three?"}"#,
    );
    assert_eq!(log.whole(), ["c 1 user Three?"]);
}

/// What a mark takes back may hold what others take back. Each message is looked at once, also in a conversation in which as
/// many marks follow as many questions.
#[test]
fn as_many_marks_as_questions_are_little_work() {
    const NUMBER: u64 = 40_000;
    let options = Options { burst_s: 3.0, ..Options::default() };
    let items = (0..2 * NUMBER).map(|at| {
        let message = Message {
            conversation: Some("a".to_owned()),
            id: Some(at.to_string()),
            order: Some(Val::from(at as isize)),
            time: Some(at as f64),
            ..Message::default()
        };
        let (speaker, text) = (Some("user".to_owned()), Some("When?".to_owned()));
        let message =
            if at < NUMBER { Message { speaker, text, ..message } } else { Message { rewind: true, ..message } };
        Item::Message(Box::new(message))
    });
    let mut stream = Stream::new(options, BTreeMap::new(), 0);
    stream.take(items.collect(), "log", 1);
    let released = stream.release(1, false, &mut InMemory::default());
    assert_eq!((released.turns.len(), released.left_out["taken back"], stream.waiting()), (0, NUMBER, 0));
}
