//! Reads pictures: the text that a model sees in them.
//!
//! The crate `image` decodes them, within limits of size and memory. `tiff` finds the pages of a TIFF file. Light text on
//! a transparent ground gets a dark one. The lines become paragraphs as those of a PDF do.

mod tiff;

use std::io::Cursor;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::metadata::Orientation;
use image::{
    DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder as _, ImageError, ImageFormat, ImageReader, Limits,
};
use turnflow_engine::inference::Picture;
use turnflow_engine::metadata::Metadata;

use super::{Content, Format, ReadError};
use crate::ocr::{Eyes, MOST_PICTURES, MOST_PIXELS, OcrMode};
use crate::pdf::{Outline, Paged};

/// Longest side of a picture, in pixels.
const LONGEST: u32 = 30_000;
/// Maximum number of pixels of a picture.
const MOST_DECODED: u64 = 80_000_000;
/// Memory that a decoder may take, in bytes.
const MEMORY: u64 = 400 << 20;
/// The shorter side of a picture is as long as that of a page of A4, in points.
const SHORTER: f32 = 595.0;

/// Reads the text in a picture.
///
/// # Errors
///
/// It is no picture, or too large, or no text can be read in it.
pub(crate) fn read(format: Format, bytes: &[u8], eyes: &mut Eyes<'_>) -> Result<Content, ReadError> {
    if eyes.when == OcrMode::Never {
        return Err(ReadError::PicturesNever { what: "pictures" });
    }
    let mut paged = Paged::default();
    match format {
        Format::Tiff => {
            let pages = tiff::pages(bytes);
            // One buffer for all pages.
            let mut whole = bytes.to_vec();
            for page in pages.iter().take(MOST_PICTURES) {
                tiff::begin_with(&mut whole, *page);
                read_one(format, &whole, eyes, &mut paged)?;
            }
            if pages.len() > MOST_PICTURES {
                return Err(ReadError::TooMany { what: "pages", limit: MOST_PICTURES as u64 });
            }
        }
        _ => read_one(format, bytes, eyes, &mut paged)?,
    }
    paged.finish(format, &Outline::default(), Metadata::default(), eyes)
}

fn read_one(format: Format, bytes: &[u8], eyes: &mut Eyes<'_>, paged: &mut Paged) -> Result<(), ReadError> {
    let picture = decode(format, bytes)?;
    let scale = SHORTER / picture.width.min(picture.height) as f32;
    paged.add_picture(picture, scale, eyes);
    Ok(())
}

/// Decodes a picture, as it is to be looked at.
fn decode(format: Format, bytes: &[u8]) -> Result<Picture, ReadError> {
    let broken = |error: ImageError| broken(format, &error);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), known(format));
    let mut limits = Limits::default();
    limits.max_image_width = Some(LONGEST);
    limits.max_image_height = Some(LONGEST);
    limits.max_alloc = Some(MEMORY);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let (width, height) = decoder.dimensions();
    if width.max(height) > LONGEST || u64::from(width) * u64::from(height) > MOST_DECODED {
        return Err(too_large(format));
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(broken)?;
    if image.width() == 0 || image.height() == 0 {
        return Err(ReadError::Broken { format: format.name(), reason: "it has no pixels".to_owned() });
    }
    let pixels = image.width() as usize * image.height() as usize;
    if pixels > MOST_PIXELS {
        let factor = (MOST_PIXELS as f64 / pixels as f64).sqrt();
        let side = |length: u32| ((f64::from(length) * factor) as u32).max(1);
        image = image.thumbnail_exact(side(image.width()), side(image.height()));
    }
    image.apply_orientation(orientation);
    let (width, height) = (image.width() as usize, image.height() as usize);
    let rgb = if image.color().has_alpha() { on_ground(&image.into_rgba8()) } else { image.into_rgb8().into_raw() };
    Picture::of(width, height, rgb)
        .ok_or_else(|| ReadError::Broken { format: format.name(), reason: "it has no pixels".to_owned() })
}

/// Puts a picture on a ground: a white one, or a black one if what is seen of it is light.
fn on_ground(image: &image::RgbaImage) -> Vec<u8> {
    let (mut sum, mut weight) = (0u64, 0u64);
    for image::Rgba([red, green, blue, alpha]) in image.pixels() {
        let light = (299 * u64::from(*red) + 587 * u64::from(*green) + 114 * u64::from(*blue)) / 1000;
        sum += light * u64::from(*alpha);
        weight += u64::from(*alpha);
    }
    let is_transparent = weight < 255 * image.pixels().len() as u64 * 9 / 10;
    let ground: u32 = if is_transparent && sum > weight * 160 { 0 } else { 255 };
    let on =
        |value: u8, alpha: u8| ((u32::from(value) * u32::from(alpha) + ground * (255 - u32::from(alpha))) / 255) as u8;
    image
        .pixels()
        .flat_map(|image::Rgba([red, green, blue, alpha])| [red, green, blue].map(|value| on(*value, *alpha)))
        .collect()
}

fn known(format: Format) -> ImageFormat {
    match format {
        Format::Jpeg => ImageFormat::Jpeg,
        Format::Tiff => ImageFormat::Tiff,
        Format::Webp => ImageFormat::WebP,
        _ => ImageFormat::Png,
    }
}

fn broken(format: Format, error: &ImageError) -> ReadError {
    match error {
        ImageError::Limits(_) => too_large(format),
        error => ReadError::Broken { format: format.name(), reason: error.to_string() },
    }
}

fn too_large(format: Format) -> ReadError {
    let reason = format!(
        "it is too large: a picture has at most {} million pixels, {LONGEST} in a row or column",
        MOST_DECODED / 1_000_000
    );
    ReadError::Broken { format: format.name(), reason }
}

/// A picture as a PNG file.
///
/// # Errors
///
/// The picture cannot be written.
pub(crate) fn png(picture: &Picture) -> Result<Vec<u8>, ReadError> {
    let size = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Up);
    let (width, height) = (size(picture.width), size(picture.height));
    let written = encoder.write_image(&picture.rgb, width, height, ExtendedColorType::Rgb8);
    written.map_err(|error| ReadError::Broken { format: "picture", reason: error.to_string() })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
