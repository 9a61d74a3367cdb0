//! The options of a mapping: the line `#: {…}`, in JSON.

use regex::Regex;

use crate::decode::{FORMS, allowed};
use crate::jq::ProgramError;
use crate::message::{Dates, Options};
use crate::times::named_zone;

/// What begins the line of a program that has its options.
const OPTIONS: &str = "#:";

/// The options of a program.
pub(crate) fn options(code: &str) -> Result<Options, ProgramError> {
    let mut lines = code.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with(OPTIONS));
    let Some((at, line)) = lines.next() else { return Ok(Options::default()) };
    let begins = line.len() - line.trim_start().len() + OPTIONS.len();
    let written = &line[begins..];
    let fails = |column: usize, reason: String| ProgramError { line: at + 1, column, reason };
    if !written.trim_start().starts_with('{') {
        let column = line[..begins].chars().count() + 1;
        return Err(fails(column, "the options are an object, such as `#: {\"decode\": \"csv\"}`".to_owned()));
    }
    if let Some((again, line)) = lines.next() {
        let column = line.chars().count() - line.trim_start().chars().count() + 1;
        let reason = format!("the options are in line {} already: write them in one line", at + 1);
        return Err(ProgramError { line: again + 1, column, reason });
    }
    let options: Options = serde_json::from_str(written).map_err(|error| {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let told = error.to_string();
        let before = line.get(..begins + error.column()).unwrap_or(line);
        let told = told.strip_suffix(&*place).unwrap_or(&told);
        // JSON's words for what serde names in Rust's.
        let words =
            [("a sequence", "a list"), ("a map", "an object"), ("a boolean", "true or false"), ("a string", "a text")];
        let numbers = [("u64", "a whole number"), ("f64", "a number")];
        let told = words.iter().chain(&numbers).fold(told.to_owned(), |told, (word, plain)| {
            told.replace(&format!("expected {word}"), &format!("expected {plain}"))
        });
        let reason = format!("the options are wrong: {told}");
        fails(before.chars().count(), reason)
    })?;
    match wrong(&options) {
        None => Ok(options),
        Some((name, value, reason)) => Err(fails(column(line, name, value.as_deref()), reason)),
    }
}

/// An option that is wrong, with the text that makes it so, and the reason.
type Wrong = (&'static str, Option<String>, String);

/// The first option that is wrong.
fn wrong(options: &Options) -> Option<Wrong> {
    if let Some(form) = &options.decode
        && !FORMS.contains(&&**form)
    {
        let reason = format!("there is no form `{form}`: `decode` is one of {}", FORMS.join(", "));
        return Some(("decode", Some(form.clone()), reason));
    }
    in_lines(options).or_else(|| in_tables(options)).or_else(|| names(options)).or_else(|| {
        let seconds = [("settle_s", options.settle_s), ("burst_s", options.burst_s)];
        let (name, _) = seconds.into_iter().find(|(_, seconds)| !(0.0..=3600.0).contains(seconds))?;
        Some((name, None, format!("`{name}` is a number of seconds from 0 to 3600")))
    })
}

/// What is wrong with how messages begin, and with their parts.
fn in_lines(options: &Options) -> Option<Wrong> {
    let mut named = Vec::new();
    for start in &options.start {
        if start.is_empty() {
            let reason = "`start` is empty, so each line begins a message: describe how a line begins one, such as \
                \"^(?<name>[^:]+): (?<text>.*)$\", or with \"^(?<text>.*)$\" that each line is one";
            return Some(("start", Some(start.clone()), reason.to_owned()));
        }
        match Regex::new(start) {
            Ok(regex) => named.extend(regex.capture_names().flatten().map(str::to_owned)),
            Err(error) => {
                let error = error.to_string();
                let last = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                return Some(("start", Some(start.clone()), format!("`start` is no regular expression: {last}")));
            }
        }
    }
    if options.form() == Some("lines") && options.start.is_empty() {
        return Some(("decode", None, crate::decode::NO_START.to_owned()));
    }
    if options.dates != Dates::No && !named.iter().any(|name| name == "date") {
        return Some(("dates", None, "`dates` needs a part `(?<date>…)` in `start`".to_owned()));
    }
    if let Some(zone) = options.dates.zone()
        && let Err(reason) = named_zone(zone)
    {
        let reason = format!("{reason}: `dates` is true, or the name of a zone such as \"Europe/Berlin\"");
        return Some(("dates", Some(zone.to_owned()), reason));
    }
    let part = options.carry.iter().find(|part| !carries(options, &named, part))?;
    let reason = format!(
        "`carry` names `{part}`, which no line has: for `lines`, `start` names parts by `(?<{part}>…)`, and cues of `vtt` have a `voice`"
    );
    Some(("carry", Some(part.clone()), reason))
}

/// What is wrong with the form of tables.
fn in_tables(options: &Options) -> Option<Wrong> {
    let is_letter = |text: &str| text.len() == 1 && text.is_ascii() && !matches!(text, "\n" | "\r" | "\"" | "\0");
    for (name, value, such) in [("separator", &options.separator, ";"), ("escape", &options.escape, "\\")] {
        if let Some(value) = value.as_ref().filter(|value| !is_letter(value)) {
            let reason =
                format!("`{name}` is one letter of ASCII that is no quote and no end of a line, such as `{such}`");
            return Some((name, Some(value.clone()), reason));
        }
    }
    if options.escape.is_some() && options.escape == options.separator {
        let reason = "`escape` is what stands before a quote, such as `\\`, and not what is between the fields";
        return Some(("escape", options.escape.clone(), reason.to_owned()));
    }
    let is_again = |(at, name): (usize, &String)| options.columns[..at].contains(name).then(|| name.clone());
    let again = options.columns.iter().enumerate().find_map(is_again)?;
    Some(("columns", Some(again.clone()), format!("two columns are named `{again}`: give each a name of its own")))
}

/// What is wrong with the names of files and of variables.
fn names(options: &Options) -> Option<Wrong> {
    if let Some(files) = &options.files {
        let such = "it is a pattern of names without folders, such as `message_*.json`";
        let reason = match files.as_str() {
            "" => Err(format!("`files` is empty: {such}")),
            of if of.contains('/') || of == ".." => Err(format!("`files` names a folder: {such}")),
            of => allowed(of).map(drop),
        };
        if let Err(reason) = reason {
            return Some(("files", Some(files.clone()), reason));
        }
    }
    let name = options.env.iter().find(|name| name.is_empty() || name.contains(['=', '\0']))?;
    let reason = format!("`{name}` is no name of an environment variable: `env` lists names, such as [\"DESK\"]");
    Some(("env", Some(name.clone()), reason))
}

/// Whether records have a part that later ones may take over.
fn carries(options: &Options, named: &[String], part: &str) -> bool {
    match options.form() {
        Some("lines") => named.iter().any(|name| name == part),
        Some("vtt") | None => part == "voice",
        _ => false,
    }
}

/// The column of an option, or of one of its texts, from 1. Of columns, it is the last one with that name.
fn column(line: &str, name: &str, value: Option<&str>) -> usize {
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let key = quoted(name);
    let is_key = |at: &usize| line[at + key.len()..].trim_start().starts_with(':');
    let at = line.match_indices(&key).map(|(at, _)| at).find(is_key).unwrap_or_default();
    let after = (at + key.len()).min(line.len());
    let found = value.and_then(|value| {
        let (rest, value) = (&line[after..], quoted(value));
        let found = if name == "columns" { rest.rfind(&value) } else { rest.find(&value) };
        found.map(|found| after + found)
    });
    line[..found.unwrap_or(at)].chars().count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_its_column() {
        for (line, column, reason) in [
            (r#"#: {"start": "("}"#, 14, "unclosed group"),
            (r#"#: {"start": ["^a", "[" ]}"#, 21, "unclosed character class"),
            (r#"#: {"decode": "nonsense"}"#, 15, "there is no form `nonsense`"),
            (r#"#: {"decode": "lines"}"#, 5, "give `start`"),
            (r#"#: {"decode": "csv", "separator": "ab"}"#, 35, "one letter"),
            (r#"#: {"decode": "csv", "escape": "é"}"#, 32, "one letter"),
            (r#"#: {"files": "[a"}"#, 14, "`files` is no pattern"),
            (r#"#: {"start": "^(?<a>.)", "carry": ["b"]}"#, 36, "`carry` names `b`"),
            (r#"#: {"start": "^(?<day>.)", "dates": true}"#, 28, "`(?<date>…)`"),
            (r#"#: {"start": "^(?<date>.)", "dates": "Fernhill"}"#, 38, "no time zone"),
            ("#: []", 3, "the options are an object"),
            ("  #: 5", 5, "the options are an object"),
            (r#"#: {"start": ""}"#, 14, "each line begins a message"),
            (r#"#: {"start": ["^a", ""]}"#, 21, "each line begins a message"),
            (r#"#: {"start": 5}"#, 15, "a regular expression or a list of them"),
            (r#"#: {"dates": 5}"#, 15, "true, false or the name of a zone"),
            (r#"#: {"skip": "é"}"#, 15, "expected a whole number"),
            (r#"#: {"columns": 5}"#, 16, "expected a list"),
            (r#"#: {"files": 5}"#, 14, "expected a text"),
            (r#"#: {"branch": 5}"#, 15, "expected true or false"),
            (r#"#: {"envs": []}"#, 10, "unknown field `envs`"),
            (r#"#: {"env": ["A=B"]}"#, 13, "`A=B` is no name of an environment variable"),
            (r#"#: {"env": ["A", ""]}"#, 18, "[\"DESK\"]"),
            (r#"#: {"files": ""}"#, 14, "`message_*.json`"),
            (r#"#: {"files": "../.."}"#, 14, "without folders"),
            (r#"#: {"files": "a/*.json"}"#, 14, "without folders"),
            (r#"#: {"columns": ["a", "b", "a"]}"#, 27, "two columns are named `a`"),
            (r#"#: {"separator": "\n"}"#, 18, "no end of a line"),
            (r#"#: {"separator": "\""}"#, 18, "no quote"),
            (r#"#: {"escape": "\""}"#, 15, "no quote"),
            (r#"#: {"separator": ";", "escape": ";"}"#, 33, "not what is between the fields"),
            (r#"#: {"settle_s": -1}"#, 5, "0 to 3600"),
        ] {
            let error = options(&format!("\n{line}\n.")).unwrap_err();
            assert_eq!((error.line, error.column), (2, column), "{line}: {error}");
            assert!(error.reason.contains(reason), "{line}: {error}");
            assert!(!error.reason.contains("column "), "{line}: {error}");
        }
        let twice = options("#: {\"decode\": \"csv\"}\n.\n #: {\"skip\": 1}").unwrap_err();
        assert_eq!((twice.line, twice.column), (3, 2), "{twice}");
        assert!(options(r#"#: {"start": "^(?<a>.)", "carry": ["a"], "separator": "\t", "files": "*.csv"}"#).is_ok());
    }
}
