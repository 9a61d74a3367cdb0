use super::*;
use crate::decode::{Odd, json};
use crate::{InMemory, Mapping, Record, Source, assemble};

mod again;
mod any;
mod between;
mod calls;
mod edits;
mod ids;
mod late;
mod left;
mod steps;
mod wild;

use self::steps::{Bounds, streamed, streamed_within};

/// A program and its log.
struct Log {
    mapping: Mapping,
    lines: Vec<String>,
}

impl Log {
    fn of(code: &str, lines: &str) -> Self {
        Self { mapping: Mapping::of(code).unwrap(), lines: lines.lines().map(str::to_owned).collect() }
    }

    fn items(&self, number: usize) -> Vec<Item> {
        let value = json(self.lines[number].as_bytes(), &mut Odd::default()).unwrap();
        let source = Source { path: "log".into(), number: number as u64 + 1 };
        self.mapping.run(&Record { value, source }).unwrap()
    }

    /// The turns of all records at once, sorted.
    fn whole(&self) -> Vec<String> {
        let items = (0..self.lines.len()).flat_map(|number| self.items(number)).collect();
        shown(assemble(items, self.mapping.options()).0)
    }

    /// The turns of records that come in this order, one in each second, and settle within `settle` seconds. Before each
    /// record of `ends`, the process ends and another one goes on.
    fn streamed(&self, order: &[usize], settle: u64, ends: &[usize]) -> (Vec<String>, LeftOut) {
        let items = order.iter().map(|number| self.items(*number));
        let (turns, left_out) = streamed(self.mapping.options(), items, settle, ends);
        (shown(turns), left_out)
    }
}

/// The turns, by conversation.
fn shown(turns: Vec<Turn>) -> Vec<String> {
    let mut shown: Vec<(String, String)> = turns
        .into_iter()
        .map(|turn| {
            let shown = format!("{} {} {} {}", turn.conversation_id, turn.turn, turn.speaker, turn.text);
            (turn.conversation_id, shown)
        })
        .collect();
    shown.sort_by(|a, b| a.0.cmp(&b.0));
    shown.into_iter().map(|(_, turn)| turn).collect()
}

/// Places of a log in which each record is at most `window` records late: a different order for each seed.
fn shuffled(length: usize, window: usize, seed: u64) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut keyed: Vec<(usize, usize)> = (0..length).map(|at| (at + random(window + 1), at)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, at)| at).collect()
}

const MESSAGES: &str =
    "{id, conversation: .c, speaker: .s, text: .t, order: .at, time: .at, version: .v, removed: .gone}";

fn messages() -> String {
    let mut log = String::new();
    for at in 0..60_u32 {
        let (conversation, speaker) = (at % 3, if (at / 3).is_multiple_of(2) { "user" } else { "agent" });
        log += &format!(
            "{{\"id\": {at}, \"c\": \"c{conversation}\", \"s\": \"{speaker}\", \"t\": \"t{at}\", \"at\": {at}}}\n"
        );
        match at % 10 {
            4 => {
                log += &format!(
                    "{{\"id\": {at}, \"c\": \"c{conversation}\", \"s\": \"{speaker}\", \"t\": \"new{at}\", \"at\": {at}, \"v\": 2}}\n"
                )
            }
            7 => log += &format!("{{\"id\": {at}, \"gone\": true}}\n"),
            _ => {}
        }
    }
    log
}

/// Any order within the time that messages wait, any doubling, any edit within it and any restart gives the same turns.
#[test]
fn any_order_within_the_wait_gives_the_same_turns() {
    let log = Log::of(MESSAGES, &messages());
    let expected = log.whole();
    assert_eq!(expected.len(), 54);
    for seed in 0..50 {
        let mut order = shuffled(log.lines.len(), 8, seed);
        // Some records come twice.
        for at in (0..order.len()).step_by(7).rev() {
            order.insert(at + 1, order[at]);
        }
        let ends: Vec<usize> = (0..order.len()).filter(|at| (at + seed as usize).is_multiple_of(5)).collect();
        let (found, left_out) = log.streamed(&order, 20, &ends);
        assert_eq!(found, expected, "{seed}");
        assert!(!left_out.keys().any(|reason| reason.contains("after it was a turn")), "{left_out:?}");
        let (in_order, _) = log.streamed(&order, 1000, &[]);
        assert_eq!(in_order, expected, "{seed}");
    }
}

#[test]
fn what_comes_later_than_that_changes_no_turn_and_is_counted() {
    let log = Log::of(MESSAGES, &messages());
    let order: Vec<usize> = (0..log.lines.len()).chain(0..log.lines.len()).collect();
    let (found, left_out) = log.streamed(&order, 0, &[]);
    assert_eq!(found.len(), 60, "each message was a turn at once");
    assert!(found.contains(&"c1 1 user t4".to_owned()) || found.iter().any(|turn| turn.ends_with(" t4")), "{found:?}");
    assert!(
        left_out["again after it was a turn"] >= 60 && left_out["deleted after it was a turn"] >= 6,
        "{left_out:?}"
    );
}

#[test]
fn histories_that_are_repeated_are_said_once_also_after_restarts() {
    let mut lines = String::new();
    let (mut said, mut id) = (vec![Vec::new(), Vec::new(), Vec::new()], 0);
    for round in 0..6 {
        for (conversation, said) in said.iter_mut().enumerate() {
            id += 1;
            said.push(serde_json::json!({"role": "user", "content": format!("Question {round} of {conversation}?")}));
            let answer =
                format!("Answer {round}.{}", if round == 0 { conversation.to_string() } else { String::new() });
            lines += &serde_json::json!({"id": id, "messages": said, "answer": answer}).to_string();
            lines += "\n";
            said.push(serde_json::json!({"role": "assistant", "content": answer}));
        }
    }
    let code = r#"{id, guess: true, order: .id, messages: (.messages | chat_messages), answer: {speaker: "agent", text: .answer}}"#;
    let log = Log::of(code, &lines);
    let expected = log.whole();
    assert_eq!(expected.len(), 36);
    for seed in 0..20 {
        let (found, _) = log.streamed(&shuffled(log.lines.len(), 4, seed), 10, &[2, 5, 11]);
        assert_eq!(found, expected, "{seed}");
    }
    // Nothing waits.
    let order: Vec<usize> = (0..log.lines.len()).collect();
    assert_eq!(log.streamed(&order, 0, &[1, 2, 3, 4, 5]).0, expected);
}

#[test]
fn links_sessions_joins_and_the_agent_are_found_across_records() {
    for (code, lines, window) in [
        (
            "{id, parent: .to, speaker: .s, text: .t, order: .at}",
            r#"{"id": "a", "s": "user", "t": "When?", "at": 1}
{"id": "b", "to": "a", "s": "agent", "t": "Today.", "at": 2}
{"id": "c", "to": "b", "s": "user", "t": "At what time?", "at": 3}
{"id": "x", "s": "user", "t": "Alone.", "at": 4}
{"id": "d", "to": "c", "s": "agent", "t": "At ten.", "at": 5}"#,
            2,
        ),
        (
            "{id, conversation: \"c\", speaker: .s, text: .t, order: .at, starts: .new, rewind: .back}",
            r#"{"new": true, "at": 1}
{"s": "user", "t": "One?", "at": 2}
{"s": "user", "t": "Oops?", "at": 3}
{"back": true, "at": 4}
{"s": "agent", "t": "Yes.", "at": 5}
{"new": true, "at": 6}
{"s": "user", "t": "Again?", "at": 7}"#,
            2,
        ),
        (
            "{id, join: .j, conversation: .c, speaker: .s, text: .t, order: .at}",
            r#"{"id": 1, "j": 1, "s": "user", "t": "One?"}
{"id": 2, "j": 1, "s": "agent", "t": "Yes."}
{"j": 1, "c": "c", "at": 1}
{"j": 2, "c": "c", "at": 2}
{"id": 3, "j": 2, "s": "user", "t": "Two?"}"#,
            1,
        ),
        (
            "#: {\"with_agent\": true}\n{id, conversation: .c, speaker: .s, text: .t, order: .at, to_agent: .bot}",
            r#"{"id": 1, "c": "a", "s": "user", "t": "Hi all.", "at": 1}
{"id": 2, "c": "b", "s": "user", "t": "Nobody asks the bot.", "at": 2}
{"id": 3, "c": "a", "s": "user", "t": "Bot?", "bot": true, "at": 3}
{"id": 4, "c": "a", "s": "agent", "t": "Yes.", "at": 4}"#,
            1,
        ),
    ] {
        let log = Log::of(code, lines);
        let expected = log.whole();
        assert!(!expected.is_empty());
        for seed in 0..20 {
            let order = shuffled(log.lines.len(), window, seed);
            let ends: Vec<usize> = (0..order.len()).collect();
            // Without an order of its own, a message stays where it came.
            let is_stable = !code.contains("join") || order.windows(2).all(|two| two[0] < two[1]);
            if is_stable {
                assert_eq!(log.streamed(&order, 5, &ends).0, expected, "{code} {order:?}");
            }
        }
    }
    // One by one, a message whose parent is known goes on with its conversation, and one on another branch with its number.
    let code = "#: {\"branch\": true}\n{id, parent: .to, speaker: .s, text: .t}";
    let log = Log::of(
        code,
        r#"{"id": "a", "s": "user", "t": "When?"}
{"id": "b", "to": "a", "s": "agent", "t": "Today."}
{"id": "c", "to": "b", "s": "user", "t": "At what time?"}
{"id": "d", "to": "b", "s": "user", "t": "And where?"}
{"id": "e", "to": "d", "s": "agent", "t": "Here."}"#,
    );
    let (found, _) = log.streamed(&[0, 1, 2, 3, 4], 0, &[3]);
    let expected =
        ["a 1 user When?", "a 1 agent Today.", "a 2 user At what time?", "a 2 user And where?", "a 2 agent Here."];
    assert_eq!(found, expected);
}

#[test]
fn messages_that_there_is_no_room_for_and_that_wait_for_no_agent_are_left_out() {
    let mapping =
        Mapping::of("#: {\"with_agent\": true}\n{conversation: .c, speaker: \"user\", text: .t, to_agent: .bot}");
    let log =
        Log { mapping: mapping.unwrap(), lines: (0..5).map(|at| format!("{{\"c\": {at}, \"t\": \"x\"}}")).collect() };
    let mut memory = InMemory::default();
    let mut stream = Stream::new(log.mapping.options().clone(), BTreeMap::new(), 0);
    for number in 0..5 {
        stream.take(log.items(number), "log:1", 1);
    }
    let released = stream.release(1, false, &mut memory);
    assert_eq!((released.waiting.len(), stream.waiting(), stream.due()), (5, 5, None), "they wait for their agent");
    stream.hurry(3);
    let released = stream.release(1, false, &mut memory);
    assert_eq!((released.done.len(), released.left_out["without the agent"], stream.waiting()), (3, 3, 2));
    // What waited for the end of a log that was read once is due when the log is followed.
    stream.take(log.items(0), "log:1", u64::MAX);
    stream.no_later(7);
    assert_eq!(stream.due(), Some(7));
}

/// Releases what is given at times, and shows the turns: `(time, record)`.
fn at_times(code: &str, options: &dyn Fn(&mut Options), records: &[(u64, &str)], settle: u64) -> Vec<String> {
    let mapping = Mapping::of(code).unwrap();
    let mut set = mapping.options().clone();
    options(&mut set);
    let (mut stream, mut memory) = (Stream::new(set, BTreeMap::new(), 0), InMemory::default());
    let mut shown = Vec::new();
    let last = records.last().map_or(0, |(now, _)| now + 10 * settle + 1);
    let steps = records.iter().map(|(now, record)| (*now, Some(*record))).chain([(last, None)]);
    for (now, record) in steps {
        for (turn, _) in stream.release(now, false, &mut memory).turns {
            let removed =
                turn.fields.get("removed").map_or(String::new(), |hash| format!(" -{}", hash.as_str().unwrap()));
            shown.push(format!("{} {} {} {}{removed}", turn.conversation_id, turn.turn, turn.speaker, turn.text));
        }
        if let Some(record) = record {
            let value = crate::decode::value(record.as_bytes(), &mut Default::default()).unwrap();
            let items = mapping.run(&crate::Record { value, source: crate::Source::default() }).unwrap();
            stream.take(items, "x", now + settle);
        }
    }
    shown
}

const CHAT: &str =
    "{id, conversation: .c, speaker: .s, text: .t, hand_over: .h, removed: (.gone == true), version: .v}";

#[test]
fn questions_of_a_burst_are_one() {
    let burst = |options: &mut Options| options.burst_s = 0.005;
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One"}"#),
        (14, r#"{"id": 2, "c": "a", "s": "user", "t": "two?"}"#),
        (15, r#"{"id": 3, "c": "b", "s": "user", "t": "Other?"}"#),
        (18, r#"{"id": 4, "c": "a", "s": "user", "t": "three?"}"#),
        (30, r#"{"id": 5, "c": "a", "s": "user", "t": "Later?"}"#),
        (31, r#"{"id": 2, "c": "a", "s": "user", "t": "two?"}"#),
    ];
    let expected = ["a 1 user One\ntwo?\nthree?", "b 1 user Other?", "a 2 user Later?"];
    assert_eq!(at_times(CHAT, &burst, &records, 5), expected);
    assert_eq!(at_times(CHAT, &|_| {}, &records, 5).len(), 5);
}

#[test]
fn a_turn_whose_message_changes_gets_a_new_version_if_that_is_wanted() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "v": 1}"#),
        (20, r#"{"id": 2, "c": "a", "s": "agent", "t": "Yes."}"#),
        (30, r#"{"id": 1, "c": "a", "s": "user", "t": "One and a half?", "v": 3}"#),
        (40, r#"{"id": 1, "c": "a", "s": "user", "t": "One?", "v": 2}"#),
        (50, r#"{"id": 1, "c": "a", "s": "user", "t": "One and a half?", "v": 4}"#),
        (60, r#"{"id": 1, "c": "a", "gone": true}"#),
        (70, r#"{"id": 3, "c": "a", "s": "user", "t": "Two?"}"#),
    ];
    let revise = |options: &mut Options| options.revise = true;
    let first = ["a 1 user One?", "a 1 agent Yes."];
    let taken = |text: &str| format!("-{:x}", known::hash(text));
    let (changed, gone) =
        (format!("a 1 user One and a half? {}", taken("One?")), format!("a 1 user  {}", taken("One and a half?")));
    let expected = [&first[..], &[&changed, &gone, "a 2 user Two?"]].concat();
    assert_eq!(at_times(CHAT, &revise, &records, 5), expected);
    assert_eq!(at_times(CHAT, &|_| {}, &records, 5), [&first[..], &["a 2 user Two?"]].concat());
}

#[test]
fn an_edit_may_say_only_what_is_changed() {
    let records = [
        (10, r#"{"id": 1, "c": "a", "s": "user", "t": "Oen?"}"#),
        (12, r#"{"id": 1, "t": "One?"}"#),
        // It adds a picture, and no text.
        (13, r#"{"id": 1, "v": 2}"#),
        (20, r#"{"id": 2, "c": "a", "s": "agent", "t": "Yse."}"#),
        (30, r#"{"id": 2, "t": "Yes."}"#),
        (40, r#"{"id": 1, "t": "One and a half?", "v": 3}"#),
        (50, r#"{"id": 1, "v": 4}"#),
        // The edit may come first.
        (60, r#"{"id": 3, "t": "Two?", "v": 2}"#),
        (61, r#"{"id": 3, "c": "a", "s": "user", "t": "Tow?", "v": 1}"#),
    ];
    let first = ["a 1 user One?", "a 1 agent Yse."];
    let taken = |text: &str| format!("-{:x}", known::hash(text));
    let changed = [format!("a 1 agent Yes. {}", taken("Yse.")), format!("a 1 user One and a half? {}", taken("One?"))];
    let expected = [&first[..], &[&changed[0], &changed[1], "a 2 user Two?"]].concat();
    assert_eq!(at_times(CHAT, &|options| options.revise = true, &records, 5), expected);
    assert_eq!(at_times(CHAT, &|_| {}, &records, 5), [&first[..], &["a 2 user Two?"]].concat());
}

/// Conversations that begin alike cannot be told apart until they differ, and each gets what goes on with it. So does one
/// whose records have only the last messages.
#[test]
fn conversations_that_begin_alike_and_histories_that_are_cut_are_kept_apart() {
    let said = |conversation: usize| -> Vec<String> {
        let own = (0..6).map(|at| format!("{conversation} {at}"));
        ["Hi", "Hello! How can I help?"].into_iter().map(str::to_owned).chain(own).collect()
    };
    let code = r#"{id, guess: true, order: .id, messages: (.messages | chat_messages), answer: {speaker: "agent", text: .answer}}"#;
    for cut in [8, 5, 3] {
        let (mut lines, mut id) = (String::new(), 0);
        for round in 0..4 {
            // In another order each time.
            for number in 0..40 {
                let said = said((number * 7 + round * 3) % 40);
                let before = &said[(2 * round + 1_usize).saturating_sub(cut)..=2 * round];
                let role = |at: usize| if (before.len() - at) % 2 == 1 { "user" } else { "assistant" };
                let messages = before.iter().enumerate();
                let messages = messages.map(|(at, text)| serde_json::json!({"role": role(at), "content": text}));
                let messages: Vec<serde_json::Value> = messages.collect();
                id += 1;
                let answer = &said[2 * round + 1];
                lines += &serde_json::json!({"id": id, "messages": messages, "answer": answer}).to_string();
                lines += "\n";
            }
        }
        let log = Log::of(code, &lines);
        let (streamed, _) = log.streamed(&(0..log.lines.len()).collect::<Vec<_>>(), 0, &[30, 100]);
        for turns in [log.whole(), streamed] {
            let mut conversations: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for turn in &turns {
                let (head, text) = turn.split_once(" user ").or_else(|| turn.split_once(" agent ")).unwrap();
                let (name, _) = head.rsplit_once(' ').unwrap();
                conversations.entry(name.to_owned()).or_default().push(text.to_owned());
            }
            let mut found: Vec<Vec<String>> = conversations.into_values().collect();
            found.sort();
            let mut expected: Vec<Vec<String>> = (0..40).map(said).collect();
            expected.sort();
            assert_eq!(found, expected, "{cut}");
        }
    }
}
