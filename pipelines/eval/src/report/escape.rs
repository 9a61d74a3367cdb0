//! Escapes text for HTML.

use std::fmt;

/// Displays text with all markup escaped.
pub(crate) struct Text<'t>(pub &'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            // Control characters, which HTML does not allow, and bidirectional controls, which change
            // the direction of the following text.
            c if c.is_control() && !matches!(c, '\n' | '\r' | '\t') => f.write_str("\u{fffd}"),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_str("\u{fffd}"),
            c => write!(f, "{c}"),
        })
    }
}
