//! The report of a comparison of two replays, as text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use turnflow_engine::wording::count;

use super::Difference;

/// A turn that differs.
#[derive(Clone, Debug)]
pub struct Turned {
    /// Its conversation.
    pub conversation_id: Arc<str>,
    /// Its number.
    pub turn: u32,
    /// The question.
    pub question: Arc<str>,
    /// Where the replays first differ.
    pub difference: Difference,
}

/// The two sides of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    /// Name of the first side, whose lines are marked `-`.
    pub before: String,
    /// Name of the second side, whose lines are marked `+`.
    pub after: String,
    /// Nodes that only the first side has.
    pub only_before: Vec<String>,
    /// Nodes that only the second side has.
    pub only_after: Vec<String>,
}

/// A comparison of two replays of a log.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The two sides.
    pub sides: Sides,
    /// Number of user turns.
    pub turns: usize,
    /// The turns that differ.
    pub differing: Vec<Turned>,
}

impl Comparison {
    /// The number of turns that first differ at each stage.
    fn stages(&self) -> BTreeMap<&str, usize> {
        let mut stages = BTreeMap::new();
        for turned in &self.differing {
            *stages.entry(turned.difference.stage.as_str()).or_default() += 1;
        }
        stages
    }

    /// Formats each differing turn and a line of counts as text.
    pub fn to_text(&self) -> String {
        let Sides { before, after, only_before, only_after } = &self.sides;
        let mut out = String::new();
        for turned in &self.differing {
            let Turned { conversation_id, turn, question, difference } = turned;
            let question = question.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "{conversation_id}, turn {turn}: {question}");
            let _ = writeln!(out, "  first difference at {}", difference.stage);
            out.extend(difference.lines.iter().map(|line| format!("    {line}\n")));
            if !difference.end.is_empty() {
                out.push_str("  and ends with\n");
                out.extend(difference.end.iter().map(|line| format!("    {line}\n")));
            }
        }
        if !self.differing.is_empty() {
            let _ = writeln!(out, "\n- is {before}, + is {after}");
        }
        for (only, of) in [(only_before, before), (only_after, after)] {
            if !only.is_empty() {
                let _ = writeln!(out, "only {of} has: {}", only.join(", "));
            }
        }
        let same = self.turns - self.differing.len();
        let _ = write!(out, "{}: {same} the same, {} differ", count(self.turns, "turn"), self.differing.len());
        let stages: Vec<String> = self.stages().iter().map(|(stage, count)| format!("{count} at {stage}")).collect();
        let _ =
            writeln!(out, "{}", if stages.is_empty() { String::new() } else { format!(" ({})", stages.join(", ")) });
        out
    }

    /// Formats the comparison as one JSON object.
    pub fn to_json(&self) -> Json {
        let turns: Vec<Json> = self
            .differing
            .iter()
            .map(|turned| {
                let Difference { stage, lines, end } = &turned.difference;
                json!({
                    "conversation_id": turned.conversation_id, "turn": turned.turn, "question": turned.question,
                    "stage": stage, "at_stage": lines, "at_end": if end.is_empty() { lines } else { end },
                })
            })
            .collect();
        let Sides { before, after, only_before, only_after } = &self.sides;
        json!({
            "before": before, "after": after, "only_before": only_before, "only_after": only_after,
            "turns": self.turns, "same": self.turns - self.differing.len(), "differ": self.differing.len(),
            "stages": self.stages(), "differing": turns,
        })
    }
}
