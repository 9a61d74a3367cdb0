//! The rows of a table, with cells that take several columns and rows.

/// Maximum number of columns and of rows that a cell takes.
const MOST_SPANNED: (usize, usize) = (64, 1000);
/// Maximum number of columns of a row.
const MOST_COLUMNS: usize = 1 << 10;
/// Maximum number of cells of a page that repeat others.
const MOST_REPEATED: usize = 100_000;
/// The longest text that is repeated in the rows that its cell takes, in bytes.
const LONGEST: usize = 1 << 10;

/// The rows of the open table.
#[derive(Default)]
pub(super) struct Table {
    cells: Vec<String>,
    /// Number of columns and rows that the open cell takes.
    span: (usize, usize),
    /// What cells of earlier rows have in the next ones, by column: the number of rows, and the text.
    above: Vec<(usize, String)>,
    /// Number of cells of the page so far that repeat others.
    repeated: usize,
}

impl Table {
    /// The next table of the page.
    pub(super) fn another(&self) -> Self {
        Self { repeated: self.repeated, ..Self::default() }
    }

    pub(super) fn start(&mut self, columns: Option<usize>, rows: Option<usize>) {
        self.take_above();
        self.span = (columns.unwrap_or(1).clamp(1, MOST_SPANNED.0), rows.unwrap_or(1).clamp(1, MOST_SPANNED.1));
    }

    /// Takes the cells that go on from earlier rows.
    fn take_above(&mut self) {
        while let Some((rows, text)) = self.above.get_mut(self.cells.len()).filter(|(rows, _)| *rows > 0) {
            *rows -= 1;
            self.repeated += 1;
            self.cells.push(text.clone());
            if self.repeated > MOST_REPEATED {
                self.above.clear();
            }
        }
    }

    pub(super) fn end(&mut self, text: &str) {
        for column in 0..self.span.0 {
            if self.cells.len() >= MOST_COLUMNS {
                return;
            }
            let text = if column == 0 { text } else { "" };
            if self.span.1 > 1 {
                let kept = if text.len() <= LONGEST { text } else { "" };
                self.above.resize(self.above.len().max(self.cells.len() + 1), (0, String::new()));
                self.above[self.cells.len()] = (self.span.1 - 1, kept.to_owned());
            }
            self.cells.push(text.to_owned());
        }
    }

    /// The row, if any of its cells has a text.
    pub(super) fn row(&mut self) -> String {
        self.take_above();
        // Columns that earlier cells take after a gap.
        while self.above.iter().skip(self.cells.len()).any(|(rows, _)| *rows > 0) {
            self.cells.push(String::new());
            self.take_above();
        }
        let cells = std::mem::take(&mut self.cells);
        let last = cells.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
        cells[..last].join(" | ")
    }
}
