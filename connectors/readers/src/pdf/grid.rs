//! Tables whose cells are parted by drawn lines.

use super::cells::table;
use super::level;
use super::rows::rows;
use super::shape::{Bounds, Page, Rule, Segment, Word};
use super::to_left::text_of;

/// Lines at most so far from each other touch, in points.
const NEAR: f32 = 3.0;
/// Maximum number of lines of a page that are looked at.
const MOST_RULES: usize = 3000;
/// Longest text of a cell over several rows that is repeated in each of them, in bytes.
const LONGEST: usize = 60;
/// Maximum number of cells of a table.
const MOST_CELLS: usize = 20_000;

/// Puts the words within grids of lines into tables, each of which is one segment.
pub(super) fn find(page: &mut Page) {
    if page.rules.len() < 3 || page.rules.len() > MOST_RULES {
        return;
    }
    for group in touching(&page.rules) {
        let Some(grid) = Grid::of(&group) else { continue };
        let taken: Vec<usize> = (0..page.segments.len()).filter(|&at| grid.has(&page.segments[at])).collect();
        let Some(rows) = grid.cells(taken.iter().map(|&at| &page.segments[at])) else { continue };
        let first = &page.segments[taken[0]];
        let table = Segment {
            words: Vec::new(),
            bounds: grid.bounds,
            size: first.size,
            is_bold: false,
            at: first.at,
            table: Some(rows),
        };
        let mut at = 0;
        page.segments.retain(|_| {
            at += 1;
            taken.binary_search(&(at - 1)).is_err()
        });
        page.segments.push(table);
    }
    level::find(page);
}

/// Groups of lines that touch each other.
fn touching(rules: &[Rule]) -> Vec<Vec<Rule>> {
    let mut groups: Vec<(Bounds, Vec<Rule>)> = Vec::new();
    let touch = |a: &Bounds, b: &Bounds| {
        a.x0 <= b.x1 + NEAR && b.x0 <= a.x1 + NEAR && a.y0 <= b.y1 + NEAR && b.y0 <= a.y1 + NEAR
    };
    for rule in rules {
        let (near, far): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|(place, group)| touch(place, &rule.0) && group.iter().any(|other| touch(&other.0, &rule.0)));
        groups = far;
        let mut joined = (rule.0, vec![*rule]);
        for (place, group) in near {
            joined.0 = joined.0.with(place);
            joined.1.extend(group);
        }
        groups.push(joined);
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The lines of a table.
struct Grid {
    bounds: Bounds,
    /// Where columns begin and end, from left to right.
    xs: Vec<f32>,
    /// Where rows begin and end, from top to bottom.
    ys: Vec<f32>,
    rules: Vec<Rule>,
}

impl Grid {
    /// `None` if these lines have no two columns and rows.
    fn of(rules: &[Rule]) -> Option<Self> {
        let upright = rules.iter().filter(|rule| !rule.is_level()).map(|rule| rule.0.center().0);
        let level = rules.iter().filter(|rule| rule.is_level()).map(|rule| rule.0.center().1);
        let (xs, mut ys) = (distinct(upright), distinct(level));
        ys.reverse();
        let cells = xs.len().saturating_sub(1) * ys.len().saturating_sub(1);
        let bounds = Bounds::all(rules.iter().map(|rule| rule.0));
        let rules = rules.to_vec();
        (xs.len() >= 3 && ys.len() >= 3 && cells <= MOST_CELLS).then_some(Self { bounds, xs, ys, rules })
    }

    fn has(&self, segment: &Segment) -> bool {
        let (x, y) = segment.bounds.center();
        let is_within = |from: f32, at: f32, to: f32| from - NEAR <= at && at <= to + NEAR;
        segment.table.is_none()
            && is_within(self.bounds.x0, x, self.bounds.x1)
            && is_within(self.bounds.y0, y, self.bounds.y1)
    }

    /// The texts of the cells. `None` if fewer than two columns or rows have any.
    fn cells<'a>(&self, segments: impl Iterator<Item = &'a Segment>) -> Option<Vec<Vec<String>>> {
        let (columns, lines) = (self.xs.len() - 1, self.ys.len() - 1);
        let mut cells: Vec<Vec<Vec<Segment>>> = vec![vec![Vec::new(); columns]; lines];
        for segment in segments {
            // A segment may reach over several cells, so its words are looked at.
            let mut parts: Vec<((usize, usize), Vec<Word>)> = Vec::new();
            for word in &segment.words {
                let (x, y) = word.bounds.center();
                let column = self.xs[1..columns].partition_point(|at| *at < x);
                let row = self.ys[1..lines].partition_point(|at| *at > y);
                match parts.last_mut().filter(|(place, _)| *place == (row, column)) {
                    Some((_, words)) => words.push(word.clone()),
                    None => parts.push(((row, column), vec![word.clone()])),
                }
            }
            for ((row, column), words) in parts {
                cells[row][column].push(Segment::of(words, segment.size, segment.is_bold, segment.at));
            }
        }
        let lines = self.lines(cells);
        let is_filled = |cell: &String| !cell.is_empty();
        let rows = lines.iter().filter(|row| row.iter().any(is_filled)).count();
        let columns = (0..columns).filter(|&column| lines.iter().any(|row| is_filled(&row[column]))).count();
        (rows >= 2 && columns >= 2).then(|| without_empty_columns(lines))
    }

    /// The texts of cells, row by row.
    fn lines(&self, mut cells: Vec<Vec<Vec<Segment>>>) -> Vec<Vec<String>> {
        let merged = self.merge(&mut cells);
        let mut lines: Vec<Vec<String>> = Vec::new();
        for (row, cells) in cells.into_iter().enumerate() {
            if let Some(split) = split(&cells) {
                lines.extend(split);
                continue;
            }
            let above = lines.last().cloned();
            lines.push(cells.into_iter().map(text).collect());
            // The name of several rows is repeated, so that each can be read by itself.
            if let (Some(above), Some(line)) = (above, lines.last_mut()) {
                // A row without texts of its own stays empty.
                if line.iter().any(|cell| !cell.is_empty()) {
                    let free = (0..line.len().min(1)).filter(|&at| merged[row][at] && line[at].is_empty());
                    let columns: Vec<usize> = free.filter(|&at| above[at].len() <= LONGEST).collect();
                    columns.into_iter().for_each(|at| line[at].clone_from(&above[at]));
                }
            }
        }
        lines
    }

    /// Moves the texts of cells that no line parts into the first of them. Returns which cells are the lower parts of
    /// others.
    fn merge(&self, cells: &mut [Vec<Vec<Segment>>]) -> Vec<Vec<bool>> {
        let (rows, columns) = (self.ys.len() - 1, self.xs.len() - 1);
        // Whether there is a line at the right of a cell, and below it.
        let (mut right, mut below) = (vec![vec![false; columns]; rows], vec![vec![false; columns]; rows]);
        let near = |places: &[f32], at: f32| places.iter().position(|place| (place - at).abs() <= NEAR);
        for Rule(place) in &self.rules {
            let (x, y) = place.center();
            let is_level = Rule(*place).is_level();
            if let Some(line) = near(&self.xs, x).filter(|line| !is_level && *line > 0) {
                let from = self.ys[1..rows].partition_point(|at| *at > place.y1);
                (from..rows)
                    .map(|row| (row, (self.ys[row] + self.ys[row + 1]) / 2.0))
                    .take_while(|(_, middle)| *middle >= place.y0)
                    .filter(|(_, middle)| *middle <= place.y1)
                    .for_each(|(row, _)| right[row][line - 1] = true);
            }
            if let Some(line) = near(&self.ys, y).filter(|line| is_level && *line > 0) {
                let from = self.xs[1..columns].partition_point(|at| *at < place.x0);
                (from..columns)
                    .map(|column| (column, (self.xs[column] + self.xs[column + 1]) / 2.0))
                    .take_while(|(_, middle)| *middle <= place.x1)
                    .filter(|(_, middle)| *middle >= place.x0)
                    .for_each(|(column, _)| below[line - 1][column] = true);
            }
        }
        let mut merged = vec![vec![false; columns]; rows];
        for row in 0..rows {
            for column in (1..columns).rev() {
                let (before, after) = cells[row].split_at_mut(column);
                let are_free = !right[row][column - 1]
                    && (before[column - 1].is_empty() || after[0].is_empty() || is_one(&before[column - 1], &after[0]));
                if are_free {
                    before[column - 1].append(&mut after[0]);
                }
            }
        }
        for row in 1..rows {
            // Where no column has a line, the rows are apart by their texts.
            if !below[row - 1].contains(&true) {
                continue;
            }
            for column in 0..columns {
                let (before, after) = cells.split_at_mut(row);
                let (above, cell) = (&mut before[row - 1][column], &mut after[0][column]);
                if below[row - 1][column] || above.is_empty() == cell.is_empty() {
                    continue;
                }
                if above.is_empty() && merged[row - 1][column] {
                    continue;
                }
                if above.is_empty() {
                    above.append(cell);
                }
                merged[row][column] = true;
            }
        }
        merged
    }
}

/// Whether parts of one line of text are in two cells.
fn is_one(left: &[Segment], right: &[Segment]) -> bool {
    left.iter().any(|part| right.iter().any(|other| part.at == other.at))
}

/// The text of a cell.
fn text(segments: Vec<Segment>) -> String {
    let lines = rows(segments).into_iter().map(|row| text_of(&row));
    lines.collect::<Vec<_>>().join("\n")
}

/// The rows between two lines, if each has a line of text in the first column and in most others.
fn split(cells: &[Vec<Segment>]) -> Option<Vec<Vec<String>>> {
    let first = rows(cells.first()?.clone()).len();
    if first < 3 {
        return None;
    }
    // The parts of a segment are in several cells.
    let mut at = 0;
    let columns: Vec<Vec<Segment>> = cells
        .iter()
        .map(|cell| {
            let renumbered = cell.iter().map(|segment| {
                at += 1;
                Segment { at, ..segment.clone() }
            });
            renumbered.collect()
        })
        .collect();
    let (lines, _) = table(columns);
    let is_row = |line: &Vec<String>| {
        let filled = line.iter().filter(|cell| !cell.is_empty()).count();
        !line[0].is_empty() && 2 * filled > line.len()
    };
    (lines.len() >= first && lines.iter().all(is_row)).then_some(lines)
}

fn without_empty_columns(table: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let columns = table.first().map_or(0, Vec::len);
    let filled: Vec<bool> = (0..columns).map(|at| table.iter().any(|row| !row[at].is_empty())).collect();
    let kept =
        |row: Vec<String>| row.into_iter().zip(&filled).filter(|(_, filled)| **filled).map(|(cell, _)| cell).collect();
    table.into_iter().map(kept).collect()
}

/// Places that are apart, in their order.
fn distinct(places: impl Iterator<Item = f32>) -> Vec<f32> {
    let mut places: Vec<f32> = places.collect();
    places.sort_by(f32::total_cmp);
    places.dedup_by(|next, kept| *next - *kept < NEAR);
    places
}
