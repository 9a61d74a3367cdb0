use std::time::{Duration, Instant};

use image::{ImageFormat, Rgba, RgbaImage};
use turnflow_engine::document::{PAGE_CONFIDENCE, PAGE_OFFSETS};
use turnflow_engine::inference::PictureLine;
use turnflow_engine::metadata::FieldValue;

use super::*;
use crate::ocr::Seen;
use crate::samples::{encoded, png_of, tiff_of};

/// A file of one colour.
fn file(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
    encoded(&DynamicImage::from(image::RgbImage::from_pixel(width, height, image::Rgb([200, 100, 0]))), format)
}

/// Reads a file in whose pictures a line with their size is seen.
fn read_with(format: Format, bytes: &[u8], when: OcrMode, confidence: f32) -> Result<Content, ReadError> {
    let mut look = |picture: Picture| {
        let text = format!("{} by {}", picture.width, picture.height);
        let (right, below) = (picture.width as f32, picture.height as f32);
        let places = (0..text.len()).map(|at| (at as f32 + 0.5) / text.len() as f32).collect();
        let corners = [(0.0, 0.0), (right, 0.0), (right, below / 2.0), (0.0, below / 2.0)];
        Ok(Seen { lines: vec![PictureLine { text, confidence, corners, places }], knows: "English".to_owned() })
    };
    read(format, bytes, &mut Eyes::new(when, 0.5, &mut look))
}

#[test]
fn each_format_is_decoded() {
    for (format, of) in [
        (Format::Png, ImageFormat::Png),
        (Format::Jpeg, ImageFormat::Jpeg),
        (Format::Tiff, ImageFormat::Tiff),
        (Format::Webp, ImageFormat::WebP),
    ] {
        let bytes = file(of, 30, 20);
        let content = read_with(format, &bytes, OcrMode::Auto, 0.9).unwrap();
        assert_eq!(content.text, "30 by 20", "{format:?}");
        let picture = decode(format, &bytes).unwrap();
        let near = picture.rgb[..3].iter().zip([200, 100, 0]).all(|(a, b): (&u8, i32)| (i32::from(*a) - b).abs() < 6);
        assert!(near, "{format:?} {:?}", &picture.rgb[..3]);
    }
}

#[test]
fn the_pages_of_a_tiff_file_are_read() {
    let page = |width: u32, value: u8| (width, 10, vec![value; 10 * width as usize]);
    let file = tiff_of(&[page(30, 0), page(40, 255), page(50, 9)]);
    let content = read_with(Format::Tiff, &file, OcrMode::Auto, 0.9).unwrap();
    assert_eq!(content.text, "30 by 10\n\n40 by 10\n\n50 by 10");
    assert_eq!(content.metadata.get(PAGE_CONFIDENCE), Some(&FieldValue::from("0.89 0.89 0.89")));
    assert_eq!(content.metadata.get(PAGE_OFFSETS), Some(&FieldValue::from("0 8 18")));
}

#[test]
fn large_pictures_are_made_smaller() {
    let content = read_with(Format::Png, &file(ImageFormat::Png, 8000, 4000), OcrMode::Auto, 0.9).unwrap();
    assert_eq!(content.text, "5656 by 2828");
}

#[test]
fn light_letters_on_no_ground_get_a_dark_one() {
    for (ink, ground) in [([250, 250, 250, 255], 0), ([10, 10, 10, 255], 255)] {
        let image = RgbaImage::from_fn(10, 10, |x, _| if x < 3 { Rgba(ink) } else { Rgba([0; 4]) });
        let picture = decode(Format::Png, &encoded(&image.into(), ImageFormat::Png)).unwrap();
        assert_eq!((picture.rgb[0], picture.rgb[3 * 5]), (ink[0], ground));
    }
}

#[test]
fn what_is_not_read_says_why() {
    let bytes = file(ImageFormat::Png, 30, 20);
    let told = |read: Result<Content, ReadError>| read.unwrap_err().to_string();
    assert!(told(read_with(Format::Png, &bytes, OcrMode::Auto, 0.4)).contains("its confidence is 0.4"));
    assert_eq!(
        told(read_with(Format::Png, &bytes, OcrMode::Never, 0.9)),
        "pictures are not read because of `ocr: Never`"
    );
    let mut none = |_| Ok(Seen { lines: Vec::new(), knows: String::new() });
    let seen = read(Format::Png, &bytes, &mut Eyes::new(OcrMode::Auto, 0.5, &mut none));
    assert_eq!(told(seen), "no text is seen in this picture");
    let mut blind = |_| Err("`turnflow models fetch ocr` brings it".to_owned());
    let seen = read(Format::Png, &bytes, &mut Eyes::new(OcrMode::Auto, 0.5, &mut blind));
    assert_eq!(told(seen), "the text in pictures cannot be read: `turnflow models fetch ocr` brings it");
}

#[test]
fn hostile_pictures_cost_little_and_are_errors() {
    let whole = file(ImageFormat::Png, 300, 200);
    let circle = {
        let mut file = tiff_of(&[(2, 1, vec![0, 0])]);
        let (first, end) = (file[4..8].to_vec(), file.len());
        file[end - 4..].copy_from_slice(&first);
        file
    };
    let many = tiff_of(&vec![(1, 1, vec![0]); MOST_PICTURES + 1]);
    let files: Vec<(Format, Vec<u8>)> = vec![
        (Format::Png, Vec::new()),
        (Format::Png, b"no picture".to_vec()),
        (Format::Png, whole[..whole.len() / 2].to_vec()),
        (Format::Png, file(ImageFormat::Jpeg, 30, 20)),
        (Format::Jpeg, whole.clone()),
        (Format::Tiff, whole.clone()),
        (Format::Webp, whole),
        (Format::Jpeg, file(ImageFormat::Jpeg, 300, 200)[..100].to_vec()),
        (Format::Webp, file(ImageFormat::WebP, 300, 200)[..100].to_vec()),
        (Format::Tiff, file(ImageFormat::Tiff, 300, 200)[..100].to_vec()),
        (Format::Tiff, b"II*\0\xff\xff\xff\xff".to_vec()),
        (Format::Tiff, circle),
        (Format::Tiff, tiff_of(&[(0, 0, Vec::new())])),
        (Format::Tiff, tiff_of(&[(60_000, 60_000, vec![0; 100])])),
        (Format::Tiff, tiff_of(&[(20_000, 20_000, vec![0; 100])])),
        (Format::Png, png_of(0, 0, 0)),
        (Format::Png, png_of(u32::MAX / 4, u32::MAX / 4, 0)),
        (Format::Png, png_of(100_000, 1, 300_001)),
        (Format::Png, png_of(1, 100_000, 400_000)),
        (Format::Png, png_of(29_000, 29_000, 50_000_000)),
        (Format::Png, png_of(8000, 8000, 1000)),
    ];
    for (number, (format, bytes)) in files.iter().enumerate() {
        let begun = Instant::now();
        let read = read_with(*format, bytes, OcrMode::Auto, 0.9);
        assert!(read.is_err(), "{number} {format:?}: {read:?}");
        assert!(!read.unwrap_err().to_string().is_empty());
        assert!(begun.elapsed() < Duration::from_secs(20), "{number} {format:?}");
    }
    let told = read_with(Format::Tiff, &many, OcrMode::Auto, 0.9).unwrap_err().to_string();
    assert_eq!(told, format!("more than {MOST_PICTURES} pages"));
}
