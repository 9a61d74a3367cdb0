//! The edges between nodes: cycle detection and topological order.

use std::collections::{BTreeMap, BTreeSet};

use super::Resolver;
use crate::plan::PlannedNode;
use crate::spec::{Diagnostic, Entry, Span};

/// The inputs of each node, with the span where each is named.
pub(super) type Edges<'a> = BTreeMap<&'a str, Vec<(String, Span)>>;

impl Resolver<'_> {
    /// Follows inputs from every node and reports each cycle.
    pub(super) fn cycles(&mut self, entries: &[Entry], edges: &Edges<'_>) {
        let mut done: BTreeSet<&str> = BTreeSet::new();
        for entry in entries {
            if let Some((span, cycle)) = find_cycle(&entry.key.text, edges, &mut done) {
                let path = cycle.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(" ← ");
                let message = match cycle.as_slice() {
                    [only, _] => format!("node `{only}` feeds itself"),
                    _ => format!("these nodes form a cycle: {path}"),
                };
                self.diagnostics.push(Diagnostic::new("cycle", span, message).label("closes the cycle"));
            }
        }
    }
}

/// The first cycle that a depth-first search from a node finds. Not recursive, since a graph may be
/// as deep as it has nodes.
fn find_cycle<'e>(id: &'e str, edges: &'e Edges<'_>, done: &mut BTreeSet<&'e str>) -> Option<(Span, Vec<String>)> {
    if done.contains(id) {
        return None;
    }
    let inputs = |id: &str| edges.get(id).map_or(&[][..], Vec::as_slice).iter();
    let mut open = vec![(id, inputs(id))];
    let mut is_open = BTreeSet::from([id]);
    while let Some((id, rest)) = open.last_mut() {
        let id = *id;
        match rest.next() {
            Some((input, span)) if is_open.contains(input.as_str()) => {
                let path: Vec<&str> = open.iter().map(|(id, _)| *id).collect();
                let at = path.iter().position(|id| *id == input.as_str()).unwrap_or(0);
                let cycle = path[at..].iter().copied().chain([input.as_str()]).map(str::to_owned).collect();
                done.extend(path);
                return Some((*span, cycle));
            }
            Some((input, _)) if done.contains(input.as_str()) => {}
            Some((input, _)) => {
                is_open.insert(input);
                open.push((input, inputs(input)));
            }
            None => {
                is_open.remove(id);
                done.insert(id);
                open.pop();
            }
        }
    }
    None
}

/// The inputs of one node that the turns of different sources reach: no turn would reach all of them, and the node would
/// wait for ever. `nodes` are in topological order.
pub(super) fn mixed_sources(nodes: &[PlannedNode], edges: &Edges<'_>) -> Vec<Diagnostic> {
    let mut sources: Vec<BTreeSet<usize>> = Vec::with_capacity(nodes.len());
    let mut found = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let all = node.inputs.iter().flat_map(|input| sources[*input].iter().copied()).collect();
        if let Some((first, rest)) = node.inputs.split_first()
            && let Some(other) = rest.iter().find(|input| sources[**input] != sources[*first])
        {
            let names = |input: usize| {
                let names: Vec<String> = sources[input].iter().map(|at| format!("`{}`", nodes[*at].id)).collect();
                format!("`{}` has the turns of {}", nodes[input].id, names.join(", "))
            };
            let PlannedNode { kind_name, id, .. } = node;
            let message = format!("{kind_name} `{id}`: {}, but {}", names(*first), names(*other));
            let named = edges.get(&**id).and_then(|inputs| inputs.iter().find(|(name, _)| **name == *nodes[*other].id));
            let diagnostic = Diagnostic::new("mixed-sources", named.map(|(_, span)| *span), message);
            found.push(
                diagnostic
                    .label("no turn comes by both inputs")
                    .help("give the turns of each source nodes of their own"),
            );
        }
        sources.push(if node.inputs.is_empty() { BTreeSet::from([at]) } else { all });
    }
    found
}

/// Sorts nodes topologically: each after its inputs, otherwise in file order.
pub(super) fn order(nodes: Vec<(&Entry, PlannedNode)>, edges: &Edges<'_>) -> Vec<PlannedNode> {
    let ids: BTreeMap<&str, usize> =
        nodes.iter().enumerate().map(|(at, (entry, _))| (entry.key.text.as_str(), at)).collect();
    let inputs = |at: usize| edges.get(nodes[at].0.key.text.as_str()).into_iter().flatten();
    // For each node: how many inputs are not placed yet, and which nodes it feeds.
    let mut missing: Vec<usize> = vec![0; nodes.len()];
    let mut feeds: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (at, missing) in missing.iter_mut().enumerate() {
        for input in inputs(at).filter_map(|(input, _)| ids.get(input.as_str())) {
            *missing += 1;
            feeds[*input].push(at);
        }
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|at| missing[*at] == 0).collect();
    let mut places: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(nodes.len());
    // There is no cycle, so every node is placed.
    while let Some(at) = ready.pop_first() {
        places[at] = Some(placed.len());
        placed.push(at);
        for &fed in &feeds[at] {
            missing[fed] -= 1;
            if missing[fed] == 0 {
                ready.insert(fed);
            }
        }
    }
    let order: Vec<Vec<usize>> = placed
        .iter()
        .map(|&at| inputs(at).filter_map(|(input, _)| places[*ids.get(input.as_str())?]).collect())
        .collect();
    let mut nodes: Vec<Option<PlannedNode>> = nodes.into_iter().map(|(_, node)| Some(node)).collect();
    let in_order = placed.into_iter().zip(order);
    in_order.filter_map(|(at, inputs)| Some(PlannedNode { inputs, ..nodes[at].take()? })).collect()
}
