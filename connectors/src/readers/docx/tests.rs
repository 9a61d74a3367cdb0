//! Tests of the reader of docx.

use serde_json::{Value, json};

use super::*;
use crate::testing::zipped;

/// A file whose body has this content, with the styles and lists of a German program.
fn file(body: &str) -> Vec<u8> {
    let relations = |list: &[(&str, &str)]| {
        let one = |(kind, target): &(&str, &str)| {
            format!("<Relationship Id='{kind}' Type='http://schemas.openxmlformats.org/x/{kind}' Target='{target}'/>")
        };
        format!("<Relationships>{}</Relationships>", list.iter().map(one).collect::<String>())
    };
    let kinds = [
        ("styles", "styles.xml"),
        ("numbering", "numbering.xml"),
        ("footnotes", "footnotes.xml"),
        ("endnotes", "/word/endnotes.xml"),
    ];
    zipped(&[
        (
            "_rels/.rels",
            &relations(&[("officeDocument", "word/document.xml"), ("core-properties", "docProps/core.xml")]),
        ),
        ("word/_rels/document.xml.rels", &relations(&kinds)),
        ("docProps/core.xml", "<c:coreProperties><dc:creator>Ada</dc:creator></c:coreProperties>"),
        (
            "word/styles.xml",
            "<w:styles><w:style w:type='paragraph' w:styleId='berschrift1'><w:name w:val='heading 1'/></w:style>\
             <w:style w:type='paragraph' w:styleId='Eigene'><w:name w:val='Eigene'/><w:basedOn w:val='berschrift1'/>\
             <w:pPr><w:outlineLvl w:val='1'/></w:pPr></w:style>\
             <w:style w:type='paragraph' w:styleId='Kind'><w:basedOn w:val='Eigene'/></w:style>\
             <w:style w:type='paragraph' w:styleId='a'><w:basedOn w:val='b'/></w:style>\
             <w:style w:type='paragraph' w:styleId='b'><w:basedOn w:val='a'/></w:style>\
             <w:style w:type='paragraph' w:styleId='Verzeichnis1'><w:name w:val='toc 1'/></w:style>\
             <w:style w:type='character' w:styleId='z'><w:name w:val='heading 2'/></w:style>\
             <w:style w:type='paragraph' w:styleId='Liste'><w:name w:val='List Bullet'/>\
             <w:pPr><w:numPr><w:numId w:val='1'/></w:numPr></w:pPr></w:style></w:styles>",
        ),
        (
            "word/numbering.xml",
            "<w:numbering><w:abstractNum w:abstractNumId='7'><w:lvl w:ilvl='0'><w:numFmt w:val='bullet'/></w:lvl>\
             </w:abstractNum><w:abstractNum w:abstractNumId='8'><w:lvl w:ilvl='0'><w:numFmt w:val='decimal'/></w:lvl>\
             <w:lvl w:ilvl='1'><w:numFmt w:val='lowerLetter'/></w:lvl></w:abstractNum>\
             <w:num w:numId='1'><w:abstractNumId w:val='7'/></w:num>\
             <w:num w:numId='2'><w:abstractNumId w:val='8'/></w:num></w:numbering>",
        ),
        (
            "word/footnotes.xml",
            "<w:footnotes><w:footnote w:id='-1'><w:p/></w:footnote><w:footnote w:id='2'><w:p><w:r><w:t>See the</w:t></w:r>\
             </w:p><w:p><w:r><w:t>timetable.</w:t></w:r></w:p></w:footnote></w:footnotes>",
        ),
        (
            "word/endnotes.xml",
            "<w:endnotes><w:endnote w:id='2'><w:p><w:r><w:t>The end.</w:t></w:r></w:p></w:endnote></w:endnotes>",
        ),
        ("word/document.xml", &format!("<w:document><w:body>{body}</w:body></w:document>")),
    ])
}

/// A paragraph with a style.
fn styled(style: &str, text: &str) -> String {
    format!("<w:p><w:pPr><w:pStyle w:val='{style}'/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>")
}

fn paragraph(text: &str) -> String {
    styled("", text)
}

fn text(body: &str) -> String {
    read(&file(body)).unwrap().text
}

#[test]
fn headings_are_found_by_the_names_of_styles_and_by_outline_levels() {
    let body = [
        styled("berschrift1", "One"),
        styled("Eigene", "Two"),
        styled("Kind", "Three"),
        styled("Heading3", "Four"),
        styled("a", "cycle"),
        styled("z", "character style"),
        styled("Verzeichnis1", "contents"),
        "<w:p><w:pPr><w:outlineLvl w:val='4'/></w:pPr><w:r><w:t>Five</w:t></w:r></w:p>".to_owned(),
        "<w:p><w:pPr><w:pStyle w:val='Eigene'/><w:outlineLvl w:val='9'/></w:pPr><w:r><w:t>body</w:t></w:r></w:p>"
            .into(),
    ];
    let expected = "# One\n\n## Two\n\n## Three\n\n### Four\n\ncycle\n\ncharacter style\n\n##### Five\n\nbody";
    assert_eq!(text(&body.concat()), expected);
}

#[test]
fn titles_come_from_the_properties_or_the_first_heading() {
    let content = read(&file(&(paragraph("text") + &styled("berschrift1", "One")))).unwrap();
    assert_eq!(content.title, "One");
    assert_eq!(Value::Object(content.metadata.to_json()), json!({"author": "Ada"}));
    let core = "<coreProperties><title>Own</title></coreProperties>";
    let titled = zipped(&[("docProps/core.xml", core), ("word/document.xml", &styled("Heading1", "One"))]);
    assert_eq!(read(&titled).unwrap().title, "Own");
}

#[test]
fn texts_are_joined_as_they_are_read() {
    let body = "<w:p><w:pPr><w:tabs><w:tab w:val='left'/></w:tabs><w:rPr><w:rStyle w:val='x'/></w:rPr></w:pPr>\
                <w:r><w:t xml:space='preserve'>The fer</w:t></w:r><w:ins><w:r><w:t>ry</w:t></w:r></w:ins>\
                <w:del><w:r><w:t>gone</w:t><w:delText>gone</w:delText></w:r></w:del><w:r><w:tab/><w:t>&amp; boat</w:t>\
                <w:br/><w:t>next</w:t><w:noBreakHyphen/></w:r><w:hyperlink><w:r><w:t>link</w:t></w:r></w:hyperlink>\
                <w:r><w:instrText>PAGE</w:instrText></w:r></w:p><w:p/><w:sectPr/>";
    assert_eq!(text(body), "The ferry & boat\nnext-link");
    let note = "<w:p><w:r><w:t>Sails</w:t><w:footnoteReference w:id='2'/></w:r><w:r><w:endnoteReference w:id='2'/>\
                <w:footnoteReference w:id='-1'/><w:t>.</w:t></w:r></w:p>";
    assert_eq!(text(note), "Sails[1][2].\n\n[1] See the timetable.\n\n[2] The end.");
    let boxed = "<w:p><w:r><w:t>Before</w:t><mc:AlternateContent><mc:Choice><w:txbxContent><w:p><w:r><w:t>In a box\
                 </w:t></w:r></w:p></w:txbxContent></mc:Choice><mc:Fallback><w:p><w:r><w:t>again</w:t></w:r></w:p>\
                 </mc:Fallback></mc:AlternateContent><w:t> after</w:t></w:r></w:p>";
    assert_eq!(text(boxed), "In a box\n\nBefore after");
}

#[test]
fn lists_have_marks_and_numbers() {
    let item = |list: u32, level: u32, text: &str| {
        format!(
            "<w:p><w:pPr><w:numPr><w:ilvl w:val='{level}'/><w:numId w:val='{list}'/></w:numPr></w:pPr>\
             <w:r><w:t>{text}</w:t></w:r></w:p>"
        )
    };
    let body = [
        item(2, 0, "first"),
        item(2, 1, "inner"),
        item(2, 1, "inner too"),
        item(2, 0, "second"),
        item(2, 1, "again"),
        paragraph("text"),
        styled("Liste", "mark"),
        item(1, 0, "mark too"),
        item(0, 0, "no list"),
    ];
    assert_eq!(
        text(&body.concat()),
        "1. first\n    1. inner\n    2. inner too\n2. second\n    1. again\n\ntext\n\n- mark\n- mark too\n\nno list"
    );
}

#[test]
fn tables_have_a_header_and_merged_cells_are_readable() {
    let cell = |properties: &str, text: &str| format!("<w:tc><w:tcPr>{properties}</w:tcPr>{}</w:tc>", paragraph(text));
    let row = |cells: &[String]| format!("<w:tr>{}</w:tr>", cells.concat());
    let inner = format!("<w:tbl>{}</w:tbl>", row(&[cell("", "x"), cell("", "y")]));
    let table = format!(
        "<w:tbl>{}{}{}</w:tbl>",
        row(&[cell("", "Port"), cell("<w:gridSpan w:val='2'/>", "Boats")]),
        row(&[cell("<w:vMerge w:val='restart'/>", "Oban"), cell("", "a|b"), cell("", "1")]),
        row(&[
            cell("<w:vMerge/>", ""),
            format!("<w:tc>{}{}</w:tc>", paragraph("two"), paragraph("lines")),
            format!("<w:tc>{inner}<w:p/></w:tc>")
        ]),
    );
    let expected =
        "before\n\n| Port | Boats | |\n| --- | --- | --- |\n| Oban | a\\|b | 1 |\n| Oban | two lines | x y |\n\nafter";
    assert_eq!(text(&(paragraph("before") + &table + &paragraph("after"))), expected);
}

#[test]
fn what_asks_for_too_much_is_an_error() {
    let error = |body: &str| read(&file(body)).unwrap_err().to_string();
    assert_eq!(error(&"<w:p>".repeat(600)), "more than 512 levels of nested elements");
    let cell = "<w:tc><w:tcPr><w:gridSpan w:val='4000000000'/></w:tcPr></w:tc>".repeat(1000);
    assert_eq!(
        error(&format!("<w:tbl>{}</w:tbl>", format!("<w:tr>{cell}</w:tr>").repeat(70))),
        "more than 4000000 cells"
    );
    // A long text that many rows share.
    let long = format!("<w:tr><w:tc>{}</w:tc></w:tr>", paragraph(&"word ".repeat(100_000)));
    let rows = "<w:tr><w:tc><w:tcPr><w:vMerge/></w:tcPr></w:tc></w:tr>".repeat(1000);
    assert_eq!(error(&format!("<w:tbl>{long}{rows}</w:tbl>")), "more than 67108864 bytes of text");
    assert!(error("<w:p>").starts_with("broken docx: "));
    let none = zipped(&[("a", "b")]);
    assert_eq!(read(&none).unwrap_err().to_string(), "broken docx: it has no part `word/document.xml`");
}
