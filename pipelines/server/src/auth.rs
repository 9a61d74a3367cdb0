//! Authentication: bearer tokens, compared as hashes in constant time.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use serde_json::{Map, Value as Json};
use turnflow_engine::principal::still_has;

use crate::callers::{Callers, named};
use crate::config::{DocumentRights, Secret, ServeConfig};
use crate::error::ApiError;
use crate::jwt::{Jwt, KeyError, PREFIX};
use crate::limits::Share;
use crate::sign_in::SignIn;

/// The environment variable with further tokens: `name=secret,name=secret`.
pub const VARIABLE: &str = "TURNFLOW_TOKENS";

/// Why the tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The environment variable is not set.
    #[error("token `{name}`: the environment variable `{variable}` is not set")]
    Variable {
        /// The token's name.
        name: String,
        /// The variable.
        variable: String,
    },
    /// The file cannot be read.
    #[error("token `{name}`: cannot read `{}`: {source}", path.display())]
    File {
        /// The token's name.
        name: String,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The secret is empty.
    #[error("token `{name}`: the secret is empty")]
    Empty {
        /// The token's name.
        name: String,
    },
    /// The name has a colon.
    #[error("token `{name}`: a name must not contain `:`")]
    Colon {
        /// The token's name.
        name: String,
    },
    /// Two tokens have the same name or the same secret.
    #[error("token `{name}`: another token has the same name or secret")]
    Twice {
        /// The token's name.
        name: String,
    },
    /// The name begins like those of JSON Web Tokens.
    #[error("token `{name}`: a name must not begin with `{PREFIX}`, as those of JSON Web Tokens do")]
    Prefix {
        /// The token's name.
        name: String,
    },
    /// The keys of JSON Web Tokens cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// People cannot sign in.
    #[error("{0}")]
    SignIn(String),
    /// The variable has the wrong format.
    #[error("`{VARIABLE}` must have the format `name=secret,name=secret`")]
    Form,
}

/// A caller, as the server knows it.
pub struct Principal {
    /// The token's name.
    pub name: Arc<str>,
    /// The turn's `principal` for pipelines; `None` if the server has no tokens.
    pub extra: Option<Map<String, Json>>,
    /// The pipelines that the caller may use; `None` for all.
    pub pipelines: Option<BTreeSet<String>>,
    /// The caller's rights to documents.
    pub documents: DocumentRights,
    /// What the caller's requests share.
    pub share: Arc<Share>,
    /// When the token is no longer valid, in seconds since the Unix epoch; `None` if it does not expire.
    pub until: Option<u64>,
}

impl Principal {
    fn new(name: &str, extra: Option<Map<String, Json>>, share: Share) -> Self {
        Self {
            name: name.into(),
            extra,
            pipelines: None,
            documents: DocumentRights::Write,
            share: Arc::new(share),
            until: None,
        }
    }

    /// Whether the caller still has everything that it had when it was `before`: the groups, and the other fields that
    /// pipelines compare with those of passages. Otherwise it may not read what was made for it then.
    pub fn still_has(&self, before: &Map<String, Json>) -> bool {
        still_has(self.extra.as_ref(), before)
    }

    /// The caller's groups.
    pub fn groups(&self) -> Vec<Arc<str>> {
        let groups = self.extra.as_ref().and_then(|extra| extra.get("groups"));
        match groups {
            Some(Json::String(group)) => vec![group.as_str().into()],
            Some(Json::Array(groups)) => groups.iter().filter_map(Json::as_str).map(Into::into).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the caller may use a pipeline.
    pub fn may_use(&self, pipeline: &str) -> bool {
        self.pipelines.as_ref().is_none_or(|names| names.contains(pipeline))
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Principal").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All tokens, by the hashes of their secrets.
pub struct Tokens {
    known: Vec<(blake3::Hash, Arc<Principal>)>,
    /// Verifies JSON Web Tokens, if they are accepted.
    jwt: Option<Jwt>,
    /// The identity provider at which people sign in on the page.
    sign_in: Option<SignIn>,
    /// The caller if there are no tokens.
    anybody: Arc<Principal>,
    callers: Arc<Callers>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// The tokens of a configuration and of the environment; `variable` reads a variable.
    ///
    /// # Errors
    ///
    /// A secret cannot be read, or is a duplicate.
    #[cfg(test)]
    pub fn new(config: &ServeConfig, variable: impl Fn(&str) -> Option<String>) -> Result<Self, TokenError> {
        let callers = Callers::of(config, &variable);
        Self::of(config, variable, callers)
    }

    /// The tokens of a configuration and of the environment; `variable` reads a variable. `callers` is told of the callers
    /// with JSON Web Tokens.
    ///
    /// # Errors
    ///
    /// A secret cannot be read, or is a duplicate.
    pub fn of(
        config: &ServeConfig,
        variable: impl Fn(&str) -> Option<String>,
        callers: Arc<Callers>,
    ) -> Result<Self, TokenError> {
        let limits = &config.limits;
        let mut tokens = Self::none(config);
        tokens.jwt = config.jwt.clone().map(|jwt| Jwt::new(jwt, limits, &variable)).transpose()?;
        tokens.jwt = tokens.jwt.map(|jwt| jwt.telling(callers.clone()));
        tokens.callers = callers;
        tokens.sign_in = SignIn::of(config, &variable).map_err(TokenError::SignIn)?;
        for token in &config.tokens {
            let name = token.name.clone();
            let secret = match &token.token {
                Secret::Env(of) => {
                    variable(of).ok_or_else(|| TokenError::Variable { name: name.clone(), variable: of.clone() })?
                }
                Secret::File(path) => std::fs::read_to_string(path).map_err(|source| TokenError::File {
                    name: name.clone(),
                    path: path.clone(),
                    source,
                })?,
            };
            let (rate, most) =
                (token.rate.unwrap_or(limits.rate), token.concurrency.unwrap_or(limits.token_concurrency));
            let share = Share::with(limits, rate, token.burst.unwrap_or(limits.burst), most);
            let mut principal = Principal::new(&name, Some(named(&name, &token.extra)), share);
            principal.pipelines = token.pipelines.as_ref().map(|names| names.iter().cloned().collect());
            principal.documents = token.documents;
            tokens.add(secret.trim(), principal)?;
        }
        for entry in variable(VARIABLE).iter().flat_map(|all| all.split(',')).filter(|entry| !entry.trim().is_empty()) {
            let (name, secret) = entry.split_once('=').ok_or(TokenError::Form)?;
            let name = name.trim();
            let extra = Some(named(name, &Map::new()));
            let principal = Principal::new(name, extra, Share::new(limits));
            tokens.add(secret.trim(), principal)?;
        }
        Ok(tokens)
    }

    /// No tokens: anyone may call.
    pub fn none(config: &ServeConfig) -> Self {
        let mut anybody = Principal::new("anybody", None, Share::new(&config.limits));
        anybody.documents = DocumentRights::Manage;
        Self { known: Vec::new(), jwt: None, sign_in: None, anybody: Arc::new(anybody), callers: Arc::default() }
    }

    fn add(&mut self, secret: &str, principal: Principal) -> Result<(), TokenError> {
        let name = principal.name.to_string();
        if secret.is_empty() || name.is_empty() {
            return Err(TokenError::Empty { name });
        }
        // It separates the name from a conversation's id.
        if name.contains(':') {
            return Err(TokenError::Colon { name });
        }
        if name.starts_with(PREFIX) {
            return Err(TokenError::Prefix { name });
        }
        let hash = blake3::hash(secret.as_bytes());
        if self.known.iter().any(|(other, of)| *other == hash || of.name == principal.name) {
            return Err(TokenError::Twice { name });
        }
        self.known.push((hash, Arc::new(principal)));
        Ok(())
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.jwt.is_none()
    }

    /// The identity provider at which people sign in on the page, if there is one.
    pub(crate) fn sign_in(&self) -> Option<&SignIn> {
        self.sign_in.as_ref()
    }

    /// The caller of a JSON Web Token.
    ///
    /// # Errors
    ///
    /// 401: the token is not valid, or none are accepted. 503: it cannot be verified at the moment.
    pub(crate) async fn of_jwt(&self, token: &str) -> Result<Arc<Principal>, ApiError> {
        match &self.jwt {
            Some(jwt) => jwt.principal(token).await,
            None => Err(ApiError::unauthorized("this server accepts no JSON Web Tokens")),
        }
    }

    /// The callers as they are now.
    pub fn callers(&self) -> &Arc<Callers> {
        &self.callers
    }

    /// The caller of a request with these headers.
    ///
    /// # Errors
    ///
    /// 401, if there are tokens and the request has none of them; 503, if a token cannot be verified at the moment.
    pub async fn principal(&self, headers: &HeaderMap) -> Result<Arc<Principal>, ApiError> {
        if self.is_empty() {
            return Ok(self.anybody.clone());
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.split_once(' '));
        let Some((_, secret)) = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return Err(ApiError::unauthorized("this server requires a token: send `Authorization: Bearer TOKEN`"));
        };
        let hash = blake3::hash(secret.trim().as_bytes());
        let mut found = None;
        // All are compared, each in constant time, whichever matches.
        for (known, principal) in &self.known {
            if *known == hash {
                found = Some(principal);
            }
        }
        match (found, &self.jwt) {
            (Some(principal), _) => Ok(principal.clone()),
            (None, Some(jwt)) if Jwt::has_form(secret.trim()) => jwt.principal(secret.trim()).await,
            (None, _) => Err(ApiError::unauthorized("unknown token")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())])
    }

    #[tokio::test]
    async fn only_a_known_token_is_let_in() {
        let config = r#"(tokens: [(name: "a", token: Env("A"), extra: {"groups": ["x"]}, pipelines: ["p"])])"#;
        let config = ServeConfig::parse(config, "s.ron").unwrap();
        let variable = |name: &str| match name {
            "A" => Some("first\n".to_owned()),
            VARIABLE => Some("b=second, c=third".to_owned()),
            _ => None,
        };
        let tokens = Tokens::new(&config, variable).unwrap();
        let a = tokens.principal(&headers("Bearer first")).await.unwrap();
        assert_eq!((&*a.name, a.may_use("p"), a.may_use("q")), ("a", true, false));
        assert_eq!(a.extra.as_ref().unwrap()["groups"][0], "x");
        assert_eq!(&*tokens.principal(&headers("bearer third")).await.unwrap().name, "c");
        for wrong in ["Bearer firs", "Bearer ", "Basic first", "first", "Bearer First"] {
            assert!(tokens.principal(&headers(wrong)).await.is_err(), "{wrong}");
        }
        assert!(tokens.principal(&HeaderMap::new()).await.is_err());
        assert!(!format!("{tokens:?} {a:?}").contains("first"));
        assert!(Tokens::new(&config, |_| None).is_err());
        assert!(matches!(
            Tokens::new(&ServeConfig::default(), |_| Some("a=x,b=x".to_owned())),
            Err(TokenError::Twice { .. })
        ));
    }

    #[tokio::test]
    async fn without_tokens_anybody_may_call() {
        let tokens = Tokens::new(&ServeConfig::default(), |_| None).unwrap();
        assert!(tokens.is_empty() && tokens.principal(&HeaderMap::new()).await.unwrap().extra.is_none());
    }
}
