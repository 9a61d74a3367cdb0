//! The server's configuration, `SERVE.ron`.
//!
//! ```
//! let text = r#"Serve(
//!     tokens: [(name: "web", token: Env("WEB_TOKEN"), rate: 5, extra: {"groups": ["staff"]})],
//!     limits: (body_mb: 16),
//!     citations: Markdown,
//! )"#;
//! assert!(turnflow_server::ServeConfig::parse(text, "serve.ron").is_ok());
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ron::extensions::Extensions;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::jwt::{JwtConfig, KeySource};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not RON, or not a configuration.
    #[error("{file}:{line}:{column}: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What is wrong.
        problem: String,
    },
    /// A value is invalid.
    #[error("{file}: `{field}` {problem}")]
    Value {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// The configuration of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "Serve", deny_unknown_fields, default)]
pub struct ServeConfig {
    /// The address to listen on. The option `--listen` takes precedence. Default: `127.0.0.1:8100`.
    pub listen: Option<SocketAddr>,
    /// The tokens of callers. Without tokens, the server listens on this machine only. Default: none.
    pub tokens: Vec<TokenConfig>,
    /// JSON Web Tokens of an identity provider, beside the tokens or instead of them. Default: none.
    pub jwt: Option<JwtConfig>,
    /// Limits on size, time and number.
    pub limits: LimitsConfig,
    /// Seconds that running requests may take after the first stop signal. Default: 30.
    pub drain_s: f64,
    /// Seconds for which a turn that its client can read again goes on without a reader, and its answer is kept in memory.
    /// Default: 300.
    pub resume_s: f64,
    /// Seconds after which an idle stream gets a comment line. Default: 15.
    pub keep_alive_s: f64,
    /// How chat answers cite their sources. Default: `Annotations`.
    pub citations: Citations,
    /// The server's URL as its users know it, such as `https://chat.example.org`, for links to cited documents. Default:
    /// as the request says.
    pub public_url: Option<String>,
    /// Days for which links to cited documents work at least, on a server with tokens. Default: 7.
    pub link_days: f64,
    /// Request headers that identify a conversation; the first one present counts. Default:
    /// `X-OpenWebUI-Chat-Id` and `X-Conversation-Id`.
    pub conversation_headers: Vec<String>,
    /// Prompts of chat clients that are not questions, as regular expressions: titles, tags and
    /// follow-ups. They are answered without retrieval. Default: texts that begin with `### Task:`.
    pub task_prompts: Vec<String>,
    /// Allowed origins of web pages, as in `https://chat.example.org`; `*` for all. Default: none.
    pub cors: Vec<String>,
    /// Further host names of a server without tokens, for a proxy on the same machine.
    /// Default: none.
    pub hosts: Vec<String>,
    /// Serve HTTPS. Default: HTTP.
    pub tls: Option<TlsConfig>,
    /// The stored responses of `/v1/responses`.
    pub responses: ResponsesConfig,
    /// The turns that callers share by a link.
    pub shares: ResponsesConfig,
    /// A directory with reports of `turnflow eval --output`, shown on the page. Default: none.
    pub reports: Option<PathBuf>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            listen: None,
            tokens: Vec::new(),
            jwt: None,
            limits: LimitsConfig::default(),
            drain_s: 30.0,
            resume_s: 300.0,
            keep_alive_s: 15.0,
            citations: Citations::default(),
            public_url: None,
            link_days: 7.0,
            conversation_headers: vec!["X-OpenWebUI-Chat-Id".to_owned(), "X-Conversation-Id".to_owned()],
            task_prompts: vec![r"\A\s*### Task:".to_owned()],
            cors: Vec::new(),
            hosts: Vec::new(),
            tls: None,
            responses: ResponsesConfig::default(),
            shares: ResponsesConfig::default(),
            reports: None,
        }
    }
}

/// Bounds of the stored responses of a pipeline, or of its shared turns. The oldest are removed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResponsesConfig {
    /// Maximum number; 0 stores none. Default: 10,000.
    pub keep: u64,
    /// Maximum size in MiB, the conversations included. Default: 256.
    pub mb: u64,
}

impl Default for ResponsesConfig {
    fn default() -> Self {
        Self { keep: 10_000, mb: 256 }
    }
}

/// How chat answers cite their sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Citations {
    /// As annotations of the message. The default.
    #[default]
    Annotations,
    /// As annotations, and as a list in Markdown at the end of the text.
    Markdown,
    /// Not at all.
    None,
}

/// A caller.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// The caller's name, for logs and metrics.
    pub name: String,
    /// The location of the secret.
    pub token: Secret,
    /// Requests per second; overrides `limits.rate`.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Burst of requests after a pause; overrides `limits.burst`.
    #[serde(default)]
    pub burst: Option<f64>,
    /// Concurrent requests; overrides `limits.token_concurrency`.
    #[serde(default)]
    pub concurrency: Option<usize>,
    /// Fields of the turn's `principal` for pipelines, such as `groups`.
    #[serde(default)]
    pub extra: Map<String, Json>,
    /// The pipelines that the caller may use. Default: all.
    #[serde(default)]
    pub pipelines: Option<Vec<String>>,
    /// The caller's rights to documents. Default: `Write`.
    #[serde(default)]
    pub documents: DocumentRights,
}

/// A caller's rights to documents at `/v1/documents`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum DocumentRights {
    /// No access.
    None,
    /// Read the documents stored there; in a corpus with `access`, those that the caller may read.
    Read,
    /// Read, add, replace and delete. In a corpus with `access`, only documents that the caller may read. The default.
    #[default]
    Write,
    /// The same for every document, whoever may read it.
    Manage,
}

/// The location of a secret. The configuration never contains the secret itself.
#[derive(Clone, Debug, Deserialize)]
pub enum Secret {
    /// In an environment variable.
    Env(String),
    /// In a file; surrounding whitespace is ignored.
    File(PathBuf),
}

/// The TLS files, in PEM format.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Limits on size, time and number.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum size of a request's body, in megabytes. Default: 8.
    pub body_mb: f64,
    /// Requests per second for each token; 0 for no limit. Each further turn of a request counts as a request too.
    /// Default: 50.
    pub rate: f64,
    /// Burst of requests of a token after a pause. A request with more turns is answered, and the next ones wait longer.
    /// Default: 100.
    pub burst: f64,
    /// Concurrent requests for each token. Default: 64.
    pub token_concurrency: usize,
    /// Megabytes of requests and responses that a token may have under way at once. What is larger may be under way
    /// alone. Default: 128.
    pub token_mb: f64,
    /// Open answer streams for each token. Default: 32.
    pub token_streams: usize,
    /// Concurrent requests in total. Default: 256.
    pub concurrency: usize,
    /// Requests waiting for one of these slots. Default: 256.
    pub waiting: usize,
    /// Open answer streams (`/v1/answers`). Default: 256.
    pub streams: usize,
    /// Seconds that a request may take. Default: 300.
    pub request_s: f64,
    /// Open connections. At the maximum, a new one takes the place of the one that has been idle the longest. Default:
    /// 1024.
    pub connections: usize,
    /// Seconds to receive the headers of a request, and until an idle connection is closed. A body may take as long, and
    /// one second more for every 10 kB. Default: 30.
    pub header_s: f64,
    /// Seconds after which the connection of a client that does not read is closed. Default: 60.
    pub idle_s: f64,
    /// Turns, documents or texts in one request. Default: 2048.
    pub batch: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            body_mb: 8.0,
            rate: 50.0,
            burst: 100.0,
            token_concurrency: 64,
            token_mb: 128.0,
            token_streams: 32,
            concurrency: 256,
            waiting: 256,
            streams: 256,
            request_s: 300.0,
            connections: 1024,
            header_s: 30.0,
            idle_s: 60.0,
            batch: 2048,
        }
    }
}

impl LimitsConfig {
    /// The bytes of a request's body.
    pub fn body_bytes(&self) -> usize {
        (self.body_mb * 1024.0 * 1024.0) as usize
    }
}

impl ServeConfig {
    /// Reads a file. Paths in it are relative to it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not a configuration.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config = Self::parse(&text, &path.display().to_string())?;
        let base = path.parent().unwrap_or(Path::new(""));
        for token in &mut config.tokens {
            if let Secret::File(file) = &mut token.token {
                *file = base.join(&*file);
            }
        }
        match config.jwt.as_mut().map(|jwt| &mut jwt.keys) {
            Some(KeySource::File(file) | KeySource::Secret(Secret::File(file))) => *file = base.join(&*file),
            Some(KeySource::Url(_) | KeySource::Secret(Secret::Env(_))) | None => {}
        }
        if let Some(Secret::File(file)) = config.jwt.as_mut().and_then(|jwt| jwt.sign_in.as_mut()?.secret.as_mut()) {
            *file = base.join(&*file);
        }
        if let Some(tls) = &mut config.tls {
            tls.cert = base.join(&tls.cert);
            tls.key = base.join(&tls.key);
        }
        if let Some(reports) = &mut config.reports {
            *reports = base.join(&*reports);
        }
        Ok(config)
    }

    /// Parses a configuration; `file` is its name in messages.
    ///
    /// # Errors
    ///
    /// The text is not a configuration.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let options = ron::Options::default().with_default_extension(Extensions::IMPLICIT_SOME);
        let config: Self = options.from_str(text).map_err(|error| ConfigError::Syntax {
            file: file.to_owned(),
            line: error.span.start.line,
            column: error.span.start.col,
            problem: error.code.to_string(),
        })?;
        config.check(file)?;
        Ok(config)
    }

    fn check(&self, file: &str) -> Result<(), ConfigError> {
        let wrong = |field, problem: &str| {
            Err(ConfigError::Value { file: file.to_owned(), field, problem: problem.to_owned() })
        };
        let limits = &self.limits;
        for (field, value) in [
            ("limits.body_mb", limits.body_mb),
            ("limits.token_mb", limits.token_mb),
            ("limits.burst", limits.burst),
            ("limits.request_s", limits.request_s),
            ("limits.header_s", limits.header_s),
            ("limits.idle_s", limits.idle_s),
            ("keep_alive_s", self.keep_alive_s),
        ] {
            if !(value > 0.0 && value <= 1e6) {
                return wrong(field, "must be above 0 and at most 1000000");
            }
        }
        for (field, value) in [
            ("limits.rate", limits.rate),
            ("drain_s", self.drain_s),
            ("resume_s", self.resume_s),
            ("link_days", self.link_days),
        ] {
            if !(0.0..=1e6).contains(&value) {
                return wrong(field, "must be 0 to 1000000");
            }
        }
        for (field, value) in [
            ("limits.token_concurrency", limits.token_concurrency),
            ("limits.concurrency", limits.concurrency),
            ("limits.connections", limits.connections),
            ("limits.batch", limits.batch),
        ] {
            if !(1..=1_000_000).contains(&value) {
                return wrong(field, "must be 1 to 1000000");
            }
        }
        for token in &self.tokens {
            if token.rate.is_some_and(|rate| !(0.0..=1e6).contains(&rate)) {
                return wrong("tokens.rate", "must be 0 to 1000000");
            }
            if token.burst.is_some_and(|burst| !(burst > 0.0 && burst <= 1e6)) {
                return wrong("tokens.burst", "must be above 0 and at most 1000000");
            }
            if token.concurrency.is_some_and(|most| !(1..=1_000_000).contains(&most)) {
                return wrong("tokens.concurrency", "must be 1 to 1000000");
            }
        }
        let is_url = |url: &str| ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme) && url != *scheme);
        if self.public_url.as_deref().is_some_and(|url| !is_url(url)) {
            return wrong("public_url", "must begin with `https://` or `http://`");
        }
        if self.jwt.as_ref().is_some_and(|jwt| jwt.audience.is_empty()) {
            return wrong("jwt.audience", "is empty: name this service as the identity provider does");
        }
        if let Some(error) = self.task_prompts.iter().find_map(|pattern| regex::Regex::new(pattern).err()) {
            return wrong("task_prompts", &format!("has an invalid regular expression: {error}"));
        }
        if self.conversation_headers.iter().any(|name| name.parse::<axum::http::HeaderName>().is_err()) {
            return wrong("conversation_headers", "has an invalid header name");
        }
        if self.cors.iter().any(|origin| origin.parse::<axum::http::HeaderValue>().is_err()) {
            return wrong("cors", "has an invalid origin");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_have_their_place() {
        let error = |text: &str| ServeConfig::parse(text, "s.ron").unwrap_err().to_string();
        let unknown = error("Serve(\n  drain: 3,\n)");
        assert!(unknown.starts_with("s.ron:2:") && unknown.contains("drain"), "{unknown}");
        assert!(error("Serve(limits: (body_mb: 0))").contains("`limits.body_mb` must be above 0"));
        assert!(error("Serve(task_prompts: [\"(\"])").contains("invalid regular expression"));
        assert!(error("Serve(").starts_with("s.ron:1:"));
        let token = |field| error(&format!("Serve(tokens: [(name: \"a\", token: Env(\"T\"), {field})])"));
        assert!(token("burst: 0").contains("`tokens.burst` must be above 0"));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let config = ServeConfig::parse(
            r#"(tls: (cert: "a.pem", key: "b.pem"), tokens: [(name: "a", token: File("t"), concurrency: 2)])"#,
            "s.ron",
        )
        .unwrap();
        assert_eq!(config.drain_s, 30.0);
        assert_eq!(config.tokens[0].concurrency, Some(2));
        assert_eq!(config.limits.body_bytes(), 8 << 20);
    }
}
