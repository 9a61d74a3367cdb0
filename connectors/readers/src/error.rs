//! Why a file is not a document.

use turnflow_engine::panics::Panicked;

/// Why the bytes of a file are not a document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system could not read the file.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The child process that reads files of its format cannot be started.
    #[error("the process that reads such files cannot be started: {0}")]
    NoReader(std::io::Error),
    /// A link leads out of the directory.
    #[error("a link leads out of the directory; `links: Anywhere` follows it")]
    Outside,
    /// A link leads to a hidden file, such as `.env`.
    #[error("a link leads to a hidden file; `links: Anywhere` follows it")]
    Hidden,
    /// A file of the operating system, such as one in `/proc`.
    #[error("this is a file of the operating system, and no document")]
    OfTheSystem,
    /// Larger than the limit.
    #[error("larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// Not UTF-8, and without a byte order mark of another encoding.
    #[error("not UTF-8: invalid byte at offset {offset}")]
    Utf8 {
        /// Offset in the file, in bytes.
        offset: usize,
    },
    /// Has a byte order mark of UTF-16, but is not valid UTF-16.
    #[error("not UTF-16, although marked as such: invalid at offset {offset}")]
    Utf16 {
        /// Offset in the file, in bytes.
        offset: usize,
    },
    /// HTML with too many tags and texts nested deeply. For each, parsing takes time proportional to the number of open
    /// elements.
    #[error("elements are nested too deeply: the sum of the depths is above {limit}")]
    TooDeep {
        /// Maximum sum of the depths.
        limit: usize,
    },
    /// HTML with more elements than the limit, including those that the parser reopens.
    #[error("more than {limit} elements and texts, including reopened elements that are never closed")]
    ManyElements {
        /// Maximum number of elements.
        limit: usize,
    },
    /// HTML with more tags, character references and other uses of `<` than the limit.
    #[error("more than {limit} pieces of tags, character references and texts")]
    ManyPieces {
        /// Maximum number of pieces that are passed to the parser.
        limit: u64,
    },
    /// A file of this format is damaged, or something else with its extension.
    #[error("broken {format}: {reason}")]
    Broken {
        /// The format's name.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The file cannot be opened without its password or key.
    #[error("the {format} file is encrypted")]
    Encrypted {
        /// The format's name.
        format: &'static str,
    },
    /// The file has more of something than any real one, so it would take too long or too much memory.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// This build of turnflow does not include the format's reader.
    #[error("this build of turnflow cannot read {format}: it was built without the cargo feature `{feature}`")]
    NotBuilt {
        /// The format's name.
        format: &'static str,
        /// The cargo feature with its reader.
        feature: &'static str,
    },
    /// PDF files cannot be read without pdfium.
    #[error("PDF files cannot be read without pdfium: {reason}")]
    NoPdfium {
        /// What is missing.
        reason: String,
    },
    /// The PDF cannot be opened without its password.
    #[error("the PDF is encrypted: {}", if *tried == 0 { "give its password to its source (`passwords`)" } else { "none of the `passwords` opens it" })]
    PdfEncrypted {
        /// The number of passwords that were tried.
        tried: usize,
    },
    /// The process that read the file ended, took too long, or answered wrongly.
    #[error("the reader of {format} files ended: {reason}")]
    Ended {
        /// The format's name.
        format: &'static str,
        /// What happened.
        reason: String,
    },
    /// What a reader in another process has told about the file.
    #[error("{0}")]
    Told(String),
    /// A reader panicked.
    #[error("cannot be read: the reader {0}")]
    Panicked(#[from] Panicked),
    /// The PDF has pages, but no text on them.
    #[error("no text in this PDF (scanned?){hint}")]
    PdfWithoutText {
        /// What would help, or what was tried.
        hint: String,
    },
    /// Pictures are not to be read.
    #[error("{what} are not read because of `ocr: Never`")]
    PicturesNever {
        /// What is not read.
        what: &'static str,
    },
    /// There is no model that reads pictures, or it failed.
    #[error("the text in pictures cannot be read: {reason}")]
    NoOcr {
        /// What is missing.
        reason: String,
    },
    /// No text was seen in a picture.
    #[error("no text is seen in this picture")]
    PictureWithoutText,
    /// Text was seen, but the model is not sure of it.
    #[error(
        "OCR is not sure of what it has read: its confidence is {found}, and `ocr_min_confidence` is {least}. It knows {knows}"
    )]
    Unsure {
        /// How sure it is, from 0 to 1.
        found: f64,
        /// What is asked for.
        least: f64,
        /// The languages that the model knows.
        knows: String,
    },
}
