//! Reads the values of filled fields and the remarks of a page.

use pdfium_render::prelude::{PdfFormField, PdfFormFieldCommon, PdfPage, PdfPageAnnotation, PdfPageAnnotationCommon};

use super::page::Direction;
use super::shape::{Bounds, Segment, Word};

/// The values of filled fields and the remarks that are shown, as segments where they are.
pub(super) fn marks(page: &PdfPage<'_>, direction: Direction, from: usize) -> Vec<Segment> {
    let mut marks = Vec::new();
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
        let lines: Vec<&str> = text.split(['\r', '\n']).filter(|line| !line.trim().is_empty()).collect();
        let height = bounds.height() / lines.len().max(1) as f32;
        for (number, line) in lines.into_iter().enumerate() {
            let top = bounds.y1 - number as f32 * height;
            let place = Bounds { y0: top - height, y1: top, ..bounds };
            let words = line.split_whitespace().map(|word| Word { text: word.replace('\0', ""), bounds: place });
            marks.push(Segment::of(words.collect(), height.min(12.0), false, from + marks.len()));
        }
    }
    marks
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
