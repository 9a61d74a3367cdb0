//! Lines of container runtimes, of which parts are written one after another.

use std::time::Duration;

use super::*;

const FIELDS: &str = r##"glob: "pods/**/*", map: Jq("#: {\"decode\": \"container\"}
{conversation: \"c\", speaker: \"user\", text: .log, time}")"##;

fn line(tag: &str, text: &str) -> String {
    format!("2026-03-05T09:00:00Z stdout {tag} {text}\n")
}

/// Long enough for several looks.
fn wait() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn a_part_of_a_line_waits_for_its_end_also_across_runs() {
    let mut logs = Logs::new(FIELDS);
    let path = logs.path("pods/a/0.log");
    append(&path, &(line("F", "one") + &line("P", "two, ")));
    assert_eq!(logs.read(), ["one"]);
    assert!(logs.dead.len() == 1 && logs.dead[0].contains("0.log:2"), "{:?}", logs.dead);
    append(&path, &(line("P", "and ") + "2026-03-05T09:00:00Z stderr F err\n2026-03-05T09:0"));
    assert_eq!(logs.read(), ["err"]);
    append(&path, "0:01Z stdout F three\n");
    append(&path, &line("F", "four"));
    assert_eq!(logs.read(), ["two, and three", "four"]);
    assert_eq!(logs.dead, [""; 0]);
    assert_eq!(logs.read(), [""; 0]);
}

#[test]
fn a_part_is_given_as_it_is_when_its_file_is_over() {
    let mut logs = Logs::new(FIELDS);
    append(&logs.path("pods/a/0.log"), &(line("F", "one") + &line("P", "two")));
    append(&logs.path("pods/b/0.log"), &line("P", "b"));
    append(&logs.path("pods/c/0.log"), &line("P", "c"));
    assert_eq!(logs.read(), ["one"]);
    // Rotated, packed, and followed by the log of the container that was started again.
    logs.moves("pods/a/0.log", "pods/a/0.log.20260305-090000");
    append(&logs.path("pods/a/0.log"), &line("F", "three"));
    logs.pack("pods/b/0.log", "pods/b/0.log.20260305-090000.gz");
    append(&logs.path("pods/c/1.log"), &line("F", "c1"));
    assert_eq!(logs.sorted(), ["b", "c1", "three", "two"]);
    // The container may have been named so, and write still.
    let log = OpenOptions::new().append(true).open(logs.path("pods/c/0.log")).unwrap();
    log.set_modified(std::time::SystemTime::now() - Duration::from_secs(120)).unwrap();
    assert_eq!(logs.sorted(), ["c"]);
    assert_eq!(logs.sorted(), [""; 0]);
    logs.pack("pods/a/0.log.20260305-090000", "pods/a/0.log.20260305-090000.gz");
    fs::remove_file(logs.path("pods/c/1.log")).unwrap();
    assert_eq!(logs.sorted(), [""; 0]);
}

#[test]
fn a_last_line_without_its_end_is_told_and_given_when_its_file_is_over() {
    let mut logs = Logs::new(FIELDS);
    let unended = |text: &str| line("F", text).trim_end().to_owned();
    append(&logs.path("pods/a/0.log"), &(line("F", "one") + &unended("two")));
    assert_eq!(logs.read(), ["one"]);
    assert!(logs.dead.len() == 1 && logs.dead[0].contains("0.log:2"), "{:?}", logs.dead);
    logs.moves("pods/a/0.log", "pods/a/0.log.20260305-090000");
    append(&logs.path("pods/a/0.log"), &line("F", "three"));
    assert_eq!(logs.sorted(), ["three", "two"]);
    assert_eq!(logs.sorted(), [""; 0]);
}

#[test]
fn a_log_that_is_copied_and_truncated_is_read_once() {
    let truncated = |path: &Path| {
        fs::copy(path, path.with_extension("log.1")).unwrap();
        fs::write(path, line("F", "four")).unwrap();
    };
    let mut logs = Logs::new(FIELDS);
    let path = logs.path("pods/a/0.log");
    append(&path, &(line("F", "one") + &line("F", "two")));
    assert_eq!(logs.read(), ["one", "two"]);
    append(&path, &line("F", "three"));
    truncated(&path);
    assert_eq!(logs.sorted(), ["four", "three"]);
    assert_eq!(logs.sorted(), [""; 0]);
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("pods/a/0.log");
    append(&path, &(line("F", "one") + &line("F", "two")));
    let turns = Turns::run(source(base.path(), FIELDS), Mode::Follow);
    assert_eq!([turns.text(), turns.text()], ["one", "two"]);
    wait();
    append(&path, &line("F", "three"));
    truncated(&path);
    // In their order, though the end of the copy was written just now.
    assert_eq!([turns.text(), turns.text()], ["three", "four"]);
    wait();
    append(&path, &(line("F", "five") + &line("P", "si")));
    fs::rename(&path, path.with_extension("log.2")).unwrap();
    append(&path, &line("F", "seven"));
    append(&path.with_extension("log.2"), &line("F", "x"));
    let mut found = [turns.text(), turns.text(), turns.text()];
    assert_eq!(found[0], "five");
    found.sort_unstable();
    assert_eq!(found, ["five", "seven", "six"]);
    assert!(turns.end(true).is_err());
}

#[test]
fn a_log_that_is_followed_has_whole_lines() {
    let base = tempfile::tempdir().unwrap();
    let path = |name: &str| base.path().join(name);
    let turns = Turns::run(source(base.path(), FIELDS), Mode::Follow);
    append(&path("pods/a/0.log"), &(line("F", "one") + &line("P", "two, ")));
    assert_eq!(turns.text(), "one");
    wait();
    assert_eq!(turns.end(true).map_err(|error| matches!(error, ConnectorError::Stopped(_))), Err(true));
    // Killed and started again, while the line grows.
    let place = None;
    let turns = Turns::resume(source(base.path(), FIELDS), Mode::Follow, place);
    wait();
    append(&path("pods/a/0.log"), &line("F", "three"));
    let mut texts = vec![turns.text()];
    if texts == ["one"] {
        texts.push(turns.text());
    }
    assert_eq!(texts.last().unwrap(), "two, three");
    // A file that goes with a part is not lost.
    append(&path("pods/a/0.log"), &line("P", "the end"));
    wait();
    fs::remove_file(path("pods/a/0.log")).unwrap();
    assert_eq!(turns.text(), "the end");
    // Nor is what is written as a log goes: a link leads to the next one.
    #[cfg(unix)]
    {
        fs::create_dir_all(path("elsewhere")).unwrap();
        append(&path("elsewhere/0.log"), &line("F", "before"));
        std::os::unix::fs::symlink("../elsewhere/0.log", path("pods/link.log")).unwrap();
        assert_eq!(turns.text(), "before");
        wait();
        append(&path("elsewhere/0.log"), &(line("F", "meanwhile") + &line("P", "begun")));
        fs::rename(path("elsewhere/0.log"), path("elsewhere/old")).unwrap();
        append(&path("elsewhere/0.log"), &line("F", "after"));
        let mut found = [turns.text(), turns.text(), turns.text()];
        found.sort_unstable();
        assert_eq!(found, ["after", "begun", "meanwhile"]);
        fs::remove_file(path("pods/link.log")).unwrap();
    }
    // A program that writes all the time is read, too.
    let is_done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (writer, log) = (is_done.clone(), path("pods/b/0.log"));
    let thread = std::thread::spawn(move || {
        while !writer.load(std::sync::atomic::Ordering::Relaxed) {
            append(&log, &line("F", "busy"));
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    assert_eq!(turns.text(), "busy");
    is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    thread.join().unwrap();
    assert!(turns.end(true).is_err());
}

#[test]
fn a_log_that_grows_byte_by_byte_is_read_on_where_it_was() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("pods/a/0.log");
    let turns = Turns::run(source(base.path(), FIELDS), Mode::Follow);
    let random = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let mut expected = Vec::new();
    for round in 0..12 {
        let from = expected.len();
        let mut text = String::new();
        for at in from..from + 5 {
            let long = random(at).is_multiple_of(3);
            text += &if long { line("P", "in parts: ") } else { String::new() };
            text += &line("F", &format!("line {at}"));
            expected.push(format!("{}line {at}", if long { "in parts: " } else { "" }));
        }
        // The rest of a line comes after another look.
        let cut = random(round) as usize % text.len();
        append(&path, &text[..cut]);
        wait();
        append(&path, &text[cut..]);
        let found: Vec<String> = (from..expected.len()).map(|_| turns.text()).collect();
        assert_eq!(found, expected[from..]);
        match round {
            // The copy of a log that is truncated gives nothing again.
            4 => {
                fs::copy(&path, path.with_extension("log.1")).unwrap();
                fs::write(&path, "").unwrap();
            }
            8 => fs::rename(&path, path.with_extension("log.2")).unwrap(),
            _ => {}
        }
    }
    assert!(turns.end(true).is_err());
}
