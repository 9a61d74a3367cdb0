//! Reads the values of filled fields and the remarks of a page, and puts them beside what is written at their place.

use pdfium_render::prelude::{PdfFormField, PdfFormFieldCommon, PdfPage, PdfPageAnnotation, PdfPageAnnotationCommon};

use super::layout::{BESIDE, median};
use super::page::Direction;
use super::shape::{Bounds, Segment, Word};

/// The height of a line of a field or remark, if the page has no letters to compare with, in points.
const LINE: f32 = 12.0;
/// Distance of the lines of a field or remark, as a share of the letters' size.
const LEADING: f32 = 1.2;
/// Mean width of a letter, as a share of its size.
const WIDTH: f32 = 0.5;
/// Maximum number of pairs of a mark and a segment that are compared.
const MOST_PAIRS: usize = 10_000_000;

/// Adds the values of filled fields and the remarks that are shown, as segments where they are: in the order of the page,
/// each comes after what it is beside, which is mostly the name of the field.
pub(super) fn add_marks(page: &PdfPage<'_>, direction: Direction, segments: &mut Vec<Segment>) {
    let usual = median(segments.iter().map(|segment| segment.size));
    let line = if usual > 0.0 { usual.min(LINE) } else { LINE };
    let written = std::mem::take(segments);
    // The number of the segment that each one comes after, and the segments.
    let mut placed: Vec<(usize, Segment)> = Vec::new();
    let are_compared = page.annotations().len().saturating_mul(written.len()) <= MOST_PAIRS;
    let compared = if are_compared { &written[..] } else { &[] };
    for mark in marks(page, direction, line, compared) {
        let name = name_of(&mark.bounds, compared);
        placed.push((name.map_or(written.len(), |at| at + 1), mark));
    }
    placed.sort_by_key(|(after, _)| *after);
    let mut placed = placed.into_iter().peekable();
    for at in 0..=written.len() {
        while let Some((_, mark)) = placed.next_if(|(after, _)| *after <= at) {
            segments.push(mark);
        }
        segments.extend(written.get(at).cloned());
    }
    (0..).zip(segments.iter_mut()).for_each(|(at, segment)| segment.at = at);
}

/// The nearest segment at the left of a mark.
fn name_of(mark: &Bounds, written: &[Segment]) -> Option<usize> {
    let beside = beside(mark, written).max_by(|a, b| a.1.bounds.x1.total_cmp(&b.1.bounds.x1));
    beside.map(|(at, _)| at)
}

/// The segments at the left of a mark.
fn beside<'a>(mark: &'a Bounds, written: &'a [Segment]) -> impl Iterator<Item = (usize, &'a Segment)> {
    let is_beside = |segment: &Segment| segment.bounds.center().0 < mark.x0 && segment.bounds.level_with(mark) > BESIDE;
    written.iter().enumerate().filter(move |(_, segment)| is_beside(segment))
}

/// The values and remarks, with letters of this size at most.
fn marks(page: &PdfPage<'_>, direction: Direction, size: f32, written: &[Segment]) -> Vec<Segment> {
    let mut marks: Vec<Segment> = Vec::new();
    for annotation in page.annotations().iter() {
        if annotation.is_hidden() {
            continue;
        }
        let text = match &annotation {
            PdfPageAnnotation::FreeText(remark) => remark.contents(),
            PdfPageAnnotation::Widget(widget) => widget.form_field().and_then(value),
            _ => None,
        };
        let (Some(text), Ok(rect)) = (text.filter(|text| !text.trim().is_empty()), annotation.bounds()) else {
            continue;
        };
        let bounds = direction.bounds(&rect);
        let mut add = |line: &str, width: usize, place: Bounds| {
            let x1 = place.x1.min(place.x0 + WIDTH * size * width as f32);
            let words = line.split_whitespace();
            let words = words.map(|word| Word { text: word.replace('\0', ""), bounds: Bounds { x1, ..place } });
            marks.push(Segment::of(words.collect(), size, false, marks.len()));
        };
        let lines: Vec<&str> = text.split(['\r', '\n']).filter(|line| !line.trim().is_empty()).collect();
        // Where there is room, the lines are as close as those of any text.
        let height = bounds.height() / lines.len().max(1) as f32;
        let height = if lines.len() > 1 { height.min(LEADING * size) } else { height };
        let first = Bounds { y0: bounds.y1 - height, ..bounds };
        if let PdfPageAnnotation::Widget(_) = &annotation {
            // What a field says stays together, also if lines of text are beside it.
            let place = if lines.len() > 1 { place_of(&bounds, first, written) } else { first };
            // Its last line ends where it ends.
            let width = lines.last().map_or(0, |line| line.chars().count());
            add(&lines.join(" "), width, place);
            continue;
        }
        for (number, line) in lines.into_iter().enumerate() {
            let down = number as f32 * height;
            add(line, line.chars().count(), Bounds { y0: first.y0 - down, y1: first.y1 - down, ..first });
        }
    }
    marks
}

/// Where a value of several lines stands: beside the name of the field, or the last line of the text beside it, or else at
/// its own first line.
fn place_of(field: &Bounds, first: Bounds, written: &[Segment]) -> Bounds {
    let last = beside(field, written).min_by(|a, b| a.1.bounds.y0.total_cmp(&b.1.bounds.y0));
    last.map_or(first, |(_, last)| Bounds { y0: last.bounds.y0, y1: last.bounds.y1, ..first })
}

/// What a field says.
fn value(field: &PdfFormField<'_>) -> Option<String> {
    match field {
        PdfFormField::Text(text) if !text.is_password() => text.value(),
        PdfFormField::ComboBox(choice) => choice.value(),
        PdfFormField::ListBox(choice) => choice.value(),
        PdfFormField::Checkbox(check) => (check.is_checked().ok()? && is_on(check)).then(|| "[x]".to_owned()),
        PdfFormField::RadioButton(button) => (button.is_checked().ok()? && is_on(button)).then(|| "(x)".to_owned()),
        _ => None,
    }
}

/// Whether a button looks as if it were pressed. One of a group whose value is `Off` does not.
fn is_on(button: &impl PdfFormFieldCommon) -> bool {
    button.appearance_stream().is_none_or(|name| name != "Off")
}
