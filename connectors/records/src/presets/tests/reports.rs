//! Logs as their programs really write them, in shapes that readers of logs got wrong.

use super::*;
use crate::recognise;

/// Each language and system writes dates and times in its way.
#[test]
fn chats_of_whatsapp_are_read_in_all_languages() {
    for (file, text, expected) in [
        (
            "WhatsApp Chat - Ann.txt",
            "\u{200e}[07.03.26, 21:22:39] Ann: \u{200e}Nachrichten und Anrufe sind verschl\u{fc}sselt.\n[07.03.26, 21:22:39] Ann: Hey\n\u{200e}[07.03.26, 21:22:50] Ann: \u{200e}Bild weggelassen\n[07.03.26, 21:28:10] Fernhill Desk: Huhu\nzwei",
            &["Ann 1 user Hey 1772918559", "Ann 1 agent Huhu\nzwei 1772918890"][..],
        ),
        (
            "WhatsApp Chat mit Bo.txt",
            "07.03.26, 21:22 - Bo: Hey\n07.03.26, 21:23 - Bo: <Medien ausgeschlossen>\n07.03.26, 21:28 - Fernhill Desk: Huhu",
            &["Bo 1 user Hey 1772918520", "Bo 1 agent Huhu 1772918880"],
        ),
        (
            "WhatsApp Chat - Ann.txt",
            "[14/10/2021, 3:34:09\u{202f}PM] Ann: hello\n[14/10/2021, 3:35:09\u{202f}PM] Fernhill Desk: yes",
            &["Ann 1 user hello 1634225649", "Ann 1 agent yes 1634225709"],
        ),
        (
            "Chat de WhatsApp con Eva.txt",
            "28/3/2025, 9:29 p.\u{a0}m. - Eva: hola\n28/3/2025, 9:36 p.\u{a0}m. - Fernhill Desk: si",
            &["Eva 1 user hola 1743197340", "Eva 1 agent si 1743197760"],
        ),
        (
            "ar.txt",
            "\u{200f}28\u{200f}/3\u{200f}/2025\u{60c} 9:29 \u{645} - user1: \u{645}\u{631}\u{62d}\u{628}\u{627}\n\u{200f}\u{662}\u{668}\u{200f}/\u{663}\u{200f}/\u{662}\u{660}\u{662}\u{665}\u{60c} \u{669}:\u{663}\u{666} \u{645} - Fernhill Desk: \u{646}\u{639}\u{645}",
            &[
                "ar 1 user \u{645}\u{631}\u{62d}\u{628}\u{627} 1743197340",
                "ar 1 agent \u{646}\u{639}\u{645} 1743197760",
            ],
        ),
        (
            "zh.txt",
            "2021/01/02 13:05 - Ann: cn\n2021/1/2 \u{4e0b}\u{5348}1:06 - Fernhill Desk: ok",
            &["zh 1 user cn 1609592700", "zh 1 agent ok 1609592760"],
        ),
        (
            "WhatsApp Chat with Pat.txt",
            "1/4/23, 7:02\u{202f}PM - Messages and calls are end-to-end encrypted.\n2/4/23, 10:35\u{202f}PM - ~ Pat: Is it 4:30 or 6?\n2/4/23, 10:35\u{202f}PM - Fernhill Desk: It was changed",
            &["Pat 1 user Is it 4:30 or 6? 1675550100", "Pat 1 agent It was changed 1675550100"],
        ),
        (
            "old.txt",
            "3/24/14, 1:59:59 PM: Sender Name: Message\n3/24/14, 2:00:59 PM: Fernhill Desk: reply",
            &["old 1 user Message 1395669599", "old 1 agent reply 1395669659"],
        ),
    ] {
        assert_eq!(timed("whatsapp-chat-text", file, text), expected, "{file}");
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join(file), text.replace("Fernhill Desk", "Cas")).unwrap();
        let found = recognise(&[place.path().to_owned()], None).unwrap();
        assert_eq!(found.first().map(|(name, _)| *name), Some("whatsapp-chat-text"), "{file}");
    }
}

/// Lines that begin no message are not lost in silence.
#[test]
fn lines_before_the_first_message_are_counted_and_a_text_without_messages_is_an_error() {
    let mapping = Mapping::of(
        r##"#: {"start": "^(?<who>\\w+)> (?<text>.*)$"}
{conversation: "c", speaker: .who, text}"##,
    )
    .unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.txt");
    let mapped = |text: &str| {
        std::fs::write(&path, text).unwrap();
        map_files(&mapping, std::slice::from_ref(&path), None).unwrap()
    };
    let found = mapped("Exported today\n\nby me\nuser> When?\nor where?\nagent> At ten.\n");
    assert_eq!((found.turns.len(), found.odd.before), (2, 2));
    assert_eq!(found.left_out["that are lines before the first `start`"], 2);
    let found = mapped("user: When?\nagent: At ten.\n");
    assert_eq!((found.turns.len(), found.refused.len()), (0, 1));
    assert!(found.refused[0].1.contains("none is as `start` describes it"), "{:?}", found.refused);
    assert!(mapped("\n \n").refused.is_empty());
}

/// An expression that can match nothing matches between letters, and never within one.
#[test]
fn regular_expressions_do_not_cut_letters() {
    let gives = |code: &str| {
        let body = crate::Body::of(code).unwrap();
        let made = body.run("\"Gr\u{fc}\u{df}e b\"".as_bytes()).unwrap();
        made.into_iter().map(crate::Made::plain).collect::<Vec<_>>().join(" | ")
    };
    for (code, expected) in [
        (r#"gsub("x*"; "-")"#, "-G-r-\u{fc}-\u{df}-e- -b-"),
        (r#"[match("";"g").offset] | tojson"#, "[0,1,2,3,4,5,6,7]"),
        (r#"[splits(" *")] | tojson"#, r#"["","G","r","ü","ß","e","b",""]"#),
        (r#"[match("ß?"; "g") | .length] | add"#, "1"),
        (r#"[null, "x", 1, true] | join(" ")"#, " x 1 true"),
        (r#"[] | join(",")"#, ""),
        (r#"[null, null] | join("\n") | @json"#, r#""\n""#),
    ] {
        assert_eq!(gives(code), expected, "{code}");
    }
    let export = r#"[{"uuid": "c", "chat_messages": [{"uuid": "m", "sender": "human", "created_at": "2026-03-05T11:23:40Z", "text": "When?", "content": [{"type": "text", "text": null}, {"type": "text"}]}]}]"#;
    assert_eq!(turns("claude-export", "conversations.json", export), ["c 1 user When?"]);
}

/// Direct messages are said to the agent; tombstones, other events and texts in blocks.
#[test]
fn chats_of_slack_and_discord_are_read_as_people_see_them() {
    let slack = r#"{"authorizations": [{"user_id": "UB"}], "event": {"type": "message", "channel": "D1", "channel_type": "im", "user": "U2", "ts": "1772703200.0001", "text": "When?"}}
{"authorizations": [{"user_id": "UB"}], "event": {"type": "message", "channel": "D1", "user": "UB", "bot_id": "B", "ts": "1772703201.0001", "text": "", "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "At ten."}}, {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": [{"type": "text", "text": "See "}, {"type": "link", "url": "https://a.b"}]}]}]}}
{"event": {"type": "reaction_added", "item": {"channel": "C1", "ts": "1"}}}
{"event": {"type": "channel_created", "channel": {"id": "C9"}}}
{"type": "url_verification", "challenge": "x"}
{"authorizations": [{"user_id": "UB"}], "event": {"type": "message", "channel": "C1", "user": "U2", "ts": "1772703300.0001", "text": "<@UB> Gone?"}}
{"authorizations": [{"user_id": "UB"}], "event": {"type": "message", "channel": "C1", "user": "U2", "ts": "1772703310.0001", "thread_ts": "1772703300.0001", "text": "<@UB> Stays?"}}
{"authorizations": [{"user_id": "UB"}], "event": {"type": "message", "subtype": "message_changed", "channel": "C1", "ts": "1772703320.0001", "message": {"type": "message", "subtype": "tombstone", "user": "USLACKBOT", "ts": "1772703300.0001", "text": "This message was deleted."}}}"#;
    assert_eq!(
        turns("slack-events", "events.jsonl", slack),
        ["D1 1 user When?", "D1 1 agent At ten.\nSee https://a.b", "C1:1772703300.0001 1 user Stays?"]
    );
    let discord = r#"{"t": "MESSAGE_CREATE", "d": {"id": "11", "channel_id": "c1", "type": 0, "author": {"id": "9"}, "content": "When?", "timestamp": "2026-03-05T11:23:40+00:00", "mentions": []}}
{"t": "MESSAGE_CREATE", "d": {"id": "12", "channel_id": "c2", "guild_id": "g", "type": 0, "author": {"id": "9"}, "content": "Not for the bot", "timestamp": "2026-03-05T11:23:41+00:00", "mentions": []}}"#;
    assert_eq!(turns("discord-gateway", "events.jsonl", discord), ["c1 1 user When?"]);
}

/// A span of a call with these attributes.
fn span(id: u32, time: &str, attributes: &[(&str, &str)]) -> String {
    let attributes: Vec<serde_json::Value> = attributes
        .iter()
        .map(|(key, value)| serde_json::json!({"key": key, "value": {"stringValue": value}}))
        .collect();
    let span = serde_json::json!({"traceId": format!("{id:032}"), "spanId": format!("{id:016}"), "name": "x",
        "startTimeUnixNano": time, "endTimeUnixNano": "1772700005000000005", "attributes": attributes});
    serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).to_string()
}

/// LangSmith's exporter writes LangChain's objects, the AI SDK objects that a model made, Langfuse whatever a program gave.
#[test]
fn spans_of_more_programs_are_calls() {
    let prompt = r#"{"messages": [[{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "SystemMessage"], "kwargs": {"content": "sys", "type": "system"}}, {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {"content": "When?"}}]]}"#;
    let completion = r#"{"generations": [[{"text": "Nine", "type": "ChatGeneration", "message": {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessageChunk"], "kwargs": {"content": "Nine", "type": "AIMessageChunk"}}}]], "llm_output": {}}"#;
    let time = "1772700005000000000";
    let log = [
        span(
            1,
            time,
            &[
                ("gen_ai.operation.name", "chat"),
                ("langsmith.metadata.session_id", "a"),
                ("gen_ai.prompt", prompt),
                ("gen_ai.completion", completion),
            ],
        ),
        span(
            2,
            time,
            &[
                ("langsmith.trace.session_id", "b"),
                ("gen_ai.prompt", prompt),
                ("gen_ai.completion", r#"{"generations": [[{"text": "Ten", "type": "Generation"}]]}"#),
            ],
        ),
        span(
            3,
            time,
            &[
                ("ai.operationId", "ai.generateObject.doGenerate"),
                ("ai.telemetry.metadata.sessionId", "c"),
                ("ai.prompt.messages", r#"[{"role": "user", "content": "Object?"}]"#),
                ("ai.response.object", r#"{"answer": "yes"}"#),
            ],
        ),
        span(
            4,
            time,
            &[
                ("langfuse.observation.type", "generation"),
                ("session.id", "d"),
                ("langfuse.observation.input", r#"{"question": "Safe?"}"#),
                ("langfuse.observation.output", r#"{"response": {"text": "UNSAFE"}}"#),
            ],
        ),
    ];
    assert_eq!(
        turns("otlp", "spans.jsonl", &log.join("\n")),
        [
            "a 1 user When?",
            "a 1 agent Nine",
            "b 1 user When?",
            "b 1 agent Ten",
            "c 1 user Object?",
            r#"c 1 agent {"answer": "yes"}"#,
            "d 1 user Safe?",
            "d 1 agent UNSAFE"
        ]
    );
    let mapping = Mapping::of(preset("otlp").unwrap()).unwrap();
    let path = tempfile::tempdir().unwrap();
    let file = path.path().join("spans.jsonl");
    std::fs::write(&file, span(1, "0", &[("gen_ai.prompt", prompt), ("gen_ai.completion", "Nine")])).unwrap();
    let refused = map_files(&mapping, &[file], None).unwrap().refused;
    assert!(refused[0].1.contains("a span without startTimeUnixNano"), "{refused:?}");
}

/// Texts with `<`, cues without a blank line between them, entities, and dashes before voices.
#[test]
fn cues_are_read_as_programs_write_them() {
    let vtt = "WEBVTT\n\nNOTE a\ncomment\n\n1\n00:01.000 --> 00:02.000\n<v Ann>if a < b then</v>\n2\n00:02.000 --> 00:03.000\n<v Fernhill Desk>It&#39;s &quot;me&quot; &eacute; &amp; you &nope; & I\n00:04.000 --> 00:05.000\n- <v Ann>One\n- <v Fernhill Desk>Two <00:04.500><c>three</c>\n\n00:06.000 -> broken\n00:07.000 --> soon\n";
    let mapped = |text: &str, name: &str| {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mapped = map_files(&Mapping::of(preset("vtt-calls").unwrap()).unwrap(), &[path], None).unwrap();
        let turns: Vec<String> = mapped.turns.iter().map(|turn| format!("{} {}", turn.speaker, turn.text)).collect();
        (turns, mapped.refused.len())
    };
    assert_eq!(
        mapped(vtt, "a.vtt"),
        (
            ["user if a < b then", "agent It's \"me\" \u{e9} & you &nope; & I", "user One", "agent Two three"]
                .map(str::to_owned)
                .to_vec(),
            1
        )
    );
    let srt = "1\n00:00:01,000 --> 00:00:02,000\nif a < b then\nc\n2\n00:00:03,000 --> 00:00:04,000\n<3 <i>love</i>\n\n3\n00:00:05,000 --> 00:00:06,000\n1984\n";
    assert_eq!(mapped(srt, "a.srt").0, ["user if a < b then\nc", "user <3 love", "user 1984"]);
}

/// What is spoken is in parts of its own, and the current node may be missing, null or gone.
#[test]
fn exports_of_chatgpt_without_a_current_node_and_with_voices_are_read() {
    let node = |id: &str, parent: &str, time: u32, role: &str, parts: &str, children: &str| {
        format!(
            r#""{id}": {{"id": "{id}", "parent": "{parent}", "children": [{children}], "message": {{"author": {{"role": "{role}"}}, "create_time": {time}, "content": {{"content_type": "multimodal_text", "parts": [{parts}]}}}}}}"#
        )
    };
    let nodes = [
        node("q", "root", 1, "user", r#"{"content_type": "audio_transcription", "text": "When?", "direction": "in"}, {"content_type": "audio_asset_pointer"}"#, r#""old", "a""#),
        node("old", "q", 2, "assistant", r#""At nine.""#, ""),
        node("a", "q", 3, "assistant", r#"{"content_type": "audio_transcription", "text": "At ten."}"#, r#""gone""#),
    ]
    .join(", ");
    for current in ["", r#", "current_node": null"#, r#", "current_node": "gone""#, r#", "current_node": "a""#] {
        let export = format!(
            r#"[{{"id": "c", "mapping": {{"root": {{"id": "root", "message": null, "children": ["q"]}}, {nodes}}}{current}}}]"#
        );
        assert_eq!(
            turns("chatgpt-export", "conversations.json", &export),
            ["c 1 user When?", "c 1 agent At ten."],
            "{current}"
        );
    }
}

/// Records of ShareGPT without an id are conversations of their own; further names, and values that are null.
#[test]
fn records_of_sharegpt_are_read_in_all_their_shapes() {
    let records = r#"{"conversations": [{"from": "Human", "value": "When?"}, {"from": "GPT", "value": "At nine."}]}
{"conversations": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": null}, {"role": "assistant", "content": "Here."}]}"#;
    let found = turns("sharegpt", "log.jsonl", records);
    let found: Vec<&str> =
        found.iter().filter_map(|turn| turn.rsplit_once("log.jsonl:")).map(|(_, turn)| turn).collect();
    assert_eq!(found, ["1 1 user When?", "1 1 agent At nine.", "2 1 user Where?", "2 1 agent Here."]);
}

/// Of several choices the first one counts, and 0 is no time.
#[test]
fn a_stream_with_several_choices_is_its_first_one() {
    let stream = [
        r#"{"created": 0, "choices": []}"#,
        r#"{"created": 1772700000, "choices": [{"index": 0, "delta": {"content": "Hel"}}]}"#,
        r#"{"created": 1772700000, "choices": [{"index": 1, "delta": {"content": "Other"}, "finish_reason": "stop"}]}"#,
        r#"{"created": 1772700000, "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]}"#,
        "[DONE]",
    ]
    .map(|event| format!("data: {event}\n\n"))
    .concat();
    let request = r#"{"messages": [{"role": "user", "content": "q?"}], "metadata": {"chat": "c"}, "n": 2}"#;
    let found = turns_of("openai-sse-capture", &[("1.request.json", request), ("1.response.sse", &stream)]);
    let found: Vec<_> = found.iter().map(|turn| (turn.speaker, &*turn.text, turn.timestamp)).collect();
    assert_eq!(found[1], ("agent", "Hello", Some(1_772_700_000.0)));
}

/// Messages to a business account, their edits, and lists of updates; kinds of messages as numbers.
#[test]
fn updates_of_telegram_and_webhooks_of_chatwoot_are_read_in_all_their_shapes() {
    let updates = r#"{"update_id": 1, "business_message": {"business_connection_id": "b", "message_id": 2, "date": 1772700010, "chat": {"id": 6}, "from": {"id": 6, "is_bot": false}, "text": "Open?"}}
{"update_id": 2, "edited_business_message": {"message_id": 2, "date": 1772700010, "edit_date": 1772700020, "chat": {"id": 6}, "from": {"id": 6, "is_bot": false}, "text": "Open today?"}}
{"update_id": 3, "business_message": {"message_id": 3, "date": 1772700030, "chat": {"id": 6}, "from": {"id": 7, "is_bot": false}, "sender_business_bot": {"id": 9}, "text": "Yes."}}
{"ok": true, "result": [{"update_id": 4, "message": {"message_id": 8, "date": 1772700080, "chat": {"id": 5}, "from": {"id": 5, "is_bot": false}, "text": "Listed?"}}, {"update_id": 5, "poll": {}}]}
{"ok": true, "result": true}"#;
    let expected = ["6 1 user Open today?", "6 1 agent Yes.", "5 1 user Listed?"];
    assert_eq!(turns("telegram-updates", "updates.jsonl", updates), expected);
    let webhooks = [(1, "0", "When?"), (2, "1", "At ten."), (3, "2", "Ann resolved it"), (4, "\"incoming\"", "Where?")].map(|(id, kind, text)| {
        format!(r#"{{"event": "message_created", "id": {id}, "content": "{text}", "message_type": {kind}, "created_at": {}, "account": {{"id": 1}}, "conversation": {{"id": 9}}}}"#, 1_772_700_000 + id)
    });
    let expected = ["1/9 1 user When?", "1/9 1 agent At ten.", "1/9 2 user Where?"];
    assert_eq!(turns("chatwoot-webhooks", "hooks.jsonl", &webhooks.join("\n")), expected);
}

/// A line of a mail may begin with `From `, addresses have letters of both cases, and old mails name no encoding.
#[test]
fn mails_are_not_cut_and_their_letters_are_read() {
    let mail = |from: &str, id: &str, header: &str, body: &[u8]| {
        let head = format!(
            "From x@y Fri Mar  6 12:00:00 2026\nFrom: {from}\nMessage-ID: <{id}>\nDate: Fri, 06 Mar 2026 13:00:05 +0100\n{header}\n"
        );
        [head.as_bytes(), body, b"\n\n"].concat()
    };
    let latin = b"Gr\xfc\xdfe \x80 5?";
    let bytes = [
        mail(
            "a@x",
            "from",
            "",
            b"One\n\nFrom here on the ferry is late?\n\nFrom the harbour: when?\nNote: bye\nsoon\n",
        ),
        mail("a@x", "none", "", latin),
        mail(
            "a@x",
            "odd",
            "Content-Type: text/plain; charset=\"x-unknown-8bit\"\nContent-Transfer-Encoding: 8bit\n",
            latin,
        ),
        mail("a@x", "quoted", "Content-Transfer-Encoding: quoted-printable\n", b"Gr=FC=DFe =80 5?"),
        mail("a@x", "utf8", "Content-Type: text/plain\n", "Gr\u{fc}\u{df}e?".as_bytes()),
        mail("a@x", "broken", "Content-Type: text/plain; charset=utf-8\n", b"Gr\xfc\xdfe?"),
        mail("DESK@Fernhill.example", "reply", "In-Reply-To: <none>\n", b"Yes."),
    ]
    .concat();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.mbox");
    std::fs::write(&path, bytes).unwrap();
    let mapped = map_files(&Mapping::of(preset("mbox-threads").unwrap()).unwrap(), &[path], None).unwrap();
    let turns: Vec<String> =
        mapped.turns.iter().map(|turn| format!("{} {} {}", turn.conversation_id, turn.speaker, turn.text)).collect();
    assert_eq!(
        turns,
        [
            "from user One\n\nFrom here on the ferry is late?\n\nFrom the harbour: when?\nNote: bye\nsoon",
            "none user Gr\u{fc}\u{df}e \u{20ac} 5?",
            "none agent Yes.",
            "odd user Gr\u{fc}\u{df}e \u{20ac} 5?",
            "quoted user Gr\u{fc}\u{df}e \u{20ac} 5?",
            "utf8 user Gr\u{fc}\u{df}e?",
            "broken user Gr\u{fffd}\u{fffd}e?",
        ]
    );
    assert_eq!(mapped.odd.broken, 1);
}

/// A quote that is not closed makes one value of all rows after it.
#[test]
fn a_quote_that_is_open_at_the_end_of_a_table_is_an_error() {
    let mapping = Mapping::of("{conversation: .id, speaker: \"user\", text}").unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.csv");
    let mapped = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let mapped = map_files(&mapping, std::slice::from_ref(&path), None).unwrap();
        let texts: Vec<String> = mapped.turns.iter().map(|turn| turn.text.clone()).collect();
        (texts.join("|"), mapped.refused.iter().map(|(source, _)| source.number).collect::<Vec<_>>(), mapped.refused)
    };
    let (texts, lines, refused) = mapped("id;text\n1;\"One \"\"a\"\"\nb\"\n2;\"Two\n3;Three\n");
    assert_eq!((&*texts, &*lines), ("One \"a\"\nb", &[4][..]));
    assert!(refused[0].1.contains("begins in line 4"), "{refused:?}");
    assert_eq!(mapped("id,text\n1,5\" pipe\n2,\"\"\n3,\"a\" b\"\n").1, [0; 0]);
    assert_eq!(mapped("id,\"text\n1,One\n").1, [1]);
    // It may be closed by a quote in another row.
    let (texts, lines, _) = mapped("id;text\n2;\"Two\n3;Three\n4;5\" pipe\n5;Five\n");
    assert_eq!((&*texts, &*lines), ("Five", &[2][..]));
}
