//! Writes formulas (ECMA-376-1, 22.1) in one line: `1/2`, `10^5`, `√(a+b)`.

use quick_xml::events::BytesStart;

use crate::xml::{attribute, name};

/// Where the parts of a formula begin that are open.
#[derive(Debug, Default)]
pub(super) struct Formula {
    /// Number of open formulas.
    depth: usize,
    parts: Vec<usize>,
}

impl Formula {
    /// Starts an element of a paragraph with this text so far.
    pub(super) fn open(&mut self, start: &BytesStart<'_>, text: &mut String) {
        match name(start) {
            "oMath" => {
                self.depth += 1;
                if text.ends_with(char::is_alphanumeric) {
                    text.push(' ');
                }
            }
            _ if self.depth == 0 => {}
            element => {
                match element {
                    "den" => text.push('/'),
                    "sup" => text.push('^'),
                    "sub" => text.push('_'),
                    "rad" => text.push('√'),
                    // The sign of a sum or an integral, or a sign over a letter.
                    "chr" => text.push_str(&attribute(start, "val").unwrap_or_default()),
                    _ => {}
                }
                if is_part(element) {
                    self.parts.push(text.len());
                }
            }
        }
    }

    /// Ends an element.
    pub(super) fn close(&mut self, element: &str, text: &mut String) {
        if element == "oMath" {
            self.depth = self.depth.saturating_sub(1);
            return;
        }
        if self.depth == 0 || !is_part(element) {
            return;
        }
        let Some(start) = self.parts.pop().filter(|start| *start <= text.len()) else { return };
        let part = &text[start..];
        // The power of nothing, as in some templates.
        if part.trim().is_empty() {
            let kept = text[..start].trim_end_matches(['/', '^', '_']).len();
            return text.truncate(kept);
        }
        let is_simple = part.chars().all(|character| character.is_alphanumeric() || matches!(character, '.' | ','));
        let is_negative = part.strip_prefix(['-', '−']).is_some_and(|rest| rest.chars().all(char::is_alphanumeric));
        if element == "d" || !(is_simple || is_negative) && element != "e" {
            text.insert(start, '(');
            text.push(')');
        }
    }
}

/// Whether an element is a part of a formula that may need brackets.
fn is_part(element: &str) -> bool {
    matches!(element, "num" | "den" | "sup" | "sub" | "deg" | "d")
}
