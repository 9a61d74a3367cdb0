//! The model that reads pictures and scans, if it is installed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnflow_engine::inference::PictureReader;
use turnflow_operators::models::ocr;

/// The variable of the environment that names the model's directory.
const VARIABLE: &str = "OCR_PATH";
/// Where the model is, below a directory, and where it is installed with the program.
const PLACES: (&str, &str) = ("models/ocr", "lib/turnflow/ocr");

/// Opens the model in `$OCR_PATH`, or else in `models/ocr/` of the working directory, of a directory above it, or of one above
/// the program, or else the one that is installed with the program, in `../lib/turnflow/ocr`.
pub(crate) fn open() -> Result<Arc<dyn PictureReader>, String> {
    let directory = match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) {
        Some(given) if ocr::is_there(&given) => given,
        Some(given) => return Err(format!("${VARIABLE} names `{}`, which has no model of OCR", given.display())),
        None => directory().ok_or("`turnflow models fetch ocr` brings the model that reads scans and pictures")?,
    };
    ocr::open(&directory).map_err(|error| format!("`{}` cannot be loaded: {error}", directory.display()))
}

fn directory() -> Option<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let here = std::env::current_dir().unwrap_or_default();
    let near = here.ancestors().chain(program.ancestors().skip(1)).map(|directory| directory.join(PLACES.0));
    let installed = program.ancestors().nth(2).map(|directory: &Path| directory.join(PLACES.1));
    near.chain(installed).find(|directory| ocr::is_there(directory))
}
