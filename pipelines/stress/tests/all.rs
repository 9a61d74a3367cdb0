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
    if !output.status.success() {
        let kept = dir.keep();
        panic!("{how}: {text}\nleft as it is: {}\nend of the log, backwards:\n{}", kept.display(), end.join("\n"));
    }
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
fn killed_processes_lack_no_passage_when_their_embedding_server_comes_and_goes() {
    stress("kill", &["--times", "8", "--documents", "16", "--seed", "2", "--embedder", "--away", "2"]);
    stress("kill", &["--times", "6", "--documents", "12", "--live", "--workers", "2", "--seed", "3", "--embedder"]);
}

#[test]
fn killed_processes_revise_every_answer_once() {
    stress("kill", &["--times", "8", "--documents", "12", "--live"]);
    stress("kill", &["--times", "6", "--documents", "12", "--live", "--workers", "2", "--seed", "1"]);
}

#[test]
fn killed_processes_lose_nothing_of_the_logs_of_other_programs() {
    for kind in ["files", "chats", "json-lines", "sqlite", "otlp", "edits"] {
        stress("logs", &[kind, "--times", "6"]);
    }
    stress("logs", &["files", "--times", "8", "--workers", "2", "--seed", "1"]);
}

#[cfg(target_os = "linux")]
#[test]
fn killed_processes_of_a_cluster_lose_nothing_and_double_nothing() {
    stress("cluster", &["--times", "10", "--documents", "16", "--processes", "3"]);
    stress("cluster", &["--times", "6", "--documents", "12", "--processes", "2", "--workers", "2", "--live"]);
}

#[cfg(target_os = "linux")]
#[test]
fn killed_processes_of_a_cluster_embed_nothing_twice() {
    let Some(model) = model("minilm-int8") else { return };
    stress("cluster", &["--times", "5", "--documents", "10", "--processes", "3", "--model", &path(&model)]);
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
fn kills_of_processes_that_read_kafka_together_lose_nothing() {
    broker("kafka", &["--times", "8", "--processes", "2"]);
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

/// Runs the kit for GPUs on short texts; returns its report.
fn gpu(encoder: &Path, half: &Path, arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let texts = dir.path().join("texts.jsonl");
    let row = |number: usize| {
        let text = format!("Row {number} tells of a ferry at pier {}. ", number * 7919 % 10_007);
        serde_json::json!({"text": text.repeat(1 + number % 4)}).to_string() + "\n"
    };
    std::fs::write(&texts, (0..72).map(row).collect::<String>()).unwrap();
    let report = dir.path().join("report.md");
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow-stress"));
    command.arg("gpu").arg("--encoder").arg(encoder).arg("--half").arg(half);
    command.arg("--texts").arg(&texts).arg("--report").arg(&report).args(arguments);
    let output = command.output().unwrap();
    let report = std::fs::read_to_string(report).unwrap_or_default();
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    report
}

#[test]
fn the_kit_for_gpus_can_be_tried_on_the_cpu() {
    let (Some(encoder), Some(half)) = (model("minilm"), model("minilm-half")) else { return };
    let report = gpu(&encoder, &half, &["--cpu", "--parts", "agreement,full,lost"]);
    assert!(report.contains("holds: vectors in 16 bits"), "{report}");
    assert_eq!(report.matches("Not run: it needs a GPU.").count(), 2, "{report}");
}

#[test]
fn a_gpu_gives_the_vectors_of_the_cpu_and_may_fail() {
    let (Some(encoder), Some(half)) = (model("minilm"), model("minilm-half")) else { return };
    let has_gpu = Command::new("nvidia-smi").arg("-L").output().is_ok_and(|output| output.status.success());
    let library = encoder.with_file_name("onnxruntime-cuda");
    if !has_gpu || !library.exists() {
        println!(
            "skipped: there is no NVIDIA GPU, or no `onnxruntime-cuda`, which `turnflow models fetch` brings by name"
        );
        return;
    }
    let report = gpu(&encoder, &half, &["--parts", "agreement,full,lost"]);
    assert!(report.contains("the encoder goes on, on the CPU"), "{report}");
}

#[test]
fn memory_and_starts_are_measured_in_processes_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus.jsonl");
    let row =
        |n: usize| format!("{{\"_id\": \"r{n}\", \"text\": \"The ferry number {n} leaves. It returns at noon.\"}}\n");
    std::fs::write(&corpus, (0..40).map(row).collect::<String>()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow-stress"));
    command.args(["size", "--passages", "300", "--dir"]).arg(dir.path().join("world")).arg("--corpus").arg(&corpus);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for what in ["Bm25, indexed", "Bm25, started again", "Hybrid, indexed", "Hybrid, started again"] {
        assert!(text.contains(what), "{text}");
    }
}
