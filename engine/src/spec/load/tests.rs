//! Tests of includes, overrides and their diagnostics.

use super::*;

fn loaded(text: &str, sets: &[&str]) -> Loaded {
    let sets: Vec<Override> = sets.iter().map(|set| set.parse().unwrap()).collect();
    load_str("t.ron", Path::new("."), text, &sets)
}

#[test]
fn set_replaces_adds_and_reports() {
    let text = "Pipeline(nodes: {\"a\": Bm25(top: 1, list: [1, 2])})";
    let tree = loaded(text, &["nodes.a.top=5", "nodes.a.k1=0.9", "nodes.a.list.1=7"]).tree.unwrap();
    assert_eq!(tree.canonical(), "Pipeline{\"nodes\":{\"a\":Bm25{\"k1\":0.9,\"list\":[1,7,],\"top\":5,},},}");
    for (set, code, help) in [
        ("nodes.zebra.top=5", "unknown-path", "available: `a`"),
        ("node.a.top=5", "unknown-path", "did you mean `nodes`?"),
        ("nodes.a.top=x y", "syntax", "a string needs quotes"),
        ("nodes.a.list.9=1", "unknown-path", "it has 2 items"),
    ] {
        let diagnostics = loaded(text, &[set]).diagnostics;
        assert_eq!(diagnostics.len(), 1, "{set}");
        assert_eq!(diagnostics[0].code, code, "{set}");
        assert!(diagnostics[0].help.iter().any(|line| line.contains(help)), "{set}: {diagnostics:?}");
    }
}

#[test]
fn includes_merge_replace_and_remove() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("base.ron"),
        "Pipeline(name: \"b\", nodes: {\"a\": X(n: 1, m: 2), \"c\": Y(q: 1), \"d\": Z})",
    )
    .unwrap();
    let text = "Pipeline(include: [\"base.ron\"], nodes: {\"a\": X(n: 3), \"c\": W(r: 1), \"d\": Remove})";
    let loaded = load_str("t.ron", dir.path(), text, &[]);
    assert_eq!(loaded.diagnostics, []);
    assert_eq!(
        loaded.tree.unwrap().canonical(),
        "Pipeline{\"name\":String(\"b\"),\"nodes\":{\"a\":X{\"m\":2,\"n\":3,},\"c\":W{\"r\":1,},},}"
    );
}

#[test]
fn a_remove_of_what_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("base.ron"), "Pipeline(nodes: {\"dense\": X})").unwrap();
    let text = "Pipeline(include: \"base.ron\", nodes: {\"dence\": Remove}, models: {\"m\": Remove})";
    let told = load_str("t.ron", dir.path(), text, &[]).diagnostics;
    let told: Vec<_> = told.iter().map(|one| (one.code, &*one.message, one.help.join(" "))).collect();
    assert_eq!(told[0].0, "unknown-path");
    assert_eq!(told[0].1, "`Remove`: the included `nodes` have no `dence`");
    assert!(told[0].2.contains("did you mean `dense`?"), "{}", told[0].2);
    assert_eq!(told[1].1, "`Remove`: the included `models` have no `m`");
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.ron");
    std::fs::write(&path, "\u{feff}Pipeline(nodes: {\"a\": X})").unwrap();
    let loaded = load(&path, &[]);
    assert_eq!(
        (loaded.diagnostics, loaded.tree.unwrap().canonical()),
        (vec![], "Pipeline{\"nodes\":{\"a\":X{},},}".into())
    );
}

#[test]
fn brackets_in_brackets_without_end_are_told_in_plain_words() {
    let told = loaded(&format!("Pipeline(nodes: {}{})", "[".repeat(1000), "]".repeat(1000)), &[]).diagnostics;
    assert_eq!(told[0].message, "brackets are nested too deeply");
}

#[cfg(unix)]
#[test]
fn a_pipe_that_is_included_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe.ron");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let told = load_str("t.ron", dir.path(), "Pipeline(include: \"pipe.ron\")", &[]).diagnostics;
    assert!(told[0].message.ends_with("it is not a regular file"), "{}", told[0].message);
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_without_end_is_no_pipeline() {
    let diagnostics = loaded("Pipeline(include: \"/dev/zero\")", &[]).diagnostics;
    assert_eq!(diagnostics[0].code, "unreadable-file");
    assert_eq!(diagnostics[0].message, "cannot read `/dev/zero`: file too large");
}

#[test]
fn an_include_of_itself_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ron");
    std::fs::write(&path, "Pipeline(include: \"loop.ron\")").unwrap();
    assert_eq!(load(&path, &[]).diagnostics[0].code, "include-cycle");
}

/// Sixteen files, each including the next one 50 times, would need 50^15 reads without the cache.
#[test]
fn a_file_that_is_included_often_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: usize| dir.path().join(format!("{n}.ron"));
    for n in 0..15 {
        let next = format!("\"{}.ron\", ", n + 1).repeat(50);
        let text = format!("Pipeline(include: [{next}], nodes: {{\"n{n}\": X(n: {n})}})");
        std::fs::write(file(n), text).unwrap();
    }
    std::fs::write(file(15), "Pipeline(nodes: {\"n15\": X(n: 15)})").unwrap();
    let loaded = load(&file(0), &[]);
    assert_eq!(loaded.diagnostics, []);
    assert_eq!(loaded.tree.unwrap().get("nodes").unwrap().entries().unwrap().len(), 16);
    assert_eq!(loaded.sources.files().count(), 16);
}

#[test]
fn too_many_includes_are_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.ron");
    std::fs::write(dir.path().join("b.ron"), "Pipeline(nodes: {})").unwrap();
    let write = |times: usize| {
        let text = format!("Pipeline(include: [{}])", "\"b.ron\", ".repeat(times));
        std::fs::write(&path, text).unwrap();
    };
    write(MAX_INCLUDES);
    assert_eq!(load(&path, &[]).diagnostics, []);
    write(100 * MAX_INCLUDES);
    let loaded = load(&path, &[]);
    assert_eq!(loaded.diagnostics.len(), 1);
    assert_eq!(loaded.diagnostics[0].code, "too-many-includes");
    assert!(loaded.tree.is_none(), "an incomplete pipeline has no tree");
    let large: String = (0..50_000).map(|n| format!("\"{n}\":1,")).collect();
    std::fs::write(dir.path().join("b.ron"), format!("Pipeline(nodes: {{{large}}})")).unwrap();
    write(100);
    let diagnostics = load(&path, &[]).diagnostics;
    assert_eq!(diagnostics[0].message, "the included files contain more than 2000000 values");
}

/// A linear search for each key would take hours.
#[test]
fn files_with_very_many_keys_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.ron");
    let keys = |from: usize| (from..from + 200_000).map(|n| format!("\"{n}\":1,")).collect::<String>();
    std::fs::write(dir.path().join("b.ron"), format!("Pipeline(nodes: {{{}}})", keys(0))).unwrap();
    std::fs::write(&path, format!("Pipeline(include: \"b.ron\", nodes: {{{}}})", keys(100_000))).unwrap();
    let loaded = load(&path, &[]);
    assert_eq!(loaded.diagnostics, []);
    assert_eq!(loaded.tree.unwrap().get("nodes").unwrap().entries().unwrap().len(), 300_000);
}
