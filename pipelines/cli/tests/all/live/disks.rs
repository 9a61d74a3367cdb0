//! Disks that are full or read-only, and files that are gone: on a small file system of its own,
//! where one can be mounted.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use super::resume::ANSWERING;
use crate::support::{answers, plan_of, until};

/// A file system in memory, of a few megabytes.
struct Disk(PathBuf);

impl Disk {
    /// `None`, with a word on it, where none can be mounted.
    fn mount(at: &Path, megabytes: u32) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            other => {
                println!("skipped: no file system can be mounted here: {other:?}");
                None
            }
        }
    }

    fn remount(&self, how: &str) -> bool {
        let options = format!("remount,{how}");
        Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn say(dir: &Path, turn: u32) {
    let mut log = fs::OpenOptions::new().create(true).append(true).open(dir.join("turns.jsonl")).unwrap();
    let record = serde_json::json!({"conversation_id": "c", "turn": turn, "speaker": "user", "text": "ferry"});
    writeln!(log, "{record}").unwrap();
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("docs")).unwrap();
    fs::write(dir.path().join("docs/a.md"), "The ferry leaves the harbour at noon.").unwrap();
    dir
}

fn start(dir: &Path, disk: &Path, mode: Mode) -> Result<Engine, turnflow_engine::run::RunError> {
    let text = ANSWERING.replace("\"answers.jsonl\"", &format!("{:?}", disk.join("answers.jsonl")));
    let options = Options { state: Some(disk.join("state")), turns: mode, corpora: mode, ..Options::default() };
    Engine::start(plan_of(dir, &text), options)
}

/// The documents of a turn's hits.
fn found(disk: &Disk, turn: u32) -> Vec<String> {
    let answers = answers(&disk.0.join("answers.jsonl"));
    let answer = answers.iter().find(|answer| answer.turn == turn).expect("it is answered");
    let mut documents: Vec<String> = answer.hits.iter().map(|hit| hit.document.to_string()).collect();
    documents.sort();
    documents
}

/// Fills a file system to its last byte.
fn fill(disk: &Path) {
    let mut file = fs::File::create(disk.join("filler")).unwrap();
    let block = vec![0_u8; 4096];
    while file.write_all(&block).is_ok() {}
    while file.write_all(b"x").is_ok() {}
}

#[test]
fn a_full_disk_loses_no_turn() {
    let dir = place();
    let path = dir.path().join("disk");
    let Some(disk) = Disk::mount(&path, 24) else { return };
    let engine = start(dir.path(), &disk.0, Mode::Follow).unwrap();
    say(dir.path(), 1);
    until("the first answer", || engine.delivered() == 1);
    fill(&disk.0);
    for turn in 2..=200 {
        say(dir.path(), turn);
    }
    fs::write(dir.path().join("docs/b.md"), "Another ferry, which leaves at dusk.").unwrap();
    until("a turn to wait", || engine.outstanding() > 0);
    let before = fs::read_to_string(disk.0.join("answers.jsonl")).unwrap();
    assert!(before.lines().count() < 200);
    fs::remove_file(disk.0.join("filler")).unwrap();
    until("the rest", || engine.delivered() == 200);
    until("the new document", || engine.epochs().current().corpora["docs"].documents == 2);
    say(dir.path(), 201);
    until("an answer from it", || engine.delivered() == 201);
    assert_eq!(found(&disk, 201), ["a.md", "b.md"]);
    // And what changes later is indexed as before.
    fs::write(dir.path().join("docs/c.md"), "A third ferry, at dawn.").unwrap();
    until("another document", || engine.epochs().current().corpora["docs"].documents == 3);
    say(dir.path(), 202);
    until("an answer from it", || engine.delivered() == 202);
    assert_eq!(found(&disk, 202), ["a.md", "b.md", "c.md"]);
    engine.stop();
    engine.join().unwrap();
    let turns: Vec<u32> = answers(&disk.0.join("answers.jsonl")).iter().map(|answer| answer.turn).collect();
    assert_eq!(turns, (1..=202).collect::<Vec<_>>());
    // And a restart knows it.
    let engine = start(dir.path(), &disk.0, Mode::Once).unwrap();
    until("the end", || engine.has_ended());
    assert_eq!(engine.delivered(), 0);
    engine.join().unwrap();
}

#[test]
fn a_read_only_disk_is_told_by_its_path() {
    let dir = place();
    let path = dir.path().join("disk");
    let Some(disk) = Disk::mount(&path, 24) else { return };
    say(dir.path(), 1);
    if !disk.remount("ro") {
        println!("skipped: it cannot be made read-only");
        return;
    }
    let error = start(dir.path(), &disk.0, Mode::Once).err().expect("nothing can be written").to_string();
    assert!(error.contains(&disk.0.display().to_string()) && error.contains("Read-only"), "{error}");
    assert!(disk.remount("rw"));
    let engine = start(dir.path(), &disk.0, Mode::Once).unwrap();
    until("the end", || engine.has_ended());
    engine.join().unwrap();
    assert_eq!(answers(&disk.0.join("answers.jsonl")).len(), 1);
}

/// Any file of the state may be gone at the next start.
#[test]
fn state_files_that_are_gone_cost_work_and_nothing_else() {
    let dir = place();
    let state = dir.path().join("state");
    let once = |expected: usize| {
        let engine = start(dir.path(), dir.path(), Mode::Once).unwrap();
        until("the end", || engine.has_ended());
        assert_eq!(engine.delivered(), expected);
        engine.join().unwrap();
    };
    say(dir.path(), 1);
    once(1);
    let mut turn = 1;
    for gone in
        ["turns.redb", "memo.redb", "epoch.json", "format", "lock", "corpora/docs/bm25-english/meta.json", "corpora"]
    {
        let path = state.join(gone);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.unwrap_or_else(|error| panic!("{gone}: {error}"));
        turn += 1;
        say(dir.path(), turn);
        once(1);
    }
    fs::remove_dir_all(&state).unwrap();
    once(0);
    let turns: Vec<u32> = answers(&dir.path().join("answers.jsonl")).iter().map(|answer| answer.turn).collect();
    assert_eq!(turns, (1..=turn).collect::<Vec<_>>());
    assert!(answers(&dir.path().join("answers.jsonl")).iter().all(|answer| answer.hits.len() == 1));
}

/// Much waits for a checkpoint that cannot be written. A restart reads it again.
#[test]
fn a_stop_ends_although_no_checkpoint_can_be_written() {
    let dir = place();
    let dir = dir.path();
    let Some(disk) = Disk::mount(&dir.join("disk"), 40) else { return };
    let mut log = std::io::BufWriter::new(fs::File::create(dir.join("turns.jsonl")).unwrap());
    let text = "x".repeat(2000);
    for turn in 1..=20_000 {
        let id = format!("c{turn}");
        let record = serde_json::json!({"conversation_id": id, "turn": 1, "speaker": "agent", "text": text});
        writeln!(log, "{record}").unwrap();
    }
    drop(log);
    let engine = start(dir, &disk.0, Mode::Follow).unwrap();
    engine.wait_ready().unwrap();
    fill(&disk.0);
    until("the bound of what waits", || engine.unwritten_bytes() >= 16 << 20);
    engine.stop();
    let _ = engine.join();
    assert!(disk.remount("size=400m"));
    say(dir, 1);
    let engine = start(dir, &disk.0, Mode::Once).unwrap();
    until("the end", || engine.has_ended());
    engine.join().unwrap();
    assert_eq!(found(&disk, 1), ["a.md"]);
}
