//! Turns of callers: any worker may start them, and they belong to no conversation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Flow, Running, RunningNode, TurnsShared, WorkerState};
use crate::ask::{AskError, Asked, Event};
use crate::record::Turn;

/// The range of sequences for turns of callers; sources have the ranges from 0.
const SEQUENCES: u64 = 0xff_fffe << 40;

/// Starts all turns that have a slot.
pub(super) fn begin(shared: &TurnsShared, local: &WorkerState) {
    let places = shared.limits.read().max_in_flight;
    while let Some(asked) = shared.asks.next(&shared.slots, places) {
        if let Err((asked, reason)) = start(asked, shared, local) {
            asked.caller.tell(Event::Failed { reason });
            shared.slots.give_back(places);
        }
    }
}

fn start(asked: Asked, shared: &TurnsShared, local: &WorkerState) -> Result<(), (Box<Asked>, AskError)> {
    let snapshot = shared.epochs.pin();
    let generation = shared.generations.read().get(&snapshot.plan).cloned();
    let source = match (&asked.request.source, &generation) {
        (Some(source), _) => Some(source.clone()),
        (None, Some(generation)) => generation.sources().next().cloned(),
        (None, None) => None,
    };
    let Some(source) = source else { return Err((Box::new(asked), AskError::NoSource)) };
    let Some(ingress) = local.ingress(snapshot.plan, &source) else {
        return Err((Box::new(asked), AskError::UnknownSource { source_name: source }));
    };
    let nodes = generation.as_ref().map(|generation| &generation.nodes[..]).unwrap_or_default();
    let checked = match asked.request.adjust.is_empty() {
        true => Ok(()),
        false => asked.request.adjust.check(nodes),
    };
    let until = asked.request.until.clone();
    let runs = match checked.and_then(|()| until.map(|until| up_to(&until, nodes)).transpose()) {
        Ok(runs) => runs,
        Err((node, problem)) => return Err((Box::new(asked), AskError::Adjustment { node, problem })),
    };
    let Asked { request, caller, alike } = asked;
    let caller = caller.of(runs);
    caller.tell(Event::Started { epoch: snapshot.epoch });
    let number = shared.asks.number();
    let turn = Turn {
        key: key(&request.conversation_id, &request.text, shared.shape.process, number),
        conversation_id: request.conversation_id,
        turn: request.turn,
        text: request.text,
        history: request.history,
        collection: request.collection,
        timestamp: request.timestamp,
        extra: request.extra,
        position: "asked".into(),
        epoch: snapshot.epoch,
        entered_us: shared.now_us(),
        filter: request.filter,
        sequence: SEQUENCES | number,
        source: source.clone(),
        standing: None,
        computed_at: None,
        similar_to: None,
        tokens: Default::default(),
    };
    shared.outstanding.fetch_add(1, Ordering::AcqRel);
    let flow = Flow::begin(turn, snapshot, (Some(caller), alike), shared);
    shared.observe(&source, &flow, None);
    ingress.give(flow);
    Ok(())
}

/// By number, the nodes that a node's value needs: itself, and those before it. Returns the node and the problem if there is
/// no such operator.
fn up_to(until: &Arc<str>, nodes: &[RunningNode]) -> Result<Arc<[bool]>, (Arc<str>, String)> {
    let last = nodes.iter().position(|node| node.id == *until && matches!(node.running, Running::Operator(_)));
    let last = last.ok_or_else(|| (until.clone(), "the pipeline has no such operator".to_owned()))?;
    let mut needed = vec![false; nodes.len()];
    let mut open = vec![last];
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut needed[node], true) {
            open.extend(&nodes[node].inputs);
        }
    }
    Ok(needed.into())
}

/// A unique key for each question.
fn key(conversation: &str, text: &str, process: usize, number: u64) -> Arc<str> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let parts = [conversation, text, &process.to_string(), &number.to_string(), &now.as_nanos().to_string()];
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].into()
}
