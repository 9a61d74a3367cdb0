//! Delivery: a turn is done when every end of the graph that it reaches has its value.
//! Then its epoch is let go, its conversation goes on, and the sources may read more.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{Delivered, Local, TurnsShared};
use crate::plan::AnswerMode;
use crate::record::{Item, Value};

struct Ending {
    missing: usize,
    reply: Option<Arc<str>>,
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    leaves: Vec<StreamVec<'s, u64, Item>>,
    ends: HashMap<Arc<str>, usize>,
    mode: AnswerMode,
    local: Rc<Local>,
    shared: Arc<TurnsShared>,
) {
    let mut builder = OperatorBuilder::new("Delivered".to_owned(), scope);
    let mut inputs: Vec<_> = leaves.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    builder.build(move |_| {
        let mut ending: HashMap<u64, Ending> = HashMap::new();
        move |_| {
            for input in &mut inputs {
                input.for_each_stamp(|_, batches| {
                    for Item { turn, value, .. } in batches.flat_map(|batch| batch.drain(..)) {
                        let missing = ends.get(&turn.source).copied().unwrap_or(1);
                        let entry = ending.entry(turn.sequence).or_insert_with(|| Ending { missing, reply: None });
                        entry.missing -= 1;
                        if let Value::Answer(answer) = &value {
                            entry.reply.get_or_insert(answer.text.clone());
                        }
                        if entry.missing > 0 {
                            continue;
                        }
                        let reply = ending.remove(&turn.sequence).and_then(|ending| ending.reply);
                        shared.epochs.unpin(turn.epoch);
                        shared.outstanding.fetch_sub(1, Ordering::AcqRel);
                        if mode != AnswerMode::Once || turn.standing.is_some() {
                            local.standing.settle(&turn, &mode, &shared);
                        }
                        if turn.standing.is_some() {
                            // Its conversation has gone on long since.
                            shared.wake_sources();
                            continue;
                        }
                        shared.delivered.fetch_add(1, Ordering::AcqRel);
                        if let Some(feedback) = local.feedbacks.borrow().get(&turn.source) {
                            feedback.send(Delivered {
                                conversation_id: turn.conversation_id.clone(),
                                sequence: turn.sequence,
                                reply: reply.unwrap_or_else(|| "".into()),
                            });
                        }
                        shared.wake_sources();
                    }
                });
            }
        }
    });
}
