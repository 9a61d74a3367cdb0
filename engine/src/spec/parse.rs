//! Parses RON text into a tree of values with their spans.
//!
//! The `ron` crate does the parsing. Each level is read as borrowed raw values, whose
//! slices of the source provide the spans. Unlike RON's own dynamic value, the tree keeps
//! names (`Bm25(…)`), and duplicate keys are reported.

use std::collections::HashMap;
use std::fmt;

use ron::value::RawValue;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::lexical::{identifier, skip_blank, trim};
use super::syntax::diagnose;
use super::{Diagnostic, Entry, Kind, Name, Sources, Span, Tree};
use crate::odd_json::is_wide;

/// Parses one of the sources. Stops at the first syntax error; reports all duplicate keys.
pub fn parse(sources: &Sources, source: usize) -> Result<Tree, Vec<Diagnostic>> {
    let mut diagnostics = Vec::new();
    match parse_rest(sources, source, &mut diagnostics) {
        Some(tree) if diagnostics.is_empty() => Ok(tree),
        _ => Err(diagnostics),
    }
}

/// Like [`parse`], but reports duplicate keys and returns the tree without them.
pub(super) fn parse_rest(sources: &Sources, source: usize, diagnostics: &mut Vec<Diagnostic>) -> Option<Tree> {
    let text: &str = &sources.get(source).text;
    let mut parser = Parser { source, text, duplicates: Vec::new() };
    let tree = match RawValue::from_ron(text) {
        Ok(whole) => parser.value(whole.get_ron()),
        Err(error) => Err(diagnose(source, text, 0, &error)),
    };
    diagnostics.append(&mut parser.duplicates);
    tree.map_err(|error| diagnostics.push(error)).ok()
}

struct Parser<'a> {
    source: usize,
    text: &'a str,
    duplicates: Vec<Diagnostic>,
}

impl<'a> Parser<'a> {
    fn span(&self, slice: &str) -> Span {
        // Every slice is borrowed from `text`, so the distance is its offset.
        let start = slice.as_ptr() as usize - self.text.as_ptr() as usize;
        Span { source: self.source, start, end: start + slice.len() }
    }

    /// `raw` is one value with surrounding comments or whitespace.
    fn value(&mut self, raw: &'a str) -> Result<Tree, Diagnostic> {
        let raw = trim(raw);
        let name_len = identifier(raw);
        let (name, rest) = raw.split_at(name_len);
        let body = skip_blank(rest);
        let is_literal = matches!(name, "true" | "false" | "None" | "inf" | "NaN")
            || raw.starts_with(['"', '\''])
            || (name == "r" && rest.starts_with(['"', '#']));
        if name == "Some" && body.starts_with('(') {
            return match self.group(body)? {
                Group::Items(mut items) if items.len() == 1 => Ok(items.remove(0)),
                _ => Err(Diagnostic::new("syntax", self.span(raw), "`Some` takes one value")),
            };
        }
        if name_len > 0 && !is_literal {
            let name = Some(Name { text: name.to_owned(), span: self.span(name) });
            if !body.starts_with('(') {
                return Ok(Tree { span: self.span(&raw[..name_len]), kind: Kind::Struct(name, Vec::new()) });
            }
            let span = self.span(raw);
            return Ok(match self.group(body)? {
                Group::Fields(fields) => Tree { span, kind: Kind::Struct(name, fields) },
                Group::Items(items) if items.is_empty() => Tree { span, kind: Kind::Struct(name, Vec::new()) },
                Group::Items(items) => Tree { span, kind: Kind::Tuple(name, items) },
            });
        }
        let span = self.span(raw);
        match raw.as_bytes().first() {
            Some(b'(') => Ok(match self.group(raw)? {
                Group::Fields(fields) => Tree { span, kind: Kind::Struct(None, fields) },
                Group::Items(items) => Tree { span, kind: Kind::Tuple(None, items) },
            }),
            Some(b'[') => match self.group(raw)? {
                Group::Items(items) => Ok(Tree { span, kind: Kind::Seq(items) }),
                Group::Fields(_) => Err(Diagnostic::new("syntax", span, "a list has no keys")),
            },
            Some(b'{') => match self.group(raw)? {
                Group::Fields(entries) => Ok(Tree { span, kind: Kind::Map(entries) }),
                Group::Items(_) => Err(Diagnostic::new("syntax", span, "a map has keys")),
            },
            _ => {
                let mut deserializer = self.deserializer(raw)?;
                let value = ron::Value::deserialize(&mut deserializer)
                    .map_err(|error| self.syntax(raw, &deserializer.span_error(error)))?;
                let len = raw.len() - deserializer.remainder().len();
                let written = raw[..len].trim_end();
                // A number would be inexact.
                let value = if is_wide(written) { ron::Value::String(written.to_owned()) } else { value };
                Ok(Tree { span: self.span(written), kind: Kind::Scalar(value) })
            }
        }
    }

    /// The members of `(…)`, `[…]` or `{…}`.
    fn group(&mut self, raw: &'a str) -> Result<Group, Diagnostic> {
        let mut deserializer = self.deserializer(raw)?;
        let members =
            deserializer.deserialize_any(Members).map_err(|error| self.syntax(raw, &deserializer.span_error(error)))?;
        let Split { keyed, items } = members;
        if !keyed {
            return Ok(Group::Items(
                items.into_iter().map(|(_, raw)| self.value(raw.get_ron())).collect::<Result<_, _>>()?,
            ));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut places: HashMap<String, Span> = HashMap::new();
        let mut from = self.span(raw).start;
        for (key, raw) in items {
            let value_start = self.span(raw.get_ron()).start;
            // The key is the last occurrence of its text before the value.
            let before = &self.text[from..value_start];
            let start = from + before.rfind(key.as_str()).unwrap_or(0);
            let span = Span { source: self.source, start, end: start + key.len() };
            let value = self.value(raw.get_ron())?;
            from = value.span.end;
            if let Some(first) = places.get(&key) {
                self.duplicates.push(
                    Diagnostic::new("duplicate", span, format!("`{key}` is defined twice"))
                        .label("defined again here")
                        .related(*first, "first defined here"),
                );
                continue;
            }
            places.insert(key.clone(), span);
            entries.push(Entry { key: Name { text: key, span }, value });
        }
        Ok(Group::Fields(entries))
    }

    fn deserializer(&self, raw: &'a str) -> Result<ron::Deserializer<'a>, Diagnostic> {
        ron::Deserializer::from_str(raw).map_err(|error| self.syntax(raw, &error))
    }

    fn syntax(&self, raw: &str, error: &ron::error::SpannedError) -> Diagnostic {
        diagnose(self.source, self.text, self.span(raw).start, error)
    }
}

enum Group {
    Fields(Vec<Entry>),
    Items(Vec<Tree>),
}

struct Split<'a> {
    keyed: bool,
    items: Vec<(String, &'a RawValue)>,
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Split<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fields or items")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Split { keyed: false, items: Vec::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(key) = map.next_key_seed(Key)? {
            items.push((key, map.next_value::<&'de RawValue>()?));
        }
        Ok(Split { keyed: true, items })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(raw) = seq.next_element::<&'de RawValue>()? {
            items.push((String::new(), raw));
        }
        Ok(Split { keyed: false, items })
    }
}

/// A field's identifier or a map's string.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Key {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name in quotes")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Source;

    fn sources(text: &str) -> Sources {
        let mut sources = Sources::default();
        sources.add(Source { name: "t.ron".into(), base: ".".into(), text: text.into() });
        sources
    }

    fn slice(text: &str, span: Span) -> &str {
        &text[span.start..span.end]
    }

    #[test]
    fn spans_point_at_names_keys_and_values() {
        let text = "// a pipeline\nPipeline(\n  nodes: { \"a\": Bm25(top: 10, /* no */ corpus: \"é\"), // end\n \"b\": Rrf(inputs: [\"a\", \"x\"]) },\n)";
        let tree = parse(&sources(text), 0).unwrap();
        assert_eq!(tree.name().unwrap().text, "Pipeline");
        let a = tree.get("nodes").unwrap().get("a").unwrap();
        assert_eq!(slice(text, a.name().unwrap().span), "Bm25");
        assert_eq!(slice(text, a.get("top").unwrap().span), "10");
        assert_eq!(slice(text, a.get("corpus").unwrap().span), "\"é\"");
        assert_eq!(slice(text, a.entries().unwrap()[1].key.span), "corpus");
        let b = tree.get("nodes").unwrap().get("b").unwrap();
        let Kind::Seq(items) = &b.get("inputs").unwrap().kind else { panic!("{b:?}") };
        assert_eq!(slice(text, items[1].span), "\"x\"");
        assert_eq!(slice(text, b.span), "Rrf(inputs: [\"a\", \"x\"])");
    }

    #[test]
    fn every_kind_of_value_is_read() {
        for (text, want) in [
            ("Mean", "Mean{}"),
            ("Cuda(0)", "Cuda[0,]"),
            ("Some(3)", "3"),
            ("None", "Option(None)"),
            ("(1, 2)", "[1,2,]"),
            ("(a: 1.5)", "{\"a\":1.5,}"),
            ("{}", "{}"),
            ("[]", "[]"),
            ("Whole()", "Whole{}"),
            ("true", "Bool(true)"),
            ("-3", "-3"),
            ("\"a\\\"b\"", "String(\"a\\\"b\")"),
            ("r#\"raw\"#", "String(\"raw\")"),
            ("trueish", "trueish{}"),
        ] {
            let tree = parse(&sources(text), 0).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(tree.canonical(), want, "{text}");
        }
    }

    #[test]
    fn all_duplicates_are_told_with_the_first_place() {
        let text = "{\"a\": 1, \"b\": 2, \"a\": 3, \"b\": 4}";
        let errors = parse(&sources(text), 0).unwrap_err();
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0].span.unwrap().start, text.rfind('a').unwrap());
        assert_eq!(errors[0].related.as_ref().unwrap().0.start, 2);
    }

    #[test]
    fn syntax_errors_have_a_place() {
        let text = "Pipeline(\n  nodes: {\n    \"a\": Bm25(top: ),\n  },\n)";
        let errors = parse(&sources(text), 0).unwrap_err();
        assert_eq!(errors[0].code, "syntax");
        assert_eq!(sources(text).line_column(errors[0].span.unwrap()).0, 3);
    }
}
