//! The table as plain text, for the terminal.

use super::{Cell, Outcome, Table, TableRow};

/// A line: its label, one text per column, and the seconds.
type Line = (String, Vec<String>, String);
/// What a line shows of a cell.
type Of = fn(&Cell) -> Option<String>;

impl Table {
    /// The table as text. Below each row are the differences to the baseline with their p-values, and the figures of
    /// the paper.
    pub fn to_text(&self) -> String {
        let heads = self.columns.iter().map(|column| column.title.clone()).collect();
        let mut lines: Vec<Line> = vec![(String::new(), heads, "seconds".to_owned())];
        lines.extend(self.rows.iter().flat_map(|row| self.lines(row)));
        let width =
            |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
        // A reason may be long, and is not in a column.
        let label = width(&mut lines.iter().filter(|(_, cells, _)| !cells.is_empty()).map(|(label, ..)| label));
        let columns = 0..self.columns.len();
        let widths: Vec<usize> =
            columns.map(|at| width(&mut lines.iter().filter_map(|(_, cells, _)| cells.get(at)))).collect();
        let mut out = format!("{}\n", self.title);
        for (name, cells, seconds) in &lines {
            let cells: String = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
            let line = if cells.is_empty() { name.clone() } else { format!("{name:label$}{cells}  {seconds:>7}") };
            out += line.trim_end();
            out.push('\n');
        }
        if self.is_compared() {
            out += &format!("{}\n", super::markdown::COMPARED);
        }
        out
    }

    /// Whether any row is compared with the baseline.
    pub(super) fn is_compared(&self) -> bool {
        self.rows.iter().any(|row| row.cells.iter().any(|cell| cell.difference.is_some()))
    }

    fn lines(&self, row: &TableRow) -> Vec<Line> {
        let texts = |of: Of| -> Vec<String> { row.cells.iter().map(|cell| of(cell).unwrap_or_default()).collect() };
        let seconds = match &row.outcome {
            Outcome::Done { seconds, .. } => format!("{seconds:.1}"),
            _ => String::new(),
        };
        let mut lines = vec![(row.title.clone(), texts(|cell| cell.value.map(figure)), seconds)];
        let baseline = self.baseline.as_deref().unwrap_or_default();
        let below: [(String, Of); 3] = [
            (format!("  to {baseline}"), |cell| {
                let interval = cell.difference?.difference.interval;
                Some(format!("{} ({} to {})", signed(interval.mean), signed(interval.low), signed(interval.high)))
            }),
            ("  p".to_owned(), |cell| Some(format!("{:.4}", cell.difference?.adjusted))),
            ("  paper".to_owned(), |cell| cell.paper.map(figure)),
        ];
        let below = below.into_iter().map(|(label, of)| (label, texts(of), String::new()));
        lines.extend(below.filter(|(_, texts, _)| texts.iter().any(|text| !text.is_empty())));
        lines.extend(row.remark().map(|remark| (format!("  {remark}"), Vec::new(), String::new())));
        lines
    }
}

impl TableRow {
    /// The remark, unless the note says why there is no file.
    pub(super) fn remark_beside_note(&self) -> Option<String> {
        let is_told = self.outcome == Outcome::NoFile && !self.note.is_empty();
        self.remark().filter(|_| !is_told)
    }

    /// What the figures do not show: why there are none, or that tasks failed.
    pub(super) fn remark(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Failed(reason) => Some(format!("failed: {reason}")),
            Outcome::Missing => Some("not run".to_owned()),
            Outcome::NoFile => Some("no pipeline file".to_owned()),
            Outcome::NoLocalFile => Some("no local pipeline file".to_owned()),
            Outcome::Done { failed: 0, .. } => None,
            Outcome::Done { tasks, failed, .. } => Some(format!("{failed} of {tasks} tasks failed")),
        }
    }
}

/// A figure in the unit of its column.
pub(super) fn figure(value: f64) -> String {
    format!("{value:.1}")
}

/// A difference, without the sign of one that rounds to 0.
pub(super) fn signed(value: f64) -> String {
    if value.abs() < 0.05 { "0.0".to_owned() } else { format!("{value:+.1}") }
}
