//! An embedding model on an OpenAI-compatible server: texts to vectors.
//!
//! ```ron
//! OpenAiEmbedder(
//!     url: "https://api.openai.com/v1", model: "text-embedding-3-large", dimension: 3072,
//!     key_env: Some("OPENAI_API_KEY"), batch: 64,
//! )
//! ```
//!
//! Sends `POST {url}/embeddings` with up to `batch` texts in each request. Transient errors are retried and the key is
//! handled as for `OpenAi`. RAGTUM (section 4.2) and FusionRAG (section 2.1) embed with such a model. Deterministic as
//! far as the server is. Vectors of passages are stored by content, and those of questions in the inference cache, so
//! no text is embedded twice.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use serde::Deserialize;
use serde_json::{Value, json};
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::spec::FilePath;
use turnflow_engine::wording::JsonError;

use super::open_ai::client::Client;
use super::open_ai::server::Server;
use super::open_ai::stream::count as tokens;
use super::{adapter, load_model};

/// Entry in the model table.
pub const KIND: ModelKind =
    ModelKind::of::<OpenAiEmbedderConfig>("OpenAiEmbedder", "an embedding model on an OpenAI-compatible server");

/// Fields of `OpenAiEmbedder`.
#[config]
pub struct OpenAiEmbedderConfig {
    /// Base URL of the server, including `/v1`.
    pub url: String,
    /// The model's name on the server.
    pub model: String,
    /// Dimension of the vectors.
    #[field(range = 1..=100_000)]
    pub dimension: usize,
    /// Environment variable that holds the API key. Default: no key is sent.
    #[field(unset = "none")]
    pub key_env: Option<String>,
    /// Whether vectors are scaled to unit length, so that their inner product is the cosine.
    #[field(default = true)]
    pub normalize: bool,
    /// Prefix of each query text. Default empty.
    #[field(default)]
    pub query_prefix: String,
    /// Prefix of each passage text. Default empty.
    #[field(default)]
    pub passage_prefix: String,
    /// Query adapter, a file that `turnflow tune` writes: a linear map on the vectors of queries. Passages are not
    /// embedded again. Default: none.
    pub adapter: Option<FilePath>,
    /// Maximum length of a text, in characters; longer texts are cut. Default 20000, which for English is within the
    /// 8191 tokens that OpenAI's models accept.
    #[field(default = 20_000, range = 1..=10_000_000)]
    pub characters: usize,
    /// Maximum number of texts in a request.
    #[field(default = 32, range = 1..=2048)]
    pub batch: usize,
    /// Time limit of one attempt, in seconds.
    #[field(default = 60.0, range = 0.001..=86_400.0)]
    pub timeout_s: f64,
    /// Maximum number of concurrent requests.
    #[field(default = 4, range = 1..=10_000)]
    pub concurrency: usize,
    /// Maximum number of retries after the first attempt.
    #[field(default = 4, range = 0..=100)]
    pub retries: usize,
    /// Pause before the first retry, in seconds; doubled for each further retry.
    #[field(default = 0.5, range = 0.0..=3600.0)]
    pub pause_s: f64,
}

impl OpenAiEmbedderConfig {
    fn server(&self) -> Server<'_> {
        Server {
            url: &self.url,
            key_env: self.key_env.as_deref(),
            timeout_s: self.timeout_s,
            silence_s: self.timeout_s,
            pause_s: self.pause_s,
            concurrency: self.concurrency,
            retries: self.retries,
        }
    }

    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let mut hasher = blake3::Hasher::new();
        let normalize = self.normalize.to_string();
        let (dimension, characters) = (self.dimension.to_string(), self.characters.to_string());
        let prefixes = [&self.query_prefix, &self.passage_prefix];
        let parts = ["OpenAiEmbedder", &self.url, &self.model, &dimension, &characters, &normalize];
        for part in parts.into_iter().chain(prefixes.map(String::as_str)) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let client = self.server().client("embeddings")?;
        let meter = client.meter.clone();
        let model = Model {
            name: name.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
            embedder: Some(Arc::new(OpenAiEmbedder(Arc::new(Remote { client, config: self.clone() })))),
            meter: Some(Arc::new(move || meter.usage())),
            ..Model::default()
        };
        adapter::adapted(model, self.adapter.as_ref())
    }
}

impl ModelConfig for OpenAiEmbedderConfig {
    fn computes_here(&self) -> bool {
        false
    }

    fn validate(&self, check: &mut Check<'_>) {
        self.server().validate(check);
        adapter::validate(check, self.adapter.as_ref());
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed]
    }

    fn adapter(&self) -> Option<&FilePath> {
        self.adapter.as_ref()
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

struct OpenAiEmbedder(Arc<Remote>);

struct Remote {
    client: Client,
    config: OpenAiEmbedderConfig,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Embedding>,
    /// Only counted, so its types do not matter.
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct Embedding {
    /// A number, which some servers send as a text.
    #[serde(default)]
    index: Value,
    embedding: Value,
}

impl Embedding {
    /// The place of its text.
    fn place(&self) -> Option<usize> {
        match &self.index {
            Value::Number(number) => number.as_f64().filter(|at| *at >= 0.0 && at.fract() == 0.0).map(|at| at as usize),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// The vector: numbers, also within a list of their own, or the bytes of 32-bit floats in base64.
    fn values(&self) -> Option<Vec<f32>> {
        match &self.embedding {
            Value::Array(values) => match &values[..] {
                [Value::Array(values)] => floats(values),
                values => floats(values),
            },
            Value::String(text) => {
                let bytes = STANDARD.decode(text).ok().filter(|bytes| bytes.len() % 4 == 0)?;
                let floats = bytes.chunks_exact(4).map(|bytes| bytes.try_into().map(f32::from_le_bytes).ok());
                floats.collect()
            }
            _ => None,
        }
    }
}

fn floats(values: &[Value]) -> Option<Vec<f32>> {
    values.iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
}

impl Embedder for OpenAiEmbedder {
    fn dimension(&self) -> usize {
        self.0.config.dimension
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let remote = self.0.clone();
        async move {
            let texts: Vec<String> = texts.iter().map(|text| remote.config.prepare(text, role)).collect();
            let batches = texts.chunks(remote.config.batch).map(|texts| remote.embed(texts));
            Ok(try_join_all(batches).await?.into_iter().flatten().collect())
        }
        .boxed()
    }
}

impl OpenAiEmbedderConfig {
    /// A text as it is sent. Servers reject empty texts, so an empty one becomes a space.
    fn prepare(&self, text: &str, role: Role) -> String {
        let prefix = match role {
            Role::Query => &self.query_prefix,
            Role::Passage => &self.passage_prefix,
        };
        let text: String = prefix.chars().chain(text.chars()).take(self.characters).collect();
        if text.trim().is_empty() { " ".to_owned() } else { text }
    }

    /// Parses a response: the vectors in the order of the texts, and the number of tokens used.
    fn read(&self, text: &str, texts: usize) -> Result<(Vec<Vector>, u64), String> {
        let answer: Answer = serde_json::from_str(text)
            .map_err(|error| format!("the response has no embeddings: {}", JsonError::from(error)))?;
        if answer.data.len() != texts {
            return Err(format!("the response has {} vectors for {texts} texts", answer.data.len()));
        }
        let mut vectors: Vec<Option<Vector>> = vec![None; texts];
        for (at, one) in answer.data.into_iter().enumerate() {
            let Some(mut vector) = one.values() else {
                return Err("the response has an embedding that is no list of numbers".to_owned());
            };
            if vector.len() != self.dimension {
                return Err(format!("the vectors have {} dimensions, not {}", vector.len(), self.dimension));
            }
            if vector.iter().any(|value| !value.is_finite()) {
                return Err("a vector has a value that is not a number".to_owned());
            }
            if self.normalize {
                let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
                vector.iter_mut().for_each(|value| *value /= length.max(f32::MIN_POSITIVE));
            }
            let place = one.place().unwrap_or(at);
            match vectors.get_mut(place) {
                Some(empty @ None) => *empty = Some(vector.into()),
                _ => return Err(format!("a vector has an invalid index ({place})")),
            }
        }
        Ok((
            vectors.into_iter().flatten().collect(),
            tokens(answer.usage.get("prompt_tokens").or_else(|| answer.usage.get("total_tokens"))),
        ))
    }
}

impl Remote {
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vector>, InferenceError> {
        let body = json!({"model": self.config.model, "input": texts, "encoding_format": "float"});
        self.client.fetch(&body, |text| self.config.read(text, texts.len())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::open_ai::tests::{Reply, block, server};

    fn config(url: &str) -> OpenAiEmbedderConfig {
        serde_json::from_value(json!({"url": url, "model": "m", "dimension": 2, "batch": 2, "pause_s": 0.0})).unwrap()
    }

    fn reply(vectors: &[(usize, [f32; 2])]) -> Reply {
        let data: Vec<_> = vectors.iter().map(|(index, v)| json!({"index": index, "embedding": v})).collect();
        Reply::Whole(200, "Content-Type: application/json\r\n", json!({"data": data}).to_string())
    }

    fn embed(url: &str, texts: &[&str]) -> Result<Vec<Vector>, InferenceError> {
        let model = config(url).open("m").unwrap();
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        block(model.embedder.unwrap().embed(texts, Role::Query, Priority::Turn))
    }

    #[test]
    fn vectors_come_in_order_and_at_length_one_after_a_failure_that_passes() {
        let busy = Reply::Whole(429, "", "slow down".into());
        let (url, seen) = server(vec![busy, reply(&[(1, [0.0, 2.0]), (0, [3.0, 4.0])])], || ());
        let vectors = embed(&url, &["a", ""]).unwrap();
        assert_eq!(vectors, [Vector::from([0.6, 0.8]), Vector::from([0.0, 1.0])]);
        let seen = seen.lock().unwrap();
        assert_eq!((seen.len(), &seen[1].1["input"]), (2, &json!(["a", " "])));
        assert!(seen[0].0.starts_with("POST /v1/embeddings "), "{}", seen[0].0);
    }

    /// Why it exists: an error with the status 200 was blamed on the passage, which was lost.
    #[test]
    fn an_error_in_a_response_is_the_servers() {
        let error = |error: Value| Reply::Whole(200, "", json!({ "error": error }).to_string());
        let loading = error(json!({"message": "the model is loading", "code": 503}));
        let Reply::Whole(status, head, text) = reply(&[(0, [1.0, 0.0])]) else { unreachable!() };
        let marked = Reply::Whole(status, head, format!("\u{feff}{text}"));
        let (url, seen) = server(vec![loading, marked], || ());
        assert_eq!(embed(&url, &["a"]).unwrap(), [Vector::from([1.0, 0.0])]);
        assert_eq!(seen.lock().unwrap().len(), 2);
        let (url, seen) = server(vec![error(json!({"message": "the input is too long", "code": 400}))], || ());
        let told = embed(&url, &["a"]).unwrap_err().to_string();
        assert!(told.contains("the server reported an error: the input is too long"), "{told}");
        assert_eq!(seen.lock().unwrap().len(), 1);
    }

    #[test]
    fn vectors_are_read_in_every_form() {
        let base64 = STANDARD.encode([1.0f32, 0.0].map(f32::to_le_bytes).concat());
        for (first, second) in [
            (json!({"index": "1", "embedding": [0, 1]}), json!({"index": "0", "embedding": [1.0, 0.0]})),
            (json!({"index": 1.0, "embedding": [[0, 1]]}), json!({"index": 0, "embedding": base64})),
            (json!({"embedding": [1, 0]}), json!({"index": null, "embedding": [0, 1]})),
        ] {
            let (url, _) = server(vec![Reply::Whole(200, "", json!({"data": [first, second]}).to_string())], || ());
            assert_eq!(embed(&url, &["a", "b"]).unwrap(), [Vector::from([1.0, 0.0]), Vector::from([0.0, 1.0])]);
        }
        // The page of a proxy is no answer to the request: it is sent again.
        let page = Reply::Whole(200, "Content-Type: text/html\r\n", "<html>Please wait</html>".into());
        let (url, seen) = server(vec![page, reply(&[(0, [1.0, 0.0])])], || ());
        assert_eq!(embed(&url, &["a"]).unwrap(), [Vector::from([1.0, 0.0])]);
        assert_eq!(seen.lock().unwrap().len(), 2);
    }

    #[test]
    fn answers_that_cannot_be_used_are_told() {
        for (answer, told) in [
            (reply(&[(0, [1.0, 0.0])]), "1 vectors for 2 texts"),
            (reply(&[(0, [1.0, 0.0]), (0, [1.0, 0.0])]), "a vector has an invalid index"),
            (Reply::Whole(200, "", "{}".into()), "no embeddings"),
            (Reply::Whole(200, "", r#"{"data":[{"embedding":[1]},{"embedding":[1]}]}"#.into()), "1 dimensions, not 2"),
            (Reply::Whole(401, "", r#"{"error":{"message":"wrong key"}}"#.into()), "wrong key"),
        ] {
            let (url, seen) = server(vec![answer], || ());
            let error = embed(&url, &["a", "b"]).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
            assert_eq!(seen.lock().unwrap().len(), 1);
        }
    }
}
