//! A stream of server-sent events: one record with the values of its events, and whether it has its end.

use jaq_json::Val;

use super::{Odd, Records, json, object};

/// The last event of a stream.
const END: &str = "[DONE]";

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    let (mut events, mut data, mut ended) = (Vec::new(), String::new(), false);
    let mut odd = Odd::default();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    for line in text.split('\n').chain([""]) {
        if let Some(part) = line.strip_prefix("data:") {
            let part = part.strip_prefix(' ').unwrap_or(part);
            data.push_str(if data.is_empty() { "" } else { "\n" });
            data.push_str(part);
        } else if line.is_empty() && !data.is_empty() {
            ended |= data == END;
            // An event that is cut off is none.
            if let Ok(event) = json(data.as_bytes(), &mut odd) {
                events.push(event);
            }
            data.clear();
        }
    }
    records.odd.add(Odd { replaced: odd.replaced.min(1), broken: odd.broken.min(1), ..Odd::default() });
    records.take(1, Ok(object([("events", events.into_iter().collect()), ("ended", Val::from(ended))])));
}
