//! Which node feeds which: circles, and the order to call them in.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Resolver;
use crate::plan::PlannedNode;
use crate::spec::{Diagnostic, Entry, Span};

/// By node, what feeds it, with the place where each is named.
pub(super) type Edges<'a> = BTreeMap<&'a str, Vec<(String, Span)>>;

impl Resolver<'_> {
    /// Follows inputs from every node; a node that is met while it is open closes a cycle.
    pub(super) fn cycles(&mut self, entries: &[Entry], edges: &Edges<'_>) {
        let mut done: Vec<&str> = Vec::new();
        for entry in entries {
            let mut open: Vec<&str> = Vec::new();
            if let Some((span, cycle)) = find_cycle(&entry.key.text, edges, &mut open, &mut done) {
                let path = cycle.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(" ← ");
                let message = match cycle.as_slice() {
                    [only, _] => format!("node `{only}` feeds itself"),
                    _ => format!("these nodes feed each other in a circle: {path}"),
                };
                self.diagnostics.push(Diagnostic::new("cycle", span, message).label("closes the circle"));
            }
        }
    }
}

fn find_cycle<'e>(
    id: &'e str,
    edges: &'e Edges<'_>,
    open: &mut Vec<&'e str>,
    done: &mut Vec<&'e str>,
) -> Option<(Span, Vec<String>)> {
    if done.contains(&id) {
        return None;
    }
    open.push(id);
    for (input, span) in edges.get(id).into_iter().flatten() {
        if let Some(at) = open.iter().position(|open| open == input) {
            let mut cycle: Vec<String> = open[at..].iter().map(|id| (*id).to_owned()).collect();
            cycle.push(input.clone());
            done.extend(open.iter().copied());
            return Some((*span, cycle));
        }
        if let Some(cycle) = find_cycle(input, edges, open, done) {
            return Some(cycle);
        }
    }
    open.pop();
    done.push(id);
    None
}

/// Nodes after those that feed them, else in the order of the file.
pub(super) fn order(nodes: Vec<(&Entry, PlannedNode)>, edges: &Edges<'_>) -> Vec<PlannedNode> {
    let mut waiting = nodes;
    let mut placed: Vec<PlannedNode> = Vec::new();
    let mut position: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    while !waiting.is_empty() {
        let ready = waiting.iter().position(|(entry, _)| {
            edges
                .get(entry.key.text.as_str())
                .into_iter()
                .flatten()
                .all(|(input, _)| position.contains_key(input.as_str()))
        });
        // There is no cycle, so one is always ready.
        let (entry, mut node) = waiting.remove(ready.unwrap_or(0));
        let inputs = edges.get(entry.key.text.as_str()).into_iter().flatten();
        node.inputs = inputs.filter_map(|(input, _)| position.get(input.as_str()).copied()).collect();
        position.insert(node.id.clone(), placed.len());
        placed.push(node);
    }
    placed
}
