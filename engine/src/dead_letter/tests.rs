use super::outbox::{WAITING, WAITING_BYTES};
use super::*;
use crate::append::tests::Disk;

fn lines(path: &Path) -> Vec<DeadLetter> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn records_are_kept_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.jsonl");
    let letters = DeadLetters::open(&path).unwrap();
    let long = "é".repeat(KEPT_BYTES);
    let records: [&[u8]; 5] = [b"plain \"text\"\n", b"\xff\x00binary\xc3", b"", &[0xfe; 5000], long.as_bytes()];
    for record in records {
        letters.write("turns", "t.jsonl:1", "bad", record);
    }
    let read = lines(&path);
    for (letter, record) in read.iter().zip(records) {
        assert_eq!(letter.bytes(), record[..record.len().min(KEPT_BYTES)]);
        assert_eq!(letter.record_hex.is_some(), std::str::from_utf8(record).is_err());
        assert_eq!(letter.truncated, record.len() > KEPT_BYTES);
    }
    // With an odd number of bytes before it, a character is split by the cut.
    let odd = DeadLetter::new("a", "b", "c", format!("x{long}").as_bytes());
    assert_eq!((odd.record.len(), odd.record_hex, odd.truncated), (KEPT_BYTES - 1, None, true));
    let plain = serde_json::to_string(&DeadLetter::new("a", "b", "c", b"d")).unwrap();
    assert_eq!(plain, r#"{"source":"a","position":"b","reason":"c","record":"d"}"#);
    assert_eq!((from_hex("0aF"), from_hex("zz"), from_hex("0aFf")), (None, None, Some(vec![10, 255])));
}

#[test]
fn a_restart_does_not_repeat_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.jsonl");
    let write = |records: &[&str]| {
        let letters = DeadLetters::open(&path).unwrap();
        for record in records {
            letters.write("turns", "t.jsonl:1", "bad", record.as_bytes());
        }
        assert_eq!(letters.count(), records.len() as u64);
        lines(&path).iter().map(|letter| letter.record.clone()).collect::<Vec<_>>()
    };
    assert_eq!(write(&["a", "b", "b"]), ["a", "b", "b"]);
    assert_eq!(write(&["b", "a", "b"]), ["a", "b", "b"]);
    // A letter is skipped only as often as it is in the file.
    assert_eq!(write(&["b", "b", "b", "c"]), ["a", "b", "b", "b", "c"]);
}

#[test]
fn what_does_not_fit_waits_and_leaves_no_fragment() {
    let mut outbox = Outbox::new(Disk::of(7));
    outbox.add(b"one".to_vec()).unwrap();
    for line in [&b"second"[..], b"third"] {
        assert_eq!(outbox.add(line.to_vec()).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert_eq!((outbox.lines.target.bytes.take(), outbox.waiting.len()), (b"one\n".to_vec(), 2));
    outbox.lines.target.room = 100;
    outbox.settle(Path::new("letters")).unwrap();
    outbox.add(b"last".to_vec()).unwrap();
    assert_eq!(outbox.lines.target.bytes.take(), b"second\nthird\nlast\n");
}

#[test]
fn what_waits_is_bounded() {
    let mut outbox = Outbox::new(Disk::of(0));
    for number in 0..WAITING + 10 {
        assert!(outbox.add(number.to_string().into_bytes()).is_err());
    }
    assert_eq!((outbox.waiting.len(), outbox.waiting[0].as_slice()), (WAITING, &b"10"[..]));
    for _ in 0..3 {
        assert!(outbox.add(vec![b'x'; WAITING_BYTES / 2]).is_err());
    }
    assert_eq!(outbox.waiting.len(), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn what_waits_goes_along_to_another_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.jsonl");
    let letters = DeadLetters::open(Path::new("/dev/full")).unwrap();
    letters.write("s", "p", "r", b"1");
    letters.write("s", "p", "r", b"2");
    assert!(letters.settle().is_err());
    letters.go_on(letters.toward(Some(&path)).unwrap());
    letters.write("s", "p", "r", b"3");
    let records: Vec<_> = lines(&path).into_iter().map(|letter| letter.record).collect();
    assert_eq!((records, letters.count()), (["1", "2", "3"].map(String::from).to_vec(), 3));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut told = Told::default();
    let hash = |number: usize| short(blake3::hash(&number.to_le_bytes()));
    (0..REMEMBERED + 10).for_each(|number| told.add(hash(number)));
    assert_eq!((told.order.len(), told.counts.len()), (REMEMBERED, REMEMBERED));
    assert!(!told.take(hash(9)) && told.take(hash(10)) && !told.take(hash(10)));
}

#[test]
fn a_torn_end_is_mended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.jsonl");
    let line = |record: &str| serde_json::to_string(&DeadLetter::new("s", "p", "r", record.as_bytes())).unwrap();
    let (first, second) = (line("first"), line("second"));
    for cut in [1, 9, 20, second.len() - 1] {
        std::fs::write(&path, format!("{first}\n{}", &second[..cut])).unwrap();
        DeadLetters::open(&path).unwrap().write("s", "p", "r", b"second");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{first}\n{second}\n"), "{cut}");
    }
    // Only the line break is missing, so the letter counts as written.
    std::fs::write(&path, format!("{first}\n{second}")).unwrap();
    let letters = DeadLetters::open(&path).unwrap();
    letters.write("s", "p", "r", b"second");
    letters.write("s", "p", "r", b"third");
    assert_eq!(lines(&path).len(), 3);
    // Text of another program is kept.
    std::fs::write(&path, "notes").unwrap();
    DeadLetters::open(&path).unwrap().write("s", "p", "r", b"first");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("notes\n{first}\n"));
}

#[test]
fn they_go_elsewhere_and_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first.jsonl"), directory.path().join("second.jsonl"));
    let letters = DeadLetters::open(&first).unwrap();
    let onward = letters.toward(Some(&first)).unwrap();
    assert!(matches!(onward, Onward::AsBefore));
    letters.go_on(onward);
    letters.write("s", "p", "r", b"1");
    letters.go_on(letters.toward(Some(&second)).unwrap());
    letters.write("s", "p", "r", b"2");
    letters.go_on(letters.toward(None).unwrap());
    letters.write("s", "p", "r", b"3");
    assert_eq!((lines(&first).len(), lines(&second).len(), letters.count()), (1, 1, 3));
    assert!(letters.toward(Some(directory.path())).is_err());
}
