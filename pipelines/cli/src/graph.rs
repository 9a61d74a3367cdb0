//! Draws a plan: as SVG, and as text for Graphviz and Mermaid.
//!
//! The layout has columns: a node is one column to the right of its rightmost input. Within a column,
//! nodes are ordered by the mean height of their inputs, which avoids most edge crossings.

use std::fmt::Write as _;

use turnflow_engine::component::CorpusRef;
use turnflow_engine::plan::{NodeKind, Plan, PlannedNode};
use turnflow_engine::record::PortType;

const BOX: (f64, f64) = (190.0, 66.0);
const GAP: (f64, f64) = (70.0, 26.0);
const WIDE: f64 = BOX.0 * 1.6;
const MARGIN: f64 = 24.0;
const TITLE: f64 = 34.0;
/// Number of characters of a settings line that fit into a box.
const FITTING: usize = 31;

/// The position of a node.
struct Placed<'p> {
    node: &'p PlannedNode,
    x: f64,
    y: f64,
}

/// The box of a corpus, under the graph.
struct Stored<'p> {
    name: &'p str,
    lines: Vec<String>,
    x: f64,
    y: f64,
}

/// Where the first line of a corpus is in its box, and the distance to the next one.
const FIRST_LINE: f64 = 39.0;
const LINE: f64 = 16.0;

impl Stored<'_> {
    fn height(&self) -> f64 {
        BOX.1.max(FIRST_LINE + LINE * self.lines.len() as f64 - LINE / 2.0)
    }
}

fn colours(node: &PlannedNode) -> (&'static str, &'static str) {
    match (&node.kind, node.output) {
        (NodeKind::Source(_), _) => ("#e8f1fb", "#2f6fb0"),
        (NodeKind::Sink(_), _) => ("#f1f1f1", "#666666"),
        (_, Some(PortType::Queries)) => ("#eef7ea", "#4c8c3a"),
        (_, Some(PortType::Hits)) => ("#fdf3e0", "#b9770e"),
        (_, Some(PortType::Answers)) => ("#f6eafa", "#8e44ad"),
        _ => ("#ffffff", "#333333"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

fn columns(plan: &Plan) -> Vec<Vec<usize>> {
    let mut column = vec![0_usize; plan.nodes.len()];
    for (at, node) in plan.nodes.iter().enumerate() {
        column[at] = node.inputs.iter().map(|&input| column[input] + 1).max().unwrap_or(0);
    }
    let mut columns = vec![Vec::new(); column.iter().max().map_or(0, |last| last + 1)];
    for (at, column) in column.into_iter().enumerate() {
        columns[column].push(at);
    }
    columns
}

fn place(plan: &Plan) -> Vec<Placed<'_>> {
    let mut columns = columns(plan);
    let tallest = columns.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let middle = TITLE + MARGIN + tallest * (BOX.1 + GAP.1) / 2.0;
    let mut heights = vec![0.0; plan.nodes.len()];
    let mut xs = vec![0.0; plan.nodes.len()];
    for (column, nodes) in columns.iter_mut().enumerate() {
        let mean = |at: usize, heights: &[f64]| {
            let inputs = &plan.nodes[at].inputs;
            inputs.iter().map(|&input| heights[input]).sum::<f64>() / (inputs.len().max(1) as f64)
        };
        nodes.sort_by(|&a, &b| mean(a, &heights).total_cmp(&mean(b, &heights)).then(a.cmp(&b)));
        let top = middle - (nodes.len() as f64) * (BOX.1 + GAP.1) / 2.0 + GAP.1 / 2.0;
        for (row, &at) in nodes.iter().enumerate() {
            heights[at] = top + row as f64 * (BOX.1 + GAP.1);
            xs[at] = MARGIN + column as f64 * (BOX.0 + GAP.0);
        }
    }
    plan.nodes.iter().enumerate().map(|(at, node)| Placed { node, x: xs[at], y: heights[at] }).collect()
}

/// The corpora that a node reads, from its settings.
fn reads<'p>(plan: &'p Plan, node: &PlannedNode) -> Vec<&'p str> {
    let read: Vec<&CorpusRef> = node.operators().into_iter().filter_map(|config| config.corpus()).collect();
    let is_read = |name: &str| read.iter().any(|of| !matches!(of, CorpusRef::Named(of) if of != name));
    plan.corpora.iter().map(|corpus| &*corpus.name).filter(|name| is_read(name)).collect()
}

/// Places corpora side by side under their readers.
fn corpora<'p>(plan: &'p Plan, placed: &[Placed<'_>], top: f64) -> Vec<Stored<'p>> {
    let mut from = MARGIN;
    let mut stored = Vec::new();
    for corpus in &plan.corpora {
        let readers: Vec<f64> = placed
            .iter()
            .filter(|place| reads(plan, place.node).contains(&&*corpus.name))
            .map(|place| place.x + BOX.0 / 2.0)
            .collect();
        let middle = readers.iter().sum::<f64>() / (readers.len().max(1) as f64);
        let x = (middle - WIDE / 2.0).max(from);
        from = x + WIDE + GAP.0 / 2.0;
        let source = format!("{}({})", corpus.source_name, corpus.source.explain());
        let chunk = format!("→ {}({})", corpus.chunker_name, corpus.chunker.explain());
        let lines = [source, chunk].into_iter().chain(corpus.schema.explain()).collect();
        stored.push(Stored { name: &corpus.name, lines, x, y: top });
    }
    stored
}

/// Draws a self-contained SVG image.
pub fn svg(plan: &Plan) -> String {
    let placed = place(plan);
    let bottom = placed.iter().map(|place| place.y + BOX.1).fold(TITLE, f64::max);
    let stored = corpora(plan, &placed, bottom + GAP.0);
    let right =
        placed.iter().map(|place| place.x + BOX.0).chain(stored.iter().map(|box_| box_.x + WIDE)).fold(0.0, f64::max);
    let under = stored.iter().map(|store| GAP.0 + store.height()).fold(0.0, f64::max);
    let (width, height) = (right + MARGIN, bottom + under + MARGIN);
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"#555555\"/></marker></defs>\n\
         <text x=\"{MARGIN}\" y=\"{TITLE}\" font-size=\"17\" font-weight=\"bold\" fill=\"#222222\">{}</text>\n",
        escape(&plan.name)
    );
    for place in &placed {
        for &input in &place.node.inputs {
            let from = &placed[input];
            let (x1, y1) = (from.x + BOX.0, from.y + BOX.1 / 2.0);
            let (x2, y2) = (place.x - 2.0, place.y + BOX.1 / 2.0);
            let bend = (x2 - x1) / 2.0;
            let port = plan.nodes[input].output.map_or(String::new(), |port| port.to_string());
            let _ = writeln!(
                out,
                "<path d=\"M{x1:.1} {y1:.1}C{:.1} {y1:.1} {:.1} {y2:.1} {x2:.1} {y2:.1}\" fill=\"none\" stroke=\"#555555\" \
                 stroke-width=\"1.4\" marker-end=\"url(#arrow)\"><title>{port}</title></path>",
                x1 + bend,
                x2 - bend
            );
        }
        for corpus in reads(plan, place.node) {
            let Some(store) = stored.iter().find(|store| store.name == corpus) else { continue };
            let (x1, y1) = (store.x + WIDE / 2.0, store.y);
            let (x2, y2) = (place.x + BOX.0 / 2.0, place.y + BOX.1 + 2.0);
            let _ = writeln!(
                out,
                "<path d=\"M{x1:.1} {y1:.1}C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}\" fill=\"none\" stroke=\"#999999\" \
                 stroke-dasharray=\"5 4\" marker-end=\"url(#arrow)\"/>",
                y1 - GAP.0 / 1.5,
                y2 + GAP.0 / 1.5
            );
        }
    }
    for Placed { node, x, y } in &placed {
        let (fill, stroke) = colours(node);
        let settings = node.explain();
        let _ = writeln!(
            out,
            "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" rx=\"7\" fill=\"{fill}\" \
             stroke=\"{stroke}\" stroke-width=\"1.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\" fill=\"{stroke}\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"#222222\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" fill=\"#666666\">{}</text></g>",
            escape(&settings),
            BOX.0,
            BOX.1,
            x + 10.0,
            y + 21.0,
            escape(&cut(&node.id, 22)),
            x + 10.0,
            y + 39.0,
            escape(node.kind_name),
            x + 10.0,
            y + 55.0,
            escape(&cut(&settings, FITTING))
        );
    }
    for store in &stored {
        let Stored { name, lines, x, y } = store;
        let _ = writeln!(
            out,
            "<g><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{WIDE}\" height=\"{}\" rx=\"14\" fill=\"#f7f7f2\" stroke=\"#7a7a5c\" \
             stroke-width=\"1.5\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\" fill=\"#5c5c3d\">{}</text>",
            store.height(),
            x + 12.0,
            y + 21.0,
            escape(&cut(name, 30))
        );
        for (at, line) in lines.iter().enumerate() {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" fill=\"#666666\">{}</text>",
                x + 12.0,
                y + FIRST_LINE + LINE * at as f64,
                escape(&cut(line, 50))
            );
        }
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

/// Writes Graphviz text.
pub fn dot(plan: &Plan) -> String {
    let mut out = format!("digraph {:?} {{\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\"];\n", plan.name);
    for node in &plan.nodes {
        let (fill, stroke) = colours(node);
        let label = format!("{}\\n{}", node.id, node.kind_name);
        let _ = writeln!(
            out,
            "  {:?} [label=\"{}\", fillcolor=\"{fill}\", color=\"{stroke}\"];",
            node.id,
            label.replace('"', "\\\"")
        );
    }
    for corpus in &plan.corpora {
        let label = [corpus.name.to_string()].into_iter().chain(corpus.schema.explain()).collect::<Vec<_>>().join("\n");
        let _ = writeln!(out, "  {:?} [label={label:?}, shape=cylinder];", format!("corpus {}", corpus.name));
    }
    for node in &plan.nodes {
        for &input in &node.inputs {
            let from = &plan.nodes[input];
            let port = from.output.map_or(String::new(), |port| port.to_string());
            let _ = writeln!(out, "  {:?} -> {:?} [label={port:?}];", from.id, node.id);
        }
        for corpus in reads(plan, node) {
            let _ = writeln!(out, "  {:?} -> {:?} [style=dashed];", format!("corpus {corpus}"), node.id);
        }
    }
    out.push_str("}\n");
    out
}

/// Writes Mermaid text.
pub fn mermaid(plan: &Plan) -> String {
    let mut out = String::from("flowchart LR\n");
    let text = |text: &str| text.replace('"', "#quot;");
    for (at, node) in plan.nodes.iter().enumerate() {
        let _ = writeln!(out, "  n{at}[\"{}<br/><i>{}</i>\"]", text(&node.id), node.kind_name);
    }
    for (at, corpus) in plan.corpora.iter().enumerate() {
        let declared: String =
            corpus.schema.explain().iter().map(|part| format!("<br/><i>{}</i>", text(part))).collect();
        let _ = writeln!(out, "  c{at}[(\"{}{declared}\")]", text(&corpus.name));
    }
    for (at, node) in plan.nodes.iter().enumerate() {
        for &input in &node.inputs {
            let port = plan.nodes[input].output.map_or(String::new(), |port| port.to_string());
            let _ = writeln!(out, "  n{input} -->|{port}| n{at}");
        }
        for corpus in reads(plan, node) {
            let from = plan.corpora.iter().position(|other| *other.name == *corpus).unwrap_or(0);
            let _ = writeln!(out, "  c{from} -.-> n{at}");
        }
    }
    out
}
