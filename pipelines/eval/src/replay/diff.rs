//! Finds where two replays of a turn first differ, and how.

use std::collections::HashMap;

use turnflow_engine::record::{AnswerRecord, Hit, Item, Value};
use turnflow_engine::wording::count;

use super::Played;

/// Tolerance of scores: absolute up to 1, relative above. The last bits of a model's output depend
/// on the other inputs in its batch.
const SCORE: f32 = 1e-4;
/// Maximum number of differing hits shown.
const SHOWN: usize = 10;
/// Maximum characters of a text shown.
const TEXT: usize = 300;

/// Where two replays of a turn first differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The first node, in graph order, whose values differ.
    pub stage: String,
    /// The differences at that node.
    pub lines: Vec<String>,
    /// The differences at the end node, if that is another one.
    pub end: Vec<String>,
}

/// Compares the results of a turn; `None` if they are the same, even if intermediate values differ.
pub fn difference(a: &Played, b: &Played, turn: usize) -> Option<Difference> {
    let (left, right) = (a.traces.get(turn)?, b.traces.get(turn)?);
    let (ended, other) = (left.item(&a.end), right.item(&b.end));
    let end = differs(ended, other);
    if end.is_empty() {
        return None;
    }
    let common = a.nodes.iter().filter(|(id, _)| b.nodes.iter().any(|(other, _)| other == id));
    let mut another_history = false;
    for (id, _) in common {
        let mut lines = differs(left.item(id), right.item(id));
        // A different history alone is no difference if no node uses it, so the turn itself is no stage.
        if left.item(id).is_some_and(|item| item.value == Value::Turn) {
            another_history |= !lines.is_empty();
            continue;
        }
        if !lines.is_empty() {
            if another_history {
                lines.push("(the preceding answers differ too)".to_owned());
            }
            let end = if *id == a.end && *id == b.end { Vec::new() } else { end };
            return Some(Difference { stage: id.to_string(), lines, end });
        }
    }
    // All common nodes agree, so the cause is a node that only one pipeline has.
    let only = |these: &Played, others: &Played| {
        let own = these.nodes.iter().find(|(id, _)| others.nodes.iter().all(|(other, _)| other != id));
        own.map(|(id, _)| id.to_string())
    };
    let stage = match only(a, b).or_else(|| only(b, a)) {
        Some(id) => format!("{id} (only in one)"),
        None => format!("{} or {}, which are the end nodes", a.end, b.end),
    };
    Some(Difference { stage, lines: end, end: Vec::new() })
}

/// Compares an answer with the recorded one.
pub fn recorded(now: &AnswerRecord, then: Option<&AnswerRecord>) -> Option<Difference> {
    let stage = |stage: &str, lines: Vec<String>| Some(Difference { stage: stage.to_owned(), lines, end: Vec::new() });
    let Some(then) = then else {
        return stage("the record", vec!["- no answer is recorded".into(), format!("+ {}", shown(&now.answer))]);
    };
    let list = |record: &AnswerRecord| -> Vec<(String, f32)> {
        record.hits.iter().map(|hit| (hit.passage.to_string(), hit.score)).collect()
    };
    let hits = lists(&list(then), &list(now));
    let answer = |record: &AnswerRecord| match &record.error {
        Some(error) => format!("{:?}: {}", record.status, shown(error)),
        None => format!("{:?}: {}", record.status, shown(&record.answer)),
    };
    let answers = pair(answer(then), answer(now));
    if then.query != now.query && !(hits.is_empty() && answers.is_empty()) {
        let lines = pair(format!("query {:?}", then.query), format!("query {:?}", now.query));
        return Some(Difference { stage: "query".into(), lines, end: [hits, answers].concat() });
    }
    if !hits.is_empty() {
        return Some(Difference { stage: "hits".into(), lines: hits, end: answers });
    }
    if then.answer != now.answer || then.status != now.status {
        return stage("answer", answers);
    }
    None
}

/// The lines that describe the difference of two values; none if they are the same.
fn differs(a: Option<&Item>, b: Option<&Item>) -> Vec<String> {
    let (a, b) = match (a, b) {
        (None, None) => return Vec::new(),
        (Some(a), Some(b)) => (a, b),
        (a, _) => {
            let said = |there: bool| if there { "a value" } else { "nothing" }.to_owned();
            return pair(said(a.is_some()), said(a.is_none()));
        }
    };
    match (&a.value, &b.value) {
        (Value::Turn, Value::Turn) => {
            if a.turn.text == b.turn.text && a.turn.history == b.turn.history {
                return Vec::new();
            }
            let said = |item: &Item| {
                let last = item.turn.history.last().map_or("", |utterance| &utterance.text);
                format!("the turn, after {} utterances, the last of them {:?}", item.turn.history.len(), shown(last))
            };
            pair(said(a), said(b))
        }
        (Value::Query(x), Value::Query(y)) if x == y => Vec::new(),
        (Value::Prompt(x), Value::Prompt(y)) if x.prompt == y.prompt => Vec::new(),
        (Value::Prompt(x), Value::Prompt(y)) => {
            let (x, y) = (x.prompt.plain(), y.prompt.plain());
            let line = x.lines().zip(y.lines()).find(|(x, y)| x != y);
            match line {
                Some((x, y)) => pair(format!("prompt … {}", shown(x)), format!("prompt … {}", shown(y))),
                None => {
                    let count = |text: &str| format!("prompt of {} lines", text.lines().count());
                    pair(count(&x), count(&y))
                }
            }
        }
        (Value::Hits(x), Value::Hits(y)) => lists(&ranked(&x.hits), &ranked(&y.hits)),
        (Value::Answer(x), Value::Answer(y)) => {
            let mut lines = lists(&ranked(&x.hits), &ranked(&y.hits));
            if x.text != y.text || x.status != y.status {
                lines.extend(pair(say(&a.value), say(&b.value)));
            }
            lines
        }
        (Value::Failed(x), Value::Failed(y)) if x == y => Vec::new(),
        (x, y) => pair(say(x), say(y)),
    }
}

fn pair(a: String, b: String) -> Vec<String> {
    if a == b { Vec::new() } else { vec![format!("- {a}"), format!("+ {b}")] }
}

fn say(value: &Value) -> String {
    match value {
        Value::Turn => "the turn".into(),
        Value::Query(query) if query.parts.is_empty() => format!("query {:?}", shown(&query.text)),
        Value::Query(query) => format!("query {:?} in the parts {:?}", shown(&query.text), query.parts),
        Value::Prompt(prompt) => format!("prompt {}", shown(&prompt.prompt.plain())),
        Value::Hits(hits) => count(hits.hits.len(), "hit"),
        Value::Answer(answer) => format!("{:?}: {}", answer.status, shown(&answer.text)),
        Value::Failed(failure) => format!("failed at `{}`: {}", failure.node, shown(&failure.reason)),
    }
}

fn shown(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() > TEXT { text.chars().take(TEXT).chain(['…']).collect() } else { text }
}

fn ranked(hits: &[Hit]) -> Vec<(String, f32)> {
    hits.iter().map(|hit| (hit.chunk.id.to_string(), hit.score)).collect()
}

/// The removed, added, moved and rescored hits of two lists, by rank from 1.
fn lists(a: &[(String, f32)], b: &[(String, f32)]) -> Vec<String> {
    let near = |x: f32, y: f32| (x - y).abs() <= SCORE * x.abs().max(1.0);
    if a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.0 == y.0 && near(x.1, y.1)) {
        return Vec::new();
    }
    let places = |list: &[(String, f32)]| -> HashMap<String, usize> {
        list.iter().enumerate().map(|(at, (id, _))| (id.clone(), at)).collect()
    };
    let (in_a, in_b) = (places(a), places(b));
    // (rank, line), so that the lines of both lists are sorted together.
    let mut told: Vec<(usize, String)> = Vec::new();
    for (at, (id, score)) in a.iter().enumerate() {
        match in_b.get(id).map(|&other| (other, b[other].1)) {
            None => told.push((at, format!("- {} {id} ({score:.4})", at + 1))),
            Some((other, _)) if other != at => told.push((at, format!("~ {id}: {} → {}", at + 1, other + 1))),
            Some((_, other)) if !near(*score, other) => {
                told.push((at, format!("~ {} {id}: {score:.4} → {other:.4}", at + 1)));
            }
            Some(_) => {}
        }
    }
    for (at, (id, score)) in b.iter().enumerate().filter(|(_, (id, _))| !in_a.contains_key(id)) {
        told.push((at, format!("+ {} {id} ({score:.4})", at + 1)));
    }
    told.sort_by_key(|(at, _)| *at);
    let more = told.len().saturating_sub(SHOWN);
    let mut lines: Vec<String> = told.into_iter().take(SHOWN).map(|(_, line)| line).collect();
    if more > 0 {
        lines.push(format!("  and {more} more of {} and {} hits", a.len(), b.len()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use turnflow_engine::document::Chunk;
    use turnflow_engine::record::{Hits, Query, Speaker, Turn, Utterance};

    use super::super::Trace;
    use super::*;

    /// A turn in a pipeline `turns` → `query` → `end`, after an answer.
    fn played(before: &str, query: &str, end: &str, hits: &[&str]) -> Played {
        let history = vec![Utterance { speaker: Speaker::Agent, text: before.into() }];
        let turn = Arc::new(Turn {
            conversation_id: "c".into(),
            turn: 2,
            text: "and then?".into(),
            history,
            collection: None,
            timestamp: None,
            extra: Default::default(),
            position: "".into(),
            epoch: 1,
            entered_us: 0,
            filter: None,
            sequence: 1,
            source: "turns".into(),
            standing: None,
            computed_at: None,
            similar_to: None,
            tokens: Default::default(),
            key: "".into(),
        });
        let hit = |id: &&str| Hit {
            chunk: Arc::new(Chunk::new((*id).into(), (*id).into(), "".into(), "".into())),
            score: 1.0,
        };
        let query = Query::new(query);
        let hits = Hits { query: query.clone(), hits: hits.iter().map(hit).collect() };
        let values = [("turns", Value::Turn), ("query", Value::Query(query)), (end, Value::Hits(Arc::new(hits)))];
        let mut trace = Trace::default();
        for (node, value) in values {
            let item = Item { turn: turn.clone(), value, warnings: Arc::default() };
            trace.items.insert(node.to_owned(), (item, Instant::now()));
        }
        let nodes = ["turns", "query", end].map(|id| (Arc::from(id), "Kind")).into();
        Played { name: "p".into(), nodes, end: end.into(), traces: vec![trace] }
    }

    #[test]
    fn a_turn_parts_where_a_value_differs_and_not_where_only_the_history_does() {
        let stage = |a: &Played, b: &Played| difference(a, b, 0).map(|found| (found.stage, found.lines));
        let a = played("Yes.", "then", "found", &["x"]);
        assert_eq!(stage(&a, &played("Yes.", "then", "found", &["x"])), None);
        assert_eq!(stage(&a, &played("No.", "then", "found", &["x"])), None, "the results are the same");
        let (at, lines) = stage(&a, &played("No.", "then", "found", &["y"])).unwrap();
        assert_eq!((at.as_str(), lines.len(), lines[2].as_str()), ("found", 3, "(the preceding answers differ too)"));
        assert_eq!(stage(&a, &played("Yes.", "what then", "found", &["y"])).unwrap().0, "query");
        assert_eq!(stage(&a, &played("Yes.", "then", "other", &["y"])).unwrap().0, "found (only in one)");
    }

    #[test]
    fn lists_are_compared_by_rank_and_score() {
        let list = |hits: &[(&str, f32)]| hits.iter().map(|(id, score)| ((*id).to_owned(), *score)).collect::<Vec<_>>();
        let a = list(&[("a", 0.9), ("b", 0.5), ("c", 0.4)]);
        assert_eq!(lists(&a, &a), Vec::<String>::new());
        assert_eq!(lists(&a, &list(&[("a", 0.900_01), ("b", 0.5), ("c", 0.4)])), Vec::<String>::new());
        let b = list(&[("a", 0.9), ("d", 0.6), ("b", 0.5)]);
        assert_eq!(lists(&a, &b), ["~ b: 2 → 3", "+ 2 d (0.6000)", "- 3 c (0.4000)"]);
        assert_eq!(lists(&a, &list(&[("a", 0.8), ("b", 0.5), ("c", 0.4)])), ["~ 1 a: 0.9000 → 0.8000"]);
        let long: Vec<(String, f32)> = (0..30).map(|at| (format!("n{at}"), 1.0)).collect();
        let told = lists(&[], &long);
        assert_eq!((told.len(), told[SHOWN].as_str()), (SHOWN + 1, "  and 20 more of 0 and 30 hits"));
    }
}
