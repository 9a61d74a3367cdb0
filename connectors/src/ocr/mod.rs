//! The settings of sources for pictures, scans and encrypted files, and what OCR has read.

mod kept;

use turnflow_engine::component::{Capability, ComponentContext, ModelUse};
use turnflow_engine::connector::ConnectorError;

use crate::readers::ocr::OcrMode;
use crate::readers::{Format, ReadOptions};
use crate::secret::Secret;

/// How sure OCR must be of a page, by default.
pub(crate) fn least() -> f64 {
    ReadOptions::default().least
}

/// What differs from the default, for an explanation.
pub(crate) fn explain(when: OcrMode, least: f64, passwords: &[Secret]) -> String {
    let mut said = String::new();
    if when != OcrMode::default() {
        said.push_str(&format!(", ocr: {when:?}"));
    }
    if least != self::least() {
        said.push_str(&format!(", ocr_min_confidence: {least}"));
    }
    if !passwords.is_empty() {
        said.push_str(&format!(", passwords: {}", passwords.len()));
    }
    said
}

/// Whether a file of a format is read at all.
pub(crate) fn reads(when: OcrMode, format: Format) -> bool {
    when != OcrMode::Never || !format.is_picture()
}

/// The model that a source uses.
pub(crate) fn models(model: Option<&str>) -> Vec<ModelUse<'_>> {
    let used = |name| ModelUse { field: "ocr_model", name, capability: Capability::ReadPictures };
    model.map(used).into_iter().collect()
}

/// How the files of a source are read.
///
/// # Errors
///
/// A password is not where the pipeline says.
pub(crate) fn of(
    context: &ComponentContext,
    model: Option<&str>,
    (when, least): (OcrMode, f64),
    passwords: &[Secret],
) -> Result<ReadOptions, ConnectorError> {
    let reader = model.and_then(|model| context.model(model)?.pictures.clone());
    let memory = if when == OcrMode::Never { None } else { kept::Kept::open(context) };
    let passwords = passwords.iter().map(Secret::read).collect::<Result<_, _>>()?;
    Ok(ReadOptions { reader, memory, passwords, ..ReadOptions::new(when, least) })
}
