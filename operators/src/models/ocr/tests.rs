//! Tests on the models, if `turnflow models fetch ocr` has brought them.

use futures::executor::block_on;

use super::*;

/// The model, if it is there. Where `TURNFLOW_TESTS_MUST_RUN` is set, it must be.
fn model() -> Option<Arc<dyn PictureReader>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/ocr");
    if is_there(&directory) {
        return Some(open(&directory).unwrap());
    }
    println!("skipped: {} is not there; `turnflow models fetch ocr` brings it", directory.display());
    assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{} is not there", directory.display());
    None
}

#[test]
fn pictures_of_any_size_without_text_have_no_lines() {
    let Some(model) = model() else { return };
    for (width, height) in [(1, 1), (3, 4000), (30_000, 1), (400, 300)] {
        let picture = Picture::of(width, height, vec![255; 3 * width * height]).unwrap();
        let lines = block_on(model.read(picture, Priority::Corpus)).unwrap();
        assert_eq!(lines, [], "{width} by {height}");
    }
}

#[test]
fn specks_are_no_text_that_is_sure() {
    let Some(model) = model() else { return };
    let mut state = 7u32;
    let mut speck = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state % 251) as u8
    };
    let picture = Picture::of(600, 400, (0..3 * 600 * 400).map(|_| speck()).collect()).unwrap();
    let lines = block_on(model.read(picture, Priority::Turn)).unwrap();
    assert!(lines.iter().all(|line| line.confidence < 0.5), "{lines:?}");
}

#[test]
fn lines_are_turned_as_most_of_them_are() {
    let of = |x: f32, width: f32, height: f32| [(x, 0.0), (x + width, 0.0), (x + width, height), (x, height)];
    let wide = [of(0.0, 100.0, 10.0), of(0.0, 10.0, 10.0), of(0.0, 10.0, 12.0)];
    assert_eq!(in_reading_direction(&wide), wide);
    let tall = [of(0.0, 10.0, 200.0), of(0.0, 10.0, 10.0), of(0.0, 100.0, 10.0)];
    let turned = in_reading_direction(&tall);
    // Of the first ones, the text begins at the upper right corner and goes down.
    assert_eq!(turned[0], [(10.0, 0.0), (10.0, 200.0), (0.0, 200.0), (0.0, 0.0)]);
    assert_eq!((turned[1][0], turned[2]), ((10.0, 0.0), tall[2]));
}
