//! `/v1/sign-in`: signing in at an identity provider by OpenID Connect, with an authorisation code and PKCE (RFC 7636), for the
//! page. The browser goes to the provider and comes back with a code; the server exchanges it for a token, so the page calls
//! no other site, and the client's secret, if it has one, stays here. Nothing is stored: the token is the session.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Request, State};
use parking_lot::Mutex;
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use crate::app::App;
use crate::config::{Secret, ServeConfig};
use crate::error::ApiError;
use crate::jwt::{is_safe, unverified};

/// Maximum size of what the provider sends, and of a request, in bytes.
const MOST: usize = 1 << 20;
const REQUEST: usize = 16 << 10;
/// Requests at the same time: nobody has a token yet, so they have no other limit.
static EXCHANGING: Semaphore = Semaphore::const_new(8);
/// Time limit for a request to the provider.
const FETCH: Duration = Duration::from_secs(10);
/// What the provider says of itself is read again after this time.
const FRESH: Duration = Duration::from_secs(3600);

/// How people sign in at the identity provider.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignInConfig {
    /// The id of this server as a client of the provider.
    pub client: String,
    /// The client's secret, if the provider has given it one. Default: none.
    #[serde(default)]
    pub secret: Option<Secret>,
    /// The scopes to ask for. Default: `openid` and `profile`.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<String>,
    /// Which token calls this server: `Id` (the default), or `Access` if the provider's access tokens are JSON Web Tokens for
    /// this service.
    #[serde(default)]
    pub token: TokenKind,
}

/// A token of the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum TokenKind {
    /// The ID token. Its audience is the client's id.
    #[default]
    Id,
    /// The access token.
    Access,
}

fn default_scopes() -> Vec<String> {
    vec!["openid".to_owned(), "profile".to_owned()]
}

/// What the provider says of itself.
#[derive(Clone, Debug, Deserialize)]
struct Discovered {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    /// How a client may show its secret. Default: by `client_secret_basic` (OpenID Connect Discovery, section 3).
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl Discovered {
    /// Whether a client must send its secret in the form, and not in a header.
    fn takes_secrets_in_forms_only(&self) -> bool {
        let takes = |name: &str, otherwise: bool| {
            self.token_endpoint_auth_methods_supported.as_ref().map_or(otherwise, |all| all.iter().any(|of| of == name))
        };
        takes("client_secret_post", false) && !takes("client_secret_basic", true)
    }
}

/// Exchanges codes.
pub(crate) struct SignIn {
    config: SignInConfig,
    issuer: String,
    secret: Option<String>,
    client: reqwest::Client,
    known: Mutex<Option<(Instant, Arc<Discovered>)>>,
}

impl SignIn {
    /// The provider of a configuration, if people sign in. `variable` reads an environment variable.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn of(config: &ServeConfig, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let Some((jwt, sign_in)) = config.jwt.as_ref().and_then(|jwt| Some((jwt, jwt.sign_in.clone()?))) else {
            return Ok(None);
        };
        let issuer = jwt.issuer.clone().ok_or("`jwt.sign_in` needs `jwt.issuer`, the address of the provider")?;
        if !Url::parse(&issuer).is_ok_and(|url| is_safe(&url)) {
            return Err(format!("the issuer `{issuer}` must be an address that begins with https://"));
        }
        if sign_in.token == TokenKind::Id && !jwt.audience.contains(&sign_in.client) {
            return Err(format!(
                "the audience of ID tokens is the client's id: add {:?} to `jwt.audience`, or set `token: Access`",
                sign_in.client
            ));
        }
        let read = |secret: &Secret| match secret {
            Secret::Env(name) => variable(name),
            Secret::File(path) => std::fs::read_to_string(path).ok(),
        };
        let secret = match &sign_in.secret {
            None => None,
            Some(secret) => {
                let text = read(secret).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
                Some(text.ok_or("the secret of `jwt.sign_in` cannot be read, or is empty")?)
            }
        };
        // A redirect could lead to a place that is not safe.
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(FETCH).build();
        let client = client.map_err(|error| error.to_string())?;
        Ok(Some(Self { config: sign_in, issuer, secret, client, known: Mutex::new(None) }))
    }

    async fn discovered(&self) -> Result<Arc<Discovered>, ApiError> {
        if let Some((at, known)) = &*self.known.lock()
            && at.elapsed() < FRESH
        {
            return Ok(known.clone());
        }
        let failed = |reason: String| {
            tracing::warn!(reason, issuer = self.issuer, "the identity provider cannot be asked");
            ApiError::unavailable("the identity provider cannot be reached; try again later")
        };
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let reply = self.client.get(url).send().await.map_err(|error| failed(error.to_string()))?;
        let reply = json_of(reply, None).await.map_err(failed)?;
        let found: Discovered = serde_json::from_value(reply).map_err(|error| failed(error.to_string()))?;
        if found.issuer != self.issuer {
            return Err(failed(format!("it says that it is `{}`", found.issuer)));
        }
        for endpoint in [&found.authorization_endpoint, &found.token_endpoint] {
            if !Url::parse(endpoint).is_ok_and(|url| is_safe(&url)) {
                return Err(failed(format!("its address `{endpoint}` is not encrypted")));
            }
        }
        let found = Arc::new(found);
        *self.known.lock() = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// Exchanges a code for a token.
    async fn exchange(&self, request: &CodeRequest) -> Result<(String, Option<String>), ApiError> {
        let found = self.discovered().await?;
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", &*request.code),
            ("code_verifier", &*request.verifier),
            ("redirect_uri", &*request.redirect_uri),
        ];
        let in_form = found.takes_secrets_in_forms_only();
        if let Some(secret) = self.secret.as_deref().filter(|_| in_form) {
            form.push(("client_secret", secret));
        }
        if in_form || self.secret.is_none() {
            form.push(("client_id", &*self.config.client));
        }
        let mut call = self.client.post(&found.token_endpoint).header("Accept", "application/json").form(&form);
        if let Some(secret) = self.secret.as_ref().filter(|_| !in_form) {
            let encoded = |text: &str| percent_encoding::utf8_percent_encode(text, crate::links::IN_QUERY).to_string();
            // RFC 6749, section 2.3.1: both are encoded as in a form.
            call = call.basic_auth(encoded(&self.config.client), Some(encoded(secret)));
        }
        let refused = |reason: String| {
            tracing::warn!(reason, "the identity provider has refused a sign-in");
            ApiError::unauthorized("the identity provider has refused the sign-in: begin again").code("sign_in_refused")
        };
        let reply = call.send().await.map_err(|error| {
            tracing::warn!(%error, "the identity provider cannot be asked");
            ApiError::unavailable("the identity provider cannot be reached; try again later")
        })?;
        let reply = json_of(reply, self.secret.as_deref()).await.map_err(refused)?;
        let text = |field: &str| reply[field].as_str().map(str::to_owned);
        let field = if self.config.token == TokenKind::Id { "id_token" } else { "access_token" };
        let token = text(field).ok_or_else(|| refused(format!("its reply has no `{field}`")))?;
        Ok((token, text("id_token")))
    }
}

/// The JSON of a reply with a status of success.
async fn json_of(mut reply: reqwest::Response, secret: Option<&str>) -> Result<Value, String> {
    let status = reply.status();
    let mut bytes = Vec::new();
    while let Some(piece) = reply.chunk().await.map_err(|error| error.to_string())? {
        if bytes.len() + piece.len() > MOST {
            return Err("its reply is too long".to_owned());
        }
        bytes.extend_from_slice(&piece);
    }
    if !status.is_success() {
        let text = without(secret, &String::from_utf8_lossy(&bytes));
        let text: String = text.chars().take(200).collect();
        return Err(format!("status {status}: {}", text.escape_debug()));
    }
    serde_json::from_slice(&bytes).map_err(|error| format!("its reply is no JSON: {error}"))
}

/// A text without a secret. What refuses a form may repeat it, and the log gets what is said.
fn without(secret: Option<&str>, text: &str) -> String {
    let Some(secret) = secret else { return text.to_owned() };
    let form = Url::parse_with_params("form:", [("", secret)]).ok();
    let encoded = form.as_ref().and_then(Url::query).map(|query| query.trim_start_matches('='));
    text.replace(secret, "…").replace(encoded.unwrap_or(secret), "…")
}

/// Tells the page where people sign in. `sign_in` is null on a server without an identity provider.
#[utoipa::path(get, path = "/v1/sign-in", tag = "server", responses(
    (status = 200, description = "Where the browser begins: the address of the provider, the client and the scopes", body = Value)
))]
pub async fn show(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let Some(sign_in) = app.tokens().sign_in() else { return Ok(Json(json!({ "sign_in": null }))) };
    let found = sign_in.discovered().await?;
    Ok(Json(json!({ "sign_in": {
        "issuer": found.issuer, "authorize": found.authorization_endpoint, "client_id": sign_in.config.client,
        "scope": sign_in.config.scopes.join(" "),
    } })))
}

/// A code, with which the browser has come back from the provider.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CodeRequest {
    /// The code.
    pub code: String,
    /// The verifier, whose hash the provider has got.
    pub verifier: String,
    /// The nonce, which the ID token must have.
    pub nonce: String,
    /// Where the browser has come back to, as it was told the provider.
    pub redirect_uri: String,
}

/// Exchanges a code for a token, which is sent as `Authorization: Bearer` from then on.
#[utoipa::path(post, path = "/v1/sign-in", tag = "server", request_body = CodeRequest, responses(
    (status = 200, description = "The token, the caller's name, and when the token ends", body = Value),
    (status = 401, description = "The provider, or this server, refuses it")
))]
pub async fn exchange(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let sign_in = app
        .tokens()
        .sign_in()
        .ok_or_else(|| ApiError::not_found("nobody signs in at this server: it has no `jwt.sign_in`"))?;
    // The caller has shown nothing yet, so the body must come as fast as the head.
    let patience = FETCH.min(Duration::from_secs_f64(app.config().limits.header_s));
    let body = tokio::time::timeout(patience, axum::body::to_bytes(request.into_body(), REQUEST)).await;
    let body = body.map_err(|_| ApiError::slow_body())?.map_err(|_| ApiError::too_large(REQUEST))?;
    let request: CodeRequest =
        serde_json::from_slice(&body).map_err(|error| ApiError::bad(format!("the body: {error}")))?;
    // A body that comes slowly keeps nobody from signing in.
    let _one = EXCHANGING.try_acquire().map_err(|_| ApiError::overload("too many people sign in at this moment", 1))?;
    let (token, id_token) = sign_in.exchange(&request).await?;
    // An ID token that was asked for by somebody else has another nonce.
    let claims = id_token.as_deref().map(unverified).unwrap_or_default();
    if request.nonce.is_empty() || claims.get("nonce").and_then(Value::as_str) != Some(&request.nonce) {
        return Err(
            ApiError::unauthorized("the ID token was not made for this sign-in: begin again").code("sign_in_refused")
        );
    }
    // Of a token for several audiences, the one that it was made for.
    if claims.get("azp").is_some_and(|party| party.as_str() != Some(&*sign_in.config.client)) {
        return Err(ApiError::unauthorized("the ID token was made for another application").code("sign_in_refused"));
    }
    let principal = app.tokens().of_jwt(&token).await?;
    Ok(Json(json!({ "token": token, "name": principal.name, "until": principal.until })))
}
