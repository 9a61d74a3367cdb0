//! Reads the text in pictures and scans: when, and who looks at a picture.
//!
//! Readers make pictures of what has no text ([`Eyes::see`]). The model that reads them is in the main process, because it
//! shares its work among all: a child process sends its pictures there. A program says with [`look_with`] which model
//! that is; without one, what has no text stays unread, with a reason.

mod looks;

use serde::{Deserialize, Serialize};
use turnflow_engine::component::config;
use turnflow_engine::inference::{Picture, PictureLine};

pub(crate) use self::looks::look;
pub use self::looks::look_with;

/// Maximum number of pictures of a file that are read.
pub(crate) const MOST_PICTURES: usize = 2000;
/// Maximum number of pixels of a picture that is read. A larger one is made smaller.
pub(crate) const MOST_PIXELS: usize = 16_000_000;

/// When pictures are read.
#[config]
#[derive(Copy, Default, PartialEq, Eq, Serialize)]
pub enum OcrMode {
    /// Pictures, and pages without text or of which many letters are not known.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Pictures, and every page of a PDF as it looks, whatever its text is.
    Always,
}

/// Keeps what was read of pictures, by hashes of pictures and models.
pub trait Memory: Send + Sync {
    /// What is kept by this key.
    fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>>;
    /// Keeps something.
    fn put(&self, key: &[u8; 32], value: &[u8]);
}

/// What a model has seen in a picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub lines: Vec<PictureLine>,
    /// The languages that it knows.
    pub knows: String,
}

/// Looks at a picture; the reason why it cannot.
pub(crate) type Look<'a> = dyn FnMut(Picture) -> Result<Seen, String> + 'a;

/// What a reader sees pictures with.
pub(crate) struct Eyes<'a> {
    pub when: OcrMode,
    pub least: f64,
    /// What encrypted files are tried with.
    pub passwords: Vec<String>,
    look: &'a mut Look<'a>,
    /// Why no more pictures are looked at.
    blind: Option<String>,
    seen: usize,
    knows: String,
}

impl<'a> Eyes<'a> {
    pub fn new(when: OcrMode, least: f64, look: &'a mut Look<'a>) -> Self {
        Self { when, least, passwords: Vec::new(), look, blind: None, seen: 0, knows: String::new() }
    }

    /// The lines of a picture, or why there are none: the model is not there, or fails, or there were too many pictures.
    pub fn see(&mut self, picture: Picture) -> Result<Vec<PictureLine>, String> {
        if self.seen >= MOST_PICTURES {
            // The pages that follow are not looked at, and are told as those that are not read.
            let reason = format!("of a file, {MOST_PICTURES} pages are read by OCR at most");
            return Err(self.blind.get_or_insert(reason).clone());
        }
        if let Some(reason) = &self.blind {
            return Err(reason.clone());
        }
        self.seen += 1;
        match (self.look)(picture) {
            Ok(Seen { lines, knows }) => {
                self.knows = knows;
                Ok(lines)
            }
            Err(reason) => {
                self.blind = Some(reason.clone());
                Err(reason)
            }
        }
    }

    /// The languages that the model knows.
    pub fn knows(&self) -> &str {
        &self.knows
    }

    /// Why the model cannot look.
    pub fn is_blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }
}

/// What a page was read as.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sureness {
    sum: f64,
    letters: usize,
}

impl Sureness {
    /// Of lines, each as sure as the model is, by the number of their letters.
    pub fn of(lines: &[PictureLine]) -> Self {
        let letters = |line: &PictureLine| line.text.chars().count();
        let sum = lines.iter().map(|line| f64::from(line.confidence) * letters(line) as f64).sum();
        Self { sum, letters: lines.iter().map(letters).sum() }
    }

    pub fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.letters += other.letters;
    }

    /// From 0 to 1, with two digits, rounded down; `None` if there are no letters.
    pub fn share(&self) -> Option<f64> {
        (self.letters > 0).then(|| (self.sum / self.letters as f64 * 100.0).floor() / 100.0)
    }
}
