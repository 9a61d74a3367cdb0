//! Reads Markdown files. The text is not changed. The title comes from the front matter, or else from the first
//! top-level heading. The other fields of the front matter are the metadata, if it is valid YAML.

use turnflow_engine::document::Markup;

use super::{Content, front_matter};

/// Removes the front matter and finds the title and the metadata.
pub fn read(text: &str) -> Content {
    let (front, body) = front_matter::split(text);
    let front = front.map(front_matter::read).unwrap_or_default();
    let title = Some(front.title).filter(|title| !title.is_empty()).or_else(|| first_heading(body)).unwrap_or_default();
    Content { title, text: body.to_owned(), markup: Markup::Markdown, metadata: front.metadata }
}

/// The first `# ` heading outside code fences.
fn first_heading(body: &str) -> Option<String> {
    let mut fence: Option<&str> = None;
    for line in body.lines() {
        let line = line.trim_start_matches(' ');
        let mark = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => {
                if let Some(heading) = line.strip_prefix("# ") {
                    // A closing run of `#` is decoration, but one that is attached to a word (`C#`) is not.
                    let heading = heading.trim();
                    let bare = heading.trim_end_matches('#');
                    let heading = if bare.is_empty() || bare.ends_with(' ') { bare.trim_end() } else { heading };
                    if !heading.is_empty() {
                        return Some(heading.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles() {
        for (text, title) in [
            ("# One\n\ntext\n# Two", "One"),
            ("text\n\n## Sub\n# Later #\n", "Later"),
            ("# C#\n", "C#"),
            ("```\n# comment\n```\n# Real", "Real"),
            ("~~~sh\n```\n# comment\n~~~\n# Real", "Real"),
            ("#hashtag\n", ""),
            ("# \ntext", ""),
            ("", ""),
            ("---\ntitle: From front\n---\n# Heading", "From front"),
            ("---\ntitle: \"a \\\"b\\\"\" # note\n---\n", "a \"b\""),
            ("---\ntitle: 'it''s'\n...\n", "it's"),
            ("---\ntitle: plain # comment\n---\n", "plain"),
            ("---\nauthor: x\n---\n# Heading", "Heading"),
            ("---\ntitle:\n---\n# Heading", "Heading"),
            ("---\ntitle: \"never closed\n---\n# Heading", "Heading"),
        ] {
            assert_eq!(read(text).title, title, "{text:?}");
        }
    }
}
