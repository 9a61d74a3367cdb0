//! Rotation and packing in all the ways that readers of logs were reported to get wrong: each line is read once.

use super::*;

fn logs() -> Logs {
    Logs::new("glob: \"**/*.jsonl*\"")
}

/// vector #7990: a rotated log that is packed was read again.
#[test]
fn a_rotated_log_that_is_packed_is_not_read_again() {
    let mut logs = logs();
    logs.append("t.jsonl", &["a", "b"]);
    assert_eq!(logs.read(), ["a", "b"]);
    logs.append("t.jsonl", &["c"]);
    logs.moves("t.jsonl", "t.jsonl.1");
    logs.append("t.jsonl", &["d"]);
    logs.pack("t.jsonl.1", "t.jsonl.1.gz");
    assert_eq!(logs.read(), ["c", "d"]);
    logs.moves("t.jsonl.1.gz", "t.jsonl.2.gz");
    logs.moves("t.jsonl", "t.jsonl.1");
    assert_eq!(logs.read(), [""; 0]);
}

/// vector #13193: what identifies a packed file was counted in packed bytes, so short ones were not read.
#[test]
fn a_packed_file_of_one_short_line_is_read() {
    let mut logs = logs();
    fs::write(logs.path("a.jsonl.gz"), gzip(lines(&["a"]).as_bytes())).unwrap();
    fs::write(logs.path("b.jsonl.zst"), zstd::encode_all(lines(&["b"]).as_bytes(), 3).unwrap()).unwrap();
    fs::write(logs.path("c.jsonl.gz"), gzip(turn("c").as_bytes())).unwrap();
    assert_eq!(logs.read(), ["a", "b", "c"]);
    assert_eq!(logs.read(), [""; 0]);
}

/// vector #23619 and its like: of a packed file in several members, only the first was read.
#[test]
fn all_members_of_a_packed_file_are_read() {
    let mut logs = logs();
    let members = [gzip(lines(&["a"]).as_bytes()), gzip(lines(&["b"]).as_bytes())].concat();
    fs::write(logs.path("a.jsonl.gz"), &members).unwrap();
    let frames = [lines(&["c"]), lines(&["d"])].map(|part| zstd::encode_all(part.as_bytes(), 3).unwrap()).concat();
    fs::write(logs.path("b.jsonl.zst"), frames).unwrap();
    assert_eq!(logs.read(), ["a", "b", "c", "d"]);
    // A program may add another one.
    fs::write(logs.path("a.jsonl.gz"), [members, gzip(lines(&["e"]).as_bytes())].concat()).unwrap();
    assert_eq!(logs.read(), ["e"]);
}

/// vector #16891: a packed file that was being written was never finished.
#[test]
fn a_packed_file_that_is_still_written_is_read_on() {
    let mut logs = logs();
    let texts: Vec<String> = (0..3000).map(|number| format!("{number} {}", blake3::hash(&[number as u8]))).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let whole = gzip(lines(&texts).as_bytes());
    fs::write(logs.path("a.jsonl.gz"), &whole[..whole.len() / 2]).unwrap();
    let mut read = logs.read();
    assert!(!read.is_empty() && read.len() < texts.len(), "{}", read.len());
    assert!(logs.dead.iter().any(|dead| dead.contains("ends too soon")), "{:?}", logs.dead);
    fs::write(logs.path("a.jsonl.gz"), &whole).unwrap();
    read.extend(logs.read());
    // The line that was cut is read whole.
    read.dedup();
    assert_eq!(read, texts);
}

/// vector #15885: files that begin with the same header were taken for one.
#[test]
fn a_new_log_with_the_header_of_the_old_one_is_another() {
    let mut logs = logs();
    let header = lines(&["header"]);
    append(&logs.path("t.jsonl"), &format!("{header}{}", lines(&["a"])));
    assert_eq!(logs.read(), ["header", "a"]);
    logs.moves("t.jsonl", "t.jsonl.1");
    append(&logs.path("t.jsonl"), &header);
    assert_eq!(logs.read(), ["header"]);
    append(&logs.path("t.jsonl"), &lines(&["b"]));
    fs::remove_file(logs.path("t.jsonl.1")).unwrap();
    assert_eq!(logs.read(), ["b"]);
}

/// fluent-bit #11455 and #4895: what was stored of a log did not fit the file that had its inode then, so that was not read.
#[test]
fn a_log_that_is_written_anew_is_read_whatever_its_size() {
    let mut logs = logs();
    logs.append("t.jsonl", &["a", "b"]);
    assert_eq!(logs.read(), ["a", "b"]);
    for texts in [["c", "d"].as_slice(), &["e"], &["f", "g", "h", "i"]] {
        fs::write(logs.path("t.jsonl"), lines(texts)).unwrap();
        assert_eq!(logs.read(), texts);
    }
}

/// fluent-bit #5024 and #2110: logs that were rotated several times while nothing ran were lost, or read twice.
#[test]
fn logs_that_were_rotated_several_times_meanwhile_are_read_once() {
    let mut logs = logs();
    logs.append("0.jsonl", &["a"]);
    assert_eq!(logs.read(), ["a"]);
    logs.append("0.jsonl", &["b"]);
    logs.moves("0.jsonl", "0.jsonl.20260310-082034");
    logs.append("0.jsonl", &["c"]);
    logs.pack("0.jsonl.20260310-082034", "0.jsonl.20260310-082034.gz");
    logs.moves("0.jsonl", "0.jsonl.20260310-082646");
    logs.append("0.jsonl", &["d"]);
    assert_eq!(logs.sorted(), ["b", "c", "d"]);
    assert_eq!(logs.read(), [""; 0]);
}

/// fluent-bit #4895: the inode of a deleted log was used again by another one.
#[test]
fn another_file_with_the_inode_of_a_deleted_one_is_read() {
    let mut logs = logs();
    for round in 0..5 {
        let (name, text) = (format!("t{round}.jsonl"), format!("text {round}"));
        logs.append(&name, &[&text]);
        assert_eq!(logs.read(), [text]);
        fs::remove_file(logs.path(&name)).unwrap();
    }
}

/// beats #45300: with copies that are truncated, lines were lost after a restart.
#[test]
fn a_log_that_is_copied_and_truncated_is_read_once() {
    let mut logs = logs();
    let copy = |logs: &Logs, to: &str| {
        fs::create_dir_all(logs.path(to).parent().unwrap()).unwrap();
        fs::copy(logs.path("t.jsonl"), logs.path(to)).unwrap();
    };
    logs.append("t.jsonl", &["a"]);
    assert_eq!(logs.read(), ["a"]);
    // While nothing runs.
    logs.append("t.jsonl", &["b"]);
    copy(&logs, "t.jsonl.1");
    fs::write(logs.path("t.jsonl"), lines(&["c"])).unwrap();
    assert_eq!(logs.read(), ["b", "c"]);
    // It runs between the copy and the truncation.
    copy(&logs, "t.jsonl-20260305");
    assert_eq!(logs.read(), [""; 0]);
    fs::write(logs.path("t.jsonl"), "").unwrap();
    assert_eq!(logs.read(), [""; 0]);
    logs.append("t.jsonl", &["d", "e", "f"]);
    assert_eq!(logs.read(), ["d", "e", "f"]);
    // Packed in one step, and then truncated.
    logs.append("t.jsonl", &["g"]);
    copy(&logs, "t.jsonl.2");
    logs.pack("t.jsonl.2", "old/t.jsonl.2.gz");
    fs::write(logs.path("t.jsonl"), lines(&["h"])).unwrap();
    assert_eq!(logs.read(), ["g", "h"]);
    assert_eq!(logs.read(), [""; 0]);
}

/// beats #44749 and #36541: files of which little was read could not be told apart, so they were not read.
#[test]
fn files_of_a_few_bytes_are_known_again() {
    let mut logs = logs();
    for name in ["a.jsonl", "b.jsonl"] {
        logs.append(name, &["x"]);
    }
    assert_eq!(logs.read(), ["x", "x"]);
    logs.moves("a.jsonl", "a.jsonl.1");
    logs.moves("b.jsonl", "a.jsonl");
    logs.append("a.jsonl.1", &["of a"]);
    logs.append("a.jsonl", &["of b"]);
    assert_eq!(logs.sorted(), ["of a", "of b"]);
    // Restored from a backup: other inodes, the same names.
    for name in ["a.jsonl", "a.jsonl.1"] {
        let content = fs::read(logs.path(name)).unwrap();
        fs::write(logs.path("new"), content).unwrap();
        logs.moves("new", name);
    }
    assert_eq!(logs.read(), [""; 0]);
}

#[test]
fn names_of_all_kinds_of_rotation_are_known() {
    for (rotated, packed) in [
        ("t.jsonl.1", "t.jsonl.1.gz"),
        ("t.jsonl.old", "t.jsonl.old.gz"),
        ("t.jsonl-20260305", "t.jsonl-20260305.gz"),
        ("t-2026-03-05.jsonl", "t-2026-03-05.jsonl.gz"),
        ("t.1.jsonl", "t.1.jsonl.zst"),
        ("20260305-t.jsonl", "20260305-t.jsonl.gz"),
        ("archive/t.jsonl", "archive/t.jsonl.gz"),
        ("t.jsonl.2026-03-05T01.000", "archive/t.jsonl.2026-03-05T01.000.gz"),
    ] {
        let mut logs = logs();
        logs.append("t.jsonl", &["a"]);
        assert_eq!(logs.read(), ["a"], "{rotated}");
        logs.append("t.jsonl", &["b"]);
        logs.moves("t.jsonl", rotated);
        logs.pack(rotated, packed);
        logs.append("t.jsonl", &["c"]);
        assert_eq!(logs.sorted(), ["b", "c"], "{rotated}");
        assert_eq!(logs.read(), [""; 0], "{rotated}");
    }
}

/// A copy that stays beside its log, as of a backup, gives nothing, also when the log is gone.
#[test]
fn copies_that_stay_are_not_read() {
    let mut logs = logs();
    logs.append("t.jsonl", &["a", "b"]);
    assert_eq!(logs.read(), ["a", "b"]);
    fs::copy(logs.path("t.jsonl"), logs.path("t.jsonl.bak")).unwrap();
    assert_eq!(logs.read(), [""; 0]);
    logs.append("t.jsonl", &["c"]);
    assert_eq!(logs.read(), ["c"]);
    // The backup is made anew, with more.
    logs.append("t.jsonl", &["d"]);
    fs::copy(logs.path("t.jsonl"), logs.path("t.jsonl.bak")).unwrap();
    assert_eq!(logs.read(), ["d"]);
    logs.append("t.jsonl", &["e"]);
    assert_eq!(logs.read(), ["e"]);
    fs::remove_file(logs.path("t.jsonl")).unwrap();
    assert_eq!(logs.read(), [""; 0]);
    logs.append("t.jsonl", &["f"]);
    assert_eq!(logs.read(), ["f"]);
}

/// A copy may be written slowly, in parts that end anywhere: it is compared as it grows, and not read from where it ended
/// when its log was truncated or removed.
#[test]
fn a_copy_that_is_written_in_parts_is_not_read_again() {
    let texts: Vec<String> = (0..40).map(|number| format!("{number} {}", blake3::hash(&[number as u8]))).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let whole = lines(&texts);
    for (copy, bytes) in [
        ("t.jsonl.1", whole.clone().into_bytes()),
        ("t-20260306.jsonl", whole.clone().into_bytes()),
        ("t.jsonl.1.gz", gzip(whole.as_bytes())),
    ] {
        let mut logs = logs();
        logs.append("t.jsonl", &texts);
        assert_eq!(logs.read(), texts, "{copy}");
        for end in [bytes.len() / 3, bytes.len() * 2 / 3] {
            fs::write(logs.path(copy), &bytes[..end]).unwrap();
            assert_eq!(logs.read(), [""; 0], "{copy}");
        }
        // Its log is gone before the last part is there.
        fs::write(logs.path("t.jsonl"), "").unwrap();
        assert_eq!(logs.read(), [""; 0], "{copy}");
        fs::write(logs.path(copy), &bytes[..bytes.len() - 20]).unwrap();
        assert_eq!(logs.read(), [""; 0], "{copy}");
        fs::write(logs.path(copy), &bytes).unwrap();
        logs.append("t.jsonl", &["after"]);
        assert_eq!(logs.read(), ["after"], "{copy}");
        assert_eq!(logs.read(), [""; 0], "{copy}");
        assert!(logs.dead.is_empty(), "{:?}", logs.dead);
    }
    // What the copy has more than was read is read.
    let mut logs = logs();
    logs.append("t.jsonl", &["a", "b"]);
    assert_eq!(logs.read(), ["a", "b"]);
    let part = fs::read(logs.path("t.jsonl")).unwrap();
    fs::write(logs.path("t.jsonl.1"), &part[..part.len() - 9]).unwrap();
    assert_eq!(logs.read(), [""; 0]);
    logs.append("t.jsonl", &["c"]);
    fs::copy(logs.path("t.jsonl"), logs.path("t.jsonl.1")).unwrap();
    fs::write(logs.path("t.jsonl"), lines(&["d"])).unwrap();
    assert_eq!(logs.read(), ["c", "d"]);
}

/// A log that is copied and truncated, whose writer does not append.
#[test]
fn a_hole_that_a_writer_leaves_in_a_truncated_log_is_passed_over() {
    let mut logs = Logs::new("glob: \"**/*.jsonl*\", max_line_bytes: 1000");
    logs.append("t.jsonl", &["a", "b"]);
    assert_eq!(logs.read(), ["a", "b"]);
    fs::copy(logs.path("t.jsonl"), logs.path("t.jsonl.1")).unwrap();
    // The program goes on where it was.
    let hole = vec![0; 100_000];
    fs::write(logs.path("t.jsonl"), [&hole, lines(&["c"]).as_bytes()].concat()).unwrap();
    assert_eq!(logs.read(), ["c"]);
    logs.append("t.jsonl", &["d"]);
    assert_eq!(logs.read(), ["d"]);
    assert!(logs.dead.is_empty(), "{:?}", logs.dead);
}

/// The same while it runs: each part is there for longer than `quiet_s`.
#[test]
fn a_copy_that_pauses_while_it_is_written_is_not_read_again_while_it_is_followed() {
    let base = tempfile::tempdir().unwrap();
    let config: FilesConfig = from_str("(glob: \"*.jsonl*\", every_s: 0.02, quiet_s: 0.1)").unwrap();
    let files = config.source(base.path()).unwrap();
    let source = placed(&config.map_fields(), &base.path().join(".state"), Counts::default(), Box::new(files));
    let turns = Turns::run(source, Mode::Follow);
    let whole = lines(&["a", "b", "c"]);
    append(&base.path().join("t.jsonl"), &whole);
    assert_eq!([turns.text(), turns.text(), turns.text()], ["a", "b", "c"]);
    let packed = gzip(whole.as_bytes());
    let (copy, pack) = (base.path().join("t.jsonl.1"), base.path().join("t-20260306.jsonl.gz"));
    // The copy is also begun once more.
    for third in [1, 2, 0, 3] {
        fs::write(&copy, &whole.as_bytes()[..whole.len() * third / 3]).unwrap();
        fs::write(&pack, &packed[..packed.len() * third / 3]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(400));
    }
    fs::write(base.path().join("t.jsonl"), "").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    append(&base.path().join("t.jsonl"), &lines(&["d"]));
    assert_eq!(turns.text(), "d");
    assert_eq!(turns.dead(), [""; 0]);
    assert!(matches!(turns.end(true), Err(ConnectorError::Stopped(_))));
}
