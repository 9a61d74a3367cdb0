//! Settings of every model server: URL, key, time limits and retries.

use std::time::Duration;

use turnflow_engine::component::Check;
use turnflow_engine::inference::InferenceError;

use super::client::{Client, Limits};

/// The config fields of the same names.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Server<'a> {
    pub url: &'a str,
    pub key_env: Option<&'a str>,
    pub timeout_s: f64,
    pub silence_s: f64,
    pub pause_s: f64,
    pub concurrency: usize,
    pub retries: usize,
}

impl Server<'_> {
    /// Reports invalid values.
    pub fn validate(&self, check: &mut Check<'_>) {
        match reqwest::Url::parse(self.url) {
            Ok(url) if !matches!(url.scheme(), "http" | "https") => {
                check.error("wrong-value", "url", "the URL must start with http:// or https://");
            }
            Ok(url) if !url.username().is_empty() || url.password().is_some() || url.query().is_some() => {
                let message = "the URL must not contain a user, password or query; a key belongs in the environment \
                               variable that `key_env` names";
                check.error("wrong-value", "url", message);
            }
            Ok(_) => {}
            Err(error) => check.error("wrong-value", "url", format!("not a valid URL: {error}")),
        }
        if self.key_env.is_some_and(|name| !is_variable(name)) {
            check.error(
                "wrong-value",
                "key_env",
                "must be the name of an environment variable in capitals, such as OPENAI_API_KEY",
            );
        }
    }

    /// The source of the key, for `explain`.
    pub fn key(&self) -> String {
        self.key_env.map_or("none".to_owned(), |name| format!("from ${name}"))
    }

    /// A client for `path` on the server.
    pub fn client(&self, path: &str) -> Result<Client, InferenceError> {
        let key = self.key_env.map(|variable| (variable, std::env::var(variable).ok()));
        let limits = Limits {
            whole: Duration::from_secs_f64(self.timeout_s),
            silence: Duration::from_secs_f64(self.silence_s),
            pause: Duration::from_secs_f64(self.pause_s),
            retries: self.retries,
            concurrency: self.concurrency,
        };
        Client::new(self.url, path, key, limits)
    }
}

/// Whether the text can be the name of an environment variable in capitals. This rejects keys, which contain lower-case
/// letters.
fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_uppercase() || c == '_')
        && chars.all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}
