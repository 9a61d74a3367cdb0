//! What happens to files between a look at them and their being read.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use turnflow_engine::connector::Stop;
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::spec::from_str;

use super::*;
use crate::files::FilesConfig;

fn line(text: &str) -> String {
    format!("2026-03-05T09:00:00Z stdout F {text}\n")
}

fn append(path: &Path, text: &str) {
    fs::write(path, fs::read_to_string(path).unwrap_or_default() + text).unwrap();
}

#[test]
fn a_log_of_a_container_that_is_truncated_while_others_are_read_is_not_read_on_within() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("0.log");
    let fields = r##"(glob: "*.log*", quiet_s: 0.0, map: Jq("#: {\"decode\": \"container\"}\n."))"##;
    let files = from_str::<FilesConfig>(fields).unwrap().source(base.path()).unwrap();
    // Records are no turns, so they become dead letters, one by one.
    let dead = tempfile::NamedTempFile::new().unwrap();
    let (sender, _turns) = crossbeam_channel::unbounded();
    let (_handle, stop) = Stop::new();
    let letters = DeadLetters::open(dead.path()).unwrap();
    let output = TurnOutput::new(sender, Arc::new(|| {}), letters, "turns".into(), stop);
    let mut run = Run::new(&files, &output, true);
    append(&path, &(line("one") + &line("two")));
    run.pass().unwrap();
    append(&path, &line("three"));
    // It is found to have grown. Before it is read, it is copied, truncated, and written once more.
    let found = run.list();
    let id = run.live(&found[0]).unwrap();
    run.verify(id);
    fs::copy(&path, path.with_extension("log.1")).unwrap();
    fs::write(&path, line("four")).unwrap();
    run.go_on(&found[0], id).unwrap();
    run.pass().unwrap();
    append(&path, &(line("five, which is longer than all that was there before it: ") + &line(&"six ".repeat(20))));
    run.pass().unwrap();
    run.pass().unwrap();
    let letters = fs::read_to_string(dead.path()).unwrap();
    let found = ["one", "two", "three", "four", "five", "six"].map(|text| letters.matches(text).count());
    assert_eq!((found, letters.lines().count()), ([1, 1, 1, 1, 1, 20], 6), "{letters}");
}
