//! The names of the fields that mappings give, and what to say of others.

/// Those of a message.
const MESSAGE: &[&str] = &[
    "id",
    "parent",
    "conversation",
    "speaker",
    "text",
    "time",
    "order",
    "version",
    "turn",
    "rank",
    "join",
    "merge",
    "last",
    "removed",
    "rewind",
    "starts",
    "cut",
    "to_agent",
    "hand_over",
    "fields",
];
/// Those of a call of a model.
const CALL: &[&str] = &["id", "conversation", "parent", "guess", "group", "order", "time", "messages", "answer"];
/// Those of a document.
const DOCUMENT: &[&str] = &["id", "title", "text", "metadata", "groups", "delete"];

/// What logs call the same, in small letters without anything between them.
const SAME: &[(&str, &[&str])] = &[
    ("id", &["messageid", "msgid", "uuid", "key", "docid", "documentid"]),
    ("parent", &["parentid", "parentmessageid", "replyto", "inreplyto"]),
    ("conversation", &["conversationid", "session", "sessionid", "thread", "threadid", "chat", "chatid", "channel"]),
    ("speaker", &["role", "author", "sender", "from", "type"]),
    ("text", &["content", "message", "body", "query", "question"]),
    ("time", &["timestamp", "createdat", "created", "date", "datetime", "ts"]),
    ("turn", &["number", "turnid"]),
    ("removed", &["deleted", "delete"]),
    ("title", &["name", "subject", "heading"]),
    ("metadata", &["meta", "attributes", "tags", "fields"]),
    ("groups", &["group", "acl", "permissions"]),
    ("delete", &["deleted", "removed"]),
    ("answer", &["reply", "response", "output"]),
    ("messages", &["history", "input", "prompt"]),
];

/// That a field is not known to a message, a call or a document, and which one may be meant.
pub(crate) fn unknown(name: &str, what: &str) -> String {
    let known = match what {
        "message" => MESSAGE,
        "call" => CALL,
        _ => DOCUMENT,
    };
    let plain: String = name.chars().filter(|letter| letter.is_alphanumeric()).collect::<String>().to_lowercase();
    let is_meant = |(own, others): &&(&'static str, &[&str])| {
        known.contains(own) && (others.contains(&plain.as_str()) || own.replace('_', "") == plain)
    };
    let hint = match SAME.iter().find(is_meant) {
        Some((own, _)) => format!("did you mean `{own}`?"),
        None => format!("it may have {}", known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    };
    format!("the mapping gives a field `{name}`, which no {what} has ({hint})")
}

#[cfg(test)]
mod tests {
    use jaq_json::Val;

    use super::*;
    use crate::message::Item;

    #[test]
    fn a_field_that_is_not_known_names_the_one_that_is_meant() {
        for (name, what, own) in [
            ("role", "message", "speaker"),
            ("conversation_id", "message", "conversation"),
            ("sessionId", "call", "conversation"),
            ("Text", "message", "text"),
            ("created_at", "message", "time"),
            ("deleted", "message", "removed"),
            ("deleted", "document", "delete"),
            ("body", "document", "text"),
        ] {
            let said = unknown(name, what);
            assert!(said.ends_with(&format!("(did you mean `{own}`?)")), "{said}");
        }
        // Those that are listed are known.
        for name in MESSAGE {
            let given = Item::of(&Val::obj([(Val::from((*name).to_owned()), Val::from(true))].into_iter().collect()));
            assert!(given.err().is_none_or(|error| !error.contains("which no message has")), "{name}");
        }
        let said = unknown("colour", "document");
        assert!(said.contains("it may have `id`, `title`, `text`"), "{said}");
    }
}
