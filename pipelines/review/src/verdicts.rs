//! Verdicts: what is wrong with one, and a file of them.

use std::collections::BTreeSet;

use serde::Deserialize;
use turnflow_engine::connector::{Judgement, Verdict};

use crate::journal::Judged;

/// Most characters of a correction, of a comment, and of a name.
const TEXT: [usize; 3] = [16_000, 8000, 500];
/// Most passages of a verdict, and most bytes of an id.
const PASSAGES: usize = 200;
const ID: usize = 4000;

/// Says what is wrong with a verdict.
///
/// # Errors
///
/// What is wrong.
pub fn check(judgement: &Judgement) -> Result<(), String> {
    let Judgement { verdict, correction, answerable, relevant, irrelevant, comment, by, at } = judgement;
    let texts = [("correction", correction), ("comment", comment), ("by", by)];
    for ((field, text), most) in texts.into_iter().zip(TEXT) {
        let Some(text) = text else { continue };
        if text.trim().is_empty() {
            return Err(format!("`{field}` is empty: leave it out"));
        }
        if text.chars().nth(most).is_some() {
            return Err(format!("`{field}` has more than {most} characters"));
        }
    }
    if correction.is_some() && *verdict == Verdict::Good {
        return Err("a good answer needs no `correction`".to_owned());
    }
    if correction.is_some() && *answerable == Some(false) {
        return Err("a question that the documents do not answer has no `correction`".to_owned());
    }
    for (field, ids) in [("relevant", relevant), ("irrelevant", irrelevant)] {
        if ids.len() > PASSAGES {
            return Err(format!("`{field}` has more than {PASSAGES} passages"));
        }
        // A line of judgements could not hold others.
        if ids.iter().any(|id| id.trim().is_empty() || id.len() > ID || id.contains(char::is_control)) {
            return Err(format!("`{field}` has something that is no id of a passage"));
        }
    }
    let relevant: BTreeSet<&String> = relevant.iter().collect();
    if let Some(both) = irrelevant.iter().find(|id| relevant.contains(id)) {
        return Err(format!("`{both}` cannot be both `relevant` and `irrelevant`"));
    }
    match at.is_finite() && *at >= 0.0 {
        true => Ok(()),
        false => Err("`at` is no time in seconds since 1970".to_owned()),
    }
}

/// A line of a file of verdicts. What else an item of the queue has is allowed, so that a line of the queue with a verdict
/// added to it is a verdict.
#[derive(Deserialize)]
struct Said {
    id: String,
    verdict: Verdict,
    correction: Option<String>,
    answerable: Option<bool>,
    #[serde(default)]
    relevant: Vec<String>,
    #[serde(default)]
    irrelevant: Vec<String>,
    comment: Option<String>,
    by: Option<String>,
    /// The fields of an item.
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

/// Fields of an item, and the time of the verdict, which the queue sets.
const OTHERS: [&str; 17] = [
    "conversation_id",
    "turn",
    "revision",
    "at",
    "rules",
    "question",
    "query",
    "collection",
    "status",
    "answer",
    "error",
    "hits",
    "more_hits",
    "more_documents",
    "warnings",
    "epoch",
    "judgement",
];

/// Things with the numbers of their lines.
pub type Numbered<T> = Vec<(usize, T)>;

/// The verdicts of a text in JSON Lines, each with the number of its line, and what is wrong with the other lines.
pub fn read(text: &str, by: Option<&str>) -> (Numbered<Judged>, Numbered<String>) {
    let (mut verdicts, mut errors) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        match one(line, by) {
            Ok(judged) => verdicts.push((number, judged)),
            Err(error) => errors.push((number, error)),
        }
    }
    (verdicts, errors)
}

fn one(line: &str, by: Option<&str>) -> Result<Judged, String> {
    let said: Said = serde_json::from_str(line).map_err(|error| {
        // The line is known already.
        let error = error.to_string();
        error.split(" at line ").next().unwrap_or_default().to_owned()
    })?;
    if let Some(other) = said.others.keys().find(|key| !OTHERS.contains(&key.as_str())) {
        return Err(format!("a verdict has no field `{other}`"));
    }
    let Said { id, verdict, correction, answerable, relevant, irrelevant, comment, by: named, .. } = said;
    let by = named.or_else(|| by.map(str::to_owned));
    let judgement = Judgement { verdict, correction, answerable, relevant, irrelevant, comment, by, at: 0.0 };
    check(&judgement)?;
    Ok(Judged { id: id.into(), judgement })
}
