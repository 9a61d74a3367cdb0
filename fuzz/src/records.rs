//! Lines of records: turns, answers, dead letters.

use turnflow_engine::dead_letter::{DeadLetter, DeadLetters, KEPT_BYTES};
use turnflow_engine::record::{AnswerRecord, TurnRecord};

/// A line of a conversation log; a valid turn stays valid when it is written and read again.
pub fn turn_record(data: &[u8]) {
    if let Ok(record) = TurnRecord::parse(data) {
        let line = serde_json::to_vec(&record).expect("a record has a JSON form");
        let again = TurnRecord::parse(&line).expect("what was written can be read");
        assert_eq!(
            (&again.conversation_id, &again.text, again.turn),
            (&record.conversation_id, &record.text, record.turn)
        );
    }
}

/// A line of answers or of dead letters, and any record as a dead letter.
pub fn answer_record(data: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<AnswerRecord>(data) {
        serde_json::to_vec(&record).expect("a record has a JSON form");
    }
    if let Ok(letter) = serde_json::from_slice::<DeadLetter>(data) {
        let _ = letter.bytes();
    }
    let letter = DeadLetter::new("source", "position", "reason", data);
    assert_eq!(letter.bytes(), data[..letter.bytes().len()]);
    assert!(letter.truncated || letter.bytes().len() == data.len());
    assert!(letter.bytes().len() > KEPT_BYTES - 4 || !letter.truncated);
    let line = serde_json::to_vec(&letter).expect("a letter has a JSON form");
    assert_eq!(serde_json::from_slice::<DeadLetter>(&line).expect("what was written can be read"), letter);

    // A file of letters with any content: a letter written to it can be read, and is there once.
    super::resume::with_directory(|directory| {
        let path = directory.join("dead-letters.jsonl");
        std::fs::write(&path, data).expect("a file in a directory of our own");
        for _ in 0..2 {
            let letters = DeadLetters::open(&path).expect("a regular file");
            letters.write("source", "position", "reason", data);
        }
        let text = std::fs::read(&path).expect("a regular file");
        assert!(text.ends_with(b"\n"));
        let same = text.split(|byte| *byte == b'\n').filter(|found| **found == line).count();
        let before = data.split(|byte| *byte == b'\n').filter(|found| **found == line).count();
        assert_eq!(same, before.max(1));
    });
}
