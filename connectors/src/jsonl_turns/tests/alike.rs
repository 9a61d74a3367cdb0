//! Logs that begin like the log that was read, and logs that came after one that is lost.

use super::*;

/// A log of a day: the same questions first, more than what a mark of an earlier version compares, then its own.
fn day(own: &[&str]) -> String {
    let same: Vec<String> = (0..200).map(|number| format!("the same question {number:03} each day")).collect();
    lines(&same.iter().map(String::as_str).chain(own.iter().copied()).collect::<Vec<_>>())
}

/// The last offset of a run over a log.
fn end_of(base: &Path) -> SourceOffset {
    let (taken, _) = Turns::run(source(base), Mode::Once).all();
    taken.last().unwrap().place.clone().unwrap()
}

/// Those of these texts that a run reads after an offset, and the number of all.
fn own(base: &Path, place: &SourceOffset) -> (Vec<String>, usize) {
    let all = texts(base, place);
    let count = all.len();
    (all.into_iter().filter(|text| !text.starts_with("the same")).collect(), count)
}

#[test]
fn a_log_that_begins_like_the_one_that_was_read_is_another_log() {
    let monday = day(&["m1", "m2", "m3"]);
    let tuesdays: [(&str, String, &[&str], usize); 5] = [
        ("longer", day(&["t1", "t2", "t3", "t4"]), &["t1", "t2", "t3", "t4"], 204),
        ("as long", day(&["t1", "t2", "t3"]), &["t1", "t2", "t3"], 203),
        ("shorter", day(&["t1"]), &["t1"], 201),
        ("ends alike", day(&["t1", "m2", "m3"]), &["t1", "m2", "m3"], 203),
        ("an older copy goes on", day(&["m1", "t2", "t3", "t4"]), &["m1", "t2", "t3", "t4"], 204),
    ];
    for (what, tuesday, expected, all) in &tuesdays {
        for in_place in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("t.jsonl");
            fs::write(&path, &monday).unwrap();
            let place = end_of(directory.path());
            if !in_place {
                fs::rename(&path, directory.path().join("kept")).unwrap();
                fs::remove_file(directory.path().join("kept")).unwrap();
            }
            fs::write(&path, tuesday).unwrap();
            let read = own(directory.path(), &place);
            assert_eq!(read, (expected.iter().map(ToString::to_string).collect(), *all), "{what}, {in_place}");
        }
    }
    // The same log with more at its end is the same log, also as a copy.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    fs::write(&path, &monday).unwrap();
    let place = end_of(directory.path());
    fs::write(directory.path().join("copy"), monday + &lines(&["m4"])).unwrap();
    fs::rename(directory.path().join("copy"), &path).unwrap();
    assert_eq!(texts(directory.path(), &place), ["m4"]);
}

/// Why it exists: a rotated log that begins alike was taken for the one that was read, and its lines were passed over.
#[test]
fn a_rotated_log_that_begins_alike_is_read_wholly() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.jsonl"), day(&["m1", "m2"])).unwrap();
    // Clearly before what follows, however coarse the times of the file system are.
    let early = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::OpenOptions::new().write(true).open(at("t.jsonl")).unwrap().set_modified(early).unwrap();
    let place = end_of(directory.path());
    fs::remove_file(at("t.jsonl")).unwrap();
    fs::write(at("t.1.jsonl"), day(&["t1", "t2", "t3"])).unwrap();
    fs::write(at("t.jsonl"), lines(&["w1"])).unwrap();
    assert_eq!(own(directory.path(), &place).0, ["t1", "t2", "t3", "w1"]);
    let turns = Turns::resume(source(directory.path()), Mode::Follow, Some(place));
    let taken: Vec<_> = (0..204).map(|_| turns.take()).collect();
    let generations = [&taken[0], &taken[202], &taken[203]].map(|turn| turn.place.as_ref().unwrap().generation);
    assert_eq!(generations, [1, 1, 2]);
}

/// Why it exists: logs of several days that begin alike were taken for copies of each other.
#[test]
fn rotated_logs_that_begin_alike_are_all_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.jsonl"), day(&["m1", "m2"])).unwrap();
    let place = end_of(directory.path());
    append(&at("t.jsonl"), &lines(&["m3"]));
    fs::rename(at("t.jsonl"), at("t.jsonl.3")).unwrap();
    let times = |name: &str, seconds: u64| {
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::OpenOptions::new().write(true).open(at(name)).unwrap().set_modified(time).unwrap();
    };
    for (name, own, seconds) in [("t.jsonl.2", "t1", 20), ("t.jsonl.1", "w1", 30)] {
        fs::write(at(name), day(&[own])).unwrap();
        times(name, seconds);
    }
    // A copy is not read.
    fs::write(at("t.jsonl.copy1"), day(&["w1"])).unwrap();
    fs::write(at("t.jsonl"), day(&["th1"])).unwrap();
    times("t.jsonl.3", 10);
    times("t.jsonl.copy1", 40);
    assert_eq!(own(directory.path(), &place), (["m3", "t1", "w1", "th1"].map(String::from).to_vec(), 604));
}

/// Why it exists: of a log with only the questions of each day, every later log was taken for a copy, and never read.
#[test]
fn a_log_that_begins_with_all_of_another_one_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.jsonl"), lines(&["m1"])).unwrap();
    let place = end_of(directory.path());
    fs::rename(at("t.jsonl"), at("t.jsonl.4")).unwrap();
    for (name, text, seconds) in [
        ("t.jsonl.4", lines(&["m1"]), 10),
        ("t.jsonl.3", day(&[]), 20),
        ("t.jsonl.2", day(&["w1"]), 30),
        ("t.jsonl.1", day(&["w1", "th1"]), 40),
    ] {
        append(&at(name), if name == "t.jsonl.4" { "" } else { &text });
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::OpenOptions::new().write(true).open(at(name)).unwrap().set_modified(time).unwrap();
    }
    fs::write(at("t.jsonl"), day(&["f1"])).unwrap();
    // Lines that are there twice are the same records: they are answered once.
    assert_eq!(own(directory.path(), &place).0, ["w1", "w1", "th1", "f1"]);
}

/// What an earlier version has stored knows the beginning only.
#[test]
fn offsets_of_earlier_versions_are_understood() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    fs::write(&path, day(&["m1", "m2"])).unwrap();
    let (taken, _) = Turns::run(source(directory.path()), Mode::Once).all();
    let now = taken[200].place.clone().unwrap();
    let mut mark: serde_json::Value = serde_json::from_str(&now.log).unwrap();
    let fields = mark.as_object_mut().unwrap();
    assert!(fields.remove("body").is_some() && fields.remove("modified").is_some());
    let earlier = SourceOffset { log: mark.to_string().into(), ..now };
    assert_eq!(texts(directory.path(), &earlier), ["m2"]);
    append(&path, &lines(&["m3"]));
    assert_eq!(texts(directory.path(), &earlier), ["m2", "m3"]);
    // It cannot tell logs apart that begin alike.
    fs::write(&path, day(&["t1", "t2"])).unwrap();
    assert_eq!(texts(directory.path(), &earlier), ["t2"]);
}

#[test]
fn a_followed_log_that_is_rewritten_with_more_lines_is_read_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    fs::write(&path, lines(&["a", "b"])).unwrap();
    let turns = Turns::run(source(directory.path()), Mode::Follow);
    assert_eq!(next_of(&turns, 2), (vec!["a".into(), "b".into()], 0));
    look();
    fs::write(&path, lines(&["c", "d", "e"])).unwrap();
    assert_eq!(next_of(&turns, 3), (vec!["c".into(), "d".into(), "e".into()], 1));
    assert_eq!(turns.dead(), [""; 0]);
}

#[test]
fn the_log_of_another_source_is_no_rotated_log() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.jsonl"), lines(&["a"])).unwrap();
    let place = end_of(directory.path());
    fs::rename(at("t.jsonl"), at("t.1.jsonl")).unwrap();
    append(&at("t.1.jsonl"), &lines(&["b"]));
    fs::write(at("t.2.jsonl"), lines(&["of another source"])).unwrap();
    fs::write(at("t.2.jsonl-20260101"), lines(&["of the other source, rotated"])).unwrap();
    fs::write(at("t.jsonl"), lines(&["c"])).unwrap();
    let config = r#"(path: "t.2.jsonl")"#;
    let other = turnflow_engine::spec::from_str::<JsonLinesConfig>(config).unwrap().source(directory.path());
    assert_eq!(texts(directory.path(), &place), ["b", "c"]);
    drop(other);
    assert!(texts(directory.path(), &place).contains(&"of another source".to_owned()));
}

/// A log longer than what is hashed from its beginning is recognised by its last lines, too.
#[test]
fn a_long_log_is_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    let many: Vec<String> = (0..2000).map(|number| format!("question {number:05}")).collect();
    let of = |texts: &[String]| lines(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    fs::write(&path, of(&many)).unwrap();
    let place = end_of(directory.path());
    append(&path, &lines(&["more"]));
    assert_eq!(texts(directory.path(), &place), ["more"]);
    let mut other = many;
    other[1990] = "another at its end".to_owned();
    fs::write(&path, of(&other) + &lines(&["more"])).unwrap();
    assert_eq!(texts(directory.path(), &place).len(), 2001);
}
