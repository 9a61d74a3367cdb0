//! The settings of sources for pictures and scans, and what OCR has read of them.

mod kept;

use turnflow_engine::component::{Capability, Check, ComponentContext, ModelUse};

use crate::readers::ocr::OcrMode;
use crate::readers::{Format, Ocr};

/// How sure OCR must be of a page, by default.
pub(crate) fn least() -> f64 {
    Ocr::default().least
}

/// Reports invalid values.
pub(crate) fn validate(check: &mut Check<'_>, least: f64) {
    check.range("ocr_min_confidence", least, 0.0, 1.0);
}

/// What differs from the default, for an explanation.
pub(crate) fn explain(when: OcrMode, least: f64) -> String {
    let mut said = String::new();
    if when != OcrMode::default() {
        said.push_str(&format!(", ocr: {when:?}"));
    }
    if least != self::least() {
        said.push_str(&format!(", ocr_min_confidence: {least}"));
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

/// How the pictures of a source are read.
pub(crate) fn of(context: &ComponentContext, model: Option<&str>, (when, least): (OcrMode, f64)) -> Ocr {
    let reader = model.and_then(|model| context.model(model)?.pictures.clone());
    let memory = if when == OcrMode::Never { None } else { kept::Kept::open(context) };
    Ocr { reader, memory, ..Ocr::new(when, least) }
}
