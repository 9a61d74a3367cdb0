//! The interface to models that read the text in pictures.

use std::fmt;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{InferenceError, Priority};

/// A picture: rows of pixels from the top, each pixel as red, green and blue.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Three bytes for each pixel.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// `None` if the number of bytes is not that of the pixels, or there are none.
    pub fn of(width: usize, height: usize, rgb: Vec<u8>) -> Option<Self> {
        let wanted = width.checked_mul(height)?.checked_mul(3)?;
        (wanted > 0 && rgb.len() == wanted).then_some(Self { width, height, rgb })
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} × {})", self.width, self.height)
    }
}

/// A line of text that was read in a picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PictureLine {
    /// Its text.
    pub text: String,
    /// How sure the model is of it, from 0 to 1.
    pub confidence: f32,
    /// The corners of the line in pixels, as its reader sees it: above its beginning, above its end, below its end, and
    /// below its beginning. y grows downwards.
    pub corners: [(f32, f32); 4],
    /// Where each character of `text` is, as a share of the line's length.
    pub places: Vec<f32>,
}

/// Reads the text in pictures.
pub trait PictureReader: Send + Sync {
    /// The lines of a picture, in no particular order.
    fn read(
        &self,
        picture: Picture,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<PictureLine>, InferenceError>>;
    /// The languages that it knows, for messages.
    fn knows(&self) -> &'static str;
    /// Hash of what changes its lines.
    fn fingerprint(&self) -> &str;
}
