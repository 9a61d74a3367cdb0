//! The inference service: one per model, on a separate thread, off the workers.
//!
//! Requests of different turns, operators and workers share batches. All inputs of a batch are
//! padded to the longest one, so a batch contains inputs of similar length among all that wait, and its
//! limit counts padding. An input that comes while nothing waits runs at once; those that come while a
//! batch runs share the next ones. Turns have priority over corpora. While turns are active, corpus batches are smaller, so
//! that a turn never waits for a large one. The queue is bounded, with separate halves for turns and
//! corpora; callers wait until their half has room.

mod queue;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures::{Stream, StreamExt, stream};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};

use self::queue::{Job, Queue, Request, take_batch};
use super::{InferenceError, Priority, Usage};
use crate::panics::caught;

/// Runs batches on the service's thread.
pub trait Backend: 'static {
    /// One input.
    type Input: Send + 'static;
    /// Its output.
    type Output: Send + 'static;
    /// Number of tokens of an input.
    fn cost(input: &Self::Input) -> usize;
    /// Runs a batch; returns the outputs in the order of the inputs.
    fn run(&mut self, batch: &[&Self::Input]) -> Result<Vec<Self::Output>, InferenceError>;
}

/// Limits of a service.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum inputs of a batch.
    pub batch_inputs: usize,
    /// Maximum tokens of a batch, with padding. A longer input runs alone.
    pub batch_tokens: usize,
    /// The cost of a batch besides its inputs, in tokens. A batch is divided where that saves more padding;
    /// with `usize::MAX`, never.
    pub batch_overhead: usize,
    /// Maximum waiting inputs, half for turns and half for corpora. Callers wait for room.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch_inputs: 64, batch_tokens: 2048, batch_overhead: usize::MAX, queue: 32_768 }
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

/// Free room in the queue, separately for turns and corpora.
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

/// The thread of a model, with its queue. Dropping it stops the thread.
pub struct Service<B: Backend> {
    name: String,
    room: Room,
    shared: Arc<Shared<B>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<B: Backend> Service<B> {
    /// Starts the thread and loads the back end on it, since some back ends must stay on the thread that
    /// creates them. Returns when `load` is done, with the service and the description that `load` returned.
    ///
    /// # Errors
    ///
    /// The thread cannot be started, or `load` failed.
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
            .map_err(|error| InferenceError::Failed(format!("cannot start a thread: {error}")))?;
        let description = is_loaded.recv().map_err(|_| InferenceError::Ended(name.to_owned()))??;
        Ok((Self { name: name.to_owned(), room: Room::new(limits), shared, thread: Some(thread) }, description))
    }

    /// Runs inputs; returns the outputs in the same order. Waits while the queue is full. If one input
    /// fails, its call fails; other calls in the same batch do not.
    ///
    /// # Errors
    ///
    /// An input failed, or the service has stopped.
    pub async fn call(&self, inputs: Vec<B::Input>, priority: Priority) -> Result<Vec<B::Output>, InferenceError> {
        let count = inputs.len();
        self.call_parts(count, std::pin::pin!(stream::iter([Ok(inputs)])), priority).await
    }

    /// Like [`Service::call`], with `count` inputs that come in parts: the first run while later ones are
    /// prepared.
    ///
    /// # Errors
    ///
    /// A part or an input failed, there are fewer inputs than `count`, or the service has stopped.
    pub async fn call_parts(
        &self,
        count: usize,
        mut parts: impl Stream<Item = Result<Vec<B::Input>, InferenceError>> + Unpin,
        priority: Priority,
    ) -> Result<Vec<B::Output>, InferenceError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let ended = || InferenceError::Ended(self.name.clone());
        let (reply, answer) = oneshot::channel();
        let request = Arc::new(Request::new(count, reply));
        let mut indexes = 0..count;
        while let Some(part) = parts.next().await {
            // The inputs first: `zip` takes an index only for an input that is there.
            for (input, index) in part?.into_iter().zip(indexes.by_ref()) {
                let permit = self.room.of(priority).acquire_owned().await.map_err(|_| ended())?;
                let job = Job { input, index, request: request.clone(), _room: permit };
                let mut queue = self.shared.queue.lock();
                if queue.ended {
                    return Err(ended());
                }
                queue.push(job, priority);
                drop(queue);
                self.shared.work.notify_one();
            }
        }
        if !indexes.is_empty() {
            return Err(InferenceError::Failed(format!("{} of {count} inputs are missing", indexes.len())));
        }
        // From here only jobs hold the request. If they are dropped, the wait below ends with an error.
        drop(request);
        answer.await.map_err(|_| ended())?
    }

    /// The counters so far.
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

/// Drops waiting jobs when the thread ends, also after a panic; otherwise callers would wait forever.
struct End<'a, B: Backend>(&'a Shared<B>);

impl<B: Backend> Drop for End<'_, B> {
    fn drop(&mut self) {
        self.0.queue.lock().end();
    }
}

fn serve<B: Backend>(mut backend: B, shared: &Shared<B>, mut limits: Limits) {
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
        if let Some(tokens) = run_batch(&mut backend, &batch, &shared.counters) {
            limits.batch_tokens = tokens;
            tracing::warn!(batch_tokens = tokens, "the device has too little memory: batches are smaller from now on");
        }
    }
}

/// Tokens of a batch, with padding.
fn padded<B: Backend>(batch: &[Job<B>]) -> usize {
    batch.iter().map(|job| B::cost(&job.input)).max().unwrap_or(0) * batch.len()
}

/// Runs a batch, and puts its outputs or errors. Returns a new limit of tokens if the batch took more memory than there
/// is.
fn run_batch<B: Backend>(backend: &mut B, batch: &[Job<B>], counters: &Counters) -> Option<usize> {
    let inputs: Vec<&B::Input> = batch.iter().map(|job| &job.input).collect();
    let begun = Instant::now();
    // A panic of the back end fails only the input that causes it; the thread continues.
    let result = caught(|| backend.run(&inputs));
    let result = result.map_err(|panic| InferenceError::Failed(format!("the back end {panic}"))).flatten();
    counters.busy_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    counters.batches.fetch_add(1, Ordering::Relaxed);
    counters.inputs.fetch_add(batch.len() as u64, Ordering::Relaxed);
    let tokens = batch.iter().map(|job| B::cost(&job.input)).sum::<usize>();
    counters.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    counters.padded.fetch_add(padded(batch) as u64, Ordering::Relaxed);
    match result {
        Ok(outputs) if outputs.len() == batch.len() => {
            for (job, output) in batch.iter().zip(outputs) {
                job.request.put(job.index, Ok(output));
            }
            None
        }
        Ok(_) => {
            let error = InferenceError::Failed("the number of outputs differs from the number of inputs".into());
            batch.iter().for_each(|job| job.request.put(job.index, Err(error.clone())));
            None
        }
        // One bad input must not fail the others, and half of a batch may fit where the whole does not.
        Err(error) if batch.len() > 1 => {
            let (first, second) = batch.split_at(batch.len() / 2);
            let limit = matches!(error, InferenceError::Memory(_)).then(|| padded(batch) / 2);
            let parts = [first, second].map(|part| run_batch(backend, part, counters));
            parts.into_iter().chain([limit]).flatten().min()
        }
        Err(error) => {
            batch.iter().for_each(|job| job.request.put(job.index, Err(error.clone())));
            None
        }
    }
}
