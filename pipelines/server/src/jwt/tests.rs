use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const CONFIG: &str = r#"(keys: Secret(Env("KEY")), audience: ["turnflow"], issuer: Some("https://id.example"),
    groups: "realm.roles", claims: ["department"])"#;

fn jwt(config: &str) -> Jwt {
    let config: JwtConfig = ron::from_str(config).unwrap();
    Jwt::new(config, &LimitsConfig::default(), |_| Some("a secret of the provider".to_owned())).unwrap()
}

fn signed(claims: &Json, secret: &str) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
}

fn claims() -> Json {
    json!({"sub": "auth0|a:1", "aud": "turnflow", "iss": "https://id.example", "exp": now() + 600,
        "realm": {"roles": ["staff", 7]}, "department": "harbour", "email": "a@example.org"})
}

fn with(name: &str, value: Json) -> Json {
    let mut claims = claims();
    claims[name] = value;
    claims
}

#[tokio::test]
async fn claims_become_the_principal() {
    let jwt = jwt(CONFIG);
    let token = signed(&claims(), "a secret of the provider");
    let caller = jwt.principal(&token).await.unwrap();
    let expected = json!({"name": "jwt/auth0|a%3A1", "groups": ["staff"], "department": "harbour"});
    assert_eq!(Json::Object(caller.extra.clone().unwrap()), expected);
    assert_eq!((caller.documents, caller.may_use("any")), (DocumentRights::None, true));
    // Another token of the same caller shares the limits.
    let other =
        jwt.principal(&signed(&with("realm", json!({"roles": "x y"})), "a secret of the provider")).await.unwrap();
    assert!(Arc::ptr_eq(&caller.bucket, &other.bucket) && Arc::ptr_eq(&caller.places, &other.places));
    assert_eq!(other.extra.as_ref().unwrap()["groups"], json!(["x", "y"]));
}

#[tokio::test]
async fn tokens_that_are_not_valid_are_refused_with_a_reason() {
    let jwt = jwt(CONFIG);
    let right = "a secret of the provider";
    let unsigned = {
        use base64::Engine as _;
        let part = |value: &Json| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", part(&json!({"alg": "none"})), part(&claims()))
    };
    for (token, reason) in [
        (signed(&claims(), "another secret"), "signature is not valid"),
        (signed(&with("exp", json!(now() - 600)), right), "has expired"),
        (signed(&with("nbf", json!(now() + 600)), right), "not valid yet"),
        (signed(&with("aud", json!("other")), right), "for another service"),
        (signed(&with("iss", json!("https://evil.example")), right), "of another issuer"),
        (signed(&with("exp", Json::Null), right), "lacks a claim"),
        (signed(&with("sub", json!("")), right), "lacks the claim `sub`"),
        (unsigned, "cannot be read"),
        ("a.b.c".to_owned(), "cannot be read"),
        ("x".repeat(20_000), "too long"),
    ] {
        let error = jwt.principal(&token).await.unwrap_err();
        assert!(error.status.as_u16() == 401 && error.message.contains(reason), "{} for {reason}", error.message);
    }
}

/// A public key is no secret: a token that is signed with it as if it were one is refused.
#[tokio::test]
async fn the_algorithm_is_the_keys() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let point = pair.public_key_raw();
    let part = |bytes: &[u8]| {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
    };
    let jwks = json!({"keys": [
        {"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "x": part(&point[1..33]), "y": part(&point[33..65])},
        {"kty": "oct", "kid": "o", "k": part(b"shared")},
    ]});
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    std::fs::write(&path, jwks.to_string()).unwrap();
    let config = format!(r#"(keys: File({path:?}), audience: ["turnflow"])"#);
    let jwt = jwt(&config);
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("k".to_owned());
    let key = EncodingKey::from_ec_der(&pair.serialize_der());
    let token = encode(&header, &claims(), &key).unwrap();
    assert!(jwt.principal(&token).await.is_ok());
    header.kid = Some("other".to_owned());
    let error = jwt.principal(&encode(&header, &claims(), &key).unwrap()).await.unwrap_err();
    assert!(error.message.contains("unknown key"), "{}", error.message);
    for secret in [point, b"shared"] {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("k".to_owned());
        let forged = encode(&header, &claims(), &EncodingKey::from_secret(secret)).unwrap();
        assert!(jwt.principal(&forged).await.unwrap_err().message.contains("unknown key"));
    }
}

/// Keys of a URL are read with the first token, and again for a key that is new. While the provider cannot be reached, the
/// earlier keys are used.
#[tokio::test]
async fn keys_of_a_url_are_read_when_they_are_needed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pair = rcgen::KeyPair::generate().unwrap();
    let point = pair.public_key_raw().to_vec();
    let part = |bytes: &[u8]| {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
    };
    let jwks = json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": part(&point[1..33]), "y": part(&point[33..65])}]});
    let served = tokio::spawn(async move {
        let mut answered = 0;
        // The second request is not answered properly.
        while answered < 2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            let (status, body) = if answered == 0 { ("200 OK", jwks.to_string()) } else { ("500 No", String::new()) };
            let length = body.len();
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(text.as_bytes()).await.unwrap();
            answered += 1;
        }
    });
    let jwt = jwt(&format!(r#"(keys: Url("http://{address}/jwks"), audience: ["turnflow"])"#));
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("k".to_owned());
    let key = EncodingKey::from_ec_der(&pair.serialize_der());
    let token = |claims: &Json| encode(&header, claims, &key).unwrap();
    assert!(jwt.principal(&token(&claims())).await.is_ok());
    jwt.keys.lock().read = Instant::now().checked_sub(FRESH);
    assert!(jwt.principal(&token(&with("sub", json!("b")))).await.is_ok());
    served.await.unwrap();
    // Nothing listens any more.
    jwt.keys.lock().read = Instant::now().checked_sub(FRESH);
    assert!(jwt.principal(&token(&with("sub", json!("c")))).await.is_ok());
    let lost = self::jwt(&format!(r#"(keys: Url("http://{address}/jwks"), audience: ["turnflow"])"#));
    assert_eq!(lost.principal(&token(&claims())).await.unwrap_err().status.as_u16(), 503);
    let config: JwtConfig = ron::from_str(r#"(keys: Url("http://id.example/jwks"), audience: ["x"])"#).unwrap();
    assert!(matches!(Jwt::new(config, &LimitsConfig::default(), |_| None), Err(KeyError::Plain(_))));
}
