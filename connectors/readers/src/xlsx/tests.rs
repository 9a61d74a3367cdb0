//! Tests of the reader of xlsx.

use super::*;
use crate::samples::zipped;

/// A workbook with these sheets: names with what is around the name, and the XML after `<sheetData>`.
fn file(sheets: &[(&str, &str)]) -> Vec<u8> {
    let mut parts = vec![
        (
            "xl/styles.xml".to_owned(),
            "<styleSheet><numFmts><numFmt numFmtId='164' formatCode='yyyy\\-mm\\-dd'/></numFmts>\
             <cellStyleXfs><xf numFmtId='9'/></cellStyleXfs>\
             <cellXfs><xf numFmtId='0'/><xf numFmtId='164'/><xf numFmtId='10'/><xf numFmtId='22'/></cellXfs></styleSheet>"
                .to_owned(),
        ),
        (
            "xl/sharedStrings.xml".to_owned(),
            "<sst count='1' uniqueCount='99999999999'><si><t>Port</t></si><si><r><t>Oban</t></r><r><t xml:space='preserve'>, west\
             </t></r><rPh><t>no</t></rPh></si><si/></sst>"
                .to_owned(),
        ),
    ];
    let (mut list, mut relations) = (String::new(), String::new());
    let kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    for (number, (name, data)) in sheets.iter().enumerate() {
        list += &format!("<sheet name='{name}' sheetId='{number}' r:id='r{number}'/>");
        relations +=
            &format!("<Relationship Id='r{number}' Type='{kind}/worksheet' Target='worksheets/s{number}.xml'/>");
        let text = format!("<worksheet><dimension ref='A1:XFD1048576'/><sheetData>{data}</worksheet>");
        parts.push((format!("xl/worksheets/s{number}.xml"), text));
    }
    for (kind_of, target) in [("styles", "styles.xml"), ("sharedStrings", "/xl/sharedStrings.xml")] {
        relations += &format!("<Relationship Id='{kind_of}' Type='{kind}/{kind_of}' Target='{target}'/>");
    }
    parts.push(("xl/workbook.xml".to_owned(), format!("<workbook><workbookPr/><sheets>{list}</sheets></workbook>")));
    parts.push(("xl/_rels/workbook.xml.rels".to_owned(), format!("<Relationships>{relations}</Relationships>")));
    zipped(&parts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>())
}

fn text(data: &str) -> String {
    read(&file(&[("S", &format!("{data}</sheetData>"))])).unwrap().text
}

#[test]
fn each_sheet_is_a_heading_and_a_table() {
    let first = "<row r='1'><c r='A1' t='s'><v>0</v></c><c r='B1' t='inlineStr'><is><t>Boats</t></is></c>\
                 <c r='C1' t='str'><f>1+1</f><v>since</v></c></row><row r='3'><c r='A3' t='s'><v>1</v></c>\
                 <c r='B3'><v>3</v></c><c r='C3' s='1'><v>45943</v></c><c r='D3' s='1'/></row></sheetData>";
    let second = "<row><c t='b'><v>1</v></c><c t='e'><v>#N/A</v></c><c s='2'><v>0.5</v></c>\
                  <c s='3'><v>45943.5</v></c><c t='s'><v>77</v></c></row></sheetData>";
    let content = read(&file(&[
        ("Ports &amp; boats", first),
        ("secret' state='hidden", second),
        ("Others", second),
        ("Empty", "</sheetData>"),
    ]));
    let content = content.unwrap();
    assert_eq!(content.title, "Ports & boats");
    assert_eq!(
        content.text,
        "## Ports & boats\n\n| Port | Boats | since |\n| --- | --- | --- |\n| Oban, west | 3 | 2025-10-13 |\n\n\
         ## Others\n\n| TRUE | #N/A | 50% | 2025-10-13 12:00:00 |\n| --- | --- | --- | --- |"
    );
}

#[test]
fn a_cell_at_the_far_end_is_one_cell() {
    assert_eq!(text("<row r='1048576'><c r='XFD1048576'><v>1</v></c></row>"), "## S\n\n| 1 |\n| --- |");
    let apart =
        "<row r='5'><c r='C5'><v>1</v></c><c r='XFD5'><v>2</v></c></row><row r='9'><c r='XFD9'><v>3</v></c></row>";
    assert_eq!(text(apart), "## S\n\n| 1 | 2 |\n| --- | --- |\n| | 3 |");
}

#[test]
fn merged_cells_are_repeated_in_the_rows_below() {
    let data = "<row r='1'><c r='A1'><v>1</v></c><c r='B1'><v>2</v></c></row><row r='2'><c r='B2'><v>3</v></c></row>\
                <row r='3'><c r='A3'><v>9</v></c><c r='B3'><v>4</v></c></row></sheetData>\
                <mergeCells><mergeCell ref='A1:A2'/><mergeCell ref='B1:C1'/><mergeCell ref='bad'/></mergeCells>";
    let content = read(&file(&[("S", data)])).unwrap();
    assert_eq!(content.text, "## S\n\n| 1 | 2 |\n| --- | --- |\n| 1 | 3 |\n| 9 | 4 |");
    let rows: String = (1..=2000).map(|row| format!("<row><c r='B{row}'><v>1</v></c></row>")).collect();
    let first = "<row><c r='A1'><v>1</v></c></row>";
    let merges = "<mergeCell ref='A1:A1048576'/>".repeat(3000);
    let error = read(&file(&[("S", &format!("{first}{rows}</sheetData>{merges}"))])).unwrap_err();
    assert_eq!(error.to_string(), "more than 4000000 cells");
}

#[test]
fn a_long_text_in_many_cells_is_an_error() {
    let strings = format!("<sst><si><t>{}</t></si></sst>", "x".repeat(1 << 20));
    let cells = "<c t='s'><v>0</v></c>".repeat(100);
    let kind = "x";
    let bytes = zipped(&[
        ("xl/workbook.xml", "<workbook><sheet name='S' r:id='a'/></workbook>"),
        (
            "xl/_rels/workbook.xml.rels",
            &format!(
                "<R><Relationship Id='a' Type='{kind}/worksheet' Target='s.xml'/><Relationship Id='b' Type='{kind}/sharedStrings' Target='t.xml'/></R>"
            ),
        ),
        ("xl/s.xml", &format!("<worksheet><sheetData><row>{cells}</row></sheetData></worksheet>")),
        ("xl/t.xml", &strings),
    ]);
    assert_eq!(read(&bytes).unwrap_err().to_string(), "more than 67108864 bytes of text");
}

#[test]
fn what_is_missing_or_encrypted_says_so() {
    let none = zipped(&[("a", "b")]);
    assert_eq!(read(&none).unwrap_err().to_string(), "broken xlsx: it has no part `xl/workbook.xml`");
    let mut ole = b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1".to_vec();
    ole.extend("EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes));
    assert_eq!(read(&ole).unwrap_err().to_string(), "the xlsx file is encrypted");
}

#[test]
fn escapes_and_raised_digits_are_read_as_excel_shows_them() {
    for (written, shown) in [
        ("ferry_x000D_\nname", "ferry \nname"),
        ("Blue_x0009_ferry_x005F_x000D_", "Blue ferry_x000D_"),
        ("_xD83D__xDE00_!", "😀!"),
        ("_x12_ _xZZZZ_ _x0041", "_x12_ _xZZZZ_ _x0041"),
        ("_xD83D_ half", "_xD83D_ half"),
        ("my_x_name", "my_x_name"),
    ] {
        assert_eq!(unescaped(written), shown);
    }
    let row = "<row r='1'><c r='A1' t='inlineStr'><is><r><t>holds 10</t></r><r><rPr><vertAlign val='superscript'/></rPr><t>5</t>\
               </r><r><t> litres</t></r></is></c><c r='B1' t='str'><v>pier_x000D_ north</v></c></row>";
    assert_eq!(text(row), "## S\n\n| holds 10^5 litres | pier north |\n| --- | --- |");
}
