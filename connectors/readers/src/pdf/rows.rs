//! Puts segments into rows.

use std::collections::BTreeMap;

use super::shape::{Bounds, Segment};
use super::to_left::are_to_left;

/// Segments at more than this share of the same height are in one row.
const LEVEL: f32 = 0.5;
/// Only so many rows above can be at the height of a segment.
const NEAREST: usize = 8;
/// Number of segments beside one that are compared with it.
const BESIDE: usize = 16;

/// A row that is being made.
#[derive(Default)]
struct Row {
    bounds: Option<Bounds>,
    segments: Vec<Segment>,
    /// Where its segments begin, in tenths of a point.
    places: BTreeMap<(i64, usize), Bounds>,
}

impl Row {
    /// Whether a segment is at the height of the row, and at a place that is free.
    fn has_place(&self, segment: &Segment) -> bool {
        let place = segment.bounds;
        let is_level = self.bounds.is_some_and(|bounds| bounds.level_with(&place) > LEVEL);
        let is_free = |other: &Bounds| overlap(other, &place) < 0.5 * place.width().max(1.0);
        let at = (tenths(place.x0), 0);
        is_level
            && self.places.range(..at).rev().take(BESIDE).all(|(_, other)| is_free(other))
            && self.places.range(at..).take(BESIDE).all(|(_, other)| is_free(other))
    }

    fn push(&mut self, segment: Segment) {
        self.bounds = Some(self.bounds.map_or(segment.bounds, |bounds| bounds.with(segment.bounds)));
        self.places.insert((tenths(segment.bounds.x0), self.segments.len()), segment.bounds);
        self.segments.push(segment);
    }
}

fn tenths(place: f32) -> i64 {
    (place * 10.0) as i64
}

/// Segments in rows, from top to bottom; each row is in the order in which it is read.
pub(super) fn rows(mut segments: Vec<Segment>) -> Vec<Vec<Segment>> {
    segments.sort_by(|a, b| b.bounds.y1.total_cmp(&a.bounds.y1).then(a.at.cmp(&b.at)));
    let mut rows: Vec<Row> = Vec::new();
    for segment in segments {
        match rows.iter_mut().rev().take(NEAREST).find(|row| row.has_place(&segment)) {
            Some(row) => row.push(segment),
            None => {
                let mut row = Row::default();
                row.push(segment);
                rows.push(row);
            }
        }
    }
    let mut rows: Vec<Vec<Segment>> = rows.into_iter().map(|row| row.segments).collect();
    for row in &mut rows {
        row.sort_by(|a, b| a.bounds.x0.total_cmp(&b.bounds.x0));
        if are_to_left(row.iter().flat_map(|segment| &segment.words).map(|word| &word.text)) {
            row.reverse();
        }
    }
    rows
}

/// The width that two have in common.
fn overlap(a: &Bounds, b: &Bounds) -> f32 {
    (a.x1.min(b.x1) - a.x0.max(b.x0)).max(0.0)
}
