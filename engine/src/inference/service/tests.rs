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
    let limits = Limits { batch_inputs: 4, batch_tokens: 20, queue: 64, ..Limits::default() };
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

/// A queue without a thread.
struct Filled {
    queue: Queue<Doubler>,
    room: Arc<Semaphore>,
    request: Arc<Request<usize>>,
    limits: Limits,
    _answer: oneshot::Receiver<Result<Vec<usize>, InferenceError>>,
}

impl Filled {
    fn new(limits: Limits) -> Self {
        let (reply, _answer) = oneshot::channel();
        let (room, request) = (Arc::new(Semaphore::new(limits.queue)), Arc::new(Request::new(10_000, reply)));
        Self { queue: Queue::new(), room, request, limits, _answer }
    }

    fn push(&mut self, input: usize, priority: Priority) {
        self.push_for(self.request.clone(), input, priority);
    }

    fn push_for(&mut self, request: Arc<Request<usize>>, input: usize, priority: Priority) {
        let _room = self.room.clone().try_acquire_owned().unwrap();
        self.queue.push(Job { input, index: 0, request, _room }, priority);
    }

    fn take(&mut self) -> Vec<usize> {
        take_batch(&mut self.queue, self.limits).iter().map(|job| job.input).collect()
    }
}

/// Tokens of batches, without and with padding.
fn tokens(batches: &[Vec<usize>]) -> (usize, usize) {
    let padded = |batch: &Vec<usize>| batch.len() * batch.iter().max().unwrap();
    (batches.iter().flatten().sum(), batches.iter().map(padded).sum())
}

/// Inputs of different lengths that arrive while the model works must not share a batch.
#[test]
fn batches_hold_neighbours_in_length_though_the_queue_refills() {
    let limits = Limits { batch_inputs: 8, batch_tokens: 100_000, queue: 512, ..Limits::default() };
    let mut filled = Filled::new(limits);
    let mut lengths = (0..4000).map(|n| 14 + (n * 7919) % 500);
    lengths.by_ref().take(256).for_each(|length| filled.push(length, Priority::Corpus));
    let mut batches = Vec::new();
    loop {
        let batch = filled.take();
        if batch.is_empty() {
            break;
        }
        lengths.by_ref().take(batch.len()).for_each(|length| filled.push(length, Priority::Corpus));
        batches.push(batch);
    }
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 4000);
    let (tokens, padded) = tokens(&batches);
    assert!(padded as f64 / (tokens as f64) < 1.1, "{tokens} tokens, {padded} with padding");
}

/// Also when a few long inputs are among many short ones, and when few wait.
#[test]
fn turns_of_different_lengths_do_not_share_a_batch() {
    let limits = Limits { batch_overhead: 16, queue: 2000, ..Limits::default() };
    let lengths = |count: usize| (0..count).map(|n| if n % 10 == 0 { 250 } else { 12 + (n * 7919) % 50 });
    for count in [5, 20, 500] {
        let mut filled = Filled::new(limits);
        lengths(count).for_each(|length| filled.push(length, Priority::Turn));
        let mut batches: Vec<Vec<usize>> = std::iter::repeat_with(|| filled.take()).take(count).collect();
        batches.retain(|batch| !batch.is_empty());
        assert!(batches.iter().all(|batch| !batch.contains(&250) || batch.iter().all(|input| *input == 250)));
        let (tokens, padded) = tokens(&batches);
        assert_eq!(tokens, lengths(count).sum::<usize>());
        assert!(padded as f64 / (tokens as f64) < 1.15, "{tokens} tokens, {padded} with padding");
        assert!(batches.len() <= count.div_ceil(8).max(8), "{count} inputs in {} batches", batches.len());
    }
    // Without a limit to the padding, all share one batch.
    let mut filled = Filled::new(Limits { batch_overhead: usize::MAX, batch_tokens: 100_000, ..limits });
    lengths(20).for_each(|length| filled.push(length, Priority::Turn));
    assert_eq!(filled.take().len(), 20);
}

/// Every batch of turns contains the oldest input, whatever comes later.
#[test]
fn an_input_is_passed_over_at_most_once_for_each_older_one() {
    let mut filled = Filled::new(Limits { batch_overhead: 16, queue: 10_000, ..Limits::default() });
    // Older inputs, each with a length of its own; then the one that no other resembles.
    (0..10).for_each(|n| filled.push(40 + 40 * n, Priority::Turn));
    filled.push(2000, Priority::Turn);
    let mut passed = 0;
    loop {
        // More inputs of popular lengths than a batch takes.
        (0..100).for_each(|n| filled.push(20 + n % 3, Priority::Turn));
        if filled.take().contains(&2000) {
            break;
        }
        passed += 1;
        assert!(passed <= 10, "passed over {passed} times");
    }
    assert_eq!(passed, 10);
}

#[test]
fn inputs_that_nobody_waits_for_are_skipped_and_leave_room() {
    for priority in [Priority::Turn, Priority::Corpus] {
        let mut filled = Filled::new(Limits { batch_overhead: 16, queue: 8, ..Limits::default() });
        let (reply, answer) = oneshot::channel();
        let gone = Arc::new(Request::new(4, reply));
        for input in [30, 31, 32, 33] {
            filled.push(input, priority);
            filled.push_for(gone.clone(), input, priority);
        }
        assert_eq!(filled.room.available_permits(), 0);
        drop(answer);
        let batch = take_batch(&mut filled.queue, filled.limits);
        assert_eq!(batch.len(), 4);
        assert!(batch.iter().all(|job| Arc::ptr_eq(&job.request, &filled.request)));
        assert_eq!(filled.room.available_permits(), 4);
        assert_eq!(filled.take(), [0; 0]);
    }
}

/// The first part runs before the second is there.
#[test]
fn parts_run_as_they_come() {
    let (service, batches, _gate) = service(Limits::default());
    let (send, parts) = futures::channel::mpsc::unbounded();
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| block(service.call_parts(5, parts, Priority::Turn)));
        send.unbounded_send(Ok(vec![5, 3])).unwrap();
        let mut first = batches.recv().unwrap();
        if first.len() < 2 {
            first.extend(batches.recv().unwrap());
        }
        first.sort_unstable();
        assert_eq!(first, [3, 5]);
        send.unbounded_send(Ok(vec![4, 1, 2])).unwrap();
        drop(send);
        asked.join().unwrap()
    });
    assert_eq!(asked.unwrap(), [10, 6, 8, 2, 4]);
}

#[test]
fn a_part_that_fails_or_is_missing_fails_the_call() {
    let (service, _batches, _gate) = service(Limits::default());
    let failed = Err(InferenceError::Tokenizer("no".into()));
    let parts = stream::iter([Ok(vec![1]), failed, Ok(vec![2])]);
    let told = block(service.call_parts(3, parts, Priority::Turn)).unwrap_err();
    assert!(matches!(told, InferenceError::Tokenizer(_)), "{told}");
    let told = block(service.call_parts(3, stream::iter([Ok(vec![1])]), Priority::Turn)).unwrap_err();
    assert_eq!(told.to_string(), "inference failed: 2 of 3 inputs are missing");
    assert_eq!(block(service.call(vec![4], Priority::Turn)).unwrap(), [8]);
}

#[test]
fn one_bad_input_fails_its_own_call_only() {
    let (service, _batches, gate) =
        service(Limits { batch_inputs: 8, batch_tokens: 1000, queue: 64, ..Limits::default() });
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
    let (service, _batches, _gate) =
        service(Limits { batch_inputs: 2, batch_tokens: 100_000, queue: 3, ..Limits::default() });
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
    let (service, _batches, gate) =
        service(Limits { batch_inputs: 8, batch_tokens: 10_000, queue: 64, ..Limits::default() });
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
    let (service, batches, gate) =
        service(Limits { batch_inputs: 4, batch_tokens: 1000, queue: 16, ..Limits::default() });
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
    let limits = Limits { batch_inputs: 64, batch_tokens: 100_000, queue: 1024, ..Limits::default() };
    let mut filled = Filled::new(limits);
    (0..200).for_each(|_| filled.push(1, Priority::Corpus));
    let mut between = Vec::new();
    for _ in 0..40 {
        filled.push(7, Priority::Turn);
        loop {
            let batch = filled.take();
            if batch.contains(&7) {
                break;
            }
            between.push(batch.len());
        }
    }
    assert!((10..=14).contains(&between.len()), "{between:?}");
    assert!(between.iter().all(|inputs| *inputs == 8), "{between:?}");
}

/// Doubles numbers; has memory for 40 tokens.
struct Small {
    seen: std::sync::mpsc::Sender<Vec<usize>>,
    gate: Arc<Mutex<()>>,
}

impl Backend for Small {
    type Input = usize;
    type Output = usize;
    fn cost(input: &usize) -> usize {
        *input
    }
    fn run(&mut self, batch: &[&usize]) -> Result<Vec<usize>, InferenceError> {
        let _ = self.seen.send(batch.iter().map(|n| **n).collect());
        let _wait = self.gate.lock();
        if batch.len() * batch.iter().map(|n| **n).max().unwrap_or(0) > 40 {
            return Err(InferenceError::Memory("of 40".into()));
        }
        Ok(batch.iter().map(|n| **n * 2).collect())
    }
}

#[test]
fn batches_that_do_not_fit_are_divided_and_later_ones_are_smaller() {
    let (seen, batches) = std::sync::mpsc::channel();
    let gate = Arc::new(Mutex::new(()));
    let limits = Limits { batch_inputs: 64, batch_tokens: 1000, queue: 1024, ..Limits::default() };
    let in_backend = gate.clone();
    let (service, ()) = Service::start("small", limits, move || Ok((Small { seen, gate: in_backend }, ()))).unwrap();
    let call = |inputs: Vec<usize>| block(service.call(inputs, Priority::Corpus));
    // Sizes of the batches of 64 inputs that all wait.
    let sizes = || {
        std::thread::scope(|scope| {
            let hold = gate.lock();
            let first = scope.spawn(|| call(vec![1]));
            assert_eq!(batches.recv().unwrap(), [1]);
            let others = scope.spawn(|| call(vec![5; 64]));
            while service.shared.queue.lock().corpus() < 64 {
                std::thread::yield_now();
            }
            drop(hold);
            assert_eq!((first.join().unwrap().unwrap(), others.join().unwrap().unwrap()), (vec![2], vec![10; 64]));
        });
        batches.try_iter().map(|batch| batch.len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(), [64, 32, 16, 8, 8, 16, 8, 8, 32, 16, 8, 8, 16, 8, 8]);
    assert_eq!(sizes(), [8; 8]);
    // An input that does not fit alone fails, and only its own call.
    let error = call(vec![50]).unwrap_err();
    assert!(matches!(error, InferenceError::Memory(_)) && error.is_transient(), "{error}");
    assert_eq!(call(vec![40]).unwrap(), [80]);
}
