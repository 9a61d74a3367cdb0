use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const CONFIG: &str = r#"(keys: Secret(Env("KEY")), audience: ["turnflow"], issuer: Some("https://id.example"),
    groups: "realm.roles", claims: ["department"])"#;

fn jwt(config: &str) -> Jwt {
    let config: JwtConfig = ron::from_str(config).unwrap();
    Jwt::new(config, &LimitsConfig::default(), |_| Some("a secret of the provider, of 32 bytes and more".to_owned()))
        .unwrap()
}

fn signed(claims: &Json, secret: &str) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
}

/// A token of claims that `serde_json` would not write like that.
fn signed_text(claims: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), URL_SAFE_NO_PAD.encode(claims));
    let key = EncodingKey::from_secret(b"a secret of the provider, of 32 bytes and more");
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
    format!("{message}.{signature}")
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
    let token = signed(&claims(), "a secret of the provider, of 32 bytes and more");
    let caller = jwt.principal(&token).await.unwrap();
    let expected = json!({"name": "jwt/auth0|a%3A1", "groups": ["staff"], "department": "harbour"});
    assert_eq!(Json::Object(caller.extra.clone().unwrap()), expected);
    assert_eq!((caller.documents, caller.may_use("any")), (DocumentRights::None, true));
    // Another token of the same caller shares the limits.
    let other = jwt
        .principal(&signed(&with("realm", json!({"roles": "x y"})), "a secret of the provider, of 32 bytes and more"))
        .await
        .unwrap();
    assert!(Arc::ptr_eq(&caller.share, &other.share));
    assert_eq!(other.extra.as_ref().unwrap()["groups"], json!(["x y"]), "one text is one group");
}

#[tokio::test]
async fn whole_numbers_in_claims_are_exact() {
    let jwt = jwt(&CONFIG.replace("[\"department\"]", "[\"department\", \"more\"]"));
    let wide = "123456789012345678901234567890";
    let department = json!({"id": 9_007_199_254_740_993_i64});
    let signed =
        signed_text(&with("department", department).to_string().replacen('{', &format!("{{\"more\":[{wide}],"), 1));
    let extra = jwt.principal(&signed).await.unwrap().extra.clone().unwrap();
    assert_eq!((&extra["more"], &extra["department"]["id"]), (&json!([wide]), &json!(9_007_199_254_740_993_i64)));
}

#[tokio::test]
async fn an_odd_value_in_a_claim_that_nobody_uses_is_left_out() {
    let jwt = jwt(CONFIG);
    let digits = "9".repeat(400);
    let with = |field: &str| claims().to_string().replacen('{', &format!("{{{field},"), 1);
    for odd in [r#""\ud83d""#, "1e400", "NaN", &*digits, &format!("{}{}", "[".repeat(300), "]".repeat(300))] {
        for field in [format!("\"nickname\":{odd}"), format!("\"profile\":{{\"a\":[{odd}]}}")] {
            let caller = jwt.principal(&signed_text(&with(&field))).await.unwrap();
            assert_eq!(
                (&*caller.name, &caller.extra.as_ref().unwrap()["groups"]),
                ("jwt/auth0|a%3A1", &json!(["staff"]))
            );
        }
    }
    // The same beside it as without it: a number is no text, and no group.
    let number = "123456789012345678901234567890";
    let groups = |text: String| signed_text(&text.replace("\"staff\"", number));
    for text in [claims().to_string(), with("\"nickname\":NaN")] {
        let caller = jwt.principal(&groups(text)).await.unwrap();
        assert_eq!(caller.extra.as_ref().unwrap()["groups"], json!([]));
    }
    let subject = with("\"nickname\":NaN").replace("\"auth0|a:1\"", number);
    assert_eq!(jwt.principal(&signed_text(&subject)).await.unwrap_err().status.as_u16(), 401);
    // Exact beside it.
    let wide = with("\"nickname\":1e400").replace("\"harbour\"", "123456789012345678901234567890");
    let caller = jwt.principal(&signed_text(&wide)).await.unwrap();
    assert_eq!(caller.extra.as_ref().unwrap()["department"], json!("123456789012345678901234567890"));
    // Other signatures, doubled names, and odd values in what decides.
    let text = with("\"nickname\":1e400");
    let other = by_hand(r#"{"alg":"HS256"}"#, &text, "another secret, that is of 32 bytes and more");
    let swapped = signed_text(&text.replace("staff", "admin")).split('.').nth(1).unwrap().to_owned();
    let real = signed_text(&text);
    let part = real.split('.').nth(1).unwrap();
    for token in [
        other,
        real.replace(part, &swapped),
        signed_text(&with("\"nickname\":1e400,\"nickname\":1")),
        signed_text(&text.replace("auth0|a:1", "a\\ud83d")),
        signed_text(&text.replace("\"staff\"", "\"staff\\ud83d\"")),
        signed_text(&text.replace("\"harbour\"", "1e400")),
        signed_text(&text.replace(&claims()["exp"].to_string(), "1e400")),
        signed_text(&text.replace(&claims()["exp"].to_string(), "1")),
    ] {
        assert_eq!(jwt.principal(&token).await.unwrap_err().status.as_u16(), 401, "{token}");
    }
}

#[tokio::test]
async fn tokens_that_are_not_valid_are_refused_with_a_reason() {
    let jwt = jwt(CONFIG);
    let right = "a secret of the provider, of 32 bytes and more";
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
        (signed(&with("exp", json!((now() + 600).to_string())), right), "lacks a claim"),
        (signed(&with("exp", json!((now() + 600) * 1000)), right), "`exp` is not a time"),
        (signed(&with("exp", json!(1e300)), right), "lacks a claim"),
        (signed(&with("exp", json!(-1)), right), "lacks a claim"),
        (signed(&with("nbf", json!((now() + 600).to_string())), right), "`nbf` is not a time"),
        (signed(&with("nbf", json!([now() - 600])), right), "cannot be read"),
        (signed(&with("nbf", json!(-1)), right), "`nbf` is not a time"),
        (signed(&with("nbf", json!(1e300)), right), "`nbf` is not a time"),
        (signed(&with("iat", json!("today")), right), "`iat` is not a time"),
        (signed(&with("iss", json!(["https://id.example"])), right), "`iss` is not a text"),
        (signed(&with("aud", json!([])), right), "for another service"),
        (signed(&with("aud", json!(["a", "b"])), right), "for another service"),
        (by_hand(r#"{"alg": "HS256", "crit": ["x"], "x": 1}"#, &claims().to_string(), right), "`crit`"),
        (by_hand(r#"{"alg": "HS256", "crit": []}"#, &claims().to_string(), right), "`crit`"),
        (by_hand(r#"{"alg": "HS256", "alg": "HS384"}"#, &claims().to_string(), right), "cannot be read"),
        (by_hand(r#"{"alg": "HS256"}"#, &twice(r#""sub": "b""#), right), "is there twice"),
        (by_hand(r#"{"alg": "HS256"}"#, &twice(r#""exp": 9999999999"#), right), "is there twice"),
        (by_hand(r#"{"alg": "HS256"}"#, &twice(r#""x": {"a": 1, "a": 2}"#), right), "is there twice"),
        (signed(&claims(), right) + "=", "signature is not valid"),
        (unsigned, "cannot be read"),
        ("a.b.c".to_owned(), "cannot be read"),
        ("x".repeat(20_000), "too long"),
    ] {
        let error = jwt.principal(&token).await.unwrap_err();
        assert!(error.status.as_u16() == 401 && error.message.contains(reason), "{} for {reason}", error.message);
    }
}

/// A token with this header and these claims, as they are written.
fn by_hand(header: &str, claims: &str, secret: &str) -> String {
    use base64::Engine as _;
    let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let message = format!("{}.{}", part(header), part(claims));
    let key = EncodingKey::from_secret(secret.as_bytes());
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
    format!("{message}.{signature}")
}

/// The claims, followed by another one.
fn twice(field: &str) -> String {
    claims().to_string().replacen('{', &format!("{{{field}, "), 1)
}

#[tokio::test]
async fn one_text_is_one_group_except_in_a_scope() {
    let secret = "a secret of the provider, of 32 bytes and more";
    let groups = async |claim: &str, value: Json| {
        let jwt = jwt(&format!(r#"(keys: Secret(Env("KEY")), audience: ["turnflow"], groups: "{claim}")"#));
        let mut claims = claims();
        match claim.split_once('.') {
            Some((outer, inner)) => claims[outer] = json!({ inner: value }),
            None => claims[claim] = value,
        }
        let caller = jwt.principal(&signed(&claims, secret)).await.unwrap();
        caller.extra.as_ref().unwrap()["groups"].clone()
    };
    for (claim, value, expected) in [
        ("groups", json!("night admin"), json!(["night admin"])),
        ("groups", json!(["night admin", "staff"]), json!(["night admin", "staff"])),
        ("realm.roles", json!("night\tadmin"), json!(["night\tadmin"])),
        ("scope", json!("read write"), json!(["read", "write"])),
        ("azure.scp", json!("read write"), json!(["read", "write"])),
        ("groups", json!([["admin"], {"name": "admin"}, null, "x"]), json!(["x"])),
        ("groups", json!({"admin": true}), json!([])),
    ] {
        assert_eq!(groups(claim, value.clone()).await, expected, "{claim}: {value}");
    }
}

#[tokio::test]
async fn a_name_has_no_control_characters() {
    let jwt = jwt(CONFIG);
    let token = signed(&with("sub", json!("a\nb")), "a secret of the provider, of 32 bytes and more");
    assert_eq!(&*jwt.principal(&token).await.unwrap().name, "jwt/a%0Ab");
}

#[test]
fn a_secret_that_can_be_guessed_is_refused() {
    let config = || ron::from_str::<JwtConfig>(r#"(keys: Secret(Env("KEY")), audience: ["x"])"#).unwrap();
    let new = |secret: &str| Jwt::new(config(), &LimitsConfig::default(), |_| Some(secret.to_owned()));
    assert!(matches!(new(&"x".repeat(31)), Err(KeyError::ShortSecret(31))));
    assert!(matches!(new(" "), Err(KeyError::NoSecret)));
    assert!(new(&"x".repeat(32)).is_ok());
}

/// The point of a new key, and what signs with it.
fn elliptic(kid: &str) -> (Json, EncodingKey) {
    use base64::Engine as _;
    let pair = rcgen::KeyPair::generate().unwrap();
    let point = pair.public_key_raw();
    let part = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let jwk = json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": part(&point[1..33]), "y": part(&point[33..65])});
    (jwk, EncodingKey::from_ec_der(&pair.serialize_der()))
}

fn signed_by(kid: &str, key: &EncodingKey) -> String {
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(kid.to_owned());
    encode(&header, &claims(), key).unwrap()
}

/// Keys that are not understood, or are for something else, beside one that is.
#[tokio::test]
async fn keys_that_are_not_understood_are_left_out() {
    let (good, key) = elliptic("good");
    let with = |fields: Json| {
        let mut other = good.clone();
        other["kid"] = json!("other");
        other.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        other
    };
    for other in [
        json!({"kty": "AKP", "kid": "pq", "alg": "ML-DSA-65", "pub": "AAAA"}),
        json!({"kty": "OKP", "kid": "x", "crv": "X25519", "x": "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo"}),
        json!({"kty": "OKP", "kid": "x", "crv": "Ed448", "x": "X9dEm1m0Yf0s54fsYWrUah2hNCSFpw4fig6nXYDpZ3jt8SR2m0b"}),
        json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}),
        json!({"kty": "RSA", "n": "AQAB"}),
        json!({"kty": "RSA", "n": 7, "e": "AQAB"}),
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        json!({"kid": "nothing"}),
        json!("text"),
        json!(null),
        with(json!({"use": "enc"})),
        with(json!({"use": 7})),
        with(json!({"alg": "ECDH-ES"})),
        with(json!({"alg": ["ES256"]})),
        with(json!({"key_ops": ["wrapKey"]})),
        with(json!({"key_ops": "verify"})),
        with(json!({"crv": "P-521"})),
    ] {
        for set in [json!({"keys": [good, other]}), json!({"keys": [other, good], "more": 1})] {
            let keys = parse("set", set.to_string().as_bytes()).unwrap();
            assert_eq!(keys.iter().filter_map(|key| key.id.as_deref()).collect::<Vec<_>>(), ["good"], "{other}");
        }
    }
    // What a reader need not know takes nothing away.
    for more in [
        json!({"use": "sig", "key_ops": ["verify"], "alg": "ES256"}),
        json!({"x5c": 7, "x5t": [], "ext": true, "key_ops": ["sign", "verify", "new"]}),
        json!({"use": null, "alg": null, "kid": 7}),
    ] {
        assert_eq!(
            parse("set", json!({"keys": [with(more.clone())]}).to_string().as_bytes()).unwrap().len(),
            1,
            "{more}"
        );
    }
    let ed = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "Ed25519",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]});
    assert_eq!(parse("set", ed.to_string().as_bytes()).unwrap()[0].algorithms, [Algorithm::EdDSA]);
    assert!(parse("set", b"[]").is_err() && parse("set", b"{\"keys\": 7}").is_err());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let config = format!(r#"(keys: File({path:?}), audience: ["turnflow"])"#);
    std::fs::write(&path, json!({"keys": [{"kty": "AKP"}, good]}).to_string()).unwrap();
    assert!(jwt(&config).principal(&signed_by("good", &key)).await.is_ok());
    std::fs::write(&path, json!({"keys": [{"kty": "AKP"}]}).to_string()).unwrap();
    let none = Jwt::new(ron::from_str(&config).unwrap(), &LimitsConfig::default(), |_| None);
    assert!(matches!(none, Err(KeyError::NoKey(_))));
}

/// A provider rotates its key, and its set has keys of other kinds. The withdrawn key is no longer valid, also if the set
/// has none that is understood.
#[tokio::test]
async fn a_withdrawn_key_is_no_longer_valid() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ((one, first), (two, second)) = (elliptic("one"), elliptic("two"));
    let odd = json!({"kty": "AKP", "kid": "pq", "alg": "ML-DSA-65", "pub": "AAAA"});
    let sets = [json!({"keys": [one]}), json!({"keys": [odd, two]}), json!({"keys": [odd]})];
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        for set in sets {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            let body = set.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.unwrap();
        }
    });
    let jwt = jwt(&format!(r#"(keys: Url("http://{address}/jwks"), audience: ["turnflow"])"#));
    let status = async |kid: &str, key: &EncodingKey| {
        jwt.principal(&signed_by(kid, key)).await.map_err(|error| error.status.as_u16()).map(drop)
    };
    let grows_old = || jwt.keys.lock().asked = Instant::now().checked_sub(AGAIN);
    assert_eq!(status("one", &first).await, Ok(()));
    grows_old();
    assert_eq!(status("two", &second).await, Ok(()), "an unknown key is looked for");
    assert_eq!(status("one", &first).await, Err(401));
    grows_old();
    jwt.keys.lock().asked = Instant::now().checked_sub(FRESH);
    assert_eq!((status("two", &second).await, status("one", &first).await), (Err(401), Err(401)));
    served.await.unwrap();
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
    jwt.keys.lock().asked = Instant::now().checked_sub(FRESH);
    assert!(jwt.principal(&token(&with("sub", json!("b")))).await.is_ok());
    served.await.unwrap();
    // Nothing listens any more.
    jwt.keys.lock().asked = Instant::now().checked_sub(FRESH);
    assert!(jwt.principal(&token(&with("sub", json!("c")))).await.is_ok());
    let lost = self::jwt(&format!(r#"(keys: Url("http://{address}/jwks"), audience: ["turnflow"])"#));
    assert_eq!(lost.principal(&token(&claims())).await.unwrap_err().status.as_u16(), 503);
    let config: JwtConfig = ron::from_str(r#"(keys: Url("http://id.example/jwks"), audience: ["x"])"#).unwrap();
    assert!(matches!(Jwt::new(config, &LimitsConfig::default(), |_| None), Err(KeyError::Plain(_))));
}
