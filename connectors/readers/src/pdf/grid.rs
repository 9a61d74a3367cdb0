//! Tables whose cells are parted by drawn lines.

use super::layout::rows;
use super::shape::{Bounds, Page, Rule, Segment, Word};

/// Lines at most so far from each other touch, in points.
const NEAR: f32 = 3.0;
/// Maximum number of lines of a page that are looked at.
const MOST_RULES: usize = 3000;
/// Maximum number of cells of a table.
const MOST_CELLS: usize = 20_000;

/// Puts the words within grids of lines into tables, each of which is one segment.
pub(super) fn find(page: &mut Page) {
    if page.rules.len() < 4 || page.rules.len() > MOST_RULES {
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
        (xs.len() >= 3 && ys.len() >= 3 && cells <= MOST_CELLS).then_some(Self { bounds, xs, ys })
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
        let text = |segments: Vec<Segment>| {
            let lines =
                rows(segments).into_iter().map(|row| row.iter().map(Segment::text).collect::<Vec<_>>().join(" "));
            lines.collect::<Vec<_>>().join("\n")
        };
        let table: Vec<Vec<String>> =
            cells.into_iter().map(|row| row.into_iter().map(text).collect::<Vec<_>>()).collect();
        let is_filled = |cell: &String| !cell.is_empty();
        let rows = table.iter().filter(|row| row.iter().any(is_filled)).count();
        let columns = (0..columns).filter(|&column| table.iter().any(|row| is_filled(&row[column]))).count();
        (rows >= 2 && columns >= 2).then(|| without_empty_columns(table))
    }
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
