//! Aliases of corpora: further names by which a turn's `collection` may name a corpus.
//!
//! Published task files name their collections after the index that was searched, such as
//! `mt-rag-clapnq-elser-512-100-20240503`. With `aliases: ["mt-rag-clapnq-*"]`, the corpus `clapnq`
//! answers such turns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

/// Another name of a corpus. One `*` stands for any text, also for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    before: String,
    /// The text after the `*`; `None` for a name without one.
    after: Option<String>,
}

impl Alias {
    /// An alias as it is written.
    ///
    /// # Errors
    ///
    /// The text is empty or has more than one `*`.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (before, after) = match text.split_once('*') {
            Some((before, after)) => (before.to_owned(), Some(after.to_owned())),
            None => (text.to_owned(), None),
        };
        if text.is_empty() {
            return Err("an alias cannot be empty");
        }
        if after.as_ref().is_some_and(|after| after.contains('*')) {
            return Err("an alias can contain only one `*`");
        }
        Ok(Self { before, after })
    }

    /// Whether it contains a `*`.
    pub fn is_pattern(&self) -> bool {
        self.after.is_some()
    }

    /// Whether it stands for this name.
    pub fn matches(&self, name: &str) -> bool {
        match &self.after {
            None => self.before == name,
            Some(after) => name.strip_prefix(&*self.before).is_some_and(|rest| rest.ends_with(&**after)),
        }
    }

    /// Whether neither alias takes precedence for a name that both match. A name without `*` takes
    /// precedence over a pattern.
    pub fn clashes(&self, other: &Self) -> bool {
        let nested = |a: &str, b: &str, is_part: fn(&str, &str) -> bool| is_part(a, b) || is_part(b, a);
        match (&self.after, &other.after) {
            (None, None) => self.before == other.before,
            // Two such patterns match a common name exactly if their ends can be nested.
            (Some(after), Some(others)) => {
                nested(&self.before, &other.before, |a, b| a.starts_with(b))
                    && nested(after, others, |a, b| a.ends_with(b))
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.before)?;
        self.after.as_ref().map_or(Ok(()), |after| write!(f, "*{after}"))
    }
}

impl<'de> Deserialize<'de> for Alias {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The aliases of all corpora of a plan, and which corpora have the same documents. Compared by the aliases.
#[derive(Clone, Debug, Default)]
pub struct Aliases {
    all: Vec<(Alias, Arc<str>)>,
    /// For each corpus, the first one with its source.
    first_of_source: BTreeMap<Arc<str>, Arc<str>>,
}

impl PartialEq for Aliases {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}
impl Eq for Aliases {}

impl Aliases {
    /// The aliases, each with its corpus.
    pub fn new(aliases: impl IntoIterator<Item = (Alias, Arc<str>)>) -> Self {
        let mut aliases: Vec<_> = aliases.into_iter().collect();
        // Names without `*` take precedence.
        aliases.sort_by_key(|(alias, _)| alias.is_pattern());
        Self { all: aliases, first_of_source: BTreeMap::new() }
    }

    /// Adds the sources of all corpora: corpora with equal ones have the same documents, cut in several ways.
    #[must_use]
    pub fn with_sources<S: Ord>(mut self, sources: impl IntoIterator<Item = (Arc<str>, S)>) -> Self {
        let mut first: BTreeMap<S, Arc<str>> = BTreeMap::new();
        for (corpus, source) in sources {
            let name = first.entry(source).or_insert_with(|| corpus.clone()).clone();
            self.first_of_source.insert(corpus, name);
        }
        self
    }

    /// The name under which passages of a corpus are told from those of others, whose documents may have the same ids: that of
    /// the first corpus with its source. `None` if no corpus has another source.
    pub fn told_apart(&self, corpus: &str) -> Option<&Arc<str>> {
        let name = self.first_of_source.get(corpus)?;
        self.first_of_source.values().any(|other| other != name).then_some(name)
    }

    /// The corpus that has an alias for this name.
    pub fn corpus(&self, name: &str) -> Option<&Arc<str>> {
        self.all.iter().find(|(alias, _)| alias.matches(name)).map(|(_, corpus)| corpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(text: &str) -> Alias {
        Alias::parse(text).unwrap()
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, want) in [
            ("mt-rag-clapnq-*", "mt-rag-clapnq-elser-512-100-20240503", true),
            ("mt-rag-clapnq-*", "mt-rag-clapnq-", true),
            ("mt-rag-clapnq-*", "mt-rag-clapnq", false),
            ("a*b", "ab", true),
            ("a*a", "a", false),
            ("ibmcloud", "ibmcloud", true),
            ("ibmcloud", "IBMcloud", false),
            ("*", "", true),
        ] {
            assert_eq!(alias(pattern).matches(name), want, "{pattern} {name}");
            assert_eq!(alias(pattern).to_string(), pattern);
        }
        assert!(Alias::parse("").is_err() && Alias::parse("a*b*").is_err());
    }

    /// Why it exists: two patterns clash exactly if some name matches both, which is tried here on all
    /// short names.
    #[test]
    fn a_clash_is_a_name_that_both_match() {
        let texts = |length: u32| (0..3_u32.pow(length)).map(move |n| (0..length).map(move |at| n / 3_u32.pow(at) % 3));
        let names: Vec<String> =
            (0..7).flat_map(texts).map(|digits| digits.map(|d| ['a', 'b', 'c'][d as usize]).collect()).collect();
        let patterns = ["a*", "b*", "ab*", "*a", "*ba", "a*b", "ab*b", "a*ab", "*", "c*c"].map(alias);
        for one in &patterns {
            for other in &patterns {
                let both = names.iter().any(|name| one.matches(name) && other.matches(name));
                assert_eq!(one.clashes(other), both, "{one} {other}");
            }
        }
        assert!(alias("a").clashes(&alias("a")) && !alias("a").clashes(&alias("a*")));
    }

    #[test]
    fn a_name_takes_precedence_over_a_pattern() {
        let aliases = Aliases::new([(alias("a*"), "wide".into()), (alias("ab"), "exact".into())]);
        assert_eq!(aliases.corpus("ab").map(|name| &**name), Some("exact"));
        assert_eq!(aliases.corpus("abc").map(|name| &**name), Some("wide"));
        assert_eq!(aliases.corpus("b"), None);
    }

    #[test]
    fn corpora_with_one_source_have_the_same_documents() {
        let of = |sources: &[(&str, u8)]| {
            let sources = sources.iter().map(|(corpus, source)| (Arc::from(*corpus), *source));
            Aliases::default().with_sources(sources.collect::<Vec<_>>())
        };
        let one = of(&[("parts", 1), ("whole", 1)]);
        assert_eq!((one.told_apart("parts"), one.told_apart("whole")), (None, None));
        let two = of(&[("a", 1), ("b", 2), ("c", 1)]);
        let told = |corpus: &str| two.told_apart(corpus).map(|name| &**name);
        assert_eq!([told("a"), told("b"), told("c"), told("d")], [Some("a"), Some("b"), Some("a"), None]);
    }
}
