//! Reads what a PDF says about itself: its author, subject, keywords and dates. Its title is left out, because it is
//! more often a file name.

use pdfium_render::prelude::{PdfDocumentMetadataTagType as Tag, PdfMetadata};
use turnflow_engine::metadata::Metadata;

use crate::fields::Fields;

/// The entries of the information dictionary.
pub(super) fn info(info: &PdfMetadata<'_>) -> Metadata {
    let mut fields = Fields::default();
    let text = |tag| info.get(tag).map(|tag| tag.value().replace('\0', "")).unwrap_or_default();
    fields.text("author", &text(Tag::Author));
    fields.text("subject", &text(Tag::Subject));
    fields.keywords(&text(Tag::Keywords));
    fields.text("created", &date(&text(Tag::CreationDate)).unwrap_or_default());
    fields.text("updated", &date(&text(Tag::ModificationDate)).unwrap_or_default());
    fields.finish()
}

/// A date such as `D:20261125215649+01'00'` in the form of RFC 3339, or a day if there is no time.
fn date(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_prefix("D:").unwrap_or(text);
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, zone) = text.split_at(length);
    let part = |from: usize, to: usize| digits.get(from..to);
    let day = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (Some(hour), Some(minute)) = (part(8, 10), part(10, 12)) else { return Some(day) };
    let second = part(12, 14).unwrap_or("00");
    let digits: String = zone.chars().filter(char::is_ascii_digit).take(4).collect();
    let zone = match zone.chars().next() {
        Some(sign @ ('+' | '-')) if digits.len() >= 2 => {
            let minutes = digits.get(2..4).unwrap_or("00");
            format!("{sign}{}:{minutes}", &digits[..2])
        }
        Some('Z') => "Z".to_owned(),
        // Local time of an unknown place.
        _ => String::new(),
    };
    Some(format!("{day}T{hour}:{minute}:{second}{zone}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_become_rfc_3339() {
        for (written, expected) in [
            ("D:20261125215649+01'00'", Some("2026-11-25T21:56:49+01:00")),
            ("D:20261125215649Z", Some("2026-11-25T21:56:49Z")),
            ("20261125215649-0330", Some("2026-11-25T21:56:49-03:30")),
            ("D:202611252156", Some("2026-11-25T21:56:00")),
            ("D:20261125", Some("2026-11-25")),
            ("D:2026", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(date(written).as_deref(), expected, "{written}");
        }
    }
}
