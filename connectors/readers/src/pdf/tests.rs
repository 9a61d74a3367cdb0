use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use turnflow_engine::document::{OCR_CONFIDENCE, PAGE_CONFIDENCE, PAGE_OFFSETS};
use turnflow_engine::inference::{Picture, PictureLine};
use turnflow_engine::metadata::FieldValue;

use super::*;
use crate::ocr::{Look, OcrMode, Seen};
use crate::samples::{pdf, pdf_of_objects, pdf_of_pages, stream};

/// Reads a file without OCR.
pub(super) fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    seeing(bytes, OcrMode::Auto, &mut |_| Err("no model".to_owned()))
}

/// Reads a file of whose pictures this is seen.
fn seeing(bytes: &[u8], when: OcrMode, look: &mut Look<'_>) -> Result<Content, ReadError> {
    super::read(bytes, &mut Eyes::new(when, 0.5, look))
}

/// Whether pdfium is there. Where `TURNFLOW_TESTS_MUST_RUN` is set, it must be.
pub(super) fn has_pdfium() -> bool {
    let Err(error) = library::with(|_| Ok(())) else { return true };
    println!("skipped: {error}");
    assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{error}");
    false
}

#[test]
fn text_of_all_pages() {
    if !has_pdfium() {
        return;
    }
    let bytes =
        pdf_of_pages(&["BT /F1 12 Tf 72 700 Td (Hello first) Tj ET", "BT /F1 12 Tf 72 700 Td (And second) Tj ET"]);
    let content = read(&bytes).unwrap();
    assert_eq!((content.title.as_str(), content.text.as_str()), ("", "Hello first\n\nAnd second"));
}

#[test]
fn what_cannot_be_read_says_why() {
    if !has_pdfium() {
        return;
    }
    for (bytes, reason) in [
        (&b""[..], "broken PDF"),
        (b"%PDF-1.4\n%%EOF", "broken PDF"),
        (b"no PDF at all", "broken PDF"),
        (&pdf_of_pages(&["0 0 m 10 10 l S"]), "no text in this PDF (scanned?)"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
    assert!(read(&pdf("some words")).is_ok());
}

#[test]
fn an_encrypted_file_is_read_with_its_password() {
    if !has_pdfium() {
        return;
    }
    // Made by pypdf, with AES-256.
    let bytes = include_bytes!("../../tests/pdf-locked.pdf");
    let with = |passwords: &[&str]| {
        let mut look = |_: Picture| Err("no model".to_owned());
        let mut eyes = Eyes::new(OcrMode::Auto, 0.5, &mut look);
        eyes.passwords = passwords.iter().map(|password| (*password).to_owned()).collect();
        super::read(bytes, &mut eyes).map(|content| content.text).map_err(|error| error.to_string())
    };
    let expected = "the PDF is encrypted: give its password to its source (`passwords`)";
    assert_eq!(with(&[]).unwrap_err(), expected);
    assert_eq!(with(&["wrong", ""]).unwrap_err(), "the PDF is encrypted: none of the `passwords` opens it");
    assert_eq!(with(&["wrong", "open sesame"]).unwrap(), "The vault opens at nine.");
    assert_eq!(with(&["owner only"]).unwrap(), "The vault opens at nine.");
    // A file that is not encrypted needs none.
    assert!(read(&pdf("some words")).is_ok());
}

#[test]
fn a_page_that_fails_does_not_take_the_others_with_it() {
    if !has_pdfium() {
        return;
    }
    let good = "BT /F1 12 Tf 72 700 Td (Good page) Tj ET";
    for bad in ["/Missing Do", "/X Do", "BT /F9 12 Tf (x) Tj", "q q q Q Q Q Q", "1 0 0 nan 0 0 cm"] {
        let content = read(&pdf_of_pages(&[good, bad])).unwrap();
        assert!(content.text.contains("Good page"), "{bad}: {content:?}");
    }
}

#[test]
fn powers_and_the_numbers_of_notes_are_apart() {
    if !has_pdfium() {
        return;
    }
    let page = "BT /F1 12 Tf 72 700 Td (About 10) Tj /F1 7 Tf 5 Ts (5) Tj 0 Ts /F1 12 Tf ( litres) Tj ET \
                BT /F1 7 Tf 72 600 Td 5 Ts (1) Tj 0 Ts /F1 12 Tf (A note) Tj ET";
    let text = read(&pdf_of_pages(&[page])).unwrap().text;
    assert_eq!(text, "About 10^5 litres\n\n1 A note");
}

#[test]
fn letters_outside_the_page_are_not_read() {
    if !has_pdfium() {
        return;
    }
    let page =
        "BT /F1 12 Tf 72 700 Td (Shown) Tj ET BT /F1 12 Tf 72 900 Td (Hidden) Tj ET BT /F1 12 Tf 800 10 Td (Too) Tj ET";
    assert_eq!(read(&pdf_of_pages(&[page])).unwrap().text, "Shown");
}

/// A field of a form, as an object of its own on the first page.
fn with_field(field: &str) -> Vec<u8> {
    let text = String::from_utf8(pdf("hello")).unwrap();
    // The numbers of the first four objects and of the page and its content are taken.
    let text = text.replace("/Type /Catalog", "/AcroForm << /Fields [9 0 R] >> /Type /Catalog");
    let text = text.replace("/Type /Page /Parent", "/Annots [9 0 R] /Type /Page /Parent");
    let (head, rest) = text.split_once("xref\n").unwrap();
    format!("{head}9 0 obj\n<< /Type /Annot /Subtype /Widget /T (f) {field} >>\nendobj\nxref\n{rest}").into_bytes()
}

#[test]
fn fields_of_many_lines_and_buttons_are_read() {
    if !has_pdfium() {
        return;
    }
    let lines: Vec<String> = (0..1000).map(|number| format!("line {number}")).collect();
    let field = format!("/FT /Tx /Rect [50 50 500 600] /V ({})", lines.join("\\n"));
    let text = read(&with_field(&field)).unwrap().text;
    assert!(text.contains("line 0") && text.contains("line 999"), "{text}");
    let button = |state: &str| {
        let field = format!("/FT /Btn /Ff 32768 /Rect [50 650 60 660] /V /Off /AS /{state}");
        read(&with_field(&field)).unwrap().text
    };
    assert_eq!(button("Off"), "hello");
}

#[test]
fn large_brackets_of_a_formula_make_no_heading() {
    if !has_pdfium() {
        return;
    }
    let body = "BT /F1 12 Tf 14 TL 72 700 Td (It is the text of a page of which most) Tj (letters are of one size, and it) ' ET";
    let formula = "BT /F1 12 Tf 72 500 Td (The value is ) Tj /F1 30 Tf (\\() Tj /F1 12 Tf (x if it is small) Tj ET";
    let text = read(&pdf_of_pages(&[body, formula])).unwrap().text;
    assert!(!text.contains('#'), "{text}");
}

#[test]
fn a_page_of_too_many_letters_is_an_error() {
    if !has_pdfium() {
        return;
    }
    let line = format!("({}) ' ", "abcd ".repeat(400));
    let page = format!("BT /F1 1 Tf 1 TL 1 790 Td {} ET", line.repeat(520));
    let error = read(&pdf_of_pages(&[&page])).unwrap_err().to_string();
    assert_eq!(error, "more than 1000000 letters on a page");
}

/// Files that say a text of their own on each page keep it.
#[test]
fn only_what_comes_again_beside_other_text_is_a_header() {
    if !has_pdfium() {
        return;
    }
    let page = |number: usize, body: &str| {
        format!(
            "BT /F1 10 Tf 72 760 Td (Almanac) Tj ET BT /F1 12 Tf 72 500 Td ({body}) Tj ET BT /F1 10 Tf 300 30 Td ({number}) Tj ET"
        )
    };
    let bodies = ["One thing.", "Another thing.", "The third.", "And more."];
    let pages: Vec<String> = (11..).zip(bodies).map(|(number, body)| page(number, body)).collect();
    let text = read(&pdf_of_pages(&pages.iter().map(String::as_str).collect::<Vec<_>>())).unwrap().text;
    assert_eq!(text, "Almanac\n\nOne thing.\n\nAnother thing.\n\nThe third.\n\nAnd more.");
    let same = ["BT /F1 12 Tf 72 760 Td (The same) Tj ET"; 4];
    assert_eq!(read(&pdf_of_pages(&same)).unwrap().text, ["The same"; 4].join("\n\n"));
}

#[test]
fn pages_are_known_by_where_they_begin() {
    if !has_pdfium() {
        return;
    }
    let page = |text: &str| format!("BT /F1 12 Tf 72 700 Td ({text}) Tj ET");
    let pages = [page("One."), "0 0 m 9 9 l S".to_owned(), page("Three."), page("Four.")];
    let content = read(&pdf_of_pages(&pages.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    assert_eq!(content.text, "One.\n\nThree.\n\nFour.");
    assert_eq!(content.metadata.get(PAGE_OFFSETS), Some(&FieldValue::from("0 4 4 12")));
}

/// Why it exists: pages that browsers print had a blank after most letters with signs.
#[test]
fn letters_with_signs_are_one_word() {
    if !has_pdfium() {
        return;
    }
    // Two glyphs for one letter with its sign, then a blank that is drawn, as browsers write them.
    let page = "BT /F1 20 Tf 72 700 Td /Span <</ActualText <FEFF0935093E>>> BDC (H) Tj 14.4 0 Td (H) Tj EMC 14.4 0 Td (o) Tj \
                /Span <</ActualText <FEFF09380940>>> BDC 11.1 0 Td (H) Tj 14.4 0 Td (H) Tj EMC 14.4 0 Td ( ) Tj 5.6 0 Td (o) Tj ET";
    assert_eq!(read(&pdf_of_pages(&[page])).unwrap().text, "\u{935}\u{93e}o\u{938}\u{940} o");
}

#[test]
fn the_pages_of_a_book_of_thousands_are_known() {
    if !has_pdfium() {
        return;
    }
    let pages: Vec<String> =
        (1..=3000).map(|page| format!("BT /F1 12 Tf 72 700 Td (Page {page} of it.) Tj ET")).collect();
    let content = read(&pdf_of_pages(&pages.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    let Some(FieldValue::Text(starts)) = content.metadata.get(PAGE_OFFSETS) else { panic!("no pages") };
    assert_eq!(starts.split(' ').count(), 3000);
    let last: usize = starts.rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(content.text[last..].trim(), "Page 3000 of it.");
}

#[test]
fn titles_of_the_outline_are_headings_and_links_lead_to_their_addresses() {
    if !has_pdfium() {
        return;
    }
    let line = |y: u32, text: &str| format!("BT /F1 12 Tf 72 {y} Td ({text}) Tj ET ");
    let lines = [
        line(700, "Tides"),
        line(660, "The water rises twice a day."),
        line(620, "Ebb"),
        line(580, "See the time table now, or ferry.example/times instead."),
    ];
    let link = |rect: &str, address: &str| {
        format!("<< /Type /Annot /Subtype /Link /Rect [{rect}] /A << /S /URI /URI ({address}) >> >>")
    };
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [4 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R \
         /Resources << /Font << /F1 3 0 R >> >> /Annots [9 0 R 10 0 R 11 0 R] >>"
            .to_owned(),
        stream("", &lines.concat()),
        "<< /Type /Outlines /First 7 0 R /Last 7 0 R /Count 1 >>".to_owned(),
        // The titles lead in a circle.
        "<< /Title (1 Tides) /Parent 6 0 R /Dest [4 0 R /Fit] /First 8 0 R /Last 8 0 R /Next 7 0 R /Count 1 >>"
            .to_owned(),
        "<< /Title (EBB) /Parent 7 0 R /Dest [4 0 R /Fit] /First 7 0 R /Last 7 0 R /Count 1 >>".to_owned(),
        link("116 576 169 592", "https://ferry.example/times"),
        link("213 576 316 592", "https://ferry.example/times"),
        link("72 656 100 672", "javascript:alert\\(1\\)"),
    ];
    let text = read(&pdf_of_objects(&objects)).unwrap().text;
    assert_eq!(
        text,
        "# Tides\n\nThe water rises twice a day.\n\n## Ebb\n\n\
         See the [time table](https://ferry.example/times) now, or ferry.example/times instead."
    );
}

#[test]
fn pages_with_letters_that_are_not_known_are_in_doubt() {
    if !has_pdfium() {
        return;
    }
    let page = |text: &str| format!("BT /F1 12 Tf 72 700 Td ({text}) Tj ET");
    let pages = [page("Known."), page("half\\001\\003\\004\\005")];
    let content = read(&pdf_of_pages(&pages.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    assert_eq!(content.metadata.get(PAGE_CONFIDENCE), Some(&FieldValue::from("1 0.5")));
    let notes = crate::notes::take();
    assert_eq!(notes[0], "on 1 of 2 pages of a PDF, letters are missing: the file does not say which they are");
    assert!(notes.len() == 2 && notes[1].ends_with("are not read by OCR: no model"), "{notes:?}");
    let content = read(&pdf_of_pages(&[&pages[0]])).unwrap();
    assert_eq!(content.metadata.get(PAGE_CONFIDENCE), None);
}

/// What a file says (see `tests/pdf/make.py`): blocks in the order in which a person reads them.
fn said(path: &Path) -> Vec<(String, Json)> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// What is missing of these blocks, or in another order.
fn wrong(blocks: &[(String, Json)], text: &str) -> Vec<String> {
    let normal = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Items of a list are blocks of their own.
    let parts: Vec<String> = text.replace("\n- ", "\n\n- ").split("\n\n").map(normal).collect();
    let (mut wrong, mut at) = (Vec::new(), 0);
    for (kind, content) in blocks {
        if kind == "t" {
            let rows: Vec<Vec<String>> = serde_json::from_value(content.clone()).unwrap();
            let rows = rows.into_iter().map(|row| format!("| {} |", row.join(" | ")).replace("|  |", "| |"));
            wrong.extend(rows.filter(|row| !text.contains(row)));
            continue;
        }
        let wanted = normal(content.as_str().unwrap());
        let is_it = |part: &String| match kind.as_str() {
            "h" => part.starts_with('#') && part.trim_start_matches('#').trim() == wanted,
            "i" => part.strip_prefix("- ") == Some(&wanted),
            _ => *part == wanted,
        };
        match parts.iter().skip(at).position(is_it) {
            Some(found) => at += found + 1,
            None => wrong.push(wanted),
        }
    }
    wrong
}

#[test]
fn paragraphs_columns_and_tables_are_whole_and_in_order() {
    if !has_pdfium() {
        return;
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pdf");
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ending| ending == "pdf")).collect();
    assert!(files.len() >= 20, "{}", files.len());
    for file in files {
        let text = read(&std::fs::read(&file).unwrap()).unwrap().text;
        let wrong = wrong(&said(&file.with_extension("json")), &text);
        assert!(wrong.is_empty(), "{}: {wrong:#?}\n{text}", file.display());
    }
}

/// A line in the middle of a picture.
fn line(picture: &Picture, text: &str, confidence: f32) -> PictureLine {
    let (x, y) = (picture.width as f32 / 4.0, picture.height as f32 / 2.0);
    let places = (0..text.len()).map(|at| (at as f32 + 0.5) / text.len() as f32).collect();
    let corners = [(x, y), (3.0 * x, y), (3.0 * x, y + 60.0), (x, y + 60.0)];
    PictureLine { text: text.to_owned(), confidence, corners, places }
}

const WITH_TEXT: &str = "BT /F1 12 Tf 72 700 Td (It is written) Tj ET";
const DRAWN: &str = "100 100 200 200 re f";

#[test]
fn pages_without_text_are_looked_at() {
    if !has_pdfium() {
        return;
    }
    let bytes = pdf_of_pages(&[WITH_TEXT, DRAWN, "", DRAWN]);
    let mut looked = 0;
    let mut look = |picture: Picture| {
        looked += 1;
        // A page of letter size, with 300 pixels to an inch, and the square in it.
        assert_eq!((picture.width, picture.height), (2550, 3300));
        assert_eq!((picture.rgb[0], picture.rgb[3 * (2550 * 2500 + 800)]), (255, 0));
        let confidence = if looked == 1 { 0.875 } else { 0.3 };
        Ok(Seen { lines: vec![line(&picture, "It is drawn", confidence)], knows: "English".to_owned() })
    };
    let content = seeing(&bytes, OcrMode::Auto, &mut look).unwrap();
    assert_eq!(content.text, "It is written\n\nIt is drawn");
    assert_eq!(content.metadata.get(PAGE_CONFIDENCE), Some(&FieldValue::from("1 0.87 1 0.3")));
    assert_eq!(content.metadata.to_json()[OCR_CONFIDENCE], 0.87);
    assert_eq!(looked, 2);
    let told = notes::take();
    assert!(told.len() == 1 && told[0].starts_with("1 of 4 pages of a PDF are left out: OCR is not sure"), "{told:?}");
}

#[test]
fn when_pages_are_looked_at_is_asked_for() {
    if !has_pdfium() {
        return;
    }
    for (when, page, looks) in [
        (OcrMode::Auto, WITH_TEXT, 0),
        (OcrMode::Always, WITH_TEXT, 1),
        (OcrMode::Never, WITH_TEXT, 0),
        (OcrMode::Never, DRAWN, 0),
        (OcrMode::Always, "", 0),
    ] {
        let mut looked = 0;
        let mut look = |picture: Picture| {
            looked += 1;
            Ok(Seen { lines: vec![line(&picture, "seen", 0.9)], knows: String::new() })
        };
        let read = seeing(&pdf_of_pages(&[page]), when, &mut look).map(|content| content.text);
        assert_eq!(looked, looks, "{when:?} {page}");
        match (page, looks) {
            (_, 1) => assert_eq!(read.unwrap(), "seen"),
            (WITH_TEXT, _) => assert_eq!(read.unwrap(), "It is written"),
            _ => assert!(read.is_err()),
        }
    }
}

#[test]
fn a_scan_that_is_not_read_says_why() {
    if !has_pdfium() {
        return;
    }
    let scan = pdf_of_pages(&[DRAWN, DRAWN]);
    let of = |lines: fn(&Picture) -> Vec<PictureLine>| {
        move |picture: Picture| Ok(Seen { lines: lines(&picture), knows: "English".to_owned() })
    };
    let unsure =
        seeing(&scan, OcrMode::Auto, &mut of(|picture| vec![line(picture, "?", 0.25)])).unwrap_err().to_string();
    assert!(unsure.contains("its confidence is 0.25, and `ocr_min_confidence` is 0.5. It knows English"), "{unsure}");
    for (when, look, told) in [
        (OcrMode::Auto, &mut of(|_| Vec::new()) as &mut Look<'_>, ", and OCR sees none on its pages"),
        (OcrMode::Never, &mut of(|_| Vec::new()), "; `ocr: Auto` reads scans"),
        (
            OcrMode::Auto,
            &mut |_| Err("`turnflow models fetch ocr` brings it".to_owned()),
            ": `turnflow models fetch ocr` brings it",
        ),
    ] {
        let error = seeing(&scan, when, look).unwrap_err().to_string();
        assert_eq!(error, format!("no text in this PDF (scanned?){told}"));
    }
    // Without a model, the other pages are read.
    let content = read(&pdf_of_pages(&[WITH_TEXT, DRAWN])).unwrap();
    assert_eq!(content.text, "It is written");
    assert_eq!(
        notes::take(),
        ["1 of 2 pages of a PDF have no text, or letters that are not known, and are not read by OCR: no model"]
    );
}
