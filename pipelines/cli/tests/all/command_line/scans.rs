//! Scans and pictures: what OCR reads of them, and what becomes a dead letter.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use turnflow_connectors::readers::samples::{Scan, tiff_of};

use super::{Ended, run, turnflow};
use crate::support::{model, root};

/// A file whose text is known.
const PAGE: &str = "connectors/readers/tests/pdf/one-column.pdf";

/// A scan of the page, if pdfium and the model are there.
fn scan(dpi: u16) -> Option<Scan> {
    let (pdfium, _) = (model("pdfium")?, model("ocr")?);
    // SAFETY: tests run in processes of their own, or set the same value.
    unsafe { std::env::set_var("PDFIUM_PATH", pdfium.join("libpdfium.so")) };
    Scan::of_pdf(&fs::read(root().join(PAGE)).unwrap(), dpi)
}

/// The edit distance (Levenshtein 1966).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, letter) in one.chars().enumerate() {
        let mut above = std::mem::replace(&mut row[0], number + 1);
        for (at, another) in other.iter().enumerate() {
            let best = (above + usize::from(letter != *another)).min(row[at] + 1).min(row[at + 1] + 1);
            above = std::mem::replace(&mut row[at + 1], best);
        }
    }
    row[other.len()]
}

/// A text without marks of Markdown and further blanks.
fn letters(text: &str) -> String {
    text.split_whitespace().filter(|word| !word.chars().all(|letter| letter == '#')).collect::<Vec<_>>().join(" ")
}

fn objects(read: &Ended) -> Vec<Value> {
    read.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn scans_are_read_with_few_errors() {
    let (Some(fine), Some(coarse)) = (scan(300), scan(150)) else { return };
    let directory = tempfile::tempdir().unwrap();
    // Name, file, and the share of letters that may be wrong.
    let scans = [
        ("fine.png", fine.png(), 0.01),
        ("coarse.png", coarse.png(), 0.03),
        ("upside-down.png", fine.clone().turned(2).png(), 0.01),
        ("to-the-right.png", coarse.clone().turned(1).png(), 0.03),
        ("to-the-left.png", coarse.clone().turned(3).png(), 0.03),
        ("askew.jpg", coarse.clone().askew(2.0).jpeg(80), 0.03),
        ("noisy.jpg", fine.noisy().jpeg(50), 0.01),
        ("coarse-noisy.jpg", coarse.noisy().jpeg(50), 0.03),
    ];
    let page = root().join(PAGE);
    let mut arguments = vec!["read", "--json", page.to_str().unwrap()];
    for (name, bytes, _) in &scans {
        fs::write(directory.path().join(name), bytes).unwrap();
        arguments.push(name);
    }
    let read = objects(&run(directory.path(), &arguments).good());
    let text = |object: &Value| letters(object["text"].as_str().unwrap());
    let known = text(&read[0]);
    for ((name, _, most), object) in scans.iter().zip(&read[1..]) {
        let wrong = distance(&text(object), &known) as f64 / known.chars().count() as f64;
        println!("{name}: {:.2} % of the letters are wrong", 100.0 * wrong);
        assert!(wrong <= *most, "{name}: {wrong} {object}");
        let (whole, page) = (&object["metadata"]["ocr_confidence"], &object["pages"][0]["confidence"]);
        assert!(whole.as_f64().unwrap() > 0.9 && whole == page, "{object}");
    }
}

const PIPELINE: &str = r#"Pipeline(
    name: "scans",
    models: { "seer": Ocr(path: "OCR") },
    corpora: { "docs": Corpus(source: Directory(path: "docs", FIELDS), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 100),
        "out": JsonLinesSink(input: "found", path: "answers.jsonl"),
    },
)"#;

/// The dead letters, by position.
fn dead(directory: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(directory.join("state/dead-letters.jsonl")).unwrap_or_default();
    let letters = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of = |letter: &Value, field: &str| letter[field].as_str().unwrap().to_owned();
    letters.map(|letter| (of(&letter, "position"), of(&letter, "reason"))).collect()
}

/// Runs the pipeline over these files. Returns the answers and the dead letters.
fn answers(fields: &str, files: &[(&str, &[u8])], ocr: Option<&Path>) -> (String, BTreeMap<String, String>) {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let path = root().join("models/ocr");
    fs::write(base.join("p.ron"), PIPELINE.replace("OCR", path.to_str().unwrap()).replace("FIELDS", fields)).unwrap();
    fs::create_dir(base.join("docs")).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(base.join("docs").join(name), bytes).unwrap());
    let turn = "{\"conversation_id\": \"c\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"lighthouse lamp\"}\n";
    fs::write(base.join("turns.jsonl"), turn).unwrap();
    let mut command = turnflow(base, &["run", "p.ron", "--state", "state", "--once"]);
    command.envs(ocr.map(|path| ("OCR_PATH", path)));
    let ran: Ended = command.output().unwrap().into();
    let ran = ran.good();
    if fields.contains("seer") {
        // A restart need not read them again. The scan and the page have the same pixels, and so have the blank ones.
        assert_eq!(fs::read_dir(base.join("state/components/docs/ocr")).unwrap().count(), 2);
    }
    (fs::read_to_string(base.join("answers.jsonl")).unwrap_or_else(|_| panic!("{ran:?}")), dead(base))
}

#[test]
fn a_scan_is_a_document_and_what_cannot_be_read_is_a_dead_letter() {
    let Some(coarse) = scan(150) else { return };
    let blank = (100, 100, vec![255; 10_000]);
    let tiff = tiff_of(&[blank.clone(), coarse.page()]);
    let png = coarse.png();
    let empty = tiff_of(&[blank]);
    let files: [(&str, &[u8]); 4] =
        [("scan.png", &png), ("pages.tiff", &tiff), ("blank.tif", &empty), ("half.jpg", &png[..5000])];
    let (found, letters) = answers("ocr_model: \"seer\"", &files, None);
    assert!(found.contains("\"document\":\"scan.png\"") && found.contains("\"document\":\"pages.tiff\""), "{found}");
    assert_eq!(letters.keys().collect::<Vec<_>>(), ["blank.tif", "half.jpg"]);
    assert_eq!(letters["blank.tif"], "no text is seen in this picture");
    assert!(letters["half.jpg"].starts_with("broken JPEG: "), "{letters:?}");
    // Nothing is as sure as that.
    let (_, letters) = answers("ocr_min_confidence: 1.0", &files[..1], None);
    assert!(letters["scan.png"].contains("`ocr_min_confidence` is 1. It knows English"), "{letters:?}");
    let (_, letters) = answers("ocr: Never", &files, None);
    assert!(letters.is_empty(), "{letters:?}");
    let nowhere = tempfile::tempdir().unwrap();
    let (_, letters) = answers("", &files[..1], Some(nowhere.path()));
    let told = &letters["scan.png"];
    assert!(told.starts_with("the text in pictures cannot be read: $OCR_PATH names"), "{letters:?}");
}
