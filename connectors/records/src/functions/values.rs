//! Values of OTLP, and texts of contents with parts, which nearly every record of a log of models has.

use jaq_json::Val;

use super::{cut, looked_at};
use crate::decode::object;
use crate::jq;

/// The types of parts that are texts.
const TEXTS: &[&str] =
    &["text", "input_text", "output_text", "summary_text", "input_audio", "output_audio", "audio", "refusal"];

/// What is told of messages of which nothing can be read.
const CUT: &str = "the messages are JSON that was cut off before there was a text: have the program that sends them record \
     longer attributes (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT, OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT)";

/// So many fields are compared with a name sooner than the name is made a key.
const FEW: usize = 12;

/// A text, which is copied.
fn text_of(value: &Val) -> Option<String> {
    looked_at(value);
    crate::message::text_of(value)
}

/// The field of an object, unless it is null or false.
fn field<'a>(value: &'a Val, name: &str) -> Option<&'a Val> {
    named(value, name).filter(|found| !matches!(found, Val::Null | Val::Bool(false)))
}

/// The field of an object.
fn named<'a>(value: &'a Val, name: &str) -> Option<&'a Val> {
    let Val::Obj(fields) = value else { return None };
    if fields.len() > FEW {
        return fields.get(&Val::from(name.to_owned()));
    }
    let is_it = |(key, _): &(&Val, &Val)| matches!(key, Val::TStr(key) if ***key == *name.as_bytes());
    fields.iter().find(is_it).map(|(_, found)| found)
}

/// Whether a text begins with one of these.
pub(super) fn begins(text: &Val, beginnings: &Val) -> bool {
    let (Val::TStr(text), Val::Arr(beginnings)) = (text, beginnings) else { return false };
    jq::steps(1 + beginnings.len() as u64 / 16);
    let begins = |one: &bytes::Bytes| {
        jq::steps(one.len() as u64 / 256);
        text.starts_with(one)
    };
    beginnings.iter().any(|one| matches!(one, Val::TStr(one) if begins(one)))
}

/// The value of an attribute in OTLP/JSON.
pub(super) fn otlp_value(value: &Val) -> Val {
    jq::steps(1);
    let Val::Obj(fields) = value else { return value.clone() };
    // Of one that has several, the first one counts, as it does for who reads it as protobuf.
    let Some((name, inner)) = fields.iter().next() else { return Val::Null };
    let list = |inner: &Val| match field(inner, "values") {
        Some(Val::Arr(list)) => list.clone(),
        _ => Default::default(),
    };
    match text_of(name).as_deref() {
        Some("stringValue" | "boolValue" | "doubleValue") => inner.clone(),
        Some("intValue") => match text_of(inner).and_then(|digits| digits.parse::<isize>().ok()) {
            Some(number) => Val::from(number),
            None => inner.clone(),
        },
        Some("arrayValue") => {
            let values: Vec<Val> = list(inner).iter().map(otlp_value).collect();
            jq::bytes(32 * values.len() as u64);
            values.into_iter().collect()
        }
        Some("kvlistValue") => by_name(&list(inner)),
        _ => Val::Null,
    }
}

/// The values of a list of names and values.
fn by_name(list: &[Val]) -> Val {
    jq::steps(list.len() as u64);
    jq::bytes(112 * list.len() as u64);
    let named = list.iter().filter_map(|one| {
        let key = field(one, "key").filter(|key| matches!(key, Val::TStr(_)))?;
        Some((key.clone(), field_or_null(one, "value")))
    });
    Val::obj(named.collect())
}

fn field_or_null(value: &Val, name: &str) -> Val {
    named(value, name).map_or(Val::Null, otlp_value)
}

/// The attributes of a span, a resource or a log record in OTLP/JSON, by name.
///
/// # Errors
///
/// They are no list.
pub(super) fn attributes(value: &Val) -> Result<Val, String> {
    match field(value, "attributes") {
        None => Ok(object([])),
        Some(Val::Arr(list)) => Ok(by_name(list)),
        Some(_) => Err("the attributes are no list".to_owned()),
    }
}

/// The text of a content: a text, or its parts that are texts, each on a line of its own. What a model thinks is none.
pub(super) fn parts_text(content: &Val) -> String {
    jq::steps(1);
    match content {
        Val::TStr(_) => text_of(content).unwrap_or_default(),
        Val::Arr(parts) => {
            jq::steps(2 * parts.len() as u64);
            let texts = parts.iter().map(part_text).filter(|text| !text.is_empty());
            let text = texts.collect::<Vec<_>>().join("\n");
            jq::bytes(text.len() as u64);
            text
        }
        Val::Obj(_) => {
            let inner = ["parts", "text", "content", "value"].iter().find_map(|name| field(content, name));
            inner.map(parts_text).unwrap_or_default()
        }
        _ => String::new(),
    }
}

fn part_text(part: &Val) -> String {
    if let Val::TStr(_) = part {
        return text_of(part).unwrap_or_default();
    }
    let is_thought = matches!(field(part, "thought"), Some(Val::Bool(true)));
    let is_text = match field(part, "type") {
        Some(kind) => text_of(kind).is_some_and(|kind| TEXTS.contains(&&*kind)),
        None => matches!(part, Val::Obj(_)),
    };
    let inner = ["text", "content", "transcript", "refusal"].iter().find_map(|name| field(part, name));
    inner.filter(|_| is_text && !is_thought).map(parts_text).unwrap_or_default()
}

/// A text that is a list, an object, a text or null in JSON, as what it means; anything else as it is.
pub(super) fn meant(value: &Val) -> Val {
    looked_at(value);
    let Val::TStr(text) = value else { return value.clone() };
    let first = text.strip_prefix(b" ").unwrap_or(text).first();
    if text.trim_ascii() == b"null" {
        return Val::Null;
    }
    if !matches!(first, Some(b'[' | b'{' | b'"')) {
        return value.clone();
    }
    jq::parsed(text).unwrap_or_else(|_| value.clone())
}

/// The text of a content, which may be parts as JSON in a text.
pub(super) fn content_text(content: &Val) -> String {
    match content {
        Val::TStr(text) if text.starts_with(b"[{") => {
            let value = match meant(content) {
                Val::TStr(text) => cut::mended(&text).unwrap_or(Val::Null),
                value => value,
            };
            let of_parts = parts_text(&value);
            if of_parts.is_empty() { text_of(content).unwrap_or_default() } else { of_parts }
        }
        content => parts_text(content),
    }
}

/// What messages call what they say.
const CONTENTS: &[&str] = &["content", "parts", "text"];

/// What an object that is no message itself says, as programs of all kinds name it.
fn within<'a>(value: &'a Val, speaker: &Val) -> Option<&'a Val> {
    if CONTENTS.iter().chain(&["role", "message", "kwargs"]).any(|name| field(value, name).is_some()) {
        return None;
    }
    let names: &[&str] = match text_of(speaker).as_deref() {
        Some("agent") => &["response", "answer", "result", "completion", "generated_text"],
        _ => &["question", "query", "prompt"],
    };
    names
        .iter()
        .find_map(|name| field(value, name))
        .filter(|inner| matches!(inner, Val::TStr(_) | Val::Obj(_) | Val::Arr(_)))
}

/// Who speaks, by the name of a role or of a class of messages, such as `AIMessageChunk`. What a model generated is a class
/// that names nobody.
fn speaker_of(name: &str) -> Option<String> {
    let class = name.strip_suffix("Chunk").unwrap_or(name);
    let class = class.strip_suffix("Message").filter(|class| !class.is_empty()).unwrap_or(class);
    (!class.ends_with("Generation")).then(|| super::role_of(class))
}

/// The messages of a list, of an object that has one, or of a text that is one question; each may be JSON in a text.
/// `speaker`: who says what names nobody. Of JSON that was cut off, what is whole, and the text in which it was cut.
///
/// # Errors
///
/// It was cut off before there was a text.
pub(super) fn messages_of(value: &Val, speaker: &Val) -> Result<Val, String> {
    let mut value = meant(value);
    let mended = match &value {
        Val::TStr(text) if cut::is_of_messages(text) => {
            Some(cut::mended(text).filter(|value| !matches!(value, Val::TStr(_))).ok_or_else(|| CUT.to_owned())?)
        }
        _ => None,
    };
    let is_cut = mended.is_some();
    value = mended.unwrap_or(value);
    if let Val::Obj(_) = value {
        let inner = ["messages", "choices", "generations", "input"].iter().find_map(|name| field(&value, name));
        let inner = inner.or_else(|| field(&value, "output").filter(|list| matches!(list, Val::Arr(_))));
        value = match inner {
            Some(inner) => inner.clone(),
            None if is_cut => [value].into_iter().collect(),
            None => match within(&value, speaker) {
                Some(inner) => return messages_of(inner, speaker),
                None => [value].into_iter().collect(),
            },
        };
    }
    let said = |speaker: Val, text: String| {
        jq::steps(8);
        jq::bytes(3 * 112 + text.len() as u64);
        match is_cut {
            true => object([("speaker", speaker), ("text", Val::from(text)), ("cut", Val::from(true))]),
            false => object([("speaker", speaker), ("text", Val::from(text))]),
        }
    };
    let one = |message: &Val| match message {
        Val::Obj(_) => {
            let message = field(message, "message").filter(|inner| matches!(inner, Val::Obj(_))).unwrap_or(message);
            let class = field(message, "id").and_then(|id| if let Val::Arr(path) = id { path.last() } else { None });
            // LangChain's form of what it stores.
            let stored = field(message, "kwargs").filter(|inner| matches!(inner, Val::Obj(_)));
            let (message, class) = stored.map_or((message, None), |inner| (inner, class));
            let named = ["role", "type"].iter().find_map(|name| field(message, name)).or(class);
            let named = named.and_then(text_of).and_then(|name| speaker_of(&name));
            let content = CONTENTS.iter().find_map(|name| field(message, name));
            let speaker = named.map_or_else(|| speaker.clone(), Val::from);
            said(speaker, content.map(content_text).unwrap_or_default())
        }
        Val::TStr(_) => said(speaker.clone(), text_of(message).unwrap_or_default()),
        other => said(speaker.clone(), jq::shown(other)),
    };
    let found: Vec<Val> = match &value {
        Val::TStr(_) => vec![one(&value)],
        Val::Arr(list) => {
            jq::steps(list.len() as u64);
            let each = |element: &Val| match element {
                Val::Arr(inner) => inner.iter().map(one).collect::<Vec<_>>(),
                other => vec![one(other)],
            };
            list.iter().flat_map(each).collect()
        }
        _ => Vec::new(),
    };
    let has_text = |message: &Val| field(message, "text").and_then(text_of).is_some_and(|text| !text.trim().is_empty());
    if is_cut && !found.iter().any(has_text) {
        return Err(CUT.to_owned());
    }
    Ok(found.into_iter().filter(|message| !is_cut || has_text(message)).collect())
}
