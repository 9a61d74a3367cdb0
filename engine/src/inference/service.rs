//! The inference service: one a model, on a thread of its own, off the workers.
//!
//! Requests of different turns, operators and workers share batches. Within a batch all
//! inputs are padded to the longest, so batches are made of inputs of similar length and
//! bounded by what they cost with padding. What turns wait for goes first; what a corpus
//! waits for fills the rest, in smaller batches while turns are about, so that a turn never
//! waits behind a large one. The queue is bounded: callers wait for room.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};

use super::{InferenceError, Urgency, Usage};

/// How long after a turn's request corpus batches stay small.
const TURNS_ABOUT: Duration = Duration::from_secs(1);

/// So many batches of turns may go before one of the corpus.
const TURN_BATCHES: usize = 3;
/// Above every input.
const SWEEP_START: (usize, u64) = (usize::MAX, u64::MAX);

/// What runs batches; lives on the service's thread.
pub trait Backend: 'static {
    /// One input.
    type Input: Send + 'static;
    /// Its output.
    type Output: Send + 'static;
    /// Tokens of an input.
    fn cost(input: &Self::Input) -> usize;
    /// Outputs in the order of the inputs.
    fn run(&mut self, batch: &[&Self::Input]) -> Result<Vec<Self::Output>, InferenceError>;
}

/// Bounds of a service.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most inputs in a batch.
    pub batch_inputs: usize,
    /// Most tokens in a batch, padding included; a longer input runs alone.
    pub batch_tokens: usize,
    /// Most inputs that wait; callers wait for room.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch_inputs: 64, batch_tokens: 2048, queue: 32_768 }
    }
}

struct Request<O> {
    outputs: Mutex<Gather<O>>,
}

struct Gather<O> {
    done: Vec<Option<O>>,
    missing: usize,
    reply: Option<oneshot::Sender<Result<Vec<O>, InferenceError>>>,
}

impl<O> Request<O> {
    fn put(&self, index: usize, output: Result<O, InferenceError>) {
        let mut gather = self.outputs.lock();
        match output {
            Ok(output) => {
                gather.done[index] = Some(output);
                gather.missing -= 1;
                if gather.missing == 0 {
                    let outputs = std::mem::take(&mut gather.done).into_iter().flatten().collect();
                    if let Some(reply) = gather.reply.take() {
                        let _ = reply.send(Ok(outputs));
                    }
                }
            }
            Err(error) => {
                if let Some(reply) = gather.reply.take() {
                    let _ = reply.send(Err(error));
                }
            }
        }
    }

    /// Whoever asked has gone away, or has had an error.
    fn abandoned(&self) -> bool {
        self.outputs.lock().reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

struct Job<B: Backend> {
    input: B::Input,
    index: usize,
    request: Arc<Request<B::Output>>,
    _room: tokio::sync::OwnedSemaphorePermit,
}

struct Queue<B: Backend> {
    turns: VecDeque<Job<B>>,
    /// By cost, then arrival.
    corpus: BTreeMap<(usize, u64), Job<B>>,
    arrivals: u64,
    /// Where the sweep over the corpus's inputs has come to.
    sweep: (usize, u64),
    last_turn: Option<Instant>,
    /// Batches of turns since the last of the corpus.
    turn_batches: usize,
    ended: bool,
}

struct Shared<B: Backend> {
    queue: Mutex<Queue<B>>,
    work: Condvar,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    inputs: AtomicU64,
    batches: AtomicU64,
    tokens: AtomicU64,
    padded: AtomicU64,
    busy_us: AtomicU64,
}

/// A model's thread with its queue. Dropping it ends the thread.
pub struct Service<B: Backend> {
    name: String,
    limits: Limits,
    room: Arc<Semaphore>,
    shared: Arc<Shared<B>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<B: Backend> Service<B> {
    /// Starts the thread and makes the back end on it (some must stay where they are made);
    /// returns when the back end is loaded, with what `describe` says of it.
    pub fn start<D: Send + 'static>(
        name: &str,
        limits: Limits,
        load: impl FnOnce() -> Result<(B, D), InferenceError> + Send + 'static,
    ) -> Result<(Self, D), InferenceError> {
        let shared = Arc::new(Shared::<B> {
            queue: Mutex::new(Queue {
                turns: VecDeque::new(),
                corpus: BTreeMap::new(),
                arrivals: 0,
                sweep: SWEEP_START,
                last_turn: None,
                turn_batches: 0,
                ended: false,
            }),
            work: Condvar::new(),
            counters: Counters::default(),
        });
        let (loaded, is_loaded) = std::sync::mpsc::sync_channel(1);
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name(format!("model {name}"))
            .spawn(move || match load() {
                Ok((backend, description)) => {
                    let _ = loaded.send(Ok(description));
                    serve(backend, &for_thread, limits);
                }
                Err(error) => {
                    let _ = loaded.send(Err(error));
                }
            })
            .map_err(|error| InferenceError::Failed(format!("no thread: {error}")))?;
        let description = is_loaded.recv().map_err(|_| InferenceError::Ended(name.to_owned()))??;
        let room = Arc::new(Semaphore::new(limits.queue));
        Ok((Self { name: name.to_owned(), limits, room, shared, thread: Some(thread) }, description))
    }

    /// Outputs in the order of the inputs. Waits for room while the queue is full. If one
    /// input fails, so does the call; inputs of other calls in its batch do not.
    pub async fn call(&self, inputs: Vec<B::Input>, urgency: Urgency) -> Result<Vec<B::Output>, InferenceError> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, answer) = oneshot::channel();
        let gather = Gather { done: inputs.iter().map(|_| None).collect(), missing: inputs.len(), reply: Some(reply) };
        let request = Arc::new(Request { outputs: Mutex::new(gather) });
        for (index, input) in inputs.into_iter().enumerate() {
            // A turn never waits for the room that a corpus has taken: half is kept for turns.
            let wanted = if urgency == Urgency::Corpus { 2 } else { 1 };
            let ended = |_| InferenceError::Ended(self.name.clone());
            let permit =
                self.room.clone().acquire_many_owned(wanted.min(self.limits.queue as u32)).await.map_err(ended)?;
            let job = Job { input, index, request: request.clone(), _room: permit };
            let mut queue = self.shared.queue.lock();
            if queue.ended {
                return Err(InferenceError::Ended(self.name.clone()));
            }
            match urgency {
                Urgency::Turn => {
                    queue.last_turn = Some(Instant::now());
                    queue.turns.push_back(job);
                }
                Urgency::Corpus => {
                    queue.arrivals += 1;
                    let key = (B::cost(&job.input), queue.arrivals);
                    queue.corpus.insert(key, job);
                }
            }
            drop(queue);
            self.shared.work.notify_one();
        }
        answer.await.map_err(|_| InferenceError::Ended(self.name.clone()))?
    }

    /// What has been run so far.
    pub fn usage(&self) -> Usage {
        let counters = &self.shared.counters;
        Usage {
            inputs: counters.inputs.load(Ordering::Relaxed),
            batches: counters.batches.load(Ordering::Relaxed),
            tokens: counters.tokens.load(Ordering::Relaxed),
            padded: counters.padded.load(Ordering::Relaxed),
            busy_us: counters.busy_us.load(Ordering::Relaxed),
        }
    }
}

impl<B: Backend> Drop for Service<B> {
    fn drop(&mut self) {
        self.shared.queue.lock().ended = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve<B: Backend>(mut backend: B, shared: &Shared<B>, limits: Limits) {
    loop {
        let batch = {
            let mut queue = shared.queue.lock();
            loop {
                if queue.ended {
                    queue.turns.clear();
                    queue.corpus.clear();
                    return;
                }
                let batch = take_batch(&mut queue, limits);
                if !batch.is_empty() {
                    break batch;
                }
                shared.work.wait(&mut queue);
            }
        };
        run_batch(&mut backend, &batch, &shared.counters);
    }
}

/// The input of a turn that has waited longest, with those that are nearest to it in length.
fn take_turns<B: Backend>(queue: &mut Queue<B>, limits: Limits) -> Vec<Job<B>> {
    queue.turns.retain(|job| !job.request.abandoned());
    let Some(first) = queue.turns.pop_front() else { return Vec::new() };
    let cost = B::cost(&first.input);
    let mut others: Vec<usize> = (0..queue.turns.len()).collect();
    others.sort_by_key(|&at| (B::cost(&queue.turns[at].input).abs_diff(cost), at));
    let (mut longest, mut chosen) = (cost, Vec::new());
    for at in others {
        let padded = longest.max(B::cost(&queue.turns[at].input));
        if chosen.len() + 1 >= limits.batch_inputs || padded * (chosen.len() + 2) > limits.batch_tokens {
            break;
        }
        longest = padded;
        chosen.push(at);
    }
    chosen.sort_unstable();
    let mut batch = vec![first];
    // From the back, so that places before stay what they were.
    batch.extend(chosen.into_iter().rev().filter_map(|at| queue.turns.remove(at)));
    batch
}

/// Takes what runs next: turns first, then inputs of the corpus that are neighbours in
/// length; but a small batch of the corpus after every few of turns, so that a steady flow
/// of turns does not keep documents out.
fn take_batch<B: Backend>(queue: &mut Queue<B>, limits: Limits) -> Vec<Job<B>> {
    let corpus_is_due = queue.turn_batches >= TURN_BATCHES && !queue.corpus.is_empty();
    if !corpus_is_due {
        let batch = take_turns(queue, limits);
        if !batch.is_empty() {
            queue.turn_batches += 1;
            return batch;
        }
    }
    queue.turn_batches = 0;
    let mut batch: Vec<Job<B>> = Vec::new();
    let mut longest = 0;
    let turns_about = queue.last_turn.is_some_and(|at| at.elapsed() < TURNS_ABOUT);
    let (tokens, inputs) = if turns_about {
        (limits.batch_tokens / 8, (limits.batch_inputs / 8).max(1))
    } else {
        (limits.batch_tokens, limits.batch_inputs)
    };
    // Lengths are swept from long to short, again and again: what arrives behind the sweep
    // waits for the next one. Taking the longest each time would batch whatever has just
    // come, long and short together.
    while batch.len() < inputs {
        let next = queue.corpus.range(..queue.sweep).next_back().map(|(&key, _)| key);
        let Some(key) = next else {
            queue.sweep = SWEEP_START;
            if batch.is_empty() && !queue.corpus.is_empty() {
                continue;
            }
            break;
        };
        longest = longest.max(key.0);
        if !batch.is_empty() && longest * (batch.len() + 1) > tokens {
            break;
        }
        queue.sweep = key;
        if let Some(job) = queue.corpus.remove(&key)
            && !job.request.abandoned()
        {
            batch.push(job);
        }
    }
    batch
}

fn run_batch<B: Backend>(backend: &mut B, batch: &[Job<B>], counters: &Counters) {
    let inputs: Vec<&B::Input> = batch.iter().map(|job| &job.input).collect();
    let begun = Instant::now();
    let result = backend.run(&inputs);
    let costs = || batch.iter().map(|job| B::cost(&job.input));
    counters.busy_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    counters.batches.fetch_add(1, Ordering::Relaxed);
    counters.inputs.fetch_add(batch.len() as u64, Ordering::Relaxed);
    counters.tokens.fetch_add(costs().sum::<usize>() as u64, Ordering::Relaxed);
    counters.padded.fetch_add((costs().max().unwrap_or(0) * batch.len()) as u64, Ordering::Relaxed);
    match result {
        Ok(outputs) if outputs.len() == batch.len() => {
            for (job, output) in batch.iter().zip(outputs) {
                job.request.put(job.index, Ok(output));
            }
        }
        Ok(_) => {
            let error = InferenceError::Failed("the back end gave another number of outputs than inputs".into());
            batch.iter().for_each(|job| job.request.put(job.index, Err(error.clone())));
        }
        // One bad input must not fail its neighbours: run them one by one.
        Err(_) if batch.len() > 1 => {
            for job in batch {
                run_batch(backend, std::slice::from_ref(job), counters);
            }
        }
        Err(error) => batch.iter().for_each(|job| job.request.put(job.index, Err(error.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles numbers; fails on 13; tells the batches it saw.
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
            let asked = scope.spawn(|| block(service.call(vec![1, 9, 3, 10, 2, 8, 50], Urgency::Corpus)));
            drop(hold);
            asked.join().unwrap()
        });
        assert_eq!(ask.unwrap(), [2, 18, 6, 20, 4, 16, 100]);
        for batch in batches.try_iter() {
            let padded = batch.len() * batch.iter().max().unwrap();
            assert!(batch.len() == 1 || padded <= 20, "{batch:?}");
        }
    }

    /// Arrivals of every length while the model works must not be batched with each other.
    #[test]
    fn batches_hold_neighbours_in_length_though_the_queue_refills() {
        let (service, batches, gate) = service(Limits { batch_inputs: 8, batch_tokens: 100_000, queue: 512 });
        let lengths: Vec<usize> = (0..4000).map(|n| 14 + (n * 7919) % 500).collect();
        let hold = gate.lock();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| block(service.call(lengths, Urgency::Corpus)));
            drop(hold);
            asked.join().unwrap().unwrap();
        });
        let usage = service.usage();
        assert_eq!(batches.try_iter().map(|batch| batch.len()).sum::<usize>(), 4000);
        assert!(usage.padded as f64 / (usage.tokens as f64) < 1.1, "{usage:?}");
    }

    #[test]
    fn one_bad_input_fails_its_own_call_only() {
        let (service, _batches, gate) = service(Limits { batch_inputs: 8, batch_tokens: 1000, queue: 64 });
        let hold = gate.lock();
        let (good, bad) = std::thread::scope(|scope| {
            let good = scope.spawn(|| block(service.call(vec![1, 2], Urgency::Turn)));
            let bad = scope.spawn(|| block(service.call(vec![3, 13], Urgency::Turn)));
            drop(hold);
            (good.join().unwrap(), bad.join().unwrap())
        });
        assert_eq!(good.unwrap(), [2, 4]);
        assert!(matches!(bad, Err(InferenceError::Failed(_))));
    }

    #[test]
    fn a_full_queue_holds_callers_back_and_loses_nothing() {
        let (service, _batches, _gate) = service(Limits { batch_inputs: 2, batch_tokens: 100_000, queue: 3 });
        let outputs = block(service.call((0..500).filter(|n| *n != 13).collect(), Urgency::Corpus)).unwrap();
        assert_eq!(outputs.len(), 499);
        assert_eq!(service.usage().inputs, 499);
    }

    #[test]
    fn a_dropped_service_ends_its_calls() {
        let (service, _batches, _gate) = service(Limits::default());
        service.shared.queue.lock().ended = true;
        assert!(matches!(block(service.call(vec![1], Urgency::Turn)), Err(InferenceError::Ended(_))));
    }
}
