//! What a comparison of two plays comes to, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::Parting;

/// A turn that differs.
#[derive(Clone, Debug)]
pub struct Turned {
    /// Its conversation.
    pub conversation_id: Arc<str>,
    /// Its number.
    pub turn: u32,
    /// What was asked.
    pub question: Arc<str>,
    /// Where it parts.
    pub parting: Parting,
}

/// What is compared.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    /// What lines with `-` are of.
    pub before: String,
    /// What lines with `+` are of.
    pub after: String,
    /// Nodes that only the first has.
    pub only_before: Vec<String>,
    /// Nodes that only the second has.
    pub only_after: Vec<String>,
}

/// Two plays of a log, compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What is compared.
    pub sides: Sides,
    /// Turns that were asked.
    pub turns: usize,
    /// Those that differ.
    pub differing: Vec<Turned>,
}

impl Comparison {
    /// How many turns part at each stage.
    fn stages(&self) -> BTreeMap<&str, usize> {
        let mut stages = BTreeMap::new();
        for turned in &self.differing {
            *stages.entry(turned.parting.stage.as_str()).or_default() += 1;
        }
        stages
    }

    /// A line of counts, and each turn that differs.
    pub fn to_text(&self) -> String {
        let Sides { before, after, only_before, only_after } = &self.sides;
        let mut out = String::new();
        for turned in &self.differing {
            let Turned { conversation_id, turn, question, parting } = turned;
            let question = question.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "{conversation_id}, turn {turn}: {question}");
            let _ = writeln!(out, "  parts at {}", parting.stage);
            out.extend(parting.lines.iter().map(|line| format!("    {line}\n")));
            if !parting.end.is_empty() {
                out.push_str("  and comes to\n");
                out.extend(parting.end.iter().map(|line| format!("    {line}\n")));
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
        let _ = write!(out, "{} turns: {same} the same, {} differ", self.turns, self.differing.len());
        let stages: Vec<String> = self.stages().iter().map(|(stage, count)| format!("{count} at {stage}")).collect();
        let _ =
            writeln!(out, "{}", if stages.is_empty() { String::new() } else { format!(" ({})", stages.join(", ")) });
        out
    }

    /// As one object.
    pub fn to_json(&self) -> Json {
        let turns: Vec<Json> = self
            .differing
            .iter()
            .map(|turned| {
                let Parting { stage, lines, end } = &turned.parting;
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
