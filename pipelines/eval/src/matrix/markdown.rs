//! The table as Markdown: our figures beside those of the paper.

use std::fmt::Write as _;

use super::plain::{figure, signed};
use super::{Cell, Table, TableRow, Unit};

/// What differences and p-values are.
pub(super) const COMPARED: &str =
    "Differences are on the same tasks, with 95 % intervals. p is adjusted by Holm's method over the rows.";

impl Table {
    /// The table as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut out = format!("## {}\n\n", text(&self.title));
        if let Some(note) = &self.note {
            let _ = writeln!(out, "{}\n", text(note));
        }
        let (mut head, mut rule) = (String::from("| row |"), String::from("|---|"));
        let mut column = |title: &str, alignment: &str| {
            let _ = write!(head, " {title} |");
            let _ = write!(rule, "{alignment}|");
        };
        for (at, heading) in self.columns.iter().enumerate() {
            column(&text(&heading.title), "--:");
            if self.has_paper(at) {
                column("paper", "--:");
                if !self.is_local {
                    column("difference", "--:");
                }
            }
        }
        column("file", "---");
        column("models", "---");
        column("note", "---");
        let _ = writeln!(out, "{head}\n{rule}");
        for row in &self.rows {
            let cells: String = row.cells.iter().enumerate().map(|(at, cell)| self.cells(at, cell)).collect();
            let note = [row.remark_beside_note().unwrap_or_default(), row.note.clone()];
            let note: Vec<String> = note.iter().filter(|note| !note.is_empty()).map(|note| text(note)).collect();
            let models: Vec<String> =
                row.models.iter().map(|(name, model)| text(&format!("{name}: {model}"))).collect();
            let models = if models.is_empty() { "–".to_owned() } else { models.join(", ") };
            let (title, note) = (text(&row.title), note.join(". "));
            let _ = writeln!(out, "| {title} |{cells} {} | {models} | {note} |", origin(row));
        }
        let is_percent = self.columns.iter().any(|column| column.unit == Unit::Percent);
        let unit = if is_percent {
            "Figures are in per cent; lengths are counts. In brackets are 95 % intervals."
        } else {
            "Figures are counts. In brackets are 95 % intervals."
        };
        let _ = writeln!(out, "\n{unit}");
        if self.is_compared() {
            self.differences(&mut out);
        }
        out
    }

    fn cells(&self, at: usize, cell: &Cell) -> String {
        let shown = |value: Option<f64>| value.map_or("–".to_owned(), figure);
        let interval = cell.interval.filter(|_| cell.value.is_some());
        let interval = interval.map(|of| format!(" ({} to {})", figure(of.low), figure(of.high))).unwrap_or_default();
        let own = format!(" {}{interval} |", shown(cell.value));
        if !self.has_paper(at) {
            return own;
        }
        let difference = match self.is_local {
            true => String::new(),
            false => format!(" {} |", self.apart(cell).map_or(String::new(), signed)),
        };
        format!("{own} {} |{difference}", shown(cell.paper))
    }

    /// The differences to the baseline.
    fn differences(&self, out: &mut String) {
        let _ = writeln!(out, "\nDifferences to {}:\n", text(self.baseline.as_deref().unwrap_or_default()));
        let heads: String = self.columns.iter().map(|column| format!(" {} | p |", text(&column.title))).collect();
        let _ = writeln!(out, "| row |{heads}\n|---|{}", "--:|--:|".repeat(self.columns.len()));
        for row in self.rows.iter().filter(|row| row.cells.iter().any(|cell| cell.difference.is_some())) {
            let cell = |cell: &Cell| {
                let Some(compared) = cell.difference else { return " – | |".to_owned() };
                let interval = compared.difference.interval;
                let [mean, low, high] = [interval.mean, interval.low, interval.high].map(signed);
                let mean = if compared.is_significant() { format!("**{mean}**") } else { mean };
                format!(" {mean} ({low} to {high}) | {:.4} |", compared.adjusted)
            };
            let cells: String = row.cells.iter().map(cell).collect();
            let _ = writeln!(out, "| {} |{cells}", text(&row.title));
        }
        let _ = writeln!(out, "\n{COMPARED}");
    }
}

/// The file of a row, with the values that it sets.
fn origin(row: &TableRow) -> String {
    let file = row.file.as_deref().unwrap_or("–");
    let parts = std::iter::once(file).chain(row.set.iter().map(String::as_str));
    let code = |part: &str| {
        if part == "–" { part.to_owned() } else { format!("`{}`", part.replace('`', "'").replace('|', "\\|")) }
    };
    parts.map(code).collect::<Vec<_>>().join(", ")
}

/// Text in a cell, with the characters escaped that Markdown would take for its own.
fn text(text: &str) -> String {
    let mut out = String::new();
    for c in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '~' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}
