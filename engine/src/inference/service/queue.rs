//! The queue of inputs for a model, and the selection of the next batch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Backend, Limits};
use crate::inference::{InferenceError, Priority};

/// Time after a turn's request during which corpus batches stay small.
const TURNS_ABOUT: Duration = Duration::from_secs(1);

/// Maximum consecutive turn batches while corpus inputs wait.
const TURN_BATCHES: usize = 3;
/// The start of a sweep: above the key of every input.
const SWEEP_START: (usize, u64) = (usize::MAX, u64::MAX);

pub(super) struct Request<O> {
    outputs: Mutex<Gather<O>>,
}

struct Gather<O> {
    done: Vec<Option<O>>,
    missing: usize,
    reply: Option<oneshot::Sender<Result<Vec<O>, InferenceError>>>,
}

impl<O> Request<O> {
    /// A request with this many inputs.
    pub(super) fn new(inputs: usize, reply: oneshot::Sender<Result<Vec<O>, InferenceError>>) -> Self {
        let done = std::iter::repeat_with(|| None).take(inputs).collect();
        Self { outputs: Mutex::new(Gather { done, missing: inputs, reply: Some(reply) }) }
    }

    pub(super) fn put(&self, index: usize, output: Result<O, InferenceError>) {
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

    /// Whether the caller no longer waits or has received an error.
    fn abandoned(&self) -> bool {
        self.outputs.lock().reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

pub(super) struct Job<B: Backend> {
    pub(super) input: B::Input,
    pub(super) index: usize,
    pub(super) request: Arc<Request<B::Output>>,
    pub(super) _room: tokio::sync::OwnedSemaphorePermit,
}

pub(super) struct Queue<B: Backend> {
    turns: VecDeque<Job<B>>,
    /// Corpus inputs by cost, then arrival.
    corpus: BTreeMap<(usize, u64), Job<B>>,
    arrivals: u64,
    /// The current key of the sweep over the corpus inputs.
    sweep: (usize, u64),
    last_turn: Option<Instant>,
    /// Turn batches since the last corpus batch.
    turn_batches: usize,
    pub(super) ended: bool,
}

impl<B: Backend> Queue<B> {
    pub(super) fn new() -> Self {
        Self {
            turns: VecDeque::new(),
            corpus: BTreeMap::new(),
            arrivals: 0,
            sweep: SWEEP_START,
            last_turn: None,
            turn_batches: 0,
            ended: false,
        }
    }

    pub(super) fn push(&mut self, job: Job<B>, priority: Priority) {
        match priority {
            Priority::Turn => {
                self.last_turn = Some(Instant::now());
                self.turns.push_back(job);
            }
            Priority::Corpus => {
                self.arrivals += 1;
                self.corpus.insert((B::cost(&job.input), self.arrivals), job);
            }
        }
    }

    /// The number of waiting turn inputs.
    #[cfg(test)]
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The number of waiting corpus inputs.
    #[cfg(test)]
    pub(super) fn corpus(&self) -> usize {
        self.corpus.len()
    }

    /// Stops the queue and drops all waiting inputs.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.turns.clear();
        self.corpus.clear();
    }
}

/// Takes the turn input that has waited longest, and the inputs closest to it in length.
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
    // Removed from the back, so that smaller positions stay valid.
    batch.extend(chosen.into_iter().rev().filter_map(|at| queue.turns.remove(at)));
    batch
}

/// Takes the next batch: turns first, then corpus inputs of similar length. After [`TURN_BATCHES`]
/// turn batches, one small corpus batch is due, so that a steady flow of turns does not starve the
/// corpus.
pub(super) fn take_batch<B: Backend>(queue: &mut Queue<B>, limits: Limits) -> Vec<Job<B>> {
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
    // Repeatedly sweeps lengths from long to short; an input that the sweep has passed waits for the
    // next sweep. Always taking the longest inputs would batch new arrivals of any length together.
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
