//! `turnflow init --log` and `turnflow map` of folders that have more than plain files, and odd names.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::run;

const TURNS: &str = r#"{"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?"}
{"conversation_id": "c", "turn": 1, "speaker": "agent", "text": "At ten."}
"#;
const CHAT: &str =
    r#"[{"role": "user", "content": "When does the ferry leave?"}, {"role": "assistant", "content": "At ten."}]"#;

#[test]
fn a_folder_with_any_name_and_with_pipes_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("[a]{b}");
    let logs = base.join("logs [x]{y}*?");
    fs::create_dir_all(&logs).unwrap();
    fs::create_dir(base.join("docs")).unwrap();
    fs::write(base.join("docs/a.md"), "# Ferry\nThe ferry leaves at ten.\n").unwrap();
    // What the name would match, were it a pattern.
    fs::create_dir(base.join("logs xya?")).unwrap();
    fs::write(base.join("logs xya?/no.json"), CHAT.replace("ferry", "bus")).unwrap();
    fs::write(logs.join("a.json"), format!("{{\"messages\": {CHAT}}}")).unwrap();
    fs::write(base.join("other.json"), format!("{{\"messages\": {}}}", CHAT.replace("ferry", "last ferry"))).unwrap();
    symlink("../other.json", logs.join("b.json")).unwrap();
    symlink("a.json", logs.join("c.json")).unwrap();
    symlink("..", logs.join("up")).unwrap();
    symlink("none", logs.join("gone")).unwrap();
    for pipe in [logs.join("pipe"), base.join("pipe")] {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    let _socket = std::os::unix::net::UnixListener::bind(logs.join("socket")).unwrap();
    let written = run(&base, &["init", "--log", "logs [x]{y}*?"]).good();
    for (name, what) in
        [("pipe", "a pipe"), ("socket", "a socket"), ("up", "a link to a folder"), ("gone", "a link to nothing")]
    {
        assert!(written.err.contains(&format!("{name}: {what}, not read")), "{}", written.err);
    }
    assert!(written.out.contains("4 turns in 2 conversations"), "{}", written.out);
    run(&base, &["check", "pipeline.ron"]).good();
    run(&base, &["run", "pipeline.ron", "--once"]).good();
    let answers = fs::read_to_string(base.join("answers.jsonl")).unwrap();
    assert!(answers.lines().count() == 2 && !answers.contains("bus"), "{answers}");
    // From elsewhere, too.
    let path = "[a]{b}/logs [x]{y}*?";
    run(dir.path(), &["init", "p.ron", "--docs", "[a]{b}/docs", "--log", path]).good();
    run(dir.path(), &["check", "p.ron"]).good();
    fs::create_dir(dir.path().join("away")).unwrap();
    run(dir.path(), &["init", "away/p.ron", "--docs", "[a]{b}/docs", "--log", path]).good();
    run(dir.path(), &["check", "away/p.ron"]).good();
    // A pipe that is named is refused.
    for arguments in
        [&["map", "--preset", "openai-chat", "pipe"][..], &["map", "pipe"], &["init", "n.ron", "--log", "pipe"]]
    {
        let ended = run(&base, arguments);
        assert!(ended.code == Some(1) && ended.err.contains("pipe is a pipe, which is not read"), "{}", ended.err);
    }
    fs::create_dir(base.join("empty")).unwrap();
    assert!(Command::new("mkfifo").arg(base.join("empty/pipe")).status().unwrap().success());
    let ended = run(&base, &["map", "--preset", "openai-chat", "empty"]);
    assert!(ended.err.contains("no files in empty: empty/pipe is a pipe"), "{}", ended.err);
    // Turns of its own, in a file with such a name.
    fs::write(base.join("turns [1].jsonl"), TURNS).unwrap();
    run(&base, &["init", "own.ron", "--log", "turns [1].jsonl"]).good();
    run(&base, &["check", "own.ron"]).good();
}
