//! The examples in the README and the handbook are what turnflow takes.

use std::path::{Path, PathBuf};

use turnflow_engine::plan::plan;
use turnflow_engine::spec::load_str;

use crate::support::root;

/// The README and the pages of the handbook.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![root().join("README.md")];
    let handbook = std::fs::read_dir(root().join("examples/handbook")).unwrap();
    paths.extend(handbook.map(|entry| entry.unwrap().path()));
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of this language on a page.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.strip_prefix("```") == Some(language) {
            blocks.push(lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n"));
        }
    }
    blocks
}

#[test]
fn pipelines_and_configurations_in_the_handbook_are_valid() {
    let mut seen = 0;
    for (path, text) in pages() {
        for block in blocks(&text, "ron") {
            seen += 1;
            let at = format!("{}:\n{block}", path.display());
            if block.starts_with("Serve(") {
                turnflow_server::ServeConfig::parse(&block, "SERVE.ron")
                    .unwrap_or_else(|error| panic!("{at}\n{error}"));
                continue;
            }
            if block.starts_with("Matrix(") {
                let directory = tempfile::tempdir().unwrap();
                let file = directory.path().join("page.ron");
                std::fs::write(&file, &block).unwrap();
                let found = turnflow_eval::matrix::read(&file, &turnflow::catalog());
                assert!(found.diagnostics.is_empty(), "{at}\n{:#?}", found.diagnostics);
                continue;
            }
            let planned = plan(load_str("page.ron", &root().join("pipelines"), &block, &[]), &turnflow::catalog());
            // The files of a reader are not here.
            let mistakes: Vec<_> =
                planned.diagnostics.iter().filter(|mistake| mistake.code != "no-such-path").collect();
            assert!(mistakes.is_empty(), "{at}\n{mistakes:#?}");
        }
    }
    assert!(seen >= 5, "{seen}");
}

/// The words of a command line, as a shell takes them. Only single quotes are known.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (number, part) in line.split('\'').enumerate() {
        if number % 2 == 1 {
            words.last_mut().unwrap().push_str(part);
            continue;
        }
        for (number, word) in part.split(char::is_whitespace).enumerate() {
            if number > 0 {
                words.push(String::new());
            }
            words.last_mut().unwrap().push_str(word);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Every command line in a shell block is one that `turnflow` knows: with `--help` behind it, it prints its help.
#[test]
fn commands_in_the_handbook_exist() {
    let mut seen = 0;
    for (path, text) in pages() {
        let shell = ["sh", "console"].map(|language| blocks(&text, language)).concat().join("\n");
        for line in shell.replace("\\\n", " ").lines() {
            let words = words(line.trim_start_matches("$ "));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let [command, arguments @ ..] = &words[..] else { continue };
            match *command {
                "turnflow" => {
                    seen += 1;
                    let mut turnflow = std::process::Command::new(env!("CARGO_BIN_EXE_turnflow"));
                    let output = turnflow.args(arguments).arg("--help").output().unwrap();
                    assert!(output.status.success(), "{}: {line}: {output:?}", path.display());
                }
                script if script.starts_with("pipelines/") => {
                    seen += 1;
                    assert!(root().join(Path::new(script)).is_file(), "{}: {line}", path.display());
                }
                _ => {}
            }
        }
    }
    assert!(seen >= 4, "{seen}");
}
