//! Reads Markdown files. The text is not changed. The title comes from the front matter, or else from the first
//! top-level heading. The other fields of the front matter are the metadata, if it is valid YAML.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value as Json};
use serde_saphyr::options::DuplicateKeyPolicy;
use turnflow_engine::document::Markup;
use turnflow_engine::metadata::Metadata;
use turnflow_engine::odd_json;

use super::{Content, notes};

/// Maximum length of a front matter whose fields are read, in bytes.
const MOST_YAML: usize = 256 << 10;
/// Maximum number of values in it, and of values that aliases repeat.
const MOST_VALUES: usize = 10_000;
const MOST_REPEATED: usize = 256;
/// Maximum depth of the values.
const DEEPEST: usize = 32;

/// Removes the front matter and finds the title and the metadata.
pub fn read(text: &str) -> Content {
    let (front, body) = split_front_matter(text);
    let title = front.and_then(front_title).or_else(|| first_heading(body)).unwrap_or_default();
    let metadata = front.and_then(fields).unwrap_or_default();
    Content { title, text: body.to_owned(), markup: Markup::Markdown, metadata }
}

/// The fields of a front matter, except the title; `None` if it asks for too much. A field that is not valid in YAML costs
/// itself: it is what is written, if that is one line, or else left out. A note says so.
fn fields(front: &str) -> Option<Metadata> {
    if front.len() > MOST_YAML {
        notes::add(format!("the front matter has more than {} kB: its fields are not read", MOST_YAML >> 10));
        return None;
    }
    if let Some(fields) = parsed(front) {
        return Some(metadata(fields, front));
    }
    let (mut all, mut odd) = (Map::new(), Vec::new());
    for entry in entries(front).take(MOST_VALUES) {
        if let Some(fields) = parsed(entry) {
            all.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
        } else if let Some((name, value)) = entry.split_once(':')
            && !name.trim().is_empty()
        {
            let (name, value) = (name.trim(), value.trim());
            odd.push(name);
            if is_text(value) {
                all.insert(name.to_owned(), value.into());
            }
        }
    }
    odd.retain(|name| *name != "title");
    if !odd.is_empty() {
        odd.truncate(8);
        notes::add(format!("fields of the front matter are not valid YAML: {}", odd.join(", ")));
    }
    Some(metadata(all, front))
}

/// Whether a value that is not valid YAML is meant as a text.
fn is_text(value: &str) -> bool {
    // What begins like another kind of value may have lost a part.
    const KINDS: [char; 9] = ['[', '*', '&', '!', '|', '>', '"', '\'', '.'];
    let is_template = value.starts_with("{{");
    let is_one = !value.is_empty() && !value.contains('\n') && value.parse::<f64>().is_err();
    is_one && (is_template || !value.starts_with('{')) && !value.starts_with(KINDS)
}

/// The parts of a front matter that begin with the name of a field, and what is indented below.
fn entries(front: &str) -> impl Iterator<Item = &str> {
    let is_further = |line: &str| line.starts_with([' ', '\t', '-', '#', ']', '}']) || line.trim().is_empty();
    let starts = front.match_indices('\n').map(|(at, _)| at + 1).filter(move |at| !is_further(&front[*at..]));
    let mut starts: Vec<usize> = std::iter::once(0).chain(starts).filter(|at| *at < front.len()).collect();
    starts.push(front.len());
    (1..starts.len()).map(move |at| &front[starts[at - 1]..starts[at]])
}

/// The fields of a mapping in YAML.
fn parsed(front: &str) -> Option<Map<String, Json>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MOST_VALUES,
            max_nodes: MOST_VALUES,
            max_depth: DEEPEST,
            flow_nesting_limit: DEEPEST,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPEATED },
        duplicate_keys: DuplicateKeyPolicy::FirstWins,
        // The name of a field may be `null`.
        null_as_string: true,
        // `no` is a text, as it is in YAML 1.2.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(front, options).ok()
}

fn metadata(mut fields: Map<String, Json>, front: &str) -> Metadata {
    fields.remove("title");
    let mut wide = Wide::new();
    for word in wide_numbers(front) {
        if let Ok(float) = word.parse::<f64>() {
            wide.entry(float.to_bits()).or_default().push_back(word);
        }
    }
    if !wide.is_empty() {
        fields.values_mut().for_each(|value| as_written(value, &mut wide));
    }
    Metadata::of(&fields).0
}

/// Whole numbers of more than 64 bits, by the bits of the number that the reader of YAML makes of them, in their order.
type Wide<'a> = HashMap<u64, VecDeque<&'a str>>;

/// The whole numbers of more than 64 bits in YAML, without those in comments.
fn wide_numbers(front: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || "+-._".contains(letter);
    front.lines().flat_map(move |line| {
        let comment = if line.trim_start().starts_with('#') { Some(0) } else { line.find(" #") };
        line[..comment.unwrap_or(line.len())]
            .split(move |letter| !is_part(letter))
            .filter(|word| odd_json::is_wide(word))
    })
}

/// Replaces numbers that the reader of YAML has made inexact by what is written: a text, as in JSON.
fn as_written(value: &mut Json, wide: &mut Wide<'_>) {
    match value {
        Json::Number(number) if !number.is_i64() && !number.is_u64() => {
            let Some(words) = number.as_f64().and_then(|float| wide.get_mut(&float.to_bits())) else { return };
            // Aliases repeat a number, so the last one stays.
            let word = if words.len() > 1 { words.pop_front() } else { words.front().copied() };
            *value = word.into();
        }
        Json::Array(values) => values.iter_mut().for_each(|value| as_written(value, wide)),
        Json::Object(fields) => fields.values_mut().for_each(|value| as_written(value, wide)),
        _ => {}
    }
}

/// Splits off YAML between a first line `---` and a line `---` or `...`, if it is closed.
fn split_front_matter(text: &str) -> (Option<&str>, &str) {
    let Some((first, rest)) = text.split_once('\n') else { return (None, text) };
    if first.trim_end() != "---" {
        return (None, text);
    }
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
    use serde_json::json;

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

    fn metadata(front: &str) -> Json {
        Json::Object(read(&format!("---\n{front}\n---\ntext")).metadata.to_json())
    }

    #[test]
    fn front_matter_is_metadata() {
        let front = "title: T\nauthor: Ada # note\ntags: [ferry, 'boat']\ndate: 2026-11-25\nversion: 1.10\ndraft: false\n\
                     empty:\nnone: ~\nnull: x\nplace:\n  port: Oban\n  berths: 3\nsummary: >\n  two\n  lines\n1: one\n\
                     when: 2026-11-25 21:56:49\ncode: '007'\nanswer: yes";
        let expected = json!({
            "author": "Ada", "tags": ["ferry", "boat"], "date": "2026-11-25", "version": 1.1, "draft": false,
            "place": {"port": "Oban", "berths": 3}, "summary": "two lines\n", "1": "one", "when": "2026-11-25 21:56:49",
            "code": "007", "answer": "yes", "null": "x",
        });
        assert_eq!(metadata(front), expected);
        assert_eq!(read("---\nb: 1\n---\n# H").metadata.get("b").unwrap().to_string(), "1");
        assert_eq!(metadata("a: &x [1, 2]\nb: *x\na: 3"), json!({"a": [1, 2], "b": [1, 2]}));
    }

    #[test]
    fn whole_numbers_of_any_size_are_exact() {
        let (one, other) = ("123456789012345678901234567890", "123456789012345678901234567891");
        let front = format!(
            "# {one}\na: {other} # {one}\nb: [{one}, -{one}]\nc: &x {{d: {one}}}\ne: *x\nf: 1e30\ng: '{one}'\n\
             h: 18446744073709551615"
        );
        let expected = json!({
            "a": other, "b": [one, format!("-{one}")], "c": {"d": one}, "e": {"d": one}, "f": 1e30, "g": one,
            "h": u64::MAX,
        });
        assert_eq!(metadata(&front), expected);
    }

    #[test]
    fn what_is_not_a_mapping_in_yaml_is_no_metadata() {
        for front in ["", "just text", "- a\n- b", "a: [1", "a: *unknown", "a: \"open", "a: .inf", "a: 1e400"] {
            assert_eq!(metadata(front), json!({}), "{front:?}");
            assert_eq!(read(&format!("---\n{front}\n---\ntext")).text, "text");
        }
    }

    #[test]
    fn a_field_that_is_not_valid_costs_itself_and_is_told() {
        let good = json!({"groups": ["staff"], "lang": "en", "place": {"port": "Oban"}});
        for (bad, value) in [
            ("b: a: b", Some("a: b")),
            ("b: {{ page.title }}", Some("{{ page.title }}")),
            ("b: @x", Some("@x")),
            ("b: %x", Some("%x")),
            ("b: *unknown", None),
            ("b: [1, 2", None),
            ("b: .nan", None),
        ] {
            notes::take();
            let front = format!("groups:\n  - staff\n{bad}\nlang: en\nplace:\n  port: Oban\ntitle: A: B");
            let mut expected = good.clone();
            value.iter().for_each(|value| expected["b"] = (*value).into());
            assert_eq!(metadata(&front), expected, "{bad}");
            assert_eq!(notes::take(), ["fields of the front matter are not valid YAML: b"], "{bad}");
            assert_eq!(read(&format!("--- \n{front}\n---\ntext")).title, "A: B");
        }
    }

    #[test]
    fn aliases_and_nesting_do_not_explode() {
        let mut bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 9].join(", "));
        }
        assert_eq!(metadata(&bomb).as_object().unwrap().keys().collect::<Vec<_>>(), ["a0"]);
        let text = format!("a: &a {}\nb: [{}]", "x".repeat(10_000), vec!["*a"; 300].join(", "));
        assert!(metadata(&text).get("b").is_none());
        for deep in ["[".repeat(100_000), "{a: ".repeat(50_000), "- ".repeat(100_000), "? ".repeat(100_000)] {
            assert_eq!(metadata(&format!("a: {deep}")), json!({}));
            assert_eq!(metadata(&deep), json!({}));
        }
        assert_eq!(metadata(&"a: 1\n".repeat(100_000)), json!({}));
    }

    #[test]
    fn front_matter_is_taken_off_only_when_closed() {
        assert_eq!(read("---\na: 1\n---\n\n# H\n").text, "# H\n");
        assert_eq!(read("---\n\njust a rule\n").text, "---\n\njust a rule\n");
        assert_eq!(read("---").text, "---");
        assert_eq!(read("# H\n").markup, Markup::Markdown);
    }
}
