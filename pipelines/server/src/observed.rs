//! A server for a pipeline that answers no requests: its metrics, health and status.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::{App, observing};
use crate::auth::Tokens;
use crate::config::ServeConfig;
use crate::served::Served;
use crate::server::{ServeError, Server, is_exposed, serve};

/// A server that runs on its own thread until it is dropped.
pub struct Observed {
    stop: CancellationToken,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Observed {
    /// Serves `/metrics`, `/healthz`, `/readyz`, `/v1/pipelines` and the status of the pipeline at an
    /// address, without tokens: none of it contains texts of users or documents.
    ///
    /// # Errors
    ///
    /// The address cannot be used.
    pub fn start(address: SocketAddr, served: Arc<Served>) -> Result<Self, ServeError> {
        let listen = |source| ServeError::Listen { address, source };
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("turnflow-http").enable_all().build().map_err(listen)?;
        let config = ServeConfig { drain_s: 0.5, ..ServeConfig::default() };
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).map_err(listen)?;
        served.hide_problems();
        let app = App::new(config, vec![served], Tokens::none(&ServeConfig::default()));
        let stop = CancellationToken::new();
        let router = observing(app.clone(), !is_exposed(address));
        let server = Server::of(listener, app, router).map_err(listen)?;
        tracing::info!(address = %server.url(), "metrics");
        runtime.spawn(serve(server, stop.clone()));
        Ok(Self { stop, runtime: Some(runtime) })
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}
