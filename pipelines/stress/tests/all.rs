//! Short forms of the long runs.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A model that `turnflow models fetch` has brought. Where `TURNFLOW_TESTS_MUST_RUN` is set, it must be there.
fn model(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    if path.exists() {
        return Some(path);
    }
    let why = format!("{} is missing; `turnflow models fetch` downloads it", path.display());
    assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{why}");
    println!("skipped: {why}");
    None
}

fn stress(how: &str, arguments: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let world = dir.path().join("world");
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow-stress"));
    command.args([how, "--dir"]).arg(&world).args(arguments);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let log = std::fs::read_to_string(world.join("log")).unwrap_or_default();
    let end: Vec<&str> = log.lines().rev().take(30).collect();
    assert!(output.status.success(), "{how}: {text}\nend of the log, backwards:\n{}", end.join("\n"));
    assert!(text.contains("0 broken promises"), "{text}");
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn killed_processes_lose_nothing_and_double_nothing() {
    stress("kill", &["--times", "8", "--documents", "20"]);
    stress("kill", &["--times", "6", "--documents", "20", "--workers", "2", "--seed", "1"]);
}

#[test]
fn killed_processes_embed_nothing_twice() {
    let Some(model) = model("minilm-int8") else { return };
    stress("kill", &["--times", "5", "--documents", "10", "--model", &path(&model)]);
}

#[test]
fn killed_processes_revise_every_answer_once() {
    stress("kill", &["--times", "8", "--documents", "12", "--live"]);
    stress("kill", &["--times", "6", "--documents", "12", "--live", "--workers", "2", "--seed", "1"]);
}

/// The library that notes what is synchronised is made by the machine's C compiler.
#[cfg(target_os = "linux")]
#[test]
fn losses_of_power_lose_nothing_and_double_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let shim = dir.path().join("power.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("power.c");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(source).status().unwrap();
    assert!(made.success());
    stress("kill", &["--times", "10", "--documents", "12", "--power", &path(&shim)]);
    stress("kill", &["--times", "6", "--documents", "12", "--live", "--workers", "2", "--power", &path(&shim)]);
}

/// Without the server's program, a run says that it is skipped.
fn broker(kind: &str, arguments: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let world = dir.path().join("world");
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow-stress"));
    command.args(["broker", kind, "--dir"]).arg(&world).args(arguments);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{kind}: {text}");
    assert!(text.contains("0 broken promises") || text.contains("skipped"), "{text}");
    println!("{text}");
}

#[test]
fn kills_between_nats_and_its_sinks_lose_nothing() {
    broker("nats", &["--times", "6"]);
}

#[test]
fn kills_between_kafka_and_its_sinks_lose_nothing() {
    broker("kafka", &["--times", "6", "--workers", "2"]);
}

#[test]
fn kills_between_postgresql_and_its_sinks_lose_nothing() {
    broker("postgres", &["--times", "6"]);
}

#[test]
fn kills_between_redis_and_its_sinks_lose_nothing() {
    broker("redis", &["--times", "6"]);
}

#[test]
fn reloads_under_load_lose_nothing() {
    stress("reload", &["--times", "25", "--documents", "15"]);
    stress("reload", &["--times", "15", "--documents", "15", "--workers", "2", "--seed", "1"]);
}

#[test]
fn a_steady_load() {
    stress("soak", &["--seconds", "4", "--rate", "20", "--edits", "5"]);
}
