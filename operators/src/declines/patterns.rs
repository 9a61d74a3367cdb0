//! Reads the patterns from `grammar.txt`.
//!
//! An entry is `name = pattern`, and indented lines continue it. `_` stands for a space and `{name}` for an earlier
//! entry, so white space may be anywhere. Patterns are those of the crate `regex`, for one clause or sentence in the
//! plain spelling, where a space is before each word: `\w+` is a word, and `.*` is anything.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

const GRAMMAR: &str = include_str!("grammar.txt");
/// The name of the entries that are the patterns of refusals.
const REFUSAL: &str = "refusal";

/// The entries of the file.
struct Entries {
    named: HashMap<&'static str, String>,
    refusals: Vec<String>,
}

static ENTRIES: LazyLock<Entries> = LazyLock::new(|| {
    let mut entries: Vec<(&str, String)> = Vec::new();
    for line in GRAMMAR.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match (line.starts_with(' '), entries.last_mut()) {
            (true, Some((_, pattern))) => pattern.push_str(line.trim()),
            _ => entries.extend(line.split_once('=').map(|(name, pattern)| (name.trim(), pattern.trim().to_owned()))),
        }
    }
    let mut found = Entries { named: HashMap::new(), refusals: Vec::new() };
    for (name, pattern) in entries {
        let mut pattern = pattern.replace('_', " ").replace(r"\w+", "[a-z0-9'.-]+").replace(".*", r"[\x20-~]*");
        for (name, class) in &found.named {
            pattern = pattern.replace(&format!("{{{name}}}"), class);
        }
        match name {
            REFUSAL => found.refusals.push(pattern),
            _ => drop(found.named.insert(name, pattern)),
        }
    }
    found
});

fn compiled(pattern: &str) -> Regex {
    let pattern = RegexBuilder::new(pattern).unicode(false).size_limit(64 << 20).build();
    pattern.expect("the patterns of the file are valid, as a test tells")
}

/// The pattern with this name.
pub(super) fn named(name: &str) -> Regex {
    compiled(ENTRIES.named.get(name).map_or("", |pattern| pattern))
}

/// The patterns of refusals.
pub(super) fn refusals() -> Vec<Regex> {
    ENTRIES.refusals.iter().map(|pattern| compiled(pattern)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_patterns_are_valid_and_all_names_are_known() {
        assert!(refusals().len() > 50);
        let left = Regex::new(r"\{[a-z ]+\}").expect("a pattern");
        for (name, pattern) in &ENTRIES.named {
            compiled(pattern);
            let unknown = left.find(pattern).map(|found| found.as_str());
            assert_eq!(unknown, None, "in `{name}`");
        }
        let begun = Regex::new(r"\{[a-z]").expect("a pattern");
        for pattern in &ENTRIES.refusals {
            assert!(!pattern.contains("ADV") && !begun.is_match(pattern), "{pattern}");
        }
    }
}
