//! The handbook's page of five logs: its files and commands give the answers that it shows. `TURNFLOW_GOLDEN=write` writes
//! them anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::root;

/// A block of the page: its language, the rest of that line, its lines, and where they begin and end on the page.
struct Block {
    language: String,
    file: String,
    text: String,
    lines: std::ops::Range<usize>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (at, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(info) if !is_open => {
                let (language, file) = info.split_once(' ').unwrap_or((info, ""));
                let (language, file) = (language.to_owned(), file.to_owned());
                blocks.push(Block { language, file, text: String::new(), lines: at + 1..at + 1 });
                is_open = true;
            }
            Some(_) => is_open = false,
            None if is_open => {
                let block = blocks.last_mut().unwrap();
                block.text.push_str(line);
                block.text.push('\n');
                block.lines.end = at + 1;
            }
            None => {}
        }
    }
    blocks
}

/// What a command prints, its lines in order.
fn printed(dir: &Path, command: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_turnflow"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-c", command]).current_dir(dir).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    })
}

#[test]
fn the_five_logs_of_the_handbook_are_answered_as_it_says() {
    let path = root().join("examples/handbook/five-logs.md");
    let page = fs::read_to_string(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let blocks = blocks(&page);
    let mut made: Vec<String> = page.lines().map(str::to_owned).collect();
    for block in &blocks {
        let file = if block.language == "ron" { "answers.ron" } else { &block.file };
        if !file.is_empty() {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, &block.text).unwrap();
        }
    }
    let mut seen = 0;
    // From the end, so that lines keep their numbers.
    for (command, answers) in blocks.iter().zip(blocks.iter().skip(1)).rev() {
        if command.language == "sh" {
            seen += 1;
            let lines = printed(dir.path(), &command.text);
            made.splice(answers.lines.clone(), lines.lines().map(str::to_owned));
        }
    }
    assert_eq!(seen, 5);
    let made = made.join("\n") + "\n";
    if std::env::var_os("TURNFLOW_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(path, made).unwrap();
    } else {
        assert_eq!(made, page, "the page is out of date; write it anew with TURNFLOW_GOLDEN=write");
    }
}
