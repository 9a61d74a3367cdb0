//! The keys of a JSON Web Key Set (RFC 7517). A key that is not understood, or that is for something else, is left out
//! with a warning, and the others are used (section 5).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value as Json;

use super::KeyError;

/// Maximum length of a text of the provider in a warning, in characters.
const SHOWN: usize = 40;

/// A key with the algorithms that it may be used for.
pub(super) struct Key {
    /// Its `kid`.
    pub id: Option<String>,
    /// What it may verify.
    pub algorithms: Vec<Algorithm>,
    /// The key.
    pub key: DecodingKey,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Json>,
}

/// The keys of a set that can verify tokens.
///
/// # Errors
///
/// The text is not a key set.
pub(super) fn parse(place: &str, bytes: &[u8]) -> Result<Vec<Key>, KeyError> {
    let set: Set = serde_json::from_slice(bytes)
        .map_err(|error| KeyError::Read { place: place.to_owned(), reason: error.to_string() })?;
    let mut keys = Vec::new();
    for value in set.keys {
        let text = |field: &str| {
            let text = value.get(field).and_then(Json::as_str).unwrap_or("none");
            text.chars().take(SHOWN).collect::<String>().escape_debug().to_string()
        };
        let (kty, kid) = (text("kty"), text("kid"));
        match key(value) {
            Ok(key) => keys.push(key),
            Err(reason) => tracing::warn!(place, kty, kid, reason, "a key of the set is left out"),
        }
    }
    Ok(keys)
}

/// A public key for signatures.
fn key(mut value: Json) -> Result<Key, String> {
    let fields = value.as_object_mut().ok_or("it is not an object")?;
    match fields.get("use") {
        None | Some(Json::Null) => {}
        Some(Json::String(usage)) if usage == "sig" => {}
        Some(_) => return Err("its `use` is not `sig`".to_owned()),
    }
    match fields.get("key_ops") {
        None | Some(Json::Null) => {}
        Some(Json::Array(uses)) if uses.iter().any(|of| of == "verify") => {}
        Some(_) => return Err("its `key_ops` do not include `verify`".to_owned()),
    }
    // What was checked, and what nobody needs, must not keep the key from being read.
    let id = fields.get("kid").and_then(Json::as_str).map(str::to_owned);
    let only = fields.get("alg").filter(|only| !only.is_null()).cloned();
    let needed = ["kty", "crv", "n", "e", "x", "y", "k"];
    fields.retain(|name, _| needed.contains(&name.as_str()));
    let jwk: Jwk = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return Err("its curve is not supported".to_owned()),
        },
        AlgorithmParameters::OctetKeyPair(pair) => match pair.curve {
            EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
            _ => return Err("its curve is not supported".to_owned()),
        },
        AlgorithmParameters::OctetKey(_) => return Err("a secret does not belong in a public set".to_owned()),
    };
    if let Some(only) = only {
        let only = only.as_str().ok_or("its `alg` is not a text")?;
        // RFC 9864 names the algorithm of this curve anew.
        let only = if only == "Ed25519" { "EdDSA" } else { only };
        algorithms.retain(|one| format!("{one:?}") == only);
        if algorithms.is_empty() {
            return Err("its `alg` is not one that verifies tokens with such a key".to_owned());
        }
    }
    let key = DecodingKey::from_jwk(&jwk).map_err(|error| error.to_string())?;
    Ok(Key { id, algorithms, key })
}
