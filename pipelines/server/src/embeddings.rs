//! `/v1/embeddings`: OpenAI's embeddings API, with the pipelines' embedders.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use turnflow_engine::component::Model;
use turnflow_engine::inference::{Priority, Role};
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::Principal;
use crate::body::Content;
use crate::error::ApiError;
use crate::limits::Deadline;
use crate::models::none_that_embeds;
use crate::usage::off_thread;

/// A request for embeddings. Further fields are accepted and have no effect.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// `PIPELINE/MODEL`, or `PIPELINE` if it has one embedder.
    pub model: String,
    /// A text or a list of texts.
    pub input: Value,
    /// `float` or `base64`. Default: `float`.
    pub encoding_format: Option<String>,
    /// The model's number of dimensions.
    pub dimensions: Option<usize>,
    /// `query` or `passage`, for models that distinguish them. Default: `passage`.
    pub input_type: Option<String>,
}

impl EmbeddingRequest {
    fn texts(&self, most: usize) -> Result<Vec<String>, ApiError> {
        let wrong = |problem: &str| Err(ApiError::bad(problem).param("input"));
        let texts = match &self.input {
            Value::String(text) => vec![text.clone()],
            Value::Array(texts) if texts.iter().any(|text| text.is_number() || text.is_array()) => {
                return wrong("`input` must be a text or a list of texts: this server does not accept token ids");
            }
            Value::Array(texts) => texts.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect(),
            _ => return wrong("`input` must be a text or a list of texts"),
        };
        if let Value::Array(given) = &self.input
            && given.len() != texts.len()
        {
            return wrong("`input` must be a text or a list of texts");
        }
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return wrong("`input` contains no text, or an empty one");
        }
        if texts.len() > most {
            return wrong(&format!("`input` has more than {most} texts, the limit of this server"));
        }
        Ok(texts)
    }

    fn is_base64(&self) -> Result<bool, ApiError> {
        match self.encoding_format.as_deref() {
            None | Some("float") => Ok(false),
            Some("base64") => Ok(true),
            Some(_) => Err(ApiError::bad("`encoding_format` must be float or base64").param("encoding_format")),
        }
    }

    fn role(&self) -> Result<Role, ApiError> {
        match self.input_type.as_deref() {
            None | Some("passage" | "document") => Ok(Role::Passage),
            Some("query") => Ok(Role::Query),
            Some(_) => Err(ApiError::bad("`input_type` must be query or passage").param("input_type")),
        }
    }
}

/// The embedder with this name.
fn embedder(app: &App, principal: &Principal, name: &str) -> Result<Arc<Model>, ApiError> {
    let mut found = Vec::new();
    for served in app.pipelines_of(principal) {
        for (model, loaded) in served.engine().models().into_iter().filter(|(_, model)| model.embedder.is_some()) {
            if format!("{}/{model}", served.name()) == name {
                return Ok(loaded);
            }
            if **served.name() == *name {
                found.push((format!("{name}/{model}"), loaded));
            }
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some((_, only)), true) => Ok(only),
        (Some(last), false) => {
            found.push(last);
            let names = found.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
            Err(ApiError::bad(format!("`{name}` has several models for embeddings: name one of {names}"))
                .param("model"))
        }
        (None, _) => Err(none_that_embeds(app, principal, name)),
    }
}

/// Embeds texts.
#[utoipa::path(post, path = "/v1/embeddings", tag = "openai", request_body = EmbeddingRequest, responses(
    (status = 200, description = "One vector per text", body = Value),
    (status = 400, description = "The request is invalid"),
    (status = 404, description = "The model does not exist")
))]
pub async fn create(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    content: Content,
) -> Result<Json<Value>, ApiError> {
    let request: EmbeddingRequest = content.json()?;
    let texts = request.texts(app.config().limits.batch)?;
    let (is_base64, role) = (request.is_base64()?, request.role()?);
    let model = embedder(&app, &principal, &request.model)?;
    let Some(embedder) = &model.embedder else { return Err(ApiError::no_model(&request.model)) };
    let dimension = embedder.dimension();
    if request.dimensions.is_some_and(|wanted| wanted != dimension) {
        let problem = format!("the vectors of this model have {dimension} dimensions and cannot be shortened");
        return Err(ApiError::unsupported("dimensions", problem));
    }
    let (of, counted) = (model.clone(), texts.clone());
    let tokens = off_thread(move || counted.iter().map(|text| count(&of, text)).sum::<usize>()).await;
    let vectors = deadline.within(embedder.embed(texts, role, Priority::Turn)).await?;
    let vectors = vectors.map_err(|error| ApiError::failed("the model", &error))?;
    let encoded = |vector: &[f32]| match is_base64 {
        true => json!(STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())),
        false => json!(vector),
    };
    let data = vectors
        .iter()
        .enumerate()
        .map(|(at, vector)| json!({ "object": "embedding", "index": at, "embedding": encoded(vector) }));
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": request.model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// The tokens of a text, or its words if the model has no tokenizer.
fn count(model: &Model, text: &str) -> usize {
    let tokens = model.tokenizer.as_ref().filter(|_| text.len() <= 64 * 1024);
    let tokens = tokens.and_then(|tokenizer| tokenizer.offsets(text).ok());
    tokens.map_or_else(|| text.split_whitespace().count(), |tokens| tokens.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: Value) -> Result<Vec<String>, ApiError> {
        let request = json!({ "model": "m", "input": input });
        serde_json::from_value::<EmbeddingRequest>(request).unwrap().texts(3)
    }

    #[test]
    fn input_is_texts_and_no_tokens() {
        assert_eq!(texts(json!("a")), Ok(vec!["a".to_owned()]));
        assert_eq!(texts(json!(["a", "b"])).unwrap().len(), 2);
        for wrong in
            [json!([1, 2]), json!([[1], [2]]), json!([]), json!(""), json!(["a", ""]), json!({}), json!([null])]
        {
            assert_eq!(texts(wrong).unwrap_err().param.as_deref(), Some("input"));
        }
        assert!(texts(json!(["a", "b", "c", "d"])).is_err());
    }
}
