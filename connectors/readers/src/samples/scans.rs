//! Scans: pages of a PDF as pictures.

use std::io::{Cursor, Write as _};

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use pdfium_render::prelude::PdfRenderConfig;

use crate::pdf::library;

/// A picture of a page.
#[derive(Clone)]
pub struct Scan(RgbImage);

impl Scan {
    /// Draws the first page of a PDF; `None` if there is no pdfium, or it is no PDF.
    pub fn of_pdf(bytes: &[u8], dpi: u16) -> Option<Self> {
        let drawn = library::with(|pdfium| {
            let Ok(pdf) = pdfium.load_pdf_from_byte_slice(bytes, None) else { return Ok(None) };
            let config = PdfRenderConfig::new().scale_page_by_factor(f32::from(dpi) / 72.0);
            let Ok(page) = pdf.pages().get(0) else { return Ok(None) };
            let Ok(bitmap) = page.render_with_config(&config) else { return Ok(None) };
            let rgb = bitmap.as_rgba_bytes().chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
            Ok(RgbImage::from_raw(bitmap.width() as u32, bitmap.height() as u32, rgb))
        });
        drawn.ok().flatten().map(Self)
    }

    /// Turned to the right by so many quarters.
    pub fn turned(self, quarters: u8) -> Self {
        Self(match quarters % 4 {
            1 => image::imageops::rotate90(&self.0),
            2 => image::imageops::rotate180(&self.0),
            3 => image::imageops::rotate270(&self.0),
            _ => self.0,
        })
    }

    /// Turned to the right by a few degrees, with white corners.
    pub fn askew(self, degrees: f32) -> Self {
        let (sin, cos) = degrees.to_radians().sin_cos();
        let (width, height) = self.0.dimensions();
        let (mx, my) = (width as f32 / 2.0, height as f32 / 2.0);
        Self(RgbImage::from_fn(width, height, |x, y| {
            let (dx, dy) = (x as f32 - mx, y as f32 - my);
            let (u, v) = (mx + dx * cos + dy * sin, my + dy * cos - dx * sin);
            image::imageops::interpolate_bilinear(&self.0, u, v).unwrap_or(Rgb([255; 3]))
        }))
    }

    /// On grey paper with specks, the same in each run.
    pub fn noisy(mut self) -> Self {
        let mut state = 7u32;
        for value in self.0.iter_mut() {
            // xorshift (Marsaglia 2003)
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let noise = (state % 49) as i32 - 24;
            *value = (i32::from(*value) * 85 / 100 + 20 + noise).clamp(0, 255) as u8;
        }
        self
    }

    /// As a file of PNG.
    pub fn png(&self) -> Vec<u8> {
        encoded(&self.0.clone().into(), ImageFormat::Png)
    }

    /// As a file of JPEG.
    pub fn jpeg(&self, quality: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, quality);
        let _ = self.0.write_with_encoder(encoder);
        bytes
    }

    /// As a page of [`tiff_of`].
    pub fn page(&self) -> (u32, u32, Vec<u8>) {
        let gray = DynamicImage::from(self.0.clone()).into_luma8();
        (gray.width(), gray.height(), gray.into_raw())
    }
}

/// A picture as a file; empty if the format cannot have it.
pub fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).map(|()| bytes.into_inner()).unwrap_or_default()
}

/// A PNG file that says that it has this size, and has so many bytes of black.
pub fn png_of(width: u32, height: u32, length: usize) -> Vec<u8> {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::fast());
    let packed = packer.write_all(&vec![0; length]).and_then(|()| packer.finish()).unwrap_or_default();
    let chunk = |name: &[u8; 4], content: &[u8]| {
        let mut sum = Crc::new();
        sum.update(name);
        sum.update(content);
        [&(content.len() as u32).to_be_bytes(), &name[..], content, &sum.sum().to_be_bytes()].concat()
    };
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let parts = [chunk(b"IHDR", &head), chunk(b"IDAT", &packed), chunk(b"IEND", &[])].concat();
    [b"\x89PNG\r\n\x1a\n", &parts[..]].concat()
}

/// A TIFF file of pages, each with its width, its height and its grey pixels.
pub fn tiff_of(pages: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"II*\0\0\0\0\0".to_vec();
    // Where the place of the next directory is written.
    let mut link = 4;
    for (width, height, pixels) in pages {
        let strip = out.len() as u32;
        out.extend(pixels);
        let directory = out.len() as u32;
        out[link..link + 4].copy_from_slice(&directory.to_le_bytes());
        // Width, height, bits, no compression, black is 0, the place, values for each pixel, rows, and bytes.
        let entries: [(u16, u32); 9] = [
            (256, *width),
            (257, *height),
            (258, 8),
            (259, 1),
            (262, 1),
            (273, strip),
            (277, 1),
            (278, *height),
            (279, pixels.len() as u32),
        ];
        out.extend((entries.len() as u16).to_le_bytes());
        for (tag, value) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(4u16.to_le_bytes());
            out.extend(1u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        link = out.len();
        out.extend([0; 4]);
    }
    out
}
