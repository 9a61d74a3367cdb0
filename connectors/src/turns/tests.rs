use turnflow_engine::record::Speaker;

use super::*;
use crate::testing::Turns as Running;

impl Turns {
    /// Puts unvalidated records into the queue.
    pub(crate) fn put_raw(&self, records: &[Vec<u8>]) {
        let encoded = |json: &Vec<u8>| Encoded { caller: String::new(), json: json.clone() };
        let records: Vec<Encoded> = records.iter().map(encoded).collect();
        assert!(matches!(self.store.append(&records, self.bounds).unwrap(), Appended::Last(_)));
    }
}

fn record(text: &str) -> TurnRecord {
    TurnRecord {
        conversation_id: "c".into(),
        turn: 1,
        speaker: Speaker::User,
        text: text.into(),
        collection: None,
        timestamp: None,
        extra: serde_json::Map::new(),
    }
}

fn open(directory: &tempfile::TempDir, config: &TurnsConfig) -> Turns {
    config.open(Place::File(directory.path().join(FILE))).unwrap()
}

#[test]
fn turns_that_are_queued_before_and_while_it_runs_come_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory, &TurnsConfig::default());
    let queue = source.queue().unwrap();
    assert_eq!(queue.append(&[record("a"), record("b")]).unwrap(), 2);
    let running = Running::run(source, Mode::Follow);
    assert_eq!(running.next(), ("a".to_owned(), "turns.redb: 1".to_owned()));
    assert_eq!(running.next().0, "b");
    assert_eq!(queue.append(&[record("c")]).unwrap(), 3);
    assert_eq!(running.next(), ("c".to_owned(), "turns.redb: 3".to_owned()));
    assert_eq!(queue.waiting().unwrap(), 3, "nothing is acknowledged");
}

#[test]
fn a_full_queue_refuses_all_of_a_call() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory, &TurnsConfig { max_waiting: 3, max_mb: 1, ..TurnsConfig::default() });
    let queue = source.queue().unwrap();
    queue.append(&[record("a"), record("b")]).unwrap();
    let full = queue.append(&[record("c"), record("d")]);
    assert!(matches!(full, Err(QueueError::Full { waiting: 2 })), "{full:?}");
    assert_eq!(queue.waiting().unwrap(), 2);
    for never in [vec![record(&"long ".repeat(1 << 20))], vec![record("x"); 4]] {
        let never = queue.append(&never);
        assert!(matches!(never, Err(QueueError::Connector(ConnectorError::Refused { .. }))), "{never:?}");
    }
    assert_eq!(queue.append(&[record("c")]).unwrap(), 3, "a number is given to what is stored only");
}

fn of(caller: &str, text: &str) -> TurnRecord {
    let mut record = record(text);
    record.extra.insert("principal".to_owned(), serde_json::json!({ "name": caller }));
    record
}

/// Reason: one caller queued a hundred thousand turns, and another one waited for all of them.
#[test]
fn callers_take_turns_and_each_keeps_its_order() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory, &TurnsConfig::default());
    let queue = source.queue().unwrap();
    let many: Vec<TurnRecord> = (0..600).map(|at| of("a", &format!("a{at}"))).collect();
    queue.append(&many).unwrap();
    queue.append(&[of("b", "b0"), of("b", "b1")]).unwrap();
    queue.append(&[of("c", "c0"), record("0")]).unwrap();
    assert_eq!(queue.waiting().unwrap(), 604);
    let running = Running::run(source, Mode::Follow);
    let (texts, places): (Vec<String>, Vec<String>) = (0..604).map(|_| running.next()).unzip();
    let mut first = texts[..7].to_vec();
    first.sort_unstable();
    assert_eq!(first, ["0", "a0", "a1", "a2", "b0", "b1", "c0"], "{texts:?}");
    let own: Vec<&String> = texts.iter().filter(|text| text.starts_with('a')).collect();
    assert!(own.iter().enumerate().all(|(at, text)| **text == format!("a{at}")), "{own:?}");
    assert_eq!((&*places[0], &*places[603]), ("turns.redb: 1", "turns.redb: 604"));
}

#[test]
fn a_caller_with_too_many_waiting_turns_keeps_no_other_out() {
    let directory = tempfile::tempdir().unwrap();
    let config = TurnsConfig { max_waiting_each: 300, max_mb_each: 1, ..TurnsConfig::default() };
    let source = open(&directory, &config);
    let queue = source.queue().unwrap();
    let some = |caller: &str, count: usize| vec![of(caller, "x"); count];
    queue.append(&some("a", 299)).unwrap();
    assert!(matches!(queue.append(&some("a", 2)), Err(QueueError::Full { waiting: 299 })));
    queue.append(&some("a", 1)).unwrap();
    assert!(matches!(queue.append(&[of("a", "x"), of("b", "y")]), Err(QueueError::Full { waiting: 300 })));
    queue.append(&some("b", 300)).unwrap();
    let long = of("c", &"long ".repeat(1 << 18));
    for never in [some("c", 301), vec![long]] {
        assert!(matches!(queue.append(&never), Err(QueueError::Connector(ConnectorError::Refused { .. }))));
    }
    // Without a token, there is only one bound.
    queue.append(&vec![record("x"); 400]).unwrap();
    assert_eq!(queue.waiting().unwrap(), 1000);
}

/// The order of callers is kept by a restart: what was sent has the same numbers.
#[test]
fn a_restart_sends_the_same_turns_under_the_same_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory, &TurnsConfig::default());
    let mut many: Vec<TurnRecord> = (0..400).map(|at| of("a", &format!("a{at}"))).collect();
    many.extend((0..100).map(|at| of("b", &format!("b{at}"))));
    source.queue().unwrap().append(&many).unwrap();
    let running = Running::run(source, Mode::Once);
    let before: Vec<(String, SourceOffset)> = (0..500)
        .map(|_| {
            let sent = running.take();
            (sent.record.text.to_string(), sent.place.unwrap())
        })
        .collect();
    running.wait();
    let source = open(&directory, &TurnsConfig::default());
    let running = Running::resume(source, Mode::Once, Some(before[149].1.clone()));
    for (text, place) in &before[150..] {
        let sent = running.take();
        assert_eq!((&*sent.record.text, sent.place.as_ref().unwrap().end), (text.as_str(), place.end));
    }
    running.wait();
}

/// Reason: the queue is the only copy of a turn until its answer is written.
#[test]
fn a_turn_stays_until_a_checkpoint_covers_it_and_its_number_is_never_given_out_again() {
    let directory = tempfile::tempdir().unwrap();
    let queued = |texts: &[&str]| {
        let source = open(&directory, &TurnsConfig::default());
        let records: Vec<TurnRecord> = texts.iter().map(|text| record(text)).collect();
        source.queue().unwrap().append(&records).unwrap();
        source
    };
    let running = Running::run(queued(&["a", "b", "c"]), Mode::Once);
    let places: Vec<SourceOffset> = (0..3).map(|_| running.take().place.unwrap()).collect();
    running.wait();
    // A restart after a checkpoint that covers the first two.
    let source = queued(&["d"]);
    let queue = source.queue().unwrap();
    let running = Running::resume(source, Mode::Once, Some(places[1].clone()));
    assert_eq!(running.next(), ("c".to_owned(), "turns.redb: 3".to_owned()));
    assert_eq!(running.next().0, "d");
    running.wait();
    assert_eq!(queue.waiting().unwrap(), 2);
    drop(queue);
    // All are answered, and the file is reopened.
    let source = open(&directory, &TurnsConfig::default());
    let running = Running::resume(source, Mode::Once, Some(SourceOffset { end: 4, ..places[1].clone() }));
    running.wait();
    assert_eq!(open(&directory, &TurnsConfig::default()).queue().unwrap().append(&[record("e")]).unwrap(), 5);
}

/// Reason: a new queue is numbered from 1, and its turns must not be taken for those of the lost one.
#[test]
fn a_queue_that_was_lost_is_followed_by_another_generation() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory, &TurnsConfig::default());
    source.queue().unwrap().append(&[record("a")]).unwrap();
    let before = SourceOffset { log: "lost".into(), generation: 2, end: 70, line: 70, ..SourceOffset::default() };
    let running = Running::resume(source, Mode::Once, Some(before.clone()));
    let place = running.take().place.unwrap();
    assert_eq!((place.generation, place.end), (3, 1));
    assert!(place.order() > before.order());
}

#[test]
fn without_a_state_directory_the_queue_is_in_memory() {
    let place = || Place::Memory { run: u64::MAX, component: "turns".into() };
    let source = TurnsConfig::default().open(place()).unwrap();
    source.queue().unwrap().append(&[record("a")]).unwrap();
    let running = Running::run(source, Mode::Once);
    assert_eq!(running.next().0, "a");
    running.wait();
    assert_eq!(TurnsConfig::default().open(place()).unwrap().queue().unwrap().waiting().unwrap(), 0);
}
