//! Finds the order in which a page is read: columns one after the other, and rows of cells as tables.

use super::cells::{is_table, table};
use super::rows::rows;
use super::shape::{Bounds, Segment};
use super::to_left::text_of;

/// Deepest nesting of columns in columns.
const DEEPEST: usize = 5;
/// The least width of the space between columns, as a share of the letters' size.
const GUTTER: f32 = 0.6;
/// Lines at more than this share of the same height are beside each other.
pub(super) const BESIDE: f32 = 0.3;
/// Columns of text are filled to this share by at least half of their lines.
const FILLED: f32 = 0.6;
/// Half of the lines of a column of text have at least so many words.
const WORDS: usize = 4;
/// Lines of running text are nearer to each other than this, as a share of the letters' size.
const CLOSE: f32 = 2.6;
/// A row further below than this, in heights of a line, does not belong to what is above it.
const APART: f32 = 2.2;

/// A part of a page, in the order in which it is read.
#[derive(Clone, Debug)]
pub(super) enum Block {
    /// A line of a column that reaches from `left` to `right`.
    Line { line: Line, left: f32, right: f32 },
    /// Rows of cells, and where the rows are, if they were found without lines.
    Table { rows: Vec<Vec<String>>, places: Vec<Bounds> },
}

/// A line of text.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub text: String,
    pub bounds: Bounds,
    pub size: f32,
    pub is_bold: bool,
}

/// The blocks of a page, in the order in which they are read.
pub(super) fn blocks(segments: Vec<Segment>) -> Vec<Block> {
    let mut blocks = Vec::new();
    region(segments, 0, &mut blocks);
    blocks
}

/// Reads a region: from top to bottom, and bands of columns within.
fn region(segments: Vec<Segment>, depth: usize, blocks: &mut Vec<Block>) {
    let whole = Bounds::all(segments.iter().map(|segment| segment.bounds));
    let mut slabs = slabs(segments).into_iter().peekable();
    // What may be the beginning of a column.
    let mut above: Vec<Vec<Segment>> = Vec::new();
    while let Some(slab) = slabs.next() {
        let mut gutters = gutters(&slab);
        if gutters.is_empty() || depth >= DEEPEST {
            above.push(slab);
            continue;
        }
        // What is below, as long as a space between columns stays free.
        let mut band = vec![slab];
        while let Some(next) = slabs.peek() {
            let height = line_height(next).max(line_height(&band[band.len() - 1]));
            let gap = bottom(&band[band.len() - 1]) - top(next);
            let left = narrowed(&gutters, next);
            // A line by itself is not the next row of a table far above, nor a header that of a table far below.
            if left.is_empty() || (gap > APART * height && (next.len() == 1 || band.len() == 1)) {
                break;
            }
            gutters = left;
            band.extend(slabs.next());
        }
        let mut texts = columns(band.iter().flatten().cloned().collect(), &gutters);
        if !are_texts(&texts) {
            match is_table(&texts) {
                true => {
                    above.drain(..).for_each(|slab| lines(slab, whole, blocks));
                    let (rows, places) = table(texts);
                    blocks.push(Block::Table { rows, places });
                }
                // Words far from each other, such as a date at the end of a line.
                false => above.extend(band),
            }
            continue;
        }
        // A column may begin higher than the others.
        let mut from = texts.iter().map(|column| top(column)).fold(f32::MIN, f32::max);
        let taken = above.iter().rev().take_while(|slab| {
            let is_taken = is_in_column(slab, &gutters, from);
            from = top(slab);
            is_taken
        });
        let mut first = above.len() - taken.count();
        // The last lines of a title may be short.
        while first > 0 && first < above.len() && is_title(&above[first - 1], &above[first]) {
            first += 1;
        }
        above.drain(first..).for_each(|slab| columns_of(slab, &gutters, &mut texts));
        above.drain(..).for_each(|slab| lines(slab, whole, blocks));
        texts.into_iter().for_each(|column| region(column, depth + 1, blocks));
    }
    above.into_iter().for_each(|slab| lines(slab, whole, blocks));
}

/// Whether a line goes on with the one above it.
fn is_title(above: &[Segment], below: &[Segment]) -> bool {
    let (one, other) = (line_height(above), line_height(below));
    (one - other).abs() < 0.05 * one && bottom(above) - top(below) < 0.8 * one
}

/// Whether a line above columns, which begin at a height, belongs to one of them.
fn is_in_column(slab: &[Segment], gutters: &[(f32, f32)], from: f32) -> bool {
    let is_free = |(start, end): &(f32, f32)| {
        // Letters differ a little in where they begin.
        let middle = (start + end) / 2.0;
        slab.iter().all(|segment| segment.bounds.x1 < middle || segment.bounds.x0 > middle)
    };
    gutters.iter().all(is_free) && bottom(slab) - from < APART * line_height(slab)
}

/// Segments by the columns between spaces.
pub(super) fn columns(segments: Vec<Segment>, gutters: &[(f32, f32)]) -> Vec<Vec<Segment>> {
    let mut columns: Vec<Vec<Segment>> = (0..=gutters.len()).map(|_| Vec::new()).collect();
    columns_of(segments, gutters, &mut columns);
    columns
}

fn columns_of(segments: Vec<Segment>, gutters: &[(f32, f32)], columns: &mut [Vec<Segment>]) {
    for segment in segments {
        let (center, _) = segment.bounds.center();
        columns[gutters.partition_point(|(from, to)| (from + to) / 2.0 < center)].push(segment);
    }
}

/// Whether columns have running text, and not the cells of a table.
pub(super) fn are_texts(columns: &[Vec<Segment>]) -> bool {
    if columns.iter().any(|column| column.iter().any(|segment| segment.table.is_some())) {
        return columns.iter().all(|column| !column.is_empty());
    }
    let is_text = |column: &Vec<Segment>| {
        let width = Bounds::all(column.iter().map(|segment| segment.bounds)).width();
        let rows = rows(column.clone());
        let filled = rows.iter().filter(|row| {
            let (words, bounds) = (row.iter().map(|segment| segment.words.len()).sum::<usize>(), bounds(row));
            bounds.width() >= FILLED * width && words >= WORDS || row.iter().any(is_dense)
        });
        rows.len() >= 2 && 2 * filled.count() >= rows.len()
    };
    // Between columns of text, the file goes from one to the next once; in a table it does so in each row.
    let mut order: Vec<(usize, usize)> = (0..)
        .zip(columns)
        .flat_map(|(number, column)| column.iter().map(move |segment| (segment.at, number)))
        .collect();
    order.sort_unstable();
    let changes = order.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    let is_in_order = changes < columns.len() + order.len() / 20;
    let texts = columns.iter().filter(|column| is_text(column)).count();
    match is_in_order {
        true => 2 * texts >= columns.len() && order.len() >= 2 * columns.len() && columns.len() <= 6,
        false => texts == columns.len() && columns.len() <= 3 && columns.iter().all(|column| is_close(column)),
    }
}

/// Whether half of the lines are as near to each other as those of a text are, and not as those of a form.
fn is_close(column: &[Segment]) -> bool {
    let places: Vec<Bounds> = rows(column.to_vec()).iter().map(|row| bounds(row)).collect();
    let most = CLOSE * line_height(column);
    let near = places.windows(2).filter(|pair| pair[0].y0 - pair[1].y0 < most).count();
    2 * near + 1 >= places.len()
}

/// Whether a segment is text of a script without blanks.
fn is_dense(segment: &Segment) -> bool {
    segment.words.iter().any(|word| word.text.chars().count() > 12 && !word.text.is_ascii())
}

/// Writes the lines of a region without columns.
fn lines(segments: Vec<Segment>, whole: Bounds, blocks: &mut Vec<Block>) {
    for row in rows(segments) {
        let mut parts: Vec<Segment> = Vec::new();
        for mut segment in row {
            match segment.table.take() {
                Some(rows) => {
                    push_line(std::mem::take(&mut parts), whole, blocks);
                    blocks.push(Block::Table { rows, places: Vec::new() });
                }
                None => parts.push(segment),
            }
        }
        push_line(parts, whole, blocks);
    }
}

fn push_line(parts: Vec<Segment>, whole: Bounds, blocks: &mut Vec<Block>) {
    if parts.is_empty() {
        return;
    }
    let length = |part: &&Segment| part.words.iter().map(|word| word.text.len()).sum::<usize>();
    let size = parts.iter().max_by_key(length).map_or(0.0, |part| part.size);
    let is_bold = parts.iter().all(|part| part.is_bold);
    let line = Line { text: text_of(&parts), bounds: bounds(&parts), size, is_bold };
    blocks.push(Block::Line { line, left: whole.x0, right: whole.x1 });
}

/// Segments that are beside each other, from top to bottom.
fn slabs(mut segments: Vec<Segment>) -> Vec<Vec<Segment>> {
    segments.sort_by(|a, b| b.bounds.y1.total_cmp(&a.bounds.y1));
    let mut slabs: Vec<(Bounds, Vec<Segment>)> = Vec::new();
    for segment in segments {
        match slabs.last_mut() {
            Some((place, slab)) if is_beside(place, slab, &segment) => {
                *place = place.with(segment.bounds);
                slab.push(segment);
            }
            _ => slabs.push((segment.bounds, vec![segment])),
        }
    }
    slabs.into_iter().map(|(_, slab)| slab).collect()
}

fn is_beside(place: &Bounds, slab: &[Segment], segment: &Segment) -> bool {
    let reaches = place.level_with(&segment.bounds) > BESIDE;
    reaches && slab.iter().rev().take(64).any(|other| other.bounds.level_with(&segment.bounds) > BESIDE)
}

/// The spaces that no segment crosses, from the first to the last segment.
pub(super) fn gutters(slab: &[Segment]) -> Vec<(f32, f32)> {
    let mut spans: Vec<(f32, f32)> = slab.iter().map(|segment| (segment.bounds.x0, segment.bounds.x1)).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = GUTTER * median(slab.iter().map(|segment| segment.size));
    let mut gutters = Vec::new();
    let mut end = f32::MAX;
    for (from, to) in spans {
        if from - end >= least {
            gutters.push((end, from));
        }
        end = if end == f32::MAX { to } else { end.max(to) };
    }
    gutters
}

/// What is left of spaces between columns beside these segments.
fn narrowed(gutters: &[(f32, f32)], slab: &[Segment]) -> Vec<(f32, f32)> {
    let least = GUTTER * median(slab.iter().map(|segment| segment.size));
    let mut left: Vec<(f32, f32)> = gutters.to_vec();
    for Segment { bounds, .. } in slab {
        left = left
            .into_iter()
            .filter_map(|(from, to)| {
                if bounds.x1 <= from || bounds.x0 >= to {
                    return Some((from, to));
                }
                let (before, after) = ((from, bounds.x0.max(from)), (bounds.x1.min(to), to));
                let wider = if before.1 - before.0 > after.1 - after.0 { before } else { after };
                (wider.1 - wider.0 >= least).then_some(wider)
            })
            .collect();
    }
    left
}

pub(super) fn bounds(segments: &[Segment]) -> Bounds {
    Bounds::all(segments.iter().map(|segment| segment.bounds))
}

fn top(slab: &[Segment]) -> f32 {
    bounds(slab).y1
}

fn bottom(slab: &[Segment]) -> f32 {
    bounds(slab).y0
}

fn line_height(slab: &[Segment]) -> f32 {
    median(slab.iter().map(|segment| segment.size))
}

/// The number in the middle; 0 if there are none.
pub(super) fn median(numbers: impl Iterator<Item = f32>) -> f32 {
    let mut numbers: Vec<f32> = numbers.collect();
    numbers.sort_by(f32::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}
