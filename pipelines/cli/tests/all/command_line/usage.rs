//! Arguments, streams, and the help that is at hand.

use std::process::Stdio;

use super::{Ended, directory, run, turnflow};

#[test]
fn wrong_usage_ends_with_two() {
    let directory = directory();
    for arguments in [
        &["frobnicate"][..],
        &[],
        &["check"],
        &["explain", "lexical.ron", "--set", "nodes"],
        &["run", "lexical.ron", "--workers", "0"],
        &["graph", "lexical.ron", "--format", "png"],
        &["bench", "lexical.ron", "--memory", "5"],
        &["bench", "lexical.ron", "--texts", "docs.jsonl"],
    ] {
        let ended = run(directory.path(), arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.out.is_empty() && ended.err.contains("--help"), "{arguments:?}: {ended:?}");
    }
    let help = run(directory.path(), &["--help"]).good();
    assert!(help.out.contains("Exit codes: 0 success, 1 invalid input"), "{help:?}");
}

/// Why it exists: `turnflow explain … | head -1` must not end in a panic.
#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let directory = directory();
    for arguments in [&["explain", "lexical.ron"][..], &["check", "lexical.ron"], &["models", "list", "--root", "."]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended: Ended =
            turnflow(directory.path(), arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap().into();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn the_reference_is_at_hand() {
    let directory = directory();
    let list = run(directory.path(), &["docs"]);
    assert!(list.out.contains("RerankEnsemble") && list.out.contains("OpenAi"), "{list:?}");
    let one = run(directory.path(), &["docs", "Bm25"]);
    assert!(one.out.contains("`k1`") && !one.out.contains("`lambda`"), "{one:?}");
    run(directory.path(), &["docs", "Bm52"]).one_line(1, &["did you mean `Bm25`?"]);
}
