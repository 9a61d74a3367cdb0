//! JSON Web Tokens (RFC 7519): callers whom an identity provider has signed in.
//!
//! The provider's public keys come from a file or a URL (JWKS, RFC 7517). The algorithm is that of the key, never what
//! the token says. A caller's name and groups are claims of the token, so a caller can neither leave them out nor widen
//! them.

mod claims;
mod keys;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, errors::ErrorKind};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use self::claims::Claims;
pub(crate) use self::claims::unverified;
use self::keys::{Key, parse};
use crate::auth::Principal;
use crate::callers::Callers;
use crate::config::{DocumentRights, LimitsConfig, Secret};
use crate::error::ApiError;
use crate::limits::Share;
use crate::sign_in::SignInConfig;

/// The beginning of the names of these callers. No other caller's name begins like that.
pub const PREFIX: &str = "jwt/";
/// Maximum size of a token, in bytes.
const TOKEN_BYTES: usize = 16 << 10;
/// Maximum size of a key set, in bytes.
const KEYS_BYTES: usize = 1 << 20;
/// Keys of a URL are read again after this time, and for an unknown key after the shorter one.
const FRESH: Duration = Duration::from_secs(3600);
const AGAIN: Duration = Duration::from_secs(30);
/// Time limit for reading keys of a URL.
const FETCH: Duration = Duration::from_secs(10);
/// Accepted difference between the clocks, in seconds.
const LEEWAY: u64 = 60;
/// Shortest secret of HS256, in bytes: the size of its hash.
const SHORTEST_SECRET: usize = 32;
/// Maximum number of verified tokens, and of callers, to remember.
const MOST: usize = 10_000;

/// Whether an address is encrypted, or on this machine.
pub(crate) fn is_safe(url: &reqwest::Url) -> bool {
    let is_local = url.host_str().is_some_and(|host| ["127.0.0.1", "localhost", "[::1]"].contains(&host));
    url.scheme() == "https" || url.scheme() == "http" && is_local
}

/// Where the keys are that sign tokens.
#[derive(Clone, Debug, Deserialize)]
pub enum KeySource {
    /// A file with a JSON Web Key Set.
    File(PathBuf),
    /// A URL of a JSON Web Key Set, with `https://`.
    Url(String),
    /// A secret that the provider shares, for HS256, HS384 and HS512.
    Secret(Secret),
}

/// Which JSON Web Tokens are accepted, and what their claims mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// The keys.
    pub keys: KeySource,
    /// Accepted values of the claim `aud`: a token for another service is refused.
    pub audience: Vec<String>,
    /// The accepted value of the claim `iss`. Default: any.
    #[serde(default)]
    pub issuer: Option<String>,
    /// The claim with the caller's name. Default: `sub`.
    #[serde(default = "default_name")]
    pub name: String,
    /// The claim with the caller's groups, or a path to it, such as `realm_access.roles`: a list of texts, or one text,
    /// which is one group. Only in a claim named `scope` or `scp`, blanks separate the groups. Default: `groups`.
    #[serde(default = "default_groups")]
    pub groups: String,
    /// Further claims that become fields of the turn's `principal`. Default: none.
    #[serde(default)]
    pub claims: Vec<String>,
    /// The pipelines that callers may use. Default: all.
    #[serde(default)]
    pub pipelines: Option<Vec<String>>,
    /// The callers' rights to documents. Default: `None`.
    #[serde(default = "default_documents")]
    pub documents: DocumentRights,
    /// How people sign in on the page. Default: they need a token.
    #[serde(default)]
    pub sign_in: Option<SignInConfig>,
}

fn default_name() -> String {
    "sub".to_owned()
}
fn default_groups() -> String {
    "groups".to_owned()
}
fn default_documents() -> DocumentRights {
    DocumentRights::None
}

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file or the URL cannot be read.
    #[error("cannot read the keys of `{place}`: {reason}")]
    Read {
        /// The file or the URL.
        place: String,
        /// Why.
        reason: String,
    },
    /// It has no usable key.
    #[error("`{0}` has no key that can verify a token")]
    NoKey(String),
    /// The URL is not encrypted.
    #[error("the keys' URL `{0}` must begin with https://")]
    Plain(String),
    /// The secret is empty.
    #[error("the secret of `jwt` is empty, or its environment variable is not set")]
    NoSecret,
    /// The secret could be guessed from a token.
    #[error("the secret of `jwt` has {0} bytes, but needs at least {SHORTEST_SECRET} (RFC 7518, section 3.2)")]
    ShortSecret(usize),
}

/// The keys, and when they were last asked for.
struct Keys {
    /// `None`: they have never been read.
    keys: Option<Arc<Vec<Key>>>,
    asked: Option<Instant>,
}

/// A verified token.
struct Verified {
    principal: Arc<Principal>,
    /// The end of its validity, in seconds since the Unix epoch.
    until: u64,
    /// The keys that it was verified with.
    by: Arc<Vec<Key>>,
}

/// Verifies tokens.
pub struct Jwt {
    config: JwtConfig,
    limits: LimitsConfig,
    client: reqwest::Client,
    keys: Mutex<Keys>,
    /// One reader at a time.
    reading: tokio::sync::Mutex<()>,
    /// Verified tokens, by hash.
    known: Mutex<HashMap<blake3::Hash, Verified>>,
    /// What the requests of a caller share.
    callers: Mutex<HashMap<Arc<str>, Arc<Share>>>,
    /// Who is told of verified callers.
    told: Arc<Callers>,
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("audience", &self.config.audience).finish_non_exhaustive()
    }
}

impl Jwt {
    /// Reads the keys of a file or a secret; those of a URL are read with the first token. `variable` reads an environment
    /// variable.
    ///
    /// # Errors
    ///
    /// The file or the secret cannot be used.
    pub fn new(
        config: JwtConfig,
        limits: &LimitsConfig,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, KeyError> {
        let mut keys = Keys { keys: None, asked: None };
        match &config.keys {
            KeySource::File(path) => {
                let place = path.display().to_string();
                let failed = |error: std::io::Error| KeyError::Read { place: place.clone(), reason: error.to_string() };
                let found = parse(&place, &std::fs::read(path).map_err(failed)?)?;
                if found.is_empty() {
                    return Err(KeyError::NoKey(place));
                }
                keys.keys = Some(Arc::new(found));
            }
            KeySource::Url(url) => {
                if !reqwest::Url::parse(url).is_ok_and(|url| is_safe(&url)) {
                    return Err(KeyError::Plain(url.clone()));
                }
            }
            KeySource::Secret(secret) => {
                let secret = match secret {
                    Secret::Env(name) => variable(name),
                    Secret::File(path) => std::fs::read_to_string(path).ok(),
                };
                let secret = secret.map(|secret| secret.trim().to_owned()).filter(|secret| !secret.is_empty());
                let secret = secret.ok_or(KeyError::NoSecret)?;
                if secret.len() < SHORTEST_SECRET {
                    return Err(KeyError::ShortSecret(secret.len()));
                }
                let key = DecodingKey::from_secret(secret.as_bytes());
                let algorithms = vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
                keys.keys = Some(Arc::new(vec![Key { id: None, algorithms, key }]));
            }
        }
        // A redirect could lead to a place that is not safe.
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
        let failed =
            |error: reqwest::Error| KeyError::Read { place: "the provider".to_owned(), reason: error.to_string() };
        let client = client.map_err(failed)?;
        Ok(Self {
            config,
            limits: *limits,
            client,
            keys: Mutex::new(keys),
            reading: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            callers: Mutex::default(),
            told: Arc::default(),
        })
    }

    /// Tells of its callers there.
    #[must_use]
    pub fn telling(mut self, callers: Arc<Callers>) -> Self {
        self.told = callers;
        self
    }

    /// Whether a secret has the form of a JSON Web Token: three parts with dots between them.
    pub fn has_form(secret: &str) -> bool {
        secret.split('.').count() == 3
    }

    /// The caller of a token.
    ///
    /// # Errors
    ///
    /// 401: the token is not valid. 503: the keys cannot be read.
    pub async fn principal(&self, token: &str) -> Result<Arc<Principal>, ApiError> {
        if token.len() > TOKEN_BYTES {
            return Err(ApiError::unauthorized("the token is too long"));
        }
        let hash = blake3::hash(token.as_bytes());
        let mut keys = self.keys(false).await?;
        // A token of a key that is gone is not valid any more.
        if let Some(Verified { principal, until, by }) = self.known.lock().get(&hash)
            && now() <= until.saturating_add(LEEWAY)
            && Arc::ptr_eq(by, &keys)
        {
            return Ok(principal.clone());
        }
        let header = claims::header(token)?;
        let is_candidate = |key: &&Key| {
            key.algorithms.contains(&header.alg) && (header.kid.is_none() || key.id.is_none() || key.id == header.kid)
        };
        if !keys.iter().any(|key| is_candidate(&key)) {
            keys = self.keys(true).await?;
        }
        let mut reason = None;
        for key in keys.iter().filter(is_candidate) {
            let validation = self.validation(header.alg);
            let read = match decode::<Claims>(token, &key.key, &validation) {
                Err(error) if matches!(error.kind(), ErrorKind::Json(_)) => {
                    claims::odd(token, &key.key, validation, |claim| self.uses(claim)).unwrap_or(Err(error))
                }
                read => read.map(|valid| (claims::exact(token), valid.claims)),
            };
            match read {
                Ok((exact, claims)) => return self.accepted(hash, &keys, &claims, &exact),
                Err(error) => reason = Some(error.into_kind()),
            }
        }
        Err(ApiError::unauthorized(match reason {
            None => "the token is signed with an unknown key",
            Some(ErrorKind::ExpiredSignature) => "the token has expired",
            Some(ErrorKind::ImmatureSignature) => "the token is not valid yet",
            Some(ErrorKind::InvalidAudience) => "the token is for another service",
            Some(ErrorKind::InvalidIssuer) => "the token is of another issuer",
            Some(ErrorKind::Json(_)) => "the token's claims cannot be read, or one is there twice",
            Some(ErrorKind::MissingRequiredClaim(_)) => "the token lacks a claim: `exp`, `aud` or `iss`",
            Some(_) => "the token's signature is not valid",
        }))
    }

    /// Whether a claim decides about the caller or the token's validity.
    fn uses(&self, claim: &str) -> bool {
        let config = &self.config;
        let is_of = |path: &String| path == claim || path.split('.').next() == Some(claim);
        let mut paths = config.claims.iter().chain([&config.name, &config.groups]);
        ["exp", "nbf", "iat", "iss", "aud"].contains(&claim) || paths.any(is_of)
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_audience(&self.config.audience);
        let mut required = vec!["exp", "aud"];
        if let Some(issuer) = &self.config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        validation
    }

    /// Remembers a verified token, and returns its caller.
    fn accepted(
        &self,
        hash: blake3::Hash,
        by: &Arc<Vec<Key>>,
        claims: &Claims,
        exact: &Map<String, Json>,
    ) -> Result<Arc<Principal>, ApiError> {
        let config = &self.config;
        claims.check()?;
        let (until, issued) = (claims.until(), claims.issued());
        let claims = &claims.0;
        let subject = at(claims, &config.name).and_then(Json::as_str).filter(|name| !name.is_empty());
        let subject =
            subject.ok_or_else(|| ApiError::unauthorized(format!("the token lacks the claim `{}`", config.name)))?;
        let groups: Vec<Json> = match at(claims, &config.groups) {
            Some(Json::Array(groups)) => groups.iter().filter(|group| group.is_string()).cloned().collect(),
            Some(Json::String(groups)) if is_scope(&config.groups) => {
                groups.split_whitespace().map(Json::from).collect()
            }
            Some(Json::String(group)) => vec![group.as_str().into()],
            _ => Vec::new(),
        };
        let mut extra = Map::new();
        for name in &config.claims {
            // Filters compare them with the fields of documents, which are exact.
            let value = at(exact, name).or_else(|| at(claims, name));
            extra.extend(value.map(|value| (name.clone(), value.clone())));
        }
        let name: Arc<str> = format!("{PREFIX}{}", utf8_percent_encode(subject, IN_NAME)).into();
        extra.insert("name".to_owned(), (&*name).into());
        extra.insert("groups".to_owned(), groups.into());
        let share = self.share(&name);
        let pipelines = config.pipelines.as_ref().map(|names| names.iter().cloned().collect());
        let documents = config.documents;
        let end = Some(until.saturating_add(LEEWAY));
        self.told.see(&name, &extra, issued, until.saturating_add(LEEWAY));
        let principal = Arc::new(Principal { name, extra: Some(extra), pipelines, documents, share, until: end });
        let mut known = self.known.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(hash, Verified { principal: principal.clone(), until, by: by.clone() });
        Ok(principal)
    }

    /// What the requests of a caller share.
    fn share(&self, name: &Arc<str>) -> Arc<Share> {
        let mut callers = self.callers.lock();
        if callers.len() >= MOST {
            // The others have no request at the moment.
            callers.retain(|_, share| Arc::strong_count(share) > 1);
        }
        callers.entry(name.clone()).or_insert_with(|| Arc::new(Share::new(&self.limits))).clone()
    }

    /// The keys. Those of a URL are read again if they are old, or after a while if a key is `missing`.
    async fn keys(&self, missing: bool) -> Result<Arc<Vec<Key>>, ApiError> {
        let fresh = if missing { AGAIN } else { FRESH };
        let known = |this: &Self, fresh: Duration| {
            let keys = this.keys.lock();
            let is_fresh = keys.asked.is_some_and(|at| at.elapsed() < fresh);
            (keys.keys.clone(), is_fresh)
        };
        let KeySource::Url(url) = &self.config.keys else { return Ok(known(self, fresh).0.unwrap_or_default()) };
        let unreadable = || ApiError::unavailable("the keys of the identity provider cannot be read");
        let _one = match known(self, fresh) {
            (Some(keys), true) => return Ok(keys),
            _ => self.reading.lock().await,
        };
        match (known(self, fresh), known(self, AGAIN).1) {
            ((Some(keys), true), _) => return Ok(keys),
            ((None, _), true) => return Err(unreadable()),
            _ => {}
        }
        let read = fetch(&self.client, url).await.and_then(|bytes| parse(url, &bytes));
        let mut keys = self.keys.lock();
        keys.asked = Some(Instant::now());
        match read {
            Ok(read) => {
                if read.is_empty() {
                    tracing::error!(error = %KeyError::NoKey(url.clone()), "callers with a JSON Web Token are refused");
                }
                // Keys that are no longer in the set are withdrawn, also if the set has no other one.
                keys.keys = Some(Arc::new(read));
            }
            Err(error) if keys.keys.is_none() => {
                tracing::error!(%error, "callers with a JSON Web Token are refused");
            }
            Err(error) => tracing::warn!(%error, "the earlier keys are still used"),
        }
        keys.keys.clone().ok_or_else(unreadable)
    }
}

async fn fetch(client: &reqwest::Client, url: &str) -> Result<Vec<u8>, KeyError> {
    let failed = |reason: String| KeyError::Read { place: url.to_owned(), reason };
    let read = async {
        let mut response = client.get(url).send().await?.error_for_status()?;
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > KEYS_BYTES {
                return Ok(None);
            }
        }
        Ok::<_, reqwest::Error>(Some(bytes))
    };
    let read = tokio::time::timeout(FETCH, read).await.map_err(|_| failed("no answer".to_owned()))?;
    read.map_err(|error| failed(error.to_string()))?.ok_or_else(|| failed("it is too large".to_owned()))
}

/// A claim: of this name, or at this path.
fn at<'a>(claims: &'a Map<String, Json>, path: &str) -> Option<&'a Json> {
    if let Some(claim) = claims.get(path) {
        return Some(claim);
    }
    let (name, rest) = path.split_once('.')?;
    at(claims.get(name)?.as_object()?, rest)
}

/// Whether a claim is a list of words in one text, as OAuth's `scope` (RFC 6749, section 3.3).
fn is_scope(path: &str) -> bool {
    matches!(path.rsplit('.').next(), Some("scope" | "scp"))
}

/// What is encoded in a name: a colon separates it from a conversation's id, and control characters would break lines of
/// the log.
const IN_NAME: &AsciiSet = &CONTROLS.add(b'%').add(b':');

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
