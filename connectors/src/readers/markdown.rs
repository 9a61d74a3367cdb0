//! Reads Markdown files. The text is not changed. The title comes from the front matter, or else from the first
//! top-level heading.

use turnflow_engine::document::Markup;

use super::Content;

/// Removes the front matter and finds the title.
pub fn read(text: &str) -> Content {
    let (front, body) = split_front_matter(text);
    let title = front.and_then(front_title).or_else(|| first_heading(body)).unwrap_or_default();
    Content { title, text: body.to_owned(), markup: Markup::Markdown }
}

/// Splits off YAML between a first line `---` and a line `---` or `...`, if it is closed.
fn split_front_matter(text: &str) -> (Option<&str>, &str) {
    let Some(rest) = text.strip_prefix("---\n") else { return (None, text) };
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if matches!(line.trim_end(), "---" | "...") {
            return (Some(&rest[..at]), rest[at + line.len()..].trim_start_matches('\n'));
        }
        at += line.len();
    }
    (None, text)
}

/// The value of `title:`. Supports plain and quoted scalars on one line, which is enough for titles.
fn front_title(front: &str) -> Option<String> {
    let value = front.lines().find_map(|line| line.strip_prefix("title:"))?.trim();
    let title = if let Some(quoted) = value.strip_prefix('"') {
        let mut title = String::new();
        let mut characters = quoted.chars();
        loop {
            match characters.next()? {
                '"' => break title,
                '\\' => title.push(characters.next()?),
                character => title.push(character),
            }
        }
    } else if let Some(quoted) = value.strip_prefix('\'') {
        // A quote within the text is doubled.
        quoted.trim_end().strip_suffix('\'')?.replace("''", "'")
    } else {
        value.split(" #").next().unwrap_or_default().trim_end().to_owned()
    };
    (!title.is_empty()).then_some(title)
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

    #[test]
    fn front_matter_is_taken_off_only_when_closed() {
        assert_eq!(read("---\na: 1\n---\n\n# H\n").text, "# H\n");
        assert_eq!(read("---\n\njust a rule\n").text, "---\n\njust a rule\n");
        assert_eq!(read("---").text, "---");
        assert_eq!(read("# H\n").markup, Markup::Markdown);
    }
}
