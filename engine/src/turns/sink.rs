//! The wiring of a sink: writes each answer's record, and passes the item on to delivery.
//!
//! A sink that cannot write (a full disk) keeps its turns in order and tries again; meanwhile
//! the turns count as in flight, which holds the sources back.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Map;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::standing::revision;
use super::{Generation, Local, RunningNode, TurnsShared};
use crate::durable::SinkHandle;
use crate::plan::AnswerMode;
use crate::record::{AnswerRecord, HitRecord, Item, Stamp, Status, Value};

/// Between attempts at a sink that fails.
const RETRY: Duration = Duration::from_secs(1);

/// An item on its way into the sink: what is still to be written of it, and what the sink then has.
struct Entering {
    item: Item,
    capability: Capability<u64>,
    records: VecDeque<AnswerRecord>,
    then: Option<AnswerRecord>,
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    node: &RunningNode,
    sink: Option<Arc<SinkHandle>>,
    inputs: Vec<StreamVec<'s, u64, Item>>,
    generation: &Arc<Generation>,
    shared: Arc<TurnsShared>,
    local: Rc<Local>,
) -> StreamVec<'s, u64, Item> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let mut inputs: Vec<_> = inputs.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (output, stream) = builder.new_output::<Vec<Item>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let activator = scope.activator_for(builder.operator_info().address);
    let id = node.id.clone();
    let (stamp, live) = (generation.stamp.clone(), generation.live.contains(&node.id));
    // What can be looked into later is known even while it gets no revisions.
    let noted = live || (generation.mode != AnswerMode::Once && sink.as_ref().is_some_and(|sink| sink.is_kept()));
    builder.build(move |_| {
        let mut queue: VecDeque<Entering> = VecDeque::new();
        move |_| {
            for input in &mut inputs {
                input.for_each_stamp(|time, batches| {
                    let Some(capability) = time.retain_least(0) else { return };
                    for item in batches.flat_map(|batch| batch.drain(..)) {
                        let record = sink.as_ref().map(|_| record(&item, &stamp, shared.now_us()));
                        let (records, then) = entering(&item, record, live, noted, &id);
                        queue.push_back(Entering { item, capability: capability.clone(), records, then });
                    }
                });
            }
            let mut output = output.activate();
            while let Some(mut entering) = queue.pop_front() {
                while let (Some(sink), Some(record)) = (&sink, entering.records.front()) {
                    if entering.item.turn.standing.is_some() {
                        sink.hold(&entering.item.turn.key);
                    }
                    if let Err(error) = sink.deliver(record) {
                        tracing::error!(node = %id, %error, waiting = queue.len() + 1, "the sink failed; trying again");
                        break;
                    }
                    shared.revised.fetch_add(u64::from(record.revision > 0 && !record.retracted), Ordering::AcqRel);
                    entering.records.pop_front();
                }
                if !entering.records.is_empty() {
                    queue.push_front(entering);
                    activator.activate_after(RETRY);
                    break;
                }
                let Entering { item, capability, then, .. } = entering;
                if let Some(then) = then {
                    local.standing.note(item.turn.sequence, &id, then);
                }
                shared.observe(&id, &item);
                output.session(&capability).give(item);
            }
        }
    });
    stream
}

/// What a sink is to get of an item, and what it has of the turn then, if that is to be known.
fn entering(
    item: &Item,
    record: Option<AnswerRecord>,
    live: bool,
    noted: bool,
    id: &Arc<str>,
) -> (VecDeque<AnswerRecord>, Option<AnswerRecord>) {
    let Some(record) = record else { return Default::default() };
    let Some(standing) = &item.turn.standing else {
        let then = noted.then(|| record.clone());
        return (VecDeque::from([record]), then);
    };
    match standing.get(id) {
        // The first answer is all that it gets.
        _ if !live => Default::default(),
        Some(standing) => {
            let records = revision(standing, record);
            let then = records.last().unwrap_or(standing).clone();
            (records.into(), Some(then))
        }
        // A sink that has come since the turn was answered gets what comes next.
        None => (VecDeque::new(), Some(record)),
    }
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
        retracted: false,
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
