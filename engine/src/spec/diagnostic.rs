//! Diagnostics: an error in a pipeline file, its position, and how to fix it.

use std::path::PathBuf;

use super::Span;

/// One error.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Stable, kebab-case: `unknown-operator`.
    pub code: &'static str,
    /// What is wrong, in one sentence.
    pub message: String,
    /// Where; `None` if the error concerns the whole file.
    pub span: Option<Span>,
    /// Printed next to the underlined source: what was expected.
    pub label: String,
    /// A second relevant position with its label, such as the first definition of a duplicate.
    pub related: Option<(Span, String)>,
    /// How to fix it: a did-you-mean, or the list of choices.
    pub help: Vec<String>,
    /// The path, if the error is a missing file or directory. It may be created later.
    pub missing: Option<PathBuf>,
}

impl Diagnostic {
    /// An error at a span.
    pub fn new(code: &'static str, span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            span: span.into(),
            label: String::new(),
            related: None,
            help: Vec::new(),
            missing: None,
        }
    }

    /// Sets the label next to the source: what was expected.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds a line of help.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Adds a second position with a label.
    pub fn related(mut self, span: Span, word: impl Into<String>) -> Self {
        self.related = Some((span, word.into()));
        self
    }

    /// Adds a did-you-mean if one of the choices is similar, otherwise the list of choices.
    pub fn choices<'a>(self, given: &str, choices: impl IntoIterator<Item = &'a str>) -> Self {
        let choices: Vec<&str> = choices.into_iter().collect();
        // Comparing against very many names for each error is too slow.
        if choices.len() > COMPARED {
            return self.help("`turnflow docs` lists the choices");
        }
        if let Some(near) = did_you_mean(given, choices.iter().copied()) {
            return self.help(format!("did you mean `{near}`?"));
        }
        match choices.as_slice() {
            [] => self,
            many if many.len() > LISTED => self.help("`turnflow docs` lists the choices"),
            choices => self.help(format!("available: {}", quoted(choices))),
        }
    }
}

/// With more choices than this, no similar name is searched for.
const COMPARED: usize = 1000;
/// With more choices than this, a message does not list them.
const LISTED: usize = 15;

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The choice most similar to `given`: the smallest Damerau-Levenshtein distance, ignoring case.
/// `None` if every distance exceeds a third of the length.
pub fn did_you_mean<'a>(given: &str, choices: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = given.to_lowercase();
    choices
        .into_iter()
        .map(|choice| {
            let other = choice.to_lowercase();
            let contained = lower.len() >= 3 && (other.starts_with(&lower) || lower.starts_with(&other));
            let distance = strsim::damerau_levenshtein(&lower, &other);
            (if contained { distance.min(1) } else { distance }, choice)
        })
        .filter(|(distance, choice)| *distance <= (choice.len().max(given.len()) / 3).max(1) && *distance < given.len())
        // On equal distance, the choice with the longer common prefix wins.
        .min_by_key(|(distance, choice)| {
            let other = choice.to_lowercase();
            let alike = lower.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
            (*distance, std::cmp::Reverse(alike))
        })
        .map(|(_, choice)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let operators = ["Bm25", "Dense", "Rrf", "ExtractiveAnswer"];
        for (given, want) in [
            ("bm25", Some("Bm25")),
            ("Bm52", Some("Bm25")),
            ("Dens", Some("Dense")),
            ("Extractive", Some("ExtractiveAnswer")),
            ("Summarise", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(given, operators), want, "{given}");
        }
    }
}
