//! The form of a file: what its name tells, or else its first bytes.

use std::path::Path;

use super::{Odd, json, packed};

/// The form of a file that begins so.
pub(super) fn form(path: &Path, head: &[u8], is_whole: bool) -> &'static str {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let named = named(path);
    match named {
        Some("json" | "jsonl") | None => {}
        Some(form) => return form,
    }
    for (start, form) in [
        (b"SQLite format 3\0".as_slice(), "sqlite"),
        (b"PAR1", "columns"),
        (b"ARROW1", "columns"),
        (b"WEBVTT", "vtt"),
        (b"From ", "mbox"),
        (b"data:", "sse"),
        (b"event:", "sse"),
    ] {
        if head.starts_with(start) {
            return form;
        }
    }
    let head = head.trim_ascii_start();
    if head.starts_with(b"<") {
        return "xml";
    }
    // One document on many lines, or a document a line.
    let first = head.split_inclusive(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
    let Some(first) = first.filter(|line| line.ends_with(b"\n") || is_whole) else { return named.unwrap_or("jsonl") };
    let rest = head.get(first.len()..).unwrap_or_default();
    let is_record = json(first, &mut Odd::default()).is_ok();
    match named {
        Some(_) if is_record && first.starts_with(b"{") && rest.trim_ascii_start().starts_with(b"{") => "jsonl",
        Some("json") => "json",
        // The first line of a document on many lines; another one is only broken.
        _ if !is_record && first.ends_with(b"\n") && goes_on(first) => "json",
        _ => "jsonl",
    }
}

/// Whether a line begins a document that goes on in the next one.
fn goes_on(first: &[u8]) -> bool {
    let first = first.trim_ascii();
    matches!(first, [b'{' | b'[', ..]) && matches!(first, [.., b'{' | b'[' | b','])
}

/// The form that the name of a file tells. Endings of packed and rotated files do not count.
fn named(path: &Path) -> Option<&'static str> {
    let path = packed::plain(path);
    let mut name = path.as_path();
    loop {
        let ending = name.extension()?.to_string_lossy().to_ascii_lowercase();
        return Some(match &*ending {
            "json" | "js" => "json",
            "jsonl" | "ndjson" => "jsonl",
            "csv" | "tsv" => "csv",
            "mbox" | "eml" => "mbox",
            "vtt" | "srt" => "vtt",
            "sqlite" | "db" | "sqlite3" => "sqlite",
            "parquet" | "arrow" | "feather" => "columns",
            "sse" => "sse",
            "txt" | "html" | "htm" | "md" => "text",
            "xml" => "xml",
            // `chat.csv.1`, `chat.csv.2026-03-05`, `chat.csv.old`
            _ if ending == "old" || ending.starts_with(|first: char| first.is_ascii_digit()) => {
                name = Path::new(name.file_stem()?);
                continue;
            }
            _ => return None,
        });
    }
}

/// Whether a file that begins so holds no text: it has NUL characters, and bytes that are no UTF-8.
pub(super) fn is_binary(head: &[u8]) -> bool {
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") || head.starts_with(b"%PDF-") {
        return head.starts_with(b"%");
    }
    // The head may end within a letter.
    let broken = head.utf8_chunks().filter(|part| !part.invalid().is_empty()).count();
    head.contains(&0) && broken > 1
}
