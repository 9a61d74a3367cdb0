//! Delivery: a turn is done when every end of the graph that it reaches has its value.
//! Then its epoch is let go, its conversation goes on, and the sources may read more.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{Delivered, Generation, Local, TurnsShared};
use crate::plan::{AnswerMode, FailedTurns};
use crate::record::{Failure, Item, Turn, Value};

struct Ending {
    missing: usize,
    reply: Option<Arc<str>>,
    failure: Option<Failure>,
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    leaves: Vec<StreamVec<'s, u64, Item>>,
    ends: HashMap<Arc<str>, usize>,
    generation: &Generation,
    local: Rc<Local>,
    shared: Arc<TurnsShared>,
) {
    let mut builder = OperatorBuilder::new("Delivered".to_owned(), scope);
    let mut inputs: Vec<_> = leaves.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (mode, failed_turns) = (generation.mode.clone(), generation.failed_turns);
    builder.build(move |_| {
        let mut ending: HashMap<u64, Ending> = HashMap::new();
        move |_| {
            for input in &mut inputs {
                input.for_each_stamp(|_, batches| {
                    for Item { turn, value, .. } in batches.flat_map(|batch| batch.drain(..)) {
                        let missing = ends.get(&turn.source).copied().unwrap_or(1);
                        let new = || Ending { missing, reply: None, failure: None };
                        let entry = ending.entry(turn.sequence).or_insert_with(new);
                        entry.missing -= 1;
                        match value {
                            Value::Answer(answer) => {
                                entry.reply.get_or_insert(answer.text.clone());
                            }
                            Value::Failed(failure) => {
                                entry.failure.get_or_insert(failure);
                            }
                            _ => {}
                        }
                        if entry.missing > 0 {
                            continue;
                        }
                        let ending = ending.remove(&turn.sequence);
                        let (reply, failure) = ending.map_or((None, None), |ending| (ending.reply, ending.failure));
                        shared.epochs.unpin(turn.epoch);
                        shared.turn_ends();
                        if mode != AnswerMode::Once || turn.standing.is_some() {
                            local.standing.settle(&turn, &mode, &shared);
                        }
                        if turn.standing.is_some() {
                            // Its conversation has gone on long since.
                            continue;
                        }
                        if let Some(failure) = failure.filter(|_| failed_turns == FailedTurns::DeadLetter) {
                            bury(&turn, &failure, &shared);
                        }
                        shared.delivered.fetch_add(1, Ordering::AcqRel);
                        if let Some(feedback) = local.feedbacks.borrow().get(&turn.source) {
                            feedback.send(Delivered {
                                conversation_id: turn.conversation_id.clone(),
                                sequence: turn.sequence,
                                reply: reply.unwrap_or_else(|| "".into()),
                            });
                        }
                    }
                });
            }
        }
    });
}

/// Keeps a turn that failed among the dead letters, once however many sinks it reaches.
fn bury(turn: &Turn, failure: &Failure, shared: &TurnsShared) {
    // Only maps with keys that are no strings cannot be written, and there are none.
    let record = serde_json::to_vec(&turn.record()).unwrap_or_default();
    let reason = format!("node `{}`: {}", failure.node, failure.reason);
    shared.dead.write(&turn.source, &turn.position, &reason, &record);
}
