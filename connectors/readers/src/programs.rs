//! Tests with files of real programs (`tests-data/office`, made by `make.py` there).

use serde_json::{Value, json};
use turnflow_engine::document::Document;

use super::Format;

fn read(format: Format, bytes: &[u8]) -> (Document, Value) {
    let document = format.read("a".into(), bytes).expect("a file that can be read");
    let metadata = Value::Object(document.metadata.to_json());
    (document, metadata)
}

#[test]
fn a_text_document() {
    let (document, metadata) = read(Format::Docx, include_bytes!("../../tests-data/office/ferries.docx"));
    assert_eq!(&*document.title, "Ferries of the west");
    assert_eq!(
        &*document.text,
        "# Ferries\n\nThe ferry leaves at ten.\n\n# Ports\n\n- Oban\n- Mallaig\n1. Buy a ticket\n2. Go on board\n\n\
         ## Boats\n\n| Port | Boat | Cars |\n| --- | --- | --- |\n| Oban | Isle | 90 |\n| Oban | Lord | 70 |"
    );
    assert_eq!(metadata["author"], "Ada Lovelace");
    assert_eq!(metadata["keywords"], json!(["ferry", "boat"]));
    assert_eq!(metadata["created"], "2026-11-25T21:56:49Z");
    assert_eq!(metadata["language"], "en-GB");
}

#[test]
fn a_presentation() {
    let (document, metadata) = read(Format::Pptx, include_bytes!("../../tests-data/office/ferries.pptx"));
    assert_eq!(&*document.title, "Ferries");
    assert_eq!(
        &*document.text,
        "## Ferries\n\nA short tour\n\n## Ports\n\n- Oban\n    - West coast\n\n### Notes\n\nMention the weather.\n\n\
         ## Boats\n\n| Boat | Cars |\n| --- | --- |\n| Isle | 90 |"
    );
    assert_eq!(metadata["author"], "Ada Lovelace");
}

#[test]
fn a_workbook() {
    let (document, metadata) = read(Format::Xlsx, include_bytes!("../../tests-data/office/sailings.xlsx"));
    assert_eq!(&*document.title, "Timetable");
    assert_eq!(
        &*document.text,
        "## Sailings\n\n| Port | Leaves | Cars | Full |\n| --- | --- | --- | --- |\n\
         | Oban | 2026-11-25 21:56:49 | 90 | 25% |\n| Oban | 2026-11-25 | 70.5 | 100% |\n\n\
         ## Far\n\n| the end |\n| --- |"
    );
    assert_eq!(metadata["author"], "Ada Lovelace");
}

#[test]
fn a_book() {
    let (document, metadata) = read(Format::Epub, include_bytes!("../../tests-data/office/ferry.epub"));
    assert_eq!(&*document.title, "The Ferry");
    assert!(document.text.ends_with("# One\n\nPage 0 & more.\n\n# Two\n\nPage 1 & more."), "{}", document.text);
    assert_eq!((&metadata["author"], &metadata["language"]), (&json!("Ada Lovelace"), &json!("en")));
}

#[test]
fn a_message() {
    let (document, metadata) = read(Format::Eml, include_bytes!("../../tests-data/office/faehre.eml"));
    assert_eq!((&*document.title, &*document.text), ("Fähre at ten", "The Fähre leaves at ten."));
    let expected = json!({
        "from": "Ada Lovelace <ada@example.org>", "to": "Böb <bob@example.org>",
        "date": "2026-11-25T21:56:49Z", "attachments": ["Karte ä.pdf"],
    });
    assert_eq!(metadata, expected);
}
