//! Tests on the models, if `turnflow models fetch ocr` has brought them.

use super::*;

#[test]
fn spike() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/ocr");
    if !is_there(&directory) {
        return;
    }
    let ocr = open(&directory).unwrap();
    let path = std::env::var("PPM").unwrap();
    let bytes = std::fs::read(path).unwrap();
    let mut parts = bytes.splitn(4, |b| *b == b'\n' );
    parts.next();
    let size: Vec<usize> = std::str::from_utf8(parts.next().unwrap()).unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    parts.next();
    let rgb = parts.next().unwrap().to_vec();
    let picture = Picture::of(size[0], size[1], rgb).unwrap();
    for _ in 0..3 {
        let now = std::time::Instant::now();
        let lines = futures::executor::block_on(ocr.read(picture.clone(), Priority::Corpus)).unwrap();
        println!("{:?}", now.elapsed());
        if std::env::var("QUIET").is_err() {
            lines.iter().for_each(|line| println!("{:.2} {:?} {}", line.confidence, line.corners[0], line.text));
        }
    }
}
