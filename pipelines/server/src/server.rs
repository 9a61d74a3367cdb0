//! The server: its address, its connections, and its shutdown.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::app::{App, router};
use crate::auth::{TokenError, Tokens, VARIABLE};
use crate::callers::Callers;
use crate::config::{ServeConfig, TlsConfig};
use crate::connections::{Client, Connections};
use crate::forward::Answering;
use crate::io::BoundedWrites;
use crate::served::Served;

/// The default address.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8100);
/// The interval between warnings that connections cannot be accepted.
const WARN: Duration = Duration::from_secs(60);
/// The pause after a failed accept, for example when too many files are open.
const PAUSE: Duration = Duration::from_millis(100);
/// What a connection that is closed for another one has to send the rest of its last response.
const LAST: Duration = Duration::from_secs(2);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Other machines could call without a token.
    #[error(
        "{address} can be reached from other machines, but there are no tokens: add some in the configuration \
         (`tokens`) or in `{VARIABLE}`, or listen on 127.0.0.1"
    )]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// Any web page could call without a token.
    #[error(
        "`cors: [\"*\"]` lets every web page that a user of this machine opens use this server, but there are no \
         tokens: add some (`tokens`, `{VARIABLE}`), or name the origins"
    )]
    OpenToPages,
    /// The tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// A TLS file cannot be used.
    #[error("cannot use `{}`: {reason}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A pipeline has the name of another one.
    #[error("two pipelines have the name `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
}

/// A server bound to its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
    router: Router,
    tls: Option<TlsAcceptor>,
    answering: Arc<Answering>,
}

impl Server {
    /// Binds the address. `listen` takes precedence over the configuration's address. The first pipeline is the
    /// default. `callers` are those of the configuration, as the pipelines' engines know them.
    ///
    /// # Errors
    ///
    /// The address, the tokens or the TLS files cannot be used.
    pub async fn bind(
        config: ServeConfig,
        listen: Option<SocketAddr>,
        pipelines: Vec<Arc<Served>>,
        callers: Arc<Callers>,
    ) -> Result<Self, ServeError> {
        let address = listen.or(config.listen).unwrap_or(DEFAULT_ADDRESS);
        Self::bind_routes(config, address, pipelines, callers, |app| router(app.clone())).await
    }

    /// Binds an address for these routes.
    pub(crate) async fn bind_routes(
        config: ServeConfig,
        address: SocketAddr,
        pipelines: Vec<Arc<Served>>,
        callers: Arc<Callers>,
        routes: impl FnOnce(&App) -> Router,
    ) -> Result<Self, ServeError> {
        for (at, served) in pipelines.iter().enumerate() {
            if pipelines.iter().take(at).any(|before| before.name() == served.name()) {
                return Err(ServeError::Twice { name: served.name().to_string() });
            }
        }
        let tokens = Tokens::of(&config, |name| std::env::var(name).ok(), callers)?;
        if tokens.is_empty() && is_exposed(address) {
            return Err(ServeError::Open { address });
        }
        if tokens.is_empty() && config.cors.iter().any(|origin| origin == "*") {
            return Err(ServeError::OpenToPages);
        }
        let tls = config.tls.as_ref().map(acceptor).transpose()?;
        let listen_error = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen_error)?;
        let app = App::new(config, pipelines, tokens);
        let router = routes(&app);
        let server = Self::of(listener, app, router).map_err(listen_error)?;
        Ok(Self { tls, ..server })
    }

    /// A server of these routes on a bound listener, without TLS.
    ///
    /// # Errors
    ///
    /// The operating system does not report the address.
    pub(crate) fn of(listener: TcpListener, app: App, router: Router) -> std::io::Result<Self> {
        let answering = Answering::new(app.clone(), router.clone());
        Ok(Self { address: listener.local_addr()?, listener, app, router, tls: None, answering })
    }

    /// The requests of other processes that it answers.
    pub(crate) fn answering(&self) -> &Arc<Answering> {
        &self.answering
    }

    /// Its URL, as in `http://127.0.0.1:8100`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}

/// Whether other machines can reach an address.
pub(crate) fn is_exposed(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

fn acceptor(config: &TlsConfig) -> Result<TlsAcceptor, ServeError> {
    let error = |path: &Path, reason: String| ServeError::Tls { path: path.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(&config.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| error(&config.cert, source.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|source| error(&config.key, source.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(|source| error(&config.cert, source.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

/// Answers requests until `stop` is cancelled. Then no connection is accepted, and running requests
/// have `drain_s` to finish.
pub async fn serve(server: Server, stop: CancellationToken) {
    let Server { listener, app, router, tls, answering, .. } = server;
    let limits = app.config().limits;
    let drain = Duration::from_secs_f64(app.config().drain_s);
    let places = Connections::new(limits.connections);
    let draining = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut warned = None;
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let accepted = listener.accept().await;
            // Waiting connections are closed only for one that is there.
            (places.place().await, accepted)
        };
        let Some((Some(place), accepted)) = stop.run_until_cancelled(accepted).await else { break };
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if warned.is_none_or(|at: Instant| at.elapsed() >= WARN) {
                    warned = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let open = places.add(place);
        let (router, tls, draining) = (router.clone(), tls.clone(), draining.clone());
        let header = Duration::from_secs_f64(limits.header_s);
        let idle = Duration::from_secs_f64(limits.idle_s);
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let io = tokio::select! {
                io = secured(stream, tls, header, idle) => io,
                () = open.closed() => None,
                () = draining.cancelled() => None,
            };
            let Some(io) = io else { return };
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(header)
                .serve_connection(TokioIo::new(io), open.counted(TowerToHyperService::new(router), Client(client)));
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = draining.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
                () = open.closed() => {
                    tracing::debug!("closing an idle connection for a new one");
                    if !open.was_used() {
                        return;
                    }
                    // The end of a response may still be in a buffer.
                    connection.as_mut().graceful_shutdown();
                    tokio::time::timeout(LAST, connection).await.unwrap_or(Ok(()))
                }
            };
            // The error: the client disconnected, or did not send HTTP.
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    drop(listener);
    app.drain();
    draining.cancel();
    let ended = async {
        while connections.join_next().await.is_some() {}
        answering.ended().await;
    };
    if tokio::time::timeout(drain, ended).await.is_err() {
        tracing::warn!(requests = app.places().running(), "dropping requests that did not finish in time");
    }
    // This drops the remaining requests, and cancels their turns.
    connections.shutdown().await;
    answering.cut().await;
}

/// The byte stream of a connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The connection, after the handshake of TLS if there is one; `None` if that fails or takes too long.
async fn secured(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    handshake: Duration,
    idle: Duration,
) -> Option<Box<dyn Stream>> {
    let stream = BoundedWrites::new(stream, idle);
    let Some(tls) = tls else { return Some(Box::new(stream)) };
    let stream = tokio::time::timeout(handshake, tls.accept(stream)).await.ok()?.ok()?;
    Some(Box::new(stream))
}
