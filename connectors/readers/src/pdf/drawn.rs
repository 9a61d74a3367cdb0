//! Reads the lines and bullets that are drawn on a page.

use std::ops::RangeInclusive;

use pdfium_render::prelude::{
    PdfPage, PdfPageObject, PdfPageObjectsCommon, PdfPagePathObject, PdfPathSegmentType, PdfPathSegments,
};

use super::page::Direction;
use super::shape::{Bounds, Rule, Segment, Word};

/// Maximum number of drawn objects that are looked at.
const MOST_OBJECTS: usize = 20_000;
/// Maximum number of bullets of a page.
const MOST_BULLETS: usize = 1000;
/// A drawn shape is a line if it is not thicker than this, in points.
const THIN: f32 = 2.5;
/// The shortest line of a table, in points.
const SHORT: f32 = 6.0;
/// The width and the height of a bullet, in points.
const BULLET: RangeInclusive<f32> = 2.0..=7.0;

/// What is drawn on a page.
#[derive(Default)]
pub(super) struct Drawn {
    pub rules: Vec<Rule>,
    /// Discs, circles and squares as small as those before the items of a list.
    pub bullets: Vec<Bounds>,
}

/// The straight lines of a page, and its bullets.
pub(super) fn drawn(page: &PdfPage<'_>, direction: Direction) -> Drawn {
    let mut drawn = Drawn::default();
    for object in page.objects().iter().take(MOST_OBJECTS) {
        if let PdfPageObject::Path(path) = &object {
            of_path(path, direction, &mut drawn);
        }
    }
    drawn
}

fn of_path(path: &PdfPagePathObject<'_>, direction: Direction, drawn: &mut Drawn) {
    let mut keep = |bounds: Bounds| {
        let (long, thick) = (bounds.width().max(bounds.height()), bounds.width().min(bounds.height()));
        if long >= SHORT && thick <= THIN {
            drawn.rules.push(Rule(bounds));
        }
    };
    let is_stroked = path.is_stroked().unwrap_or_default();
    let segments = path.segments();
    let matrix = path.matrix().ok();
    let segments = match matrix {
        Some(matrix) => segments.transform(matrix),
        None => segments,
    };
    let (mut start, mut last) = ((0.0, 0.0), (0.0, 0.0));
    let mut all = Bounds::NONE;
    let mut is_straight = true;
    let between = |a: (f32, f32), b: (f32, f32)| Bounds {
        x0: a.0.min(b.0),
        x1: a.0.max(b.0),
        y0: a.1.min(b.1),
        y1: a.1.max(b.1),
    };
    for segment in segments.iter() {
        let (x, y) = segment.point();
        let point = direction.turned((x.value, y.value));
        all = all.with(between(point, point));
        match segment.segment_type() {
            PdfPathSegmentType::MoveTo => start = point,
            PdfPathSegmentType::LineTo if is_stroked => keep(between(last, point)),
            PdfPathSegmentType::LineTo => {}
            _ => is_straight = false,
        }
        if segment.is_close() && is_stroked {
            keep(between(point, start));
        }
        last = point;
    }
    // A thin rectangle that is filled is a line, too.
    if !is_stroked && is_straight {
        keep(all);
    }
    let (width, height) = (all.width(), all.height());
    let is_small = BULLET.contains(&width) && BULLET.contains(&height) && (width - height).abs() < 0.2 * width;
    if is_small && drawn.bullets.len() < MOST_BULLETS {
        drawn.bullets.push(all);
    }
}

/// Puts a bullet before each segment that has a drawn one.
pub(super) fn mark_items(segments: &mut [Segment], bullets: &[Bounds]) {
    if bullets.is_empty() {
        return;
    }
    let mut by_height: Vec<&Bounds> = bullets.iter().collect();
    by_height.sort_by(|a, b| a.y0.total_cmp(&b.y0));
    for segment in segments.iter_mut().filter(|segment| !segment.words.is_empty()) {
        let place = segment.bounds;
        let from = by_height.partition_point(|bullet| bullet.y0 < place.y0);
        let is_its = |bullet: &&&Bounds| {
            let gap = place.x0 - bullet.x1;
            bullet.y1 <= place.y1 && (0.1 * segment.size..2.5 * segment.size).contains(&gap)
        };
        let level = by_height[from..].iter().take_while(|bullet| bullet.y0 < place.y1);
        let Some(bullet) = level.take(MOST_BULLETS).find(is_its) else { continue };
        let bounds = Bounds { x0: bullet.x0, x1: bullet.x1, ..place };
        if is_level_text(segment) {
            segment.words.insert(0, Word { text: "•".to_owned(), bounds });
            segment.bounds = segment.bounds.with(bounds);
        }
    }
}

/// Whether a segment has words, and no bullet of its own.
fn is_level_text(segment: &Segment) -> bool {
    segment.words.iter().any(|word| word.text.contains(char::is_alphanumeric)) && segment.words[0].text != "•"
}
