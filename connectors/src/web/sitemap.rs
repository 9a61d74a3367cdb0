//! Reads sitemaps (sitemaps.org): lists of pages, and indexes of such lists.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use crate::readers::xml::{Event, Xml, end_name, name};
use crate::readers::{ReadError, decode};

/// Maximum size of a sitemap, uncompressed, in bytes: that of the protocol.
pub(super) const MAX_BYTES: u64 = 50 << 20;
/// Maximum number of entries: that of the protocol.
const MAX_ENTRIES: usize = 50_000;

/// An entry: a page, or another sitemap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) url: String,
    /// When it was last changed, as it is written.
    pub(super) lastmod: Option<String>,
    pub(super) is_sitemap: bool,
}

/// Reads a sitemap, compressed or not.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Entry>, ReadError> {
    let mut unpacked = Vec::new();
    let bytes = if bytes.starts_with(b"\x1f\x8b") {
        MultiGzDecoder::new(bytes).take(MAX_BYTES + 1).read_to_end(&mut unpacked)?;
        if unpacked.len() as u64 > MAX_BYTES {
            return Err(ReadError::TooLarge { limit: MAX_BYTES });
        }
        &unpacked
    } else {
        bytes
    };
    let text = decode(bytes)?;
    let mut xml = Xml::new("sitemap", &text);
    let mut entries = Vec::new();
    let mut entry = None;
    // The field whose text is being read.
    let mut field: Option<(bool, String)> = None;
    let mut has_root = false;
    while let Some(event) = xml.next()? {
        match event {
            Event::Open(start) if !has_root => {
                // A page that stands in for the sitemap is not an empty one.
                if !matches!(name(&start), "urlset" | "sitemapindex") {
                    return Err(no_sitemap());
                }
                has_root = true;
            }
            Event::Open(start) => match name(&start) {
                kind @ ("url" | "sitemap") => {
                    entry = Some(Entry { url: String::new(), lastmod: None, is_sitemap: kind == "sitemap" });
                }
                kind @ ("loc" | "lastmod") if entry.is_some() && field.is_none() => {
                    field = Some((kind == "loc", String::new()));
                }
                _ => {}
            },
            Event::Text(text) => {
                if let Some((_, value)) = &mut field {
                    value.push_str(&text);
                }
            }
            Event::Close(end) => match end_name(&end) {
                "url" | "sitemap" => {
                    let entry: Option<Entry> = entry.take();
                    entries.extend(entry.filter(|entry| !entry.url.is_empty()));
                    if entries.len() > MAX_ENTRIES {
                        return Err(ReadError::TooMany { what: "entries", limit: MAX_ENTRIES as u64 });
                    }
                }
                "loc" | "lastmod" => {
                    if let (Some((is_url, value)), Some(entry)) = (field.take(), &mut entry) {
                        let value = value.trim().to_owned();
                        // Images and videos of a page have addresses too.
                        if !is_url {
                            entry.lastmod.get_or_insert(value);
                        } else if entry.url.is_empty() {
                            entry.url = value;
                        }
                    }
                }
                _ => {}
            },
        }
    }
    if has_root { Ok(entries) } else { Err(no_sitemap()) }
}

fn no_sitemap() -> ReadError {
    ReadError::Broken { format: "sitemap", reason: "there is no `urlset` or `sitemapindex`".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const PAGES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="http://www.google.com/schemas/sitemap-image/1.1">
            <url><loc> https://a.org/?x=1&amp;y=2 </loc><lastmod>2026-11-25</lastmod>
                <image:image><image:loc>https://a.org/a.png</image:loc></image:image></url>
            <url><loc><![CDATA[https://a.org/b]]></loc></url>
            <url></url>
        </urlset>"#;

    #[test]
    fn pages_and_other_sitemaps() {
        let entries = read(PAGES.as_bytes()).unwrap();
        let urls: Vec<_> = entries.iter().map(|entry| (&*entry.url, entry.lastmod.as_deref())).collect();
        assert_eq!(urls, [("https://a.org/?x=1&y=2", Some("2026-11-25")), ("https://a.org/b", None)]);
        let index = "<sitemapindex><sitemap><loc>https://a.org/1.xml</loc></sitemap></sitemapindex>";
        assert!(read(index.as_bytes()).unwrap()[0].is_sitemap);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(PAGES.as_bytes()).unwrap();
        assert_eq!(read(&packed.finish().unwrap()).unwrap(), entries);
    }

    #[test]
    fn what_is_no_sitemap_or_too_large_is_an_error() {
        assert!(read(b"<urlset><url>").is_err());
        assert!(read(b"<html><body>We are away.</body></html>").is_err() && read(b"away").is_err());
        assert!(read(b"\xff").is_err());
        assert!(read(b"\x1f\x8bnothing").is_err());
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&vec![b' '; MAX_BYTES as usize + 1]).unwrap();
        assert!(matches!(read(&packed.finish().unwrap()), Err(ReadError::TooLarge { .. })));
        let many = format!("<urlset>{}</urlset>", "<url><loc>x</loc></url>".repeat(MAX_ENTRIES + 1));
        assert!(matches!(read(many.as_bytes()), Err(ReadError::TooMany { .. })));
    }
}
