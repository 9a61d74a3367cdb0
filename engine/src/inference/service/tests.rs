//! Tests of batches, their order, and how calls end.

use parking_lot::Mutex;

use super::*;

/// Doubles numbers; fails on 13, panics on 666; reports its batches.
struct Doubler {
    seen: std::sync::mpsc::Sender<Vec<usize>>,
    gate: Arc<Mutex<()>>,
}

impl Backend for Doubler {
    type Input = usize;
    type Output = usize;
    fn cost(input: &usize) -> usize {
        *input
    }
    fn run(&mut self, batch: &[&usize]) -> Result<Vec<usize>, InferenceError> {
        let _wait = self.gate.lock();
        let _ = self.seen.send(batch.iter().map(|n| **n).collect());
        assert!(!batch.iter().any(|n| **n == 666), "as a fault in the code would");
        if batch.iter().any(|n| **n == 13) {
            return Err(InferenceError::Failed("thirteen".into()));
        }
        Ok(batch.iter().map(|n| **n * 2).collect())
    }
}

fn service(limits: Limits) -> (Service<Doubler>, std::sync::mpsc::Receiver<Vec<usize>>, Arc<Mutex<()>>) {
    let (seen, batches) = std::sync::mpsc::channel();
    let gate = Arc::new(Mutex::new(()));
    let in_backend = gate.clone();
    let (service, ()) =
        Service::start("doubler", limits, move || Ok((Doubler { seen, gate: in_backend }, ()))).unwrap();
    (service, batches, gate)
}

fn block<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn outputs_keep_the_order_and_batches_the_budget() {
    let limits = Limits { batch_inputs: 4, batch_tokens: 20, queue: 64 };
    let (service, batches, gate) = service(limits);
    let hold = gate.lock();
    let ask = std::thread::scope(|scope| {
        let asked = scope.spawn(|| block(service.call(vec![1, 9, 3, 10, 2, 8, 50], Priority::Corpus)));
        drop(hold);
        asked.join().unwrap()
    });
    assert_eq!(ask.unwrap(), [2, 18, 6, 20, 4, 16, 100]);
    for batch in batches.try_iter() {
        let padded = batch.len() * batch.iter().max().unwrap();
        assert!(batch.len() == 1 || padded <= 20, "{batch:?}");
    }
}

/// Inputs of different lengths that arrive while the model works must not share a batch.
#[test]
fn batches_hold_neighbours_in_length_though_the_queue_refills() {
    let limits = Limits { batch_inputs: 8, batch_tokens: 100_000, queue: 512 };
    let room = Arc::new(Semaphore::new(limits.queue));
    let (reply, _answer) = oneshot::channel();
    let request = Arc::new(Request::new(4000, reply));
    let mut lengths = (0..4000).map(|n| 14 + (n * 7919) % 500).enumerate();
    let mut queue = Queue::<Doubler>::new();
    let mut arrive = |queue: &mut Queue<Doubler>, count: usize| {
        for (index, input) in lengths.by_ref().take(count) {
            let _room = room.clone().try_acquire_owned().unwrap();
            queue.push(Job { input, index, request: request.clone(), _room }, Priority::Corpus);
        }
    };
    arrive(&mut queue, 256);
    let (mut inputs, mut tokens, mut padded) = (0, 0, 0);
    loop {
        let batch: Vec<usize> = take_batch(&mut queue, limits).iter().map(|job| job.input).collect();
        let Some(longest) = batch.iter().max() else { break };
        inputs += batch.len();
        tokens += batch.iter().sum::<usize>();
        padded += batch.len() * longest;
        arrive(&mut queue, batch.len());
    }
    assert_eq!(inputs, 4000);
    assert!(padded as f64 / (tokens as f64) < 1.1, "{tokens} tokens, {padded} with padding");
}

#[test]
fn one_bad_input_fails_its_own_call_only() {
    let (service, _batches, gate) = service(Limits { batch_inputs: 8, batch_tokens: 1000, queue: 64 });
    let hold = gate.lock();
    let (good, bad) = std::thread::scope(|scope| {
        let good = scope.spawn(|| block(service.call(vec![1, 2], Priority::Turn)));
        let bad = scope.spawn(|| block(service.call(vec![3, 13], Priority::Turn)));
        drop(hold);
        (good.join().unwrap(), bad.join().unwrap())
    });
    assert_eq!(good.unwrap(), [2, 4]);
    assert!(matches!(bad, Err(InferenceError::Failed(_))));
}

#[test]
fn a_full_queue_holds_callers_back_and_loses_nothing() {
    let (service, _batches, _gate) = service(Limits { batch_inputs: 2, batch_tokens: 100_000, queue: 3 });
    let outputs = block(service.call((0..500).filter(|n| *n != 13).collect(), Priority::Corpus)).unwrap();
    assert_eq!(outputs.len(), 499);
    assert_eq!(service.usage().inputs, 499);
}

#[test]
fn a_dropped_service_ends_its_calls() {
    let (service, _batches, _gate) = service(Limits::default());
    service.shared.queue.lock().ended = true;
    assert!(matches!(block(service.call(vec![1], Priority::Turn)), Err(InferenceError::Ended(_))));
}

#[test]
fn an_input_on_which_the_back_end_panics_fails_its_own_call_only() {
    let (service, _batches, gate) = service(Limits { batch_inputs: 8, batch_tokens: 10_000, queue: 64 });
    let hold = gate.lock();
    let service = &service;
    std::thread::scope(|scope| {
        let asked = [1, 666, 2].map(|n| scope.spawn(move || block(service.call(vec![n; 2], Priority::Turn))));
        drop(hold);
        let answers = asked.map(|asked| asked.join().unwrap());
        assert_eq!((answers[0].clone().unwrap(), answers[2].clone().unwrap()), (vec![2, 2], vec![4, 4]));
        let failed = answers[1].as_ref().unwrap_err().to_string();
        assert!(failed.contains("the back end panicked: as a fault in the code would"), "{failed}");
    });
    assert_eq!(block(service.call(vec![3], Priority::Corpus)).unwrap(), [6], "the thread continues");
}

/// Even when the corpus half of the queue is full and callers wait for room, a turn runs right after
/// the current batch.
#[test]
fn a_turn_waits_for_the_batch_that_runs_and_for_no_other() {
    let (service, batches, gate) = service(Limits { batch_inputs: 4, batch_tokens: 1000, queue: 16 });
    let hold = gate.lock();
    let service = &service;
    std::thread::scope(|scope| {
        let corpus: Vec<_> =
            (0..20).map(|_| scope.spawn(move || block(service.call(vec![1; 20], Priority::Corpus)))).collect();
        // The first batch waits at the gate, and the queue is full.
        while service.room.corpus.available_permits() > 0 || service.shared.queue.lock().corpus() == 8 {
            std::thread::yield_now();
        }
        let turn = scope.spawn(move || block(service.call(vec![7; 3], Priority::Turn)));
        while service.shared.queue.lock().turns() < 3 {
            std::thread::yield_now();
        }
        drop(hold);
        assert_eq!(turn.join().unwrap().unwrap(), [14, 14, 14]);
        corpus.into_iter().for_each(|call| assert_eq!(call.join().unwrap().unwrap().len(), 20));
    });
    let batches: Vec<Vec<usize>> = batches.try_iter().collect();
    let turn = batches.iter().position(|batch| batch.contains(&7)).unwrap();
    assert!(turn <= 1, "{turn} batches before it: {batches:?}");
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 403);
}

/// A steady flow of turns does not starve the corpus, and corpus batches between turns are small.
#[test]
fn between_turns_the_corpus_gets_small_batches() {
    let limits = Limits { batch_inputs: 64, batch_tokens: 100_000, queue: 1024 };
    let room = Arc::new(Semaphore::new(limits.queue));
    let (reply, _answer) = oneshot::channel();
    let request = Arc::new(Request::new(4000, reply));
    let mut queue = Queue::<Doubler>::new();
    let push = |queue: &mut Queue<Doubler>, input, priority| {
        let _room = room.clone().try_acquire_owned().unwrap();
        queue.push(Job { input, index: 0, request: request.clone(), _room }, priority);
    };
    (0..200).for_each(|_| push(&mut queue, 1, Priority::Corpus));
    let mut between = Vec::new();
    for _ in 0..40 {
        push(&mut queue, 7, Priority::Turn);
        loop {
            let batch = take_batch(&mut queue, limits);
            if batch.iter().any(|job| job.input == 7) {
                break;
            }
            between.push(batch.len());
        }
    }
    assert!((10..=14).contains(&between.len()), "{between:?}");
    assert!(between.iter().all(|inputs| *inputs == 8), "{between:?}");
}
