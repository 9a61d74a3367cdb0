//! Makes a page of the lines that a model has read in a picture of it.

use std::collections::BTreeMap;

use turnflow_engine::inference::PictureLine;

use super::layout::median;
use super::shape::{Bounds, Page, Segment, Word};

/// A line of which the model is less sure is a speck or a drawing.
const SURE: f32 = 0.5;
/// The letters' size, as a share of the height in which a line is found.
const SIZE: f32 = 0.8;
/// Lines are found that much longer than their text at each end, as a share of their height.
const MARGIN: f32 = 0.2;
/// Lines whose heights differ by less than this factor from that of most are of its size. How high a line is found depends
/// on its letters.
const ALIKE: f32 = 1.3;
/// Sizes that differ by less than this factor are one.
const NEAR: f32 = 1.15;

/// A line in points, as it is read: `x` grows to its end, `y` upwards.
struct Placed<'a> {
    line: &'a PictureLine,
    /// Number of quarters by which it is turned to the left.
    quarter: i32,
    /// By how much it is turned beyond that, in radians.
    askew: f32,
    center: (f32, f32),
    length: f32,
    height: f32,
}

/// A page of lines. A pixel is `scale` points wide, and the picture is `height` pixels high.
pub(super) fn page(lines: &[PictureLine], scale: f32, height: usize) -> Page {
    let placed: Vec<Placed<'_>> =
        lines.iter().filter(|line| line.confidence >= SURE).map(|line| place(line, scale, height as f32)).collect();
    let mut by_quarter = BTreeMap::<i32, Vec<Placed<'_>>>::new();
    placed.into_iter().for_each(|line| by_quarter.entry(line.quarter).or_default().push(line));
    let letters = |lines: &[Placed<'_>]| lines.iter().map(|line| line.line.text.len()).sum::<usize>();
    let main = by_quarter.iter().rev().max_by_key(|(_, lines)| letters(lines)).map(|(quarter, _)| *quarter);
    let mut page = Page::default();
    for (quarter, lines) in by_quarter {
        let segments = segments(lines, quarter);
        match Some(quarter) == main {
            true => page.segments = segments,
            false => page.turned.push(segments),
        }
    }
    page
}

fn place(line: &PictureLine, scale: f32, height: f32) -> Placed<'_> {
    let [a, b, c, d] = line.corners.map(|(x, y)| (x * scale, (height - y) * scale));
    let middle = |a: (f32, f32), b: (f32, f32)| ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0);
    let (from, to) = (middle(a, d), middle(b, c));
    let (x, y) = (to.0 - from.0, to.1 - from.1);
    let quarters = y.atan2(x) / std::f32::consts::FRAC_PI_2;
    let quarter = quarters.round();
    Placed {
        line,
        quarter: (quarter as i32).rem_euclid(4),
        askew: (quarters - quarter) * std::f32::consts::FRAC_PI_2,
        center: middle(from, to),
        length: x.hypot(y),
        height: (a.0 - d.0).hypot(a.1 - d.1).min((b.0 - c.0).hypot(b.1 - c.1)),
    }
}

/// The segments of lines that are turned by so many quarters, level.
fn segments(mut lines: Vec<Placed<'_>>, quarter: i32) -> Vec<Segment> {
    // How far the page is askew is told by its long lines.
    let askew = median(lines.iter().flat_map(|line| {
        let weight = (line.length / line.height.max(0.1)).clamp(1.0, 40.0) as usize;
        std::iter::repeat_n(line.askew, weight)
    }));
    let (sin, cos) = (quarter as f32 * std::f32::consts::FRAC_PI_2 + askew).sin_cos();
    for line in &mut lines {
        let (x, y) = line.center;
        line.center = (x * cos + y * sin, y * cos - x * sin);
    }
    let sizes = sizes(&lines);
    lines.sort_by(|a, b| b.center.1.total_cmp(&a.center.1));
    let segment = |(at, line): (usize, &Placed<'_>)| {
        let size = sizes.get(&key(line.height)).copied().unwrap_or(line.height * SIZE);
        Segment::of(words(line, size), size, false, at)
    };
    lines.iter().enumerate().map(segment).filter(|segment| !segment.words.is_empty()).collect()
}

fn words(line: &Placed<'_>, size: f32) -> Vec<Word> {
    let margin = (MARGIN * line.height).min(line.length / 4.0);
    let (from, to) = (line.center.0 - line.length / 2.0 + margin, line.center.0 + line.length / 2.0 - margin);
    let (y0, y1) = (line.center.1 - size / 2.0, line.center.1 + size / 2.0);
    let start = line.center.0 - line.length / 2.0;
    let place = |at: usize| start + line.length * line.line.places.get(at).copied().unwrap_or_default();
    let letters: Vec<char> = line.line.text.chars().collect();
    let mut words = Vec::new();
    let mut at = 0;
    for text in letters.split(|letter| letter.is_whitespace()) {
        if !text.is_empty() {
            // The middles of the first and of the last letter are known.
            let (x0, x1) = (place(at) - 0.25 * size, place(at + text.len() - 1) + 0.25 * size);
            let (x0, x1) = (x0.clamp(from, to), x1.clamp(from, to));
            words.push(Word { text: text.iter().collect(), bounds: Bounds { x0, x1, y0, y1 } });
        }
        at += text.len() + 1;
    }
    if let (Some(first), 1..) = (words.first_mut(), letters.len()) {
        first.bounds.x0 = from;
    }
    if let Some(last) = words.last_mut() {
        last.bounds.x1 = to;
    }
    words
}

/// A height in tenths of a point.
fn key(height: f32) -> i32 {
    (height * 10.0) as i32
}

/// The letters' size for each height of a line: heights that differ a little are of one size.
fn sizes(lines: &[Placed<'_>]) -> BTreeMap<i32, f32> {
    let weighted = lines.iter().flat_map(|line| std::iter::repeat_n(line.height, line.line.text.len().min(1000)));
    let most = median(weighted);
    let mut heights: Vec<f32> = lines.iter().map(|line| line.height).collect();
    heights.sort_by(f32::total_cmp);
    let mut sizes = BTreeMap::new();
    let mut group = 0.0;
    for height in heights {
        let is_body = height < most * ALIKE && most < height * ALIKE;
        if is_body {
            group = most;
        } else if height > group * NEAR || group == most {
            group = height;
        }
        sizes.insert(key(height), group * SIZE);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of a text of letters that are 10 pixels wide, whose corner is at a place.
    fn line(text: &str, (x, y): (f32, f32), height: f32) -> PictureLine {
        let letters = text.chars().count();
        let right = x + 10.0 * letters as f32;
        PictureLine {
            text: text.to_owned(),
            confidence: 0.9,
            corners: [(x, y), (right, y), (right, y + height), (x, y + height)],
            places: (0..letters).map(|at| (at as f32 + 0.5) / letters as f32).collect(),
        }
    }

    fn texts(segments: &[Segment]) -> Vec<String> {
        let text =
            |segment: &Segment| segment.words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
        segments.iter().map(text).collect()
    }

    #[test]
    fn words_have_their_places_and_lines_their_sizes() {
        let lines = [
            line("a title", (0.0, 0.0), 60.0),
            line("some words", (0.0, 100.0), 20.0),
            line("more", (0.0, 130.0), 23.0),
        ];
        let page = page(&lines, 0.5, 200);
        assert_eq!(texts(&page.segments), ["a title", "some words", "more"]);
        let sizes: Vec<f32> = page.segments.iter().map(|segment| segment.size).collect();
        assert!(sizes[0] > 2.0 * sizes[1] && sizes[1] == sizes[2], "{sizes:?}");
        let second = &page.segments[1].words[1].bounds;
        assert!((24.0..30.0).contains(&second.x0) && (44.0..=50.0).contains(&second.x1), "{second:?}");
    }

    #[test]
    fn pages_are_turned_and_made_level() {
        let turned = |degrees: f32| {
            let (sin, cos) = degrees.to_radians().sin_cos();
            let mut lines = vec![line("the first line", (0.0, 0.0), 20.0), line("the second", (0.0, 30.0), 20.0)];
            for line in &mut lines {
                line.corners = line.corners.map(|(x, y)| (500.0 + x * cos - y * sin, 500.0 + x * sin + y * cos));
            }
            page(&lines, 1.0, 1000)
        };
        for degrees in [0.0, 3.0, -5.0, 90.0, 180.0, 268.0] {
            let page = turned(degrees);
            assert_eq!(texts(&page.segments), ["the first line", "the second"], "{degrees}");
            let (first, second) = (page.segments[0].bounds, page.segments[1].bounds);
            assert!((first.x0 - second.x0).abs() < 2.0 && (first.y0 - second.y0 - 30.0).abs() < 2.0, "{degrees}");
        }
    }

    #[test]
    fn doubtful_lines_are_left_out() {
        let doubtful = PictureLine { confidence: 0.2, ..line("~|'", (0.0, 0.0), 20.0) };
        assert!(page(&[doubtful], 1.0, 100).segments.is_empty());
    }
}
