//! Tests of the reader of docx.

use serde_json::{Value, json};

use super::*;
use crate::samples::zipped;

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
        "1. first\n    - a. inner\n    - b. inner too\n2. second\n    - a. again\n\ntext\n\n- mark\n- mark too\n\nno list"
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

/// A file with these parts beside a body, and relationships to them.
fn with_parts(body: &str, parts: &[(&str, &str, &str)]) -> String {
    let relation = |(kind, name, _): &(&str, &str, &str)| {
        format!("<Relationship Id='{kind}' Type='http://schemas.openxmlformats.org/x/{kind}' Target='{name}'/>")
    };
    let relations = format!("<Relationships>{}</Relationships>", parts.iter().map(relation).collect::<String>());
    let document = format!("<w:document><w:body>{body}</w:body></w:document>");
    let names: Vec<String> = parts.iter().map(|(_, name, _)| format!("word/{name}")).collect();
    let mut files =
        vec![("word/document.xml", document.as_str()), ("word/_rels/document.xml.rels", relations.as_str())];
    files.extend(names.iter().map(String::as_str).zip(parts.iter().map(|(_, _, text)| *text)));
    read(&zipped(&files)).unwrap().text
}

fn with(properties: &str, text: &str) -> String {
    format!("<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>")
}

#[test]
fn headings_and_items_have_the_numbers_that_word_shows() {
    let numbering = "<w:numbering><w:abstractNum w:abstractNumId='0'>\
         <w:lvl w:ilvl='0'><w:start w:val='1'/><w:numFmt w:val='decimal'/><w:pStyle w:val='H1'/><w:lvlText w:val='%1'/></w:lvl>\
         <w:lvl w:ilvl='1'><w:start w:val='1'/><w:numFmt w:val='decimal'/><w:pStyle w:val='H2'/><w:lvlText w:val='%1.%2'/></w:lvl>\
         </w:abstractNum><w:abstractNum w:abstractNumId='1'><w:lvl w:ilvl='0'><w:start w:val='1'/>\
         <w:numFmt w:val='lowerLetter'/><w:lvlText w:val='(%1)'/></w:lvl></w:abstractNum>\
         <w:abstractNum w:abstractNumId='2'><w:lvl w:ilvl='0'><w:start w:val='7'/><w:numFmt w:val='decimal'/>\
         <w:lvlText w:val='Article %1'/></w:lvl></w:abstractNum><w:num w:numId='1'><w:abstractNumId w:val='0'/></w:num>\
         <w:num w:numId='2'><w:abstractNumId w:val='1'/></w:num><w:num w:numId='3'><w:abstractNumId w:val='2'/></w:num>\
         </w:numbering>";
    let list = "<w:numPr><w:numId w:val='1'/></w:numPr>";
    let style = |id: &str, name: &str| {
        format!("<w:style w:type='paragraph' w:styleId='{id}'><w:name w:val='{name}'/><w:pPr>{list}</w:pPr></w:style>")
    };
    let styles = format!("<w:styles>{}{}</w:styles>", style("H1", "heading 1"), style("H2", "heading 2"));
    let heading = |style: &str, text: &str| with(&format!("<w:pStyle w:val='{style}'/>"), text);
    let item =
        |list: u8, text: &str| with(&format!("<w:numPr><w:ilvl w:val='0'/><w:numId w:val='{list}'/></w:numPr>"), text);
    let body = [
        heading("H1", "Scope"),
        heading("H1", "Payment"),
        heading("H2", "Due dates"),
        heading("H2", "Late fees"),
        item(2, "the tenant"),
        item(2, "the owner"),
        item(3, "Notices"),
        format!("<w:tbl><w:tr><w:tc>{}</w:tc></w:tr></w:tbl>", item(3, "Law")),
    ];
    let text =
        with_parts(&body.concat(), &[("numbering", "numbering.xml", numbering), ("styles", "styles.xml", &styles)]);
    assert_eq!(
        text,
        "# 1 Scope\n\n# 2 Payment\n\n## 2.1 Due dates\n\n## 2.2 Late fees\n\n- (a) the tenant\n- (b) the owner\n\
         - Article 7 Notices\n\n| Article 8 Law |\n| --- |"
    );
}

#[test]
fn letters_are_read_as_they_are_shown() {
    let run = |properties: &str, text: &str| format!("<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>");
    let styles = "<w:styles><w:style w:type='character' w:styleId='Note'><w:rPr><w:vertAlign w:val='superscript'/></w:rPr>\
                  </w:style><w:style w:type='character' w:styleId='Off'><w:rPr><w:vanish/></w:rPr></w:style></w:styles>";
    let body = [
        run("", "About 10"),
        run("<w:vertAlign w:val='superscript'/>", "5"),
        run("", " litres of H"),
        run("<w:vertAlign w:val='subscript'/>", "2"),
        run("", "O, as of 1990"),
        run("<w:rStyle w:val='Note'/>", "3"),
        run("<w:vanish/>", " secret"),
        run("<w:rStyle w:val='Off'/>", " secret"),
        run("<w:vanish w:val='0'/>", ", shown"),
        run("<w:rPrChange><w:rPr><w:vanish/></w:rPr></w:rPrChange>", " and shown"),
        "<w:r><w:sym w:font='Wingdings' w:char='F0FC'/></w:r>".to_owned(),
        run("", " soft\u{AD}ware"),
    ];
    let text = with_parts(&format!("<w:p>{}</w:p>", body.concat()), &[("styles", "styles.xml", styles)]);
    assert_eq!(text, "About 10^5 litres of H2O, as of 1990^3, shown and shown✓ software");
}

#[test]
fn formulas_keep_their_form() {
    let math = |inner: &str| format!("<w:p><w:r><w:t>It is</w:t></w:r><m:oMath>{inner}</m:oMath></w:p>");
    let run = |text: &str| format!("<m:r><m:t>{text}</m:t></m:r>");
    for (formula, expected) in [
        (format!("<m:f><m:num>{}</m:num><m:den>{}</m:den></m:f>", run("1"), run("2")), "It is 1/2"),
        (format!("<m:f><m:num>{}</m:num><m:den>{}</m:den></m:f>", run("a+b"), run("2c")), "It is (a+b)/2c"),
        (format!("<m:sSup><m:e>{}</m:e><m:sup>{}</m:sup></m:sSup>", run("10"), run("5")), "It is 10^5"),
        (format!("<m:sSub><m:e>{}</m:e><m:sub>{}</m:sub></m:sSub>", run("x"), run("i+1")), "It is x_(i+1)"),
        (format!("<m:rad><m:radPr/><m:deg/><m:e><m:d><m:e>{}</m:e></m:d></m:e></m:rad>", run("a+b")), "It is √(a+b)"),
        (
            format!(
                "<m:nary><m:naryPr><m:chr m:val='∑'/></m:naryPr><m:sub>{}</m:sub><m:sup>{}</m:sup><m:e>{}</m:e></m:nary>",
                run("i=1"),
                run("n"),
                run("i")
            ),
            "It is ∑_(i=1)^ni",
        ),
    ] {
        assert_eq!(with_parts(&math(&formula), &[]), expected, "{formula}");
    }
}

#[test]
fn pages_and_drawings_within_the_text_are_read() {
    let body = "<w:p><w:r><w:t>Before</w:t></w:r></w:p><w:altChunk r:id='aFChunk'/>\
                <w:p><w:r><w:t>Here</w:t><w:drawing><a:graphicData><d:relIds r:dm='diagramData'/></a:graphicData></w:drawing></w:r></w:p>\
                <w:altChunk r:id='gone'/><w:p><w:r><w:t>After</w:t></w:r></w:p>";
    let diagram = "<d:dataModel><d:pt><d:t><a:p><a:r><a:t>Approve</a:t></a:r></a:p></d:t></d:pt></d:dataModel>";
    let parts =
        [("aFChunk", "chunk.html", "<h1>Page</h1><p>Shown <b>here</b>."), ("diagramData", "data1.xml", diagram)];
    assert_eq!(with_parts(body, &parts), "Before\n\n# Page\n\nShown here.\n\nHere\n\n- Approve\n\nAfter");
}

#[test]
fn deleted_rows_are_left_out_and_free_cells_are_kept() {
    let cell = |text: &str| format!("<w:tc><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>");
    let row = |properties: &str, cells: &[&str]| {
        let cells: String = cells.iter().map(|text| cell(text)).collect();
        format!("<w:tr><w:trPr>{properties}</w:trPr>{cells}</w:tr>")
    };
    let rows = [
        row("", &["Port", "Boat", "Cars"]),
        row("<w:gridBefore w:val='1'/>", &["Isle", "90"]),
        row("<w:del w:id='1'/>", &["Oban", "Lord", "70"]),
        row("<w:trPrChange><w:trPr><w:del/></w:trPr></w:trPrChange>", &["Mallaig", "Loch", "12"]),
    ];
    let text = with_parts(&format!("<w:tbl>{}</w:tbl>", rows.concat()), &[]);
    assert_eq!(text, "| Port | Boat | Cars |\n| --- | --- | --- |\n| | Isle | 90 |\n| Mallaig | Loch | 12 |");
}
