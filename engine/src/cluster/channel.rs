//! An encrypted connection to another process. One thread reads it while others write.
//!
//! What TLS keeps of a connection is locked only while bytes are encrypted or decrypted, and never while this process waits
//! for the network. So two processes that send each other much at the same time both go on reading.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};

use parking_lot::Mutex;
use rustls::Connection;

/// Bytes that are read from the socket at once.
const BUFFER: usize = 1 << 16;

/// An encrypted connection.
pub struct Channel {
    socket: TcpStream,
    connection: Mutex<Connection>,
    /// What has come and is not decrypted yet. Locked by who reads.
    incoming: Mutex<Incoming>,
    /// Locked by who writes, so that what is encrypted is sent in that order.
    outgoing: Mutex<Outgoing>,
}

struct Incoming {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

#[derive(Default)]
struct Outgoing {
    encrypted: Vec<u8>,
    is_closed: bool,
}

impl Channel {
    /// The connection on this socket, whose handshake is over.
    pub(super) fn new(socket: TcpStream, mut connection: Connection) -> Self {
        // Whoever writes sends everything before more is encrypted.
        connection.set_buffer_limit(None);
        let incoming = Mutex::new(Incoming { bytes: vec![0; BUFFER].into(), from: 0, to: 0 });
        Self { socket, connection: Mutex::new(connection), incoming, outgoing: Mutex::default() }
    }

    /// The socket, for its options and addresses.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// What this says of the connection.
    pub(super) fn check<T>(&self, check: impl FnOnce(&Connection) -> T) -> T {
        check(&self.connection.lock())
    }

    /// Reads what the other process has written; 0 at its end.
    ///
    /// # Errors
    ///
    /// Those of the socket. What has come was not written by the other process.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_by(buffer, |bytes| (&self.socket).read(bytes))
    }

    /// Reads with this function in place of the socket's.
    pub(super) fn read_by(
        &self,
        buffer: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            let read = self.decrypt(&mut incoming, buffer)?;
            if let Some(read) = read {
                return Ok(read);
            }
            let received = receive(&mut incoming.bytes)?;
            // An end that is not announced is the end of a process that was killed. Who reads knows whether it comes early.
            if received == 0 {
                return Ok(0);
            }
            (incoming.from, incoming.to) = (0, received);
        }
    }

    /// Decrypts until the buffer is full, or all that has come is decrypted; `None` if more must come first.
    fn decrypt(&self, incoming: &mut Incoming, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut filled = 0;
        let mut connection = self.connection.lock();
        while filled < buffer.len() {
            match connection.reader().read(&mut buffer[filled..]) {
                Ok(0) => return Ok(Some(filled)),
                Ok(read) => filled += read,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {
                    let Incoming { bytes, from, to } = incoming;
                    let is_all = *from == *to;
                    if !is_all {
                        *from += connection.read_tls(&mut &bytes[*from..*to])?;
                    }
                    // An error is told again.
                    connection.process_new_packets().map_err(invalid)?;
                    if is_all {
                        break;
                    }
                }
            }
        }
        Ok((filled > 0 || buffer.is_empty()).then_some(filled))
    }

    /// Writes all of these bytes, one after the other.
    ///
    /// # Errors
    ///
    /// Those of the socket. The connection was closed by this process.
    pub fn write(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        let mut outgoing = self.outgoing.lock();
        if outgoing.is_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        {
            let mut connection = self.connection.lock();
            while left.iter().any(|slice| !slice.is_empty()) {
                let written = connection.writer().write_vectored(left)?;
                IoSlice::advance_slices(&mut left, written);
            }
            outgoing.take(&mut connection)?;
        }
        outgoing.send(&self.socket)
    }

    /// Tells the other process that nothing more comes.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn close(&self) -> io::Result<()> {
        let mut outgoing = self.outgoing.lock();
        if !std::mem::replace(&mut outgoing.is_closed, true) {
            let mut connection = self.connection.lock();
            connection.send_close_notify();
            outgoing.take(&mut connection)?;
        }
        outgoing.send(&self.socket)?;
        self.socket.shutdown(Shutdown::Write)
    }
}

impl Outgoing {
    fn take(&mut self, connection: &mut Connection) -> io::Result<()> {
        while connection.wants_write() {
            connection.write_tls(&mut self.encrypted)?;
        }
        Ok(())
    }

    fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        let sent = socket.write_all(&self.encrypted);
        self.encrypted.clear();
        sent
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.socket).finish()
    }
}

/// The error of what comes from the other process.
pub(super) fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
