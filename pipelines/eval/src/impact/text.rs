//! The comparison as text for a terminal, and as Markdown for a pull request.

use std::fmt::Write as _;

use super::{Affected, Edit, Fate, Impact, Side};
use turnflow_engine::record::Status;

/// Letters of an answer that are shown in a terminal.
const SHOWN: usize = 160;

fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// A text in one line, cut.
fn short(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// What a side says.
pub(super) fn said(side: &Side) -> String {
    match side.status {
        Status::Answered | Status::Idk if !side.answer.trim().is_empty() => side.answer.to_string(),
        Status::Answered => format!("(passages {})", side.passages.join(", ")),
        Status::Idk => "(no answer)".to_owned(),
        Status::Failed => format!("(failed: {})", side.error.as_deref().unwrap_or("no reason is known")),
    }
}

/// Why an answer is another one.
pub(super) fn why(one: &Affected) -> String {
    let edits = match one.edits.is_empty() {
        true => "no passage of it is other: the ranks moved".to_owned(),
        false => one.edits.join(", "),
    };
    match one.vanished.is_empty() {
        true => edits,
        false => format!("{edits}; gone: {}", one.vanished.join(", ")),
    }
}

impl Impact {
    /// The numbers, in one line.
    pub(super) fn summary(&self) -> String {
        let parts: Vec<String> =
            Fate::ALL.into_iter().map(|fate| format!("{} {}", self.count(fate), title(fate))).collect();
        parts.join(", ")
    }

    /// The documents that differ, in one line.
    pub(super) fn differing(&self) -> String {
        let Some(documents) = &self.documents else {
            return "more differs than is compared".to_owned();
        };
        let of = |edit: Edit| documents.values().filter(|other| **other == edit).count();
        format!(
            "{}: {} added, {} edited, {} removed",
            count(documents.len(), "document"),
            of(Edit::Added),
            of(Edit::Edited),
            of(Edit::Removed)
        )
    }

    /// The questions that were answered again, in one line.
    pub(super) fn effort(&self) -> String {
        format!(
            "{} of {} answered again, in {:.1} s; all of them took {:.1} s before",
            self.answered_again,
            count(self.questions, "question"),
            self.seconds.1,
            self.seconds.0
        )
    }

    /// For a terminal.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{} with {}", self.pipeline, self.change);
        let _ = writeln!(out, "  {}", self.differing());
        let _ = writeln!(out, "  {}", self.effort());
        let _ = writeln!(out, "  {}", self.summary());
        for one in &self.affected {
            let _ = writeln!(out, "\n{}: {}", title(one.fate), short(&one.question, SHOWN));
            let _ = writeln!(out, "  - {}", short(&said(&one.before), SHOWN));
            let _ = writeln!(out, "  + {}", short(&said(&one.after), SHOWN));
            let _ = writeln!(out, "  by {}", short(&why(one), SHOWN));
        }
        let by = self.by_document();
        if !by.is_empty() {
            let _ = writeln!(out, "\nBy document");
        }
        for (document, fates) in by {
            let fates: Vec<String> = fates.into_iter().map(|(fate, n)| format!("{n} {}", title(fate))).collect();
            let _ = writeln!(out, "  {document}: {}", fates.join(", "));
        }
        out
    }

    /// For a pull request.
    pub fn to_markdown(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "### What this change does to {}\n", count(self.questions, "answer"));
        let _ = writeln!(out, "{}. {}.\n", self.differing(), self.effort());
        let _ = writeln!(out, "| | answers |\n|---|---:|");
        for fate in Fate::ALL {
            let _ = writeln!(out, "| {} | {} |", title(fate), self.count(fate));
        }
        let by = self.by_document();
        if !by.is_empty() {
            let _ = writeln!(out, "\n| document | lost | changed | gained | same from other passages |");
            let _ = writeln!(out, "|---|---:|---:|---:|---:|");
        }
        for (document, fates) in by {
            let n = |fate: Fate| fates.get(&fate).copied().unwrap_or_default();
            let [lost, changed, gained, passages] = Fate::ALL.map(n);
            let _ = writeln!(out, "| {} | {lost} | {changed} | {gained} | {passages} |", cell(document));
        }
        for one in &self.affected {
            let _ = writeln!(
                out,
                "\n<details><summary><b>{}</b>: {}</summary>\n",
                title(one.fate),
                escaped(&short(&one.question, 300))
            );
            let _ = writeln!(out, "| before | after |\n|---|---|");
            let _ = writeln!(out, "| {} | {} |", cell(&said(&one.before)), cell(&said(&one.after)));
            let _ = writeln!(out, "\nBy {}\n\n</details>", cell(&why(one)));
        }
        out
    }
}

pub(super) fn title(fate: Fate) -> &'static str {
    match fate {
        Fate::Lost => "lost",
        Fate::Changed => "changed",
        Fate::Gained => "gained",
        Fate::Passages => "same from other passages",
    }
}

/// Text without markup of HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text in a cell of a table: in one line, and its signs are no markup.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for letter in escaped(&short(text, 2000)).chars() {
        if r"\|`*_[]#~@".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}
