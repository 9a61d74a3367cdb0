//! The inference service: one a model, on a thread of its own, off the workers.
//!
//! Requests of different turns, operators and workers share batches. Within a batch all
//! inputs are padded to the longest, so batches are made of inputs of similar length and
//! bounded by what they cost with padding. What turns wait for goes first; what a corpus
//! waits for fills the rest, in smaller batches while turns are about, so that a turn never
//! waits behind a large one. The queue is bounded, and callers wait for room: turns for that of
//! turns, the corpus for its own.

mod queue;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};

use self::queue::{Job, Queue, Request, take_batch};
use super::{InferenceError, Priority, Usage};
use crate::panics::caught;

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
    /// Most inputs that wait, half of them of turns and half of the corpus; callers wait for
    /// room.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch_inputs: 64, batch_tokens: 2048, queue: 32_768 }
    }
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

/// Room in the queue: what the corpus takes is never a turn's.
struct Room {
    turns: Arc<Semaphore>,
    corpus: Arc<Semaphore>,
}

impl Room {
    fn new(limits: Limits) -> Self {
        let half = || Arc::new(Semaphore::new((limits.queue / 2).max(1)));
        Self { turns: half(), corpus: half() }
    }

    fn of(&self, priority: Priority) -> Arc<Semaphore> {
        match priority {
            Priority::Turn => self.turns.clone(),
            Priority::Corpus => self.corpus.clone(),
        }
    }
}

/// A model's thread with its queue. Dropping it ends the thread.
pub struct Service<B: Backend> {
    name: String,
    room: Room,
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
            queue: Mutex::new(Queue::new()),
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
        Ok((Self { name: name.to_owned(), room: Room::new(limits), shared, thread: Some(thread) }, description))
    }

    /// Outputs in the order of the inputs. Waits for room while the queue is full. If one
    /// input fails, so does the call; inputs of other calls in its batch do not.
    pub async fn call(&self, inputs: Vec<B::Input>, priority: Priority) -> Result<Vec<B::Output>, InferenceError> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, answer) = oneshot::channel();
        let request = Arc::new(Request::new(inputs.len(), reply));
        for (index, input) in inputs.into_iter().enumerate() {
            let ended = |_| InferenceError::Ended(self.name.clone());
            let permit = self.room.of(priority).acquire_owned().await.map_err(ended)?;
            let job = Job { input, index, request: request.clone(), _room: permit };
            let mut queue = self.shared.queue.lock();
            if queue.ended {
                return Err(InferenceError::Ended(self.name.clone()));
            }
            queue.push(job, priority);
            drop(queue);
            self.shared.work.notify_one();
        }
        // Only jobs hold the request: when they are let go, the answer is known not to come.
        drop(request);
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

/// Lets go of what waits when the thread ends, be it by a panic: whoever asked would wait
/// for ever.
struct End<'a, B: Backend>(&'a Shared<B>);

impl<B: Backend> Drop for End<'_, B> {
    fn drop(&mut self) {
        self.0.queue.lock().end();
    }
}

fn serve<B: Backend>(mut backend: B, shared: &Shared<B>, limits: Limits) {
    let _end = End(shared);
    loop {
        let batch = {
            let mut queue = shared.queue.lock();
            loop {
                if queue.ended {
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

fn run_batch<B: Backend>(backend: &mut B, batch: &[Job<B>], counters: &Counters) {
    let inputs: Vec<&B::Input> = batch.iter().map(|job| &job.input).collect();
    let begun = Instant::now();
    // The thread goes on for the others: an input on which the back end panics fails alone.
    let result = caught(|| backend.run(&inputs));
    let result = result.map_err(|panic| InferenceError::Failed(format!("the back end {panic}"))).flatten();
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
