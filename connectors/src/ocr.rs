//! The settings of sources for pictures and scans.

use turnflow_engine::component::Check;

use crate::readers::ocr::When;
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
pub(crate) fn explain(when: When, least: f64) -> String {
    let mut said = String::new();
    if when != When::default() {
        said.push_str(&format!(", ocr: {when:?}"));
    }
    if least != self::least() {
        said.push_str(&format!(", ocr_min_confidence: {least}"));
    }
    said
}

/// Whether a file of a format is read at all.
pub(crate) fn reads(when: When, format: Format) -> bool {
    when != When::Never || !format.is_picture()
}
