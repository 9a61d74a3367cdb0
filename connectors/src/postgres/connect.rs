//! Connections to a server.

use std::error::Error as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{AsyncMessage, Client, Config, Row, RowStream};
use turnflow_engine::component::Check;
use turnflow_engine::connector::{ConnectorError, Stop};

use super::tls::{self, Verified};
use crate::remote::{passing, wait};
use crate::secret::Secret;

/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(15);
/// How long a connection that is no longer used may take to end properly.
const ENDING: Duration = Duration::from_secs(5);
/// Idle time before the system checks that the other side still exists.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Maximum number of notifications that wait to be read. After more, everything is read again.
const NOTIFICATIONS: usize = 10_000;
/// Rows and bytes that are taken from a result at once.
const ROWS: usize = 64;
const BYTES: usize = 1 << 20;

/// A server, and how to log in.
#[derive(Clone, Debug)]
pub(super) struct Server {
    config: Config,
    password: Option<Secret>,
    verified: Verified,
    /// How messages name it, without secrets.
    pub(super) shown: String,
    timeout: Duration,
}

impl Server {
    /// Reads a URL. Messages never contain it: it may have a password.
    pub(super) fn new(url: &str, password: Option<&Secret>, timeout_s: f64) -> Result<Self, String> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
        let rest = rest.ok_or("`url` must begin with `postgres://`, as in `postgres://user@host:5432/database`")?;
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let login = authority.rsplit_once('@').map_or("", |(login, _)| login);
        let in_url = "`url` contains a password: put it into `password`, as in `password: Some(Env(\"PGPASSWORD\"))`";
        if login.contains(':') {
            return Err(in_url.to_owned());
        }
        let (url, verified) = tls::verified(url)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let reason = error.source().map(|source| format!(" ({source})")).unwrap_or_default();
            format!("`url` is not the URL of a server, as in `postgres://user@host:5432/database`{reason}")
        })?;
        let verified = match config.get_ssl_mode() {
            // The driver reads more ways to write it.
            SslMode::Require if verified == Verified::No => Verified::System,
            SslMode::Require => verified,
            _ if verified != Verified::No => return Err("`url` has `sslmode` more than once".to_owned()),
            _ => Verified::No,
        };
        if config.get_password().is_some() {
            return Err(in_url.to_owned());
        }
        if config.get_hosts().is_empty() || config.get_user().is_none() {
            return Err("`url` must have a user and a host, as in `postgres://user@host:5432/database`".to_owned());
        }
        config.connect_timeout(CONNECTING).keepalives_idle(KEEPALIVE).tcp_user_timeout(KEEPALIVE);
        config.keepalives_interval(KEEPALIVE / 3).keepalives_retries(3);
        if config.get_application_name().is_none() {
            config.application_name("turnflow");
        }
        let host = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        let hosts: Vec<String> = config.get_hosts().iter().map(host).collect();
        let user = config.get_user().unwrap_or_default();
        let ports: Vec<String> = config.get_ports().iter().map(|port| format!(":{port}")).collect();
        let database = config.get_dbname().unwrap_or(user);
        let shown = format!("postgres://{user}@{}{}/{database}", hosts.join(","), ports.join(","));
        Ok(Self { config, password: password.cloned(), verified, shown, timeout: Duration::from_secs_f64(timeout_s) })
    }

    /// The name of the database.
    pub(super) fn database(&self) -> &str {
        self.config.get_dbname().or(self.config.get_user()).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn is_verified(&self) -> bool {
        self.verified != Verified::No
    }

    /// How the connection is protected, for `explain`.
    pub(super) fn protection(&self) -> &'static str {
        match (self.config.get_ssl_mode(), &self.verified) {
            (SslMode::Disable, _) => "disable",
            (SslMode::Require, Verified::File(_)) => "require by `sslrootcert`",
            (SslMode::Require, _) => "require",
            _ => "prefer",
        }
    }

    /// Connects, with the password as it is now.
    pub(super) async fn connect(&self) -> Result<Session, ConnectorError> {
        let mut config = self.config.clone();
        if let Some(password) = &self.password {
            config.password(password.read()?);
        }
        let tls = tls::connector(&self.verified)?;
        let (client, mut connection) = tokio::time::timeout(CONNECTING, config.connect(tls))
            .await
            .map_err(|_| passing("the server does not reply"))?
            .map_err(failed)?;
        let inbox = Arc::new(Inbox::default());
        let (session, is_gone) = oneshot::channel::<()>();
        let of_task = inbox.clone();
        tokio::spawn(async move {
            let drive = poll_fn(|cx| {
                loop {
                    match ready!(connection.poll_message(cx)) {
                        Some(Ok(AsyncMessage::Notification(notification))) => of_task.add(notification.payload()),
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Poll::Ready(told(&error)),
                        None => return Poll::Ready("the connection has ended".to_owned()),
                    }
                }
            });
            let why = tokio::select! {
                why = drive => why,
                () = async {
                    let _ = is_gone.await;
                    tokio::time::sleep(ENDING).await;
                } => String::new(),
            };
            of_task.close(why);
        });
        let session = Session { client, inbox, timeout: self.timeout, _ends: session };
        session.call(session.client.batch_execute("SET datestyle = ISO; SET bytea_output = hex")).await?;
        Ok(session)
    }
}

/// Reports what is wrong with the URL of a server.
pub(super) fn check_server(check: &mut Check<'_>, url: &str) {
    if let Err(problem) = Server::new(url, None, 1.0) {
        check.error("wrong-value", "url", problem);
    }
}

/// A connection. It ends when this is dropped.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) inbox: Arc<Inbox>,
    timeout: Duration,
    _ends: oneshot::Sender<()>,
}

impl Session {
    /// Waits for a reply of the server, for a limited time.
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, ConnectorError> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(reply) => reply.map_err(|error| match error.is_closed() {
                true => passing(self.inbox.why().unwrap_or_else(|| told(&error))),
                false => failed(error),
            }),
            Err(_) => Err(passing(format!("the server has not replied for {} s", self.timeout.as_secs_f64()))),
        }
    }
}

/// Notifications that have arrived.
#[derive(Default)]
pub(super) struct Inbox {
    arrived: Mutex<Arrived>,
    is_any: Notify,
}

/// What has arrived since it was last taken.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) payloads: Vec<String>,
    /// There were too many to keep.
    pub(super) is_overfull: bool,
    closed: Option<String>,
}

impl Inbox {
    fn add(&self, payload: &str) {
        let mut arrived = self.arrived.lock();
        if arrived.payloads.len() >= NOTIFICATIONS {
            arrived.payloads.clear();
            arrived.is_overfull = true;
        }
        if !arrived.is_overfull {
            arrived.payloads.push(payload.to_owned());
        }
        self.is_any.notify_one();
    }

    fn close(&self, why: String) {
        self.arrived.lock().closed = Some(why);
        self.is_any.notify_one();
    }

    fn why(&self) -> Option<String> {
        self.arrived.lock().closed.clone().filter(|why| !why.is_empty())
    }

    /// Takes what has arrived.
    pub(super) fn take(&self) -> Arrived {
        let mut arrived = self.arrived.lock();
        let closed = arrived.closed.clone();
        std::mem::replace(&mut *arrived, Arrived { closed, ..Arrived::default() })
    }

    /// Waits until something may have arrived, or the connection has ended.
    pub(super) async fn changed(&self) {
        self.is_any.notified().await;
    }
}

/// A source's side of a session: it waits for replies on its own thread, or for its end.
pub(super) struct Calls<'a> {
    pub(super) session: Session,
    pub(super) runtime: &'a Handle,
    pub(super) stop: &'a Stop,
}

impl<'a> Calls<'a> {
    pub(super) fn connect(server: &Server, runtime: &'a Handle, stop: &'a Stop) -> Result<Self, ConnectorError> {
        let session = wait(runtime, stop, server.connect())??;
        Ok(Self { session, runtime, stop })
    }

    /// Reports a standby: it does not know which transactions are running on its primary.
    pub(super) fn check_primary(&self) -> Result<(), ConnectorError> {
        let row = self.get(self.client().query_one("SELECT pg_is_in_recovery()", &[]))?;
        match row.get(0) {
            true => Err(passing(
                "the server is a standby, and a cursor needs the primary: a standby does not know which transactions may \
                 still add rows (with several hosts in `url`, add target_session_attrs=read-write)",
            )),
            false => Ok(()),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.session.client
    }

    /// Waits for a reply.
    pub(super) fn get<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, ConnectorError> {
        wait(self.runtime, self.stop, self.session.call(call))?
    }

    /// Waits for a reply that may take as long as other transactions take.
    pub(super) fn get_late<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, ConnectorError> {
        wait(self.runtime, self.stop, call)?.map_err(failed)
    }

    /// Waits for a time, or for a notification. An error if the connection has ended.
    pub(super) fn idle(&self, time: Duration, is_woken: bool) -> Result<(), ConnectorError> {
        let changed = async {
            let changed = self.session.inbox.changed();
            match is_woken {
                true => drop(tokio::time::timeout(time, changed).await),
                false => tokio::time::sleep(time).await,
            }
        };
        wait(self.runtime, self.stop, changed)?;
        match self.session.client.is_closed() {
            true => Err(passing(self.session.inbox.why().unwrap_or_else(|| "the connection has ended".to_owned()))),
            false => Ok(()),
        }
    }

    /// Calls a function with each row of a result, without holding more of them than a few. Returns the number of rows.
    pub(super) fn each<E: From<ConnectorError>>(
        &self,
        stream: RowStream,
        mut take: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut stream = Box::pin(stream);
        let mut count = 0;
        loop {
            let (mut rows, mut is_last) = (Vec::new(), false);
            let gather = async {
                let mut bytes = 0;
                while rows.len() < ROWS && bytes < BYTES {
                    let Some(row) = futures::TryStreamExt::try_next(&mut stream).await? else {
                        is_last = true;
                        break;
                    };
                    bytes += row.raw_size_bytes();
                    rows.push(row);
                }
                Ok(())
            };
            self.get(gather)?;
            count += rows.len();
            for row in rows {
                take(row)?;
            }
            if is_last {
                return Ok(count);
            }
        }
    }
}

/// Any error of a server may pass: someone may create the table or permit the login.
pub(super) fn failed(error: tokio_postgres::Error) -> ConnectorError {
    passing(Failure { told: told(&error), code: error.code().map(|code| State(code.code().to_owned())) })
}

/// An error of the server.
#[derive(Debug, thiserror::Error)]
#[error("{told}")]
struct Failure {
    told: String,
    #[source]
    code: Option<State>,
}

/// Its SQLSTATE.
#[derive(Debug, thiserror::Error)]
#[error("SQLSTATE {0}")]
struct State(String);

/// The SQLSTATE of an error.
pub(super) fn code(error: &ConnectorError) -> Option<&str> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(State(code)) = error.downcast_ref() {
            return Some(code);
        }
        source = error.source();
    }
    None
}

/// An error in words.
fn told(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words = format!("{words}: {error}");
        source = error.source();
    }
    words
}
