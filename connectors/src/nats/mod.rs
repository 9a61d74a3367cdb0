//! NATS JetStream: streams of turns ([`turns`]), buckets of documents ([`bucket`]) and answers published to a subject
//! ([`sink`]).
//!
//! This file has what the three share: the fields of the server, and the connection.

pub mod bucket;
mod reader;
pub mod sink;
#[cfg(test)]
pub(crate) mod tests;
pub mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::{Auth, AuthError, Client, ConnectErrorKind, ConnectOptions, Event};
use nkeys::KeyPair;
use turnflow_engine::component::{Check, config};
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::spec::FilePath;

use crate::remote::{lasting, passing, refused};
use crate::secret::Secret;

/// How long a request to the server may take.
const REQUEST: Duration = Duration::from_secs(10);

/// How a client proves who it is. Secrets are read again for each connection, so one that expires can be replaced in its
/// file while turnflow runs.
#[config]
#[derive(Default)]
pub enum NatsAuth {
    /// The server asks for nothing.
    #[default]
    None,
    /// A token.
    Token(Secret),
    /// A user and a password.
    User(String, Secret),
    /// A file with a JWT and an nkey, as `nsc` writes it (`.creds`).
    Credentials(FilePath),
    /// The seed of an nkey.
    Nkey(Secret),
}

/// The servers of a cluster, without what a log must not show.
pub(crate) fn shown(url: &str) -> String {
    let shown = |url: &str| {
        let (scheme, rest) = url.trim().split_once("://").unwrap_or(("nats", url.trim()));
        format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host))
    };
    url.split(',').map(shown).collect::<Vec<_>>().join(",")
}

/// Reports an invalid `url`.
pub(crate) fn check_url(check: &mut Check<'_>, url: &str) {
    if url.contains('@') {
        let problem = "`url` contains a user or a token: use `auth`, so that the file has no secret";
        check.error("wrong-value", "url", problem.to_owned());
        return;
    }
    for server in url.split(',') {
        if let Err(error) = server.trim().parse::<async_nats::ServerAddr>() {
            check.error("wrong-value", "url", format!("`{}` is not a NATS server: {error}", server.trim()));
        }
    }
}

/// Reports a name that a stream or a bucket cannot have.
pub(crate) fn check_name(check: &mut Check<'_>, field: &str, name: &str) {
    let is_fine = |character: char| !character.is_whitespace() && !matches!(character, '.' | '*' | '>' | '/' | '\\');
    if name.is_empty() || !name.chars().all(is_fine) {
        check.error("wrong-value", field, format!("`{name}` is not a name that NATS allows"));
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// Counts the connections that were made, the first one included. What the server sent into a connection that was
    /// lost has to be asked for again.
    connected: Arc<AtomicU64>,
}

impl Connection {
    /// The number of the current connection.
    pub(crate) fn number(&self) -> u64 {
        self.connected.load(Ordering::Acquire)
    }

    /// Connects. The client connects again by itself when the connection is lost.
    pub(crate) async fn open(url: &str, auth: &NatsAuth, name: &str) -> Result<Self, ConnectorError> {
        // A secret that cannot be read has a message of its own.
        auth.prove(&[])?;
        let connected = Arc::new(AtomicU64::new(0));
        let (counter, auth, told) = (connected.clone(), auth.clone(), shown(url));
        let prove = move |nonce: Vec<u8>| {
            let proof = auth.prove(&nonce);
            async move { proof.map_err(AuthError::new) }
        };
        let servers: Vec<&str> = url.split(',').map(str::trim).collect();
        let client = ConnectOptions::with_auth_callback(prove)
            .name(format!("turnflow {name}"))
            .connection_timeout(REQUEST)
            .request_timeout(Some(REQUEST))
            .ping_interval(Duration::from_secs(10))
            .event_callback(move |event| {
                match &event {
                    Event::Connected => drop(counter.fetch_add(1, Ordering::AcqRel)),
                    event => tracing::debug!(server = told, %event, "nats"),
                }
                std::future::ready(())
            })
            .connect(servers)
            .await
            .map_err(|error| match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => refused(error),
                _ => passing(error),
            })?;
        Ok(Self { client, connected })
    }
}

impl NatsAuth {
    fn prove(&self, nonce: &[u8]) -> Result<Auth, ConnectorError> {
        let mut auth = Auth::new();
        match self {
            Self::None => {}
            Self::Token(token) => auth.token = Some(token.read()?),
            Self::User(user, password) => {
                (auth.username, auth.password) = (Some(user.clone()), Some(password.read()?));
            }
            Self::Credentials(file) => {
                let text = Secret::File(file.clone()).read()?;
                let part = |name: &str| {
                    armoured(&text, name).ok_or_else(|| lasting(format!("`{}` has no part `{name}`", file.written)))
                };
                auth.jwt = Some(part("NATS USER JWT")?.to_owned());
                auth.signature = Some(signed(part("USER NKEY SEED")?, nonce)?.1);
            }
            Self::Nkey(seed) => {
                let (public, signature) = signed(&seed.read()?, nonce)?;
                (auth.nkey, auth.signature) = (Some(public), Some(signature));
            }
        }
        Ok(auth)
    }

    /// As `explain` shows it.
    fn shown(&self) -> &'static str {
        match self {
            Self::None => "no authentication",
            Self::Token(_) => "token",
            Self::User(..) => "user and password",
            Self::Credentials(_) => "credentials file",
            Self::Nkey(_) => "nkey",
        }
    }
}

/// The public key of a seed, and the signature of a nonce.
fn signed(seed: &str, nonce: &[u8]) -> Result<(String, Vec<u8>), ConnectorError> {
    let pair = KeyPair::from_seed(seed).map_err(|_| lasting("the nkey's seed is not valid"))?;
    let signature = pair.sign(nonce).map_err(|_| lasting("the nkey's seed cannot sign"))?;
    Ok((pair.public_key(), signature))
}

/// The text between the lines `-----BEGIN NAME-----` and `------END NAME------`.
fn armoured<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("BEGIN {name}"))?;
    let (_, rest) = rest.split_once('\n')?;
    let (part, _) = rest.split_once(&format!("END {name}"))?;
    Some(part.trim_end_matches('-').trim())
}
