//! The messages of OpenAI's API, as a turn with its history.

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::Value as Json;
use turnflow_engine::ask::AskRequest;
use turnflow_engine::language::{ChatRole, Message, Prompt};
use turnflow_engine::record::{Speaker, Utterance};

use crate::app::App;
use crate::auth::Principal;
use crate::citations::without_list;
use crate::error::ApiError;

/// A conversation whose last message is a question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The texts of system and developer messages.
    pub instructions: Vec<String>,
    /// The previous utterances, the oldest first.
    pub history: Vec<Utterance>,
    /// The question.
    pub question: Arc<str>,
}

impl Conversation {
    /// Reads messages; `field` is their name in errors.
    ///
    /// # Errors
    ///
    /// 400: a message is invalid, or the last one is not the user's.
    pub fn of(messages: &[Json], field: &str) -> Result<Self, ApiError> {
        let mut conversation = Self::default();
        let mut last = None;
        let question = messages.iter().rposition(|message| message.get("role").and_then(Json::as_str) == Some("user"));
        for (at, message) in messages.iter().enumerate() {
            let place = format!("{field}[{at}]");
            let wrong = |name: &str, problem: &str| ApiError::bad(problem).param(format!("{place}.{name}"));
            let Some(role) = message.get("role").and_then(Json::as_str) else {
                return Err(wrong("role", "a message must have a `role`"));
            };
            let speaker = match role {
                "system" | "developer" => None,
                "user" => Some(Speaker::User),
                "assistant" => Some(Speaker::Agent),
                // The results of tools are not part of the conversation.
                "tool" | "function" => continue,
                _ => {
                    let problem =
                        format!("the role `{role}` is not one of system, developer, user, assistant and tool");
                    return Err(wrong("role", &problem));
                }
            };
            let text = match message.get("content") {
                // A message that only calls tools has no content.
                None | Some(Json::Null) if role == "assistant" => continue,
                None | Some(Json::Null) => return Err(wrong("content", "a message must have a `content`")),
                Some(content) => text_of(content, &format!("{place}.content"), question == Some(at))?,
            };
            let text = match speaker {
                Some(Speaker::Agent) => without_list(&text).into_owned(),
                _ => text,
            };
            match speaker {
                None => conversation.instructions.push(text),
                Some(speaker) => {
                    conversation.history.extend(last.replace(Utterance { speaker, text: text.into() }));
                }
            }
        }
        match last {
            Some(Utterance { speaker: Speaker::User, text }) if !text.trim().is_empty() => {
                conversation.question = text;
                Ok(conversation)
            }
            Some(Utterance { speaker: Speaker::User, .. }) => {
                Err(ApiError::bad("the last message is empty").param(field))
            }
            _ => Err(ApiError::bad("the last message must be the user's").param(field)),
        }
    }

    /// The conversation and the instructions, for a language model.
    pub fn prompt(&self) -> Prompt {
        let instructions = self.instructions.iter().map(|text| Message::fixed(ChatRole::System, text.as_str()));
        let history = self.history.iter().map(|utterance| {
            let role = match utterance.speaker {
                Speaker::User => ChatRole::User,
                Speaker::Agent => ChatRole::Assistant,
            };
            Message::fixed(role, &*utterance.text)
        });
        let question = Message::fixed(ChatRole::User, &*self.question);
        Prompt { messages: instructions.chain(history).chain([question]).collect() }
    }

    /// All texts, for counting.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let instructions = self.instructions.iter().map(String::as_str);
        instructions.chain(self.history.iter().map(|utterance| &*utterance.text)).chain([&*self.question])
    }

    /// The turn of this conversation.
    pub fn request(&self, labels: Labels, principal: &Principal) -> AskRequest {
        let mut request = AskRequest::new(self.question.clone());
        let before = self.history.iter().filter(|utterance| utterance.speaker == Speaker::User).count();
        request.turn = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        request.history = self.history.clone();
        request.conversation_id = labels.conversation.into();
        request.collection = labels.collection.map(Into::into);
        if !self.instructions.is_empty() {
            request.extra.insert("instructions".to_owned(), self.instructions.join("\n\n").into());
        }
        if let Some(extra) = &principal.extra {
            request.extra.insert("principal".to_owned(), extra.clone().into());
        }
        // Only the nodes' values contain the chunks' titles.
        request.trace = true;
        request
    }
}

/// The parts of a request about its turn, apart from the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// The conversation, for the record.
    pub conversation: String,
    /// The collection to search.
    pub collection: Option<String>,
}

impl Labels {
    /// From the headers, the request's `metadata` and `user`, or else `otherwise`.
    pub fn of(
        app: &App,
        headers: &HeaderMap,
        metadata: Option<&Json>,
        user: Option<&str>,
        collection: Option<&str>,
        otherwise: &str,
    ) -> Self {
        let names = &app.config().conversation_headers;
        let header = names.iter().find_map(|name| headers.get(name)?.to_str().ok());
        let meta = |name| metadata.and_then(|metadata| metadata.get(name)).and_then(Json::as_str);
        let known = [header, meta("conversation_id"), user].into_iter().flatten().find(|text| !text.trim().is_empty());
        let conversation: String = known.unwrap_or(otherwise).chars().take(256).collect();
        Self { conversation, collection: collection.or(meta("collection")).map(str::to_owned) }
    }
}

/// The text of a message: a string, or parts that are text. A part of another kind is an error in the question; in an
/// earlier message only its kind is told, so that a conversation goes on after an image.
fn text_of(content: &Json, place: &str, is_question: bool) -> Result<String, ApiError> {
    let parts = match content {
        Json::String(text) => return Ok(text.clone()),
        Json::Array(parts) => parts,
        _ => return Err(ApiError::bad("`content` must be a text or a list of parts").param(place)),
    };
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Json::as_str).unwrap_or_default();
        let left_out: String;
        let piece = match kind {
            "text" | "input_text" | "output_text" => part.get("text").and_then(Json::as_str),
            "refusal" => part.get("refusal").and_then(Json::as_str),
            _ if !is_question => {
                let name: String = kind.chars().take(40).collect();
                left_out = format!("[{}]", name.trim_start_matches("input_").trim_end_matches("_url"));
                Some(left_out.as_str())
            }
            _ => {
                let problem = format!("parts of the type `{kind}` are not supported: this server reads text only");
                return Err(ApiError::unsupported(&format!("{place}[{at}].type"), problem));
            }
        };
        let piece = piece.ok_or_else(|| ApiError::bad("the part has no text").param(format!("{place}[{at}]")))?;
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(piece);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: Json) -> Result<Conversation, ApiError> {
        Conversation::of(messages.as_array().unwrap(), "messages")
    }

    #[test]
    fn messages_become_a_turn_and_its_history() {
        let conversation = read(json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "tool", "content": "42", "tool_call_id": "x"},
            {"role": "assistant", "content": "an answer"},
            {"role": "user", "content": [{"type": "text", "text": "why"}, {"type": "input_text", "text": "now?"}]},
        ]))
        .unwrap();
        assert_eq!(conversation.instructions, ["be brief"]);
        let said: Vec<&str> = conversation.history.iter().map(|utterance| &*utterance.text).collect();
        assert_eq!((said, &*conversation.question), (vec!["first", "an answer"], "why\nnow?"));
        assert_eq!(conversation.prompt().messages.len(), 4);
    }

    #[test]
    fn a_conversation_goes_on_after_an_image() {
        let image = json!([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}]);
        let conversation = read(json!([
            {"role": "user", "content": image},
            {"role": "assistant", "content": "A ship."},
            {"role": "user", "content": "And that?"},
        ]));
        assert_eq!(&*conversation.unwrap().history[0].text, "What is this?\n[image]");
    }

    #[test]
    fn what_cannot_be_read_says_where() {
        for (messages, param, problem) in [
            (json!([]), "messages", "the user's"),
            (json!([{"role": "assistant", "content": "x"}]), "messages", "the user's"),
            (json!([{"role": "user", "content": " "}]), "messages", "empty"),
            (json!([{"role": "bot", "content": "x"}]), "messages[0].role", "`bot`"),
            (json!([{"content": "x"}]), "messages[0].role", "`role`"),
            (json!([{"role": "user"}]), "messages[0].content", "`content`"),
            (json!([{"role": "user", "content": 7}]), "messages[0].content", "a text or a list"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type",
                "`image_url`",
            ),
            (json!([7]), "messages[0].role", "`role`"),
        ] {
            let error = read(messages).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{}", error.message);
            assert!(error.message.contains(problem), "{}", error.message);
        }
    }
}
