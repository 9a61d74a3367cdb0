//! Connects the processes of a cluster, before timely gets the sockets.
//!
//! Each process connects to those with a lower number, and accepts those with a higher one. Everything between two
//! processes is in TLS, in which both prove who they are: with a key pair that is made from the secret, or with
//! certificates. Then they say what they run. Process 0 decides the generation. When every process has all of its
//! connections, process 0 tells all to go.

mod admit;
mod certificates;
mod gather;
mod handshake;
mod link;
mod pinned;
mod secret;
mod sockets;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustls::pki_types::ServerName;

pub use self::certificates::CertificateFiles;
use self::gather::Gathering;
pub use self::secret::Secret;
use self::tls::Tls;
pub use super::channel::Channel;

/// What a process says about itself.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number, from 0.
    pub process: usize,
    /// `HOST:PORT` of each process, in order. The process listens on its own while it connects.
    pub hosts: Vec<String>,
    /// The number of workers of each process.
    pub workers: usize,
    /// The shared secret. Without it and without certificates, all addresses must be loopback ones.
    pub secret: Option<Secret>,
    /// By which processes know each other in place of the secret.
    pub certificates: Option<CertificateFiles>,
    /// Hash of the pipeline, which all processes must have in common.
    pub plan: String,
}

/// A connected cluster.
#[derive(Debug)]
pub struct Connected {
    /// The connections to all processes, in order; `None` is the process itself. They are blocking, without timeouts. A
    /// connection whose other end is silent for some 10 s, not even acknowledging, fails.
    pub channels: Vec<Option<Channel>>,
    /// The generation that process 0 decided.
    pub generation: u64,
}

/// Why a cluster cannot be described as given.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no process with this number.
    #[error("there is no process {process}: the cluster has {processes}, and they are numbered from 0")]
    Process {
        /// The process's number.
        process: usize,
        /// How many there are.
        processes: usize,
    },
    /// An address is not `HOST:PORT`.
    #[error("`{0}` is not an address: write HOST:PORT, as in 10.0.0.3:7100, [::1]:7100 or node-3:7100")]
    Address(String),
    /// Two processes have the same address.
    #[error("two processes have the address {0}: each needs its own")]
    SameAddress(String),
    /// A process has no worker.
    #[error("a process needs at least one worker")]
    NoWorkers,
    /// Strangers could connect, or be connected to.
    #[error(
        "{0} is not a loopback address (127.0.0.1, [::1], localhost): processes on a network need a secret or certificates"
    )]
    NoSecret(String),
    /// The secret has only this many bytes.
    #[error("the secret has {0} bytes, but needs at least {min}", min = Secret::LENGTH)]
    ShortSecret(usize),
    /// A file with a certificate or a key cannot be used.
    #[error("cannot use `{file}`: {reason}")]
    Certificate {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The key of the secret cannot be used.
    #[error("cannot make a key from the secret: {0}")]
    Tls(String),
}

/// Why the cluster is not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The description of the cluster is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The process cannot listen.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The process's own address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// Another process was started with other settings, which a retry does not change.
    #[error("process {process} ({address}) has other settings: {difference}")]
    Differs {
        /// The other process's number.
        process: usize,
        /// Its address.
        address: String,
        /// The difference.
        difference: String,
    },
    /// Another process has the same number.
    #[error("there are two processes with the number {process}: this one, and one at {address}; end one of them")]
    SameNumber {
        /// The number.
        process: usize,
        /// Where the other one is.
        address: String,
    },
    /// The patience is over.
    #[error("{}", .0.iter().map(Missing::to_string).collect::<Vec<_>>().join("; "))]
    Missing(Vec<Missing>),
    /// A process was lost when some had been told to go, and others not yet. All must start again.
    #[error("process {process} ({address}) was lost while the cluster started; start this process again")]
    Lost {
        /// The lost process's number.
        process: usize,
        /// Its address.
        address: String,
    },
    /// The caller cancelled.
    #[error("cancelled before all processes were connected")]
    Cancelled,
    /// The operating system has no random bytes.
    #[error("cannot get random bytes from the operating system: {0}")]
    Random(#[source] io::Error),
}

/// A process that did not connect in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {process} ({address}) did not connect within {} s: {reason}", patience.as_secs_f64())]
pub struct Missing {
    /// Its number.
    pub process: usize,
    /// Its address.
    pub address: String,
    /// How long it was waited for.
    pub patience: Duration,
    /// What was wrong the last time.
    pub reason: String,
}

/// Connects this process to all others, and returns when all processes are connected to all. Only process 0's
/// `generation` counts. Calls `is_cancelled` at least every 50 ms.
///
/// What may heal is retried until `patience` is over: a process that is not there yet, whose name is not known yet,
/// that runs another plan, version or generation, or that cannot prove who it is.
///
/// # Errors
///
/// The first of these: the description is wrong, the process cannot listen on its address, another process has the same
/// number or other numbers of processes or workers, a process is missing when the patience is over, `is_cancelled`
/// returns true.
pub fn connect(
    member: &Member,
    generation: u64,
    patience: Duration,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Connected, ConnectError> {
    Gathering::new(member, member.checked()?, generation)?.run(patience, is_cancelled)
}

impl Member {
    /// Checks all that can be checked without a connection.
    ///
    /// # Errors
    ///
    /// The description of the cluster is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.checked().map(drop)
    }

    /// Checks it, and reads what handshakes are made with.
    fn checked(&self) -> Result<Tls, ConfigError> {
        if self.process >= self.hosts.len() {
            return Err(ConfigError::Process { process: self.process, processes: self.hosts.len() });
        }
        if self.workers == 0 {
            return Err(ConfigError::NoWorkers);
        }
        for (process, address) in self.hosts.iter().enumerate() {
            let host = Host::of(address).ok_or_else(|| ConfigError::Address(address.clone()))?;
            if self.hosts[..process].contains(address) {
                return Err(ConfigError::SameAddress(address.clone()));
            }
            if self.is_open() && !host.is_loopback() {
                return Err(ConfigError::NoSecret(address.clone()));
            }
        }
        Tls::of(self)
    }

    /// Whether anyone who can connect may take part.
    fn is_open(&self) -> bool {
        self.secret.is_none() && self.certificates.is_none()
    }
}

enum Host<'a> {
    Ip(IpAddr),
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// The host of a valid `HOST:PORT`.
    fn of(address: &'a str) -> Option<Self> {
        if let Ok(address) = address.parse::<SocketAddr>() {
            return (address.port() != 0).then_some(Self::Ip(address.ip()));
        }
        let (name, port) = address.rsplit_once(':')?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_valid = !name.is_empty() && name.chars().all(is_part) && port.parse::<u16>().is_ok_and(|port| port != 0);
        is_valid.then_some(Self::Name(name))
    }

    /// The name that a certificate is valid for.
    fn name(self) -> Option<ServerName<'static>> {
        match self {
            Self::Ip(ip) => Some(ServerName::IpAddress(ip.to_canonical().into())),
            Self::Name(name) => ServerName::try_from(name.to_owned()).ok(),
        }
    }

    fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.to_canonical().is_loopback(),
            // What it resolves to is checked too, before it is used.
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
