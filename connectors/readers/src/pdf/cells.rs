//! Tables whose cells are only apart from each other.

use std::collections::HashMap;

use super::layout::{bounds, median};
use super::rows::rows;
use super::shape::{Bounds, Segment};
use super::to_left::text_of;

/// A row below another one by less than this share of the usual distance goes on with its cells.
const CLOSE: f32 = 0.9;
/// Maximum number of cells of a table.
const MOST_CELLS: usize = 1_000_000;

/// Whether columns that are no running texts are those of a table.
pub(super) fn is_table(columns: &[Vec<Segment>]) -> bool {
    let rows = rows(columns.iter().flatten().cloned().collect());
    let beside = rows.iter().filter(|row| row.len() > 1).count();
    let least = if columns.len() > 2 { 2 } else { 3 };
    let has_table = rows.iter().flatten().any(|segment| segment.table.is_some());
    beside >= least
        && 5 * beside >= 2 * rows.len()
        && !has_table
        && rows.len().saturating_mul(columns.len()) <= MOST_CELLS
}

/// The cells of columns, row by row, and where the rows are.
pub(super) fn table(columns: Vec<Vec<Segment>>) -> (Vec<Vec<String>>, Vec<Bounds>) {
    let count = columns.len();
    let mut number_of: HashMap<usize, usize> = HashMap::new();
    for (number, column) in columns.iter().enumerate() {
        number_of.extend(column.iter().map(|segment| (segment.at, number)));
    }
    let mut lines: Vec<(Bounds, Vec<String>)> = Vec::new();
    for row in rows(columns.into_iter().flatten().collect()) {
        let mut cells = vec![String::new(); count];
        let place = bounds(&row);
        let number = |segment: &Segment| number_of.get(&segment.at).copied().unwrap_or_default();
        for part in row.chunk_by(|a, b| number(a) == number(b)) {
            append(&mut cells[number(&part[0])], &text_of(part));
        }
        lines.push((place, cells));
    }
    // The usual distance of rows is that of those which begin in the first column.
    let drop = |pair: &[(Bounds, Vec<String>)]| pair[0].0.y0 - pair[1].0.y0;
    let begun = lines.windows(2).filter(|pair| !pair[1].1[0].is_empty() && !goes_on(&pair[1].1));
    let leading = median(begun.map(drop));
    let (mut table, mut places): (Vec<Vec<String>>, Vec<Bounds>) = (Vec::new(), Vec::new());
    let mut last: Option<Bounds> = None;
    for (place, cells) in lines {
        let is_close = last.is_some_and(|last| last.y0 - place.y0 < CLOSE * leading);
        last = Some(place);
        match (table.last_mut(), places.last_mut()) {
            (Some(above), Some(whole)) if is_close && (cells[0].is_empty() || goes_on(&cells)) => {
                above.iter_mut().zip(&cells).for_each(|(above, cell)| append(above, cell));
                *whole = whole.with(place);
            }
            _ => {
                table.push(cells);
                places.push(place);
            }
        }
    }
    (table, places)
}

/// Whether a line looks as if it went on with the cells above it: it begins with a small letter, and most cells are empty.
fn goes_on(cells: &[String]) -> bool {
    let empty = cells.iter().filter(|cell| cell.is_empty()).count();
    2 * empty >= cells.len() && cells[0].starts_with(char::is_lowercase)
}

fn append(cell: &mut String, text: &str) {
    if !cell.is_empty() && !text.is_empty() {
        cell.push(' ');
    }
    cell.push_str(text);
}
