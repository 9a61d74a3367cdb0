//! `turnflow map`: turns of logs that other programs have written.

use std::fs;

use super::run;

/// Two calls of a model, the second of which repeats the first, and one that is no chat.
const PROXY: &str = r#"{"id": "1", "trace_id": "t", "call_type": "acompletion", "status": "success", "startTime": 1772442900.25, "endTime": 1772442901.5, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When does the ferry leave?"}], "response": {"choices": [{"message": {"role": "assistant", "content": "At ten."}}]}}
{"id": "2", "trace_id": "t", "call_type": "acompletion", "status": "failure", "startTime": 1772442920, "endTime": 1772442921, "messages": [{"role": "user", "content": "When does the ferry leave?"}, {"role": "assistant", "content": "At ten."}, {"role": "user", "content": [{"type": "text", "text": "On Sundays too?"}]}]}
{"id": "3", "trace_id": "u", "call_type": "aembedding", "status": "success", "messages": "x"}
"#;

const TURNS: &str = r#"{"conversation_id":"t","turn":1,"speaker":"user","text":"When does the ferry leave?","timestamp":1772442900.25}
{"conversation_id":"t","turn":1,"speaker":"agent","text":"At ten.","timestamp":1772442901.5}
{"conversation_id":"t","turn":2,"speaker":"user","text":"On Sundays too?","timestamp":1772442920.0}
"#;

#[test]
fn a_log_of_another_program_is_mapped_and_run() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("proxy.jsonl"), PROXY).unwrap();
    let mapped = run(dir.path(), &["map", "--preset", "litellm-payload", "proxy.jsonl"]).good();
    assert_eq!(mapped.out, TURNS);
    let told = "3 records: 3 turns in 1 conversation; left out: 1 record without a message; ";
    assert!(mapped.err.starts_with(told), "{}", mapped.err);
    // A copy of the preset does the same.
    let program = run(dir.path(), &["map", "--show", "litellm-payload"]).good().out;
    fs::write(dir.path().join("own.jq"), program).unwrap();
    assert_eq!(run(dir.path(), &["map", "--jq", "own.jq", "proxy.jsonl"]).good().out, TURNS);
    // The turns are a log that a pipeline reads.
    fs::write(dir.path().join("turns.jsonl"), TURNS).unwrap();
    fs::write(dir.path().join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    let pipeline = r#"Pipeline(
        corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
        nodes: {
            "turns": JsonLines(path: "turns.jsonl"),
            "query": LastTurn(input: "turns"),
            "found": Bm25(input: "query", corpus: "docs"),
            "out": JsonLinesSink(input: "found", path: "out.jsonl"),
        },
    )"#;
    fs::write(dir.path().join("p.ron"), pipeline).unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    assert_eq!(fs::read_to_string(dir.path().join("out.jsonl")).unwrap().lines().count(), 2);
}

#[test]
fn what_fits_and_what_is_wrong_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("proxy.jsonl"), PROXY).unwrap();
    let list = run(dir.path(), &["map", "--list"]).good().out;
    assert!(list.lines().count() >= 30 && list.contains("litellm-payload"), "{list}");
    let failed = |arguments: &[&str], words: &[&str]| {
        let ended = run(dir.path(), arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{arguments:?}");
        words.iter().for_each(|word| assert!(ended.err.contains(word), "{arguments:?}: {}", ended.err));
    };
    failed(&["map", "proxy.jsonl"], &["give a preset: of this log, `litellm-payload` (3 turns in 1 conversation)"]);
    failed(
        &["map", "--preset", "litellm-payloads", "proxy.jsonl"],
        &["no preset `litellm-payloads` (did you mean `litellm-payload`?)"],
    );
    failed(
        &["map", "--preset", "sharegpt", "proxy.jsonl"],
        &["proxy.jsonl:1:", "`litellm-payload` (3 turns in 1 conversation)"],
    );
    failed(&["map", "--preset", "sharegpt", "nothing"], &["nothing", "No such file"]);
    fs::write(dir.path().join("wrong.jq"), "{conversation: .a,\n speaker: usr}").unwrap();
    failed(&["map", "--jq", "wrong.jq", "proxy.jsonl"], &["wrong.jq, line 2, column 11: there is no filter `usr`"]);
    fs::write(dir.path().join("odd.jsonl"), "{\"x\": 1}\n").unwrap();
    failed(&["map", "odd.jsonl"], &["no preset makes turns of this log"]);
}

/// A pipeline whose turns are mapped, with these fields of the source.
fn mapping_pipeline(fields: &str) -> String {
    format!(
        r#"Pipeline(
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "log.jsonl"{fields}),
        "query": FullConversation(input: "turns", last: 9),
        "found": Bm25(input: "query", corpus: "docs"),
        "out": JsonLinesSink(input: "found", path: "out.jsonl"),
    }},
)"#
    )
}

/// The queries of all answers, as `conversation turn query`.
fn queries(path: &std::path::Path) -> Vec<String> {
    let text = fs::read_to_string(path.join("out.jsonl")).unwrap_or_default();
    let answers = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let shown = |answer: serde_json::Value| {
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        format!("{} {} {}", text("conversation_id"), answer["turn"], text("query"))
    };
    answers.map(shown).collect()
}

#[test]
fn a_pipeline_reads_a_log_of_another_program_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    fs::write(path.join("log.jsonl"), PROXY).unwrap();
    // Without a mapping, the preset is named, and the run does not end well.
    fs::write(path.join("p.ron"), mapping_pipeline("")).unwrap();
    let refused = run(path, &["run", "p.ron", "--once", "--state", "state-0"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    for word in ["no turn was answered: 3 records could not be read", "log.jsonl:1", "map: Preset(\"litellm-payload\")"]
    {
        assert!(refused.err.contains(word), "{word}: {}", refused.err);
    }
    fs::write(path.join("p.ron"), mapping_pipeline(", map: Preset(\"litellm-payload\")")).unwrap();
    let once = || run(path, &["run", "p.ron", "--once", "--state", "state"]).good().err;
    once();
    let both = ["t 1 When does the ferry leave?", "t 2 When does the ferry leave? At ten. On Sundays too?"];
    assert_eq!(queries(path), both);
    assert!(once().contains("no new turns"), "all are answered");
    // The node's mapping can be tried.
    let tried = run(path, &["map", "--node", "turns", "p.ron", "log.jsonl"]).good();
    assert_eq!(tried.out, TURNS);
    let wrong = run(path, &["map", "--node", "query", "p.ron", "log.jsonl"]);
    assert!(wrong.code == Some(1) && wrong.err.contains("`query` has no mapping"), "{}", wrong.err);
    // The next call repeats what was said.
    let next = r#"{"id": "4", "trace_id": "t", "call_type": "acompletion", "status": "success", "startTime": 1772442930, "endTime": 1772442931, "messages": [{"role": "user", "content": "When does the ferry leave?"}, {"role": "assistant", "content": "At ten."}, {"role": "user", "content": "On Sundays too?"}, {"role": "user", "content": "Hello?"}], "response": {"choices": [{"message": {"role": "assistant", "content": "Yes."}}]}}
"#;
    fs::write(path.join("log.jsonl"), PROXY.to_owned() + next).unwrap();
    once();
    let all = queries(path);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all[2].starts_with("t 3 ") && all[2].ends_with("Hello?"), "{all:?}");
    // Without a state directory, answers in the file are found.
    fs::write(path.join("out.jsonl"), "").unwrap();
    let without = || run(path, &["run", "p.ron", "--once"]).good();
    without();
    assert_eq!(queries(path).len(), 3);
    without();
    assert_eq!(queries(path).len(), 3, "none is answered twice");
}

#[test]
fn what_a_sink_sends_is_shown_and_sent() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log.jsonl"), TURNS).unwrap();
    fs::write(dir.path().join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    let sinks = r#""out": JsonLinesSink(input: "found", path: "out.jsonl"),
        "few": JsonLinesSink(input: "found", path: "few.jsonl", when: Jq(".turn > 1"), body: JqFile("few.jq")),"#;
    let pipeline =
        mapping_pipeline("").replace("\"out\": JsonLinesSink(input: \"found\", path: \"out.jsonl\"),", sinks);
    fs::write(dir.path().join("p.ron"), pipeline).unwrap();
    fs::write(dir.path().join("few.jq"), "{turn, found: [.hits[].document]}").unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    let few = fs::read_to_string(dir.path().join("few.jsonl")).unwrap();
    assert_eq!(few, "{\"turn\":2,\"found\":[\"a\"]}\n");
    let shown = run(dir.path(), &["map", "p.ron", "--node", "few", "--bodies", "out.jsonl"]).good();
    assert_eq!(shown.out, few);
    assert!(shown.err.starts_with("2 answers: 1 body; left out by `when`: 1; "), "{}", shown.err);
    fs::write(dir.path().join("few.jq"), "{turn").unwrap();
    let wrong = run(dir.path(), &["check", "p.ron"]);
    assert!(wrong.code == Some(1) && wrong.out.contains("few.jq, line 1, column 6"), "{}", wrong.out);
    let nothing = run(dir.path(), &["map", "p.ron", "--node", "out", "--bodies", "out.jsonl"]);
    assert!(nothing.err.contains("neither `when` nor `body`"), "{}", nothing.err);
}

#[test]
fn a_pipeline_is_written_for_a_log_of_any_form() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("texts")).unwrap();
    fs::write(dir.path().join("texts/a.md"), "# Ferry\nThe ferry leaves at ten.\n").unwrap();
    fs::write(dir.path().join("proxy.jsonl"), PROXY).unwrap();
    fs::write(dir.path().join("own.jsonl"), TURNS).unwrap();
    fs::write(dir.path().join("odd.jsonl"), "{\"x\": 1}\n").unwrap();
    let told = run(dir.path(), &["init", "--docs", "texts", "--log", "proxy.jsonl"]).good().out;
    for word in [
        "proxy.jsonl: `litellm-payload`, 3 turns in 1 conversation of 3 records",
        "t, turn 1, agent: At ten.",
        "wrote pipeline.ron",
    ] {
        assert!(told.contains(word), "{told}");
    }
    run(dir.path(), &["check", "pipeline.ron"]).good();
    run(dir.path(), &["run", "pipeline.ron", "--once"]).good();
    let answers = fs::read_to_string(dir.path().join("answers.jsonl")).unwrap();
    assert!(answers.lines().count() == 2 && answers.contains("at ten"), "{answers}");
    run(dir.path(), &["init", "own.ron", "--docs", "texts", "--log", "own.jsonl"]).good();
    assert!(
        fs::read_to_string(dir.path().join("own.ron"))
            .unwrap()
            .contains("JsonLines(path: \"own.jsonl\", follow: true)")
    );
    run(dir.path(), &["check", "own.ron"]).good();
    for (arguments, why) in [
        (&["init", "--docs", "texts"][..], "is there already"),
        (&["init", "new.ron"], "there is no folder docs"),
        (&["init", "new.ron", "--docs", "texts", "--log", "odd.jsonl"], "no preset makes turns"),
        (&["init", "new.ron", "--docs", "texts", "--log", "none.jsonl"], "none.jsonl"),
    ] {
        let ended = run(dir.path(), arguments);
        assert!(ended.code == Some(1) && ended.err.contains(why), "{arguments:?}: {}", ended.err);
        assert!(!dir.path().join("new.ron").exists());
    }
    // A folder alone is that of the documents.
    let ended = run(dir.path(), &["init", "texts"]);
    assert!(ended.err.contains("pipeline.ron is there already"), "{}", ended.err);
    fs::remove_file(dir.path().join("pipeline.ron")).unwrap();
    let told = run(dir.path(), &["init", "texts"]).good().out;
    assert!(told.contains("wrote pipeline.ron") && told.contains("turnflow serve pipeline.ron"), "{told}");
    assert!(fs::read_to_string(dir.path().join("pipeline.ron")).unwrap().contains("Directory(path: \"texts\""));
    let ended = run(dir.path(), &["init", "texts", "--docs", "texts"]);
    assert!(ended.err.contains("texts is a folder: give the name of the pipeline file"), "{}", ended.err);
}

/// A database of Open WebUI is read while its program writes it.
#[test]
fn a_pipeline_is_written_for_a_database() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("docs")).unwrap();
    fs::write(dir.path().join("docs/a.md"), "# Ferry\nThe ferry leaves at ten.\n").unwrap();
    let database = rusqlite::Connection::open(dir.path().join("webui.db")).unwrap();
    let message = |id: &str, parent: Option<&str>, role: &str, content: &str| serde_json::json!({"id": id, "parentId": parent, "role": role, "content": content, "timestamp": 1_772_701_200, "done": true});
    let chat = serde_json::json!({"history": {"currentId": "2", "messages": {
        "1": message("1", None, "user", "When does the ferry leave?"), "2": message("2", Some("1"), "assistant", "At ten.")}}});
    database
        .execute_batch("CREATE TABLE chat (id TEXT, user_id TEXT, chat JSON, created_at INTEGER, updated_at INTEGER)")
        .unwrap();
    database.execute("INSERT INTO chat VALUES ('c', 'u', ?1, 1772701200, 1772701260)", [chat.to_string()]).unwrap();
    let told = run(dir.path(), &["init", "--log", "webui.db"]).good().out;
    assert!(told.contains("`open-webui-db`, 2 turns in 1 conversation of 1 record"), "{told}");
    let pipeline = fs::read_to_string(dir.path().join("pipeline.ron")).unwrap();
    assert!(
        pipeline.contains("Sqlite(path: \"webui.db\", map: Preset(\"open-webui-db\"), conversations: (revise: true))"),
        "{pipeline}"
    );
    run(dir.path(), &["check", "pipeline.ron"]).good();
    run(dir.path(), &["run", "pipeline.ron", "--once"]).good();
    let answers = fs::read_to_string(dir.path().join("answers.jsonl")).unwrap();
    assert!(answers.lines().count() == 1 && answers.contains("at ten"), "{answers}");
}

#[test]
fn a_run_whose_records_all_fit_another_form_says_so_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    fs::write(path.join("log.jsonl"), PROXY).unwrap();
    // One fails on each record, and one gives no message.
    for (number, program) in ["error(\"no chat\")", "select(.chat) | {conversation: .chat}"].iter().enumerate() {
        fs::write(path.join("p.ron"), mapping_pipeline(&format!(", map: Jq({program:?})"))).unwrap();
        for _ in 0..2 {
            let refused = run(path, &["run", "p.ron", "--once", "--state", &format!("state-{number}")]);
            assert_eq!(refused.code, Some(1), "{program}: {}", refused.err);
            for word in ["no turn was answered", "log.jsonl:1: ", "map: Preset(\"litellm-payload\")"] {
                assert!(refused.err.contains(word), "{program}: {word}: {}", refused.err);
            }
        }
    }
}

#[test]
fn documents_of_a_mapping_are_printed_and_read_by_a_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    fs::write(path.join("kb.csv"), "slug,q,a\nferry,Ferry,<p>It leaves at <b>ten</b>.</p>\nnone,None,\n").unwrap();
    fs::write(path.join("kb.jq"), "select(.a != \"\") | {id: .slug, title: .q, text: (.a | html_text)}").unwrap();
    let done = run(path, &["map", "--documents", "--jq", "kb.jq", "kb.csv"]).good();
    let row = "{\"title\":\"Ferry\",\"text\":\"It leaves at ten.\",\"_id\":\"ferry\"}\n";
    let shown: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(shown, serde_json::from_str::<serde_json::Value>(row).unwrap());
    assert!(done.err.contains("2 records: 1 document; left out: 1 record without a document"), "{}", done.err);
    let pipeline = mapping_pipeline("")
        .replace("JsonLines(path: \"docs.jsonl\")", "JsonLines(path: \"kb.jsonl\", map: JqFile(\"kb.jq\"))");
    fs::write(path.join("p.ron"), pipeline).unwrap();
    fs::write(path.join("kb.jsonl"), "{\"slug\": \"f\", \"q\": \"F\", \"a\": \"At ten.\"}\n").unwrap();
    let tried = run(path, &["map", "--documents", "--node", "docs", "p.ron", "kb.jsonl"]).good();
    assert!(tried.out.contains("\"_id\":\"f\""), "{}", tried.out);
    let turn = "{\"conversation_id\": \"c\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"ten\"}\n";
    fs::write(path.join("log.jsonl"), turn).unwrap();
    run(path, &["run", "p.ron", "--once"]).good();
    assert!(fs::read_to_string(path.join("out.jsonl")).unwrap().contains("At ten."));
    let wrong = run(path, &["map", "--documents", "--node", "turns", "p.ron", "kb.jsonl"]);
    assert!(wrong.code == Some(1) && wrong.err.contains("no corpus `turns`"), "{}", wrong.err);
}

#[test]
fn many_files_are_read_by_a_pipeline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    let chat = "[{\"role\": \"user\", \"content\": \"When?\"}]";
    for day in ["05", "04"] {
        fs::create_dir_all(path.join(format!("logs/2026-03-{day}"))).unwrap();
        fs::write(path.join(format!("logs/2026-03-{day}/c{day}.json")), chat).unwrap();
    }
    let program = "{conversation: $source.name, speaker: .role, text: .content}";
    let files = format!("Files(glob: \"logs/**/*.json*\", map: Jq({program:?}))");
    fs::write(path.join("p.ron"), mapping_pipeline("").replace("JsonLines(path: \"log.jsonl\")", &files)).unwrap();
    run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
    // Conversations do not wait for each other.
    let mut asked = queries(path);
    asked.sort();
    assert_eq!(asked, ["c04 1 When?", "c05 1 When?"]);
    let again = run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
    assert!(again.err.contains("no new turns"), "{}", again.err);
}
