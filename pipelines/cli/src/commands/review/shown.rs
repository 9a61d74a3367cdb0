//! The queue as text and as Markdown.

use std::fmt::Write as _;

use serde_json::json;
use turnflow_engine::connector::{Judgement, ReviewItem, ReviewList};
use turnflow_engine::record::Status;

use super::super::gaps::{clean, date, escaped};
use super::summary;

/// Passages that are shown of each answer.
const PASSAGES: usize = 3;

/// For a terminal.
pub(super) fn text(list: &ReviewList, judged: bool) -> String {
    let mut text = summary(list);
    for item in &list.items {
        let rules = item.rules.join(", ");
        let _ =
            write!(text, "\n{}  {}  {}\n  {}\n", item.id, date(item.at), clean(&rules, 60), clean(&item.question, 200));
        if item.query.trim() != item.question.trim() {
            let _ = writeln!(text, "  searched: {}", clean(&item.query, 180));
        }
        let _ = writeln!(text, "  {}: {}", status(item), clean(said(item), 400));
        for hit in item.hits.iter().take(PASSAGES) {
            let cited = if hit.cited { " (cited)" } else { "" };
            let _ = writeln!(text, "  - {}{cited}: {}", clean(&hit.passage, 80), clean(&hit.text, 120));
        }
        if let Some(judgement) = &item.judgement {
            let _ = writeln!(text, "  => {}", clean(&verdict(judgement), 400));
        }
    }
    if list.has_more {
        let all = if judged { list.judged } else { list.open };
        let _ = writeln!(text, "\n{} of {all} are shown; --limit N shows more.", list.items.len());
    }
    text
}

/// For a page or an issue: a list of tasks.
pub(super) fn markdown(list: &ReviewList, judged: bool) -> String {
    let title = if judged { "Answers that were judged" } else { "Answers to judge" };
    let mut text = format!("# {title}\n\n{}", summary(list));
    for item in &list.items {
        let done = if item.judgement.is_some() { 'x' } else { ' ' };
        let rules = escaped(&item.rules.join(", "), 100);
        let _ = write!(
            text,
            "\n- [{done}] **{}** ({}, {}; {rules})\n  - {}: {}\n",
            escaped(&item.question, 400),
            item.id,
            date(item.at),
            status(item),
            escaped(said(item), 1000)
        );
        for hit in item.hits.iter().take(PASSAGES) {
            let cited = if hit.cited { ", cited" } else { "" };
            let _ = writeln!(text, "  - {}{cited}: {}", escaped(&hit.passage, 100), escaped(&hit.text, 300));
        }
        if let Some(judgement) = &item.judgement {
            let _ = writeln!(text, "  - Verdict: {}", escaped(&verdict(judgement), 1000));
        }
    }
    text
}

fn status(item: &ReviewItem) -> &'static str {
    match item.status {
        Status::Answered => "answered",
        Status::Idk => "does not know",
        Status::Failed => "failed",
    }
}

fn said(item: &ReviewItem) -> &str {
    match &item.error {
        Some(error) => error,
        None => &item.answer,
    }
}

fn verdict(judgement: &Judgement) -> String {
    let mut told = json!(judgement.verdict).as_str().unwrap_or_default().to_owned();
    if let Some(by) = &judgement.by {
        let _ = write!(told, ", by {by}");
    }
    let _ = write!(told, ", on {}", date(judgement.at));
    if let Some(correction) = &judgement.correction {
        let _ = write!(told, "; it must say: {correction}");
    }
    if let Some(comment) = &judgement.comment {
        let _ = write!(told, "; {comment}");
    }
    told
}
