//! Tests of conversations whose history cannot be read.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::{Mutex, RwLock};
use timely::dataflow::operators::Input as _;

use super::*;
use crate::connector;
use crate::dead_letter::DeadLetters;
use crate::durable::{ConversationChange, Durable, OffsetTracker, Said, StoredConversation};
use crate::publish::Epochs;
use crate::record::TurnRecord;

const STORE: &str = "turns.redb";

fn shared(durable: Arc<Durable>, handle: tokio::runtime::Handle) -> Arc<TurnsShared> {
    Arc::new(TurnsShared {
        shape: crate::cluster::Shape::alone(1),
        limits: RwLock::default(),
        epochs: Arc::new(Epochs::open(None).unwrap()),
        durable,
        dead: DeadLetters::counted(),
        serving: AtomicBool::new(true),
        ready: AtomicBool::new(true),
        sources: Mutex::default(),
        generations: RwLock::default(),
        outstanding: AtomicUsize::new(0),
        slots: Default::default(),
        asks: crate::ask::AskQueue::new(|| ()),
        stopping: AtomicBool::new(false),
        delivered: AtomicUsize::new(0),
        recovered: AtomicU64::new(0),
        repeated: AtomicU64::new(0),
        revised: AtomicU64::new(0),
        answered_again: AtomicU64::new(0),
        standing: Mutex::default(),
        answers: Default::default(),
        kept: crate::turns::Keeper::new(None, 0),
        handle,
        observer: None,
        activity: Default::default(),
        watcher: None,
        principals: None,
        started: Instant::now(),
    })
}

fn source() -> Arc<SourceHandle> {
    Arc::new(SourceHandle {
        id: "turns".into(),
        kind_name: "Test",
        is_queue: false,
        file: None,
        number: 0,
        divided: false,
        receiver: Mutex::default(),
        wake: WakeSlot::default(),
        conversation_wakes: Mutex::default(),
        caught_up: Arc::default(),
        tracker: Arc::new(OffsetTracker::new("turns".into())),
        backlog: Default::default(),
        ended: AtomicBool::new(false),
    })
}

fn said(text: &str, turn: u32) -> Said {
    Said { speaker: Speaker::Agent, text: text.into(), turn, log: 0, key: None }
}

/// An agent's utterance, which is applied without a plan.
fn read(text: &str, end: u64, batch: u64) -> Read {
    let record = TurnRecord {
        conversation_id: "c".into(),
        turn: 1,
        speaker: Speaker::Agent,
        text: text.into(),
        collection: None,
        timestamp: None,
        extra: Default::default(),
    };
    let place = Some(connector::SourceOffset { log: "l".into(), end, line: end, ..Default::default() });
    Read { record, history: None, position: String::new(), entered_us: 0, place, batch, bytes: 0 }
}

#[test]
fn a_history_that_cannot_be_read_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Durable::open(Some(directory.path()), DeadLetters::counted()).unwrap();
    let (of, id): (Arc<str>, Arc<str>) = ("turns".into(), "c".into());
    let used = StoredConversation::now();
    let said_before = vec![said("before", 0)];
    let change = ConversationChange {
        from: 0,
        said: said_before,
        first: 0,
        reply: None,
        groups: Vec::new(),
        former: Vec::new(),
        applied: (0, 1).into(),
        used,
    };
    let known = StoredConversation::from(change.clone());
    durable.put(&of, &id, change);
    durable.commit(1).unwrap();
    let path = directory.path().join(STORE);
    durable.hide(&path);

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (shared, source) = (shared(durable.clone(), runtime.handle().clone()), source());
    timely::execute_directly(move |worker| {
        let mut input = worker.dataflow::<u64, _, _>(|scope| {
            let (input, records) = scope.new_input::<Vec<Read>>();
            let feedback = Feedback::default();
            build(scope, &source, records, feedback, shared.clone(), Rc::default());
            input
        });
        let batch = source.tracker.begin(Default::default());
        let record = read("now", 2, batch);
        source.tracker.read(batch, record.place.as_ref());
        source.tracker.close(batch);
        input.send(record);
        input.advance_to(1);
        for _ in 0..100 {
            worker.step();
        }
        assert!(durable.load(&of, &id, drop).unwrap().is_err(), "the stored state is not overwritten");
        assert_eq!(source.tracker.low(), None, "the record is not applied");

        Durable::show(&path);
        assert_eq!(durable.load(&of, &id, drop).unwrap().unwrap(), Some(known));
        while source.tracker.low().is_none() {
            worker.step_or_park(Some(RETRY));
        }
        let knows = durable.load(&of, &id, drop).unwrap().unwrap().unwrap();
        assert_eq!((knows.history, knows.applied), ([said("before", 0), said("now", 1)].into(), (0, 2).into()));
    });
}
