use super::*;

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

#[test]
fn tables_mails_transcripts_and_texts_are_records() {
    let place = tempfile::tempdir().unwrap();
    let read = |name: &str, text: &[u8], options: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut found = Vec::new();
        let options: Options = serde_json::from_str(options).unwrap();
        decode::read(&path, &options, true, None, &mut |record| match record {
            Ok(record) => found.push(record.value.to_string()),
            Err((source, error)) => found.push(format!("{}: {error}", source.number)),
        })
        .unwrap();
        found
    };
    let csv = read("a.csv", b"\xef\xbb\xbfid;text\n01;\"a;\"\"b\"\"\nc\"\n", "{}");
    assert_eq!(csv, [r#"{"id":"01","text":"a;\"b\"\nc"}"#]);
    assert_eq!(
        read("b.csv", b"id,text\n1,gr\xfc\xdfe\n", "{}"),
        [r#"{"id":"1","text":"grüße"}"#],
        "as Windows writes it"
    );
    let vtt = read(
        "a.vtt",
        b"WEBVTT\r\n\r\n00:01.000 --> 00:02.500\r\n<v Ann>Hi &amp; hello.\r\n<v Bo>Yes.\r\n\r\nx\r\n1 --> soon\r\n",
        "{}",
    );
    assert_eq!(vtt.len(), 3);
    assert!(vtt[0].contains(r#""voice":"Ann","text":"Hi & hello.""#) && vtt[2].contains("no times"), "{vtt:?}");
    let lines = read(
        "a.txt",
        "no start\nAnn: one\ntwo\nBo: three\n".as_bytes(),
        r#"{"start": "^(?<who>Ann|Bo): (?<text>.*)$"}"#,
    );
    assert_eq!(lines, [r#"{"who":"Ann","text":"one\ntwo"}"#, r#"{"who":"Bo","text":"three"}"#]);
    let sse = read("a.sse", b": hi\n\ndata: {\"a\":1}\n\ndata: {\"a\":\n\ndata: [DONE]\n\n", "{}");
    assert_eq!(sse, [r#"{"events":[{"a":1},["DONE"]],"ended":true}"#.replace(",[\"DONE\"]", "")]);
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert!(read("deep.json", &deep, "{}")[0].starts_with("[[["), "what is nested too deeply is left out");
    assert!(
        read("none.sqlite", b"not a database at all, but long enough", r#"{"query": "SELECT 1"}"#)[0]
            .contains("not a database")
    );
    assert_eq!(read("list.json", b"[{\"a\":1},2]", "{}"), [r#"{"a":1}"#, "2"]);
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

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn utf_16(text: &str) -> Vec<u8> {
    [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
}

#[test]
fn files_of_json_are_read_as_programs_write_them() {
    let code = "{conversation: ($source.name), speaker: (.s | role), text: .t}";
    let lines = "{\"s\": \"user\", \"t\": \"A?\"}\n{\"s\": \"bot\", \"t\": \"B.\"}\n";
    let spread = "{\n \"s\": \"user\",\n \"t\": \"A?\"\n}\n{\n \"s\": \"bot\",\n \"t\": \"B.\"\n}";
    let pages = "[{\"s\": \"user\", \"t\": \"A?\"}]\n[{\"s\": \"bot\", \"t\": \"B.\"},]";
    let script = "window.data[0] = [\n{\"s\": \"user\", \"t\": \"A?\",},\n{\"s\": \"bot\", \"t\": \"B.\"},\n];\n";
    let sequence = format!("\u{1e}{}", lines.replace('\n', "\n\u{1e}"));
    let two =
        [gzip(lines.lines().next().unwrap().as_bytes()), gzip(b"\n"), gzip(lines.lines().nth(1).unwrap().as_bytes())];
    for (name, bytes) in [
        ("c.jsonl", lines.as_bytes().to_vec()),
        ("c.json", lines.as_bytes().to_vec()),
        ("c.json", spread.as_bytes().to_vec()),
        ("c", spread.as_bytes().to_vec()),
        ("c.jsonl", spread.as_bytes().to_vec()),
        ("c.json", pages.as_bytes().to_vec()),
        ("c.json", sequence.as_bytes().to_vec()),
        ("c.jsonl", utf_16(lines)),
        ("c.json", utf_16(spread)),
        ("c.jsonl.gz", gzip(lines.as_bytes())),
        ("c.json.gz", gzip(spread.as_bytes())),
        ("c.jsonl.gz", two.concat()),
        ("c.jsonl.zst", zstd::encode_all(lines.as_bytes(), 3).unwrap()),
    ] {
        assert_eq!(of_file(code, name, &bytes), ["c user A?", "c agent B."], "{name}");
    }
    let found = of_file("{conversation: 1, speaker: (.s? | role), text: .t?}", "c.js", script.as_bytes());
    assert_eq!(found, ["1 user A?", "1 agent B."]);
}

#[test]
fn a_broken_line_costs_itself_and_not_the_file() {
    let place = tempfile::tempdir().unwrap();
    for name in ["c.jsonl", "c.log", "c"] {
        let path = place.path().join(name);
        std::fs::write(&path, "{\"t\": \"half\n{\"t\": \"A?\"}\n{\"t\": \"B?\"}\n").unwrap();
        let mapping = Mapping::of("{conversation: 1, speaker: \"user\", text: .t}").unwrap();
        let mapped = map_files(&mapping, &[path], None).unwrap();
        assert_eq!((mapped.turns.len(), mapped.refused.len()), (2, 1), "{name}");
    }
}

#[test]
fn archives_and_folders_are_read_with_what_is_not_text_left_out() {
    use std::io::Write as _;
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, bytes) in [
        ("x/b/2.json", b"[{\"s\": \"bot\", \"t\": \"B.\"}]".as_slice()),
        ("x/b/1.json", b"[{\"s\": \"user\", \"t\": \"A?\"}]"),
        ("x/users.json", b"[{\"s\": \"user\", \"t\": \"no\"}]"),
        ("x/b/photo.jpg", b"\xff\xd8\xff\0\0\x01\xff\xfe\0"),
        ("__MACOSX/x/b/1.json", b"{"),
    ] {
        archive.start_file(name, options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    let bytes = archive.finish().unwrap().into_inner();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("export.zip");
    std::fs::write(&path, bytes).unwrap();
    let code = "#: {\"files\": \"[0-9].json\"}\n{conversation: $source.folder, speaker: (.s | role), text: .t}";
    let mapped = map_files(&Mapping::of(code).unwrap(), &[path], None).unwrap();
    assert!(mapped.refused.is_empty(), "{:?}", mapped.refused);
    let turns: Vec<String> =
        mapped.turns.iter().map(|turn| format!("{} {}", turn.conversation_id, turn.text)).collect();
    assert_eq!((turns.as_slice(), mapped.odd.unread), (["b A?".to_owned(), "b B.".to_owned()].as_slice(), 2));
}

#[test]
fn tables_are_read_as_programs_write_them() {
    let code = "{conversation: .chat, speaker: (.who | role), text: .text}";
    let expected = ["1 user said \"so\"; or\nnot", "1 agent yes"];
    let excel = "sep=;\r\n\"chat\";\"who\";\"text\"\r\n1;Consumer;\"said \"\"so\"\"; or\nnot\"\r\n1;Operator;yes\r\n";
    assert_eq!(of_file(code, "c.csv", &utf_16(excel)), expected);
    assert_eq!(of_file(code, "c.csv.1", excel.as_bytes()), expected);
    let quoted = "\"chat\",\"a;b;c;d\",who,text\n1,,user,\"said \"\"so\"\"; or\nnot\"\n1,,bot,yes\n";
    assert_eq!(of_file(code, "c.csv", quoted.as_bytes()), expected);
    let dump = "Report\n\n1,\"user\",\"said \\\"so\\\"; or\nnot\"\n1,\"bot\",\"yes\"\n";
    let with = r#"#: {"columns": ["chat", "who", "text"], "escape": "\\", "skip": 2}"#;
    assert_eq!(of_file(&format!("{with}\n{code}"), "c.csv", dump.as_bytes()), expected);
    let twice = "chat,name,name,\n1,user,A?,more\n";
    let code = r#"{conversation: .chat, speaker: .name, text: (.["name 2"] + .["4"])}"#;
    assert_eq!(of_file(code, "c.csv", twice.as_bytes()), ["1 user A?more"]);
}

#[test]
fn lines_of_text_have_what_lines_before_them_say() {
    let log = "\
--- Log opened Thu Mar 05 11:20:00 2026
11:23 < ann> Open?
  today?
11:24 <@desk> Yes.

--- Day changed Fri Mar 06 2026
00:05 < ann> Now?
";
    let code = r#"#: {"start": ["^--- Log opened \\w+ (?<day>\\w+ \\d+) \\S+ (?<year>\\d+)",
        "^--- Day changed \\w+ (?<day>\\w+ \\d+) (?<year>\\d+)",
        "^(?<clock>\\d\\d:\\d\\d) <[ @](?<nick>[^>]+)> (?<text>.*)$"], "carry": ["day", "year"]}
        select(.nick) | {conversation: "\(.day) \(.year)", speaker: (if .nick == "desk" then "agent" else "user" end), text}"#;
    let code = code.replace(",\n        \"^", ", \"^");
    let expected = ["Mar 05 2026 user Open?\n  today?", "Mar 05 2026 agent Yes.", "Mar 06 2026 user Now?"];
    assert_eq!(of_file(&code, "irc.log", log.as_bytes()), expected);
}

#[test]
fn xml_and_html_are_read() {
    let log = "<?xml version=\"1.0\"?>\n<log><m to='1' who=\"user\">A &lt; B &amp; C&#10;?</m><!-- x -->\
        <m to=\"1\" who=\"bot\"><![CDATA[<yes>]]></m><m><b>1</b><b>2</b></m></log>";
    let code = r##".m[] | select(.["@to"]) | {conversation: .["@to"], speaker: (.["@who"] | role), text: .["#text"]}"##;
    assert_eq!(of_file(code, "log.xml", log.as_bytes()), ["1 user A < B & C\n?", "1 agent <yes>"]);
    let nested = "{conversation: 1, speaker: \"user\", text: (.m[2].b | join(\",\"))}";
    assert_eq!(of_file(nested, "log.xml", log.as_bytes()), ["1 user 1,2"]);
    let page = "<div class=m id=7><p class=from>Ann</p><div class=text>A?<br>B?</div></div><div class=m><p class=from>\
        Desk</p><div class=text>C.</div></div>";
    let code = r##"html_find("div.m")[] | (.html | html_find(".from")[0].text) as $who
        | {id: .["@id"], conversation: 1, speaker: (if $who == "Desk" then "agent" else "user" end),
           text: (.html | html_find(".text")[0].text)}"##;
    assert_eq!(of_file(code, "log.html", page.as_bytes()), ["1 user A?\nB?", "1 agent C."]);
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

/// Of the presets that make turns of a log, the one for its form comes first.
#[test]
fn logs_of_other_programs_are_recognised() {
    let Some(logs) = std::env::var_os("TURNFLOW_LOGS").map(PathBuf::from) else {
        println!("skipped: TURNFLOW_LOGS names no folder of logs");
        return;
    };
    let mut wrong = Vec::new();
    for (name, _) in presets::PRESETS.iter().filter(|(name, _)| *name != "wildchat-parquet") {
        let folder = logs.join(name);
        if !folder.is_dir() {
            continue;
        }
        let input = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let input = input.filter(|path| path.file_stem().is_some_and(|stem| stem == "input")).collect::<Vec<_>>();
        let found = recognise(&input, None).unwrap();
        if found.first().is_none_or(|(first, _)| first != name) {
            wrong.push((*name, found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Calls with repeated histories and a log of whole conversations look alike: what joins more is the better one.
#[test]
fn of_presets_that_find_the_same_the_one_that_joins_more_comes_first() {
    let place = tempfile::tempdir().unwrap();
    let whole = |question: &str, answer: &str| {
        format!(
            r#""choices": [{{"message": {{"role": "assistant", "content": "{answer}"}}}}], "question": "{question}""#
        )
    };
    let first = r#"{"role": "user", "content": "When?"}"#;
    let log = format!(
        "{{\"model\": \"m\", \"id\": \"1\", \"created\": 100, \"messages\": [{first}], {}}}\n{{\"model\": \"m\", \"id\": \"2\", \"created\": 110, \
         \"messages\": [{first}, {{\"role\": \"assistant\", \"content\": \"At ten.\"}}, {{\"role\": \"user\", \"content\": \"Where?\"}}], {}}}\n",
        whole("When?", "At ten."),
        whole("Where?", "At ten.")
    );
    let path = place.path().join("log.jsonl");
    std::fs::write(&path, log).unwrap();
    let found = recognise(&[path], None).unwrap();
    let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
    assert!(names[0] == "openai-chat" && names.contains(&"openai-finetune"), "{names:?}");

    for (name, text) in [
        ("1.request.json", r#"{"metadata": {"chat": "c"}, "messages": [{"role": "user", "content": "When?"}]}"#),
        (
            "1.response.json",
            r#"{"created": 100, "choices": [{"message": {"role": "assistant", "content": "At ten."}}]}"#,
        ),
    ] {
        std::fs::create_dir_all(place.path().join("capture")).unwrap();
        std::fs::write(place.path().join("capture").join(name), text).unwrap();
    }
    let found = recognise(&[place.path().join("capture")], None).unwrap();
    assert_eq!(found.first().map(|(name, _)| *name), Some("openai-sse-capture"));
}

#[test]
fn forms_and_lines_of_container_runtimes_are_records() {
    let forms =
        "Type=added&Sid=CH1\nSid=CH1&Id=M1&Author=%2B4930&Body=When+does+it+leave%3F+%C3%BC+%26+co&tag=a&tag=b\n\n";
    let code = r#"#: {"decode": "forms"}
        select(.Body) | {id: .Id, conversation: .Sid, speaker: "user", text: "\(.Body) \(.Author) \(.tag | join("+"))"}"#;
    let code = code.replace("\n        ", "\n");
    assert_eq!(of_file(&code, "bodies.txt", forms.as_bytes()), ["CH1 user When does it leave? ü & co +4930 a+b"]);
    let within = r#"{"body": "Sid=CH1&Body=When%3F"}"#;
    let code = r#".body | form_fields | {conversation: .Sid, speaker: "user", text: .Body}"#;
    assert_eq!(of_file(code, "hooks.jsonl", within.as_bytes()), ["CH1 user When?"]);

    let code = "#: {\"decode\": \"container\"}\n.time as $time | .log | meant | objects\n\
        | {conversation: .c, speaker: (.role | role), text: .t, time: $time}";
    let cri = "2026-03-05T09:00:00.123456789Z stdout P {\"c\": 1, \"role\"\n\
        2026-03-05T09:00:00.123456789Z stderr F INFO\n\
        2026-03-05T09:00:00.123456789Z stdout F : \"user\", \"t\": \"When?\"}\n\
        2026-03-05T09:00:02.123456789Z stdout F {\"c\": 1, \"role\": \"bot\", \"t\": \"At ten.\"}\n";
    let docker = r#"{"log": "boot\n", "stream": "stdout", "time": "2026-03-05T09:00:00Z"}
{"log": "{\"c\": 1, \"role\": \"us", "stream": "stdout", "time": "2026-03-05T09:00:00Z"}
{"log": "er\", \"t\": \"When?\"}\n", "stream": "stdout", "time": "2026-03-05T09:00:00Z"}
{"log": "{\"c\": 1, \"role\": \"bot\", \"t\": \"At ten.\"}\n", "stream": "stdout", "time": "2026-03-05T09:00:01Z"}"#;
    for log in [cri, docker] {
        assert_eq!(of_file(code, "pod.log", log.as_bytes()), ["1 user When?", "1 agent At ten."]);
    }
}

#[test]
fn cues_without_a_name_have_the_speaker_before_and_lines_may_name_him() {
    let srt = "\u{feff}1\n00:00:01,000 --> 00:00:03,200\nAgent: Good <i>morning</i>.\n\n2\n00:00:03,900 --> 00:00:06,000\n\
        Caller: When does the ferry\nleave in\n\n3\n00:00:06,000 --> 00:00:08,100\nwinter? {\\an8}\n\n\
        4\n00:01:08,600 --> 00:01:10,000\nAgent: At eleven.\nCaller: Thanks.\n\n";
    let code = r#"#: {"decode": "vtt", "start": "^(?<voice>Agent|Caller): (?<text>.*)$", "carry": ["voice"], "glue": " "}
{conversation: $source.name, speaker: (.voice | role), text: (.text | gsub("\n"; " ")), merge: .voice}"#;
    let expected = [
        "call agent Good morning.",
        "call user When does the ferry leave in winter?",
        "call agent At eleven.",
        "call user Thanks.",
    ];
    assert_eq!(of_file(code, "call.srt", srt.as_bytes()), expected);
    let vtt = "WEBVTT\n\n00:01.000 --> 00:02.500\n<v Agent>Hello.\n\n00:03.000 --> 00:04.000\nHow are you?\n";
    let code = "#: {\"carry\": [\"voice\"]}\n{conversation: 1, speaker: (.voice | role), text, merge: .voice}";
    assert_eq!(of_file(code, "call.vtt", vtt.as_bytes()), ["1 agent Hello. How are you?"]);
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
