//! Files that were made to end a process, to fill its memory or to hold it up: they end the process that reads them, become
//! dead letters, and disturb nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use turnflow_connectors::readers::samples::{png_of, tiff_of};

use crate::command_line::run;
use crate::support::model;

const PIPELINE: &str = r#"Pipeline(
    name: "hostile",
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 100),
        "out": JsonLinesSink(input: "found", path: "answers.jsonl"),
    },
)"#;

/// A PDF with these objects; the first is the catalog.
fn pdf(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"%PDF-1.5\n".to_vec();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(out.len());
        out.extend(format!("{} 0 obj\n", number + 1).bytes());
        out.extend(object);
        out.extend(b"\nendobj\n");
    }
    let table = out.len();
    out.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).bytes());
    offsets.iter().for_each(|offset| out.extend(format!("{offset:010} 00000 n \n").bytes()));
    let (size, end) = (objects.len() + 1, format!("startxref\n{table}\n%%EOF\n"));
    out.extend(format!("trailer\n<</Size {size}/Root 1 0 R>>\n{end}").bytes());
    out
}

/// A packed stream.
fn stream(content: &[u8], further: &str) -> Vec<u8> {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
    packer.write_all(content).unwrap();
    let packed = packer.finish().unwrap();
    let head = format!("<<{further}/Filter/FlateDecode/Length {}>>\nstream\n", packed.len());
    [head.as_bytes(), &packed, b"\nendstream"].concat()
}

const TEXT: &str = "BT /F1 12 Tf 50 700 Td (Hello ferry text) Tj ET";
const FONT: &str = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>";

/// A page with this content, font, further resources and objects from number 6 on.
fn page(content: &str, font: &str, resources: &str, further: &[Vec<u8>]) -> Vec<u8> {
    let page = format!(
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>{resources}>>>>"
    );
    let objects = ["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>", &page]
        .map(|it| it.as_bytes().to_vec());
    let objects = [&objects[..], &[stream(content.as_bytes(), ""), font.as_bytes().to_vec()], further].concat();
    pdf(&objects)
}

/// A font with a map of characters.
const MAPPED: &str = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 6 0 R>>";

/// A page whose font has this map of characters.
fn mapped(map: &str) -> Vec<u8> {
    page(TEXT, MAPPED, "", &[stream(map.as_bytes(), "")])
}

/// A page with a colour profile.
fn coloured(content: &str) -> Vec<u8> {
    page(content, FONT, "/ColorSpace<</C[/ICCBased 6 0 R]>>", &[stream(&vec![0; 8_000_000], "/N 3")])
}

/// Files by name. All but `plain.pdf` are hostile.
fn files() -> BTreeMap<&'static str, Vec<u8>> {
    let nested = |open: &str| mapped(&format!("/x {}", open.repeat(100_000)));
    let type1 = [
        b"<</Type/FontDescriptor/FontName/Foo/Flags 32/FontFile 7 0 R>>".to_vec(),
        stream(format!("/x {}", "{".repeat(100_000)).as_bytes(), ""),
    ];
    let range = "/CMapName /x def 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfrange <00000000> <FFFFFFFF> \
                 <00000000> endbfrange ";
    // Each of a thousand letters is a text of a million.
    let long = format!(
        "1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfchar <41> <{}> endbfchar ",
        "0041".repeat(1_000_000)
    );
    let long = [stream(long.as_bytes(), "")];
    let saved = format!("/C cs /C CS {}{TEXT}{}", "q ".repeat(1000), " Q".repeat(1000));
    BTreeMap::from([
        ("plain.pdf", page(TEXT, FONT, "", &[])),
        ("nested-texts.pdf", nested("(")),
        ("nested-lists.pdf", nested("[")),
        ("nested-maps.pdf", nested("<</a ")),
        ("nested-mixed.pdf", nested("[<</a (")),
        ("nested-font.pdf", page(TEXT, "<</Type/Font/Subtype/Type1/BaseFont/Foo/FontDescriptor 6 0 R>>", "", &type1)),
        ("range.pdf", mapped(range)),
        ("long-letters.pdf", page(&format!("BT /F1 12 Tf 50 700 Td ({}) Tj ET", "A".repeat(1000)), MAPPED, "", &long)),
        ("saved-profiles.pdf", coloured(&saved)),
        ("many-profiles.pdf", coloured(&format!("{}{TEXT}", "/C cs ".repeat(200_000)))),
        ("nested-objects.pdf", page(TEXT, FONT, &format!("/X {}", "[".repeat(100_000)), &[])),
        ("elements.html", format!("<p>{}deep", "<div><b>".repeat(200_000)).into_bytes()),
        ("attributes.html", format!("<p{}>x", " a='".repeat(500_000)).into_bytes()),
        ("parts.eml", parts(20_000)),
        ("bomb.png", png_of(29_000, 29_000, 60_000_000)),
        ("huge.png", png_of(u32::MAX / 4, u32::MAX / 4, 0)),
        ("row.png", png_of(100_000, 1, 300_001)),
        ("empty.png", png_of(0, 0, 0)),
        ("half.png", png_of(300, 300, 1000)),
        ("huge.tif", tiff_of(&[(20_000, 20_000, vec![0; 100])])),
        ("text.webp", TEXT.as_bytes().to_vec()),
        ("page.jpg", png_of(10, 10, 310)),
    ])
}

/// A mail message of nested parts.
fn parts(depth: usize) -> Vec<u8> {
    let mut message = "Subject: deep\r\nMIME-Version: 1.0\r\n".to_owned();
    for level in 0..depth {
        message += &format!("Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n--b{level}\r\n");
    }
    message += "Content-Type: text/plain\r\n\r\ndeep";
    message.into_bytes()
}

/// The dead letters, by position.
fn letters(directory: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(directory.join("state/dead-letters.jsonl")).unwrap_or_default();
    let letters = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    letters
        .map(|letter| (letter["position"].as_str().unwrap().into(), letter["reason"].as_str().unwrap().into()))
        .collect()
}

#[test]
fn hostile_files_end_their_reader_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    fs::write(base.join("p.ron"), PIPELINE).unwrap();
    fs::create_dir(base.join("docs")).unwrap();
    fs::write(base.join("docs/a.md"), "The ferry leaves at nine.").unwrap();
    for (name, bytes) in files() {
        fs::write(base.join("docs").join(name), bytes).unwrap();
    }
    fs::write(
        base.join("turns.jsonl"),
        "{\"conversation_id\": \"c\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"ferry\"}\n",
    )
    .unwrap();
    if model("pdfium").is_none() {
        return;
    }
    let ran = run(base, &["run", "p.ron", "--state", "state", "--once"]);
    let letters = letters(base);
    let answer = fs::read_to_string(base.join("answers.jsonl")).unwrap_or_else(|_| panic!("{ran:?} {letters:?}"));
    let found = |name: &str| answer.contains(&format!("\"document\":\"{name}\""));
    assert!(found("a.md") && found("plain.pdf"), "{answer} {letters:?}");
    let is_told = |name: &&str| !name.ends_with(".html") && !name.ends_with(".eml") && *name != "plain.pdf";
    for name in files().into_keys().filter(is_told) {
        // Some are read in part; none is lost without a word.
        assert!(letters.contains_key(name) || found(name), "{name}: {letters:?}");
    }
    let of = |name: &str| letters.get(name).map(String::as_str).unwrap_or_default();
    let (name, why) = ("long-letters.pdf", "memory");
    assert!(of(name).starts_with("the reader of PDF files ended: signal ") && of(name).contains(why), "{letters:?}");
}
