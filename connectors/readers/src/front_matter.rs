//! The front matter of Markdown files: YAML between two lines.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value as Json};
use serde_saphyr::options::DuplicateKeyPolicy;
use turnflow_engine::metadata::Metadata;
use turnflow_engine::odd_json;

use super::notes;

/// Maximum length of a front matter whose fields are read, in bytes.
const MOST_YAML: usize = 256 << 10;
/// Maximum number of values in it, and of values that aliases repeat.
const MOST_VALUES: usize = 10_000;
const MOST_REPEATED: usize = 256;
/// Maximum depth of the values.
const DEEPEST: usize = 32;

/// What a front matter says of its document.
#[derive(Default)]
pub(super) struct Front {
    /// Empty if there is none.
    pub title: String,
    /// The other fields.
    pub metadata: Metadata,
}

/// Splits off YAML between a first line `---` and a line `---` or `...`, if it is closed. Lines may also be rules between
/// parts of the text: what is between them is front matter if it is a mapping, or nearly one.
pub(super) fn split(text: &str) -> (Option<&str>, &str) {
    let Some((first, rest)) = text.split_once('\n') else { return (None, text) };
    if first.trim_end() != "---" {
        return (None, text);
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if matches!(line.trim_end(), "---" | "...") {
            let front = &rest[..at];
            let is_front = front.trim().is_empty() || has_fields(front);
            let body = || rest[at + line.len()..].trim_start_matches('\n');
            return if is_front { (Some(front), body()) } else { (None, text) };
        }
        at += line.len();
    }
    (None, text)
}

/// Whether most parts of a text between rules are fields. A paragraph behind an empty line is none.
fn has_fields(front: &str) -> bool {
    let (mut fields, mut others, mut was_blank) = (0, 0, false);
    for entry in entries(front) {
        match name(entry) {
            Some(_) => fields += 1,
            None if is_comment(entry) => {}
            None if was_blank => return false,
            None => others += 1,
        }
        was_blank = entry.ends_with("\n\n") || entry.ends_with("\n\r\n");
    }
    let is_mapping = || parsed(front, DuplicateKeyPolicy::FirstWins).is_some_and(|fields| !fields.is_empty());
    // A sentence with a colon is a mapping in YAML, too.
    let may_be = fields > 0 || front.trim_start().starts_with('{');
    fields > others || may_be && front.len() <= MOST_YAML && is_mapping()
}

/// Whether all lines are comments, or empty.
fn is_comment(entry: &str) -> bool {
    entry.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with('#'))
}

/// The name of the field that a part of a front matter sets: at most three words before a colon.
fn name(entry: &str) -> Option<&str> {
    let (name, value) = entry.trim_start_matches("? ").split_once(':')?;
    let bare = name.trim().trim_matches(['"', '\'']);
    let is_name = !bare.is_empty() && !bare.starts_with(['-', '#', '*', '>', '|', '[', '{']) && !bare.contains('\n');
    let is_apart = value.is_empty() || value.starts_with(char::is_whitespace) || name.starts_with('"');
    (is_name && is_apart && bare.split_whitespace().count() <= 3).then(|| name.trim())
}

/// Reads a front matter. A field that is not valid in YAML costs itself: it is what is written, if that is one line, or
/// else left out. A note says so.
pub(super) fn read(front: &str) -> Front {
    if front.len() > MOST_YAML {
        notes::add(format!("the front matter has more than {} kB: its fields are not read", MOST_YAML >> 10));
        return Front::default();
    }
    if let Some(fields) = parsed(front, DuplicateKeyPolicy::Error) {
        return made(fields, front);
    }
    if let Some(fields) = parsed(front, DuplicateKeyPolicy::FirstWins) {
        notes::add(format!("the front matter has a field twice, and the first one counts{}", listed(doubled(front))));
        return made(fields, front);
    }
    let (mut all, mut odd, mut parts) = (Map::new(), Vec::new(), 0);
    for entry in entries(front).take(MOST_VALUES) {
        let (name, fields) = (name(entry), parsed(entry, DuplicateKeyPolicy::FirstWins));
        if let Some(fields) = fields.filter(|fields| name.is_some() || !fields.is_empty()) {
            for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
                if all.contains_key(&name) {
                    odd.push(name);
                } else {
                    all.insert(name, value);
                }
            }
        } else if let Some(name) = name {
            let (_, value) = entry.split_once(':').unwrap_or_default();
            let is_text = is_text(value.trim());
            if name != "title" || !is_text {
                odd.push(name.to_owned());
            }
            if is_text && !all.contains_key(name) {
                all.insert(name.to_owned(), value.trim().into());
            }
        } else if !is_comment(entry) {
            parts += 1;
        }
    }
    if !odd.is_empty() {
        notes::add(format!("fields of the front matter are not valid YAML{}", listed(odd)));
    }
    if parts > 0 {
        notes::add(format!("lines of the front matter are no fields, and are left out: {parts}"));
    }
    made(all, front)
}

/// Names behind a colon.
fn listed(mut names: Vec<String>) -> String {
    names.truncate(8);
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
}

/// The fields that are there more than once.
fn doubled(front: &str) -> Vec<String> {
    let mut names: Vec<&str> = entries(front).filter_map(name).collect();
    names.sort_unstable();
    let mut doubled: Vec<String> =
        names.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0].to_owned()).collect();
    doubled.dedup();
    doubled
}

/// The title and the metadata.
fn made(mut fields: Map<String, Json>, front: &str) -> Front {
    let title = match fields.get("title") {
        Some(Json::String(title)) => title.split_whitespace().collect::<Vec<_>>().join(" "),
        Some(Json::Number(_) | Json::Bool(_)) => as_a_text(front),
        _ => String::new(),
    };
    if !title.is_empty() || fields.get("title").is_some_and(|title| title.is_null() || title.is_string()) {
        fields.remove("title");
    }
    Front { title, metadata: metadata(fields, front) }
}

/// A title that looks like a number, as it is written.
fn as_a_text(front: &str) -> String {
    let value = entries(front).find(|entry| name(entry) == Some("title")).and_then(|entry| entry.split_once(':'));
    let value = value.map_or("", |(_, value)| value.trim());
    value.split(" #").next().unwrap_or_default().trim_end().to_owned()
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
    let is_further = |rest: &str| {
        let line = rest.split('\n').next().unwrap_or_default();
        line.starts_with([' ', '\t', '-', ':', '#', ']', '}']) || line.trim().is_empty()
    };
    let starts = front.match_indices('\n').map(|(at, _)| at + 1).filter(move |at| !is_further(&front[*at..]));
    let mut starts: Vec<usize> = std::iter::once(0).chain(starts).filter(|at| *at < front.len()).collect();
    starts.push(front.len());
    (1..starts.len()).map(move |at| &front[starts[at - 1]..starts[at]])
}

/// The fields of a mapping in YAML.
fn parsed(front: &str, doubles: DuplicateKeyPolicy) -> Option<Map<String, Json>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MOST_VALUES,
            max_nodes: MOST_VALUES,
            max_depth: DEEPEST,
            flow_nesting_limit: DEEPEST,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPEATED },
        duplicate_keys: doubles,
        // The name of a field may be `null`.
        null_as_string: true,
        // `no` is a text, as it is in YAML 1.2.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(front, options).ok()
}

fn metadata(mut fields: Map<String, Json>, front: &str) -> Metadata {
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
            .map(|word| word.strip_prefix('+').unwrap_or(word))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::markdown;

    fn metadata(front: &str) -> Json {
        Json::Object(markdown::read(&format!("---\n{front}\n---\ntext")).metadata.to_json())
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
        assert_eq!(markdown::read("---\nb: 1\n---\n# H").metadata.get("b").unwrap().to_string(), "1");
        assert_eq!(metadata("a: &x [1, 2]\nb: *x\na: 3"), json!({"a": [1, 2], "b": [1, 2]}));
    }

    #[test]
    fn whole_numbers_of_any_size_are_exact() {
        let (one, other) = ("123456789012345678901234567890", "123456789012345678901234567891");
        let front = format!(
            "# {one}\na: {other} # {one}\nb: [{one}, -{one}, +{other}]\nc: &x {{d: {one}}}\ne: *x\nf: 1e30\ng: '{one}'\n\
             h: 18446744073709551615"
        );
        let expected = json!({
            "a": other, "b": [one, format!("-{one}"), other], "c": {"d": one}, "e": {"d": one}, "f": 1e30, "g": one,
            "h": u64::MAX,
        });
        assert_eq!(metadata(&front), expected);
    }

    #[test]
    fn what_is_not_a_mapping_in_yaml_is_no_metadata() {
        for front in ["", "a: [1", "a: *unknown", "a: \"open", "a: .inf", "a: 1e400"] {
            assert_eq!(metadata(front), json!({}), "{front:?}");
            assert_eq!(markdown::read(&format!("---\n{front}\n---\ntext")).text, "text");
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
            assert_eq!(markdown::read(&format!("--- \n{front}\n---\ntext")).title, "A: B");
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
        assert_eq!(markdown::read("---\na: 1\n---\n\n# H\n").text, "# H\n");
        assert_eq!(markdown::read("---\n\njust a rule\n").text, "---\n\njust a rule\n");
        assert_eq!(markdown::read("---").text, "---");
        assert_eq!(markdown::read("# H\n").markup, turnflow_engine::document::Markup::Markdown);
    }

    #[test]
    fn text_between_rules_is_text() {
        for text in [
            "---\n\nFirst.\n\n---\n\nSecond.\n",
            "---\nA paragraph between rules.\n---\nSecond.\n",
            "---\n- one\n- two\n---\nSecond.\n",
            "---\n\nA chapter.\n\n# Head\n\nMore\n...\nSecond\n",
            "---\n**User:** hello\n\n---\n**Assistant:** hi\n",
            "---\n# Slide one\n\n- point\n\n---\n# Slide two\n",
            "---\nText\n\n| a | b |\n|---|---|\n\n---\nSecond\n",
            "---\nFrom: bob\nTo: ann\n\nDear ann, it is here.\n\n---\nSecond\n",
            "---\nNote: the ferry leaves at ten.\nSee below.\n---\nSecond\n",
            "---\nlang: en\n\nNot closed.\n\n## H\n\n---\n\nSecond\n",
            "---\nIn short, this is what we know of it: nothing. [1\n---\nSecond\n",
            "---\n[1, 2]\n---\nSecond\n",
        ] {
            assert_eq!(split(text), (None, text));
        }
        for text in ["---\n---\nx", "---\n\n---\nx", "---\nlang: en\n# note\n---\nx", "---\n# note\n\nlang: en\n---\nx"]
        {
            assert_eq!(split(text).1, "x", "{text}");
        }
    }

    #[test]
    fn titles_are_read_as_yaml() {
        for (front, title) in [
            ("title: >-\n  A folded\n  title\nlang: en", "A folded title"),
            ("title: |\n  A literal title\nlang: en", "A literal title"),
            ("title: A long title\n  goes on\nlang: en", "A long title goes on"),
            ("title: 'It is: a long\n  title'", "It is: a long title"),
            ("title:\n  on the next line", "on the next line"),
            ("\"title\": quoted", "quoted"),
            ("title : spaced", "spaced"),
            ("a: &a anchored\ntitle: *a", "anchored"),
            ("title: \"Caf\\u00e9\\n2\"", "Café 2"),
            ("title: 2026", "2026"),
            ("title: 1.10 # a version", "1.10"),
            ("title: true", "true"),
            ("title: !!str x", "x"),
            ("meta:\n  title: other\ntitle: real", "real"),
            ("title: [a, b]", ""),
            ("title: ~", ""),
        ] {
            let read = read(front);
            assert_eq!(read.title, title, "{front}");
            assert_eq!(read.metadata.get("title").is_some(), front.contains('['), "{front}");
        }
    }

    #[test]
    fn what_is_left_out_is_told() {
        for (front, note) in [
            (
                "lang: en\ngroups: [a]\ngroups: [b]",
                "the front matter has a field twice, and the first one counts: groups",
            ),
            ("lang: en\nx: {a: 1, a: 2}", "the front matter has a field twice, and the first one counts"),
            ("lang: en\na: b\n标题：x", "lines of the front matter are no fields, and are left out: 1"),
            ("? lang\n: en\n? [a]\n: x", "lines of the front matter are no fields, and are left out: 1"),
            ("lang: en\ntitle: \"a\" b", "fields of the front matter are not valid YAML: title"),
            ("lang: en\nlang: de\nb: [1", "fields of the front matter are not valid YAML: lang, b"),
        ] {
            notes::take();
            assert_eq!(read(front).metadata.get("lang").unwrap().to_string(), "en", "{front}");
            assert_eq!(notes::take(), [note], "{front}");
        }
    }
}
