//! Letters that are written in odd ways, and forms.

use super::tests::{has_pdfium, read};
use crate::samples::{pdf_of_objects, pdf_of_pages, stream};

const HELVETICA: &str = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>";

/// A text at a place.
fn at(x: f32, y: f32, size: f32, text: &str) -> String {
    format!("BT /F1 {size} Tf {x} {y} Td ({text}) Tj ET ")
}

/// A file of one page, with more entries of the catalog and the page, a font, and more objects, from the sixth on.
fn page_with(content: &str, catalog: &str, page: &str, font: &str, more: &[String]) -> Vec<u8> {
    let mut objects = vec![
        format!("<< /Type /Catalog /Pages 2 0 R {catalog} >>"),
        "<< /Type /Pages /Kids [4 0 R] /Count 1 >>".to_owned(),
        font.to_owned(),
        format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R \
             /Resources << /Font << /F1 3 0 R >> >> {page} >>"
        ),
        stream("", content),
    ];
    objects.extend_from_slice(more);
    pdf_of_objects(&objects)
}

#[test]
fn a_text_in_small_pieces_is_whole() {
    if !has_pdfium() {
        return;
    }
    let label = |number: usize| {
        let y = 700.0 - 30.0 * number as f32;
        [at(100.0, y, 12.0, "0"), at(106.672, y, 12.0, "."), at(110.008, y, 12.0, &number.to_string())].concat()
    };
    let labels: String = (2..9).map(label).collect();
    let text = read(&pdf_of_pages(&[&labels])).unwrap().text;
    assert!(text.contains("0.2") && text.contains("0.8") && !text.contains(" . "), "{text}");
    // An exponent belongs to its symbol.
    let terms = [
        at(100.0, 700.0, 12.0, "x"),
        at(106.0, 704.5, 7.0, "2"),
        at(112.0, 700.0, 12.0, "="),
        at(122.0, 700.0, 12.0, "y"),
        at(128.0, 704.5, 7.0, "2"),
    ];
    assert_eq!(read(&pdf_of_pages(&[&terms.concat()])).unwrap().text, "x2 = y2");
}

#[test]
fn letters_of_a_size_below_zero_stand_on_their_heads() {
    if !has_pdfium() {
        return;
    }
    let turned = "BT /F1 -12 Tf 500 100 Td (Tides of the north) Tj 0 20 Td (rise twice a day) Tj ET";
    let text = read(&page_with(turned, "", "/Rotate 180", HELVETICA, &[])).unwrap().text;
    assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), "Tides of the north rise twice a day");
    let mirrored_twice = "q 1 0 0 -1 0 792 cm BT /F1 12 Tf 1 0 0 -1 72 100 Tm (Upright text) Tj ET Q";
    assert_eq!(read(&pdf_of_pages(&[mirrored_twice])).unwrap().text, "Upright text");
}

#[test]
fn a_letter_of_which_a_part_is_shown_is_read() {
    if !has_pdfium() {
        return;
    }
    let content = at(72.0, 788.5, 12.0, "MetroRock shown") + &at(72.0, 900.0, 12.0, "hidden");
    assert_eq!(read(&pdf_of_pages(&[&content])).unwrap().text, "MetroRock shown");
}

/// pdfium's mark of a hyphen is also a code that a font may have for any letter.
#[test]
fn a_code_of_a_font_is_no_hyphen() {
    if !has_pdfium() {
        return;
    }
    let text = read(&pdf_of_pages(&["BT /F1 12 Tf 72 700 Td (A name\\002of\\002things) Tj ET"])).unwrap().text;
    assert_eq!(text, "A name of things");
}

#[test]
fn the_values_of_a_form_are_beside_their_names() {
    if !has_pdfium() {
        return;
    }
    let rows = [
        ("Name of this house", "The old mill by the river"),
        ("Street of this house", "Long lane near the water"),
        ("Number of all rooms", "It has eleven rooms now"),
    ];
    let y = |row: usize| 700.0 - 40.0 * row as f32;
    let content: String = rows.iter().enumerate().map(|(row, (name, _))| at(72.0, y(row), 12.0, name)).collect();
    let field = |(row, (_, value)): (usize, &(&str, &str))| {
        let (from, to) = (y(row) - 8.0, y(row) + 16.0);
        format!("<< /Type /Annot /Subtype /Widget /FT /Tx /T (f{row}) /Rect [250 {from} 500 {to}] /V ({value}) >>")
    };
    let fields: Vec<String> = rows.iter().enumerate().map(field).collect();
    let form = "/AcroForm << /Fields [6 0 R 7 0 R 8 0 R] >>";
    let file = page_with(&content, form, "/Annots [6 0 R 7 0 R 8 0 R]", HELVETICA, &fields);
    let text = read(&file).unwrap().text;
    for (name, value) in rows {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_default();
        assert!(line.contains(value), "{text}");
    }
    assert!(!text.contains('#'), "{text}");
}

#[test]
fn a_row_of_numbers_above_the_number_of_the_page_is_kept() {
    if !has_pdfium() {
        return;
    }
    let page = |number: usize| {
        at(72.0, 700.0, 12.0, &format!("Chart of the tide of day {number}"))
            + &at(72.0, 40.0, 12.0, &format!("0 50 100 150 200 250 300 {number}"))
    };
    let pages = [page(1), page(2)];
    let text = read(&pdf_of_pages(&pages.each_ref().map(String::as_str))).unwrap().text;
    assert_eq!(text.matches("0 50 100 150 200 250 300").count(), 2, "{text}");
}
