//! The header and the claims of a token, read strictly: what is there twice, or is not what it should be, is refused.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::verify;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};
use turnflow_engine::odd_json;

use crate::error::ApiError;

/// The last second of the year 9999. A later time is a mistake, such as milliseconds.
const LATEST: f64 = 253_402_300_799.0;

/// What is read of a header.
pub(super) struct Header {
    /// The algorithm of the signature.
    pub alg: Algorithm,
    /// The id of the key.
    pub kid: Option<String>,
}

/// The header of a token.
///
/// # Errors
///
/// 401: it cannot be read, or it needs an extension that this server does not know (RFC 7515, section 4.1.11).
pub(super) fn header(token: &str) -> Result<Header, ApiError> {
    let unreadable = || ApiError::unauthorized("the token cannot be read");
    let part = token.split('.').next().unwrap_or_default();
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| unreadable())?;
    let Claims(fields) = serde_json::from_slice(&bytes).map_err(|_| unreadable())?;
    if fields.contains_key("crit") {
        return Err(ApiError::unauthorized("the token's header has `crit`: this server knows no extension"));
    }
    let alg = fields.get("alg").and_then(Json::as_str).ok_or_else(unreadable)?;
    let alg = alg.parse::<Algorithm>().map_err(|_| unreadable())?;
    let kid = match fields.get("kid") {
        None | Some(Json::Null) => None,
        Some(Json::String(kid)) => Some(kid.clone()),
        Some(_) => return Err(unreadable()),
    };
    Ok(Header { alg, kid })
}

/// The claims of a token that is not verified. Empty if they cannot be read.
pub(crate) fn unverified(token: &str) -> Map<String, Json> {
    let part = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    part.and_then(|bytes| serde_json::from_slice::<Claims>(&bytes).ok()).map(|claims| claims.0).unwrap_or_default()
}

/// The claims of a verified token, with whole numbers of more than 64 bits as texts. Empty if there are none of these.
pub(super) fn exact(token: &str) -> Map<String, Json> {
    let part = token.split('.').nth(1).unwrap_or_default();
    let text = URL_SAFE_NO_PAD.decode(part).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    match odd_json::widened(&text) {
        Cow::Borrowed(_) => Map::new(),
        Cow::Owned(widened) => serde_json::from_str::<Claims>(&widened).map_or_else(|_| Map::new(), |claims| claims.0),
    }
}

/// The claims of a token whose JSON has values that cannot be held, such as `1e400` or half an emoji, with those left
/// out; and the same with exact numbers. `None`: the signature is not valid, or such a value is in a claim that is used.
pub(super) fn odd(
    token: &str,
    key: &DecodingKey,
    mut validation: Validation,
    is_used: impl Fn(&str) -> bool,
) -> Option<jsonwebtoken::errors::Result<(Map<String, Json>, Claims)>> {
    let (message, signature) = token.rsplit_once('.')?;
    let (head, part) = message.split_once('.')?;
    let [algorithm] = validation.algorithms[..] else { return None };
    if !verify(signature, message.as_bytes(), key, algorithm).ok()? {
        return None;
    }
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(part).ok()?).ok()?;
    let (mended, changed) = odd_json::finite(&text)?;
    if changed.iter().any(|claim| is_used(claim)) {
        return None;
    }
    // The signature is that of the text before: only the claims are checked here.
    validation.insecure_disable_signature_validation();
    let mended = format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode(mended));
    Some(decode::<Claims>(&mended, key, &validation).map(|valid| (exact(&mended), valid.claims)))
}

/// The claims of a token. No name is there twice, at any depth: two readers could take different ones.
pub(super) struct Claims(pub Map<String, Json>);

impl Claims {
    /// Checks the form of the claims that decide about validity; their values are checked with the signature.
    ///
    /// # Errors
    ///
    /// 401: a time is not a number of seconds, or the issuer is not a text.
    pub fn check(&self) -> Result<(), ApiError> {
        for name in ["exp", "nbf", "iat"] {
            let time = self.0.get(name).filter(|time| !time.is_null());
            let is_time = |time: &Json| time.as_f64().is_some_and(|time| (0.0..=LATEST).contains(&time));
            if time.is_some_and(|time| !is_time(time)) {
                return Err(ApiError::unauthorized(format!("the token's claim `{name}` is not a time in seconds")));
            }
        }
        match self.0.get("iss") {
            None | Some(Json::Null | Json::String(_)) => Ok(()),
            Some(_) => Err(ApiError::unauthorized("the token's claim `iss` is not a text")),
        }
    }

    /// When the token was issued, or else the end of its validity, in seconds since the Unix epoch.
    pub fn issued(&self) -> f64 {
        let time = |name: &str| self.0.get(name).and_then(Json::as_f64);
        time("iat").or_else(|| time("exp")).unwrap_or_default()
    }

    /// The end of the validity, in seconds since the Unix epoch.
    pub fn until(&self) -> u64 {
        self.0.get("exp").and_then(Json::as_f64).unwrap_or_default() as u64
    }
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Unique::deserialize(deserializer)?.0 {
            Json::Object(fields) => Ok(Self(fields)),
            _ => Err(de::Error::custom("it is not an object")),
        }
    }
}

/// JSON whose objects have no name twice.
struct Unique(Json);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading).map(Self)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut found = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            found.push(item);
        }
        Ok(found.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let mut found = Map::new();
        while let Some((name, Unique(value))) = fields.next_entry::<String, Unique>()? {
            if found.contains_key(&name) {
                return Err(de::Error::custom(format!("`{name}` is there twice")));
            }
            found.insert(name, value);
        }
        Ok(found.into())
    }
}
