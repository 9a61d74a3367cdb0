//! The handshake of two processes. Both prove that they have the secret: with a keyed hash of all that was said, which
//! includes a new random number of each side.
//!
//! ```text
//! connector                                      acceptor
//! "turnflow cluster", protocol, number   →
//!                                        ←       number
//! proof, claim                           →
//!                                        ←       proof, claim and verdict
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::link::prepare;

/// Version of the handshake and of the messages after it. The first message of a connector, and the answer to another
/// version, never change.
pub(super) const PROTOCOL: u16 = 2;

const MAGIC: &[u8; 16] = b"turnflow cluster";

/// Maximum length of a message in bytes.
const LENGTH: usize = 4096;

const RANDOM: usize = 32;

// The first byte of an acceptor's message.
const NUMBER: u8 = 1;
const REPLY: u8 = 2;
const OTHER_PROTOCOL: u8 = 3;
const UNPROVEN: u8 = 4;

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
    #[error("it speaks version {0} of the protocol, this process version {PROTOCOL}")]
    Protocol(u16),
    #[error("it does not prove that it has the same secret")]
    Unproven,
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

/// Key of the proofs.
#[derive(Clone, Copy)]
pub(super) struct Key([u8; blake3::KEY_LEN]);

impl Key {
    pub(super) fn of(secret: &[u8]) -> Self {
        Self(blake3::derive_key("turnflow cluster handshake 2026-10-02", secret))
    }

    /// A key for something else, of which this one does not follow.
    pub(super) fn derived(&self, purpose: &'static str) -> [u8; blake3::KEY_LEN] {
        blake3::derive_key(purpose, &self.0)
    }
}

/// Random bytes of the operating system.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What both sides have said when the connector has said its claim.
struct Said {
    hello: Vec<u8>,
    number: Vec<u8>,
    claim: Vec<u8>,
}

impl Said {
    fn proof(&self, key: &Key, role: &[u8], reply: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&key.0);
        for part in [role, &self.hello, &self.number, &self.claim, reply] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        hasher.finalize()
    }

    fn connectors_proof(&self, key: &Key) -> blake3::Hash {
        self.proof(key, b"connector", b"")
    }

    fn acceptors_proof(&self, key: &Key, reply: &[u8]) -> blake3::Hash {
        self.proof(key, b"acceptor", reply)
    }
}

/// A proof and what it proves.
fn proven(message: &[u8]) -> Result<(blake3::Hash, &[u8]), Failure> {
    let (proof, rest) = message.split_first_chunk::<{ blake3::OUT_LEN }>().ok_or(Failure::Garbage)?;
    Ok((blake3::Hash::from_bytes(*proof), rest))
}

/// Messages over a connection: each has its length before it. All of them together must end before the deadline.
struct Line {
    stream: TcpStream,
    deadline: Instant,
}

impl Line {
    fn new(stream: TcpStream, deadline: Instant) -> io::Result<Self> {
        prepare(&stream)?;
        Ok(Self { stream, deadline })
    }

    fn left(&self) -> io::Result<Option<std::time::Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            left if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }

    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let message = parts.concat();
        let length = u16::try_from(message.len()).ok().filter(|length| usize::from(*length) <= LENGTH);
        let length = length.ok_or_else(|| io::Error::other("the names in a claim are too long"))?;
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(&[&length.to_be_bytes(), &*message].concat())
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<u8>, Failure> {
        let mut length = [0; 2];
        self.read(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        if length > LENGTH {
            return Err(Failure::Garbage);
        }
        let mut message = vec![0; length];
        self.read(&mut message)?;
        Ok(message)
    }

    /// Receives an acceptor's message of this kind.
    fn receive_kind(&mut self, expected: u8) -> Result<Vec<u8>, Failure> {
        let message = self.receive()?;
        match message.split_first() {
            Some((&kind, rest)) if kind == expected => Ok(rest.to_vec()),
            Some((&OTHER_PROTOCOL, &[high, low])) => Err(Failure::Protocol(u16::from_be_bytes([high, low]))),
            Some((&UNPROVEN, _)) => Err(Failure::Unproven),
            _ => Err(Failure::Garbage),
        }
    }
}

/// A connector that has proven its claim.
pub(super) struct Caller {
    line: Line,
    said: Said,
    pub(super) claim: Claim,
}

impl Caller {
    /// Where it is.
    pub(super) fn address(&self) -> String {
        self.line.stream.peer_addr().map_or_else(|_| "an unknown address".to_owned(), |address| address.to_string())
    }

    /// Tells it the verdict; the handshake is over.
    pub(super) fn answer(mut self, key: &Key, reply: &Reply) -> io::Result<TcpStream> {
        let reply = serde_json::to_vec(reply)?;
        let proof = self.said.acceptors_proof(key, &reply);
        self.line.send(&[&[REPLY], proof.as_bytes(), &reply])?;
        Ok(self.line.stream)
    }
}

/// The acceptor's side, up to the verdict.
pub(super) fn accept(stream: TcpStream, key: &Key, deadline: Instant) -> Result<Caller, Failure> {
    let mut line = Line::new(stream, deadline)?;
    let hello = line.receive()?;
    let (protocol, rest) = hello.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk).ok_or(Failure::Garbage)?;
    let protocol = u16::from_be_bytes(*protocol);
    if protocol != PROTOCOL {
        line.send(&[&[OTHER_PROTOCOL], &PROTOCOL.to_be_bytes()])?;
        return Err(Failure::Protocol(protocol));
    }
    if rest.len() != RANDOM {
        return Err(Failure::Garbage);
    }
    let number = random::<RANDOM>()?.to_vec();
    line.send(&[&[NUMBER], &number])?;
    let message = line.receive()?;
    let (proof, claim) = proven(&message)?;
    let said = Said { hello, number, claim: claim.to_vec() };
    // Equality of hashes takes constant time.
    if proof != said.connectors_proof(key) {
        line.send(&[&[UNPROVEN]])?;
        return Err(Failure::Unproven);
    }
    let claim = serde_json::from_slice(claim).map_err(|_| Failure::Garbage)?;
    Ok(Caller { line, said, claim })
}

/// The connector's side. Reads nothing after the reply.
pub(super) fn call(
    stream: TcpStream,
    key: &Key,
    claim: &Claim,
    deadline: Instant,
) -> Result<(TcpStream, Reply), Failure> {
    let mut line = Line::new(stream, deadline)?;
    let hello = [MAGIC.as_slice(), &PROTOCOL.to_be_bytes(), &random::<RANDOM>()?].concat();
    line.send(&[&hello])?;
    let number = line.receive_kind(NUMBER)?;
    if number.len() != RANDOM {
        return Err(Failure::Garbage);
    }
    let said = Said { hello, number, claim: serde_json::to_vec(claim).map_err(io::Error::from)? };
    line.send(&[said.connectors_proof(key).as_bytes(), &said.claim])?;
    let message = line.receive_kind(REPLY)?;
    let (proof, reply) = proven(&message)?;
    if proof != said.acceptors_proof(key, reply) {
        return Err(Failure::Unproven);
    }
    let reply = serde_json::from_slice(reply).map_err(|_| Failure::Garbage)?;
    Ok((line.stream, reply))
}
