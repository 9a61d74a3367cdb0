//! `/`: the page, and its scripts and styles, embedded in the program.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::body::InPath;
use crate::error::ApiError;

/// The page may load scripts, styles and data from this server only, and may not be framed.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the page: its name, type and content.
type Asset = (&'static str, &'static str, &'static str);

macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        [$(($name, JAVASCRIPT, include_str!(concat!("../page/", $name)))),*]
    };
}

const SCRIPTS: &[Asset] = &scripts![
    "api.js",
    "asked.js",
    "astest.js",
    "cards.js",
    "conversations.js",
    "corpora.js",
    "documents.js",
    "dom.js",
    "graph.js",
    "hits.js",
    "kept.js",
    "layout.js",
    "letters.js",
    "live.js",
    "main.js",
    "markdown.js",
    "reports.js",
    "review.js",
    "search.js",
    "share.js",
    "shared.js",
    "signin.js",
    "step.js",
    "talk.js",
    "text.js",
    "tune.js",
    "turn.js",
    "views.js"
];
const STYLES: [Asset; 2] = [
    ("style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("document.css", "text/css; charset=utf-8", include_str!("../page/document.css")),
];

fn respond(mime: &'static str, content: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(mime)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // A new version of the program has a new page.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, content).into_response()
}

/// The page.
pub async fn page() -> Response {
    respond("text/html; charset=utf-8", include_str!("../page/index.html"))
}

/// The page of a shared turn.
pub async fn shared() -> Response {
    respond("text/html; charset=utf-8", include_str!("../page/shared.html"))
}

/// The script that other pages embed.
pub async fn widget() -> Response {
    respond(JAVASCRIPT, include_str!("../page/widget.js"))
}

/// A script or the styles of the page.
pub async fn asset(InPath(name): InPath<String>) -> Result<Response, ApiError> {
    let found = SCRIPTS.iter().chain(&STYLES).find(|(of, ..)| *of == name);
    let (_, mime, content) = found.ok_or_else(|| ApiError::not_found("the page has no such file"))?;
    Ok(respond(mime, content))
}
