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
use super::{Flow, Generation, RunningNode, TurnsShared, WorkerState};
use crate::durable::SinkHandle;
use crate::plan::AnswerMode;
use crate::record::{AnswerRecord, HitRecord, Item, Provenance, Status, Value};

/// Between attempts at a sink that fails.
const RETRY: Duration = Duration::from_secs(1);

/// An item on its way into the sink: what is still to be written of it, and what the sink then has.
struct Entering {
    flow: Flow,
    capability: Capability<u64>,
    records: VecDeque<AnswerRecord>,
    then: Option<AnswerRecord>,
    /// What it has then is to be known when the turn is answered again.
    is_noted: bool,
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    node: &RunningNode,
    sink: Option<Arc<SinkHandle>>,
    inputs: Vec<StreamVec<'s, u64, Flow>>,
    generation: &Arc<Generation>,
    shared: Arc<TurnsShared>,
    local: Rc<WorkerState>,
) -> StreamVec<'s, u64, Flow> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let mut inputs: Vec<_> = inputs.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (output, stream) = builder.new_output::<Vec<Flow>>();
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
                    for flow in batches.flat_map(|batch| batch.drain(..)) {
                        let item = &flow.item;
                        // What a caller asks is the caller's alone.
                        let is_written = sink.is_some() && flow.context.caller.is_none();
                        let record = is_written.then(|| record(item, &stamp, shared.now_us()));
                        let (records, then) = entering(item, record, live, noted, &id);
                        let is_again = item.turn.standing.is_some();
                        let is_noted = is_written && if is_again { live } else { noted };
                        queue.push_back(Entering { flow, is_noted, capability: capability.clone(), records, then });
                    }
                });
            }
            let mut output = output.activate();
            while let Some(mut entering) = queue.pop_front() {
                while let (Some(sink), Some(record)) = (&sink, entering.records.front()) {
                    if entering.flow.item.turn.standing.is_some() {
                        sink.hold(&entering.flow.item.turn.key);
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
                let Entering { flow, capability, is_noted, then, .. } = entering;
                if is_noted {
                    local.standing.note(flow.item.turn.sequence, &id, then);
                }
                shared.observe(&id, &flow);
                output.session(&capability).give(flow);
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
        // A sink that has come since the turn was answered gets the next answer that says something
        // else, as the first that it has.
        None if record.error.is_some() || standing.values().any(|known| record.says_what(known)) => Default::default(),
        None => (VecDeque::from([record.clone()]), Some(record)),
    }
}

fn owned((name, value): (&String, &serde_json::Value)) -> (String, serde_json::Value) {
    (name.clone(), value.clone())
}

/// The record of an answer, of what was found where nothing answers, or of a failure.
pub(crate) fn record(item: &Item, stamp: &Provenance, now_us: u64) -> AnswerRecord {
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
        stamp: Provenance { epoch: turn.epoch, warnings: item.warnings.clone(), ..stamp.clone() },
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
        Value::Hits(hits) => {
            record.status = Status::Answered;
            record.query = hits.query.text.clone();
            record.hits = hits.hits.iter().map(HitRecord::from).collect();
        }
        Value::Failed(failure) => record.error = Some(format!("node `{}`: {}", failure.node, failure.reason)),
        Value::Turn | Value::Query(_) | Value::Prompt(_) => record.error = Some("no answer reached the sink".into()),
    }
    record
}
