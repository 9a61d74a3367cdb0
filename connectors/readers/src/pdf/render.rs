//! Draws pages of a PDF as pictures, for those whose text is to be read as it looks.

use pdfium_render::prelude::{PdfPage, PdfPageObject, PdfPageObjectCommon, PdfPageObjectsCommon, PdfRenderConfig};
use turnflow_engine::inference::Picture;

use super::shape::Page;
use crate::ocr::{MOST_PIXELS, OcrMode};

/// Resolution of a drawn page, in pixels for each point: 300 to an inch.
const RESOLUTION: f32 = 300.0 / 72.0;
/// Longest side of a drawn page, in pixels.
const LONGEST: f32 = 6000.0;
/// With a smaller share of known letters, a page is read as it looks.
const KNOWN: f64 = 0.9;
/// A page with fewer letters beside a large picture is a scan with a stamp.
const FEW: usize = 80;
/// A picture that fills this share of a page is a large one.
const LARGE: f32 = 0.5;
/// Number of a page's objects that are looked at.
const MOST_OBJECTS: usize = 1000;

/// Whether a page is to be read as it looks.
pub(super) fn is_wanted(page: &PdfPage<'_>, read: &Page, when: OcrMode) -> bool {
    let (letters, _) = read.letters;
    match when {
        OcrMode::Never => false,
        OcrMode::Always => !page.objects().is_empty(),
        OcrMode::Auto if letters == 0 => !page.objects().is_empty(),
        OcrMode::Auto => read.confidence() < KNOWN || letters < FEW && has_large_picture(page),
    }
}

fn has_large_picture(page: &PdfPage<'_>) -> bool {
    let area = page.width().value * page.height().value;
    page.objects().iter().take(MOST_OBJECTS).any(|object| match &object {
        PdfPageObject::Image(image) => {
            image.bounds().is_ok_and(|bounds| bounds.width().value * bounds.height().value >= LARGE * area)
        }
        _ => false,
    })
}

/// Draws a page. Returns the picture and the width of a pixel in points; `None` if it cannot be drawn.
pub(super) fn render(page: &PdfPage<'_>) -> Option<(Picture, f32)> {
    let (width, height) = (page.width().value, page.height().value);
    if !(width > 0.0 && height > 0.0) {
        return None;
    }
    let most = (MOST_PIXELS as f32 / (width * height)).sqrt().min(LONGEST / width.max(height));
    let scale = RESOLUTION.min(most);
    let side = |length: f32| ((length * scale).round() as i32).max(1);
    let config = PdfRenderConfig::new().set_fixed_size(side(width), side(height));
    let bitmap = page.render_with_config(&config).ok()?;
    let (width, height) = (usize::try_from(bitmap.width()).ok()?, usize::try_from(bitmap.height()).ok()?);
    let rgba = bitmap.as_rgba_bytes();
    let rgb: Vec<u8> = rgba.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    Some((Picture::of(width, height, rgb)?, 1.0 / scale))
}
