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
    assert_eq!(object, json!({"path": "a.html", "title": "Ferry", "text": "# Times\n\n3. At ten.", "metadata": {}}));
    fs::write(dir.path().join("bad.docx"), "no archive").unwrap();
    fs::write(dir.path().join("c.exe"), "x").unwrap();
    fs::write(dir.path().join("rows.jsonl"), "{}").unwrap();
    let bad = run(dir.path(), &["read", "bad.docx", "b.txt", "c.exe", "gone.md", "rows.jsonl"]);
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
}

#[test]
fn a_pdf_file_is_read_by_pdfium() {
    let dir = tempfile::tempdir().unwrap();
    if model("pdfium").is_none() {
        return;
    }
    let file = root().join("connectors/readers/tests/pdf/tables-ruled.pdf");
    let read = run(dir.path(), &["read", &file.to_string_lossy()]).good();
    assert!(read.out.contains("| Cormorant | 9.2 m | A04 | 520 |"), "{read:?}");
}
