//! Tests of sink positions, and of delivery to sinks that are slow, fail, refuse and panic.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::*;
use crate::connector::{Delivery, KeptAnswers, NoAnswers, Recovered, RecoveredAnswers, Stopped, Syncing};
use crate::dead_letter::DeadLetter;

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
        SinkPosition { log: "l".into(), length: self.0 }
    }
    fn syncing(&mut self) -> Syncing {
        Box::new(|| Ok(()))
    }
    fn recover(&mut self, since: Option<&SinkPosition>, _: &[PathBuf]) -> Result<Recovered, ConnectorError> {
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
    sink.write(&record).unwrap();
    sink.hold(&two);
    sink.hold(&one);
    sink.write(&record).unwrap();
    assert_eq!((since(), sink.mark().unwrap().length), (0, 2));
    sink.release("1");
    assert_eq!(since(), 1);
    sink.release("2");
    assert_eq!(since(), 2);
    // During a replay, from the position of the recovery.
    let mark = SinkPosition { log: "l".into(), length: 1 };
    sink.recover(Some(&mark), &[]).unwrap();
    sink.write(&record).unwrap();
    assert_eq!((since(), sink.mark().unwrap().length), (1, 3));
    assert!(sink.is_replaying());
    sink.replayed();
    assert!(!sink.is_replaying());
    assert_eq!(since(), 3);
    sink.recover(None, &[]).unwrap();
    assert_eq!(sink.since(), None);
    let mark = sink.mark();
    sink.recover(mark.as_ref(), &[]).unwrap();
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
    wait_until(|| counted.fetch_add(done.take(), Ordering::AcqRel) == 10);
    assert_eq!(*moody.took.lock(), [1, 2, 3, 4, 5, 7, 9, 10, 11]);
    let letters = world.letters();
    let told: Vec<_> = letters.iter().map(|letter| (&*letter.source, &*letter.position, &*letter.reason)).collect();
    assert_eq!(
        told,
        [
            ("out", "c, turn 6, revision 0", "the sink does not take it: too long"),
            ("out", "c, turn 8, revision 0", "the sink does not take it: panicked: on turn 8"),
        ]
    );
    assert_eq!(letters[0].record, serde_json::to_string(&record(6)).unwrap());
    assert!(woken.load(Ordering::Acquire) > 0);
    assert_eq!(sink.status(), SinkStatus { id: "out".into(), pending: 0, delivered: 11, fault: None });
}

#[test]
fn a_receiver_that_hangs_is_behind_and_does_not_hold_up_the_end() {
    let world = World::new();
    let moody = Moody::default();
    moody.hangs.store(true, Ordering::Release);
    let sink = world.handle(moody.clone());
    let done = Acknowledged::new(|| ());
    assert!(!sink.is_behind(1));
    (1..=3).for_each(|turn| sink.deliver(vec![record(turn)], &done));
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
    assert_eq!((done.take(), moody.took.lock().len()), (3, 3));
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
