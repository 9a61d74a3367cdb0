//! The queue of inputs for a model, and the selection of the next batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::waiting::{Bounds, Waiting};
use super::{Backend, Limits};
use crate::inference::{InferenceError, Priority};

/// Time after a turn's request during which corpus batches stay small.
const TURNS_ABOUT: Duration = Duration::from_secs(1);

/// Maximum consecutive turn batches while corpus inputs wait.
const TURN_BATCHES: usize = 3;

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
    pub(super) fn abandoned(&self) -> bool {
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
    turns: Waiting<B>,
    corpus: Waiting<B>,
    last_turn: Option<Instant>,
    /// Turn batches since the last corpus batch.
    turn_batches: usize,
    pub(super) ended: bool,
}

impl<B: Backend> Queue<B> {
    pub(super) fn new() -> Self {
        Self { turns: Waiting::new(), corpus: Waiting::new(), last_turn: None, turn_batches: 0, ended: false }
    }

    pub(super) fn push(&mut self, job: Job<B>, priority: Priority) {
        match priority {
            Priority::Turn => {
                self.last_turn = Some(Instant::now());
                self.turns.push(job);
            }
            Priority::Corpus => self.corpus.push(job),
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

/// Takes the next batch: turns first, then corpus inputs. After [`TURN_BATCHES`] turn batches, one small
/// corpus batch is due, so that a steady flow of turns does not starve the corpus.
pub(super) fn take_batch<B: Backend>(queue: &mut Queue<B>, limits: Limits) -> Vec<Job<B>> {
    let all = Bounds { inputs: limits.batch_inputs, tokens: limits.batch_tokens, overhead: limits.batch_overhead };
    let corpus_is_due = queue.turn_batches >= TURN_BATCHES && !queue.corpus.is_empty();
    if !corpus_is_due {
        let batch = queue.turns.take_oldest(all);
        if !batch.is_empty() {
            queue.turn_batches += 1;
            return batch;
        }
    }
    queue.turn_batches = 0;
    let turns_about = queue.last_turn.is_some_and(|at| at.elapsed() < TURNS_ABOUT);
    let bounds = if turns_about {
        Bounds { inputs: (limits.batch_inputs / 8).max(1), tokens: limits.batch_tokens / 8, ..all }
    } else {
        all
    };
    queue.corpus.take_swept(bounds)
}
