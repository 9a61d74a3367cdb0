//! The wiring of a sink: writes each answer's record, and passes the item on to delivery.
//!
//! A sink that cannot write (a full disk) keeps its turns in order and tries again; meanwhile
//! the turns count as in flight, which holds the sources back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{RunningNode, TurnsShared};
use crate::durable::SinkHandle;
use crate::record::{AnswerRecord, HitRecord, Item, Stamp, Status, Value};

/// Between attempts at a sink that fails.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    node: &RunningNode,
    sink: Option<Arc<SinkHandle>>,
    inputs: Vec<StreamVec<'s, u64, Item>>,
    stamp: Stamp,
    shared: Arc<TurnsShared>,
) -> StreamVec<'s, u64, Item> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let mut inputs: Vec<_> = inputs.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (output, stream) = builder.new_output::<Vec<Item>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let activator = scope.activator_for(builder.operator_info().address);
    let id = node.id.clone();
    builder.build(move |_| {
        let mut queue: VecDeque<(Item, Capability<u64>)> = VecDeque::new();
        move |_| {
            for input in &mut inputs {
                input.for_each_stamp(|time, batches| {
                    let Some(capability) = time.retain_least(0) else { return };
                    queue.extend(batches.flat_map(|batch| batch.drain(..)).map(|item| (item, capability.clone())));
                });
            }
            let mut output = output.activate();
            while let Some((item, capability)) = queue.pop_front() {
                if let Some(sink) = &sink {
                    let record = record(&item, &stamp, shared.now_us());
                    if let Err(error) = sink.deliver(&record) {
                        tracing::error!(node = %id, %error, waiting = queue.len() + 1, "the sink failed; trying again");
                        queue.push_front((item, capability));
                        activator.activate_after(RETRY);
                        break;
                    }
                }
                shared.observe(&id, &item);
                output.session(&capability).give(item);
            }
        }
    });
    stream
}

fn owned((name, value): (&String, &serde_json::Value)) -> (String, serde_json::Value) {
    (name.clone(), value.clone())
}

/// The record of an answer, or of a failure.
pub(crate) fn record(item: &Item, stamp: &Stamp, now_us: u64) -> AnswerRecord {
    let turn = &item.turn;
    let mut record = AnswerRecord {
        conversation_id: turn.conversation_id.clone(),
        turn: turn.turn,
        revision: 0,
        key: turn.key.clone(),
        status: Status::Failed,
        query: "".into(),
        answer: "".into(),
        error: None,
        hits: Vec::new(),
        checks: Map::new(),
        stamp: Stamp { epoch: turn.epoch, notes: item.notes.clone(), ..stamp.clone() },
        latency_ms: now_us.saturating_sub(turn.entered_us) as f64 / 1000.0,
        extra: turn.extra.iter().filter(|(name, _)| !AnswerRecord::has(name)).map(owned).collect(),
    };
    match &item.value {
        Value::Answer(answer) => {
            record.status = answer.status;
            record.query = answer.query.text.clone();
            record.answer = answer.text.clone();
            record.hits = answer.hits.iter().map(HitRecord::from).collect();
            record.checks = answer.checks.clone();
        }
        Value::Failed(failure) => record.error = Some(format!("node `{}`: {}", failure.node, failure.reason)),
        Value::Turn | Value::Query(_) | Value::Hits(_) | Value::Prompt(_) => {
            record.error = Some("no answer reached the sink".into())
        }
    }
    record
}
