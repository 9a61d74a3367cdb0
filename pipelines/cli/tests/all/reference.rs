//! `pipelines/reference.md` is made of the tables of fields that the configurations have, so that it says what the code
//! says. `TURNFLOW_GOLDEN=write` writes it anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use turnflow::CATALOG;
use turnflow_engine::component::InputPort;
use turnflow_engine::component::fields::Fields;
use turnflow_engine::component::reference::tables;
use turnflow_engine::record::PortType;

use crate::support::root;

/// A kind as its table has it.
struct Kind {
    name: &'static str,
    summary: &'static str,
    inputs: &'static [InputPort],
    output: Option<PortType>,
    fields: fn() -> &'static Fields,
}

/// Every source file of a crate.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

fn section(out: &mut String, kind: &Kind, text: &str) {
    let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let head = head.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let _ = writeln!(out, "### {}\n", kind.name);
    let mut summary = kind.summary.to_owned();
    summary[..1].make_ascii_uppercase();
    let _ = writeln!(out, "{summary}.\n");
    if kind.output.is_some() || !kind.inputs.is_empty() {
        let takes: Vec<String> = kind.inputs.iter().map(|port| format!("`{}`: {port}", port.field)).collect();
        let gives = kind.output.map_or("nothing".to_owned(), |port| port.to_string());
        let takes = if takes.is_empty() { "nothing".to_owned() } else { takes.join(", ") };
        let _ = writeln!(out, "Takes {takes}. Gives {gives}.\n");
    }
    let example = head.split("```ron").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.unwrap_or_else(|| panic!("{} has no example at the head of its file", kind.name));
    let _ = writeln!(out, "```ron\n{}\n```\n", example.trim());
    out.push_str(&tables((kind.fields)()));
}

fn generate() -> String {
    let mut files = Vec::new();
    for directory in
        ["operators/src", "connectors/src", "pipelines/gaps/src", "pipelines/alerts/src", "pipelines/review/src"]
    {
        files.extend(sources(&root().join(directory)));
    }
    let plain = |name, summary, fields| Kind { name, summary, inputs: &[], output: None, fields };
    // As `SINK_PORTS` in `engine/src/plan/resolve/nodes.rs`.
    const RECORDED: &[InputPort] = &[InputPort::one(PortType::Answers).or(PortType::Hits).or(PortType::Queries)];
    let groups: [(&str, Vec<Kind>); 6] = [
        (
            "Operators",
            CATALOG
                .operators
                .iter()
                .map(|k| Kind {
                    name: k.name,
                    summary: k.summary,
                    inputs: k.inputs,
                    output: Some(k.output),
                    fields: k.fields,
                })
                .collect(),
        ),
        ("Models", CATALOG.models.iter().map(|k| plain(k.name, k.summary, k.fields)).collect()),
        ("Chunkers", CATALOG.chunkers.iter().map(|k| plain(k.name, k.summary, k.fields)).collect()),
        ("Sources of corpora", CATALOG.corpus_sources.iter().map(|k| plain(k.name, k.summary, k.fields)).collect()),
        (
            "Sources of turns",
            CATALOG
                .turn_sources
                .iter()
                .map(|k| Kind {
                    name: k.name,
                    summary: k.summary,
                    inputs: &[],
                    output: Some(PortType::Turns),
                    fields: k.fields,
                })
                .collect(),
        ),
        (
            "Sinks",
            CATALOG
                .sinks
                .iter()
                .map(|k| Kind { name: k.name, summary: k.summary, inputs: RECORDED, output: None, fields: k.fields })
                .collect(),
        ),
    ];
    let mut out = String::from(
        "# Reference\n\nEvery kind that a pipeline file may name, from the code's own documentation. \
         `turnflow docs NAME` prints one.\n\n",
    );
    for (title, kinds) in &groups {
        let _ = writeln!(out, "## {title}\n");
        for kind in kinds {
            // The file that has the table's entry has the configuration too.
            let mark = format!("{:?}", kind.summary);
            let file = files.iter().find(|(_, text)| text.contains(&mark));
            let (_, text) = file.unwrap_or_else(|| panic!("no file has {:?}", kind.summary));
            section(&mut out, kind, text);
        }
    }
    out.trim_end().to_owned() + "\n"
}

#[test]
fn the_reference_says_what_the_code_says() {
    let path = root().join("pipelines/reference.md");
    let made = generate();
    if std::env::var_os("TURNFLOW_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "pipelines/reference.md is out of date; write it anew with TURNFLOW_GOLDEN=write");
    for kind in &CATALOG.operators {
        assert!(made.contains(&format!("\n### {}\n", kind.name)), "{} is missing", kind.name);
    }
}
