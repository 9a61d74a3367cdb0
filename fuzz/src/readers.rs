//! Document files: any bytes give a document or an error.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::unbounded;
use turnflow_connectors::jsonl_corpus::JsonLinesConfig;
use turnflow_connectors::readers::jsonl::{Fields, parse};
use turnflow_connectors::readers::{Format, ReadError};
use turnflow_engine::connector::{CorpusEvent, CorpusOutput, CorpusSource, Mode, Stop};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::document::Document;

pub(super) fn read(format: Format, data: &[u8]) -> Result<Document, ReadError> {
    let read = format.read_here("fuzz".into(), data);
    if let Err(error) = &read {
        assert!(!error.to_string().is_empty());
    }
    read
}

/// Markdown, and the same bytes as text.
pub fn markdown(data: &[u8]) {
    let _ = read(Format::Text, data);
    if let Ok(document) = read(Format::Markdown, data) {
        assert!(document.text.len() <= 2 * data.len());
    }
}

/// HTML; the size of the text is bounded by the size of the page.
pub fn html(data: &[u8]) {
    if let Ok(document) = read(Format::Html, data) {
        assert!(document.text.len() <= 64 * data.len() + 64, "{} bytes of {}", document.text.len(), data.len());
    }
}

/// PDF.
pub fn pdf(data: &[u8]) {
    let _ = read(Format::Pdf, data);
}

/// A picture, in each format.
pub fn picture(data: &[u8]) {
    for format in [Format::Png, Format::Jpeg, Format::Tiff, Format::Webp] {
        assert!(read(format, data).is_err(), "nobody has looked at it");
    }
}

/// A table with separators, and the same bytes with tabs.
pub fn csv(data: &[u8]) {
    for format in [Format::Csv, Format::Tsv] {
        if let Ok(document) = read(format, data) {
            // A cell is at least its separator, and a row its line break; the header is as wide as the widest row.
            assert!(document.text.len() <= 32 * data.len() + 64, "{} bytes", document.text.len());
        }
    }
}

/// A mail message.
pub fn eml(data: &[u8]) {
    let _ = read(Format::Eml, data);
}

/// A corpus of rows, as a file and line by line: every id is sent once.
pub fn jsonl_rows(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n');
    let good = lines.filter(|line| parse(line, &Fields::default()).is_ok()).count();
    super::resume::with_directory(|directory| {
        std::fs::write(directory.join("rows.jsonl"), data).expect("a file in a directory of our own");
        let config: JsonLinesConfig =
            turnflow_engine::spec::from_str("(path: \"rows.jsonl\", max_line_bytes: 4096)").expect("a configuration");
        let (sender, events) = unbounded();
        let (_handle, stop) = Stop::new();
        let output = CorpusOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "fuzz".into(), stop);
        Box::new(config.source(Path::new(directory))).run(Mode::Once, output).expect("a file that is there");
        let mut ids = HashSet::new();
        for event in events.try_iter() {
            if let CorpusEvent::Change(id, document) = event {
                assert!(document.is_some() && ids.insert(id), "each row once");
            }
        }
        // A byte order mark and blanks at line ends are skipped in files only.
        assert!(ids.len() <= good + 1);
    });
}
