use axum::body::Body;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::app::now;
use crate::auth::Tokens;

const SECRET: &str = "a secret of the provider, of 32 bytes and more";

/// A provider: the code is what its clock says before or after this one's, in seconds.
async fn provider(methods: Option<Value>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let issuer = url.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            reply(stream, &issuer, methods.as_ref()).await;
        }
    });
    url
}

async fn reply(mut stream: tokio::net::TcpStream, issuer: &str, methods: Option<&Value>) {
    let mut asked = String::new();
    // The address to come back to ends the form, or the client's id does.
    let ends = ["client_id=turnflow", "redirect_uri=here"];
    while !(asked.starts_with("GET ") && asked.ends_with("\r\n\r\n") || ends.iter().any(|end| asked.ends_with(end))) {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).await.unwrap();
        asked += std::str::from_utf8(&bytes[..count]).unwrap();
    }
    let said = match asked.split_once("&code=") {
        None => json!({
            "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"), "token_endpoint_auth_methods_supported": methods,
        }),
        // A secret comes in one way.
        Some(_)
            if methods.is_some()
                && asked.contains("client_secret=a%2Bb%3D") == asked.contains("authorization: Basic ") =>
        {
            json!({ "error": "invalid_client" })
        }
        Some((_, code)) => {
            let clock = now().saturating_add_signed(code.split('&').next().unwrap().parse().unwrap());
            let claims = json!({
                "sub": "ann", "aud": "turnflow", "iss": issuer, "nonce": "n", "iat": clock, "nbf": clock, "exp": clock + 60,
            });
            let key = EncodingKey::from_secret(SECRET.as_bytes());
            json!({ "id_token": encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap() })
        }
    };
    let body = said.to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.unwrap();
}

/// The clocks of the provider and of this server may differ by a minute, as for any token. One that is too far away is told,
/// and the caller is not signed in with a token that the next request would refuse.
#[tokio::test]
async fn clocks_may_differ_by_a_minute() {
    let url = provider(None).await;
    let config = format!(
        r#"(jwt: (keys: Secret(Env("KEY")), issuer: "{url}", audience: ["turnflow"], sign_in: (client: "turnflow")))"#
    );
    let config = ServeConfig::parse(&config, "s.ron").unwrap();
    let tokens = Tokens::new(&config, |name| (name == "KEY").then(|| SECRET.to_owned())).unwrap();
    let app = App::new(config, Vec::new(), tokens);
    let sign_in = async |skew: i64| {
        let body = json!({ "code": skew.to_string(), "verifier": "v", "nonce": "n", "redirect_uri": url });
        let request = Request::builder().body(Body::from(body.to_string())).unwrap();
        exchange(State(app.clone()), request).await
    };
    for skew in [-100, -30, 0, 30] {
        let Json(told) = sign_in(skew).await.unwrap();
        assert_eq!(told["name"], "jwt/ann", "{skew}: {told}");
        // It holds for a while yet, by this server's clock.
        assert!(told["until"].as_u64().unwrap() >= now(), "{skew}: {told}");
        let called = app.tokens().of_jwt(told["token"].as_str().unwrap()).await;
        assert_eq!(&*called.unwrap().name, "jwt/ann", "{skew}");
    }
    for (skew, reason) in [(300, "not valid yet"), (-300, "has expired")] {
        let error = sign_in(skew).await.unwrap_err();
        assert!(error.status.as_u16() == 401 && error.message.contains(reason), "{skew}: {}", error.message);
    }
}

/// Some providers take a client's secret in the form only, and say so.
#[tokio::test]
async fn a_secret_is_sent_as_the_provider_takes_it() {
    for (methods, in_form) in [
        (json!(["client_secret_post"]), true),
        (json!(["private_key_jwt", "client_secret_post"]), true),
        (json!(["client_secret_post", "client_secret_basic"]), false),
        (json!([]), false),
    ] {
        let url = provider(Some(methods.clone())).await;
        let config = format!(
            r#"(jwt: (keys: Secret(Env("KEY")), issuer: "{url}", audience: ["turnflow"],
                sign_in: (client: "turnflow", secret: Env("CLIENT"))))"#
        );
        let config = ServeConfig::parse(&config, "s.ron").unwrap();
        let variable = |name: &str| match name {
            "KEY" => Some(SECRET.to_owned()),
            "CLIENT" => Some("a+b=".to_owned()),
            _ => None,
        };
        let sign_in = SignIn::of(&config, variable).unwrap().unwrap();
        assert_eq!(sign_in.discovered().await.unwrap().takes_secrets_in_forms_only(), in_form, "{methods}");
        let code = |text: &str| text.to_owned();
        let request =
            CodeRequest { code: code("0"), verifier: code("v"), nonce: code("n"), redirect_uri: code("here") };
        assert!(sign_in.exchange(&request).await.is_ok(), "{methods}");
    }
}

/// A refusal may repeat the form that was sent, and it is logged.
#[tokio::test]
async fn a_refusal_tells_no_secret() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let echo = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let said = "client_secret=a%2Bb%3D&or=a+b&or=a+b= a+b=";
        let reply = format!("HTTP/1.1 400 Bad\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{said}", said.len());
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(reply.as_bytes()).await.unwrap();
    };
    let told = async { json_of(reqwest::get(&url).await.unwrap(), Some("a+b=")).await.unwrap_err() };
    let (told, ()) = tokio::join!(told, echo);
    assert!(told.ends_with("client_secret=…&or=a+b&or=… …"), "{told}");
}
