//! Pipelines over HTTP: turns, search, documents, OpenAI's API, MCP, the page and metrics.
//!
//! Nothing is served yet: this crate is the place for the server. It depends on the engine, and the
//! command line depends on it.
