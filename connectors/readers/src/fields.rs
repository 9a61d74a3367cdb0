//! Collects the fields that a file has about itself, such as its author. Their number and size are bounded.

use serde_json::{Map, Value as Json};
use turnflow_engine::metadata::Metadata;

/// Maximum length of a value, in bytes. The rest is cut off.
const MOST_BYTES: usize = 2048;
/// Maximum number of values of a list. The rest is left out.
const MOST_VALUES: usize = 256;

/// The fields of a file. The first value of a field is kept.
#[derive(Debug, Default)]
pub(super) struct Fields(Map<String, Json>);

impl Fields {
    /// Adds a text, with its white space collapsed, unless it is empty.
    pub(super) fn text(&mut self, name: &str, value: &str) {
        let value = tidy(value);
        if !value.is_empty() && !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), value.into());
        }
    }

    /// Adds a list of texts, unless all of them are empty.
    pub(super) fn list<'a>(&mut self, name: &str, values: impl IntoIterator<Item = &'a str>) {
        let values = values.into_iter().take(MOST_VALUES).map(tidy).filter(|value| !value.is_empty());
        let values: Vec<Json> = values.map(Json::from).collect();
        if !values.is_empty() && !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), values.into());
        }
    }

    /// Adds one text, or a list of several.
    pub(super) fn one_or_more(&mut self, name: &str, values: &[String]) {
        match values {
            [value] => self.text(name, value),
            values => self.list(name, values.iter().map(String::as_str)),
        }
    }

    /// Adds keywords as a list; commas and semicolons are between them.
    pub(super) fn keywords(&mut self, value: &str) {
        self.list("keywords", value.split([',', ';']));
    }

    /// The fields as metadata.
    pub(super) fn finish(self) -> Metadata {
        Metadata::of(&self.0).0
    }
}

/// Collapses white space, and cuts what is too long.
pub(super) fn tidy(value: &str) -> String {
    let mut tidy = String::new();
    for word in value.split_whitespace() {
        if !tidy.is_empty() {
            tidy.push(' ');
        }
        tidy.push_str(&word[..word.floor_char_boundary(MOST_BYTES - tidy.len().min(MOST_BYTES))]);
        if tidy.len() >= MOST_BYTES {
            break;
        }
    }
    tidy.truncate(tidy.floor_char_boundary(MOST_BYTES));
    tidy
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_tidied_and_the_first_one_is_kept() {
        let mut fields = Fields::default();
        fields.text("author", "  Ada\n Lovelace ");
        fields.text("author", "Someone else");
        fields.text("empty", " \n");
        fields.keywords("ferry; boat,, sea ");
        fields.one_or_more("subject", &["a".to_owned(), "b".to_owned()]);
        let expected = json!({"author": "Ada Lovelace", "keywords": ["ferry", "boat", "sea"], "subject": ["a", "b"]});
        assert_eq!(Json::Object(fields.finish().to_json()), expected);
    }

    #[test]
    fn long_values_are_cut() {
        let mut fields = Fields::default();
        fields.text("long", &"é".repeat(10_000));
        fields.list("many", std::iter::repeat_n("x", 10_000));
        let metadata = fields.finish();
        assert_eq!(metadata.values("long")[0].to_string().len(), MOST_BYTES);
        assert_eq!(metadata.values("many").len(), MOST_VALUES);
        assert_eq!(tidy(&"word ".repeat(1000)).len(), MOST_BYTES);
    }
}
