//! The examples, run.

use std::process::Command;

#[test]
fn search_in_process_finds_sections_of_the_handbook() {
    let program = env!("CARGO_BIN_EXE_search_in_process");
    let output = Command::new(program).args(["reciprocal", "rank", "fusion"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().count() >= 1 && text.contains(".md#"), "{text}");
    assert!(!Command::new(program).output().unwrap().status.success(), "no words, no search");
}
