//! How files are read: OCR, and passwords.

use std::sync::Arc;

use turnflow_engine::inference::PictureReader;

use crate::ocr::{Memory, OcrMode};

/// How the files of a source are read.
#[derive(Clone)]
pub struct ReadOptions {
    /// When the text in pictures is read.
    pub when: OcrMode,
    /// A page of which the model is less sure, from 0 to 1, is not used.
    pub least: f64,
    /// The model; by default the one that is installed.
    pub reader: Option<Arc<dyn PictureReader>>,
    /// Keeps what was read in pictures. By default, nothing is kept.
    pub memory: Option<Arc<dyn Memory>>,
    /// Encrypted PDF files are tried with each of these. By default, there are none.
    pub passwords: Arc<[String]>,
}

impl ReadOptions {
    /// With the model that is installed, and without passwords.
    pub fn new(when: OcrMode, least: f64) -> Self {
        Self { when, least, reader: None, memory: None, passwords: Arc::default() }
    }
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self::new(OcrMode::Auto, 0.5)
    }
}

impl std::fmt::Debug for ReadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadOptions({:?}, {})", self.when, self.least)
    }
}
