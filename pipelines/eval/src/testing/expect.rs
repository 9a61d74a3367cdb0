//! Checks the expectations of a test.

use turnflow_engine::record::{Hit, Item, Status, Value};
use turnflow_engine::spec::Span;

use super::config::{Expect, Outcome};
use super::find::{Test, span};
use crate::replay::Trace;

/// Maximum number of hits listed when others were expected.
const SHOWN: usize = 10;

/// An expectation that is not met.
#[derive(Clone, Debug)]
pub struct Missed {
    /// The number of the user turn, from 1.
    pub turn: usize,
    /// The field.
    pub what: &'static str,
    /// The position of the field.
    pub span: Span,
    /// The expected value.
    pub expected: String,
    /// The actual value.
    pub found: String,
}

/// The result of a turn.
struct Came<'a> {
    outcome: Option<Outcome>,
    answer: Option<&'a str>,
    query: Option<&'a str>,
    hits: &'a [Hit],
    error: Option<String>,
    warnings: &'a [String],
}

impl<'a> Came<'a> {
    fn of(item: Option<&'a Item>) -> Self {
        let nothing = Came { outcome: None, answer: None, query: None, hits: &[], error: None, warnings: &[] };
        let Some(item) = item else { return Came { error: Some("it was not answered".into()), ..nothing } };
        let nothing = Came { warnings: &item.warnings, ..nothing };
        match &item.value {
            Value::Answer(answer) => Came {
                outcome: Some(answer.status.into()),
                answer: Some(&answer.text),
                query: Some(&answer.query.text),
                hits: &answer.hits,
                ..nothing
            },
            Value::Hits(hits) => Came { query: Some(&hits.query.text), hits: &hits.hits, ..nothing },
            Value::Failed(failure) => Came {
                outcome: Some(Status::Failed.into()),
                error: Some(format!("node `{}`: {}", failure.node, failure.reason)),
                ..nothing
            },
            Value::Turn | Value::Query(_) | Value::Prompt(_) => nothing,
        }
    }

    /// The text in quotes, or why there is none.
    fn text(&self, text: Option<&str>) -> String {
        match (text, &self.error) {
            (Some(text), _) => format!("{text:?}"),
            (None, Some(error)) => format!("the turn failed at {error}"),
            (None, None) => "no answer: the pipeline ends with hits".into(),
        }
    }
}

/// The expectations that are not met; `end` is the node whose value is the result.
pub fn missed(test: &Test, end: &str, traces: &[Trace]) -> Vec<Missed> {
    let mut all = Vec::new();
    for (at, expect) in test.config.expect.iter().enumerate() {
        let turn = expect.turn.unwrap_or(traces.len());
        let nothing = Trace::default();
        let trace = traces.get(turn.saturating_sub(1)).unwrap_or(&nothing);
        let came = Came::of(trace.item(end));
        let mut miss = |what: &'static str, expected: String, found: String| {
            all.push(Missed { turn, what, span: span(&test.tree, at, what), expected, found });
        };
        of_answer(expect, &came, &mut miss);
        of_hits(expect, &came, trace, &mut miss);
        for note in &expect.warnings {
            if !came.warnings.iter().any(|found| found.contains(note.as_str())) {
                miss(
                    "warnings",
                    format!("a warning that contains {note:?}"),
                    if came.warnings.is_empty() { "no warnings".to_owned() } else { came.warnings.join("; ") },
                );
            }
        }
    }
    all
}

fn of_answer(expect: &Expect, came: &Came<'_>, miss: &mut impl FnMut(&'static str, String, String)) {
    if let Some(expected) = expect.status
        && came.outcome != Some(expected)
    {
        let found = match (&came.error, came.outcome) {
            (Some(error), _) => format!("Failed, at {error}"),
            (None, Some(outcome)) => format!("{outcome:?}: {}", came.text(came.answer)),
            (None, None) => came.text(None),
        };
        miss("status", format!("{expected:?}"), found);
    }
    if let Some(expected) = &expect.answer
        && !came.answer.is_some_and(|answer| answer.contains(expected.as_str()))
    {
        miss("answer", format!("{expected:?} in it"), came.text(came.answer));
    }
    if let Some(expected) = &expect.answer_matches {
        // The expression was checked when the test was read.
        let matches = |answer: &str| regex::Regex::new(expected).is_ok_and(|regex| regex.is_match(answer));
        if !came.answer.is_some_and(matches) {
            miss("answer_matches", format!("a match of {expected:?}"), came.text(came.answer));
        }
    }
    if let Some(expected) = &expect.query
        && !came.query.is_some_and(|query| query.contains(expected.as_str()))
    {
        miss("query", format!("{expected:?} in it"), came.text(came.query));
    }
}

fn of_hits(expect: &Expect, came: &Came<'_>, trace: &Trace, miss: &mut impl FnMut(&'static str, String, String)) {
    for id in expect.hits.iter().filter(|id| !has(came.hits, id)) {
        miss("hits", format!("`{id}`"), listed(came.hits));
    }
    for id in expect.not_hits.iter().filter(|id| has(came.hits, id)) {
        miss("not_hits", format!("no `{id}`"), listed(came.hits));
    }
    for wanted in &expect.hits_in.0 {
        let hits = match trace.item(&wanted.node).map(|item| &item.value) {
            Some(Value::Hits(hits)) => hits.hits.as_slice(),
            Some(Value::Failed(failure)) => {
                let found = format!("failed at `{}`: {}", failure.node, failure.reason);
                miss("hits_in", format!("hits of `{}`", wanted.node), found);
                continue;
            }
            _ => &[],
        };
        let first = &hits[..hits.len().min(wanted.top.unwrap_or(usize::MAX))];
        let among = match wanted.top {
            Some(top) => format!("the first {top} of `{}`", wanted.node),
            None => format!("those of `{}`", wanted.node),
        };
        for id in wanted.contains.iter().filter(|id| !has(first, id)) {
            let found = match hits.iter().position(|hit| names(hit, id)) {
                Some(at) => format!("it is at {}", at + 1),
                None => listed(first),
            };
            miss("hits_in", format!("`{id}` among {among}"), found);
        }
        for id in wanted.not.iter().filter(|id| has(first, id)) {
            miss("hits_in", format!("no `{id}` among {among}"), listed(first));
        }
    }
}

/// Whether the id is that of the hit's passage or document.
fn names(hit: &Hit, id: &str) -> bool {
    *hit.chunk.id == *id || *hit.chunk.document == *id
}

fn has(hits: &[Hit], id: &str) -> bool {
    hits.iter().any(|hit| names(hit, id))
}

fn listed(hits: &[Hit]) -> String {
    if hits.is_empty() {
        return "no hits".into();
    }
    let ids: Vec<String> = hits.iter().take(SHOWN).map(|hit| format!("`{}`", hit.chunk.id)).collect();
    let more = hits.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", ids.join(", ")) } else { ids.join(", ") }
}
