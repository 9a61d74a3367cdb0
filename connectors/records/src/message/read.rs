//! Reading of what a mapping gives: the fields of messages and calls, and what is wrong with them.

use jaq_json::{Num, Val};
use serde_json::{Map, Value as Json};

use super::{Call, Item, Message};
use crate::jq::Shortly;
use crate::names::unknown;
use crate::times::seconds;

impl Item {
    /// Reads what a mapping has given.
    ///
    /// # Errors
    ///
    /// It is no object, or a field has another type or is not known.
    pub fn of(value: &Val) -> Result<Self, String> {
        let fields = fields(value)?;
        if fields.iter().any(|(name, _)| name == "messages" || name == "answer") {
            return Call::of(fields).map(|call| Self::Call(Box::new(call)));
        }
        Message::of(fields).map(|message| Self::Message(Box::new(message)))
    }
}

pub(crate) type Fields = Vec<(String, Val)>;

pub(crate) fn fields(value: &Val) -> Result<Fields, String> {
    let Val::Obj(fields) = value else { return Err(format!("the mapping gives {}, and no object", short(value))) };
    let named = |(name, value): (&Val, &Val)| Some((text_of(name)?, value.clone()));
    Ok(fields.iter().filter_map(named).collect())
}

impl Message {
    fn of(fields: Fields) -> Result<Self, String> {
        let mut message = Self::default();
        for (name, value) in fields {
            if matches!(value, Val::Null) {
                continue;
            }
            match &*name {
                // An empty text names nothing.
                "id" => message.id = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "parent" => message.parent = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "conversation" => message.conversation = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "speaker" => message.speaker = Some(id(&name, &value)?),
                "text" => message.text = Some(text_of(&value).ok_or_else(|| wrong(&name, "a text", &value))?),
                "time" if is_blank(&value) => {}
                "time" => message.time = Some(seconds(&value).ok_or_else(|| wrong(&name, "a time", &value))?),
                "order" => message.order = Some(value),
                "version" => message.version = Some(value),
                "turn" => message.turn = Some(turn(&name, &value)?),
                "rank" => message.rank = number(&value).ok_or_else(|| wrong(&name, "a number", &value))? as i64,
                "join" => {
                    message.join = match &value {
                        Val::Arr(keys) => keys.iter().map(|key| id(&name, key)).collect::<Result<_, _>>()?,
                        value => vec![id(&name, value)?],
                    };
                    message.join.retain(|key| !key.is_empty());
                }
                "merge" => message.merge = Some(id(&name, &value)?).filter(|key| !key.is_empty()),
                "last" => message.last = flag(&name, &value)?,
                "removed" => message.removed = flag(&name, &value)?,
                "rewind" => message.rewind = flag(&name, &value)?,
                "starts" => message.starts = flag(&name, &value)?,
                "cut" => message.cut = flag(&name, &value)?,
                "to_agent" => message.to_agent = flag(&name, &value)?,
                "hand_over" => message.hand_over = Some(flag(&name, &value)?),
                "fields" => {
                    let fields = serde_json::from_str(&value.to_string()).ok();
                    message.fields = Some(further(fields.ok_or_else(|| wrong(&name, "an object", &value))?)?);
                }
                other => return Err(unknown(other, "message")),
            }
        }
        Ok(message)
    }
}

/// The further fields of a turn. What a turn says itself cannot be said once more, and would be taken back by
/// [`REMOVED`](crate::REMOVED).
fn further(fields: Box<Map<String, Json>>) -> Result<Box<Map<String, Json>>, String> {
    let is_own = |(name, value): &(&String, &Json)| match name.as_str() {
        "conversation_id" | "turn" | "speaker" | "text" => true,
        crate::REMOVED => value.as_bool() == Some(true) || value.is_string(),
        _ => false,
    };
    match fields.iter().find(is_own) {
        Some((name, _)) => Err(format!("the mapping gives a field `{name}` in `fields`, which turns have themselves")),
        None => Ok(fields),
    }
}

impl Call {
    fn of(fields: Fields) -> Result<Self, String> {
        let mut call = Self::default();
        for (name, value) in fields {
            if matches!(value, Val::Null) {
                continue;
            }
            let message = |value: &Val| Message::of(self::fields(value)?);
            match &*name {
                "id" => call.id = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "conversation" => call.conversation = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "parent" => call.parent = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "guess" => call.guess = flag(&name, &value)?,
                "group" => call.group = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
                "order" => call.order = Some(value),
                "time" if is_blank(&value) => {}
                "time" => call.time = Some(seconds(&value).ok_or_else(|| wrong(&name, "a time", &value))?),
                "messages" => {
                    let Val::Arr(list) = &value else { return Err(wrong(&name, "a list", &value)) };
                    call.messages = list.iter().map(message).collect::<Result<_, _>>()?;
                }
                "answer" => call.answer = Some(message(&value)?),
                other => return Err(unknown(other, "call")),
            }
        }
        Ok(call)
    }
}

pub(crate) fn wrong(name: &str, kind: &str, value: &Val) -> String {
    format!("the mapping gives `{name}` as {}, which is not {kind}", short(value))
}

/// A value in a message, not at length.
pub(crate) fn short(value: &Val) -> String {
    /// Letters that are shown.
    const SHOWN: usize = 60;
    /// Takes the beginning of a text: what is shown, and a letter more.
    struct Beginning(String, usize);
    impl std::fmt::Write for Beginning {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            let more = part.char_indices().take(SHOWN + 1 - self.1);
            let (letters, end) = more.fold((0, 0), |(letters, _), (at, letter)| (letters + 1, at + letter.len_utf8()));
            self.0.push_str(&part[..end]);
            self.1 += letters;
            if self.1 > SHOWN { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut text = Beginning(String::new(), 0);
    let _ = std::fmt::write(&mut text, format_args!("{}", Shortly(value)));
    match text.0.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text.0[..at]),
        None => text.0,
    }
}

pub(crate) fn text_of(value: &Val) -> Option<String> {
    match value {
        Val::TStr(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

pub(crate) fn number(value: &Val) -> Option<f64> {
    match value {
        Val::Num(Num::Int(number)) => Some(*number as f64),
        Val::Num(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

pub(crate) fn is_blank(value: &Val) -> bool {
    matches!(value, Val::TStr(text) if text.trim_ascii().is_empty())
}

/// An id: a text, or a number with all its digits.
pub(crate) fn id(name: &str, value: &Val) -> Result<String, String> {
    match value {
        Val::Num(number) => Ok(number.to_string()),
        value => text_of(value).ok_or_else(|| wrong(name, "a text or a number", value)),
    }
}

pub(crate) fn flag(name: &str, value: &Val) -> Result<bool, String> {
    match value {
        Val::Bool(value) => Ok(*value),
        value => Err(wrong(name, "true or false", value)),
    }
}

fn turn(name: &str, value: &Val) -> Result<u32, String> {
    let number = number(value).or_else(|| text_of(value)?.trim().parse().ok());
    let whole = number.filter(|number| number.fract() == 0.0 && (1.0..f64::from(u32::MAX)).contains(number));
    whole.map(|number| number as u32).ok_or_else(|| wrong(name, "a whole number from 1", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_the_beginning_of_a_value() {
        let text = |length| Val::from("ü".repeat(length));
        let many = || -> Val { std::iter::repeat_n(Val::from(7_isize), 100_000).collect() };
        for (value, shown, letters) in [
            (text(3), "\"üüü\"", 5),
            (text(1_000_000), "\"üüü", 61),
            (many(), "[7,7,7,", 61),
            ([text(2), Val::Null, many()].into_iter().collect(), "[\"üü\",null,[7,7", 61),
            (crate::decode::object([("a", many()), ("b", text(9))]), "{\"a\":[7,7,", 61),
        ] {
            let found = short(&value);
            assert!(found.starts_with(shown) && found.ends_with(if letters == 61 { "…" } else { "\"" }), "{found}");
            assert_eq!(found.chars().count(), letters, "{found}");
        }
    }

    #[test]
    fn further_fields_are_none_that_turns_have() {
        for (fields, own) in [
            (r#"{"team": "x", "removed": false, "timestamp": 5}"#, None),
            (r#"{"text": "x"}"#, Some("text")),
            (r#"{"turn": 1}"#, Some("turn")),
            (r#"{"removed": true}"#, Some("removed")),
        ] {
            let record = format!("{{\"id\": 1, \"fields\": {fields}}}");
            let value = crate::decode::value(record.as_bytes(), &mut Default::default()).unwrap();
            let error = Item::of(&value).err();
            assert_eq!(
                error.as_ref().map(|error| error.contains(&format!("`{}` in", own.unwrap()))),
                own.map(|_| true)
            );
        }
    }
}
