//! Guards a server without tokens against web pages in users' browsers: anyone on the
//! machine may call, but not a page of another site.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::error::ApiError;

/// The headers with which browsers describe the page that makes a request, and its purpose.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The code of the widget, which has no secrets.
const WIDGET: &str = "/widget.js";

/// Checks the origin of a request, if there are no tokens. A page of another site names its origin;
/// one that has made its own name point to this machine (DNS rebinding) names itself as the host.
///
/// # Errors
///
/// 403: the request comes from another site.
pub fn check(app: &App, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    if !app.tokens().is_empty() {
        return Ok(());
    }
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST);
    if let Some(host) = host
        && !is_known(host, &app.config().hosts)
    {
        return Err(ApiError::forbidden(format!(
            "this server has no tokens and accepts only names of this machine, not `{}`: add it to `hosts` in \
             the configuration, or use tokens",
            host.escape_default()
        )));
    }
    let Some(origin) = text(header::ORIGIN) else {
        // An image or a script of another page names no origin. Links to this server are allowed.
        let is_foreign = text(SITE).is_some_and(|site| site == "cross-site" || site == "same-site");
        // Pages that embed the widget load its code so; what that asks then names the origin of the page.
        return match is_foreign && text(MODE) != Some("navigate") && path != WIDGET {
            true => Err(foreign()),
            false => Ok(()),
        };
    };
    let is_own = host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host)));
    let is_allowed = || app.config().cors.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin));
    match is_own || is_allowed() {
        true => Ok(()),
        false => Err(foreign()),
    }
}

/// Headers that say where a request goes and who sends it. Two of them mean different things to different readers, such
/// as a proxy and this server.
const ONCE: [HeaderName; 4] = [header::HOST, header::AUTHORIZATION, header::CONTENT_TYPE, header::ORIGIN];

/// Middleware: refuses requests that have such a header twice (RFC 9112, section 3.2, for `Host`).
pub async fn once(request: Request, next: Next) -> Response {
    let headers = request.headers();
    match ONCE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        Some(name) => ApiError::bad(format!("the request has the header `{name}` more than once")).into_response(),
        None => next.run(request).await,
    }
}

fn foreign() -> ApiError {
    ApiError::forbidden("web pages of other sites may not call this server: add them to `cors`")
}

/// Whether a `Host` is this machine, or among the configured names.
fn is_known(host: &str, configured: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.to_canonical().is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || configured.iter().any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_known() {
        let configured = ["rag.example.org".to_owned()];
        for host in ["localhost", "LOCALHOST:8100", "127.0.0.1:1", "127.9.9.9", "[::1]:8100", "rag.example.org:80"] {
            assert!(is_known(host, &configured), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.1:8100", "", ":80"]
        {
            assert!(!is_known(host, &configured), "{host}");
        }
    }
}
