//! Configurations with the attribute, as pipelines use them.

use super::super::{config, reference};
use super::*;
use crate::component::Texts;
use crate::spec::{Diagnostic, Source, Sources, from_str, from_tree, parse};

/// How passages are found.
#[config]
#[derive(Default, PartialEq)]
enum Search {
    /// All are read.
    #[default]
    Exact,
    /// Near ones.
    Near(#[field(within)] Near),
    /// By a program.
    Jq(#[field(hidden)] String),
    /// Again and again.
    Poll {
        /// Time between two.
        #[field(default = 5.0, range = 1.0..=9.0)]
        every_s: f64,
        /// Where.
        #[field(show = host, default = "u")]
        at: String,
        /// How long.
        #[field(unset = "always")]
        until: Option<u32>,
        /// What opens it.
        #[field(hidden, default = "k")]
        key: String,
    },
}

/// The approximate index.
#[config(default)]
#[derive(PartialEq)]
struct Near {
    /// Share to find.
    #[field(default = 0.5, range = 0.0..=1.0)]
    recall: f32,
}

fn host(url: &str) -> String {
    url.rsplit('@').next().unwrap_or_default().to_owned()
}

/// Fields of `Find`.
#[config]
struct FindConfig {
    /// Input node.
    _input: String,
    /// The server.
    #[field(show = host)]
    url: String,
    /// Most passages.
    #[field(default = 1000, range = 1..=100_000)]
    top: usize,
    /// Largest passage.
    #[field(default = 4 << 20, range = 1..)]
    max_bytes: u64,
    /// Newest turns.
    #[field(unset = "all", range = 1..=10)]
    last: Option<usize>,
    /// Weights by name.
    #[field(default)]
    weights: BTreeMap<String, Vec<f32>>,
    /// The search.
    #[field(default, within)]
    search: Search,
    /// Notes for the reader.
    #[field(default = "see above", hidden)]
    notes: String,
}

/// The problems of the ranges of a configuration: code, text at which they are, message and label.
fn problems(text: &str) -> Vec<String> {
    let mut sources = Sources::default();
    let source = sources.add(Source { name: "text".into(), base: Default::default(), text: text.into() });
    let tree = parse(&sources, source).unwrap();
    let config: FindConfig = from_tree(&tree, &sources).unwrap();
    let (mut diagnostics, mut texts) = (Vec::new(), Texts::new());
    let mut check =
        Check { tree: &tree, owner: "find", diagnostics: &mut diagnostics, texts: &mut texts, sources: &sources };
    config.check_ranges(&mut check);
    let told = |found: &Diagnostic| {
        let span = found.span.unwrap();
        format!("{} {:?} {}", found.code, &text[span.start..span.end], found.message)
    };
    diagnostics.iter().map(told).collect()
}

#[test]
fn fields_that_are_left_out_have_their_defaults() {
    let config: FindConfig = from_str(r#"Find(input: "q", url: "u")"#).unwrap();
    assert_eq!((config.top, config.max_bytes, config.last), (1000, 4 << 20, None));
    assert_eq!((config.notes.as_str(), config.search), ("see above", Search::Exact));
    assert_eq!((FindConfig::default_top(), Near::default().recall), (1000, 0.5));
    assert!(from_str::<FindConfig>(r#"Find(input: "q")"#).is_err(), "`url` is required");
    assert!(from_str::<FindConfig>(r#"Find(input: "q", url: "u", tpo: 1)"#).is_err(), "`tpo` is unknown");
    let search: Search = from_str("Poll()").unwrap();
    assert_eq!(search, Search::Poll { every_s: 5.0, at: "u".into(), until: None, key: "k".into() });
}

#[test]
fn values_outside_of_their_ranges_are_told_where_they_are() {
    assert_eq!(problems(r#"Find(input: "q", url: "u", last: 10)"#), [""; 0]);
    let found = problems(r#"Find(input: "q", url: "u", top: 0, max_bytes: 0, last: 11, search: Near(recall: 2.0))"#);
    let expected = [
        r#"out-of-range "0" find: `top` is 0, out of range"#,
        r#"out-of-range "0" find: `max_bytes` is 0, out of range"#,
        r#"out-of-range "11" find: `last` is 11, out of range"#,
        r#"out-of-range "2.0" find: `recall` is 2, out of range"#,
    ];
    assert_eq!(found, expected);
    let found = problems(r#"Find(input: "q", url: "u", search: Poll(every_s: 0.5))"#);
    assert_eq!(found, [r#"out-of-range "0.5" find: `every_s` is 0.5, out of range"#]);
}

#[test]
fn explain_shows_what_is_set_and_no_secret() {
    for (text, shown) in [
        (
            r#"Find(input: "q", url: "a:secret@b")"#,
            r#"url: "b", top: 1000, max_bytes: 4194304, last: all, search: Exact"#,
        ),
        (
            r#"Find(input: "q", url: "u", last: 3, weights: {"a": [1.0, 0.5]}, search: Near())"#,
            r#"url: "u", top: 1000, max_bytes: 4194304, last: 3, weights: {"a": [1, 0.5]}, search: Near(recall: 0.5)"#,
        ),
        (
            r#"Find(input: "q", url: "u", search: Poll(at: "a:secret@b", key: "secret"))"#,
            r#"url: "u", top: 1000, max_bytes: 4194304, last: all, search: Poll(every_s: 5, at: "b", until: always)"#,
        ),
        (
            r#"Find(input: "q", url: "u", search: Jq(".long"))"#,
            r#"url: "u", top: 1000, max_bytes: 4194304, last: all, search: Jq"#,
        ),
    ] {
        assert_eq!(from_str::<FindConfig>(text).unwrap().effective(), shown);
    }
}

#[test]
fn the_tables_have_plain_words() {
    let expected = "\
| field | type | |
|---|---|---|
| `input` | text | Input node. Required. |
| `url` | text | The server. Required. |
| `top` | whole number | Most passages. Default 1,000. From 1 to 100,000. |
| `max_bytes` | bytes | Largest passage. Default 4 MiB. At least 1. |
| `last` | whole number | Newest turns. Default: all. From 1 to 10. |
| `weights` | list of number by name | Weights by name. Default: none. |
| `search` | search | The search. Default `Exact`. |
| `notes` | text | Notes for the reader. Default `\"see above\"`. |

*search*, one of: How passages are found.

| choice | meaning |
|---|---|
| `Exact` | All are read. |
| `Near(…)` | Near ones. |
| `Jq(text)` | By a program. |
| `Poll(every_s, at, until, key)` | Again and again. |

*near*, fields: The approximate index.

| field | type | |
|---|---|---|
| `recall` | number | Share to find. Default 0.5. From 0 to 1. |

";
    assert_eq!(reference::tables(FindConfig::fields()), expected);
}
