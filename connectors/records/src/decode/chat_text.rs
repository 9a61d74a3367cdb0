//! Messages of a text: each begins with a line that a regular expression describes, whose named parts are fields. What
//! follows up to the next beginning belongs to its `text`.

use jaq_json::Val;
use regex::Regex;

use super::Records;

pub(super) fn read(text: &str, start: &str, records: &mut Records<'_>) {
    let start = match Regex::new(start) {
        Ok(start) => start,
        Err(error) => return records.take(1, Err(format!("`start` is no regular expression: {error}"))),
    };
    let mut open: Option<(u64, Vec<(String, String)>)> = None;
    let mut close = |open: Option<(u64, Vec<(String, String)>)>| {
        if let Some((number, fields)) = open {
            let fields = fields.into_iter().map(|(name, value)| (Val::from(name), Val::from(value)));
            records.take(number, Ok(Val::obj(fields.collect())));
        }
    };
    for (number, line) in (1..).zip(text.lines()) {
        match (start.captures(line), &mut open) {
            (Some(parts), _) => {
                let named = start.capture_names().flatten();
                let fields = named.filter_map(|name| Some((name.to_owned(), parts.name(name)?.as_str().to_owned())));
                close(open.replace((number, fields.collect())));
            }
            (None, Some((_, fields))) => match fields.iter_mut().find(|(name, _)| name == "text") {
                Some((_, text)) => text.extend(["\n", line]),
                None => fields.push(("text".to_owned(), line.to_owned())),
            },
            (None, None) => {}
        }
    }
    close(open);
}
