use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use turnflow_engine::connector::{SourceOffset, SourcedTurn};
use turnflow_engine::spec::from_str;

use super::*;
use crate::jsonl_turns::JsonLinesConfig;
use crate::testing::Turns as Running;

const PROGRAM: &str = "{id, conversation: .c, speaker: (.s | role), text: .t, order: .at, time: .at, removed: .gone}";

/// The mapped source of `log.jsonl` in a directory; its store is there, too.
fn source(directory: &Path, fields: &str) -> Mapped {
    let config: JsonLinesConfig = from_str(&format!("(path: \"log.jsonl\", {fields})")).unwrap();
    let file = directory.join("log.jsonl");
    let fields = MapFields {
        map: config.map.as_ref(),
        conversations: &config.conversations,
        file: Some(&file),
        reads: Reads::Records,
        lasts: true,
    };
    let place = Place::File(directory.canonicalize().unwrap().join(FILE));
    Begun::of(&fields, "turns", place, Counts::default()).unwrap().over(Box::new(config.source(directory)))
}

fn by_program(directory: &Path) -> Mapped {
    source(directory, &format!("map: Jq({PROGRAM:?})"))
}

fn line(at: usize) -> String {
    let (conversation, speaker) = (at % 3, if (at / 3).is_multiple_of(2) { "human" } else { "assistant" });
    format!("{{\"id\": {at}, \"c\": {conversation}, \"s\": \"{speaker}\", \"t\": \"t{at}\", \"at\": {at}}}\n")
}

fn shown(turn: &SourcedTurn) -> String {
    let record = &turn.record;
    let speaker = serde_json::to_value(record.speaker).unwrap();
    format!("{} {} {} {}", record.conversation_id, record.turn, speaker.as_str().unwrap(), record.text)
}

fn append(directory: &Path, text: &str) {
    let mut log = OpenOptions::new().create(true).append(true).open(directory.join("log.jsonl")).unwrap();
    log.write_all(text.as_bytes()).unwrap();
}

fn offset(turn: &SourcedTurn) -> SourceOffset {
    turn.place.clone().unwrap()
}

/// Bodies of webhooks, a line each.
#[test]
fn records_may_be_forms() {
    let directory = tempfile::tempdir().unwrap();
    append(directory.path(), "Sid=c&Body=When+does+it+leave%3F\nno form\nSid=c&Body=And+in+winter%3F\n");
    let program = "#: {\"decode\": \"forms\"}\n{conversation: .Sid, speaker: \"user\", text: .Body}";
    let forms = source(directory.path(), &format!("map: Jq({program:?})"));
    let (turns, dead) = Running::run(forms, Mode::Once).all();
    let turns: Vec<String> = turns.iter().map(shown).collect();
    assert_eq!(turns, ["c 1 user When does it leave?", "c 2 user And in winter?"]);
    assert!(dead.len() == 1 && dead[0].contains("log.jsonl:2: not mapped: it is no form"), "{dead:?}");
}

#[test]
fn a_log_that_is_read_once_gives_the_turns_of_all_orders_and_then_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    // In another order, some twice, one deleted, and some that cannot be mapped.
    let mut lines: Vec<String> = (0..30).map(line).collect();
    lines.rotate_left(7);
    lines.reverse();
    lines.insert(3, "no JSON\n".to_owned());
    lines.insert(9, "{\"id\": [], \"t\": \"x\"}\n".to_owned());
    lines.push(line(4));
    lines.push("{\"id\": 29, \"gone\": true}\n".to_owned());
    append(directory.path(), &lines.concat());
    let (turns, dead) = Running::run(by_program(directory.path()), Mode::Once).all();
    let of_0: Vec<String> = turns.iter().map(shown).filter(|turn| turn.starts_with("0 ")).collect();
    assert_eq!(of_0[..4], ["0 1 user t0", "0 1 agent t3", "0 2 user t6", "0 2 agent t9"]);
    assert_eq!(turns.len(), 29, "one is deleted");
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(
        dead[0].contains("log.jsonl:4: not mapped: not JSON") && dead[1].contains("log.jsonl:10: not mapped"),
        "{dead:?}"
    );
    assert!(turns[0].position.contains("log.jsonl:"), "{}", turns[0].position);
    // The next run reads what is new, and numbers go on.
    let last = offset(&turns[28]);
    append(directory.path(), &[line(4), line(30), line(33)].concat());
    let running = Running::resume(by_program(directory.path()), Mode::Once, Some(last.clone()));
    let (turns, dead) = running.all();
    assert_eq!(turns.iter().map(shown).collect::<Vec<_>>(), ["0 6 user t30", "0 6 agent t33"]);
    assert!(dead.is_empty(), "{dead:?}");
    assert_eq!(turns[0].place.as_ref().unwrap().end, last.end + 1);
    let (turns, _) = Running::resume(by_program(directory.path()), Mode::Once, Some(offset(&turns[1]))).all();
    assert!(turns.is_empty(), "{turns:?}");
}

/// The process ends at any time, and the engine goes on after any turn that it has answered: each turn has one number.
#[test]
fn a_followed_log_gives_each_turn_once_however_often_it_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    append(directory.path(), "");
    let mut known: BTreeMap<u64, String> = BTreeMap::new();
    let (mut covered, mut written) = (None, 0);
    let mut round = 0;
    while known.len() < 120 {
        round += 1;
        let new = (written..(written + 1 + round % 9).min(120)).map(line).collect::<String>();
        written = (written + 1 + round % 9).min(120);
        append(directory.path(), &new);
        let running = Running::resume(by_program(directory.path()), Mode::Follow, covered.clone());
        let already = covered.as_ref().map_or(0, |covered: &SourceOffset| covered.end as usize);
        // Some are taken, and of these, some are covered by a checkpoint when the process ends.
        let wanted = (written - already).min(1 + round % 7);
        let taken: Vec<SourcedTurn> = (0..wanted).map(|_| running.take()).collect();
        for turn in &taken {
            let number = offset(turn).end;
            let before = known.insert(number, shown(turn));
            assert!(before.is_none_or(|before| before == shown(turn)), "{number}");
        }
        if round % 3 != 0 {
            covered = taken.get(round % 5).map(offset).or(covered);
        }
        drop(running.end(true));
    }
    let all: Vec<&String> = known.values().collect();
    let mut distinct = all.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((all.len(), distinct.len()), (120, 120));
    for conversation in 0..3 {
        let of_this = all.iter().filter(|turn| turn.starts_with(&format!("{conversation} ")));
        let texts: Vec<&str> = of_this.filter_map(|turn| turn.split(' ').nth(3)).collect();
        let expected: Vec<String> = (0..120).filter(|at| at % 3 == conversation).map(|at| format!("t{at}")).collect();
        assert_eq!(texts, expected);
    }
}

#[test]
fn a_source_that_had_no_mapping_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    append(directory.path(), &crate::testing::turn("own form").replace("}", "}\n"));
    let config: JsonLinesConfig = from_str("(path: \"log.jsonl\")").unwrap();
    let (turns, _) = Running::run(config.source(directory.path()), Mode::Once).all();
    let last = offset(&turns[0]);
    append(directory.path(), &line(0));
    let (turns, dead) = Running::resume(by_program(directory.path()), Mode::Once, Some(last)).all();
    assert_eq!(turns.iter().map(shown).collect::<Vec<_>>(), ["0 1 user t0"]);
    assert!(dead.is_empty(), "{dead:?}");
}

#[test]
fn a_form_that_is_not_mapped_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let record = serde_json::json!({"messages": [
        {"role": "user", "content": "When?"}, {"role": "assistant", "content": "At ten."}
    ]});
    fs::write(directory.path().join("log.jsonl"), format!("{record}\n{{\"a\": 1}}\n")).unwrap();
    let config: JsonLinesConfig = from_str("(path: \"log.jsonl\")").unwrap();
    let (turns, dead) = Running::run(config.source(directory.path()), Mode::Once).all();
    assert!(turns.is_empty());
    assert!(dead[0].contains("map: Preset(\"openai-finetune\")"), "{dead:?}");
    assert!(!dead[1].contains("Preset"), "{dead:?}");
    let (turns, _) = Running::run(source(directory.path(), "map: Preset(\"openai-finetune\")"), Mode::Once).all();
    assert_eq!(turns.iter().map(shown).collect::<Vec<_>>(), ["1 1 user When?", "1 1 agent At ten."]);
}

#[test]
fn histories_and_hostile_records_in_a_followed_log() {
    let directory = tempfile::tempdir().unwrap();
    let code = r#"{id, guess: true, order: .id, messages: (.m | chat_messages),
        answer: (if .a == "loop" then last(repeat(1)) else {speaker: "agent", text: .a} end)}"#;
    let said = |id: u32, said: &[&str], answer: &str| {
        let speaker = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
        let said = said.iter().enumerate().map(|(at, text)| serde_json::json!({"role": speaker(at), "content": text}));
        serde_json::json!({"id": id, "m": said.collect::<Vec<_>>(), "a": answer}).to_string() + "\n"
    };
    append(directory.path(), &said(1, &["One?"], "Yes."));
    let running = Running::run(source(directory.path(), &format!("map: Jq({code:?})")), Mode::Follow);
    let mut last = None;
    let mut next = |running: &Running| {
        let turn = running.take();
        last = turn.place.clone();
        shown(&turn)
    };
    let first = next(&running);
    assert!(first.ends_with(" 1 user One?"), "{first}");
    assert!(next(&running).ends_with(" 1 agent Yes."));
    append(directory.path(), &said(2, &["Other?"], "loop"));
    append(directory.path(), &said(3, &["One?", "Yes.", "Two?"], "No."));
    let name = first.strip_suffix(" 1 user One?").unwrap().to_owned();
    assert_eq!(next(&running), format!("{name} 2 user Two?"));
    assert_eq!(next(&running), format!("{name} 2 agent No."));
    let dead = running.dead();
    assert!(dead[0].contains("log.jsonl:2: not mapped: the program was ended"), "{dead:?}");
    drop(running.end(true));
    append(directory.path(), &said(4, &["One?", "Yes.", "Two?", "No.", "Three?"], "Ok."));
    let again = Running::resume(source(directory.path(), &format!("map: Jq({code:?})")), Mode::Follow, last);
    assert_eq!(shown(&again.take()), format!("{name} 3 user Three?"));
    assert_eq!(shown(&again.take()), format!("{name} 3 agent Ok."));
    drop(again.end(true));
}
