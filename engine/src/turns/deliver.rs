//! Delivery: a turn is done when every leaf of the graph that it reaches has its value. Then its
//! epoch is released, its conversation continues, and the sources may read more.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{Delivered, Flow, Generation, TurnsShared, WorkerState, record};
use crate::ask::Caller;
use crate::plan::{AnswerMode, FailedTurns};
use crate::record::{Failure, Item, Turn, Value};

struct Ending {
    missing: usize,
    reply: Option<Arc<str>>,
    failure: Option<Failure>,
    /// The value for a caller: answers rank before hits, and hits before failures.
    best: Option<Item>,
    /// A value has warnings.
    warns: bool,
}

impl Ending {
    fn tell(&mut self, item: Item) {
        let rank = |item: &Item| match item.value {
            Value::Answer(_) => 3,
            Value::Hits(_) => 2,
            Value::Failed(_) => 1,
            Value::Turn | Value::Query(_) | Value::Prompt(_) => 0,
        };
        if self.best.as_ref().is_none_or(|best| rank(best) < rank(&item)) {
            self.best = Some(item);
        }
    }
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    leaves: Vec<StreamVec<'s, u64, Flow>>,
    ends: Rc<HashMap<Arc<str>, usize>>,
    generation: &Generation,
    local: Rc<WorkerState>,
    shared: Arc<TurnsShared>,
) {
    let mut builder = OperatorBuilder::new("Delivered".to_owned(), scope);
    let mut inputs: Vec<_> = leaves.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (mode, failed_turns) = (generation.mode.clone(), generation.failed_turns);
    let stamp = generation.stamp.clone();
    builder.build(move |_| {
        let mut ending: HashMap<u64, Ending> = HashMap::new();
        move |_| {
            for input in &mut inputs {
                input.for_each_stamp(|_, batches| {
                    for flow in batches.flat_map(|batch| batch.drain(..)) {
                        let turn = flow.item.turn.clone();
                        let missing = ends.get(&turn.source).copied().unwrap_or(1);
                        let new = || Ending { missing, reply: None, failure: None, best: None, warns: false };
                        let entry = ending.entry(turn.sequence).or_insert_with(new);
                        entry.missing -= 1;
                        entry.warns |= !flow.item.warnings.is_empty();
                        match &flow.item.value {
                            Value::Answer(answer) => {
                                entry.reply.get_or_insert_with(|| answer.text.clone());
                            }
                            Value::Failed(failure) => {
                                entry.failure.get_or_insert_with(|| failure.clone());
                            }
                            _ => {}
                        }
                        if flow.context.caller.is_some() || shared.watcher.is_some() {
                            entry.tell(flow.item.clone());
                        }
                        if entry.missing > 0 {
                            continue;
                        }
                        let Some(Ending { reply, failure, best, warns, .. }) = ending.remove(&turn.sequence) else {
                            continue;
                        };
                        shared.turn_ends(&flow.context);
                        let took = Duration::from_micros(shared.now_us().saturating_sub(turn.entered_us));
                        let is_wanted = !flow.context.caller.as_ref().is_some_and(Caller::wants_no_answer);
                        let is_first = turn.standing.is_none() && is_wanted;
                        if is_first {
                            shared.activity.answered(&turn.source, took, failure.is_some());
                        }
                        let is_odd = failure.is_some() || warns;
                        let record = best.map(|item| record(&item, &stamp, shared.now_us()));
                        if let (Some(record), Some(watcher), true) = (&record, &shared.watcher, is_first) {
                            watcher.answered(&turn, record, took);
                        }
                        if flow.context.caller.is_some() {
                            if is_first {
                                shared.asks.answered();
                            }
                            local.standing.told(&turn, &flow.context, record, (failure.is_some(), is_odd), &shared);
                            continue;
                        }
                        if mode != AnswerMode::Once || turn.standing.is_some() {
                            local.standing.settle(&turn, &flow.context, (failure.is_some(), is_odd), &mode, &shared);
                        } else {
                            local.standing.keep(&turn, &flow.context, is_odd, &shared);
                        }
                        if turn.standing.is_some() {
                            // Its conversation continued after the first answer.
                            continue;
                        }
                        if let Some(failure) = failure.filter(|_| failed_turns == FailedTurns::DeadLetter) {
                            write_dead_letter(&turn, &failure, &shared);
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

/// Writes a failed turn to the dead letters, once for all sinks.
fn write_dead_letter(turn: &Turn, failure: &Failure, shared: &TurnsShared) {
    // Serialisation fails only for maps with keys that are not strings, and there are none.
    let record = serde_json::to_vec(&turn.record()).unwrap_or_default();
    let reason = format!("node `{}`: {}", failure.node, failure.reason);
    shared.dead.write(&turn.source, &turn.position, &reason, &record);
}
