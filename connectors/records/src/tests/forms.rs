//! Files of all forms.

use super::*;

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
    let mixed =
        "<log><p>Hello <b>big</b> world<br/>&lt;3 <![CDATA[a<b]]> <q a='\"x'>in <i>it</i></q></p><p>plain</p></log>";
    let code = r##".p[0] | {conversation: 1, speaker: "user", text: [.["#text"], .["#content"], (.["#markup"] | html_text),
        .q[0]["#content"], .q[0]["@a"]] | join("|")}"##;
    let code = code.replace("\n        ", " ");
    let expected = "1 user Hello  world<3 a<b|Hello big world<3 a<b in it|Hello big world\n<3 a<b in it|in it|\"x";
    assert_eq!(of_file(&code, "log.xml", mixed.as_bytes()), [expected]);
    let deep = format!("<a>{}{}</a>", "x<a>".repeat(400), "y</a>".repeat(400));
    let code = ".[\"#markup\"] | {conversation: 1, speaker: \"user\", text: (length | tostring)}";
    assert_eq!(of_file(code, "log.xml", deep.as_bytes()), ["1 user 3600"]);
    let page = "<div class=m id=7><p class=from>Ann</p><div class=text>A?<br>B?</div></div><div class=m><p class=from>\
        Desk</p><div class=text>C.</div></div>";
    let code = r##"html_find("div.m")[] | (.html | html_find(".from")[0].text) as $who
        | {id: .["@id"], conversation: 1, speaker: (if $who == "Desk" then "agent" else "user" end),
           text: (.html | html_find(".text")[0].text)}"##;
    assert_eq!(of_file(code, "log.html", page.as_bytes()), ["1 user A?\nB?", "1 agent C."]);
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
    let part = format!("2026-03-05T09:00:00Z stdout P {}\n", "x".repeat(16 << 10));
    let long = part.repeat(600) + "2026-03-05T09:00:00Z stdout F end\n";
    let streams: String = (0..40).map(|n| format!("{{\"log\": \"x\", \"stream\": \"{n}\"}}\n")).collect();
    for (log, number, reason) in [(long + cri, 1, "longer than 8 MB"), (cri.to_owned() + &streams, 21, "16 streams")] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pod.log");
        std::fs::write(&path, log).unwrap();
        let found = map_files(&Mapping::of(code).unwrap(), &[path], None).unwrap();
        assert_eq!(found.turns.len(), 2, "{reason}");
        let (source, told) = &found.refused[0];
        assert!(source.number == number && told.contains(reason), "{source}: {told}");
    }
    let many: String = (0..60_000).map(|n| format!("{n}=1&")).collect();
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("f.txt"), format!("{many}\nSid=1&Body=x")).unwrap();
    let forms =
        Mapping::of("#: {\"decode\": \"forms\"}\n{conversation: .Sid, speaker: \"user\", text: .Body}").unwrap();
    let found = map_files(&forms, &[place.path().to_owned()], None).unwrap();
    assert_eq!((found.turns.len(), found.refused.len()), (1, 1));
    assert!(found.refused[0].1.contains("more than 50000 fields"), "{:?}", found.refused);
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
fn a_log_of_a_container_is_read_on_from_where_no_line_is_open() {
    let line = |stream: &str, tag: &str, text: &str| format!("2026-03-05T09:00:00Z {stream} {tag} {text}\n");
    let whole = |text: &str| line("stdout", "F", text);
    let log = whole("one")
        + &line("stdout", "P", "two, ")
        + &line("stderr", "F", "err")
        + "no line of it\n\n"
        + &line("stdout", "F", "three")
        + &format!("{}\r\n", whole("four").trim_end())
        + &format!("x{}\n", "y".repeat(17 << 20))
        + &whole("grüße")
        + &line("stdout", "P", "waits")
        + "2026-03";
    let place = tempfile::tempdir().unwrap();
    let options: Options = serde_json::from_str(r#"{"decode": "container"}"#).unwrap();
    let read = |name: &str, content: &[u8], from| {
        let path = place.path().join(name);
        std::fs::write(&path, content).unwrap();
        let (mut found, mut waiting, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let each = &mut |record: decode::Found| {
            found.push(match record {
                Ok(record) => format!("{} {}", record.source.number, record.value),
                Err((source, error)) => format!("{} {error}", source.number),
            });
        };
        let open = &mut |record: Record| waiting.push(format!("{} {}", record.source.number, record.value));
        let so_far = std::cell::Cell::new(0);
        let each = &mut |record: decode::Found| {
            each(record);
            so_far.set(so_far.get() + 1);
        };
        let rests = &mut |place| places.push((place, so_far.get()));
        let growing = decode::Growing { open: Some(open), rests: Some(rests), from };
        decode::read_open(&std::fs::File::open(&path).unwrap(), &path, &options, each, growing).unwrap();
        (found, waiting, places)
    };
    let (all, waiting, places) = read("0.log", log.as_bytes(), decode::Place::default());
    let numbers: Vec<&str> = all.iter().filter_map(|record| record.split(' ').next()).collect();
    assert_eq!((numbers, waiting.len()), (vec!["1", "3", "4", "2", "7", "8", "9"], 2), "{all:?} {waiting:?}");
    assert_eq!(places.iter().map(|(place, _)| place.lines).collect::<Vec<_>>(), [1, 6, 7, 9]);
    for (from, read_before) in places {
        let (rest, still_waiting, _) = read("0.log", log.as_bytes(), from);
        assert_eq!((&rest[..], &still_waiting), (&all[read_before..], &waiting), "{from:?}");
    }
    // What is packed or in UTF-16 has no such places.
    for (name, content) in [("1.log", gzip(log.as_bytes())), ("2.log", utf_16(&whole("one")))] {
        let (found, _, places) = read(name, &content, decode::Place::default());
        assert!(found[0].contains("one") && places.is_empty(), "{name}: {found:?}");
    }
}
