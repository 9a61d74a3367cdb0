//! What waits for a model, and what of it runs next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Backend, Limits};
use crate::inference::{InferenceError, Priority};

/// How long after a turn's request corpus batches stay small.
const TURNS_ABOUT: Duration = Duration::from_secs(1);

/// So many batches of turns may go before one of the corpus.
const TURN_BATCHES: usize = 3;
/// Above every input.
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
    /// A call with so many inputs.
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

    /// Whoever asked has gone away, or has had an error.
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
    /// By cost, then arrival.
    corpus: BTreeMap<(usize, u64), Job<B>>,
    arrivals: u64,
    /// Where the sweep over the corpus's inputs has come to.
    sweep: (usize, u64),
    last_turn: Option<Instant>,
    /// Batches of turns since the last of the corpus.
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

    /// Inputs of turns that wait.
    #[cfg(test)]
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Inputs of the corpus that wait.
    #[cfg(test)]
    pub(super) fn corpus(&self) -> usize {
        self.corpus.len()
    }

    /// Lets go of what waits: nothing will run any more.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.turns.clear();
        self.corpus.clear();
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
