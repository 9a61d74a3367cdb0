//! Pipelines over HTTP: OpenAI's API, turns, search, documents and metrics.
//!
//! [`Server::bind`] opens the address, and [`serve`] answers requests until it is stopped. Each
//! group of routes has its own file; `app.rs` lists them. In a cluster, [`Server::bind_forwarding`]
//! opens the addresses of the processes other than the first.
//!
//! # The modules
//!
//! The server runs one engine per pipeline. It speaks only HTTP/1.1, so that the socket of a connection shows whether
//! its client reads.
//!
//! - **Connections.** `src/server.rs` listens and keeps the connections; `io.rs` closes those whose client does not
//!   read. `app.rs` defines the state that requests share, and all routes; `served.rs` is a
//!   pipeline of it.
//! - **Requests.** A request passes through `metrics.rs` (counts, logs, catches panics) and `limits.rs` (authenticates
//!   with `auth.rs` and `jwt.rs`, which tell `callers.rs` who the callers are now, then waits for a place among the
//!   running requests) to its route. It keeps its place, and what its bytes take of the caller's share, until its
//!   response is sent or dropped: bodies are handed to the connection in pieces (`body.rs`). `encoding.rs` decodes
//!   bodies. Every failure is an `ApiError` (`error.rs`), in OpenAI's format. `origin.rs` refuses requests from web
//!   pages of other sites if the server has no tokens.
//! - **Routes.** One file per group: `chat.rs` and `responses.rs` (OpenAI's API; `stored.rs` keeps responses, so that
//!   a caller continues after one), `embeddings.rs`, `models.rs`, `turns.rs`, `durable.rs` (queues turns that survive
//!   a restart), `answers.rs` (the answers to these, as a list or as events), `search.rs`, `documents.rs`,
//!   `pipelines.rs` (graphs and status), `alerts.rs`, `caller.rs` (who the caller is), `sign_in.rs` (OpenID
//!   Connect for the page), `reports.rs`, `feedback.rs` (what people say about answers), `cited.rs` (the
//!   page of a cited document; `links.rs` makes, signs and checks the links to it), `shares.rs` (links to turns), `dead_letters.rs`, `otlp.rs` (spans and log records,
//!   which go to the pipeline's source), `mcp.rs` (the Model Context Protocol), `health.rs`, `openapi.rs` (what the
//!   routes declare, completed with errors, tokens and bodies) and `page.rs` (the page in `page/`: plain modules
//!   without a build step, compiled in).
//! - **Answers.** `live.rs` lets a stream of `/v1/turns` go on after its answer, and `resume.rs` lets a turn go on without
//!   its client, who reads its events later. `conversation.rs` makes a turn from
//!   messages, `asking.rs` asks it and returns pieces of text, `task.rs` answers prompts of chat clients that are not
//!   questions, `citations.rs` names the sources, `format.rs` passes on a
//!   schema for the answer, `usage.rs` counts tokens, and `sse.rs` writes events. Only text that
//!   is certain is sent: each operator from answers to answers says what it does to the text
//!   (`OperatorConfig::text_effect`), and `outline.rs` puts these together for the node that writes. The response owns
//!   the stream of the engine's events: when the client disconnects, the stream is dropped and the turn is cancelled,
//!   unless the client can read it again.
//! - **Forwarding.** `forward.rs` is the server of a process that is not the first of its cluster. It has the routes of
//!   questions (`app.rs`). Of other requests it receives the body within the same limits, and forwards the request to
//!   process 0. There, `forward/answering.rs` runs it through all routes and their layers, as if the client had
//!   connected to process 0. `forward/wire.rs` is the form of both on the way. An answer has a last part; without it,
//!   the connection to the client is cut off.
//! - **Plans.** `outline.rs` extracts what the server needs from a plan: the nodes that give hits, the nodes whose text
//!   is streamed, and the graph. A reload replaces it. `config.rs` reads `SERVE.ron`.
//! - **Telemetry.** `observed.rs` serves metrics and status for `run --metrics`. `telemetry.rs` makes spans and
//!   durations for OpenTelemetry; the engine reports calls and answers to it (`TurnWatcher`).

mod alerts;
mod answered;
mod answers;
mod app;
mod asking;
mod auth;
mod body;
mod caller;
mod callers;
mod chat;
mod citations;
mod cited;
mod config;
mod connections;
mod conversation;
mod dead_letters;
mod documents;
mod durable;
mod embeddings;
mod encoding;
mod error;
mod feedback;
mod format;
mod forward;
mod health;
mod io;
pub mod jwt;
mod limits;
mod links;
mod live;
mod mcp;
mod metrics;
mod models;
mod numbered;
mod observed;
mod openapi;
mod origin;
mod otlp;
mod outline;
mod page;
mod pipelines;
mod reports;
mod responses;
mod resume;
mod review;
mod search;
mod served;
mod server;
mod shares;
mod sign_in;
mod sse;
mod stop;
mod stored;
mod task;
mod telemetry;
mod turns;
mod usage;

pub use self::auth::{TokenError, VARIABLE};
pub use self::callers::Callers;
pub use self::config::{
    Citations, ConfigError, DocumentRights, LimitsConfig, ResponsesConfig, Secret, ServeConfig, TlsConfig, TokenConfig,
};
pub use self::feedback::FeedbackLog;
pub use self::forward::{Answerer, Asker};
pub use self::links::LinkKey;
pub use self::observed::Observed;
pub use self::outline::Outline;
pub use self::pipelines::{LastReload, describe};
pub use self::served::Served;
pub use self::server::{DEFAULT_ADDRESS, ServeError, Server, serve};
pub use self::stored::ResponseStore;
pub use self::telemetry::{Telemetry, TelemetryError, Watcher};
