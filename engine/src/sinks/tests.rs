//! Tests of sink positions, and of delivery to sinks that are slow, fail, refuse and panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::*;
use crate::component::ComponentError;
use crate::connector::{
    Delivery, KeptAnswers, NoAnswers, Recovered, RecoveredAnswers, Search, SourceOffset, Stopped, Syncing,
};
use crate::dead_letter::DeadLetter;
use crate::durable::{Durable, OffsetTracker, SinkPositions};

/// A sink that counts answers.
struct Counting(u64);

struct Found(usize);

impl RecoveredAnswers for Found {
    fn count(&self) -> usize {
        self.0
    }
    fn found(&mut self, _: &str) -> Option<Arc<str>> {
        None
    }
    fn record(&mut self, _: &str) -> Option<AnswerRecord> {
        None
    }
}

impl AnswerSink for Counting {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        self.0 += delivery.answers().len() as u64;
        async { Ok(()) }.boxed()
    }
    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        Some(self)
    }
}

impl KeptAnswers for Counting {
    fn mark(&self) -> SinkPosition {
        SinkPosition { log: "l".into(), length: self.0, content: None }
    }
    fn syncing(&mut self) -> Syncing {
        Box::new(|| Ok(()))
    }
    fn recover(&mut self, Search { since, .. }: Search<'_>) -> Result<Recovered, ConnectorError> {
        let before = since.map_or(0, |since| since.length);
        Ok(Recovered { is_there: true, answers: Box::new(Found((self.0 - before) as usize)) })
    }
}

fn record(turn: u32) -> AnswerRecord {
    let record = format!(
        r#"{{"conversation_id": "c", "turn": {turn}, "revision": 0, "key": "{turn}", "status": "failed", "query": "",
        "answer": "", "hits": [], "latency_ms": 0, "stamp": {{"pipeline": "", "epoch": 1, "models": {{}}}}}}"#
    );
    serde_json::from_str(&record).unwrap()
}

struct World {
    runtime: tokio::runtime::Runtime,
    dead: DeadLetters,
    directory: tempfile::TempDir,
    rooms: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let dead = DeadLetters::open(&directory.path().join("dead.jsonl")).unwrap();
        Self { runtime, dead, directory, rooms: Arc::default() }
    }

    fn handle(&self, sink: impl AnswerSink + 'static) -> SinkHandle {
        let rooms = self.rooms.clone();
        let context = SinkContext {
            runtime: self.runtime.handle().clone(),
            dead: self.dead.clone(),
            has_room: Box::new(move || {
                rooms.fetch_add(1, Ordering::AcqRel);
            }),
        };
        SinkHandle::new("out".into(), Box::new(sink), None, context).unwrap()
    }

    fn letters(&self) -> Vec<DeadLetter> {
        let text = std::fs::read_to_string(self.directory.path().join("dead.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Delivers an answer and waits for the acknowledgement.
fn write(sink: &SinkHandle, record: &AnswerRecord) {
    let done = Acknowledged::new(|| ());
    sink.deliver(vec![record.clone()], &done);
    wait_until(|| sink.status().pending == 0);
}

/// Waits for a condition; the limit allows for slow machines.
fn wait_until(holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "the condition never held");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_looked_for_after_a_crash_begins_at_the_oldest_that_is_held() {
    let world = World::new();
    let sink = world.handle(Counting(0));
    let (one, two): (Arc<str>, Arc<str>) = ("1".into(), "2".into());
    let since = || sink.since().unwrap().length;
    let record = record(1);
    sink.hold(&one);
    write(&sink, &record);
    sink.hold(&two);
    sink.hold(&one);
    write(&sink, &record);
    assert_eq!((since(), sink.mark().unwrap().length), (0, 2));
    sink.release("1");
    assert_eq!(since(), 1);
    sink.release("2");
    assert_eq!(since(), 2);
    // During a replay, from the position of the recovery.
    let mark = SinkPosition { log: "l".into(), length: 1, content: None };
    sink.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    write(&sink, &record);
    assert_eq!((since(), sink.mark().unwrap().length), (1, 3));
    assert!(sink.is_replaying());
    sink.replayed();
    assert!(!sink.is_replaying());
    assert_eq!(since(), 3);
    sink.recover(Search::default()).unwrap();
    assert_eq!(sink.since(), None);
    let mark = sink.mark();
    sink.recover(Search { since: mark.as_ref(), ..Search::default() }).unwrap();
    assert_eq!(sink.since(), mark);
    assert_eq!(NoAnswers.count(), 0);
}

/// How a receiver reacts to the next answer.
#[derive(Clone, Copy)]
enum Does {
    Takes,
    Fails,
    Refuses,
    Panics,
}

/// A sink with scripted reactions; it keeps the answers it accepts.
#[derive(Clone, Default)]
struct Moody {
    does: Arc<Mutex<Vec<(u32, Does)>>>,
    took: Arc<Mutex<Vec<u32>>>,
    hangs: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

impl AnswerSink for Moody {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            self.calls.fetch_add(1, Ordering::AcqRel);
            while self.hangs.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for answer in delivery.answers() {
                let does = {
                    let mut does = self.does.lock();
                    let at = does.iter().position(|(turn, _)| *turn == answer.turn);
                    match at {
                        None => Does::Takes,
                        Some(at) if matches!(does[at].1, Does::Refuses) => Does::Refuses,
                        Some(at) => does.remove(at).1,
                    }
                };
                match does {
                    Does::Takes => {
                        self.took.lock().push(answer.turn);
                        delivery.took(1);
                    }
                    Does::Fails => {
                        let source = std::io::Error::other("no room");
                        return Err(ConnectorError::Io { action: "write", path: "there".into(), source });
                    }
                    Does::Refuses => return Err(ConnectorError::Refused { reason: "too long".into() }),
                    Does::Panics => panic!("on turn {}", answer.turn),
                }
            }
            Ok(())
        }
        .boxed()
    }
}

#[test]
fn each_answer_is_taken_once_in_order_whatever_the_receiver_does() {
    let world = World::new();
    let moody = Moody::default();
    moody.does.lock().extend([(2, Does::Fails), (4, Does::Panics), (6, Does::Refuses)]);
    moody.does.lock().extend([(8, Does::Panics); 10]);
    let sink = world.handle(moody.clone());
    let woken = Arc::new(AtomicUsize::new(0));
    let done = Acknowledged::new({
        let woken = woken.clone();
        move || {
            woken.fetch_add(1, Ordering::AcqRel);
        }
    });
    for turn in 1..=9 {
        sink.deliver(vec![record(turn)], &done);
    }
    sink.deliver(vec![record(10), record(11)], &done);
    let counted = AtomicUsize::new(0);
    wait_until(|| counted.fetch_add(done.take().len(), Ordering::AcqRel) == 10);
    assert_eq!(*moody.took.lock(), [1, 2, 3, 4, 5, 7, 9, 10, 11]);
    let letters = world.letters();
    let told: Vec<_> = letters.iter().map(|letter| (&*letter.source, &*letter.position, &*letter.reason)).collect();
    assert_eq!(
        told,
        [
            ("out", "c, turn 6, revision 0", "the sink refuses it: too long"),
            ("out", "c, turn 8, revision 0", "the sink refuses it: panicked: on turn 8"),
        ]
    );
    assert_eq!(letters[0].record, serde_json::to_string(&record(6)).unwrap());
    assert!(woken.load(Ordering::Acquire) > 0);
    assert_eq!(
        sink.status(),
        SinkStatus { id: "out".into(), pending: 0, delivered: 9, refused: 2, fault: None, is_unread: false }
    );
}

/// Takes answers with even numbers out of order, and refuses those above ten; the others fail while `fails` is set.
#[derive(Clone, Default)]
struct Choosy {
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    took: Arc<Mutex<Vec<u32>>>,
}

impl AnswerSink for Choosy {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let mut fails = false;
            for (number, answer) in delivery.answers().iter().enumerate().rev() {
                match answer.turn {
                    turn if turn % 2 == 1 && self.fails.load(Ordering::Acquire) => fails = true,
                    turn if turn > 10 => delivery.refused(number, "too many"),
                    turn => {
                        self.took.lock().push(turn);
                        delivery.accepted(number);
                        // Once more is not twice.
                        delivery.accepted(number);
                    }
                }
            }
            assert!(!self.panics.swap(false, Ordering::AcqRel), "after the answers");
            let failed = std::io::Error::other("no room");
            if fails { Err(ComponentError::transient(failed).into()) } else { Ok(()) }
        }
        .boxed()
    }
}

#[test]
fn answers_that_end_out_of_order_do_not_wait_for_one_that_fails() {
    let world = World::new();
    let choosy = Choosy::default();
    choosy.fails.store(true, Ordering::Release);
    choosy.panics.store(true, Ordering::Release);
    let sink = world.handle(choosy.clone());
    let done = Acknowledged::new(|| ());
    let tickets: Vec<_> = (1..=6).map(|turn| sink.deliver(vec![record(turn)], &done)).collect();
    sink.deliver(vec![record(12), record(14)], &done);
    let heard = Mutex::new(Vec::new());
    let hear = |count: usize| {
        wait_until(|| {
            heard.lock().extend(done.take());
            heard.lock().len() == count
        });
        let mut heard = heard.lock().clone();
        heard.sort_unstable();
        heard
    };
    assert_eq!(hear(4), [tickets[1], tickets[3], tickets[5], 6]);
    wait_until(|| sink.status().fault.is_some());
    assert_eq!((sink.status().pending, sink.status().delivered, sink.status().refused), (3, 3, 2));
    choosy.fails.store(false, Ordering::Release);
    assert_eq!(hear(7).len(), 7);
    wait_until(|| sink.status().fault.is_none());
    assert_eq!((sink.status().pending, sink.status().delivered), (0, 6));
    let mut took = choosy.took.lock().clone();
    took.sort_unstable();
    assert_eq!(took, [1, 2, 3, 4, 5, 6]);
    assert_eq!(world.letters().len(), 2);
}

#[test]
fn new_answers_do_not_wait_for_the_pause_after_one_that_fails() {
    let world = World::new();
    let choosy = Choosy::default();
    choosy.fails.store(true, Ordering::Release);
    let sink = world.handle(choosy.clone());
    let done = Acknowledged::new(|| ());
    sink.deliver(vec![record(1)], &done);
    let turns = [2, 4, 6, 8, 10].repeat(12);
    let times = turns.iter().map(|turn| {
        let begun = std::time::Instant::now();
        let ticket = sink.deliver(vec![record(*turn)], &done);
        wait_until(|| done.take() == [ticket]);
        begun.elapsed()
    });
    let times: Vec<Duration> = times.collect();
    // With a pause after each, all of them would take a second; however slow a machine is, some are faster.
    assert!(times.iter().any(|time| *time < Duration::from_millis(700)), "{times:?}");
    assert_eq!(*choosy.took.lock(), turns);
}

#[test]
fn a_receiver_that_hangs_is_behind_and_does_not_hold_up_the_end() {
    let world = World::new();
    let moody = Moody::default();
    moody.hangs.store(true, Ordering::Release);
    let sink = world.handle(moody.clone());
    let done = Acknowledged::new(|| ());
    assert!(!sink.is_behind(1));
    for turn in 1..=3 {
        sink.deliver(vec![record(turn)], &done);
    }
    assert!(sink.is_behind(3) && !sink.is_behind(4));
    // A checkpoint does not wait for the sink.
    sink.sync().unwrap();
    moody.hangs.store(false, Ordering::Release);
    wait_until(|| !sink.is_behind(1));
    assert!(world.rooms.load(Ordering::Acquire) > 0);
    moody.hangs.store(true, Ordering::Release);
    let calls = moody.calls.load(Ordering::Acquire);
    sink.deliver(vec![record(4)], &done);
    wait_until(|| moody.calls.load(Ordering::Acquire) > calls);
    sink.close();
    assert_eq!((done.take().len(), moody.took.lock().len()), (3, 3));
    assert_eq!(sink.status().pending, 1);
}

#[test]
fn a_fault_is_told_until_the_receiver_is_well() {
    let world = World::new();
    let moody = Moody::default();
    moody.does.lock().push((1, Does::Fails));
    let sink = world.handle(moody);
    let done = Acknowledged::new(|| ());
    sink.deliver(vec![record(1)], &done);
    wait_until(|| sink.status().fault.is_some());
    assert_eq!(sink.status().fault.unwrap(), "cannot write `there`: no room");
    wait_until(|| sink.status().pending == 0);
    assert_eq!(sink.status().fault, None);
}

/// Acknowledges by `Ok` alone, as a sink does that sends a batch as one request.
#[derive(Clone, Default)]
struct Whole {
    took: Arc<Mutex<Vec<u32>>>,
    calls: Arc<AtomicUsize>,
}

impl AnswerSink for Whole {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let calls = self.calls.fetch_add(1, Ordering::AcqRel);
            let turns: Vec<u32> = delivery.answers().iter().map(|answer| answer.turn).collect();
            assert!(!turns.contains(&7), "on turn 7");
            if calls == 0 {
                // Not the engine: the sink's own client has stopped.
                return Err(Stopped.into());
            }
            if turns.contains(&20) {
                return Err(ConnectorError::Refused { reason: "one is too long".into() });
            }
            self.took.lock().extend(turns);
            Ok(())
        }
        .boxed()
    }
}

#[test]
fn of_a_batch_only_the_answer_that_cannot_be_delivered_is_given_up() {
    let world = World::new();
    let whole = Whole::default();
    let sink = world.handle(whole.clone());
    let done = Acknowledged::new(|| ());
    for turn in 1..=30 {
        sink.deliver(vec![record(turn)], &done);
    }
    wait_until(|| sink.status().pending == 0);
    let expected: Vec<u32> = (1..=30).filter(|turn| ![7, 20].contains(turn)).collect();
    assert_eq!(*whole.took.lock(), expected);
    let positions: Vec<String> = world.letters().into_iter().map(|letter| letter.position).collect();
    assert_eq!(positions, ["c, turn 7, revision 0", "c, turn 20, revision 0"]);
    assert!(whole.calls.load(Ordering::Acquire) < 100, "answers are not delivered again and again");
}

/// A file whose disk may be full; an earlier process wrote `before` to it.
#[derive(Clone, Default)]
struct Filed {
    before: Arc<Mutex<Vec<AnswerRecord>>>,
    wrote: Arc<Mutex<Vec<AnswerRecord>>>,
    is_full: Arc<AtomicBool>,
}

impl RecoveredAnswers for Filed {
    fn count(&self) -> usize {
        self.before.lock().len()
    }
    fn found(&mut self, key: &str) -> Option<Arc<str>> {
        Some(self.record(key)?.answer)
    }
    fn record(&mut self, key: &str) -> Option<AnswerRecord> {
        let of =
            |record: &AnswerRecord| AnswerRecord::delivery_key(&record.key, record.revision.into(), record.retracted);
        self.before.lock().iter().find(|record| of(record) == key).cloned()
    }
}

impl AnswerSink for Filed {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            if self.is_full.load(Ordering::Acquire) {
                let source = std::io::Error::other("no space left");
                return Err(ConnectorError::Io { action: "write", path: "there".into(), source });
            }
            self.wrote.lock().extend(delivery.answers().iter().cloned());
            Ok(())
        }
        .boxed()
    }
    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        Some(self)
    }
}

impl KeptAnswers for Filed {
    fn mark(&self) -> SinkPosition {
        let length = self.before.lock().len() + self.wrote.lock().len();
        SinkPosition { log: "this".into(), length: length as u64, content: None }
    }
    fn syncing(&mut self) -> Syncing {
        Box::new(|| Ok(()))
    }
    fn recover(&mut self, _: Search<'_>) -> Result<Recovered, ConnectorError> {
        Ok(Recovered { is_there: true, answers: Box::new(self.clone()) })
    }
}

/// Its turn was replaced or deleted. When the turn is read again after a kill, the answer is there, and no revision is owed.
#[test]
fn an_answer_that_was_taken_back_for_good_does_not_come_again() {
    let world = World::new();
    let file = Filed::default();
    let withdrawn = AnswerRecord { retracted: true, withdrawn: true, ..record(1) };
    file.before.lock().extend([record(1), withdrawn, record(2), AnswerRecord { retracted: true, ..record(2) }]);
    let sink = world.handle(file.clone());
    sink.recover(Search::default()).unwrap();
    assert_eq!(sink.found(&record(1).key), Some(record(1).answer));
    assert_eq!(sink.record(&record(1).key), Some(record(1)));
    assert!(!sink.is_repairing());
    // Of the other one, the process was killed before it wrote the revision.
    assert_eq!(sink.record(&record(2).key).unwrap().revision, 1);
    wait_until(|| !sink.is_repairing());
    assert_eq!(file.wrote.lock().iter().map(|record| record.turn).collect::<Vec<_>>(), [2]);
}

/// The process was killed between a retraction and the revision, and now the disk is full.
#[test]
fn no_checkpoint_is_written_while_a_sink_lacks_answers_of_an_earlier_process() {
    let world = World::new();
    let file = Filed::default();
    file.before.lock().extend([record(1), AnswerRecord { retracted: true, ..record(1) }]);
    file.is_full.store(true, Ordering::Release);
    let sink = Arc::new(world.handle(file.clone()));
    sink.recover(Search::default()).unwrap();
    let durable = Durable::open(Some(world.directory.path()), world.dead.clone()).unwrap();
    durable.add_sink(&sink);
    let tracker = Arc::new(OffsetTracker::new("turns".into()));
    durable.add_source(&tracker);
    tracker.resume(SourceOffset { end: 7, ..SourceOffset::default() }.into(), SinkPositions::new());
    let checkpoint = || durable.checkpoint("turns").unwrap();

    let restored = sink.newer(&record(1)).unwrap();
    assert_eq!((restored.revision, restored.retracted), (1, false));
    wait_until(|| sink.status().fault.is_some());
    durable.commit(1).unwrap();
    assert!(sink.is_repairing() && checkpoint().is_none() && file.wrote.lock().is_empty());
    // The beginning of another source depends on no answer.
    let offsets = SourceOffset { end: 3, ..SourceOffset::default() }.into();
    durable.begin(&"second".into(), offsets, 1).unwrap();
    assert_eq!(durable.checkpoint("second").unwrap().unwrap().offsets.get("").unwrap().end, 3);
    // A reload replaces the sink: it is kept until it has them.
    drop(sink);
    durable.commit(1).unwrap();
    assert!(checkpoint().is_none() && durable.sinks().len() == 1);
    file.is_full.store(false, Ordering::Release);
    wait_until(|| durable.sinks().iter().all(|sink| !sink.is_repairing()));
    durable.commit(1).unwrap();
    assert_eq!(checkpoint().unwrap().offsets.get("").unwrap().end, 7);
    assert_eq!(*file.wrote.lock(), [restored]);
    assert!(durable.sinks().is_empty());
}

/// A reload gave the sink another file while turns from before were in flight.
#[test]
fn a_checkpoint_has_no_position_in_a_file_that_the_sink_no_longer_writes() {
    let world = World::new();
    let sink = Arc::new(world.handle(Filed::default()));
    let durable = Durable::open(Some(world.directory.path()), world.dead.clone()).unwrap();
    durable.add_sink(&sink);
    let tracker = Arc::new(OffsetTracker::new("turns".into()));
    durable.add_source(&tracker);
    let before = SinkPositions::from([("out".into(), SinkPosition { log: "other".into(), length: 9, content: None })]);
    tracker.resume(SourceOffset { end: 7, ..SourceOffset::default() }.into(), before.clone());
    let open = tracker.begin(before);
    durable.commit(1).unwrap();
    let checkpoint = durable.checkpoint("turns").unwrap().unwrap();
    assert!(checkpoint.marks.is_empty(), "the new file is searched as a whole");
    assert_eq!(&*checkpoint.written["out"].log, "this");
    tracker.close(open);
}

/// Blocks its thread, as a write to a file system that does not answer.
struct Blocking(std::sync::mpsc::Receiver<()>);

impl AnswerSink for Blocking {
    fn deliver<'a>(&'a mut self, _: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        let _ = self.0.recv();
        async { Ok(()) }.boxed()
    }
}

#[test]
fn a_sink_that_blocks_does_not_hold_up_its_end() {
    let world = World::new();
    let (hold, held) = std::sync::mpsc::channel();
    // The receiver is not `Sync`, and only the sink's thread has it.
    let sink = world.handle(Blocking(held));
    let done = Acknowledged::new(|| ());
    sink.deliver(vec![record(1)], &done);
    wait_until(|| sink.status().pending == 1);
    sink.close();
    sink.sync().unwrap();
    assert!(done.take().is_empty());
    drop(hold);
}

/// A reload ends a source that has not read all that existed at the start, and builds it anew.
#[test]
fn answers_of_an_earlier_process_are_known_until_the_sources_have_read_on() {
    let world = World::new();
    let file = Filed::default();
    file.before.lock().push(record(1));
    let key = AnswerRecord::delivery_key(&record(1).key, 0, false);
    let sink = Arc::new(world.handle(file));
    sink.recover(Search::default()).unwrap();
    let durable = Durable::open(Some(world.directory.path()), world.dead.clone()).unwrap();
    durable.add_sink(&sink);
    let source = |name: &str| {
        let tracker = Arc::new(OffsetTracker::new(name.into()));
        durable.add_source(&tracker);
        tracker
    };
    let knows = || {
        durable.commit(1).unwrap();
        sink.found(&key).is_some()
    };
    let (old, other) = (source("turns"), source("other"));
    assert!(knows());
    drop(old);
    other.caught_up();
    assert!(knows(), "between the old source and the new one");
    let new = source("turns");
    assert!(knows());
    new.caught_up();
    // Another source was removed before it had read on.
    drop(source("gone"));
    assert!(knows());
    durable.keep_sources(|source| source != "gone");
    assert!(!knows() && !sink.is_replaying());
}
