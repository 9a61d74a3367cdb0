//! `/`: the page.

use axum::response::Html;

/// A page that says where the interfaces are.
pub async fn page() -> Html<&'static str> {
    Html(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>turnflow</title>\
         <h1>turnflow</h1><p>This server answers questions. Its interfaces are described in \
         <a href=\"/openapi.json\">/openapi.json</a>.</p></html>",
    )
}
