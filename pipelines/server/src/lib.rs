//! Pipelines over HTTP: OpenAI's API, turns, search, documents and metrics.
//!
//! [`Server::bind`] opens the address, and [`serve`] answers requests until it is stopped. Each
//! group of routes has its own file; `app.rs` lists them. In a cluster, [`Server::bind_forwarding`]
//! opens the addresses of the processes other than the first.

mod answers;
mod app;
mod asking;
mod auth;
mod body;
mod callers;
mod chat;
mod citations;
mod config;
mod connections;
mod conversation;
mod documents;
mod durable;
mod embeddings;
mod encoding;
mod error;
mod forward;
mod health;
mod io;
pub mod jwt;
mod limits;
mod live;
mod mcp;
mod metrics;
mod models;
mod observed;
mod openapi;
mod origin;
mod otlp;
mod outline;
mod page;
mod pipelines;
mod reports;
mod responses;
mod search;
mod server;
mod sse;
mod stored;
mod task;
mod telemetry;
mod turns;
mod usage;

pub use self::app::Served;
pub use self::auth::{TokenError, VARIABLE};
pub use self::callers::Callers;
pub use self::config::{
    Citations, ConfigError, DocumentRights, LimitsConfig, ResponsesConfig, Secret, ServeConfig, TlsConfig, TokenConfig,
};
pub use self::forward::{Answerer, Asker};
pub use self::observed::Observed;
pub use self::outline::Outline;
pub use self::pipelines::{LastReload, describe};
pub use self::server::{DEFAULT_ADDRESS, ServeError, Server, serve};
pub use self::stored::ResponseStore;
pub use self::telemetry::{Telemetry, TelemetryError, Watcher};
