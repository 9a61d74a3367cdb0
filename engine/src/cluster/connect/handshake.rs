//! The handshake of two processes. The first message of each side is in the clear, so that processes of versions that do not
//! understand each other can say so. Then comes TLS, in which both sides prove who they are, and in it, what they run.
//!
//! ```text
//! connector                                      acceptor
//! "turnflow cluster", protocol           →
//!                                        ←       yes
//!                                       TLS
//! claim                                  →
//!                                        ←       claim and verdict
//! ```

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustls::Connection;
use serde::{Deserialize, Serialize};

use super::link::prepare;
use super::tls::Tls;
use crate::cluster::channel::{Channel, invalid};

/// Version of the handshake and of the messages after it. The first message of a connector, and the answer to another
/// version, never change.
pub(super) const PROTOCOL: u16 = 3;

/// The first version with TLS.
const ENCRYPTED: u16 = 3;

const MAGIC: &[u8; 16] = b"turnflow cluster";

/// Maximum length of a message in bytes.
const LENGTH: usize = 4096;

/// How long a process that is refused has for reading why.
const REFUSAL: Duration = Duration::from_secs(1);

// The first byte of an acceptor's first message.
const YES: u8 = 1;
const OTHER_PROTOCOL: u8 = 3;

/// What a process says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) version: String,
    pub(super) process: usize,
    pub(super) processes: usize,
    pub(super) workers: usize,
    pub(super) plan: String,
    /// `None` until process 0 has said it.
    pub(super) generation: Option<u64>,
    /// A random number, by which two processes with the same number are told apart.
    pub(super) instance: u64,
    /// Processes with certificates see by it whether they have the same secret.
    pub(super) secret: Option<[u8; 32]>,
}

/// What an acceptor says to a connector's claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// The acceptor has the connection.
    Accepted,
    /// The acceptor does not know the generation yet.
    NotReady,
    /// The acceptor has another generation.
    OtherGeneration,
    /// A living process has the same number.
    SameNumber {
        /// Where it is.
        address: String,
    },
    /// The claims do not fit.
    Refused,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) claim: Claim,
    pub(super) verdict: Verdict,
}

/// Why a handshake fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}", plain(.0))]
    Io(#[from] io::Error),
    #[error("it does not speak turnflow's protocol")]
    Garbage,
    #[error("{}", other_protocol(*.0))]
    Protocol(u16),
    /// What is wrong in TLS.
    #[error("{0}")]
    Tls(String),
}

impl Failure {
    /// Says what an error of TLS means.
    fn explained(self, tls: &Tls) -> Self {
        match &self {
            Self::Io(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                Some(error) => Self::Tls(tls.explain(error)),
                None => self,
            },
            _ => self,
        }
    }
}

fn other_protocol(theirs: u16) -> String {
    let clear = if theirs < ENCRYPTED { ", without TLS" } else { "" };
    format!(
        "it speaks version {theirs} of the protocol{clear}, this process version {PROTOCOL}: start all processes with the \
         same version of turnflow"
    )
}

/// An error of a connection in plain words.
pub(super) fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer in time".to_owned(),
        kind @ (io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset) => kind.to_string(),
        _ => error.to_string(),
    }
}

/// Random bytes of the operating system.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A connection in its handshake, all of which must be over at a moment.
#[derive(Clone, Copy)]
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            left if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// Makes the handshake of TLS.
pub(super) fn secure(stream: &TcpStream, mut connection: Connection, deadline: Instant) -> io::Result<Connection> {
    let mut timed = Timed { stream, deadline };
    while connection.is_handshaking() || connection.wants_write() {
        if let Err(error) = connection.complete_io(&mut timed) {
            // The other side is told why.
            while connection.wants_write() && connection.write_tls(&mut timed).is_ok() {}
            return Err(error);
        }
    }
    Ok(connection)
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An encrypted connection in its handshake.
struct Secured {
    channel: Channel,
    deadline: Instant,
}

impl Secured {
    fn timed(&self) -> Timed<'_> {
        Timed { stream: self.channel.socket(), deadline: self.deadline }
    }
}

impl Read for Secured {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut timed = self.timed();
        self.channel.read_by(bytes, |bytes| timed.read(bytes))
    }
}

impl Write for Secured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.channel.socket().set_write_timeout(self.timed().left()?)?;
        self.channel.write(&[bytes]).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a message with its length before it.
fn send(mut stream: impl Write, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).ok().filter(|length| usize::from(*length) <= LENGTH);
    let length = length.ok_or_else(|| io::Error::other("the names in a claim are too long"))?;
    stream.write_all(&[&length.to_be_bytes(), message].concat())
}

fn receive(mut stream: impl Read) -> Result<Vec<u8>, Failure> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_be_bytes(length));
    if length > LENGTH {
        return Err(Failure::Garbage);
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    Ok(message)
}

/// A connector that has proven who it is, and said what it runs.
pub(super) struct Caller {
    secured: Secured,
    pub(super) claim: Claim,
}

impl Caller {
    /// Where it is.
    pub(super) fn address(&self) -> String {
        let address = self.secured.channel.socket().peer_addr();
        address.map_or_else(|_| "an unknown address".to_owned(), |address| address.to_string())
    }

    /// Tells it the verdict; the handshake is over.
    pub(super) fn answer(mut self, reply: &Reply) -> io::Result<Channel> {
        send(&mut self.secured, &serde_json::to_vec(reply)?)?;
        Ok(self.secured.channel)
    }
}

/// The acceptor's side, up to the verdict.
pub(super) fn accept(stream: TcpStream, tls: &Tls, deadline: Instant) -> Result<Caller, Failure> {
    prepare(&stream)?;
    let timed = Timed { stream: &stream, deadline };
    let hello = receive(timed)?;
    let protocol = hello.strip_prefix(MAGIC).and_then(<[u8]>::first_chunk).ok_or(Failure::Garbage)?;
    let protocol = u16::from_be_bytes(*protocol);
    if protocol != PROTOCOL {
        send(timed, &[[OTHER_PROTOCOL].as_slice(), &PROTOCOL.to_be_bytes()].concat())?;
        return Err(Failure::Protocol(protocol));
    }
    send(timed, &[YES])?;
    let secured = tls.acceptor().map_err(invalid).and_then(|connection| secure(&stream, connection, deadline));
    let connection = match secured {
        Ok(connection) => connection,
        Err(error) => {
            part(&stream, deadline);
            return Err(Failure::from(error).explained(tls));
        }
    };
    let mut secured = Secured { channel: Channel::new(stream, connection), deadline };
    let claim = receive(&mut secured).map_err(|failure| failure.explained(tls))?;
    let claim: Claim = serde_json::from_slice(&claim).map_err(|_| Failure::Garbage)?;
    secured.channel.check(|connection| tls.check_connector(connection, claim.process)).map_err(Failure::Tls)?;
    Ok(Caller { secured, claim })
}

/// Lets the other side read why it is refused: a connection that is closed with bytes that nobody has read is reset, and may
/// lose what was written before.
fn part(stream: &TcpStream, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + REFUSAL);
    if stream.shutdown(Shutdown::Write).is_ok() {
        while matches!((Timed { stream, deadline }).read(&mut [0; LENGTH]), Ok(1..)) {}
    }
}

/// The connector's side, to this process.
pub(super) fn call(
    stream: TcpStream,
    tls: &Tls,
    process: usize,
    claim: &Claim,
    deadline: Instant,
) -> Result<(Channel, Reply), Failure> {
    prepare(&stream)?;
    let timed = Timed { stream: &stream, deadline };
    send(timed, &[MAGIC.as_slice(), &PROTOCOL.to_be_bytes()].concat())?;
    match *receive(timed)? {
        [YES] => {}
        [OTHER_PROTOCOL, high, low] => return Err(Failure::Protocol(u16::from_be_bytes([high, low]))),
        _ => return Err(Failure::Garbage),
    }
    let secured = tls.connector(process).map_err(invalid).and_then(|connection| secure(&stream, connection, deadline));
    let connection = secured.map_err(|error| Failure::from(error).explained(tls))?;
    let mut secured = Secured { channel: Channel::new(stream, connection), deadline };
    let claim = serde_json::to_vec(claim).map_err(io::Error::from)?;
    let sent = send(&mut secured, &claim);
    // If this process is refused, the acceptor has said why, and closed the connection.
    let reply = match (receive(&mut secured), sent) {
        (Ok(reply), _) => reply,
        (Err(failure), sent) => match failure.explained(tls) {
            Failure::Io(error) => return Err(sent.err().unwrap_or(error).into()),
            failure => return Err(failure),
        },
    };
    let reply = serde_json::from_slice(&reply).map_err(|_| Failure::Garbage)?;
    Ok((secured.channel, reply))
}
