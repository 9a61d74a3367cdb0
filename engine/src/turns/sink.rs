//! Runs a sink in the dataflow: sends the record of each answer to the sink's own thread, and passes
//! the item on to delivery when the sink has acknowledged it.
//!
//! Turns that wait for a sink release their slots. When as many answers wait as there are slots,
//! back-pressure holds back the sources of this sink.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Map;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::standing::revision;
use super::{Flow, Generation, RunningNode, TurnsShared, WorkerState};
use crate::plan::AnswerMode;
use crate::record::{AnswerRecord, HitRecord, Item, Provenance, Status, Value};
use crate::sinks::{Acknowledged, SinkHandle, Ticket};
use crate::wake::WakeSlot;

/// An item that passes through the sink.
struct Entering {
    flow: Flow,
    capability: Capability<u64>,
    /// The record that the sink has of the turn afterwards.
    then: Option<AnswerRecord>,
    /// Whether that record must be known when the turn is answered again.
    is_noted: bool,
    /// Whether that record differs from the answer.
    is_stale: bool,
    /// Number of revisions.
    revised: u64,
}

#[allow(clippy::too_many_arguments)]
pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    node: &RunningNode,
    sink: Option<Arc<SinkHandle>>,
    inputs: Vec<StreamVec<'s, u64, Flow>>,
    generation: &Arc<Generation>,
    ends: Rc<HashMap<Arc<str>, usize>>,
    shared: Arc<TurnsShared>,
    local: Rc<WorkerState>,
) -> StreamVec<'s, u64, Flow> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let mut inputs: Vec<_> = inputs.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (output, stream) = builder.new_output::<Vec<Flow>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    let acknowledged = Acknowledged::new(move || wake.wake());
    let id = node.id.clone();
    let (stamp, live) = (generation.stamp.clone(), generation.live.contains(&node.id));
    // Sinks whose contents can be read back are noted even while they get no revisions.
    let noted = live || (generation.mode != AnswerMode::Once && sink.as_ref().is_some_and(|sink| sink.is_kept()));
    builder.build(move |_| {
        let mut waiting: HashMap<Ticket, Entering> = HashMap::new();
        move |_| {
            let mut through: Vec<Entering> = Vec::new();
            for input in &mut inputs {
                input.for_each_stamp(|time, batches| {
                    let Some(capability) = time.retain_least(0) else { return };
                    for flow in batches.flat_map(|batch| batch.drain(..)) {
                        let (item, mut is_stale) = (&flow.item, false);
                        shared.reaches(&flow.context, ends.get(&item.turn.source).copied().unwrap_or(1));
                        if let (Some(caller), Some(sink)) = (&flow.context.caller, &sink)
                            && sink.takes_callers
                            && item.turn.standing.is_none()
                            && caller.counts()
                        {
                            sink.deliver_of_caller(record(item, &stamp, shared.now_us()));
                        }
                        // Other sinks get no answer to a caller's turn.
                        let sink = sink.as_ref().filter(|_| flow.context.caller.is_none());
                        let record = sink.map(|_| record(item, &stamp, shared.now_us()));
                        let (records, mut then) = entering(item, record, live, noted, &id);
                        let is_again = item.turn.standing.is_some();
                        // Another sink lacked the answer of an earlier process. This one has it, and
                        // keeps it until the turn is answered again.
                        let known = sink.filter(|_| then.is_some() && !is_again);
                        if let Some(known) = known.and_then(|sink| sink.record(&item.turn.key)) {
                            is_stale = then.as_ref().is_some_and(|then| !then.says_what(&known));
                            then = Some(known);
                        }
                        let is_noted = sink.is_some() && if is_again { live } else { noted };
                        let revised = records.iter().filter(|record| record.revision > 0 && !record.retracted).count();
                        let (key, capability) = (item.turn.key.clone(), capability.clone());
                        let revised = revised as u64;
                        let entering = Entering { flow, is_noted, is_stale, capability, then, revised };
                        match sink.filter(|_| !records.is_empty()) {
                            Some(sink) => {
                                if is_again {
                                    sink.hold(&key);
                                }
                                waiting.insert(sink.deliver(records, &acknowledged), entering);
                            }
                            // The sink gets nothing.
                            None => through.push(entering),
                        }
                    }
                });
            }
            through.extend(acknowledged.take().into_iter().filter_map(|ticket| waiting.remove(&ticket)));
            let mut output = output.activate();
            for Entering { flow, capability, is_noted, is_stale, then, revised } in through {
                shared.revised.fetch_add(revised, Ordering::AcqRel);
                if is_noted {
                    local.standing.note(flow.item.turn.sequence, &id, then, is_stale);
                }
                shared.observe(&id, &flow, None);
                output.session(&capability).give(flow);
            }
        }
    });
    stream
}

/// The records to deliver for an item, and the record that the sink has afterwards, if it is noted.
fn entering(
    item: &Item,
    record: Option<AnswerRecord>,
    live: bool,
    noted: bool,
    id: &Arc<str>,
) -> (Vec<AnswerRecord>, Option<AnswerRecord>) {
    let Some(record) = record else { return Default::default() };
    let Some(standing) = &item.turn.standing else {
        let then = noted.then(|| record.clone());
        return (vec![record], then);
    };
    match standing.get(id) {
        // This sink gets only the first answer.
        _ if !live => Default::default(),
        Some(standing) => {
            let records = revision(standing, record);
            let then = records.last().unwrap_or(standing).clone();
            (records, Some(then))
        }
        // A sink that was added after the turn was answered gets the next different answer, as its
        // first one.
        None if record.error.is_some() || standing.values().any(|known| record.says_what(known)) => Default::default(),
        None => (vec![record.clone()], Some(record)),
    }
}

fn owned((name, value): (&String, &serde_json::Value)) -> (String, serde_json::Value) {
    (name.clone(), value.clone())
}

/// The record of an answer, of hits, of a query or of a failure.
pub(crate) fn record(item: &Item, stamp: &Provenance, now_us: u64) -> AnswerRecord {
    let turn = &item.turn;
    let mut record = AnswerRecord {
        conversation_id: turn.conversation_id.clone(),
        turn: turn.turn,
        revision: 0,
        key: turn.key.clone(),
        retracted: false,
        withdrawn: false,
        status: Status::Failed,
        query: "".into(),
        answer: "".into(),
        error: None,
        hits: Vec::new(),
        checks: Map::new(),
        stamp: Provenance {
            epoch: turn.epoch,
            computed_at: turn.computed_at,
            similar_to: turn.similar_to.clone(),
            warnings: item.warnings.clone(),
            ..stamp.clone()
        },
        latency_ms: now_us.saturating_sub(turn.entered_us) as f64 / 1000.0,
        tokens: turn.tokens.all(),
        timestamp: turn.timestamp,
        question: Some(turn.asked()),
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
        Value::Query(query) => {
            record.status = Status::Answered;
            record.query = query.text.clone();
        }
        Value::Turn | Value::Prompt(_) => record.error = Some("no answer reached the sink".into()),
    }
    record
}
