//! Edits, which may say only what they change, in any order and at any time.

use super::*;

const EDITED: &str = "{id, conversation: .c, speaker: .s, text: .t, time: .at, version: .v, removed: (.gone == true), \
    merge: .m, fields: .f, order: .o, parent: .p, last: (.end == true), starts: (.begin == true), \
    rewind: (.back == true), hand_over: .h, rank: (.r // 0), to_agent: (.bot == true)}";

/// The turns, each with its time and its fields.
pub(super) fn told(records: &[(u64, &str)], settle: u64, change: &dyn Fn(&mut Options)) -> Vec<String> {
    let mut options = Options::default();
    change(&mut options);
    let mapping = Mapping::of(EDITED).unwrap();
    let mut memory = InMemory::default();
    let mut stream = Stream::new(options.clone(), BTreeMap::new(), 0);
    let mut turns = Vec::new();
    for (now, line) in records {
        let mut released = stream.release(*now, false, &mut memory).turns;
        turns.append(&mut released);
        let value = json(line.as_bytes(), &mut Odd::default()).unwrap();
        let source = Source { path: "log".into(), number: *now };
        stream.take(mapping.run(&Record { value, source }).unwrap(), "log", now + settle);
        // Another process goes on.
        let stored = serde_json::to_string(&stream.held).unwrap();
        stream = Stream::new(options.clone(), serde_json::from_str(&stored).unwrap(), stream.next);
    }
    turns.append(&mut stream.release(0, true, &mut memory).turns);
    let fields = |turn: &Turn| {
        let mut fields = turn.fields.clone();
        fields.remove(crate::REMOVED);
        serde_json::to_string(&fields).unwrap()
    };
    let of = |turn: &Turn| format!("{} {} {}", turn.turn, turn.speaker, turn.text);
    turns.iter().map(|(turn, _)| format!("{} {:?} {}", of(turn), turn.timestamp, fields(turn))).collect()
}

#[test]
fn an_edit_that_comes_long_before_its_message_does_not_take_its_place() {
    let records = [
        (10, r#"{"id": 1, "t": "One?", "v": 2}"#),
        (20, r#"{"id": 1, "c": "a", "s": "user", "t": "Oen?", "v": 1, "at": 5}"#),
        (30, r#"{"id": 1, "c": "a", "s": "user", "t": "Oen?", "v": 1, "at": 5}"#),
    ];
    assert_eq!(told(&records, 0, &|_| {}), ["1 user Oen? Some(5.0) {}"]);
    // Within the wait, it counts.
    assert_eq!(told(&records, 50, &|_| {}), ["1 user One? Some(5.0) {}"]);
}

#[test]
fn a_message_whose_text_comes_later_is_a_turn_then() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1}"#),
        (20, r#"{"id": 2, "c": "a", "s": "agent", "t": "", "at": 2}"#),
        (30, r#"{"id": 2, "t": "Yes."}"#),
        (40, r#"{"id": 3, "c": "a", "s": "user", "t": " ", "at": 3}"#),
        (50, r#"{"id": 3, "c": "a", "gone": true}"#),
        (60, r#"{"id": 3, "t": "Not any more."}"#),
    ];
    let expected = ["1 user One? Some(1.0) {}", "1 agent Yes. Some(2.0) {}"];
    for settle in [0, 5, 15, 100] {
        assert_eq!(told(&records, settle, &|_| {}), expected, "{settle}");
    }
}

#[test]
fn a_turn_that_is_edited_keeps_what_the_edit_does_not_say() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "Oen?", "at": 1, "f": {"team": "x"}}"#),
        (20, r#"{"id": 1, "t": "One?"}"#),
        (30, r#"{"id": 1, "t": "One, two?", "at": 3, "f": {"team": "y"}}"#),
        (40, r#"{"id": 1, "t": "Two?"}"#),
    ];
    let expected = [
        r#"1 user Oen? Some(1.0) {"team":"x"}"#,
        r#"1 user One? Some(1.0) {"team":"x"}"#,
        r#"1 user One, two? Some(3.0) {"team":"y"}"#,
        r#"1 user Two? Some(3.0) {"team":"y"}"#,
    ];
    assert_eq!(told(&records, 0, &|options| options.revise = true), expected);
    assert_eq!(told(&records, 100, &|_| {}), [r#"1 user Two? Some(1.0) {"team":"y"}"#]);
}

#[test]
fn versions_of_which_each_says_a_part_may_come_in_any_order() {
    let versions = [
        r#"{"id": 1, "c": "a", "s": "user", "t": "One", "v": 1, "at": 1}"#,
        r#"{"id": 1, "t": "Two", "v": 2, "at": 1}"#,
        r#"{"id": 1, "f": {"picture": 1}, "v": 3, "at": 1}"#,
        r#"{"id": 1, "v": 4, "at": 1}"#,
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let records: Vec<(u64, &str)> = order.iter().map(|at| (10, versions[*at])).collect();
        assert_eq!(told(&records, 5, &|_| {}), [r#"1 user Two Some(1.0) {"picture":1}"#], "{order:?}");
    }
}

#[test]
fn a_part_of_a_message_may_be_edited_and_come_again() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "Oen", "m": "x", "at": 1}"#),
        (11, r#"{"id": 2, "c": "a", "s": "user", "t": "two?", "m": "x", "at": 2}"#),
        (12, r#"{"id": 1, "t": "One"}"#),
        (30, r#"{"id": 2, "c": "a", "s": "user", "t": "two?", "m": "x", "at": 2}"#),
        (40, r#"{"id": 1, "c": "a", "s": "user", "t": "One", "m": "x", "at": 1}"#),
    ];
    for revise in [false, true] {
        assert_eq!(told(&records, 5, &|options| options.revise = revise), ["1 user One two? Some(1.0) {}"], "{revise}");
    }
}

#[test]
fn an_edit_does_not_say_where_its_conversation_ends() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (11, r#"{"id": 2, "p": 1, "s": "agent", "t": "This?", "o": 2, "end": true}"#),
        (12, r#"{"id": 3, "p": 1, "s": "agent", "t": "That?", "o": 3}"#),
        (13, r#"{"id": 2, "t": "This."}"#),
        (14, r#"{"id": 3, "t": "That."}"#),
    ];
    let expected = ["1 user One? None {}", "1 agent This. None {}"];
    assert_eq!(told(&records, 50, &|options| options.branch = true), expected);
}

#[test]
fn what_names_a_message_only_is_of_its_conversation_which_may_be_that_of_its_parents() {
    let records = [
        (10, r#"{"id": 1, "s": "user", "t": "Oen?"}"#),
        (11, r#"{"id": 2, "p": 1, "s": "agent", "t": "Yse."}"#),
        (12, r#"{"id": 3, "p": 2, "s": "user", "t": "Two?"}"#),
        (13, r#"{"id": 2, "t": "Yes."}"#),
        (14, r#"{"id": 3, "gone": true}"#),
        (15, r#"{"id": 1, "t": "One?"}"#),
    ];
    for settle in [4, 6, 50] {
        let expected = ["1 user One? None {}", "1 agent Yes. None {}"];
        let expected = if settle == 4 { ["1 user Oen? None {}", "1 agent Yes. None {}"] } else { expected };
        assert_eq!(told(&records, settle, &|_| {}), expected, "{settle}");
    }
}

#[test]
fn an_edit_of_fields_only_is_remembered() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1, "v": 1, "f": {"tag": "x"}}"#),
        (20, r#"{"id": 1, "f": {"tag": "y"}, "v": 2}"#),
        (30, r#"{"id": 1, "t": "One, or two?", "v": 3}"#),
    ];
    let told = told(&records, 0, &|options| options.revise = true);
    assert_eq!(told.last().unwrap(), r#"1 user One, or two? Some(1.0) {"tag":"y"}"#);
}

#[test]
fn a_mark_that_comes_again_is_the_same_mark() {
    let rewinds = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1}"#),
        (20, r#"{"id": 2, "c": "a", "back": true, "at": 2}"#),
        (30, r#"{"id": 3, "c": "a", "s": "user", "t": "Two?", "at": 3}"#),
        (30, r#"{"id": 2, "c": "a", "back": true, "at": 4}"#),
    ];
    let expected = ["1 user One? Some(1.0) {}", "2 user Two? Some(3.0) {}"];
    assert_eq!(told(&rewinds, 5, &|_| {}), expected);
    let starts = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1}"#),
        (20, r#"{"id": 2, "c": "a", "begin": true, "at": 2}"#),
        (30, r#"{"id": 3, "c": "a", "s": "user", "t": "Two?", "at": 3}"#),
        (40, r#"{"id": 2, "c": "a", "begin": true, "at": 2}"#),
        (50, r#"{"id": 4, "c": "a", "s": "user", "t": "Three?", "at": 5}"#),
    ];
    let expected = ["1 user One? Some(1.0) {}", "1 user Two? Some(3.0) {}", "2 user Three? Some(5.0) {}"];
    assert_eq!(told(&starts, 5, &|_| {}), expected);
    // An edit within the wait that says something else leaves the mark as it is.
    let edited = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1}"#),
        (20, r#"{"id": 2, "c": "a", "begin": true, "at": 2, "v": 1}"#),
        (21, r#"{"id": 2, "f": {"tag": "x"}, "v": 2}"#),
        (30, r#"{"id": 3, "c": "a", "s": "user", "t": "Two?", "at": 3}"#),
    ];
    assert_eq!(told(&edited, 5, &|_| {}), ["1 user One? Some(1.0) {}", "1 user Two? Some(3.0) {}"]);
}

/// Of late versions the highest one counts, as of those that wait.
#[test]
fn the_order_in_which_late_edits_come_does_not_count() {
    let revise = |options: &mut Options| options.revise = true;
    let one = (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "at": 1, "f": {"tag": "x"}}"#);
    let first = r#"1 user One? Some(1.0) {"tag":"x"}"#;
    for (records, last) in [
        // The message itself comes again, without a version.
        (vec![(20, r#"{"id": 1, "t": "Two?", "v": 2}"#), one], r#"1 user Two? Some(1.0) {"tag":"x"}"#),
        // A version that says the same as the turn, before an older one.
        (vec![(20, r#"{"id": 1, "t": "One?", "v": 3}"#), (30, r#"{"id": 1, "t": "Two?", "v": 2}"#)], first),
        (
            vec![
                (20, r#"{"id": 1, "f": {"tag": "z"}, "v": 3}"#),
                (30, r#"{"id": 1, "f": {"tag": "y"}, "t": "Two?", "v": 2}"#),
            ],
            r#"1 user Two? Some(1.0) {"tag":"z"}"#,
        ),
        (
            vec![
                (20, r#"{"id": 1, "f": {"tag": "z"}, "t": "One?", "v": 3}"#),
                (30, r#"{"id": 1, "t": "Two?", "v": 4}"#),
            ],
            r#"1 user Two? Some(1.0) {"tag":"z"}"#,
        ),
        // A version that says neither, before the fields of an older one.
        (
            vec![
                (20, r#"{"id": 1, "at": 1, "v": 3}"#),
                (30, r#"{"id": 1, "f": {"tag": "z"}, "v": 2}"#),
                (40, r#"{"id": 1, "t": "Two?", "v": 4}"#),
            ],
            r#"1 user Two? Some(1.0) {"tag":"z"}"#,
        ),
        // Another source knows less well what was said.
        (vec![(20, r#"{"id": 1, "t": "Two?", "v": 9, "r": 1}"#)], first),
        // An edit says no text.
        (vec![(20, r#"{"id": 1, "t": " ", "v": 2}"#)], first),
    ] {
        let told = told(&[&[one], &records[..]].concat(), 0, &revise);
        assert_eq!(told.last().unwrap(), last, "{records:?}");
        assert_eq!(told.len(), if last == first { 1 } else { 2 }, "{told:?}");
    }
}

/// The text is of the version that says it, and not of one that says something else.
#[test]
fn a_late_text_is_newer_than_the_text_and_older_than_the_fields() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "v": 1}"#),
        (11, r#"{"id": 1, "f": {"tag": "x"}, "v": 3}"#),
        (30, r#"{"id": 1, "t": "Two?", "v": 2}"#),
    ];
    let expected = [r#"1 user One? None {"tag":"x"}"#, r#"1 user Two? None {"tag":"x"}"#];
    assert_eq!(told(&records, 5, &|options| options.revise = true), expected);
}

#[test]
fn late_edits_that_wait_together_are_one() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "v": 1}"#),
        (30, r#"{"id": 1, "t": "Three?", "v": 3}"#),
        (31, r#"{"id": 1, "t": "Two?", "v": 2}"#),
        (50, r#"{"id": 1, "t": "Four?", "v": 4}"#),
        (51, r#"{"id": 1, "gone": true}"#),
    ];
    let expected = ["1 user One? None {}", "1 user Three? None {}", "1 user  None {}"];
    assert_eq!(told(&records, 5, &|options| options.revise = true), expected);
}

/// An edit without an order, or of another conversation, is of the place of its message.
#[test]
fn an_edit_waits_for_its_message_though_others_are_due() {
    for edit in [r#"{"id": 2, "c": "a", "t": "Two?", "v": 2}"#, r#"{"id": 2, "c": "b", "t": "Two?", "v": 2}"#] {
        let records = [
            (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
            (13, edit),
            (17, r#"{"id": 2, "c": "a", "s": "user", "t": "Tow?", "o": 2, "v": 1}"#),
        ];
        assert_eq!(told(&records, 5, &|_| {}), ["1 user One? None {}", "2 user Two? None {}"], "{edit}");
    }
    let deleted = [
        (10, r#"{"id": 1, "c": "b", "gone": true}"#),
        (12, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
    ];
    assert_eq!(told(&deleted, 5, &|_| {}), [""; 0]);
}

#[test]
fn a_message_without_an_order_comes_after_the_one_before_it() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1}"#),
        (11, r#"{"id": 3, "c": "a", "s": "user", "t": "Three?", "o": 3}"#),
        (12, r#"{"id": 4, "c": "a", "s": "user", "t": "Four?"}"#),
        (15, r#"{"id": 2, "c": "a", "s": "user", "t": "Two?", "o": 2}"#),
    ];
    let expected = ["1 user One? None {}", "2 user Two? None {}", "3 user Three? None {}", "4 user Four? None {}"];
    assert_eq!(told(&records, 5, &|_| {}), expected);
}

/// Those with one key that are no neighbours stay where they are.
#[test]
fn a_part_is_not_joined_over_what_is_between() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "o": 1, "m": "x"}"#),
        (13, r#"{"id": 2, "c": "a", "s": "agent", "t": "Yes.", "o": 2, "m": "y"}"#),
        (14, r#"{"id": 3, "c": "a", "s": "user", "t": "Two", "o": 3, "m": "x"}"#),
        (15, r#"{"id": 4, "c": "a", "s": "user", "t": "three?", "o": 4, "m": "x"}"#),
    ];
    let expected = ["1 user One? None {}", "1 agent Yes. None {}", "2 user Two three? None {}"];
    for settle in [4, 5, 100] {
        assert_eq!(told(&records, settle, &|_| {}), expected, "{settle}");
    }
}
