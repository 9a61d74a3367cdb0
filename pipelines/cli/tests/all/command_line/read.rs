//! `turnflow read`: what a pipeline sees of files.

use std::fs;

use serde_json::{Value, json};

use super::run;
use crate::support::{model, root};

#[test]
fn files_are_printed_as_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.html"), "<title>Ferry</title><h1>Times</h1><ol start=3><li>At ten.</ol>").unwrap();
    fs::write(dir.path().join("b.txt"), "Plain.").unwrap();
    let one = run(dir.path(), &["read", "a.html"]).good();
    assert_eq!(one.out, "# Times\n\n3. At ten.\n");
    let both = run(dir.path(), &["read", "a.html", "b.txt"]).good();
    assert_eq!(both.out, "<!-- a.html -->\n\n# Times\n\n3. At ten.\n\n<!-- b.txt -->\n\nPlain.\n");
    let object: Value =
        serde_json::from_str(&run(dir.path(), &["read", "--format", "json", "a.html"]).good().out).unwrap();
    assert_eq!(
        object,
        json!({"path": "a.html", "format": "HTML", "title": "Ferry", "text": "# Times\n\n3. At ten.", "pages": [],
            "metadata": {}})
    );
    fs::write(dir.path().join("bad.docx"), "no archive").unwrap();
    fs::write(dir.path().join("c.exe"), "x").unwrap();
    fs::write(dir.path().join("rows.jsonl"), "{}").unwrap();
    let files = ["bad.docx", "b.txt", "c.exe", "gone.md", "rows.jsonl"];
    let bad = run(dir.path(), &[&["read"][..], &files].concat());
    assert_eq!(bad.code, Some(1), "{bad:?}");
    assert!(bad.out.contains("Plain."), "{bad:?}");
    for told in [
        "bad.docx: broken docx",
        "c.exe: there is no reader",
        "gone.md: cannot be read",
        "rows.jsonl: each of its rows",
    ] {
        assert!(bad.err.contains(told), "{bad:?}");
    }
    assert!(bad.err.ends_with("error: 4 files could not be read\n"), "{bad:?}");
    let told = run(dir.path(), &[&["read", "--json"][..], &files].concat());
    assert_eq!((told.code, &told.err), (Some(1), &bad.err));
    let objects: Vec<Value> = told.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let formats: Vec<&Value> = objects.iter().map(|object| &object["format"]).collect();
    assert_eq!(json!(formats), json!(["DOCX", "text", null, "Markdown", "JSON Lines"]));
    let errors: Vec<bool> = objects.iter().map(|object| object["error"].is_string()).collect();
    assert_eq!(errors, [true, false, true, true, true]);
    let folder = run(dir.path(), &["read", "."]);
    assert!(folder.err.contains("it is a folder"), "{folder:?}");
}

#[test]
fn the_passages_of_a_chunker_or_of_a_pipeline_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.md"), "# Ferry\n\nAt ten.\n\n## Fares\n\nTwo crowns.\n").unwrap();
    let told = run(dir.path(), &["read", "--passages", "a.md"]).good();
    assert_eq!(
        told.out,
        "<!-- passage a.md#0, title: Ferry -->\nAt ten.\n\n<!-- passage a.md#1, title: Ferry > Fares -->\nTwo crowns.\n"
    );
    let told = run(dir.path(), &["read", "--json", "--chunk", "Whole()", "a.md"]).good();
    let object: Value = serde_json::from_str(&told.out).unwrap();
    let text = object["passages"][0]["text"].as_str().unwrap();
    assert!(text.contains("At ten.") && text.contains("Two crowns."), "{text}");
    assert_eq!(object["passages"].as_array().map(Vec::len), Some(1));
    let corpus = |chunk: &str, more: &str| format!("Corpus(source: Documents(), chunk: {chunk}{more})");
    let pipeline = format!(
        "Pipeline(corpora: {{ \"one\": {}, \"two\": {} }}, nodes: {{ \"turns\": Stdin() }})",
        corpus("Whole()", ""),
        corpus("Headings()", ", fields: { \"lang\": Integer }")
    );
    fs::write(dir.path().join("p.ron"), pipeline).unwrap();
    let passages = |args: &[&str]| {
        let told = run(dir.path(), &[&["read", "--json", "--pipeline", "p.ron", "a.md"][..], args].concat()).good();
        let object: Value = serde_json::from_str(&told.out).unwrap();
        object["passages"].as_array().unwrap().len()
    };
    assert_eq!(passages(&["--corpus", "one"]), 1);
    assert_eq!(passages(&["--corpus", "two"]), 2);
    assert_eq!(passages(&["--corpus", "one", "--chunk", "Headings()"]), 2);
    fs::write(dir.path().join("b.md"), "---\nlang: en\n---\nText.\n").unwrap();
    for (args, code, told) in [
        (&["--pipeline", "p.ron"][..], 1, "name one with `--corpus`: `one`, `two`"),
        (&["--pipeline", "p.ron", "--corpus", "three"], 1, "unknown corpus `three`; the pipeline has `one`, `two`"),
        (&["--pipeline", "p.ron", "--corpus", "two", "b.md"], 1, "b.md: the field `lang` must be a whole number"),
        (&["--corpus", "one"], 2, "--pipeline <FILE>"),
        (&["--chunk", "Headings(max_word: 3)"], 1, "unknown field `max_word`"),
        (&["--chunk", "Tokens(size: 9)"], 1, "name a pipeline that has the model, with `--pipeline FILE`"),
    ] {
        let bad = run(dir.path(), &[&["read", "a.md"][..], args].concat());
        assert_eq!(bad.code, Some(code), "{bad:?}");
        assert!(bad.err.contains(told), "{told}: {bad:?}");
    }
}

#[test]
fn a_pdf_file_is_read_by_pdfium() {
    let dir = tempfile::tempdir().unwrap();
    if model("pdfium").is_none() {
        return;
    }
    let file = root().join("connectors/readers/tests/pdf/tables-ruled.pdf");
    let read = run(dir.path(), &["read", &file.to_string_lossy()]).good();
    let table = "\n\n<!-- table 1: 4 columns, 4 rows -->\n| Boat | Length | Berth | Price |\n";
    assert!(read.out.starts_with("<!-- page 1 -->\n") && read.out.contains(table), "{read:?}");
    assert!(read.out.contains("| Cormorant | 9.2 m | A04 | 520 |"), "{read:?}");
    let file = root().join("connectors/readers/tests/pdf/pages.pdf");
    let read = run(dir.path(), &["read", "--json", "--passages", &file.to_string_lossy()]).good();
    let object: Value = serde_json::from_str(&read.out).unwrap();
    let pages = object["pages"].as_array().unwrap();
    let text = object["text"].as_str().unwrap();
    assert_eq!(object["format"], "PDF");
    assert_eq!(pages.last().unwrap()["end"], text.len());
    assert!(pages.len() > 1 && pages.iter().all(|page| page["confidence"] == 1.0), "{pages:?}");
    let places: Vec<u64> =
        object["passages"].as_array().unwrap().iter().map(|p| p["metadata"]["page"].as_u64().unwrap()).collect();
    assert!(places.is_sorted() && places.first() == Some(&1) && places.last() > Some(&1), "{places:?}");
}
