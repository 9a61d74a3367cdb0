//! The model that reads pictures in this process.

use std::sync::{Arc, OnceLock};

use futures::executor::block_on;
use parking_lot::Mutex;
use turnflow_engine::inference::{Picture, PictureReader, Priority};

use super::{Ocr, Seen};

/// Opens the model that is installed, or says why there is none.
type Open = fn() -> Result<Arc<dyn PictureReader>, String>;

static OPEN: OnceLock<Open> = OnceLock::new();
static OPENED: Mutex<Option<Arc<dyn PictureReader>>> = Mutex::new(None);

/// Says how the model that reads pictures is opened. It is opened when the first picture is read. Only the first call
/// counts.
pub fn look_with(open: Open) {
    OPEN.get_or_init(|| open);
}

/// The model of the settings, or else the one that is installed.
fn or_installed(ocr: &Ocr) -> Result<Arc<dyn PictureReader>, String> {
    if let Some(reader) = &ocr.reader {
        return Ok(reader.clone());
    }
    let mut opened = OPENED.lock();
    if let Some(reader) = &*opened {
        return Ok(reader.clone());
    }
    let open = OPEN.get().ok_or("this program has no model that reads pictures")?;
    let reader = open()?;
    *opened = Some(reader.clone());
    Ok(reader)
}

/// Looks at a picture, as long as it takes.
pub(crate) fn look(ocr: &Ocr, picture: Picture) -> Result<Seen, String> {
    let reader = or_installed(ocr)?;
    let lines = block_on(reader.read(picture, Priority::Corpus)).map_err(|error| error.to_string())?;
    Ok(Seen { lines, knows: reader.knows().to_owned() })
}
