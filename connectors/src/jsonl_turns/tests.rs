//! Tests of reading, following, and resuming after a restart.

mod alike;

use std::fs;
use std::io::Write;

use turnflow_engine::connector::SourceOffset;

use super::*;
use crate::testing::{Turns, turn};

fn source(base: &Path) -> JsonLines {
    turnflow_engine::spec::from_str::<JsonLinesConfig>(r#"(path: "t.jsonl", max_line_bytes: 200)"#)
        .unwrap()
        .source(base)
}

fn append(path: &Path, bytes: &str) {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(bytes.as_bytes()).unwrap();
}

#[test]
fn once_ends_at_the_end_and_counts_the_last_line() {
    let directory = tempfile::tempdir().unwrap();
    let error = Turns::run(source(directory.path()), Mode::Once).end(false).unwrap_err();
    assert!(matches!(error, ConnectorError::Io { action: "read", .. }), "{error}");
    let path = directory.path().join("t.jsonl");
    let long = "x".repeat(500);
    fs::write(&path, format!("{}\n\nbad\n{}\n{}", turn("a"), turn(&long), turn("b"))).unwrap();
    let turns = Turns::run(source(directory.path()), Mode::Once);
    assert_eq!(turns.next(), ("a".to_owned(), format!("{}:1", path.display())));
    assert_eq!(turns.next(), ("b".to_owned(), format!("{}:5", path.display())));
    let dead = turns.dead();
    assert!(dead[0].starts_with(&format!("{}:3: not a turn record", path.display())), "{dead:?}");
    assert!(dead[1].ends_with(":4: the line has 566 bytes, more than 200"), "{dead:?}");
    assert_eq!(dead.len(), 2);
    turns.end(false).unwrap();
}

#[test]
fn a_file_that_comes_and_grows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    append(&path, &format!("{}\n", turn("a")));
    assert_eq!(turns.text(), "a");
    let line = turn("b");
    append(&path, &line[..20]);
    append(&path, &line[20..]);
    // The unfinished line is not delivered before its newline.
    append(&path, &format!("\n{}\n", turn("c")));
    assert_eq!(turns.text(), "b");
    assert_eq!(turns.next(), ("c".to_owned(), format!("{}:3", path.display())));
    assert_eq!(turns.dead(), [""; 0]);
    assert!(matches!(turns.end(true), Err(ConnectorError::Stopped(_))));
}

#[test]
fn even_the_directory_may_come_later() {
    let directory = tempfile::tempdir().unwrap();
    let later = directory.path().join("later");
    let turns = Turns::run(source(&later), Mode::Follow);
    fs::create_dir(&later).unwrap();
    append(&later.join("t.jsonl"), &format!("{}\n", turn("a")));
    assert_eq!(turns.text(), "a");
}

#[test]
fn rotation_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("t.jsonl"), directory.path().join("t.jsonl.1"));
    append(&path, &format!("{}\n", turn("a")));
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    assert_eq!(turns.text(), "a");
    fs::rename(&path, &old).unwrap();
    // The writer has not noticed the rotation yet.
    append(&old, &format!("{}\n", turn("b")));
    assert_eq!(turns.text(), "b");
    append(&old, &turn("c"));
    append(&path, &format!("{}\n", turn("d")));
    assert_eq!(turns.next(), ("c".to_owned(), format!("{}:3", path.display())));
    assert_eq!(turns.next(), ("d".to_owned(), format!("{}:1", path.display())));
}

#[test]
fn truncation_starts_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    append(&path, &format!("{}\n{}\n{{\"half", turn("a"), turn("b")));
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    assert_eq!((turns.text(), turns.text()), ("a".to_owned(), "b".to_owned()));
    fs::write(&path, format!("{}\n", turn("c"))).unwrap();
    assert_eq!(turns.next(), ("c".to_owned(), format!("{}:1", path.display())));
    let dead = turns.dead();
    assert!(dead.iter().all(|letter| letter.contains("truncated within")), "{dead:?}");
}

/// Lines with these texts.
fn lines(texts: &[&str]) -> String {
    texts.iter().map(|text| turn(text) + "\n").collect()
}

/// What a run to the end reads after an offset: the texts, the last offset, and the dead letters.
fn rest(base: &Path, place: Option<&SourceOffset>) -> (Vec<String>, Option<SourceOffset>, Vec<String>) {
    let turns = Turns::resume(source(base), Mode::Once, place.cloned());
    let (taken, dead) = turns.all();
    let last = taken.last().and_then(|turn| turn.place.clone());
    (taken.iter().map(|turn| turn.record.text.to_string()).collect(), last, dead)
}

fn texts(base: &Path, place: &SourceOffset) -> Vec<String> {
    rest(base, Some(place)).0
}

#[test]
fn places_say_where_lines_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    let one = lines(&["a"]).len() as u64;
    fs::write(&path, format!("{}\nbad\n{}", lines(&["a", "b"]), turn("c"))).unwrap();
    let (taken, dead) = Turns::run(source(directory.path()), Mode::Once).all();
    let places: Vec<SourceOffset> = taken.into_iter().map(|turn| turn.place.unwrap()).collect();
    let ends: Vec<_> = places.iter().map(|place| (place.generation, place.end, place.line)).collect();
    assert_eq!(ends, [(0, one, 1), (0, 2 * one, 2), (0, 3 * one + 4, 5)]);
    assert_eq!(dead.len(), 1);
}

#[test]
fn a_restart_goes_on_behind_every_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    let all: Vec<String> = (0..100).map(|number| format!("number {number}")).collect();
    fs::write(&path, format!("\u{feff}{}", lines(&all.iter().map(String::as_str).collect::<Vec<_>>()))).unwrap();
    let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
    for at in [0, 1, 7, 57, 98, 99] {
        let (texts, last, dead) = rest(directory.path(), taken[at].place.as_ref());
        assert_eq!(texts, all[at + 1..]);
        assert_eq!(dead, [""; 0]);
        // Offsets do not depend on where reading started.
        assert_eq!(last, taken[99].place.clone().filter(|_| at < 99));
    }
    // Resumes in a file that grows.
    let turns = Turns::resume(source(directory.path()), Mode::Follow, taken[98].place.clone());
    assert_eq!(turns.text(), "number 99");
    append(&path, &lines(&["more"]));
    assert_eq!(turns.next(), ("more".to_owned(), format!("{}:101", path.display())));
}

#[test]
fn a_restart_after_a_rotation_reads_the_rest_first() {
    for copied in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("t.jsonl"), directory.path().join("t.jsonl.1"));
        append(&path, &lines(&["a", "b", "c"]));
        let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
        let place = SourceOffset { generation: 4, ..taken[0].place.clone().unwrap() };
        if copied {
            fs::copy(&path, &old).unwrap();
            fs::write(&path, "").unwrap();
        } else {
            fs::rename(&path, &old).unwrap();
            // No new file was created yet.
            assert_eq!(texts(directory.path(), &place), ["b", "c"]);
        }
        append(&old, &turn("last"));
        append(&path, &lines(&["d"]));
        let (texts, last, dead) = rest(directory.path(), Some(&place));
        assert_eq!((texts, dead.len()), (["b", "c", "last", "d"].map(String::from).to_vec(), 0));
        let last = last.unwrap();
        assert_eq!((last.generation, last.line), (5, 1));
        // Resumes at the end of the old file, after its unfinished line.
        let turns = Turns::resume(source(directory.path()), Mode::Follow, Some(place));
        let old: Vec<_> = (0..3).map(|_| turns.take()).collect();
        assert!(old[0].position.ends_with("t.jsonl.1:2"), "{:?}", old[0].position);
        assert_eq!(turns.next(), ("d".to_owned(), format!("{}:1", path.display())));
        append(&path, &lines(&["e"]));
        assert_eq!(turns.text(), "e");
        assert_eq!(rest(directory.path(), old[2].place.as_ref()).0, ["d", "e"]);
        assert_eq!(rest(directory.path(), Some(&last)).0, ["e"]);
    }
}

/// Rotated more than once while no process was reading: by number, and by date.
#[test]
fn logs_that_came_and_went_meanwhile_are_read_in_between() {
    for names in [
        ["t.jsonl.3", "t.jsonl.2", "t.jsonl.1"],
        ["t.3.jsonl", "t.2.jsonl", "t.1.jsonl"],
        ["t_3.jsonl", "t_2.jsonl", "t_1.jsonl"],
        ["t.jsonl-20260101", "t.jsonl-20260102", "t.jsonl-20260103"],
        ["t.jsonl.20260101", "t.jsonl.20260102", "t.jsonl.20260103"],
        ["t.jsonl.2026-01-01-03", "t.jsonl.2026-01-01-04", "t.jsonl.2026-01-01-05"],
        ["t-20260101.jsonl", "t-20260102.jsonl", "t-20260103.jsonl"],
        ["t.2026-01-01.jsonl", "t.2026-01-02.jsonl", "t.2026-01-02.1.jsonl"],
        ["t-2026-01-01T03-04-05.000.jsonl", "t-2026-01-02T03-04-05.000.jsonl", "t-2026-01-03T03-04-05.000.jsonl"],
        ["t20260101.jsonl", "t20260102.jsonl", "t20260103.jsonl"],
        ["2026-01-01-t.jsonl", "2026-01-02-t.jsonl", "2026-01-03-t.jsonl"],
        ["t (3).jsonl", "t (2).jsonl", "t (1).jsonl"],
        ["t.jsonl.@4000000067759a00", "t.jsonl.@4000000067759a01", "t.jsonl.@4000000067759a02"],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        append(&at("t.jsonl"), &lines(&["a", "b"]));
        let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
        let place = taken[0].place.clone().unwrap();
        fs::rename(at("t.jsonl"), at(names[0])).unwrap();
        append(&at(names[1]), &lines(&["c", "d"]));
        append(&at(names[2]), &turn("e"));
        append(&at("t.jsonl.0"), &lines(&["of another time"]));
        for (name, seconds) in [("t.jsonl.0", 10), (names[0], 20), (names[1], 30), (names[2], 40)] {
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::OpenOptions::new().write(true).open(at(name)).unwrap().set_modified(time).unwrap();
        }
        // No new file was created yet.
        assert_eq!(texts(directory.path(), &place), ["b", "c", "d", "e"]);
        let early = Turns::resume(source(directory.path()), Mode::Follow, Some(place.clone()));
        assert_eq!([early.text(), early.text(), early.text()], ["b", "c", "d"]);
        drop(early);
        append(&at("t.jsonl"), &lines(&["f"]));
        let turns = Turns::resume(source(directory.path()), Mode::Follow, Some(place.clone()));
        let all: Vec<_> = (0..5).map(|_| turns.take()).collect();
        let told: Vec<_> =
            all.iter().map(|turn| (&*turn.record.text, turn.place.as_ref().unwrap().order().0)).collect();
        assert_eq!(told, [("b", 0), ("c", 1), ("d", 1), ("e", 2), ("f", 3)], "{names:?}");
        append(&at("t.jsonl"), &lines(&["g"]));
        assert_eq!(turns.text(), "g");
        // A restart resumes within each of them.
        assert_eq!(texts(directory.path(), all[1].place.as_ref().unwrap()), ["d", "e", "f", "g"]);
        assert_eq!(texts(directory.path(), all[3].place.as_ref().unwrap()), ["f", "g"]);
    }
}

#[test]
fn what_cannot_be_gone_on_with_is_read_from_its_beginning() {
    let long = "x".repeat(120);
    let many: Vec<&str> = vec![&long; 40];
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("truncated and written anew", |path| fs::write(path, lines(&["new"])).unwrap()),
        ("rewritten, longer", |path| fs::write(path, lines(&["new"; 400])).unwrap()),
        ("truncated to fewer lines", |path| {
            let first = lines(&["x"]).len() as u64 + 119;
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(first).unwrap();
        }),
        ("another in its place", |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, lines(&["new"; 400])).unwrap();
        }),
        ("no line ends there any more", |path| {
            let mut bytes = fs::read(path).unwrap();
            let end = bytes.len() - lines(&["x"]).len() - 119;
            bytes[end - 1] = b' ';
            fs::write(path, bytes).unwrap();
        }),
    ];
    for (what, change) in changes {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        fs::write(&path, lines(&many)).unwrap();
        let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
        let place = taken[38].place.clone().unwrap();
        assert_eq!(texts(directory.path(), &place).len(), 1, "{what}");
        change(&path);
        let (texts, last, _) = rest(directory.path(), Some(&place));
        let (whole, _, _) = rest(directory.path(), None);
        assert_eq!(texts, whole, "{what}");
        assert_eq!(last.unwrap().generation, 1, "{what}");
        let turns = Turns::resume(source(directory.path()), Mode::Follow, Some(place));
        assert_eq!(turns.take().place.unwrap().generation, 1, "{what}");
    }
}

#[test]
fn a_restored_copy_is_the_same_log_and_one_that_comes_later_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    fs::write(&path, lines(&["a", "b"])).unwrap();
    let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
    let backup = tempfile::tempdir().unwrap();
    fs::copy(&path, backup.path().join("copy")).unwrap();
    fs::remove_file(&path).unwrap();
    let turns = Turns::resume(source(directory.path()), Mode::Follow, taken[0].place.clone());
    fs::copy(backup.path().join("copy"), &path).unwrap();
    let next = turns.take();
    assert_eq!((&*next.record.text, next.place.unwrap().generation), ("b", 0));
    drop(turns);

    // Only half of the file exists when it is searched for.
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..20]).unwrap();
    let turns = Turns::resume(source(directory.path()), Mode::Follow, taken[0].place.clone());
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&whole[20..]).unwrap();
    let next = turns.take();
    assert_eq!((&*next.record.text, next.place.unwrap().generation), ("b", 0));
}

#[test]
fn an_unfinished_line_that_was_taken_is_looked_at_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    fs::write(&path, lines(&["a"]) + &turn("b")).unwrap();
    let (texts, place, _) = rest(directory.path(), None);
    assert_eq!(texts, ["a", "b"]);
    let taken = fs::read(&path).unwrap();
    for (added, expected) in [("", &[][..]), ("\n", &[]), ("\r\n", &[]), ("\n{}", &["c"]), (" {}", &[])] {
        fs::write(&path, &taken).unwrap();
        append(&path, &added.replace("{}", &turn("c")));
        let (texts, last, dead) = rest(directory.path(), place.as_ref());
        assert_eq!(texts, expected, "{added:?}");
        assert_eq!(last.map(|place| place.line), (!expected.is_empty()).then_some(3));
        // The line has become a different one, which is not a turn; it is reported as a whole.
        assert_eq!(dead.len(), usize::from(added == " {}"), "{dead:?}");
        assert!(dead.iter().all(|dead| dead.contains("t.jsonl:2: not a turn record: trailing")), "{dead:?}");
    }
}

#[test]
fn places_that_are_none_are_read_from_the_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    fs::write(&path, lines(&["a", "b"])).unwrap();
    let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
    let good = taken[0].place.clone().unwrap();
    assert_eq!(texts(directory.path(), &good), ["b"]);
    let with = |change: fn(&mut SourceOffset)| {
        let mut place = good.clone();
        change(&mut place);
        place
    };
    for place in [
        with(|place| place.log = "".into()),
        with(|place| place.log = "no JSON".into()),
        with(|place| place.log = "[".repeat(1 << 20).into()),
        with(|place| place.log = "{\"path\": 1}".into()),
        with(|place| place.log = place.log.replace("\"head\":\"", "\"head\":\"0").into()),
        with(|place| place.end = u64::MAX),
        with(|place| place.end = 0),
        with(|place| place.end -= 1),
        with(|place| place.line = u64::MAX),
        with(|place| (place.end, place.generation) = (3, u64::MAX)),
    ] {
        let (texts, last, _) = rest(directory.path(), Some(&place));
        assert_eq!((texts.len(), texts[0].as_str()), (2, "a"), "{place:?}");
        assert_eq!(last.unwrap().generation, place.generation.saturating_add(1));
    }
}

/// The texts, and the generation of the last.
fn next_of(turns: &Turns, count: usize) -> (Vec<String>, u64) {
    let taken: Vec<_> = (0..count).map(|_| turns.take()).collect();
    let generation = taken[count - 1].place.as_ref().unwrap().generation;
    (taken.iter().map(|turn| turn.record.text.to_string()).collect(), generation)
}

/// Waits long enough for a check of the file.
fn look() {
    std::thread::sleep(2 * POLL);
}

#[test]
fn a_log_that_is_replaced_by_a_longer_one_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let (path, new) = (directory.path().join("t.jsonl"), directory.path().join(".t.jsonl.Xy12"));
    append(&path, &lines(&["a", "b"]));
    append(&path, &turn("c")[..20]);
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    assert_eq!(next_of(&turns, 2), (vec!["a".into(), "b".into()], 0));
    look();
    append(&new, &lines(&["a", "b", "c", "d"]));
    fs::rename(&new, &path).unwrap();
    assert_eq!(turns.next(), ("c".to_owned(), format!("{}:3", path.display())));
    assert_eq!(next_of(&turns, 1), (vec!["d".into()], 0));
    append(&path, &lines(&["e"]));
    assert_eq!(turns.next(), ("e".to_owned(), format!("{}:5", path.display())));
    // Deleted, and copied back slowly.
    fs::remove_file(&path).unwrap();
    look();
    append(&path, &lines(&["a", "b"]));
    look();
    append(&path, &lines(&["c", "d", "e", "f"]));
    assert_eq!(turns.next(), ("f".to_owned(), format!("{}:6", path.display())));
    // A different log in its place.
    append(&new, &lines(&["a", "other", "c", "d", "e", "f", "g"]));
    fs::rename(&new, &path).unwrap();
    assert_eq!(next_of(&turns, 2), (vec!["a".into(), "other".into()], 1));
    assert_eq!(turns.dead(), [""; 0]);
}

#[test]
fn a_log_that_is_rewritten_in_place_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    append(&path, &lines(&["a", "b"]));
    append(&path, &turn("c")[..20]);
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    assert_eq!(next_of(&turns, 2), (vec!["a".into(), "b".into()], 0));
    look();
    fs::write(&path, "").unwrap();
    look();
    append(&path, &lines(&["a"]));
    look();
    append(&path, &lines(&["b", "c", "d"]));
    assert_eq!(turns.next(), ("c".to_owned(), format!("{}:3", path.display())));
    assert_eq!(next_of(&turns, 1), (vec!["d".into()], 0));
    // Only an unfinished line is removed.
    let length = fs::metadata(&path).unwrap().len();
    append(&path, &turn("wrong")[..20]);
    look();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
    look();
    append(&path, &lines(&["e"]));
    assert_eq!(turns.next(), ("e".to_owned(), format!("{}:5", path.display())));
    assert_eq!(turns.dead(), [""; 0]);
    // Different lines, of which the first is the same, and which are longer in total.
    fs::write(&path, "").unwrap();
    look();
    append(&path, &lines(&["a", "x", "c", "d", "e", "f"]));
    assert_eq!(next_of(&turns, 2), (vec!["a".into(), "x".into()], 1));
}

#[test]
fn a_new_log_that_begins_like_the_one_before_is_read_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("t.jsonl"), directory.path().join("t.jsonl.1"));
    append(&path, &lines(&["ping"]));
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    assert_eq!(turns.text(), "ping");
    fs::rename(&path, &old).unwrap();
    append(&path, &lines(&["ping", "a"]));
    assert_eq!(next_of(&turns, 2), (vec!["ping".into(), "a".into()], 1));
    // Copied and truncated.
    fs::copy(&path, &old).unwrap();
    fs::write(&path, lines(&["ping"])).unwrap();
    assert_eq!(next_of(&turns, 1), (vec!["ping".into()], 2));
    append(&path, &lines(&["b"]));
    assert_eq!(turns.text(), "b");
    // Truncated without a copy: nothing more arrives.
    fs::write(&path, lines(&["ping"])).unwrap();
    assert_eq!(next_of(&turns, 1), (vec!["ping".into()], 3));
    assert_eq!(turns.dead(), [""; 0]);
}

/// The log is copied and truncated while the source is held back.
#[test]
fn unread_lines_of_a_log_that_was_copied_and_truncated_are_read_in_the_copy() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("t.jsonl"), directory.path().join("t.jsonl.1"));
    let mut all: Vec<String> = (0..5000).map(|number| format!("number {number}")).collect();
    append(&path, &lines(&all.iter().map(String::as_str).collect::<Vec<_>>()));
    let (sender, turns) = crossbeam_channel::bounded(1);
    let (handle, stop) = turnflow_engine::connector::Stop::new();
    let dead = turnflow_engine::dead_letter::DeadLetters::counted();
    let output = TurnOutput::new(sender, std::sync::Arc::new(|| {}), dead.clone(), "turns".into(), stop);
    let source = Box::new(source(directory.path()));
    let thread = std::thread::spawn(move || source.run(Mode::Follow, output));
    let text = || turns.recv_timeout(crate::testing::PATIENCE).unwrap().turn.record.text.to_string();
    let mut taken = vec![text(), text()];
    fs::copy(&path, &old).unwrap();
    fs::write(&path, "").unwrap();
    append(&path, &lines(&["of the new log"]));
    all.push("of the new log".to_owned());
    taken.extend((taken.len()..all.len()).map(|_| text()));
    assert_eq!(taken, all);
    drop(handle);
    assert!(thread.join().unwrap().is_err());
}

/// The state that a process leaves if it is killed before its first checkpoint.
#[test]
fn the_noted_beginning_finds_a_log_that_was_copied_and_truncated() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("t.jsonl"), directory.path().join("t.jsonl.1"));
    append(&path, &lines(&["a", "b"]));
    let place = place::Log::open(&path, 200).unwrap().last_place(0).unwrap();
    assert_eq!(texts(directory.path(), &place), ["a", "b"]);
    fs::copy(&path, &old).unwrap();
    fs::write(&path, lines(&["c"])).unwrap();
    assert_eq!(texts(directory.path(), &place), ["a", "b", "c"]);
    fs::remove_file(&old).unwrap();
    assert_eq!(texts(directory.path(), &place), ["c"]);
    // An earlier version recorded nothing but the file.
    let metadata = fs::metadata(&path).unwrap();
    let log = crate::known_file::FileMark::new("x", &metadata, &[], 0).to_log();
    assert_eq!(texts(directory.path(), &SourceOffset { log, ..SourceOffset::default() }), ["c"]);
}
