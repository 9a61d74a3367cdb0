//! Items of stored responses that a request refers to instead of sending them, as the AI SDK does with each answer.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Principal;
use crate::error::ApiError;
use crate::stored;

const RESPONSE: &str = "resp_";
const MESSAGE: &str = "msg_";

/// The id of the message of a response.
pub(super) fn message_of(response: &str) -> String {
    format!("{MESSAGE}{}", response.strip_prefix(RESPONSE).unwrap_or(response))
}

/// The kind of an item.
pub(super) fn kind(item: &Value) -> &str {
    item.get("type").and_then(Value::as_str).unwrap_or("message")
}

/// Items with the answers that they refer to.
///
/// # Errors
///
/// 400: there is no such answer of this caller, or they are too long together. 500: a store cannot be read.
pub(super) async fn resolved(app: &App, principal: &Principal, mut items: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut known: HashMap<String, Value> = HashMap::new();
    let mut bytes = 0;
    for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| kind(item) == "item_reference") {
        let id = item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !known.contains_key(&id) {
            let response = id.strip_prefix(MESSAGE).map(|rest| format!("{RESPONSE}{rest}"));
            let found = match response {
                Some(response) => stored::find(app, principal, &response).await?,
                None => None,
            };
            let Some(answer) = found.and_then(|(_, stored)| stored.messages.last().cloned()) else {
                let problem =
                    format!("there is no stored item `{id}`: send the message itself, or set `store` to false");
                return Err(ApiError::bad(problem).param(format!("input[{at}]")).code("item_not_found"));
            };
            known.insert(id.clone(), answer);
        }
        *item = known.get(&id).cloned().unwrap_or_else(|| json!({}));
        bytes += item["content"].as_str().map_or(0, str::len);
        if bytes > app.config().limits.body_bytes() {
            return Err(ApiError::bad("the conversation is longer than a request may be").param("input"));
        }
    }
    Ok(items)
}
