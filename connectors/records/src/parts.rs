//! The parts of a record that may be mapped by themselves: spans and log records of a batch in OTLP/JSON.

use jaq_json::Val;

use crate::message::text_of;

/// A list of lists of lists: what its parts are called, and those between.
const BATCHES: [(&str, &[&str], &str); 2] = [
    ("resourceSpans", &["scopeSpans", "instrumentationLibrarySpans"], "spans"),
    ("resourceLogs", &["scopeLogs"], "logRecords"),
];

/// Each span and each log record as a batch by itself; nothing, if the record is no batch.
pub(crate) fn parts(record: &Val) -> Vec<Val> {
    let mut parts = Vec::new();
    for (outer, middles, inner) in BATCHES {
        for resource in list(record, outer) {
            for middle in middles {
                for scope in list(resource, middle) {
                    for one in list(scope, inner) {
                        let scope = with(scope, &[], inner, one.clone());
                        let resource = with(resource, middles, middle, scope);
                        parts.push(with(record, &BATCHES.map(|(outer, ..)| outer), outer, resource));
                    }
                }
            }
        }
    }
    parts
}

fn list<'a>(value: &'a Val, name: &str) -> &'a [Val] {
    let Val::Obj(fields) = value else { return &[] };
    match fields.get(&Val::from(name.to_owned())) {
        Some(Val::Arr(list)) => list,
        _ => &[],
    }
}

/// An object without some fields, whose field of a name is a list of one value.
fn with(object: &Val, without: &[&str], name: &str, one: Val) -> Val {
    let Val::Obj(fields) = object else { return object.clone() };
    let is_kept = |field: &Val| text_of(field).is_some_and(|field| field != name && !without.contains(&field.as_str()));
    let kept = fields.iter().filter(|(field, _)| is_kept(field)).map(|(field, value)| (field.clone(), value.clone()));
    let own = (Val::from(name.to_owned()), [one].into_iter().collect());
    Val::obj(kept.chain([own]).collect())
}
