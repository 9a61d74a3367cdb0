//! The formats of files that are read.

use std::path::Path;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.md`: Markdown.
    Markdown,
    /// `.txt`: text without markup.
    Text,
    /// `.html`, `.htm`: HTML.
    Html,
    /// `.pdf`: PDF.
    Pdf,
    /// `.docx`, `.docm`: a text of Word and others.
    Docx,
    /// `.pptx`, `.pptm`: a presentation of PowerPoint and others.
    Pptx,
    /// `.xlsx`, `.xlsm`: a workbook of Excel and others.
    Xlsx,
    /// `.csv`: a table with separators.
    Csv,
    /// `.tsv`: a table with tabs.
    Tsv,
    /// `.epub`: a book.
    Epub,
    /// `.eml`: a mail message.
    Eml,
    /// `.png`: a picture.
    Png,
    /// `.jpg`, `.jpeg`: a photograph.
    Jpeg,
    /// `.tif`, `.tiff`: a scan, of one page or many.
    Tiff,
    /// `.webp`: a picture.
    Webp,
    /// `.jsonl`: one document on each line.
    JsonLines,
    /// `.parquet`: one document for each row.
    Parquet,
    /// `.arrow`, `.feather`: the same in Arrow's file format.
    Arrow,
}

impl Format {
    /// The format of a file with this name, if there is a reader for it.
    pub fn of(path: &Path) -> Option<Self> {
        // Office programs mark an open file with a small one of such a name.
        if path.file_name()?.as_encoded_bytes().starts_with(b"~$") {
            return None;
        }
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "md" => Some(Self::Markdown),
            "txt" => Some(Self::Text),
            "html" | "htm" => Some(Self::Html),
            "pdf" => Some(Self::Pdf),
            "docx" | "docm" => Some(Self::Docx),
            "pptx" | "pptm" => Some(Self::Pptx),
            "xlsx" | "xlsm" => Some(Self::Xlsx),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "epub" => Some(Self::Epub),
            "eml" => Some(Self::Eml),
            "png" => Some(Self::Png),
            "jpg" | "jpeg" => Some(Self::Jpeg),
            "tif" | "tiff" => Some(Self::Tiff),
            "webp" => Some(Self::Webp),
            "jsonl" => Some(Self::JsonLines),
            "parquet" => Some(Self::Parquet),
            "arrow" | "feather" => Some(Self::Arrow),
            _ => None,
        }
    }

    /// The formats whose files are one document each.
    pub const DOCUMENTS: [Self; 15] = [
        Self::Html,
        Self::Text,
        Self::Markdown,
        Self::Pdf,
        Self::Docx,
        Self::Pptx,
        Self::Xlsx,
        Self::Csv,
        Self::Tsv,
        Self::Epub,
        Self::Eml,
        Self::Png,
        Self::Jpeg,
        Self::Tiff,
        Self::Webp,
    ];

    /// The format of a file that is one document, by its media type in lower case.
    pub fn of_mime(mime: &str) -> Option<Self> {
        Self::DOCUMENTS.into_iter().find(|format| format.mime() == mime)
    }

    /// The media type.
    pub fn mime(self) -> &'static str {
        match self {
            Self::Markdown => "text/markdown",
            Self::Text => "text/plain",
            Self::Html => "text/html",
            Self::Pdf => "application/pdf",
            Self::Docx => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            Self::Pptx => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
            Self::Xlsx => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Self::Csv => "text/csv",
            Self::Tsv => "text/tab-separated-values",
            Self::Epub => "application/epub+zip",
            Self::Eml => "message/rfc822",
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Tiff => "image/tiff",
            Self::Webp => "image/webp",
            Self::JsonLines => "application/jsonl",
            Self::Parquet => "application/vnd.apache.parquet",
            Self::Arrow => "application/vnd.apache.arrow.file",
        }
    }

    /// Whether a file has rows, each of which is a document.
    pub fn has_rows(self) -> bool {
        matches!(self, Self::JsonLines | Self::Parquet | Self::Arrow)
    }

    /// Whether a file is a picture, of which only OCR makes a document.
    pub fn is_picture(self) -> bool {
        matches!(self, Self::Png | Self::Jpeg | Self::Tiff | Self::Webp)
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Markdown => "Markdown",
            Self::Text => "text",
            Self::Html => "HTML",
            Self::Pdf => "PDF",
            Self::Docx => "DOCX",
            Self::Pptx => "PPTX",
            Self::Xlsx => "XLSX",
            Self::Csv => "CSV",
            Self::Tsv => "TSV",
            Self::Epub => "EPUB",
            Self::Eml => "EML",
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::Tiff => "TIFF",
            Self::Webp => "WebP",
            Self::JsonLines => "JSON Lines",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_go_by_the_extension() {
        for (name, format) in [
            ("a/b.md", Some(Format::Markdown)),
            ("README.MD", Some(Format::Markdown)),
            ("a.txt", Some(Format::Text)),
            ("a.htm", Some(Format::Html)),
            ("a.tar.html", Some(Format::Html)),
            ("a.pdf", Some(Format::Pdf)),
            ("a.docx", Some(Format::Docx)),
            ("a.PPTX", Some(Format::Pptx)),
            ("a.xlsm", Some(Format::Xlsx)),
            ("a.csv", Some(Format::Csv)),
            ("a.tsv", Some(Format::Tsv)),
            ("a.epub", Some(Format::Epub)),
            ("a.eml", Some(Format::Eml)),
            ("a.png", Some(Format::Png)),
            ("a.JPG", Some(Format::Jpeg)),
            ("a.tif", Some(Format::Tiff)),
            ("a.webp", Some(Format::Webp)),
            ("~$a.docx", None),
            ("a.doc", None),
            ("a.jsonl", Some(Format::JsonLines)),
            ("a.parquet", Some(Format::Parquet)),
            ("a.feather", Some(Format::Arrow)),
            ("a.json", None),
            ("a.md~", None),
            (".a.md.swp", None),
            ("#a.md#", None),
            ("4913", None),
            ("md", None),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }
}
