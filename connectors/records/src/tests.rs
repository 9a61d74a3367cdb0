use super::*;

mod forms;
mod recognised;

#[test]
fn every_preset_is_a_program() {
    let wrong: Vec<String> = presets::PRESETS
        .iter()
        .filter_map(|(name, code)| Some(format!("{name}: {}", Mapping::of(code).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Logs as their programs write them, with the turns that are right: `$TURNFLOW_LOGS`, a folder for each preset.
#[test]
fn logs_of_other_programs_become_turns() {
    let Some(logs) = std::env::var_os("TURNFLOW_LOGS").map(PathBuf::from) else {
        println!("skipped: TURNFLOW_LOGS names no folder of logs");
        return;
    };
    let mut wrong = Vec::new();
    // Tables of columns are read by another crate.
    for (name, code) in presets::PRESETS.iter().filter(|(name, _)| *name != "wildchat-parquet") {
        let folder = logs.join(name);
        if !folder.is_dir() {
            continue;
        }
        let input = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let input = input.filter(|path| path.file_stem().is_some_and(|stem| stem == "input")).collect::<Vec<_>>();
        let mapped = map_files(&Mapping::of(code).unwrap(), &input, None).unwrap();
        let out: String = mapped.turns.iter().map(|turn| serde_json::to_string(turn).unwrap() + "\n").collect();
        let place = std::env::temp_dir().join(format!("{name}.turns.jsonl"));
        std::fs::write(&place, out).unwrap();
        let arguments = [logs.join("same.py"), place, folder.join("expected.jsonl")];
        let done = std::process::Command::new("python3").args(arguments).output().unwrap();
        if !done.status.success() || !mapped.refused.is_empty() {
            println!("== {name} {:?} {:?}\n{}", mapped.refused, mapped.left_out, String::from_utf8_lossy(&done.stdout));
            wrong.push(*name);
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:?}", wrong.len(), presets::PRESETS.len());
}

/// The turns of lines of JSON, as `conversation turn speaker text`.
fn turns(code: &str, lines: &str) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("log.jsonl");
    std::fs::write(&path, lines).unwrap();
    let mapped = map_files(&Mapping::of(code).unwrap(), &[path], None).unwrap();
    assert!(mapped.refused.is_empty(), "{:?}", mapped.refused);
    let shown = |turn: &Turn| format!("{} {} {} {}", turn.conversation_id, turn.turn, turn.speaker, turn.text);
    mapped.turns.iter().map(shown).collect()
}

#[test]
fn questions_are_numbered_and_an_agent_may_speak_first() {
    let log = r#"{"c": "a", "s": "bot", "t": "Hello."}
{"c": "a", "s": "Human", "t": "One?"}
{"c": "b", "s": "user", "t": "Other?"}
{"c": "a", "s": "tool", "t": "{}"}

{"c": "a", "s": "user", "t": "Two?"}
{"c": "a", "s": "assistant", "t": "Both."}
{"c": "a", "s": "assistant", "t": " "}
"#;
    let found = turns("{conversation: .c, speaker: (.s | role), text: .t}", log);
    assert_eq!(found, ["a 1 agent Hello.", "a 2 user One?", "a 3 user Two?", "a 3 agent Both.", "b 1 user Other?"]);
}

#[test]
fn messages_come_late_twice_and_with_another_text_and_are_deleted() {
    let log = r#"{"id": 3, "at": 30, "s": "user", "t": "Three?"}
{"id": 1, "at": 10, "s": "user", "t": "One?"}
{"id": 2, "at": 20, "s": "agent", "t": "Yes."}
{"id": 1, "at": 10, "s": "user", "t": "One?"}
{"id": 2, "at": 20, "s": "agent", "t": "No.", "v": 2}
{"id": 2, "at": 20, "s": "agent", "t": "Perhaps.", "v": 1}
{"id": 4, "at": 40, "s": "user", "t": "Never mind."}
{"id": 4, "gone": true}
"#;
    let code = "{id, conversation: 7, speaker: .s, text: .t, order: .at, version: .v, removed: .gone}";
    assert_eq!(turns(code, log), ["7 1 user One?", "7 1 agent No.", "7 2 user Three?"]);
}

#[test]
fn chains_of_replies_are_conversations_and_the_latest_branch_counts() {
    let log = r#"{"id": "d", "to": "c", "s": "agent", "t": "At ten."}
{"id": "a", "s": "user", "t": "When?"}
{"id": "b", "to": "a", "s": "agent", "t": "Today."}
{"id": "c", "to": "b", "s": "user", "t": "At what time?"}
{"id": "c2", "to": "b", "s": "user", "t": "And where?"}
{"id": "x", "s": "user", "t": "Alone."}
{"id": "o", "to": "gone", "s": "user", "t": "Whose parent is not there."}
"#;
    let code = "{id, parent: .to, speaker: .s, text: .t, order: $source.number}";
    let all = turns(code, log);
    assert_eq!(all.len(), 7);
    let branch = turns(&format!("#: {{\"branch\": true}}\n{code}"), log);
    let of_a: Vec<&String> = branch.iter().filter(|turn| turn.starts_with("a ")).collect();
    assert_eq!(of_a, ["a 1 user When?", "a 1 agent Today.", "a 2 user And where?"]);
    assert!(branch.contains(&"gone 1 user Whose parent is not there.".to_owned()), "{branch:?}");
    let circle = "{\"id\": \"a\", \"to\": \"b\", \"s\": \"user\", \"t\": \"x\"}\n{\"id\": \"b\", \"to\": \"a\", \"s\": \"user\", \"t\": \"y\"}\n";
    assert_eq!(turns(&format!("#: {{\"branch\": true}}\n{code}"), circle).len(), 2);
}

#[test]
fn odd_values_and_broken_text_are_read_and_counted() {
    let place = tempfile::tempdir().unwrap();
    let log = place.path().join("log.jsonl");
    let lines: [&[u8]; 5] = [
        br#"{"t": "One \ud83d?"}"#,
        br#"{"t": "Two?", "n": NaN}"#,
        b"{\"t\": \"Caf\xe9?\"}",
        br#"{"t": "Four?"}"#,
        b"\0\0",
    ];
    std::fs::write(&log, lines.join(&b'\n')).unwrap();
    let csv = place.path().join("log.csv");
    std::fs::write(&csv, b"t\nGr\xc3\xbc\xc3\x9fe \xc3\xbc \xe9?\n").unwrap();
    let mapping = Mapping::of("{conversation: \"c\", speaker: \"user\", text: .t}").unwrap();
    let mapped = map_files(&mapping, &[log, csv], None).unwrap();
    assert_eq!(mapped.odd, Odd { replaced: 2, broken: 2, ..Odd::default() });
    assert_eq!(mapped.refused.len(), 1, "{:?}", mapped.refused);
    let texts: Vec<&str> = mapped.turns.iter().map(|turn| &*turn.text).collect();
    assert_eq!(texts, ["One \u{fffd}?", "Two?", "Caf\u{fffd}?", "Four?", "Grüße ü \u{fffd}?"]);
}

/// Reason: each message walked its chain anew, and a chain of 30,000 messages did not end within 25 s.
#[test]
fn long_chains_in_any_order_and_circles_take_linear_time() {
    const LONG: usize = 30_000;
    let line = |at: usize, to: Option<usize>, conversation: Option<&str>| {
        let speaker = if at.is_multiple_of(2) { "user" } else { "agent" };
        serde_json::json!({"id": at, "to": to, "s": speaker, "t": format!("{at}."), "c": conversation}).to_string()
    };
    let chain: Vec<String> = (0..LONG).map(|at| line(at, at.checked_sub(1), None)).collect();
    let circle: Vec<String> = (0..LONG).map(|at| line(at, Some((at + 1) % LONG), None)).collect();
    // The first half of the chain has a conversation, and the rest goes on with it.
    let across: Vec<String> =
        (0..LONG).map(|at| line(at, at.checked_sub(1), (at <= LONG / 2).then_some("known"))).collect();
    let back = |lines: &[String]| lines.iter().rev().cloned().collect::<Vec<_>>();
    let code = "{id, parent: .to, conversation: .c, speaker: .s, text: .t, order: .id}";
    let branching = format!("#: {{\"branch\": true}}\n{code}");
    for (lines, conversation) in [
        (back(&chain), "0"),
        (back(&across), "known"),
        (back(&circle), ""),
        (chain, "0"),
        (across, "known"),
        (circle, ""),
    ] {
        for code in [code, &branching] {
            let found = turns(code, &lines.join("\n"));
            assert_eq!(found.len(), LONG, "{conversation}");
            let is_one = |turn: &String| turn.starts_with(&format!("{conversation} "));
            assert!(conversation.is_empty() || found.iter().all(is_one), "{:?}", &found[..3]);
        }
    }
    let rewinds = ["{\"s\": \"agent\", \"t\": \"x\"}", "{\"rewind\": true}"].map(|line| [line].repeat(LONG).join("\n"));
    let code = "{conversation: \"c\", speaker: .s, text: .t, rewind}";
    assert_eq!(turns(code, &rewinds.join("\n")).len(), LONG);
}

#[test]
fn a_history_that_is_repeated_or_cut_is_said_once() {
    let call = |id: u32, said: &[(&str, &str)], answer: Option<&str>| {
        let messages: Vec<_> =
            said.iter().map(|(role, content)| serde_json::json!({"role": role, "content": content})).collect();
        serde_json::json!({"id": id, "messages": messages, "answer": answer}).to_string() + "\n"
    };
    let (u, a) = ("user", "assistant");
    let log = [
        call(1, &[("system", "Be brief."), (u, "One?")], Some("Yes.")),
        call(2, &[(u, "One?"), (a, "Yes."), (u, "Two?")], None),
        // Tried again, and sent twice.
        call(3, &[(u, "One?"), (a, "Yes."), (u, "Two?")], Some("No.")),
        call(3, &[(u, "One?"), (a, "Yes."), (u, "Two?")], Some("No.")),
        // Another one begins in the same way.
        call(4, &[(u, "One?")], Some("No.")),
        call(5, &[(u, "One?"), (a, "No."), (u, "Why?")], Some("So.")),
        // Old messages are cut.
        call(6, &[(u, "One?"), (a, "Yes."), (u, "Two?"), (a, "No."), (u, "Three?")], Some("Maybe.")),
    ];
    let code = r#"{id, guess: true, conversation: "c\(.id)", order: .id, messages: (.messages | chat_messages),
        answer: (if .answer then {speaker: "agent", text: .answer} else null end)}"#;
    let found = turns(code, &log.concat());
    let expected = [
        "c1 1 user One?",
        "c1 1 agent Yes.",
        "c1 2 user Two?",
        "c1 2 agent No.",
        "c1 3 user Three?",
        "c1 3 agent Maybe.",
        "c4 1 user One?",
        "c4 1 agent No.",
        "c4 2 user Why?",
        "c4 2 agent So.",
    ];
    assert_eq!(found, expected);
    let cut = [
        call(1, &[(u, "One?"), (a, "Yes."), (u, "Two?")], Some("No.")),
        call(2, &[(u, "Two?"), (a, "No."), (u, "Three?")], None),
    ];
    let named = code.replace("\"c\\(.id)\"", "\"c\"");
    let shown = turns(&named, &cut.concat());
    assert_eq!(shown, ["c 1 user One?", "c 1 agent Yes.", "c 2 user Two?", "c 2 agent No.", "c 3 user Three?"]);
}

#[test]
fn questions_are_taken_back_and_sessions_begin_again() {
    let log = r#"{"starts": true}
{"s": "user", "t": "One?"}
{"s": "user", "t": "Oops?"}
{"s": "agent", "t": "What?"}
{"rewind": true}
{"s": "agent", "t": "Yes."}
{"starts": true}
{"s": "user", "t": "Again?"}
"#;
    let code = "{conversation: \"c\", speaker: .s, text: .t, starts, rewind}";
    assert_eq!(turns(code, log), ["c 1 user One?", "c 1 agent Yes.", "c#2 1 user Again?"]);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (code, line, column, reason) in [
        ("{conversation: .c", 1, 18, "closing brace"),
        (".c |\n  nothing", 2, 3, "there is no filter `nothing`"),
        (".c | $x", 1, 6, "there is no variable `$x`"),
        ("#: {\"decoder\": \"csv\"}\n.", 1, 13, "unknown field"),
        ("\n#: {", 2, 4, "options"),
        ("#: {\"decode\": \"nonsense\"}\n.", 1, 15, "no form `nonsense`"),
        ("{a: env}", 1, 5, "declared environment variables only"),
        ("#: {\"env\": [\"A\"]}\n.a + $ENV.B", 2, 11, "`B` is not declared"),
        ("#: {\"env\": [\"A\"]}\nenv.B", 2, 5, "`B` is not declared"),
        (".a\n| test(\"(\")", 2, 9, "no regular expression: unclosed group"),
        (".a | gsub(\"x\"; \"y\"; \"q\")", 1, 12, "invalid regex flag: q"),
        (".a | html_find(\"div >\")", 1, 17, "no selector of CSS"),
    ] {
        let error = Mapping::of(code).unwrap_err();
        assert_eq!((error.line, error.column), (line, column), "{code}: {error}");
        assert!(error.reason.contains(reason), "{code}: {error}");
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("log.jsonl");
    std::fs::write(&path, "{\"a\": 1}\nnot json\n{\"a\": \"x\"}\n[]\n{\"a\": 123456789012345678901234567890}\n")
        .unwrap();
    let mapping =
        Mapping::of("if .a == \"x\" then error(\"no x\") else {conversation: .a, speaker: \"user\", text: \"t\"} end");
    let mapped = map_files(&mapping.unwrap(), &[path], None).unwrap();
    let told: Vec<(u64, &str)> = mapped.refused.iter().map(|(source, reason)| (source.number, &**reason)).collect();
    assert_eq!(told.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(told[0].1.contains("not JSON") && told[1].1.contains("no x"), "{told:?}");
    assert_eq!(mapped.turns[1].conversation_id, "123456789012345678901234567890", "all digits");
    for (code, reason) in [
        ("1", "no object"),
        ("{conversation: [], text: \"x\"}", "`conversation`"),
        ("{name: 1}", "field `name`"),
        ("{time: \"soon\"}", "`time`"),
        ("now", "no clock"),
        ("{turn: 0}", "`turn`"),
    ] {
        let record = Record { value: Default::default(), source: Source::default() };
        let error = Mapping::of(code).unwrap().run(&record).err().unwrap_or_default();
        assert!(error.contains(reason), "{code}: {error}");
    }
}

/// The turns of a file with this name and these bytes, as `conversation speaker text`.
fn of_file(code: &str, name: &str, bytes: &[u8]) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let mapped = map_files(&Mapping::of(code).unwrap(), &[place.path().to_owned()], None).unwrap();
    assert!(mapped.refused.is_empty(), "{name}: {:?}", mapped.refused);
    mapped.turns.iter().map(|turn| format!("{} {} {}", turn.conversation_id, turn.speaker, turn.text)).collect()
}

#[test]
fn what_one_record_says_of_a_speaker_counts_for_all_of_its_key() {
    let log = r#"{"user": 7, "role": "end-user"}
{"chat": 1, "by": 7, "t": "A?"}
{"chat": 2, "by": 8, "t": "Hello."}
{"chat": 1, "by": 8, "t": "B."}
{"user": 8, "role": "agent"}"#;
    let code = r#"if .user then {join: "user \(.user)", speaker: (.role | role)}
        else {join: ["user \(.by)"], conversation: .chat, text: .t} end"#;
    assert_eq!(turns(code, log), ["1 1 user A?", "1 1 agent B.", "2 1 agent Hello."]);
}

#[test]
fn contents_of_all_models_are_texts() {
    for (content, expected) in [
        (r#"[{"text": "a"}, {"text": "b", "thought": true}, {"functionCall": {}}]"#, "a"),
        (r#"{"role": "model", "parts": [{"text": "a"}, {"text": "b"}]}"#, "a\\nb"),
        (r#"[{"reasoningContent": {"reasoningText": {"text": "x"}}}, {"text": "a"}]"#, "a"),
        (r#"[{"toolResult": {"content": [{"text": "x"}]}}, {"text": "a"}]"#, "a"),
        (r#"[{"text": {"text": ["a", "b"]}}]"#, "a\\nb"),
        (r#"[{"type": "input_audio", "transcript": "a"}]"#, "a"),
        (r#"[{"type": "text", "text": ""}, {"type": "text", "text": "a"}]"#, "a"),
        ("null", ""),
    ] {
        let mapping = Mapping::of("{conversation: 1, speaker: \"user\", text: (\"x\" + (.c | parts_text))}").unwrap();
        let value = decode::value(format!("{{\"c\": {content}}}").as_bytes(), &mut Odd::default()).unwrap();
        let items = mapping.run(&Record { value, source: Source::default() }).unwrap();
        let Item::Message(message) = &items[0] else { panic!("{items:?}") };
        assert_eq!(message.text.as_deref().unwrap(), format!("x{}", expected.replace("\\n", "\n")), "{content}");
    }
}

#[test]
fn messages_are_found_in_lists_objects_and_texts() {
    for (given, expected) in [
        ("null", "[]"),
        ("7", "[]"),
        (r#""Is it open?""#, r#"[{"speaker":"user","text":"Is it open?"}]"#),
        (r#"" [not JSON""#, r#"[{"speaker":"user","text":" [not JSON"}]"#),
        (r#"{"role": "human", "content": "a"}"#, r#"[{"speaker":"user","text":"a"}]"#),
        (
            r#"{"messages": [{"type": "ai", "content": [{"type": "text", "text": "b"}]}]}"#,
            r#"[{"speaker":"agent","text":"b"}]"#,
        ),
        (
            r#"{"messages": null, "output": [{"message": {"role": "assistant", "content": "c"}}]}"#,
            r#"[{"speaker":"agent","text":"c"}]"#,
        ),
        (r#"{"output": "d"}"#, r#"[{"speaker":"user","text":""}]"#),
        (
            r#""[{\"role\": \"assistant\", \"parts\": [{\"type\": \"text\", \"content\": \"e\"}]}]""#,
            r#"[{"speaker":"agent","text":"e"}]"#,
        ),
        (
            r#"[[{"content": "f"}], "g", 1, {"role": 2, "text": "[{\"text\": \"h\"}]"}]"#,
            r#"[{"speaker":"user","text":"f"},{"speaker":"user","text":"g"},{"speaker":"user","text":"1"},{"speaker":"user","text":"h"}]"#,
        ),
    ] {
        let mapping =
            Mapping::of("{conversation: 1, speaker: \"user\", text: (.c | messages_of(\"user\") | tojson)}").unwrap();
        let value = decode::value(format!("{{\"c\": {given}}}").as_bytes(), &mut Odd::default()).unwrap();
        let items = mapping.run(&Record { value, source: Source::default() }).unwrap();
        let Item::Message(message) = &items[0] else { panic!("{items:?}") };
        assert_eq!(message.text.as_deref().unwrap(), expected, "{given}");
    }
}

#[test]
fn blanks_nulls_and_nested_values_are_read() {
    for (code, record, expected) in [
        ("meant", r#""null""#, "null"),
        ("meant", r#"" null\n""#, "null"),
        ("meant", r#""nullable""#, r#""nullable""#),
        ("seconds", r#""""#, "null"),
        ("seconds", r#"" ""#, "null"),
        ("parts_text", r#"[{"type": "text", "text": {"value": "a", "annotations": []}}]"#, r#""a""#),
        ("content_text", r#"[{"type": "text", "text": {"value": "a", "annotations": []}}]"#, r#""a""#),
        ("content_text", r#""[{\"type\": \"text\", \"text\": \"When do""#, r#""When do""#),
    ] {
        let mapping = Mapping::of(&format!("{{conversation: 1, text: (.v | {code} | tojson)}}")).unwrap();
        let value = decode::value(format!("{{\"v\": {record}}}").as_bytes(), &mut Odd::default()).unwrap();
        let items = mapping.run(&Record { value, source: Source::default() }).unwrap();
        let Item::Message(message) = &items[0] else { panic!("{items:?}") };
        assert_eq!(message.text.as_deref(), Some(expected), "{record} | {code}");
    }
}

#[test]
fn messages_without_an_id_count_once_if_that_is_wanted() {
    let log = r#"{"c": 1, "s": "user", "t": "Yes?", "at": 10}
{"c": 1, "s": "user", "t": "Yes?", "at": 20}
{"c": 1, "s": "user", "t": "Yes?", "at": 10}
{"c": 2, "s": "user", "t": "Yes?", "at": 10}
{"c": 1, "s": "agent", "t": "Yes?", "at": 10}"#;
    let code = "{conversation: .c, speaker: .s, text: .t, time: .at}";
    assert_eq!(turns(code, log).len(), 5);
    let once = turns(&format!("#: {{\"once_by_content\": true}}\n{code}"), log);
    assert_eq!(once, ["1 1 user Yes?", "1 2 user Yes?", "1 2 agent Yes?", "2 1 user Yes?"]);
}

#[test]
fn declared_variables_of_the_environment_are_seen() {
    let code = "#: {\"env\": [\"PATH\", \"TURNFLOW_NO_SUCH\"]}\n\
        {conversation: 1, speaker: \"user\", text: [$ENV.PATH != null, env.PATH == $ENV.PATH, $ENV.TURNFLOW_NO_SUCH, (env | length)] | tojson}";
    assert_eq!(turns(code, "{}\n"), ["1 1 user [true,true,null,2]"]);
    assert!(Body::of("$ENV.PATH").is_err() && DocumentMapping::of("env.PATH").is_err());
    assert!(DocumentMapping::of("#: {\"env\": [\"PATH\"]}\n{id: 1, text: env.PATH}").is_ok());
}
