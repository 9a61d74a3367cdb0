//! Removes web addresses, header lines and markup from texts. `Clean` cleans passages, and the chunker `Cleaned` whole
//! documents.

use std::sync::LazyLock;

use regex::Regex;

/// What is removed from a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cleaning {
    /// Web addresses. The text of a Markdown link stays.
    pub urls: bool,
    /// Markdown headings, and lines at the start that have no full stop and at most eight words.
    pub headers: bool,
    /// Headers further down too. Needs `headers`.
    pub all_headers: bool,
    /// HTML tags, emphasis marks, table rules and similar markup.
    pub markup: bool,
}

/// Maximum number of passes of [`Cleaning::stable`].
const PASSES: usize = 16;

impl Cleaning {
    /// The text after one pass.
    pub fn once(self, text: &str, title: &str) -> String {
        clean(text, title, self)
    }

    /// The text after passes that are repeated until nothing changes, at most 16: a line without its address can be a
    /// header, and `&amp;lt;` is `&lt;` first.
    pub fn stable(self, text: &str, title: &str) -> String {
        let mut text = clean(text, title, self);
        for _ in 1..PASSES {
            let next = clean(&text, title, self);
            if next == text {
                break;
            }
            text = next;
        }
        text
    }
}

/// Maximum number of words in a header line.
const HEADER_WORDS: usize = 8;

static LINK: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"!?\[([^\]\n]*)\]\([^)\s]*(?:\s[^)\n]*)?\)").ok());
static URL: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)<?\b(?:https?://|ftp://|www\.)[^\s<>\x22)\]]*[^\s<>\x22)\].,;:!?]>?").ok());
static TAG: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let names = "a|abbr|b|big|blockquote|br|center|code|dd|div|dl|dt|em|font|h[1-6]|hr|i|img|li|ol|p|pre|s|small|\
                 span|strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|tt|u|ul";
    Regex::new(&format!(r"(?i)</?(?:{names})(?:\s[^<>\n]*)?/?>")).ok()
});
/// Characters that HTML writes as entities.
const ENTITIES: [(&str, &str); 7] =
    [("&nbsp;", " "), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&apos;", "'"), ("&amp;", "&")];
static QUOTE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\s*(?:>\s*)+").ok());
// Emphasis marks enclose words, and the closing mark equals the opening one. The asterisk in `5*3` multiplies, and
// underscores inside a name belong to the name.
static EMPHASIS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    // A dot after a closing underscore ends a sentence. In `__init__.py` the name continues instead.
    let behind = |mark: &str| if mark.starts_with('_') { r"($|\s|[.,;:!?)](?:\s|$))" } else { r"($|[^\w*_~`])" };
    let one = |mark: &str| format!(r"(^|[^\w*_~`]){mark}([^\s*_~`](?:[^\n*~`]*?[^\s*_~`])??){mark}{}", behind(mark));
    Regex::new(&[r"\*\*\*", r"\*\*", r"\*", "__", "_", "~~", "```", "``", "`"].map(one).join("|")).ok()
});
static RULE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\s*[-=_*|:+\s]{3,}\s*$").ok());

fn replace(pattern: &Option<Regex>, text: &str, with: &str) -> String {
    pattern.as_ref().map_or_else(|| text.to_owned(), |pattern| pattern.replace_all(text, with).into_owned())
}

/// Emphasis is searched for within this many bytes of a line, because the search takes quadratic time.
const EMPHASIS_BYTES: usize = 2048;

/// Strips emphasis marks. A longer line is cut at blanks, and each part is read alone.
fn without_emphasis(line: String) -> String {
    if line.len() <= EMPHASIS_BYTES {
        return stripped(line);
    }
    let mut out = String::with_capacity(line.len());
    let mut rest = line.as_str();
    while !rest.is_empty() {
        let most = rest.floor_char_boundary(EMPHASIS_BYTES);
        let end = match rest.len() > most {
            true => rest[..most].rfind(char::is_whitespace).map_or(most, |blank| rest.ceil_char_boundary(blank + 1)),
            false => rest.len(),
        };
        out.push_str(&stripped(rest[..end].to_owned()));
        rest = &rest[end..];
    }
    out
}

/// Strips emphasis marks from the outside in, up to four levels of nesting.
fn stripped(mut line: String) -> String {
    let Some(pattern) = &*EMPHASIS else { return line };
    for _ in 0..4 {
        // Each kind of mark has three groups: the text before, inside and after.
        let plain = pattern.replace_all(&line, |found: &regex::Captures<'_>| {
            (1..found.len()).filter_map(|group| Some(found.get(group)?.as_str())).collect::<String>()
        });
        if plain == line {
            break;
        }
        line = plain.into_owned();
    }
    line
}

/// A Markdown heading: up to six `#` and a space.
fn is_heading(line: &str) -> bool {
    let rest = line.trim_start().trim_start_matches('#');
    let marks = line.trim_start().len() - rest.len();
    (1..=6).contains(&marks) && rest.starts_with([' ', '\t'])
}

/// A list item: the line starts with `- `, `* `, `+ ` or `1. `.
fn is_item(line: &str) -> bool {
    let line = line.trim_start();
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ ", "• "].iter().any(|mark| line.starts_with(mark))
        || (rest.len() < line.len() && (rest.starts_with(". ") || rest.starts_with(") ")))
}

/// A line that may be a header without a mark: short, not an item, and without a closing mark.
fn is_short(line: &str) -> bool {
    line.split_whitespace().count() <= HEADER_WORDS
        && !is_item(line)
        && !line.trim_end().ends_with(['.', '!', '?', ';', ':', ','])
}

/// Maximum number of headers in a row. More short lines in a row are a list or a table.
const HEADERS: usize = 2;

/// Marks the headers below the start of a text: short lines between blank lines, with text below. Commands stand
/// between blank lines too, but do not begin with a capital letter.
fn inner_headers(lines: &[&str]) -> Vec<bool> {
    let is_blank = |at: usize| lines.get(at).is_none_or(|line| line.trim().is_empty());
    let is_candidate = |at: usize| {
        let line = lines[at].trim();
        (at == 0 || is_blank(at - 1))
            && is_blank(at + 1)
            && is_short(line)
            && line.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit())
            && line.contains(char::is_alphabetic)
            && !line.contains(['=', '{', '}', '<', '>', '|'])
    };
    let full: Vec<(usize, bool)> =
        (0..lines.len()).filter(|at| !is_blank(*at)).map(|at| (at, is_candidate(at))).collect();
    let mut found = vec![false; lines.len()];
    let mut runs = full.chunk_by(|(_, one), (_, other)| one == other).peekable();
    while let Some(run) = runs.next() {
        let has_text = runs.peek().is_some_and(|next| !is_short(lines[next[0].0]) || is_item(lines[next[0].0]));
        if run[0].1 && run.len() <= HEADERS && has_text {
            run.iter().for_each(|(at, _)| found[*at] = true);
        }
    }
    found
}

/// The text without what `cleaning` removes. One pass; see [`Cleaning::stable`].
fn clean(text: &str, title: &str, cleaning: Cleaning) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut begun = false;
    let all: Vec<&str> = text.lines().collect();
    let inner = if cleaning.all_headers { inner_headers(&all) } else { vec![false; all.len()] };
    let repeats = |line: &str| cleaning.all_headers && !title.trim().is_empty() && line.trim() == title.trim();
    for (line, inner) in all.into_iter().zip(inner) {
        let heading = is_heading(line) || inner || repeats(line);
        let words = line.split_whitespace().count();
        // Only lines at the start of the text count as headers without a mark. Short lines further down are list items
        // and table cells.
        let header = !begun && is_short(line);
        if cleaning.headers && (heading || header) {
            continue;
        }
        begun |= words > 0;
        let mut line = line.to_owned();
        if cleaning.urls {
            line = replace(&LINK, &line, "$1");
            line = replace(&URL, &line, "");
        }
        if cleaning.markup {
            if RULE.as_ref().is_some_and(|rule| rule.is_match(&line)) {
                continue;
            }
            line = replace(&TAG, &line, " ");
            line = replace(&QUOTE, &line, "");
            line = without_emphasis(line).replace('|', " ");
            line = ENTITIES.iter().fold(line, |line, (entity, sign)| line.replace(entity, sign));
        }
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if !line.is_empty() || lines.last().is_some_and(|last| !last.is_empty()) {
            lines.push(line);
        }
    }
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEANING: Cleaning = Cleaning { urls: true, headers: true, all_headers: false, markup: true };

    #[test]
    fn what_reads_badly_goes_and_the_rest_stays() {
        for (text, expected) in [
            ("See https://example.org/a?b=1. It is open.", "See . It is open."),
            ("Read [the guide](https://example.org \"t\") and www.example.org now.", "Read the guide and now."),
            ("# Heading\n\nA firm must report.\n\n## Next\n\nWithin a day.", "A firm must report.\n\nWithin a day."),
            ("Opening hours\n\nThe library opens at nine.", "The library opens at nine."),
            ("The list has:\n- one\n- two", "The list has:\n- one\n- two"),
            ("It is **very** `small`<br/> &amp; __cheap__.", "It is very small & cheap."),
            ("The area is 5*3 = 15 and 4*2 = 8.", "The area is 5*3 = 15 and 4*2 = 8."),
            ("2**10 is 1024, 3**2 is 9; see __init__.py.", "2**10 is 1024, 3**2 is 9; see __init__.py."),
            (
                "Run turnflow run <pipeline> with Vec<String>, x &lt; 5.",
                "Run turnflow run <pipeline> with Vec<String>, x < 5.",
            ),
            ("#5 in the ranking, with 3 million people.", "#5 in the ranking, with 3 million people."),
            ("- Passport\n- Two photos\nBring these soon.", "- Passport\n- Two photos\nBring these soon."),
            ("Of `k` the default is 60; `k` is above **0**.", "Of k the default is 60; k is above 0."),
            ("| a | b |\n|---|---|\n| 1 | 2 |.", "a b\n1 2 ."),
            ("5 * 3 and a_b stay 2 < 3 here.", "5 * 3 and a_b stay 2 < 3 here."),
        ] {
            let cleaning = Cleaning { headers: !text.starts_with('|'), ..CLEANING };
            assert_eq!(cleaning.once(text, ""), expected, "{text}");
        }
    }

    #[test]
    fn headers_within_a_text_are_removed_if_asked() {
        let cleaning = Cleaning { all_headers: true, markup: false, ..CLEANING };
        for (text, expected) in [
            ("It is on.\n\n\n\n Set an alert \n\nYou can set *one*.", "It is on.\n\nYou can set *one*."),
            ("It is on.\n\nStep 2\n\nSet an alert\n\n1. Open it.", "It is on.\n\n1. Open it."),
            ("Log in.\n\nibmcloud login\n\nThen go on.", "Log in.\n\nibmcloud login\n\nThen go on."),
            (
                "It goes at:\n\nNoon\n\n1 pm\n\n2 pm\n\nIt is free.",
                "It goes at:\n\nNoon\n\n1 pm\n\n2 pm\n\nIt is free.",
            ),
            ("It is on.\n\nNext steps", "It is on.\n\nNext steps"),
            ("It is on.\nSet an alert\nIt is off.", "It is on.\nSet an alert\nIt is off."),
            ("A long title of a page that has more than eight words\nIt is on.", "It is on."),
        ] {
            assert_eq!(
                cleaning.once(text, "A long title of a page that has more than eight words"),
                expected,
                "{text}"
            );
        }
    }
}
