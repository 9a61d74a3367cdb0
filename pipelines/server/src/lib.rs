//! Pipelines over HTTP: turns, search, documents, OpenAI's API, MCP, the page and metrics.
//!
//! Nothing is served yet. This crate is where it will be: it stands on the engine, and the command
//! line stands on it.
