//! What is left out stays so when it comes again, and marks of all kinds.

use super::edits::told;
use super::*;

#[test]
fn what_was_left_out_is_left_out_when_it_comes_again() {
    let until = |options: &mut Options| options.until_hand_over = true;
    let taken_back = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "Two?", "o": 2}"#),
        (12, r#"{"id": 3, "c": "a", "back": true, "o": 3}"#),
        (30, r#"{"id": 2, "c": "a", "s": "user", "t": "Two?", "o": 2}"#),
    ];
    assert_eq!(told(&taken_back, 5, &until), ["1 user One? None {}"]);
    let handed_over = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (11, r#"{"id": 2, "c": "a", "h": true, "o": 2}"#),
        (12, r#"{"id": 3, "c": "a", "s": "user", "t": "Are you there?", "o": 3}"#),
        (30, r#"{"id": 4, "c": "a", "h": false, "o": 4}"#),
        (40, r#"{"id": 3, "c": "a", "s": "user", "t": "Are you there?", "o": 3}"#),
        (41, r#"{"id": 2, "c": "a", "h": true, "o": 2}"#),
        (50, r#"{"id": 5, "c": "a", "s": "user", "t": "Two?", "o": 5}"#),
    ];
    assert_eq!(told(&handed_over, 5, &until), ["1 user One? None {}", "2 user Two? None {}"]);
}

/// A chat is written anew with all its branches.
#[test]
fn a_branch_that_was_left_is_no_turn_when_its_chat_comes_again() {
    let message = |id: u32, parent: u32, speaker: &str, text: &str| {
        format!(r#"{{"id": {id}, "c": "a", "p": {parent}, "s": "{speaker}", "t": "{text}", "o": {id}}}"#)
    };
    let said = [
        message(1, 0, "user", "One?"),
        message(2, 1, "agent", "No."),
        message(3, 1, "agent", "Yes."),
        message(4, 3, "user", "Two?"),
        message(5, 4, "agent", "Of course."),
    ];
    let records: Vec<(u64, &str)> = [&said[..4], &said[..5]]
        .iter()
        .zip([10, 30])
        .flat_map(|(chat, now)| chat.iter().map(move |message| (now, &**message)))
        .collect();
    let expected = ["1 user One? None {}", "1 agent Yes. None {}", "2 user Two? None {}", "2 agent Of course. None {}"];
    assert_eq!(told(&records, 5, &|options| options.branch = true), expected);
}

/// It is one if something new follows it.
#[test]
fn a_branch_that_was_left_is_no_turn_when_a_message_of_it_comes_again() {
    let one = (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#);
    let left = r#"{"id": 2, "c": "a", "p": 1, "s": "agent", "t": "This.", "o": 2}"#;
    let that = (10, r#"{"id": 3, "c": "a", "p": 1, "s": "agent", "t": "That.", "o": 3}"#);
    let next = r#"{"id": 4, "c": "a", "p": 2, "s": "user", "t": "Two?", "o": 4}"#;
    let first = ["1 user One? None {}", "1 agent That. None {}"];
    let both = [&first[..], &["1 agent This. None {}", "2 user Two? None {}"]].concat();
    let alone = [&first[..], &["2 user Two? None {}"]].concat();
    for (further, expected) in [
        (vec![(30, left), (40, left)], &first[..]),
        (vec![(30, left), (40, left), (40, next)], &both),
        (vec![(30, left), (40, next)], &alone),
    ] {
        let records = [&[one, (10, left), that], &further[..]].concat();
        assert_eq!(told(&records, 5, &|options| options.branch = true), expected, "{further:?}");
    }
}

#[test]
fn a_mark_that_comes_late_takes_back_turns_that_may_change() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (20, r#"{"id": 2, "c": "a", "s": "user", "t": "Two?", "o": 2}"#),
        (30, r#"{"id": 3, "c": "a", "s": "agent", "t": "Yes.", "o": 3}"#),
        (40, r#"{"id": 4, "c": "a", "back": true, "o": 4}"#),
        (50, r#"{"id": 4, "c": "a", "back": true, "o": 4}"#),
        (60, r#"{"id": 5, "c": "a", "s": "user", "t": "Three?", "o": 5}"#),
    ];
    let said = ["1 user One? None {}", "2 user Two? None {}", "2 agent Yes. None {}"];
    let taken = ["2 agent  None {}", "2 user  None {}"];
    let last = ["3 user Three? None {}"];
    for (revise, expected) in [(true, [&said[..], &taken, &last].concat()), (false, [&said[..], &last].concat())] {
        assert_eq!(told(&records, 5, &|options| options.revise = revise), expected, "{revise}");
    }
}

#[test]
fn a_mark_may_say_something_itself() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?"}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "Oops?"}"#),
        (12, r#"{"id": 3, "c": "a", "s": "user", "t": "Two?", "back": true}"#),
        (13, r#"{"id": 4, "c": "a", "s": "user", "t": "Three?", "begin": true}"#),
    ];
    let expected = ["1 user One? None {}", "2 user Two? None {}", "1 user Three? None {}"];
    for settle in [5, 100] {
        assert_eq!(told(&records, settle, &|_| {}), expected, "{settle}");
    }
    let lines: Vec<&str> = records.iter().map(|(_, line)| *line).collect();
    let code = "{id, conversation: .c, speaker: .s, text: .t, starts: (.begin == true), rewind: (.back == true)}";
    assert_eq!(Log::of(code, &lines.join("\n")).whole(), ["a 1 user One?", "a 2 user Two?", "a#2 1 user Three?"]);
}

#[test]
fn a_rewind_of_what_was_a_turn_is_counted() {
    let log = Log::of(
        "{conversation: \"c\", speaker: .s, text: .t, rewind: (.back == true)}",
        "{\"s\": \"user\", \"t\": \"One?\"}\n{\"back\": true}",
    );
    let (found, left_out) = log.streamed(&[0, 1], 0, &[]);
    assert_eq!((found.len(), left_out["without a question that it takes back"]), (1, 1));
}

#[test]
fn a_new_conversation_is_not_handed_over() {
    let log = Log::of(
        "#: {\"until_hand_over\": true}\n{id, conversation: \"c\", speaker: .s, text: .t, hand_over: .h, starts: (.begin == true)}",
        r#"{"id": 1, "s": "user", "t": "One?"}
{"id": 2, "h": true}
{"id": 3, "begin": true}
{"id": 4, "s": "user", "t": "Two?"}"#,
    );
    let expected = ["c 1 user One?", "c#2 1 user Two?"];
    assert_eq!(log.whole(), expected);
    for settle in [0, 2, 100] {
        assert_eq!(log.streamed(&[0, 1, 2, 3], settle, &[2]).0, expected, "{settle}");
    }
}

#[test]
fn questions_in_a_row_are_one_whatever_comes_between_their_records() {
    let burst = |options: &mut Options| options.burst_s = 5.0;
    for between in [
        // The process is another one after each record.
        r#"{"id": 9, "c": "b", "s": "user", "t": "Other?", "o": 9, "at": 9}"#,
        r#"{"id": 1, "t": "One", "v": 2}"#,
        r#"{"id": 7, "c": "a", "s": "agent", "t": "Before.", "o": 0, "at": 0}"#,
    ] {
        let records = [
            (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "o": 1, "at": 1}"#),
            (11, between),
            (14, r#"{"id": 2, "c": "a", "s": "user", "t": "two?", "o": 2, "at": 5}"#),
            (18, r#"{"id": 3, "c": "a", "s": "user", "t": "three?", "o": 3, "at": 9}"#),
        ];
        let told = told(&records, 5, &burst);
        assert!(told.iter().any(|turn| turn.contains("user One\ntwo?\nthree?")), "{told:?}");
        assert!(told.len() <= 2, "{told:?}");
    }
}

#[test]
fn a_deleted_agent_speaks_in_no_conversation() {
    let log = Log::of(
        "#: {\"with_agent\": true}\n{id, conversation: \"c\", speaker: .s, text: .t, removed: (.gone == true)}",
        r#"{"id": 1, "s": "user", "t": "One?"}
{"id": 2, "s": "agent", "t": "Yes."}
{"id": 2, "gone": true}"#,
    );
    assert_eq!(log.whole(), [""; 0]);
    assert_eq!(log.streamed(&[0, 1, 2], 100, &[]).0, [""; 0]);
}

#[test]
fn an_empty_text_names_nothing() {
    let log = Log::of(
        "{id, parent: .p, merge: .m, speaker: .s, text: .t}",
        r#"{"id": "1", "p": "", "m": "", "s": "user", "t": "One?"}
{"id": "", "p": "1", "m": "", "s": "agent", "t": "Yes."}
{"id": "3", "p": "", "m": "", "s": "user", "t": "Two?"}
{"id": "", "p": "3", "m": "", "s": "agent", "t": "No."}"#,
    );
    assert_eq!(log.whole(), ["1 1 user One?", "1 1 agent Yes.", "3 1 user Two?", "3 1 agent No."]);
}

/// What delivers events may deliver them twice.
#[test]
fn marks_of_rasa_that_come_twice_are_the_same_marks() {
    let event = |at: u32, rest: &str| format!(r#"{{"sender_id": "c", "timestamp": {at}.5, {rest}}}"#);
    let said = |at: u32, text: &str| event(at, &format!(r#""event": "user", "message_id": "{at}", "text": "{text}""#));
    let lines = [
        event(1, r#""event": "session_started""#),
        said(2, "One?"),
        said(3, "Oops?"),
        event(4, r#""event": "rewind""#),
        said(5, "Two?"),
        event(6, r#""event": "session_started""#),
        said(7, "Three?"),
    ];
    let log = Log::of(crate::presets::preset("rasa-events").unwrap(), &lines.join("\n"));
    let expected = ["c 1 user One?", "c 2 user Two?", "c#2 1 user Three?"];
    assert_eq!(log.whole(), expected);
    for order in [vec![0, 1, 2, 3, 3, 4, 5, 5, 6], vec![0, 0, 1, 2, 4, 3, 5, 4, 6, 3, 5]] {
        for settle in [3, 100] {
            assert_eq!(log.streamed(&order, settle, &[2, 5]).0, expected, "{order:?} {settle}");
        }
    }
}

#[test]
fn after_a_hand_over_users_are_not_answered() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?"}"#),
        (20, r#"{"id": 2, "c": "a", "h": true}"#),
        (30, r#"{"id": 3, "c": "a", "s": "user", "t": "Are you there?"}"#),
        (40, r#"{"id": 4, "c": "a", "s": "agent", "t": "I am Mara."}"#),
        (50, r#"{"id": 5, "c": "a", "s": "agent", "t": "Bye.", "h": false}"#),
        (60, r#"{"id": 6, "c": "a", "s": "user", "t": "Two?"}"#),
    ];
    let until = |options: &mut Options| options.until_hand_over = true;
    let expected = ["a 1 user One?", "a 1 agent I am Mara.", "a 1 agent Bye.", "a 2 user Two?"];
    assert_eq!(at_times(CHAT, &until, &records, 5), expected);
    assert_eq!(at_times(CHAT, &|_| {}, &records, 5).len(), 5);
}

/// A hundred questions in a row are one, whatever the order in which they come.
#[test]
fn rows_of_many_questions_are_as_long_in_any_order() {
    let lines: Vec<String> = (0..250).map(|at| format!(r#"{{"id": {at}, "t": "t{at}", "at": {at}}}"#)).collect();
    let code = "#: {\"burst_s\": 5}\n{id, conversation: \"c\", speaker: \"user\", text: .t, order: .at, time: .at}";
    let log = Log::of(code, &lines.join("\n"));
    let expected = log.whole();
    let lengths: Vec<usize> = expected.iter().map(|turn| turn.lines().count()).collect();
    assert_eq!(lengths, [100, 100, 50]);
    for seed in 0..3 {
        let order = shuffled(250, 6, seed);
        assert_eq!(log.streamed(&order, 20, &[30, 101, 150, 240]).0, expected, "{seed}");
    }
}

#[test]
fn a_deletion_that_comes_again_is_counted_once() {
    for (order, revise, expected) in [
        (&[0, 1, 1, 1][..], false, &[("deleted after it was a turn", 1)][..]),
        (&[0, 1, 1, 1], true, &[]),
        (&[1, 1, 1, 0], false, &[("deleted", 1)]),
        (&[1, 1, 1, 0], true, &[("deleted", 1)]),
    ] {
        let log = Log::of(
            &format!("#: {{\"revise\": {revise}}}\n{{id, conversation: \"c\", speaker: .s, text: .t, removed: .gone}}"),
            "{\"id\": 1, \"s\": \"user\", \"t\": \"One?\"}\n{\"id\": 1, \"gone\": true}",
        );
        assert_eq!(log.streamed(order, 0, &[2]).1, expected.iter().copied().collect(), "{order:?} {revise}");
    }
}

/// What waits for its agent has waited for what changes it.
#[test]
fn a_mark_that_waits_for_the_agent_keeps_nothing_back() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "Two?", "o": 2}"#),
        (12, r#"{"id": 3, "c": "a", "back": true, "o": 3}"#),
        (20, r#"{"id": 4, "c": "a", "s": "agent", "t": "Yes.", "o": 4}"#),
        (30, r#"{"id": 5, "c": "a", "s": "user", "t": "Late?", "o": 0}"#),
    ];
    let expected = ["1 user One? None {}", "1 agent Yes. None {}", "2 user Late? None {}"];
    assert_eq!(told(&records, 5, &|options| options.with_agent = true), expected);
}
