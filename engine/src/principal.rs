//! The principals of turns: who asked, and what is known of them now.
//!
//! A record's field `principal` says who asks, as it was when the turn was sent. A turn of a queue may be answered
//! later, and a standing turn is answered again and again. A program that knows its callers gives [`Principals`] to the
//! run (`Options::principals`), so that these turns are answered for the principal as it is now.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

/// What is known now of a principal.
#[derive(Clone, Debug, PartialEq)]
pub enum Present {
    /// Its fields now.
    Is(Map<String, Json>),
    /// It may not ask any more: its turns are answered as for somebody without groups.
    Gone,
    /// Nothing is known until it is seen again: its standing turns wait, and its other turns are answered as they came.
    Unknown,
}

/// What a program knows of the principals whose turns it puts into queues.
pub trait Principals: Send + Sync {
    /// The principal that has these fields in a turn, as it is now.
    fn now(&self, then: &Map<String, Json>) -> Present;

    /// A number that grows whenever a principal has changed or is seen again.
    fn version(&self) -> u64;
}

impl Present {
    /// The fields of `principal` for a turn that had these; `None` if nothing is known.
    pub fn fields(self, then: &Map<String, Json>) -> Option<Map<String, Json>> {
        match self {
            Self::Is(now) => Some(now),
            Self::Gone => Some(then.iter().filter(|(name, _)| *name == "name").map(owned).collect()),
            Self::Unknown => None,
        }
    }
}

fn owned((name, value): (&String, &Json)) -> (String, Json) {
    (name.clone(), value.clone())
}

/// The field `principal` of a record.
pub fn principal_of(fields: &Map<String, Json>) -> Option<&Map<String, Json>> {
    fields.get("principal").and_then(Json::as_object)
}

/// Whether a principal still has everything that it had before: the groups, and the other fields that pipelines compare
/// with those of passages. Otherwise it may not read what was made for it then.
pub fn still_has(now: Option<&Map<String, Json>>, before: &Map<String, Json>) -> bool {
    before.iter().filter(|(name, _)| *name != "name").all(|(name, before)| {
        let now = now.and_then(|now| now.get(name)).unwrap_or(&Json::Null);
        covers(now, before)
    })
}

/// Whether a value has all of an earlier one: each text of a list, each field of an object.
fn covers(now: &Json, before: &Json) -> bool {
    match (now, before) {
        (Json::Array(now), Json::Array(before)) => before.iter().all(|before| now.contains(before)),
        (Json::Array(now), before) => now.contains(before),
        (now, Json::Array(before)) => before.iter().all(|before| before == now),
        (Json::Object(now), Json::Object(before)) => {
            before.iter().all(|(name, before)| covers(now.get(name).unwrap_or(&Json::Null), before))
        }
        (now, before) => now == before,
    }
}

/// Of a turn of a queue: its fields with the principal as it is now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Renewed {
    /// As they were.
    Same,
    /// Other fields. `lost`: the principal has lost something, so the turn's history is not for it.
    Changed {
        /// All fields of the turn.
        fields: Map<String, Json>,
        /// Whether something was lost.
        lost: bool,
    },
    /// Nothing is known of the principal now.
    Unknown,
}

/// The fields of a turn of a queue for the principal as it is now.
pub(crate) fn renewed(principals: &Arc<dyn Principals>, fields: &Map<String, Json>) -> Renewed {
    let Some(then) = principal_of(fields) else { return Renewed::Same };
    match principals.now(then).fields(then) {
        None => Renewed::Unknown,
        Some(now) if now == *then => Renewed::Same,
        Some(now) => {
            let lost = !still_has(Some(&now), then);
            let mut fields = fields.clone();
            fields.insert("principal".to_owned(), now.into());
            Renewed::Changed { fields, lost }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Json) -> Map<String, Json> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn who_has_lost_something_does_not_still_have_it() {
        let still = |now: Json, before: Json| still_has(Some(&object(now)), &object(before));
        let board = json!({"name": "ann", "groups": ["board", "staff"]});
        assert!(still(board.clone(), board.clone()));
        assert!(still(json!({"groups": ["staff", "new", "board"], "lang": "en"}), board.clone()), "more is no loss");
        assert!(still(json!({"groups": ["board"]}), json!({"groups": "board"})), "one text is one group");
        assert!(still(json!({}), json!({"name": "ann", "groups": []})));
        for now in [json!({"groups": ["staff"]}), json!({"groups": "board"}), json!({}), json!({"groups": []})] {
            assert!(!still(now.clone(), board.clone()), "{now}");
        }
        let harbour = json!({"groups": [], "department": "harbour", "desk": {"rooms": [1, 2]}});
        assert!(still(harbour.clone(), harbour.clone()));
        assert!(!still(json!({"groups": [], "department": "office", "desk": {"rooms": [1, 2]}}), harbour.clone()));
        assert!(!still(json!({"groups": [], "department": "harbour", "desk": {"rooms": [2]}}), harbour));
    }

    #[test]
    fn a_turn_is_renewed_for_the_principal_as_it_is_now() {
        struct Known(Present);
        impl Principals for Known {
            fn now(&self, _: &Map<String, Json>) -> Present {
                self.0.clone()
            }

            fn version(&self) -> u64 {
                0
            }
        }
        let fields = object(json!({"x": 1, "principal": {"name": "ann", "groups": ["board", "staff"]}}));
        let of = |present: Present| renewed(&(Arc::new(Known(present)) as Arc<dyn Principals>), &fields);
        let is = |groups: Json| Present::Is(object(json!({"name": "ann", "groups": groups})));
        assert_eq!(of(is(json!(["board", "staff"]))), Renewed::Same);
        assert_eq!(of(Present::Unknown), Renewed::Unknown);
        for (present, principal, lost) in [
            (is(json!(["staff"])), json!({"name": "ann", "groups": ["staff"]}), true),
            (is(json!(["staff", "board", "x"])), json!({"name": "ann", "groups": ["staff", "board", "x"]}), false),
            (Present::Gone, json!({"name": "ann"}), true),
        ] {
            let fields = object(json!({"x": 1, "principal": principal}));
            assert_eq!(of(present), Renewed::Changed { fields, lost });
        }
        let nobody = object(json!({"x": 1, "principal": "ann"}));
        let known = Arc::new(Known(Present::Gone)) as Arc<dyn Principals>;
        assert_eq!(renewed(&known, &nobody), Renewed::Same, "the record names no fields");
    }
}
