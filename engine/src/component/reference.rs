//! The tables of fields in the reference, as Markdown.

use std::fmt::Write as _;

use super::fields::{Field, Fields};

/// The table of a configuration, and those of what is inside it.
pub fn tables(fields: &'static Fields) -> String {
    let mut out = String::new();
    table(&mut out, fields);
    let mut told: Vec<&str> = Vec::new();
    let mut waiting = vec![fields];
    while let Some(outer) = waiting.pop() {
        for inner in outer.fields.iter().flat_map(|field| (field.kind)().inside) {
            if !told.contains(&inner.name) {
                told.push(inner.name);
                let what = if inner.is_choice { "one of" } else { "fields" };
                let _ = writeln!(out, "*{}*, {what}: {}\n", inner.name, inner.help);
                table(&mut out, inner);
                waiting.push(inner);
            }
        }
    }
    out
}

fn table(out: &mut String, Fields { is_choice, fields, .. }: &Fields) {
    if fields.is_empty() {
        return;
    }
    if *is_choice && fields.iter().all(|field| field.help.is_empty()) {
        let names: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
        let _ = writeln!(out, "{}.\n", names.join(", "));
        return;
    }
    out.push_str(if *is_choice { "| choice | meaning |\n|---|---|\n" } else { "| field | type | |\n|---|---|---|\n" });
    for field in *fields {
        let (kind, help) = ((field.kind)().words, field.help.replace('|', "\\|"));
        let _ = match (is_choice, kind.as_str()) {
            (true, "") => writeln!(out, "| `{}` | {help} |", field.name),
            (true, kind) => writeln!(out, "| `{}({kind})` | {help} |", field.name),
            (false, kind) => {
                let rest = [default(field), range(field), field.required.then(|| "Required.".to_owned())];
                let said: Vec<String> = [Some(help)].into_iter().chain(rest).flatten().collect();
                writeln!(out, "| `{}` | {} | {} |", field.name, unit(field.name, kind), said.join(" "))
            }
        };
    }
    out.push('\n');
}

/// What the number in a field counts, if its name says it.
fn unit<'a>(name: &str, kind: &'a str) -> &'a str {
    match kind {
        "number" | "whole number" if name.ends_with("_s") => "seconds",
        "whole number" if name.ends_with("_bytes") => "bytes",
        other => other,
    }
}

/// The default, unless the comment says it in words of its own.
fn default(field: &Field) -> Option<String> {
    let kind = (field.kind)();
    // A struct of which every field may be left out: its own table says the defaults.
    let is_struct = kind.inside.iter().any(|inside| !inside.is_choice && inside.name == kind.words);
    if is_struct || field.help.to_lowercase().contains("default") {
        return None;
    }
    let value = (field.default?)();
    Some(match value.as_str() {
        "none" => "Default: none.".to_owned(),
        "true" | "false" => format!("Default {value}."),
        number if number.parse::<f64>().is_ok() => format!("Default {}.", worded(field, number)),
        words if !words.starts_with(|first: char| "\"[{(".contains(first)) && kind.inside.is_empty() => {
            format!("Default: {words}.")
        }
        value => format!("Default `{value}`."),
    })
}

/// The range, unless the comment says it.
fn range(field: &Field) -> Option<String> {
    let (low, high) = (field.range?)();
    let range = match high {
        Some(high) => match worded(field, &high) {
            high if low == "1" && high.ends_with("MiB") => format!("1 byte to {high}"),
            high => format!("{} to {high}", worded(field, &low)),
        },
        None => return Some(format!("At least {}.", worded(field, &low))),
    };
    (!field.help.replace('−', "-").contains(&range)).then(|| format!("From {range}."))
}

/// A number of the field: whole MiB for many bytes.
fn worded(field: &Field, number: &str) -> String {
    match number.parse::<u64>() {
        Ok(bytes) if field.name.ends_with("_bytes") && bytes > 0 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MiB", grouped(&(bytes >> 20).to_string()))
        }
        _ => grouped(number),
    }
}

/// A number with commas.
fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_once('.').map_or((number, None), |(whole, rest)| (whole, Some(rest)));
    let mut text = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    rest.map_or(text.clone(), |rest| format!("{text}.{rest}"))
}
