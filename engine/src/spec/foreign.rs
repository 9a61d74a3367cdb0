//! Files in another format than RON: YAML, JSON and TOML are what people write first.

use super::{Diagnostic, Kind, Source, Span, Tree};

/// The fields of a pipeline that an example may begin with.
const FIELDS: [&str; 3] = ["models", "corpora", "nodes"];

/// The diagnostic for a text that is not RON but one of the formats that are known from elsewhere. `tree`: what it is as
/// RON, if it can be read so.
pub(super) fn diagnose(source: usize, file: &Source, tree: Option<&Tree>) -> Option<Diagnostic> {
    let text: &str = &file.text;
    if tree.is_some_and(|tree| !is_json(tree, text)) {
        return None;
    }
    let first = significant(text)?;
    let format = format_of(&file.name, text, first)?;
    let start = first.as_ptr() as usize - text.as_ptr() as usize;
    let span = Span { source, start, end: start + first.trim_end().len() };
    let message = format!("this is {format}, and turnflow reads RON");
    Some(
        Diagnostic::new("not-ron", span, message)
            .label("expected `Pipeline(`")
            .help(format!("in RON, a pipeline begins like this: {}", example(text)))
            .help("`turnflow init` writes a pipeline for your documents"),
    )
}

/// Whether a text that could be read as RON is JSON.
fn is_json(tree: &Tree, text: &str) -> bool {
    matches!(&tree.kind, Kind::Map(_) | Kind::Seq(_)) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// The first line that is neither blank nor a comment.
fn significant(text: &str) -> Option<&str> {
    text.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
}

fn format_of(name: &str, text: &str, first: &str) -> Option<&'static str> {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref() {
        Some("yaml" | "yml") => return Some("YAML"),
        Some("json") => return Some("JSON"),
        Some("toml") => return Some("TOML"),
        _ => {}
    }
    if text.trim_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return Some("JSON");
    }
    // RON begins with a name and a bracket, or with a bracket, and comments in it are of two strokes.
    let line = first.trim_end();
    if line.starts_with(['(', '{']) || line.starts_with("//") || line.starts_with("/*") || has_call(line) {
        return None;
    }
    if line == "---" || line.starts_with("%YAML") || line.starts_with("- ") {
        return Some("YAML");
    }
    if line.starts_with('[') && line.ends_with(']') && line[1..line.len() - 1].chars().all(is_of_section) {
        return Some("TOML");
    }
    let key = line.trim_start().trim_start_matches(|letter: char| letter.is_alphanumeric() || "_-.\"".contains(letter));
    let is_key = key.len() < line.trim_start().len();
    match key.trim_start() {
        rest if is_key && rest.starts_with('=') => Some("TOML"),
        rest if is_key && (rest == ":" || rest.starts_with(": ")) && !text.lines().any(has_call) => Some("YAML"),
        _ => None,
    }
}

fn is_of_section(letter: char) -> bool {
    letter.is_alphanumeric() || "_-. \"[]".contains(letter)
}

/// Whether a line has a name with a bracket, as in `Corpus(`.
fn has_call(line: &str) -> bool {
    line.split('(').skip(1).zip(line.split('(')).any(|(_, before)| before.ends_with(|c: char| c.is_alphanumeric()))
}

/// The beginning of a pipeline with the fields that the text names.
fn example(text: &str) -> String {
    let names = |field: &&&str| {
        text.lines().any(|line| {
            let line = line.trim_start_matches(['[', '{', ' ', '\t', '"']);
            line.strip_prefix(**field).is_some_and(|rest| rest.starts_with([':', '"', ']', '.', ' ', '=']))
        })
    };
    let named: Vec<&str> = FIELDS.iter().filter(names).copied().collect();
    let fields = if named.is_empty() { vec!["corpora", "nodes"] } else { named };
    let shown = |field: &str| match field {
        "models" => "models: {\"NAME\": Onnx(…)}",
        "corpora" => "corpora: {\"NAME\": Corpus(source: …, chunk: …)}",
        _ => "nodes: {\"NAME\": Stdin(), …}",
    };
    format!("Pipeline({}, …)", fields.into_iter().map(shown).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(name: &str, text: &str) -> Option<&'static str> {
        format_of(name, text, significant(text)?)
    }

    #[test]
    fn formats_are_known_by_their_look_or_their_names() {
        for (text, of) in [
            ("# about\ncorpora:\n  docs:\n    source: x\n", Some("YAML")),
            ("---\nname: p\n", Some("YAML")),
            ("name: p\n", Some("YAML")),
            ("- a\n- b\n", Some("YAML")),
            ("[corpora.docs]\npath = \"x\"\n", Some("TOML")),
            ("name = \"p\"\n", Some("TOML")),
            ("{\"corpora\": {}}", Some("JSON")),
            // RON with mistakes.
            ("Pipeline(\n    corpora: {", None),
            ("corpora: { \"docs\": Corpus(source: Stdin()) }", None),
            ("corpora:\n  { \"docs\": Corpus(source: Stdin()) }", None),
            ("(name: \"p\"", None),
            ("{\"docs\": 1,}", None),
            ("Pipeline [", None),
            ("// name: p\nPipeline(", None),
            ("", None),
        ] {
            assert_eq!(format("p.ron", text), of, "{text}");
        }
        assert_eq!(format("p.yml", "Pipeline: x("), Some("YAML"));
        assert_eq!(format("p.JSON", "{"), Some("JSON"));
        assert_eq!(
            example("[models.m]\n[corpora.docs]"),
            "Pipeline(models: {\"NAME\": Onnx(…)}, corpora: {\"NAME\": Corpus(source: …, chunk: …)}, …)"
        );
        assert!(example("x: 1").starts_with("Pipeline(corpora: "));
    }
}
