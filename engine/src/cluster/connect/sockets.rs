//! Opens the connections and the listener of a process, and warns of strangers.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::handshake::plain;

/// A connection must finish its handshake within this time.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// One warning about strangers in this time.
const WARNING: Duration = Duration::from_secs(1);

/// Warnings about connections that are refused.
#[derive(Default)]
pub(super) struct Strangers {
    warned: Option<Instant>,
    /// Refused since the last warning.
    silent: usize,
    pub(super) last: Option<String>,
}

impl Strangers {
    pub(super) fn warn(&mut self, address: SocketAddr, reason: &dyn fmt::Display) {
        self.last = Some(format!("nothing came from it; a connection from {address} was refused: {reason}"));
        if self.warned.is_some_and(|warned| warned.elapsed() < WARNING) {
            self.silent += 1;
            return;
        }
        let others = std::mem::take(&mut self.silent);
        self.warned = Some(Instant::now());
        tracing::warn!(%address, %reason, others, "a connection to this process of the cluster is refused");
    }
}

/// Why a process cannot listen.
pub(super) enum CannotListen {
    /// The own host name is not known yet.
    Unresolved(String),
    Never(String),
}

fn resolve(address: &str, is_local: bool) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<_> = address.to_socket_addrs()?.collect();
    if is_local {
        addresses.retain(|address| address.ip().to_canonical().is_loopback());
    }
    match addresses.is_empty() {
        true => Err(io::Error::other(format!("{address} has no address that may be used"))),
        false => Ok(addresses),
    }
}

/// Connects within the time of a handshake, which includes this.
pub(super) fn open(address: &str, is_local: bool) -> io::Result<(TcpStream, Instant)> {
    let addresses = resolve(address, is_local)?;
    let deadline = Instant::now() + HANDSHAKE;
    let mut last = io::ErrorKind::TimedOut.into();
    for (tried, address) in (0_u32..).zip(&addresses) {
        // An address that does not answer leaves time for the others.
        let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() as u32 - tried).max(1);
        match TcpStream::connect_timeout(address, left.max(Duration::from_millis(1))) {
            // It is connected to itself: the system took the same port for this end. The port must be free again for
            // who is to listen there.
            Ok(stream) if stream.local_addr().is_ok_and(|own| own == *address) => {
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok((stream, deadline)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens on the first of the host's addresses where that is possible.
pub(super) fn listen(address: &str, is_local: bool) -> Result<TcpListener, CannotListen> {
    let addresses = resolve(address, is_local).map_err(|error| CannotListen::Unresolved(plain(&error)))?;
    // The standard library sets SO_REUSEADDR.
    let listener = TcpListener::bind(&*addresses)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| {
            CannotListen::Never(match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "another process listens there, perhaps one that was started with the same number".to_owned()
                }
                io::ErrorKind::AddrNotAvailable => "it is not an address of this machine".to_owned(),
                _ => error.to_string(),
            })
        })?;
    tracing::info!(%address, listener = ?listener.local_addr().ok(), "waiting for the processes of the cluster");
    Ok(listener)
}
