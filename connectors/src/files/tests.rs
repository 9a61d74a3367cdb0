//! Tests of many files: their order, forms, rotation, packing, and restarts.

mod container;
mod rotated;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;

use turnflow_engine::spec::from_str;

use super::*;
use crate::mapped::{Counts, Mapped, placed};
use crate::testing::{Turns, turn};

/// The source in a directory, with these fields; its store is there, too.
fn source(base: &Path, fields: &str) -> Mapped {
    let config: FilesConfig = from_str(&format!("({fields}, every_s: 0.02, quiet_s: 0.0)")).unwrap();
    let files = config.source(base).unwrap();
    placed(&config.map_fields(), &base.join(".state"), Counts::default(), Box::new(files))
}

/// The source of the conformance test.
pub(crate) fn turns_of(base: &Path, lines: &[u8]) -> Box<dyn TurnSource> {
    fs::write(base.join("turns.jsonl"), lines).unwrap();
    Box::new(source(base, "glob: \"turns.*\""))
}

fn append(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Lines with these texts.
fn lines(texts: &[&str]) -> String {
    texts.iter().map(|text| turn(text) + "\n").collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A folder whose source is run again and again, each time to the end of all files.
struct Logs {
    base: tempfile::TempDir,
    fields: String,
    place: Option<turnflow_engine::connector::SourceOffset>,
    dead: Vec<String>,
}

impl Logs {
    fn new(fields: &str) -> Self {
        Self { base: tempfile::tempdir().unwrap(), fields: fields.to_owned(), place: None, dead: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn append(&self, name: &str, texts: &[&str]) {
        append(&self.path(name), &lines(texts));
    }

    fn pack(&self, name: &str, packed: &str) {
        fs::create_dir_all(self.path(packed).parent().unwrap()).unwrap();
        fs::write(self.path(packed), gzip(&fs::read(self.path(name)).unwrap())).unwrap();
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Moves a log as programs that rotate do.
    fn moves(&self, from: &str, to: &str) {
        fs::create_dir_all(self.path(to).parent().unwrap()).unwrap();
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// The texts that a run reads that were not read before.
    fn read(&mut self) -> Vec<String> {
        let turns = Turns::resume(source(self.base.path(), &self.fields), Mode::Once, self.place.clone());
        let (taken, dead) = turns.all();
        self.dead = dead;
        if let Some(last) = taken.last() {
            self.place.clone_from(&last.place);
        }
        taken.iter().map(|turn| turn.record.text.to_string()).collect()
    }

    /// The same without an order.
    fn sorted(&mut self) -> Vec<String> {
        let mut read = self.read();
        read.sort_unstable();
        read
    }
}

#[test]
fn files_of_all_folders_are_read_the_oldest_first_and_once() {
    let mut logs = Logs::new("glob: \"logs/**/*.jsonl*\"");
    fs::create_dir_all(logs.path("logs")).unwrap();
    assert_eq!(logs.read(), [""; 0]);
    for (name, text) in [
        ("logs/2026/03/05/b.jsonl", "c"),
        ("logs/2026/03/04/a.jsonl", "b"),
        ("logs/2026/03/03/a.jsonl.1", "a"),
        ("logs/2026/03/05/.hidden.jsonl", "no"),
        ("logs/2026/03/05/notes.txt", "no"),
        ("beside.jsonl", "no"),
    ] {
        logs.append(name, &[text]);
    }
    assert_eq!(logs.read(), ["a", "b", "c"]);
    assert_eq!(logs.read(), [""; 0]);
    logs.append("logs/2026/03/04/a.jsonl", &["d"]);
    logs.append("logs/2026/03/06/a.jsonl", &["e"]);
    assert_eq!(logs.read(), ["d", "e"]);
    assert_eq!(logs.dead, [""; 0]);
}

#[test]
fn files_that_begin_alike_are_others() {
    let mut logs = Logs::new("glob: \"*.jsonl\"");
    for name in ["a.jsonl", "b.jsonl", "c.jsonl"] {
        logs.append(name, &["hello"]);
    }
    assert_eq!(logs.read(), ["hello", "hello", "hello"]);
    logs.append("a.jsonl", &["a"]);
    logs.append("c.jsonl", &["c"]);
    logs.append("d.jsonl", &["hello", "d"]);
    assert_eq!(logs.sorted(), ["a", "c", "d", "hello"]);
    // Also if their names look like those of rotated logs, once they differ.
    for name in ["e1.jsonl", "e13.jsonl"] {
        logs.append(name, &["good day"]);
    }
    assert_eq!(logs.sorted(), ["good day", "good day"]);
    logs.append("f.jsonl", &["good day", "f"]);
    assert_eq!(logs.sorted(), ["f", "good day"]);
    logs.append("f-20261128.jsonl", &["good day"]);
    assert!(logs.sorted().is_empty(), "it is a copy so far");
    logs.append("f-20261128.jsonl", &["f2"]);
    assert_eq!(logs.sorted(), ["f2", "good day"]);
}

#[test]
fn a_last_line_without_its_end_counts_and_a_broken_one_is_told() {
    let mut logs = Logs::new("glob: \"*.jsonl\"");
    append(&logs.path("a.jsonl"), &format!("{}{}", lines(&["a"]), turn("b")));
    append(&logs.path("b.jsonl"), "{\"half");
    assert_eq!(logs.read(), ["a", "b"]);
    assert!(logs.dead.len() == 1 && logs.dead[0].contains("b.jsonl:1"), "{:?}", logs.dead);
    append(&logs.path("a.jsonl"), &format!("\n{}", lines(&["c"])));
    assert_eq!(logs.read(), ["c"]);
}

#[test]
fn files_are_followed_and_new_ones_are_found() {
    let base = tempfile::tempdir().unwrap();
    let path = |name: &str| base.path().join(name);
    let turns = Turns::run(source(base.path(), "glob: \"**/*.jsonl*\""), Mode::Follow);
    append(&path("x/a.jsonl"), &lines(&["a"]));
    assert_eq!(turns.text(), "a");
    append(&path("x/a.jsonl"), &lines(&["b"]));
    assert_eq!(turns.text(), "b");
    // Rotated: what is written to the old file still counts, and the new one follows.
    fs::rename(path("x/a.jsonl"), path("x/a.jsonl.1")).unwrap();
    append(&path("x/a.jsonl.1"), &lines(&["c"]));
    assert_eq!(turns.text(), "c");
    append(&path("x/a.jsonl"), &lines(&["d"]));
    assert_eq!(turns.text(), "d");
    // Packed, and the next one.
    let old = fs::read(path("x/a.jsonl.1")).unwrap();
    fs::write(path("x/a.jsonl.1.gz"), gzip(&old)).unwrap();
    fs::remove_file(path("x/a.jsonl.1")).unwrap();
    append(&path("y/b.jsonl"), &lines(&["e"]));
    assert_eq!(turns.text(), "e");
    // Truncated.
    fs::write(path("y/b.jsonl"), lines(&["f"])).unwrap();
    assert_eq!(turns.text(), "f");
    assert_eq!(turns.dead(), [""; 0]);
    assert!(matches!(turns.end(true), Err(ConnectorError::Stopped(_))));
}

#[test]
fn a_file_may_be_a_conversation_in_any_form() {
    let program = "{conversation: $source.name, speaker: (.role | role), text: .content}";
    let mut logs = Logs::new(&format!("glob: \"*\", map: Jq({program:?})"));
    let json = |texts: &[&str]| {
        let messages: Vec<String> =
            texts.iter().map(|text| format!("{{\"role\": \"user\", \"content\": \"{text}\"}}")).collect();
        format!("[{}]", messages.join(",\n"))
    };
    append(&logs.path("a.json"), &json(&["a1"]));
    append(&logs.path("b.csv"), "role,content\nuser,b1\n");
    append(&logs.path("c.jsonl"), "{\"role\": \"user\", \"content\": \"c1\"}\n");
    assert_eq!(logs.sorted(), ["a1", "b1", "c1"]);
    // What was read before is not read again when a file is written anew with more.
    fs::write(logs.path("a.json"), json(&["a1", "a2"])).unwrap();
    append(&logs.path("b.csv"), "user,b2\n");
    assert_eq!(logs.sorted(), ["a2", "b2"]);
    // Also if another file is put in its place.
    fs::write(logs.path(".new"), json(&["a1", "a2", "a3"])).unwrap();
    logs.moves(".new", "a.json");
    assert_eq!(logs.sorted(), ["a3"]);
    logs.pack("a.json", "a.json.gz");
    assert_eq!(logs.sorted(), [""; 0]);
    fs::remove_file(logs.path("a.json.gz")).unwrap();
    fs::write(logs.path("a.json"), json(&["a1", "a2", "a3", "a4"])).unwrap();
    assert_eq!(logs.sorted(), ["a4"]);
    logs.moves("b.csv", "b-old.csv");
    assert_eq!(logs.sorted(), [""; 0]);
    fs::write(logs.path("broken.json"), "{\"role\"").unwrap();
    assert_eq!(logs.sorted(), [""; 0]);
    assert!(logs.dead.len() == 1 && logs.dead[0].contains("broken.json:1"), "{:?}", logs.dead);
}

/// A chat that was packed is written unpacked again, beside its packed form, and packed once more over that.
#[test]
fn what_was_packed_and_is_written_again_is_read_once() {
    let program = "{conversation: $source.name, speaker: \"user\", text: .t}";
    let mut logs = Logs::new(&format!("glob: \"*\", map: Jq({program:?})"));
    let record = |text: &str| format!("{{\"t\": \"{text}\"}}");
    let write = |logs: &Logs, texts: &[&str]| {
        let records: Vec<String> = texts.iter().map(|text| record(text)).collect();
        fs::write(logs.path("a.json"), format!("[{}]", records.join(",\n"))).unwrap();
        fs::write(logs.path("b.jsonl"), records.join("\n") + "\n").unwrap();
    };
    let pack = |logs: &Logs| {
        logs.pack("a.json", "a.json.gz");
        logs.pack("b.jsonl", "b.jsonl.gz");
    };
    write(&logs, &["1", "2"]);
    assert_eq!(logs.sorted(), ["1", "1", "2", "2"]);
    pack(&logs);
    assert_eq!(logs.sorted(), [""; 0]);
    write(&logs, &["1", "2", "3"]);
    assert_eq!(logs.sorted(), ["3", "3"]);
    pack(&logs);
    assert_eq!(logs.sorted(), [""; 0]);
    write(&logs, &["1", "2", "3", "4"]);
    pack(&logs);
    write(&logs, &["1", "2", "3", "4", "5"]);
    assert_eq!(logs.sorted(), ["4", "4", "5", "5"]);
    assert_eq!(logs.sorted(), [""; 0]);
}

#[test]
fn lines_in_utf_16_are_read() {
    let mut logs = Logs::new("glob: \"*.jsonl\"");
    let bytes: Vec<u8> = lines(&["a", "b"]).encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(logs.path("a.jsonl"), [&[0xff, 0xfe], &bytes[..]].concat()).unwrap();
    assert_eq!(logs.read(), ["a", "b"]);
    let bytes: Vec<u8> = lines(&["a", "b", "c"]).encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(logs.path("a.jsonl"), [&[0xff, 0xfe], &bytes[..]].concat()).unwrap();
    assert_eq!(logs.read(), ["c"]);
}

#[test]
fn a_text_is_read_by_what_begins_its_messages() {
    let program =
        "#: {\"start\": \"^(?<who>\\\\w+): (?<text>.*)$\"}\n{conversation: $source.name, speaker: (.who | role), text}";
    let mut logs = Logs::new(&format!("glob: \"*.log\", map: Jq({program:?})"));
    append(&logs.path("a.log"), "User: one\n  two\nBot: three\n");
    assert_eq!(logs.read(), ["one\n  two", "three"]);
    append(&logs.path("a.log"), "User: four\n");
    assert_eq!(logs.read(), ["four"]);
}

#[test]
fn many_files_in_many_folders_are_read_with_few_open() {
    let mut logs = Logs::new("glob: \"*/*.jsonl\"");
    let mut expected = BTreeSet::new();
    for n in 0..10_000 {
        let (day, chat) = (n % 365, n / 365);
        let text = format!("{day}-{chat}");
        logs.append(&format!("2026-{:02}-{:02}/{chat}.jsonl", day / 31 + 1, day % 31 + 1), &[&text]);
        expected.insert(text);
    }
    let done = &std::sync::atomic::AtomicBool::new(false);
    let (read, open) = std::thread::scope(|scope| {
        let own = logs.path("");
        let watcher = scope.spawn(move || {
            let mut most = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let files = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
                let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
                most = most.max(targets.filter(|target| target.starts_with(&own)).count());
                std::thread::yield_now();
            }
            most
        });
        let read = logs.read();
        done.store(true, std::sync::atomic::Ordering::Release);
        (read, watcher.join().unwrap())
    });
    assert_eq!(read.len(), expected.len());
    assert_eq!(read.into_iter().collect::<BTreeSet<_>>(), expected);
    // The store is in the folder, too.
    assert!(open <= OPEN + 2, "{open}");
    assert_eq!(logs.read(), [""; 0]);
}
