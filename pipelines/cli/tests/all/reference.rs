//! `pipelines/reference.md` is made of the doc comments of the configurations, so that it
//! says what the code says. `TURNFLOW_GOLDEN=write` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use turnflow::CATALOG;
use turnflow_engine::component::InputPort;
use turnflow_engine::record::PortType;

use crate::support::root;

/// A kind as its table has it.
struct Kind {
    name: &'static str,
    summary: &'static str,
    inputs: &'static [InputPort],
    output: Option<PortType>,
}

/// A field, or a variant of an enum.
struct Field {
    name: String,
    /// Its type; of a variant, the types between its parentheses, or the names of its fields.
    kind: String,
    /// Whether it is a variant with named fields.
    has_names: bool,
    required: bool,
    doc: String,
}

/// What a type's definition says.
struct Definition {
    doc: String,
    fields: Vec<Field>,
    is_enum: bool,
}

/// Every source file of a crate.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// The definitions of a file's public structs and enums that are read from pipeline files.
fn definitions(text: &str) -> BTreeMap<String, Definition> {
    let mut found = BTreeMap::new();
    let (mut doc, mut derives, mut defaults) = (String::new(), false, false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text.trim());
            doc.push(' ');
            continue;
        }
        if line.starts_with("#[") {
            derives |= line.contains("Deserialize");
            defaults |= line.contains("serde(") && line.contains("default");
            continue;
        }
        let is_enum = line.starts_with("pub enum ");
        let name = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
        if let Some(name) = name.filter(|line| derives && line.ends_with("{}")) {
            let name = name.trim_end_matches("{}").trim().to_owned();
            found.insert(name, Definition { doc: doc.trim().to_owned(), fields: Vec::new(), is_enum });
        } else if let Some(name) = name.filter(|line| derives && line.ends_with('{')) {
            let name = name.trim_end_matches('{').trim().to_owned();
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "}").collect();
            let fields = fields(&body, is_enum, defaults);
            found.insert(name, Definition { doc: doc.trim().to_owned(), fields, is_enum });
        }
        (doc, derives, defaults) = (String::new(), false, false);
    }
    found
}

fn fields(body: &[&str], is_enum: bool, all_default: bool) -> Vec<Field> {
    let mut fields: Vec<Field> = Vec::new();
    let (mut doc, mut required, mut renamed) = (String::new(), !all_default, None);
    let mut depth = 0_i32;
    for line in body.iter().map(|line| line.trim()) {
        // The fields of a variant are told with the variant.
        if depth > 0 {
            if let (Some((name, _)), Some(variant)) = (line.split_once(": "), fields.last_mut())
                && !line.starts_with(['/', '#'])
            {
                let separator = if variant.kind.is_empty() { "" } else { ", " };
                variant.kind += &format!("{separator}{name}");
                variant.has_names = true;
            }
            depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
            continue;
        }
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text.trim());
            doc.push(' ');
        } else if line.starts_with("#[") {
            required &= !(line.contains("serde(") && line.contains("default"));
            if let Some((_, rest)) = line.split_once("rename = \"") {
                renamed = rest.split_once('"').map(|(name, _)| name.to_owned());
            }
        } else if !line.is_empty() && !line.starts_with("//") {
            depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
            let line = line.trim_end_matches(['{', ' ', ',']);
            let (name, kind) = if is_enum {
                line.strip_suffix(')').and_then(|line| line.split_once('(')).unwrap_or((line, ""))
            } else {
                line.trim_start_matches("pub ").split_once(": ").unwrap_or((line, ""))
            };
            fields.push(Field {
                name: renamed.take().unwrap_or_else(|| name.to_owned()),
                kind: kind.to_owned(),
                has_names: false,
                required,
                doc: doc.trim().to_owned(),
            });
            (doc, required) = (String::new(), !all_default);
        }
    }
    fields
}

/// The ranges that a file checks its fields for, as `check.range("top", self.top, 1, 100_000)`, in words.
fn ranges(text: &str) -> BTreeMap<String, String> {
    let calls = text.split("check.range(\"").skip(1).filter_map(|rest| rest.split_once(");"));
    let read = |(call, _): (&str, &str)| {
        let parts: Vec<&str> = call.split(", ").collect();
        let [name, value, low, high] = parts[..] else { return None };
        let name = name.trim_end_matches('"');
        if value.trim_start_matches("self.").trim_start_matches("this.") != name {
            return None;
        }
        let low = number(low)?;
        let range = match high {
            "usize::MAX" | "u64::MAX" => format!("At least {low}."),
            high => format!("From {low} to {}.", number(high)?),
        };
        Some((name.to_owned(), range))
    };
    calls.filter_map(read).collect()
}

/// A number of the code as the pages write it: with commas, and without needless decimals.
fn number(code: &str) -> Option<String> {
    let plain = code.replace('_', "");
    let value = plain.parse::<f64>().ok()?;
    let (whole, rest) = plain.split_once('.').unwrap_or((&plain, ""));
    if plain.contains('e') || whole.len() < 4 {
        return Some(value.to_string());
    }
    let digits = whole.char_indices().fold(String::new(), |mut text, (at, digit)| {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
        text
    });
    let rest = rest.trim_end_matches('0');
    Some(if rest.is_empty() { digits } else { format!("{digits}.{rest}") })
}

/// A type in the words of pipeline files.
fn words(kind: &str) -> String {
    let inner = |prefix: &str| kind.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    if let Some(kind) = inner("Option<").or_else(|| inner("Box<")) {
        return words(kind);
    }
    if let Some(kind) = inner("Vec<") {
        return format!("list of {}", words(kind));
    }
    if let Some(kind) = inner("BTreeMap<String, Option<") {
        return format!("{} by name, or `None`", words(kind.trim_end_matches('>')));
    }
    if let Some(kind) = inner("BTreeMap<String, ") {
        return format!("{} by name", words(kind));
    }
    if let Some(kinds) = kind.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return format!("({})", all_words(kinds));
    }
    let word = match kind {
        "String" | "Arc<str>" => "text",
        "bool" => "`true` or `false`",
        "usize" | "u8" | "u16" | "u32" | "u64" | "i32" | "i64" => "whole number",
        "f32" | "f64" => "number",
        "Map<String, Json>" => "values by name",
        "serde_json::Value" | "Operand" => "value",
        "FilePath" => "path",
        "SocketAddr" => "address and port",
        "CorpusRef" => "a corpus's name, or `FromTurn`",
        "Operators" => "operators by name",
        own => return plain(own),
    };
    word.to_owned()
}

/// Types between commas in words.
fn all_words(kinds: &str) -> String {
    kinds.split(", ").map(words).collect::<Vec<_>>().join(", ")
}

/// The name of one of our own types, in words: `VectorFeedback` is "vector feedback".
fn plain(name: &str) -> String {
    assert!(name.chars().all(char::is_alphanumeric), "`{name}` is a type for which `words` has no words");
    let name = name.strip_suffix("Config").unwrap_or(name);
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// The types a field names that are defined by turnflow.
fn named<'a>(kind: &str, known: &'a BTreeMap<String, Definition>) -> Option<(&'a String, &'a Definition)> {
    let outer = ["Option<", "Box<", "Vec<", "BTreeMap<String, "];
    let bare = outer.iter().fold(kind, |kind, outer| kind.trim_start_matches(outer));
    known.get_key_value(bare.trim_end_matches('>'))
}

fn section(out: &mut String, kind: &Kind, text: &str, known: &BTreeMap<String, Definition>) {
    let own = definitions(text);
    let config = own.get(&format!("{}Config", kind.name));
    let config = config.unwrap_or_else(|| panic!("there is no `{}Config`", kind.name));
    let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let head = head.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let _ = writeln!(out, "### {}\n", kind.name);
    let mut summary = kind.summary.to_owned();
    summary[..1].make_ascii_uppercase();
    let _ = writeln!(out, "{summary}.\n");
    if kind.output.is_some() || !kind.inputs.is_empty() {
        let takes: Vec<String> = kind.inputs.iter().map(|port| format!("`{}`: {port}", port.field)).collect();
        let gives = kind.output.map_or("nothing".to_owned(), |port| port.to_string());
        let takes = if takes.is_empty() { "nothing".to_owned() } else { takes.join(", ") };
        let _ = writeln!(out, "Takes {takes}. Gives {gives}.\n");
    }
    let example = head.split("```ron").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.unwrap_or_else(|| panic!("{} has no example at the head of its file", kind.name));
    let _ = writeln!(out, "```ron\n{}\n```\n", example.trim());
    table(out, config, kind.name, known, &ranges(text));
    let mut told: Vec<&String> = Vec::new();
    let mut waiting: Vec<&Definition> = vec![config];
    while let Some(definition) = waiting.pop() {
        let kinds = definition.fields.iter().flat_map(|field| field.kind.split(", "));
        for (name, inner) in kinds.filter_map(|kind| named(kind, known)) {
            if !told.contains(&name) {
                told.push(name);
                let what = if inner.is_enum { "one of" } else { "fields" };
                let _ = writeln!(out, "*{}*, {what}: {}\n", plain(name), inner.doc);
                table(out, inner, name, known, &BTreeMap::new());
                waiting.push(inner);
            }
        }
    }
}

fn table(
    out: &mut String,
    definition: &Definition,
    owner: &str,
    known: &BTreeMap<String, Definition>,
    ranges: &BTreeMap<String, String>,
) {
    if definition.fields.is_empty() {
        return;
    }
    if definition.is_enum && definition.fields.iter().all(|field| field.doc.is_empty()) {
        let names: Vec<String> = definition.fields.iter().map(|field| format!("`{}`", field.name)).collect();
        let _ = writeln!(out, "{}.\n", names.join(", "));
        return;
    }
    let head = if definition.is_enum { "| choice | meaning |\n|---|---|" } else { "| field | type | |\n|---|---|---|" };
    let _ = writeln!(out, "{head}");
    for Field { name, kind, has_names, required, doc } in &definition.fields {
        assert!(!doc.is_empty(), "`{name}` of {owner} has no doc comment");
        let doc = doc.replace('|', "\\|");
        let _ = if definition.is_enum {
            let is_struct = known.get(kind).is_some_and(|inner| !inner.is_enum);
            let inside = if *has_names {
                kind.clone()
            } else if is_struct {
                "…".to_owned()
            } else {
                all_words(kind)
            };
            let choice = if kind.is_empty() { name.clone() } else { format!("{name}({inside})") };
            writeln!(out, "| `{choice}` | {doc} |")
        } else {
            let must = if *required { " Required." } else { "" };
            // Some comments say it already, in words of their own.
            let says = |range: &&String| !doc.contains(range.trim_start_matches("From ").trim_end_matches('.'));
            let range = ranges.get(name).filter(says).map_or(String::new(), |range| format!(" {range}"));
            writeln!(out, "| `{name}` | {} | {doc}{range}{must} |", words(kind))
        };
    }
    out.push('\n');
}

fn generate() -> String {
    let mut known = BTreeMap::new();
    let mut files = Vec::new();
    for directory in ["connectors/readers/src", "engine/src", "operators/src", "connectors/src", "pipelines/gaps/src"] {
        files.extend(sources(&root().join(directory)));
    }
    for (_, text) in &files {
        known.extend(definitions(text));
    }
    let plain = |name, summary| Kind { name, summary, inputs: &[], output: None };
    // As `SINK_PORTS` in `engine/src/plan/resolve/nodes.rs`.
    const RECORDED: &[InputPort] = &[InputPort::one(PortType::Answers).or(PortType::Hits).or(PortType::Queries)];
    let groups: [(&str, Vec<Kind>); 6] = [
        (
            "Operators",
            CATALOG
                .operators
                .iter()
                .map(|k| Kind { name: k.name, summary: k.summary, inputs: k.inputs, output: Some(k.output) })
                .collect(),
        ),
        ("Models", CATALOG.models.iter().map(|k| plain(k.name, k.summary)).collect()),
        ("Chunkers", CATALOG.chunkers.iter().map(|k| plain(k.name, k.summary)).collect()),
        ("Sources of corpora", CATALOG.corpus_sources.iter().map(|k| plain(k.name, k.summary)).collect()),
        (
            "Sources of turns",
            CATALOG
                .turn_sources
                .iter()
                .map(|k| Kind { name: k.name, summary: k.summary, inputs: &[], output: Some(PortType::Turns) })
                .collect(),
        ),
        (
            "Sinks",
            CATALOG
                .sinks
                .iter()
                .map(|k| Kind { name: k.name, summary: k.summary, inputs: RECORDED, output: None })
                .collect(),
        ),
    ];
    let mut out = String::from(
        "# Reference\n\nEvery kind that a pipeline file may name, from the code's own documentation. \
         `turnflow docs NAME` prints one.\n\n",
    );
    for (title, kinds) in &groups {
        let _ = writeln!(out, "## {title}\n");
        for kind in kinds {
            // The file that has the table's entry has the configuration too.
            let marks = [format!("summary: {:?}", kind.summary), format!("    {:?},\n);\n", kind.summary)];
            let file = files.iter().find(|(_, text)| marks.iter().any(|mark| text.contains(mark)));
            let (_, text) = file.unwrap_or_else(|| panic!("no file has {:?}", kind.summary));
            section(&mut out, kind, text, &known);
        }
    }
    out.trim_end().to_owned() + "\n"
}

#[test]
fn the_reference_says_what_the_code_says() {
    let path = root().join("pipelines/reference.md");
    let made = generate();
    if std::env::var_os("TURNFLOW_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "pipelines/reference.md is out of date; write it anew with TURNFLOW_GOLDEN=write");
    for kind in &CATALOG.operators {
        assert!(made.contains(&format!("\n### {}\n", kind.name)), "{} is missing", kind.name);
    }
}
