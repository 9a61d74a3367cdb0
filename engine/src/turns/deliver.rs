//! Delivery: a turn is done when every end of the graph that it reaches has its value.
//! Then its epoch is let go, its conversation goes on, and the sources may read more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, probe};
use timely::dataflow::{ProbeHandle, Scope, StreamVec};

use super::{Delivered, Feedback, TurnsShared};
use crate::record::{Item, Value};

struct Ending {
    missing: usize,
    reply: Option<Arc<str>>,
    _capability: Capability<u64>,
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    leaves: Vec<StreamVec<'s, u64, Item>>,
    reach: Vec<Vec<usize>>,
    feedbacks: HashMap<usize, Feedback>,
    shared: Arc<TurnsShared>,
) -> ProbeHandle<u64> {
    // How many ends a turn of each source reaches.
    let mut ends: HashMap<usize, usize> = HashMap::new();
    for source in reach.iter().flatten() {
        *ends.entry(*source).or_default() += 1;
    }
    let mut builder = OperatorBuilder::new("Delivered".to_owned(), scope);
    let mut inputs: Vec<_> = leaves.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (_output, stream) = builder.new_output::<Vec<()>>();
    builder.build(move |_| {
        let mut ending: HashMap<u64, Ending> = HashMap::new();
        move |_| {
            for input in &mut inputs {
                input.for_each_stamp(|time, batches| {
                    let Some(capability) = time.retain_least(0) else { return };
                    for Item { turn, value, .. } in batches.flat_map(|batch| batch.drain(..)) {
                        // The source is in the sequence's upper bits.
                        let source = (turn.sequence >> 48) as usize;
                        let entry = ending.entry(turn.sequence).or_insert_with(|| Ending {
                            missing: ends.get(&source).copied().unwrap_or(1),
                            reply: None,
                            _capability: capability.clone(),
                        });
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
                        shared.delivered.fetch_add(1, Ordering::AcqRel);
                        if let Some(feedback) = feedbacks.get(&source) {
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
    let probe = ProbeHandle::new();
    probe::Probe::probe_with(stream, &probe);
    probe
}
