//! Runs an operator in the dataflow: joins its inputs by count, calls it, and sends its value.
//!
//! A call that is ready immediately (a search, a fusion) has no overhead. A call that waits for a model
//! continues off the worker, while the dataflow operator holds the turn's capability; its end wakes
//! the worker. A call that does little after a wait, as a search that asks other processes, continues on the worker, which
//! costs least (`Operator::continues_here`). A call with a large weight runs off the worker from the beginning
//! (`compute.rs`).
//! Turns finish in any order. Transient failures are retried after a pause, also off the worker.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tokio_util::sync::CancellationToken;

use super::retry::{self, Failed};
use super::watched::NodeRead;
use super::{Flow, RunningNode, TurnsShared};
use crate::adjust::skipped;
use crate::ask::Caller;
use crate::component::{Call, Operator, Warnings, WatchSlot};
use crate::compute::{MOST_ON_A_WORKER, apart};
use crate::document::Readers;
use crate::inference::tokens;
use crate::plan::Retries;
use crate::record::{Failure, Hits, Item, Turn, Value};
use crate::wake::WakeSlot;

/// A turn with missing inputs.
struct Waiting {
    /// The first input that arrived.
    flow: Flow,
    values: Vec<Option<Value>>,
    warnings: Vec<Arc<[String]>>,
    missing: usize,
    capability: Capability<u64>,
}

/// A call may be woken on the worker this many times.
const WAITS: u32 = 3;

/// A call that waits on the worker.
struct Suspended {
    future: BoxFuture<'static, (Flow, Duration)>,
    waker: Waker,
    /// How often it has been polled.
    polled: u32,
}

/// Wakes a call that waits on the worker.
struct WakeCall {
    sequence: u64,
    woken: Sender<u64>,
    wake: WakeSlot,
}

impl Wake for WakeCall {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _ = self.woken.send(self.sequence);
        self.wake.wake();
    }
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    (number, node, is_final): (usize, &RunningNode, bool),
    operator: Arc<dyn Operator>,
    inputs: Vec<StreamVec<'s, u64, Flow>>,
    retries: Retries,
    shared: Arc<TurnsShared>,
) -> StreamVec<'s, u64, Flow> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let ports = inputs.len();
    let mut inputs: Vec<_> = inputs.into_iter().map(|stream| builder.new_input(stream, Pipeline)).collect();
    let (output, stream) = builder.new_output::<Vec<Flow>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    let (id, port, corpora) = (node.id.clone(), node.output, node.corpora.clone());
    let activity = shared.activity.node(&id);
    builder.build(move |_| {
        let mut waiting: HashMap<u64, Waiting> = HashMap::new();
        let mut running: HashMap<u64, Capability<u64>> = HashMap::new();
        let done: Arc<Mutex<Vec<(Flow, Duration)>>> = Arc::default();
        let mut suspended: HashMap<u64, Suspended> = HashMap::new();
        let (woken_by, woken) = unbounded();
        move |_| {
            let mut complete: Vec<Waiting> = Vec::new();
            for (port, input) in inputs.iter_mut().enumerate() {
                input.for_each_stamp(|time, batches| {
                    let Some(capability) = time.retain_least(0) else { return };
                    for flow in batches.flat_map(|batch| batch.drain(..)) {
                        let Item { turn, value, warnings } = flow.item.clone();
                        let entry = waiting.entry(turn.sequence).or_insert_with(|| Waiting {
                            flow,
                            values: vec![None; ports],
                            warnings: Vec::new(),
                            missing: ports,
                            capability: capability.clone(),
                        });
                        if entry.values[port].replace(value).is_none() {
                            entry.missing -= 1;
                            entry.warnings.push(warnings);
                        }
                        if entry.missing == 0 {
                            complete.extend(waiting.remove(&turn.sequence));
                        }
                    }
                });
            }
            let mut output = output.activate();
            let _runtime = shared.handle.enter();
            for Waiting { flow, values, warnings, capability, .. } in complete {
                if let Some(cached) = &flow.context.cached {
                    let (value, warnings) = cached.at(number);
                    output.session(&capability).give(flow.then(value, warnings));
                    continue;
                }
                let inputs: Vec<Value> = values.into_iter().flatten().collect();
                let caller = flow.context.caller.as_ref();
                if caller.is_some_and(|caller| !caller.wants(number)) {
                    let value = Value::Failed(Failure::new(id.clone(), "the caller does not need it"));
                    output.session(&capability).give(flow.then(value, together(&id, &warnings, Vec::new())));
                    continue;
                }
                let failed = inputs.iter().find(|value| matches!(value, Value::Failed(_))).cloned();
                if let (Some(_), Some(reads)) = (&failed, &flow.context.reads) {
                    reads.lock().has_failed = true;
                }
                if let Some(value) = failed.filter(|_| !operator.takes_failures()) {
                    let flow = flow.then(value, together(&id, &warnings, Vec::new()));
                    shared.observe(&id, &flow, None);
                    output.session(&capability).give(flow);
                    continue;
                }
                let adjust = caller.map(Caller::adjust);
                if adjust.is_some_and(|adjust| adjust.skip.contains(&id)) {
                    let value = port.and_then(|port| skipped(port, &inputs, &flow.item.turn));
                    let value =
                        value.unwrap_or_else(|| Value::Failed(Failure::new(id.clone(), "it cannot be skipped")));
                    let note = "skipped by the caller".to_owned();
                    let flow = flow.then(value, together(&id, &warnings, vec![note]));
                    shared.observe(&id, &flow, None);
                    output.session(&capability).give(flow);
                    continue;
                }
                let new = Warnings::default();
                let weights = adjust.and_then(|adjust| adjust.weights.get(&id)).cloned();
                if let Some(weights) = &weights {
                    new.add(format!("the caller's weights {weights:?}"));
                }
                let format = adjust.and_then(|adjust| adjust.formats.get(&id)).cloned();
                if format.is_some() {
                    new.add("the caller's form of the reply".to_owned());
                }
                let snapshot = flow.context.snapshot.snapshot().clone();
                shared.activity.warn_of_absences(&corpora, &flow.item.turn, &snapshot, &new);
                let stream = caller.map(|caller| caller.stream(&id)).unwrap_or_default();
                let cancelled = caller.map(|caller| caller.cancel().clone());
                let left = cancelled.clone();
                let turn = flow.item.turn.clone();
                let asker = turn.clone();
                let sequence = turn.sequence;
                let reads = flow.context.reads.as_ref().filter(|_| !corpora.is_empty());
                let watch = reads.map(|_| WatchSlot::wanted()).unwrap_or_default();
                let read = reads.map(|_| corpora.iter().map(|corpus| snapshot.real_name(corpus, &turn)).collect());
                let said = watch.clone();
                let call = Call { turn, inputs, snapshot, warnings: new.clone(), stream, weights, format, watch };
                let operator = operator.clone();
                let node = id.clone();
                // If the weight panics, the call is made anyway and reports the failure.
                let weight = catch_unwind(AssertUnwindSafe(|| operator.weight(&call)));
                let is_long = weight.is_ok_and(|weight| weight > MOST_ON_A_WORKER);
                let here = catch_unwind(AssertUnwindSafe(|| operator.continues_here(&call))).unwrap_or(false);
                let (begun, counted, by_model) = (Instant::now(), activity.clone(), shared.clone());
                counted.begins();
                let mut future: BoxFuture<'static, _> = Box::pin(async move {
                    let called = unless_cancelled(cancelled, retry::call(operator, call, retries));
                    let (called, tokens) = tokens::counted(called).await;
                    asker.tokens.add(&node, &tokens);
                    by_model.activity.spent(&tokens);
                    let value = match called {
                        Ok(value) => readable(value, &asker)
                            .unwrap_or_else(|reason| Value::Failed(Failure::new(node.clone(), reason))),
                        Err(Failed { reason, of_form }) => {
                            Value::Failed(Failure { of_form, ..Failure::new(node.clone(), reason) })
                        }
                    };
                    // A turn whose caller has left is not the node's failure.
                    let has_left = left.is_some_and(|left| left.is_cancelled());
                    let has_failed = matches!(value, Value::Failed(_)) && !has_left;
                    let warnings = together(&node, &warnings, new.take());
                    if let Some(reads) = &flow.context.reads {
                        let mut reads = reads.lock();
                        reads.has_failed |= has_failed;
                        let watch = said.take();
                        reads.nodes.extend(read.map(|corpora| NodeRead { node: number, corpora, watch }));
                        if is_final && flow.context.key.is_some() {
                            reads.values.push((number, value.clone(), warnings.clone()));
                        }
                    }
                    let took = begun.elapsed();
                    counted.ends(took, has_failed);
                    (flow.then(value, warnings), took)
                });
                let waker = match here && !is_long {
                    true => {
                        let (woken, wake) = (woken_by.clone(), wake.clone());
                        Waker::from(Arc::new(WakeCall { sequence, woken, wake }))
                    }
                    false => Waker::noop().clone(),
                };
                let polled = match is_long {
                    true => Poll::Pending,
                    false => future.poll_unpin(&mut Context::from_waker(&waker)),
                };
                match polled {
                    Poll::Ready((flow, took)) => {
                        shared.observe(&id, &flow, Some(took));
                        output.session(&capability).give(flow);
                    }
                    Poll::Pending => {
                        running.insert(sequence, capability);
                        if here && !is_long {
                            suspended.insert(sequence, Suspended { future, waker, polled: 1 });
                            continue;
                        }
                        let (done, wake) = (done.clone(), wake.clone());
                        shared.handle.spawn(async move {
                            let ended = if is_long { apart(future).await } else { future.await };
                            done.lock().push(ended);
                            wake.wake();
                        });
                    }
                }
            }
            for sequence in woken.try_iter() {
                // It may have ended, or have been moved, since it was woken.
                let Some(mut call) = suspended.remove(&sequence) else { continue };
                match call.future.poll_unpin(&mut Context::from_waker(&call.waker)) {
                    Poll::Ready(ended) => done.lock().push(ended),
                    Poll::Pending if call.polled < WAITS => {
                        call.polled += 1;
                        suspended.insert(sequence, call);
                    }
                    Poll::Pending => {
                        let (done, wake) = (done.clone(), wake.clone());
                        shared.handle.spawn(async move {
                            let ended = call.future.await;
                            done.lock().push(ended);
                            wake.wake();
                        });
                    }
                }
            }
            for (flow, took) in done.lock().drain(..) {
                if let Some(capability) = running.remove(&flow.item.turn.sequence) {
                    shared.observe(&id, &flow, Some(took));
                    output.session(&capability).give(flow);
                }
            }
        }
    });
    stream
}

/// The value without hits that the turn may not find. Operators keep to
/// [`CorpusSnapshot::permitted`](crate::component::CorpusSnapshot::permitted); this holds for those that do not, too.
fn readable(value: Value, turn: &Turn) -> Result<Value, &'static str> {
    let hits = match &value {
        Value::Hits(hits) => &hits.hits,
        Value::Prompt(made) => &made.hits,
        Value::Answer(answer) => &answer.hits,
        Value::Turn | Value::Query(_) | Value::Failed(_) => return Ok(value),
    };
    if turn.filter.is_none() && hits.iter().all(|hit| hit.chunk.readers == Readers::All) {
        return Ok(value);
    }
    let may_find = turn.may_find(hits.iter().map(|hit| &*hit.chunk));
    if may_find.iter().all(|may_find| *may_find) {
        return Ok(value);
    }
    match value {
        Value::Hits(hits) => {
            let permitted = hits.hits.iter().zip(may_find).filter(|(_, may_find)| *may_find);
            let permitted = permitted.map(|(hit, _)| hit.clone()).collect();
            Ok(Value::Hits(Arc::new(Hits { query: hits.query.clone(), hits: permitted })))
        }
        _ => Err("it used a passage that the turn's principal may not read, or that its filter leaves out"),
    }
}

/// The result of a call. If the caller cancels first, the call and its model calls are dropped.
async fn unless_cancelled(
    cancelled: Option<CancellationToken>,
    call: impl Future<Output = Result<Value, Failed>>,
) -> Result<Value, Failed> {
    let Some(cancelled) = cancelled else { return call.await };
    cancelled.run_until_cancelled(call).await.unwrap_or_else(|| Err("the caller cancelled the turn".into()))
}

/// The warnings of all inputs and of this node, sorted and without duplicates.
fn together(node: &str, inputs: &[Arc<[String]>], own: Vec<String>) -> Arc<[String]> {
    match inputs {
        [only] if own.is_empty() => only.clone(),
        _ => {
            let mut all: Vec<String> = inputs.iter().flat_map(|warnings| warnings.iter().cloned()).collect();
            all.extend(own.into_iter().map(|note| format!("{node}: {note}")));
            all.sort_unstable();
            all.dedup();
            all.into()
        }
    }
}
