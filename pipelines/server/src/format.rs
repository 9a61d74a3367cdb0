//! The form of an answer that a request asks for: `response_format` of chat completions, `text.format` of responses.
//!
//! It goes to the language model that writes the answer (a model of this process is held to it token by token), if one node
//! writes it, that model takes forms, and no node behind it gives another text (`Outline::formed_by`). Otherwise the request is
//! refused, and so is a form that the model cannot be held to: both before the turn.

mod schema;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use turnflow_engine::ask::AskRequest;
use turnflow_engine::inference::InferenceError;

use crate::error::ApiError;
use crate::served::Served;
use crate::usage::generator;

/// The type of any JSON object.
const OBJECT: &str = "json_object";
/// Maximum number of forms that are checked at the same time. The largest take seconds, and some hundred megabytes.
const CHECKS: usize = 4;
static CHECKING: Semaphore = Semaphore::const_new(CHECKS);

/// The form of an answer, as `response_format` of a chat completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    field: &'static str,
    form: Arc<Value>,
}

impl Format {
    /// The form that a chat completion asks for; `None` for text.
    ///
    /// # Errors
    ///
    /// 400: it is another one, or has no valid schema.
    pub fn of_chat(format: Option<&Value>) -> Result<Option<Self>, ApiError> {
        Self::of("response_format", format, |format| format.get("json_schema").cloned())
    }

    /// The form that a response asks for; `None` for text.
    ///
    /// # Errors
    ///
    /// 400: it is another one, or has no valid schema.
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
        let form = match format.get("type").and_then(Value::as_str) {
            Some("text") => return Ok(None),
            // llama.cpp and others take a schema here. Without it, the answer would not be what the client expects.
            Some(OBJECT) => match format.get("schema").filter(|schema| !schema.is_null()) {
                None => json!({ "type": OBJECT }),
                Some(schema) if schema.is_object() => {
                    schema::check(schema).map_err(|problem| invalid(field, &problem))?;
                    json!({ "type": "json_schema", "json_schema": { "name": "reply", "schema": schema } })
                }
                Some(_) => return Err(invalid(field, "the `schema` must be a JSON schema as an object")),
            },
            Some("json_schema") => {
                let wrong = |problem: &str| ApiError::bad(format!("`{field}` {problem}")).param(field);
                let named = named(format).filter(Value::is_object).ok_or_else(|| wrong("has no `json_schema`"))?;
                if !named["schema"].is_object() {
                    return Err(wrong("has no `schema`: a JSON schema as an object"));
                }
                if named["name"].as_str().is_none_or(str::is_empty) {
                    return Err(wrong("has no `name`"));
                }
                schema::check(&named["schema"]).map_err(|problem| invalid(field, &problem))?;
                json!({ "type": "json_schema", "json_schema": named })
            }
            _ => {
                let problem = format!(
                    "an answer is text, a JSON object, or JSON with a schema: `{field}` must have the type \"text\", \
                     \"{OBJECT}\" or \"json_schema\""
                );
                return Err(ApiError::unsupported(field, problem));
            }
        };
        Ok(Some(Self { field, form: Arc::new(form) }))
    }

    /// The form, as `response_format`.
    pub fn form(&self) -> &Value {
        &self.form
    }

    fn is_object(&self) -> bool {
        self.form["type"] == OBJECT
    }

    /// The form, as `text.format`.
    pub fn of_text(&self) -> Value {
        if self.is_object() {
            return (*self.form).clone();
        }
        let mut format = self.form["json_schema"].clone();
        format["type"] = json!("json_schema");
        format
    }

    /// Checks that a pipeline can answer in this form. Returns the node that writes the answer.
    ///
    /// # Errors
    ///
    /// 400: it cannot.
    pub async fn check(&self, served: &Served) -> Result<Arc<str>, ApiError> {
        let node = served.outline().formed_by.clone().ok_or_else(|| {
            let problem = format!(
                "the pipeline `{}` cannot keep to {}: that needs one `Generate` with an `OpenAi` or `OnnxDecoder` model, and \
                 no node behind it that gives another text; leave out `{}`, or ask for JSON in the pipeline's prompt",
                served.name(),
                if self.is_object() { "JSON" } else { "a schema" },
                self.field,
            );
            ApiError::unsupported(self.field, problem)
        })?;
        let Some(model) = generator(served) else { return Ok(node) };
        let form = self.form.clone();
        // A grammar is made of it, which takes a while.
        match in_turn(move || model.check_form(&form)).await {
            Some(Ok(())) => Ok(node),
            Some(Err(InferenceError::Form(problem))) => Err(self.refused(&problem)),
            Some(Err(error)) => Err(ApiError::failed("the model", &error)),
            None => Err(self.refused("the model cannot be held to it")),
        }
    }

    /// The error for a form that the language model cannot give.
    pub fn refused(&self, problem: &str) -> ApiError {
        invalid(self.field, problem)
    }

    /// Asks for this form, which that node gives.
    pub fn ask(&self, node: Arc<str>, request: &mut AskRequest) {
        request.adjust.formats.insert(node, self.form.clone());
    }
}

/// Checks a form on a thread that may block, when a place is free; `None` if the check panics.
async fn in_turn<T: Send + 'static>(check: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let place = CHECKING.acquire().await.ok()?;
    let check = move || {
        // It is kept if the caller leaves: the thread goes on.
        let _place = place;
        check()
    };
    tokio::task::spawn_blocking(check).await.ok()
}

/// 400: no answer can have this form.
fn invalid(field: &'static str, problem: &str) -> ApiError {
    ApiError::bad(format!("`{field}`: {problem}")).param(field).code("invalid_json_schema")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn few_forms_are_checked_at_the_same_time() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let checks: Vec<_> = (0..20)
            .map(|_| {
                let (running, most) = (running.clone(), most.clone());
                tokio::spawn(in_turn(move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    running.fetch_sub(1, Ordering::SeqCst);
                }))
            })
            .collect();
        // Callers who leave free no place before their check is over.
        tokio::task::yield_now().await;
        checks.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        for check in checks {
            let _ = check.await;
        }
        in_turn(|| ()).await.unwrap();
        assert!(most.load(Ordering::SeqCst) <= CHECKS);
        assert_eq!(in_turn(|| panic!("a check")).await, None::<()>);
    }

    #[test]
    fn a_form_is_the_same_in_both_apis() {
        let schema = json!({ "type": "object" });
        let chat = json!({ "type": "json_schema", "json_schema": { "name": "a", "strict": true, "schema": schema } });
        let text = json!({ "format": { "type": "json_schema", "name": "a", "strict": true, "schema": schema } });
        let object = json!({ "type": "json_object" });
        for (chat, text) in [(&chat, text), (&object, json!({ "format": object }))] {
            let (of_chat, of_response) =
                (Format::of_chat(Some(chat)).unwrap(), Format::of_response(Some(&text)).unwrap());
            assert_eq!(of_chat.unwrap().form(), chat);
            let of_response = of_response.unwrap();
            assert_eq!((of_response.form(), &of_response.of_text()), (chat, &text["format"]));
        }
        let of_llama = Format::of_chat(Some(&json!({ "type": "json_object", "schema": schema }))).unwrap().unwrap();
        assert_eq!(of_llama.form()["json_schema"]["schema"], schema);
        for none in [json!(null), json!({ "type": "text" })] {
            assert_eq!(Format::of_chat(Some(&none)), Ok(None));
        }
        for wrong in [
            json!({ "type": "json" }),
            json!({ "type": "json_object", "schema": { "type": "foo" } }),
            json!({ "type": "json_object", "schema": "{}" }),
            json!({ "type": "json_schema" }),
            json!({ "type": "json_schema", "json_schema": {} }),
            json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": true } }),
            json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": { "type": "foo" } } }),
            json!("text"),
        ] {
            let error = Format::of_chat(Some(&wrong)).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("response_format")), "{wrong}");
        }
    }
}
