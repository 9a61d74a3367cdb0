//! Character sets of texts that come over HTTP.

use encoding_rs::Encoding;

use super::Format;

/// Where a page names its character set, at the latest: that of the HTML standard.
const BEGINNING: usize = 1024;

/// A text in UTF-8, from the character set that the sender or the page names. A text that is valid UTF-8, and what is not a
/// text, stays.
pub fn in_utf8(bytes: Vec<u8>, charset: Option<&str>, format: Format) -> Vec<u8> {
    if !matches!(format, Format::Html | Format::Text | Format::Markdown | Format::Csv | Format::Tsv) {
        return bytes;
    }
    let named = charset.map(str::to_owned).or_else(|| {
        let beginning = String::from_utf8_lossy(&bytes[..bytes.len().min(BEGINNING)]).to_ascii_lowercase();
        let (_, rest) = beginning.split_once("charset=").filter(|_| format == Format::Html)?;
        let rest = rest.trim_start_matches(['"', '\'']);
        Some(rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_:".contains(*c)).collect())
    });
    match named.and_then(|name| Encoding::for_label(name.trim().as_bytes())) {
        // Some sites name another character set than they use. Of the others, only ISO-2022-JP looks like UTF-8.
        Some(encoding)
            if Encoding::for_bom(&bytes).is_none()
                && (std::str::from_utf8(&bytes).is_err() || encoding == encoding_rs::ISO_2022_JP) =>
        {
            encoding.decode(&bytes).0.into_owned().into_bytes()
        }
        _ => bytes,
    }
}
