//! Tests of the reader of epub.

use serde_json::{Value, json};

use super::*;
use crate::samples::zipped;

const CONTAINER: &str = "<container xmlns='urn:oasis:names:tc:opendocument:xmlns:container'><rootfiles>\
                         <rootfile full-path='OEBPS/content.opf' media-type='application/oebps-package+xml'/></rootfiles></container>";

const PACKAGE: &str = "<?xml version='1.0'?><package><metadata xmlns:dc='http://purl.org/dc/elements/1.1/'>\
     <dc:title>The Ferry</dc:title><dc:title>Second title</dc:title><dc:creator>Ada</dc:creator><dc:creator>Bob</dc:creator>\
     <dc:language>en</dc:language><dc:subject>Boats</dc:subject><dc:date>2026</dc:date>\
     <meta property='dcterms:modified'>2026-01-02T03:04:05Z</meta></metadata>\
     <manifest><item id='b' href='Text/two%20b.xhtml#x' media-type='application/xhtml+xml'/>\
     <item id='a' href='Text/one.xhtml' media-type='application/xhtml+xml'/>\
     <item id='css' href='style.css' media-type='text/css'/>\
     <item id='gone' href='gone.xhtml' media-type='application/xhtml+xml'/></manifest>\
     <spine><itemref idref='a'/><itemref idref='css'/><itemref idref='gone'/><itemref idref='b'/><itemref idref='a'/></spine></package>";

fn page(body: &str) -> String {
    format!(
        "<?xml version='1.0'?><!DOCTYPE html><html xmlns='http://www.w3.org/1999/xhtml'><head><title>p</title></head><body>{body}</body></html>"
    )
}

fn book(more: &[(&str, &str)]) -> Vec<u8> {
    let (one, two) = (page("<h1>One</h1><p>First<br/>page.</p>"), page("<h2>Two</h2><ul><li>item</li></ul>"));
    let mut parts = vec![
        ("mimetype", "application/epub+zip"),
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/content.opf", PACKAGE),
        ("OEBPS/Text/one.xhtml", &one),
        ("OEBPS/Text/two b.xhtml", &two),
        ("OEBPS/style.css", "p {}"),
    ];
    parts.extend(more);
    zipped(&parts)
}

#[test]
fn pages_come_in_reading_order_and_once() {
    let content = read(&book(&[])).unwrap();
    assert_eq!(content.title, "The Ferry");
    assert_eq!(content.text, "# One\n\nFirst\npage.\n\n## Two\n\n- item");
    let expected = json!({"author": ["Ada", "Bob"], "language": "en", "subject": "Boats", "date": "2026",
                          "updated": "2026-01-02T03:04:05Z"});
    assert_eq!(Value::Object(content.metadata.to_json()), expected);
}

#[test]
fn encrypted_pages_say_so_and_disguised_fonts_do_not_matter() {
    let encryption = |path: &str| {
        format!(
            "<encryption><EncryptedData><CipherData><CipherReference URI='{path}'/></CipherData></EncryptedData></encryption>"
        )
    };
    let font = encryption("OEBPS/font.otf");
    assert!(read(&book(&[("META-INF/encryption.xml", &font)])).is_ok());
    let page = encryption("OEBPS/Text/two%20b.xhtml");
    let error = read(&book(&[("META-INF/encryption.xml", &page)])).unwrap_err();
    assert_eq!(error.to_string(), "the epub file is encrypted");
}

#[test]
fn what_is_no_book_says_so() {
    for (parts, reason) in [
        (&[("a", "b")][..], "broken epub: it has no part `META-INF/container.xml`"),
        (&[("META-INF/container.xml", "<container/>")], "broken epub: it does not say where its contents are"),
        (&[("META-INF/container.xml", CONTAINER)], "broken epub: it has no part `OEBPS/content.opf`"),
    ] {
        assert_eq!(read(&zipped(parts)).unwrap_err().to_string(), reason);
    }
}

#[test]
fn paths_lose_their_escapes() {
    assert_eq!(decoded("a%20b%2f%C3%A4.xhtml#part"), "a b/ä.xhtml");
    assert_eq!(decoded("100%"), "100%");
    assert_eq!(decoded("%FF"), "%FF");
}

#[test]
fn of_several_titles_the_main_one_is_the_title() {
    let package = PACKAGE.replace("<dc:title>Second title</dc:title>", "<dc:title id='t2'>Main</dc:title>").replace(
        "<meta property",
        "<meta refines='#t2' property='title-type'>main</meta><meta refines='#t1' property='title-type'>short</meta><meta property",
    );
    let bytes = book(&[]);
    assert_eq!(read(&bytes).unwrap().title, "The Ferry");
    assert_eq!(Book::read(&package).unwrap().title, "Main");
}
