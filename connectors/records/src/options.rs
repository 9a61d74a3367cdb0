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
    let Some((at, line)) = code.lines().enumerate().find(|(_, line)| line.starts_with(OPTIONS)) else {
        return Ok(Options::default());
    };
    let written = &line[OPTIONS.len()..];
    let fails = |column: usize, reason: String| ProgramError { line: at + 1, column, reason };
    let options: Options = serde_json::from_str(written)
        .map_err(|error| fails(OPTIONS.len() + error.column(), format!("the options are wrong: {error}")))?;
    match wrong(&options) {
        None => Ok(options),
        Some((name, value, reason)) => Err(fails(column(line, name, value.as_deref()), reason)),
    }
}

/// The first option that is wrong, with the text that makes it so, and the reason.
fn wrong(options: &Options) -> Option<(&'static str, Option<String>, String)> {
    let is_letter = |text: &str| text.len() == 1 && text.is_ascii();
    if let Some(form) = &options.decode
        && !FORMS.contains(&&**form)
    {
        let reason = format!("there is no form `{form}`: `decode` is one of {}", FORMS.join(", "));
        return Some(("decode", Some(form.clone()), reason));
    }
    let mut named = Vec::new();
    for start in &options.start {
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
    if let Some(part) = options.carry.iter().find(|part| !carries(options, &named, part)) {
        let reason = format!(
            "`carry` names `{part}`, which no line has: for `lines`, `start` names parts by `(?<{part}>…)`, and cues of `vtt` have a `voice`"
        );
        return Some(("carry", Some(part.clone()), reason));
    }
    for (name, value) in [("separator", &options.separator), ("escape", &options.escape)] {
        if let Some(value) = value.as_ref().filter(|value| !is_letter(value)) {
            return Some((name, Some(value.clone()), format!("`{name}` is one letter of ASCII, such as `;`")));
        }
    }
    if let Some(files) = &options.files
        && let Err(reason) = allowed(files)
    {
        return Some(("files", Some(files.clone()), reason));
    }
    let seconds = [("settle_s", options.settle_s), ("burst_s", options.burst_s)];
    let (name, _) = seconds.into_iter().find(|(_, seconds)| !(0.0..=3600.0).contains(seconds))?;
    Some((name, None, format!("`{name}` is a number of seconds from 0 to 3600")))
}

/// Whether records have a part that later ones may take over.
fn carries(options: &Options, named: &[String], part: &str) -> bool {
    match options.form() {
        Some("lines") => named.iter().any(|name| name == part),
        Some("vtt") | None => part == "voice",
        _ => false,
    }
}

/// The column of an option, or of one of its texts, from 1.
fn column(line: &str, name: &str, value: Option<&str>) -> usize {
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let key = line.find(&quoted(name)).unwrap_or_default();
    let after = key + name.len() + 2;
    let found = value.and_then(|value| line.get(after..)?.find(&quoted(value)).map(|at| after + at));
    line[..found.unwrap_or(key)].chars().count() + 1
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
            (r#"#: {"settle_s": -1}"#, 5, "0 to 3600"),
        ] {
            let error = options(&format!("\n{line}\n.")).unwrap_err();
            assert_eq!((error.line, error.column), (2, column), "{line}: {error}");
            assert!(error.reason.contains(reason), "{line}: {error}");
        }
        assert!(options(r#"#: {"start": "^(?<a>.)", "carry": ["a"], "separator": "\t", "files": "*.csv"}"#).is_ok());
    }
}
