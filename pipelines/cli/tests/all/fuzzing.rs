//! Pipeline files that say anything, with the whole catalog: the body of the fuzz target
//! `spec` on its seeds, on the shipped pipelines and the mistaken ones of the tests, and on
//! seeded mutations of them. Also PDF files, which are read in child processes: any of them may end its
//! reader, and nothing else. `TURNFLOW_FUZZ=N` makes N mutations.

#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;
#[path = "../../../../fuzz/src/spec.rs"]
mod spec;

use std::fs;

use turnflow::{CATALOG, diagnostics};

use self::mutations::Mutator;
use crate::command_line::run;
use crate::support::{model, root};

#[test]
fn any_pipeline_file_is_a_plan_or_has_mistakes_that_can_be_shown() {
    let mut seeds = Vec::new();
    for directory in ["fuzz/seeds/spec", "pipelines", "pipelines/cli/tests/diagnostics"] {
        let mut files: Vec<_> =
            fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| {
            file.is_file() && (directory.ends_with("spec") || file.extension().is_some_and(|end| end == "ron"))
        });
        files.sort();
        seeds.extend(files.iter().map(|file| fs::read(file).unwrap()));
    }
    let check = |input: &[u8]| {
        if let Some(planned) = spec::spec(input, &CATALOG) {
            let text = diagnostics::render(&planned.diagnostics, &planned.sources, false);
            assert_eq!(text.is_empty(), planned.diagnostics.is_empty());
            diagnostics::to_json(&planned.diagnostics, &planned.sources);
        }
    };
    seeds.iter().for_each(|seed| check(seed));
    let mutations = std::env::var("TURNFLOW_FUZZ").ok().and_then(|number| number.parse().ok()).unwrap_or(1500);
    let mut mutator = Mutator::new(1);
    for _ in 0..mutations {
        check(&mutator.mutate(&seeds));
    }
}

/// Number of mutated PDF files.
const PDF_FILES: usize = 150;

#[test]
fn any_pdf_file_is_read_or_has_a_reason() {
    if model("pdfium").is_none() {
        return;
    }
    let mut seeds = Vec::new();
    for directory in ["fuzz/seeds/pdf", "connectors/readers/tests/pdf"] {
        let mut files: Vec<_> =
            fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "pdf"));
        files.sort();
        seeds.extend(files.iter().map(|file| fs::read(file).unwrap()));
    }
    let directory = tempfile::tempdir().unwrap();
    let mutations = std::env::var("TURNFLOW_FUZZ").ok().and_then(|number| number.parse().ok()).unwrap_or(PDF_FILES);
    let mut mutator = Mutator::new(2);
    let mutated: Vec<Vec<u8>> = (0..mutations).map(|_| mutator.mutate(&seeds)).collect();
    let mut names: Vec<String> = Vec::new();
    for (number, bytes) in seeds.iter().chain(&mutated).enumerate() {
        names.push(format!("{number}.pdf"));
        fs::write(directory.path().join(&names[number]), bytes).unwrap();
    }
    let mut arguments = vec!["read", "--format", "json"];
    arguments.extend(names.iter().map(String::as_str));
    let read = run(directory.path(), &arguments);
    let objects = read.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    // A file that cannot be read has an object with the reason.
    let found = objects.filter(|object| object["error"].is_null());
    let found: Vec<String> = found.map(|object| object["path"].as_str().unwrap().to_owned()).collect();
    for name in &names {
        let has_reason = read.err.lines().any(|line| line.starts_with(&format!("{name}: ")));
        assert!(found.contains(name) != has_reason, "{name}: {}", read.err);
    }
    assert!(2 * found.len() > seeds.len(), "most seeds are read: {}", read.err);
}
