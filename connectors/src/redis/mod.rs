//! Redis streams: turns from a stream ([`turns`]) and answers into one ([`sink`]).
//!
//! `stream` identifies a stream. This file has what both share: the fields of the server, and the connection.

pub mod sink;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
pub mod turns;

use std::time::Duration;

use redis::{Client, Connection, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError};
use turnflow_engine::component::Check;
use turnflow_engine::connector::ConnectorError;

use crate::remote::{lasting, passing, refused};
use crate::secret::Secret;

/// How long a connection or a command may take; in tests, not longer than they can wait for.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Where the server is and how turnflow proves who it is.
#[derive(Debug, Clone)]
struct Server {
    url: String,
    user: Option<String>,
    password: Option<Secret>,
}

/// Reports an invalid `url`.
fn check_url(check: &mut Check<'_>, url: &str) {
    let problem = match url.into_connection_info() {
        Err(error) => Some(format!("`url` is not a Redis server: {error}")),
        Ok(info) if info.redis_settings().password().is_some() => {
            Some("`url` contains a password: use `password`, so that the file has no secret".to_owned())
        }
        Ok(_) => None,
    };
    if let Some(problem) = problem {
        check.error("wrong-value", "url", problem);
    }
}

/// The server without what a log must not show.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host))
}

/// Any error of a server may pass. Without a password, the first command is refused.
fn failed(error: RedisError) -> ConnectorError {
    let is_refused =
        error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    match is_refused {
        true => refused(error),
        false => passing(told(error)),
    }
}

/// What is wrong. A time limit of a socket has the text of an operating system's error.
fn told(error: RedisError) -> Box<dyn std::error::Error + Send + Sync> {
    match error.is_timeout() {
        true => format!("the server has not replied for {} s", PATIENCE.as_secs()).into(),
        false => error.into(),
    }
}

impl Server {
    /// Connects. Secrets are read again each time.
    fn connect(&self) -> Result<Connection, ConnectorError> {
        let password = self.password.as_ref().map(Secret::read).transpose()?;
        let info = self.url.as_str().into_connection_info();
        let info: ConnectionInfo = info.map_err(|error| lasting(format!("{}: {error}", shown(&self.url))))?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let client = Client::open(info.set_redis_settings(settings)).map_err(passing)?;
        let connection = client.get_connection_with_timeout(PATIENCE).map_err(failed)?;
        connection.set_read_timeout(Some(PATIENCE)).map_err(passing)?;
        connection.set_write_timeout(Some(PATIENCE)).map_err(passing)?;
        Ok(connection)
    }
}
