//! Office files and books: any bytes give a document or an error.
//!
//! An input that does not start like an archive is text with the parts of one: a line `==== PATH` starts a part. Of a
//! mutated archive, most parts would fail their checksums.

use turnflow_connectors::readers::Format;

use super::readers::read;

/// Maximum length of a text from a file in one of these formats, in bytes.
const MOST_TEXT: usize = (64 << 20) + (1 << 20);

/// A text document.
pub fn docx(data: &[u8]) {
    check(Format::Docx, data);
}

/// A presentation.
pub fn pptx(data: &[u8]) {
    check(Format::Pptx, data);
}

/// A workbook.
pub fn xlsx(data: &[u8]) {
    check(Format::Xlsx, data);
}

/// A book.
pub fn epub(data: &[u8]) {
    check(Format::Epub, data);
}

fn check(format: Format, data: &[u8]) {
    let is_whole = data.starts_with(b"PK") || data.starts_with(b"\xD0\xCF");
    let read = if is_whole { read(format, data) } else { read(format, &archive(data)) };
    if let Ok(document) = read {
        assert!(document.text.len() <= MOST_TEXT, "{} bytes", document.text.len());
    }
}

/// A zip archive of the parts in a text, without compression.
fn archive(data: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b"==== ";
    const MOST_PARTS: u16 = 1000;
    let (mut archive, mut list, mut count) = (Vec::new(), Vec::new(), 0_u16);
    let mut rest = data.strip_prefix(MARK).unwrap_or_default();
    while !rest.is_empty() && count < MOST_PARTS {
        let end = rest.windows(MARK.len() + 1).position(|window| window[0] == b'\n' && &window[1..] == MARK);
        let part = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or(&[], |end| &rest[end + 1 + MARK.len()..]);
        let line = part.iter().position(|byte| *byte == b'\n').unwrap_or(part.len());
        let (path, content) = (&part[..line.min(200)], part.get(line + 1..).unwrap_or_default());
        let start = archive.len() as u32;
        let fields = |extra: &[u8]| {
            let mut fields = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            fields.extend(crc32(content).to_le_bytes());
            fields.extend((content.len() as u32).to_le_bytes());
            fields.extend((content.len() as u32).to_le_bytes());
            fields.extend((path.len() as u16).to_le_bytes());
            fields.extend(extra);
            fields
        };
        archive.extend(b"PK\x03\x04");
        archive.extend(fields(&[0, 0]));
        archive.extend(path);
        archive.extend(content);
        list.extend(b"PK\x01\x02\x14\0");
        list.extend(fields(&[0; 12]));
        list.extend(start.to_le_bytes());
        list.extend(path);
        count += 1;
    }
    let start = archive.len() as u32;
    archive.extend(&list);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend(count.to_le_bytes());
    archive.extend(count.to_le_bytes());
    archive.extend((list.len() as u32).to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}
