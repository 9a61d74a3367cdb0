//! The table as one self-contained HTML page.

use std::fmt::Write as _;

use super::plain::{figure, signed};
use super::{Cell, Column, Outcome, Table, TableRow, Unit};
use crate::report::escape::Text;
use crate::report::html::STYLE;

/// The style of the table, beside that of reports.
const OWN: &str = "
body { max-width: 96rem; } .matrix { overflow-x: auto; } .matrix td { white-space: nowrap; } .matrix .text { white-space: normal; text-align: left; min-width: 16rem; } .matrix td.text { font-size: .88em; }
.matrix th:first-child, .matrix td:first-child { position: sticky; left: 0; background: var(--paper); white-space: normal; min-width: 11rem; }
.matrix small { color: var(--soft); display: block; } .matrix small.sure { color: var(--good); } .failed { color: var(--b); } tr.base td { border-bottom-width: 2px; }
.point { fill: var(--a); } .paper { fill: none; stroke: var(--b); stroke-width: 1.5; } svg .mine { stroke: var(--a); stroke-width: 2; } .base { stroke: var(--soft); stroke-dasharray: 3 3; }
";

/// The width of the labels of a plot, and that of its values.
const LABELS: f64 = 220.0;
const VALUES: f64 = 300.0;
/// The height of a row of a plot.
const STEP: f64 = 20.0;
/// Number of characters of a row's name in a plot.
const SHOWN: usize = 32;

impl Table {
    /// The table as a page.
    pub fn to_html(&self) -> String {
        let note = self.note.as_deref().map_or(String::new(), |note| format!("<p class=\"note\">{}</p>", Text(note)));
        let plots: String = (0..self.columns.len()).map(|at| self.plot(at)).collect();
        let compared = self.baseline.as_deref().filter(|_| self.is_compared()).map_or(String::new(), |name| {
            format!(" Small figures are differences to <b>{}</b>. {}", Text(name), super::markdown::COMPARED)
        });
        let has_paper = (0..self.columns.len()).any(|at| self.has_paper(at));
        let paper = if has_paper { " Circles are the figures of the paper." } else { "" };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}{OWN}</style></head><body>\
             <h1>{title}</h1>{note}<section class=\"matrix\">{table}</section>\
             <p class=\"note\">Figures are in per cent, lengths are counts; in brackets are 95 % intervals.{compared}</p>\
             <section><h2>By column</h2><div class=\"plots\">{plots}</div>\
             <p class=\"note\">Lines are 95 % intervals.{paper}</p></section>{origins}</body></html>\n",
            title = Text(&self.title),
            table = self.table(),
            origins = self.origins(),
        )
    }

    fn table(&self) -> String {
        let mut out = String::from("<table><thead><tr><th>row</th>");
        for (at, column) in self.columns.iter().enumerate() {
            let _ = write!(out, "<th title=\"{}\">{}</th>", Text(&described(column)), Text(&column.title));
            if self.has_paper(at) {
                out.push_str("<th>paper</th>");
            }
        }
        out.push_str("<th>seconds</th><th class=\"text\">note</th></tr></thead><tbody>");
        for row in &self.rows {
            let is_baseline = self.baseline.as_deref() == Some(&row.title);
            let _ =
                write!(out, "<tr{}><td>{}</td>", if is_baseline { " class=\"base\"" } else { "" }, Text(&row.title));
            for (at, cell) in row.cells.iter().enumerate() {
                out.push_str(&self.cell(at, cell));
            }
            let seconds = match &row.outcome {
                Outcome::Done { seconds, .. } => format!("{seconds:.1}"),
                _ => String::new(),
            };
            let remark = row.remark_beside_note().map_or(String::new(), |remark| {
                let class = if matches!(row.outcome, Outcome::Failed(_)) { " class=\"failed\"" } else { "" };
                format!("<b{class}>{}</b> ", Text(&remark))
            });
            let _ = write!(out, "<td>{seconds}</td><td class=\"text\">{remark}{}</td></tr>", Text(&row.note));
        }
        out + "</tbody></table>"
    }

    fn cell(&self, at: usize, cell: &Cell) -> String {
        let mut out = String::from("<td>");
        if let Some(value) = cell.value {
            let _ = write!(out, "<b>{}</b>", figure(value));
        }
        if let Some(interval) = cell.interval {
            let _ = write!(out, "<small>[{}, {}]</small>", figure(interval.low), figure(interval.high));
        }
        if let Some(compared) = cell.difference {
            let difference = compared.difference;
            let [mean, low, high] =
                [difference.interval.mean, difference.interval.low, difference.interval.high].map(signed);
            let sure = if compared.is_significant() { " class=\"sure\"" } else { "" };
            let _ = write!(
                out,
                "<small{sure} title=\"better on {} tasks, worse on {}; p without adjustment {:.4}\">{mean} \
                 [{low}, {high}]</small><small{sure}>p {:.4}</small>",
                difference.better, difference.worse, difference.p, compared.adjusted
            );
        }
        out.push_str("</td>");
        if self.has_paper(at) {
            let paper = cell.paper.map_or(String::new(), figure);
            let apart =
                self.apart(cell).map(signed).map_or(String::new(), |apart| format!("<small>ours {apart}</small>"));
            let _ = write!(out, "<td>{paper}{apart}</td>");
        }
        out
    }

    /// A plot of a column: a line per row.
    fn plot(&self, at: usize) -> String {
        let column = &self.columns[at];
        let rows: Vec<(&TableRow, &Cell)> = self.rows.iter().map(|row| (row, &row.cells[at])).collect();
        let rows: Vec<_> = rows.into_iter().filter(|(_, cell)| cell.value.is_some() || cell.paper.is_some()).collect();
        if rows.is_empty() {
            return String::new();
        }
        let ends =
            rows.iter().flat_map(|(_, cell)| [cell.value, cell.paper, cell.interval.map(|interval| interval.high)]);
        let most = match column.unit {
            Unit::Percent => 100.0,
            Unit::Count => ends.flatten().fold(1.0, f64::max),
        };
        let x = |value: f64| LABELS + (value / most).clamp(0.0, 1.0) * VALUES;
        let (width, height) = (LABELS + VALUES + 16.0, STEP * rows.len() as f64 + 26.0);
        let mut out = format!(
            "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             role=\"img\" aria-label=\"{title}\">",
            title = Text(&column.title)
        );
        for step in 0..=4 {
            let value = most * f64::from(step) / 4.0;
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{y:.0}\"/><text class=\"count\" x=\"{x:.1}\" \
                 y=\"{base:.0}\" text-anchor=\"middle\">{value:.0}</text>",
                x = x(value),
                y = height - 22.0,
                base = height - 8.0,
            );
        }
        let is_baseline = |row: &TableRow| self.baseline.as_deref() == Some(&row.title);
        let baseline = rows.iter().find(|(row, _)| is_baseline(row)).and_then(|(_, cell)| cell.value);
        if let Some(value) = baseline {
            let (x, y) = (x(value), height - 22.0);
            let _ = write!(out, "<line class=\"base\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{y:.0}\"/>");
        }
        for (place, (row, cell)) in rows.into_iter().enumerate() {
            let y = STEP * (place as f64 + 0.5);
            let mut name: String = row.title.chars().take(SHOWN).collect();
            if name.len() < row.title.len() {
                name.push('…');
            }
            let _ = write!(
                out,
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LABELS - 10.0,
                y + 4.0,
                Text(&name)
            );
            if let Some(interval) = cell.interval {
                let (low, high) = (x(interval.low), x(interval.high));
                let _ =
                    write!(out, "<line class=\"mine\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
            }
            for (value, class) in [(cell.value, "point"), (cell.paper, "paper")] {
                let Some(value) = value else { continue };
                let _ = write!(
                    out,
                    "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}: {}</title></circle>",
                    x(value),
                    Text(&row.title),
                    figure(value)
                );
            }
        }
        out + "</svg></figure>"
    }

    /// The files, settings and hashes of the rows.
    fn origins(&self) -> String {
        let mut out = String::from("<section><h2>Origin of the rows</h2>");
        for row in self.rows.iter().filter(|row| row.file.is_some()) {
            let file = row.file.as_deref().unwrap_or_default();
            let _ =
                write!(out, "<details><summary><b>{}</b> <code>{}</code></summary><dl>", Text(&row.title), Text(file));
            let mut line = |name: &str, value: &str| {
                let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", Text(name), Text(value));
            };
            row.set.iter().for_each(|set| line("set", set));
            row.models.iter().for_each(|(name, model)| line(&format!("model {name}"), model));
            if let Outcome::Done { tasks, failed, provenance, .. } = &row.outcome {
                line("tasks", &format!("{tasks}, {failed} failed"));
                line("turnflow", &provenance.version);
                line("pipeline", &provenance.pipeline);
                line("hits", &provenance.hits);
                let files = [("model", &provenance.models), ("corpus", &provenance.corpora)];
                for (kind, hashes) in files {
                    hashes.iter().for_each(|(name, hash)| line(&format!("{kind} {name}"), hash));
                }
                line("task hash", &provenance.tasks);
                provenance.qrels.iter().for_each(|hash| line("judgements", hash));
                provenance.metrics.iter().for_each(|hash| line("metrics", hash));
            }
            out.push_str("</dl></details>");
        }
        out + "</section>"
    }
}

fn described(column: &Column) -> String {
    match &column.by {
        Some((dimension, value)) => format!("{}, {dimension} {value}", column.metric),
        None => column.metric.clone(),
    }
}
