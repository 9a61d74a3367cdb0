//! Tables between level lines, as in books: one above the header, one below it, and one below the last row.

use super::cells::{is_table, table};
use super::layout::{are_texts, columns, gutters};
use super::shape::{Bounds, Page, Rule, Segment};

/// The ends of the lines of one table are so near to each other, in points.
const NEAR: f32 = 4.0;
/// The shortest line, in points.
const SHORT: f32 = 60.0;
/// Maximum number of lines with the same ends.
const MOST_LINES: usize = 200;

/// Puts the words between level lines of the same ends into tables, each of which is one segment.
pub(super) fn find(page: &mut Page) {
    let mut groups: Vec<(Bounds, Vec<f32>)> = Vec::new();
    for Rule(place) in page.rules.iter().filter(|rule| rule.is_level() && rule.0.width() >= SHORT) {
        let group = groups
            .iter_mut()
            .find(|(other, _)| (other.x0 - place.x0).abs() < NEAR && (other.x1 - place.x1).abs() < NEAR);
        match group {
            Some((_, heights)) if heights.len() < MOST_LINES => heights.push(place.center().1),
            Some(_) => {}
            None => groups.push((*place, vec![place.center().1])),
        }
    }
    for (place, mut heights) in groups {
        heights.sort_by(|a, b| b.total_cmp(a));
        heights.dedup_by(|next, kept| *kept - *next < NEAR);
        if heights.len() >= 3 {
            find_between(page, place, &heights);
        }
    }
}

/// Looks for tables between lines with the same ends, from top to bottom.
fn find_between(page: &mut Page, place: Bounds, heights: &[f32]) {
    let mut bands: Vec<Vec<usize>> = vec![Vec::new(); heights.len() - 1];
    for (at, segment) in page.segments.iter().enumerate() {
        let (x, y) = segment.bounds.center();
        let band = heights.partition_point(|height| *height > y);
        if place.x0 - NEAR <= x && x <= place.x1 + NEAR && (1..heights.len()).contains(&band) {
            bands[band - 1].push(at);
        }
    }
    let copied = |band: &[usize]| band.iter().map(|&at| page.segments[at].clone()).collect::<Vec<Segment>>();
    // Text over the whole width is no row of a table.
    let is_row = |band: &Vec<usize>| {
        let is_plain = band.iter().all(|&at| page.segments[at].table.is_none());
        is_plain && !gutters(&copied(band)).is_empty()
    };
    let mut found: Vec<(Vec<usize>, Vec<Vec<String>>)> = Vec::new();
    for run in bands.chunk_by(|a, b| is_row(a) && is_row(b)).filter(|run| run.len() >= 2) {
        let Some(most) = run.iter().max_by_key(|band| band.len()) else { continue };
        let texts = columns(run.iter().flat_map(|band| copied(band)).collect(), &gutters(&copied(most)));
        if is_table(&texts) && !are_texts(&texts) {
            found.push((run.concat(), table(texts).0));
        }
    }
    let mut taken: Vec<usize> = found.iter().flat_map(|(taken, _)| taken.iter().copied()).collect();
    taken.sort_unstable();
    let tables: Vec<Segment> = found
        .into_iter()
        .filter_map(|(taken, rows)| {
            let first = page.segments.get(*taken.iter().min()?)?;
            let bounds = Bounds::all(taken.iter().map(|&at| page.segments[at].bounds));
            let bounds = Bounds { x0: bounds.x0.min(place.x0), x1: bounds.x1.max(place.x1), ..bounds };
            Some(Segment {
                words: Vec::new(),
                bounds,
                size: first.size,
                is_bold: false,
                at: first.at,
                table: Some(rows),
            })
        })
        .collect();
    let mut at = 0;
    page.segments.retain(|_| {
        at += 1;
        taken.binary_search(&(at - 1)).is_err()
    });
    page.segments.extend(tables);
}
