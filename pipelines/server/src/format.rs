//! The form of an answer that a request asks for: `response_format` of chat completions, `text.format` of responses.
//!
//! A schema goes to the language model that writes the answer (a model of this process is held to it token by token), if one
//! node writes it, that model takes schemas, and no node behind it gives another text (`Outline::formed_by`). Otherwise the
//! request is refused.

use std::sync::Arc;

use serde_json::{Value, json};
use turnflow_engine::ask::AskRequest;

use crate::error::ApiError;
use crate::served::Served;

/// The form of an answer: a schema, as `response_format` of a chat completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    field: &'static str,
    schema: Arc<Value>,
}

impl Format {
    /// The form that a chat completion asks for; `None` for text.
    ///
    /// # Errors
    ///
    /// 400: it is another one, or has no schema.
    pub fn of_chat(format: Option<&Value>) -> Result<Option<Self>, ApiError> {
        Self::of("response_format", format, |format| format.get("json_schema").cloned())
    }

    /// The form that a response asks for; `None` for text.
    ///
    /// # Errors
    ///
    /// 400: it is another one, or has no schema.
    pub fn of_response(text: Option<&Value>) -> Result<Option<Self>, ApiError> {
        Self::of("text.format", text.and_then(|text| text.get("format")), |format| {
            let mut named = format.as_object().cloned()?;
            named.remove("type");
            Some(named.into())
        })
    }

    fn of(
        field: &'static str,
        format: Option<&Value>,
        named: impl FnOnce(&Value) -> Option<Value>,
    ) -> Result<Option<Self>, ApiError> {
        let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(None),
            Some("json_schema") => {
                let wrong = |problem: &str| ApiError::bad(format!("`{field}` {problem}")).param(field);
                let named = named(format).filter(Value::is_object).ok_or_else(|| wrong("has no `json_schema`"))?;
                if !named["schema"].is_object() {
                    return Err(wrong("has no `schema`: a JSON schema as an object"));
                }
                if named["name"].as_str().is_none_or(str::is_empty) {
                    return Err(wrong("has no `name`"));
                }
                Ok(Some(Self { field, schema: Arc::new(json!({ "type": "json_schema", "json_schema": named })) }))
            }
            _ => Err(ApiError::unsupported(
                field,
                format!(
                    "an answer is text, or JSON with a schema: `{field}` must have the type \"text\" or \"json_schema\""
                ),
            )),
        }
    }

    /// The schema, as `response_format`.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// The schema, as `text.format`.
    pub fn of_text(&self) -> Value {
        let mut format = self.schema["json_schema"].clone();
        format["type"] = json!("json_schema");
        format
    }

    /// Checks that a pipeline can answer in this form.
    ///
    /// # Errors
    ///
    /// 400: it cannot.
    pub fn check(&self, served: &Served) -> Result<Arc<str>, ApiError> {
        served.outline().formed_by.clone().ok_or_else(|| {
            let problem = format!(
                "the pipeline `{}` cannot keep to a schema: that needs one `Generate` with an `OpenAi` or `OnnxDecoder` \
                 model, and no node behind it that gives another text; leave out `{}`, or ask for JSON in the pipeline's prompt",
                served.name(),
                self.field,
            );
            ApiError::unsupported(self.field, problem)
        })
    }

    /// Asks for this form.
    ///
    /// # Errors
    ///
    /// 400: the pipeline cannot answer in it.
    pub fn ask(&self, served: &Served, request: &mut AskRequest) -> Result<(), ApiError> {
        request.adjust.formats.insert(self.check(served)?, self.schema.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_the_same_form_in_both_apis() {
        let schema = json!({ "type": "object" });
        let chat = json!({ "type": "json_schema", "json_schema": { "name": "a", "strict": true, "schema": schema } });
        let text = json!({ "format": { "type": "json_schema", "name": "a", "strict": true, "schema": schema } });
        let (chat_format, response_format) =
            (Format::of_chat(Some(&chat)).unwrap(), Format::of_response(Some(&text)).unwrap());
        assert_eq!(chat_format.unwrap().schema(), &chat);
        let response_format = response_format.unwrap();
        assert_eq!((response_format.schema(), &response_format.of_text()), (&chat, &text["format"]));
        for none in [json!(null), json!({ "type": "text" })] {
            assert_eq!(Format::of_chat(Some(&none)), Ok(None));
        }
        for wrong in [
            json!({ "type": "json_object" }),
            json!({ "type": "json_schema" }),
            json!({ "type": "json_schema", "json_schema": {} }),
            json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": true } }),
            json!("text"),
        ] {
            let error = Format::of_chat(Some(&wrong)).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("response_format")), "{wrong}");
        }
    }
}
