//! A connection between its handshake and the moment when timely gets it.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::cluster::channel::Channel;

/// After this much silence, the operating system asks whether the other end is there.
const IDLE: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;

/// What is not acknowledged for this long ends the connection.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Sets what a connection has all its life.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keep_alive = TcpKeepalive::new().with_time(IDLE).with_interval(PROBE_INTERVAL).with_retries(PROBES);
    socket.set_tcp_keepalive(&keep_alive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

/// What process 0 and another one tell each other until process 0 says "go".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To process 0: the sender has all its connections. The number is new each time.
    Complete(u64),
    /// To process 0: a connection was lost.
    Incomplete,
    /// From process 0: all processes are complete, and the receiver under this number. Nothing of ours follows.
    Go(u64),
    /// From process 0: is the receiver alive?
    Ping,
    /// The answer.
    Pong,
}

const LENGTH: usize = 9;

impl Message {
    pub(super) fn encode(self) -> [u8; LENGTH] {
        let (kind, number) = match self {
            Self::Complete(number) => (1, number),
            Self::Incomplete => (2, 0),
            Self::Go(number) => (3, number),
            Self::Ping => (4, 0),
            Self::Pong => (5, 0),
        };
        let mut bytes = [kind; LENGTH];
        bytes[1..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    pub(super) fn decode([kind, number @ ..]: [u8; LENGTH]) -> io::Result<Self> {
        match kind {
            1 => Ok(Self::Complete(u64::from_be_bytes(number))),
            2 => Ok(Self::Incomplete),
            3 => Ok(Self::Go(u64::from_be_bytes(number))),
            4 => Ok(Self::Ping),
            5 => Ok(Self::Pong),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A connection to another process of the cluster.
pub(super) struct Link {
    channel: Channel,
    /// The other process's random number.
    pub(super) instance: u64,
    buffer: [u8; LENGTH],
    filled: usize,
}

impl Link {
    pub(super) fn new(channel: Channel, instance: u64) -> io::Result<Self> {
        let socket = channel.socket();
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        socket.set_nonblocking(true)?;
        Ok(Self { channel, instance, buffer: [0; LENGTH], filled: 0 })
    }

    /// Where the other end is.
    pub(super) fn address(&self) -> String {
        let address = self.channel.socket().peer_addr();
        address.map_or_else(|_| "an unknown address".to_owned(), |address| address.to_string())
    }

    /// Sends without waiting. There is always room for so little.
    pub(super) fn send(&mut self, message: Message) -> io::Result<()> {
        self.channel.write(&[&message.encode()])
    }

    /// The next message, if it is there. What comes after it stays in the connection.
    pub(super) fn receive(&mut self) -> io::Result<Option<Message>> {
        while self.filled < LENGTH {
            match self.channel.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = 0;
        Message::decode(self.buffer).map(Some)
    }

    /// Whether the connection is open. Takes no byte from it: after the handshake, only what a process writes comes.
    pub(super) fn is_open(&self) -> bool {
        match self.channel.socket().peek(&mut [0]) {
            Ok(read) => read > 0,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// The connection, as timely wants it.
    pub(super) fn into_channel(self) -> io::Result<Channel> {
        self.channel.socket().set_nonblocking(false)?;
        Ok(self.channel)
    }
}
