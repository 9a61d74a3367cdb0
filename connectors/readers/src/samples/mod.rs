//! Small files for tests.

mod scans;

use std::io::Write as _;

pub use self::scans::{Scan, encoded, png_of, tiff_of};

/// A PDF with one page that contains this text.
pub fn pdf(text: &str) -> Vec<u8> {
    pdf_of_pages(&[&format!("BT /F1 12 Tf 72 700 Td ({text}) Tj ET")])
}

/// A PDF of pages with these contents; `/F1` is a font, `/X` a form that draws itself.
pub fn pdf_of_pages(contents: &[&str]) -> Vec<u8> {
    let kids: Vec<String> = (0..contents.len()).map(|page| format!("{} 0 R", 5 + 2 * page)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), contents.len()),
        stream("/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 3 0 R >> >>", "/X Do"),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    for (page, content) in contents.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R \
             /Resources << /Font << /F1 4 0 R >> /XObject << /X 3 0 R >> >> >>",
            6 + 2 * page
        ));
        objects.push(stream("", content));
    }
    pdf_of_objects(&objects)
}

/// A stream with this dictionary and content, as an object of a PDF.
pub fn stream(dictionary: &str, content: &str) -> String {
    format!("<< {dictionary} /Length {} >>\nstream\n{content}\nendstream", content.len())
}

/// A PDF of these objects, whose numbers begin with 1; the first one is its catalog.
pub fn pdf_of_objects(objects: &[String]) -> Vec<u8> {
    let mut out = "%PDF-1.4\n".to_owned();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(out.len());
        out.push_str(&format!("{} 0 obj\n{object}\nendobj\n", number + 1));
    }
    let xref = out.len();
    out.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1));
    for offset in offsets {
        out.push_str(&format!("{offset:010} 00000 n \n"));
    }
    out.push_str(&format!("trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{xref}\n%%EOF\n", objects.len() + 1));
    out.into_bytes()
}

/// A zip archive with these files; empty if it cannot be made.
pub fn zipped(files: &[(&str, &str)]) -> Vec<u8> {
    let made = || -> zip::result::ZipResult<Vec<u8>> {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, text) in files {
            archive.start_file(*name, zip::write::SimpleFileOptions::default())?;
            archive.write_all(text.as_bytes())?;
        }
        Ok(archive.finish()?.into_inner())
    };
    made().unwrap_or_default()
}
