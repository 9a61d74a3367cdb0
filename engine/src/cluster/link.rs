//! A connection to another process, as timely reads and writes it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use timely::communication::allocator::zero_copy::stream::Stream;

use super::OnLost;

/// How long the end of a cluster may take when a process is lost during it.
const LAST: Duration = Duration::from_secs(10);

/// How this process stands to the others of its cluster. Shared with the links.
#[derive(Default)]
pub(crate) struct Bond(AtomicU8);

const RUNNING: u8 = 0;
const ENDING: u8 = 1;
const ENDED: u8 = 2;
const LEFT: u8 = 3;

impl Bond {
    /// The cluster ends: from now on, the others may go.
    pub fn ends(&self) {
        let _ = self.0.compare_exchange(RUNNING, ENDING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The workers of this process have ended with the cluster.
    pub fn has_ended(&self) {
        let _ = self.0.compare_exchange(ENDING, ENDED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// This process leaves because of an error of its own, which it will report: what the others do no longer matters.
    pub fn leaves(&self) {
        self.0.store(LEFT, Ordering::Release);
    }

    fn state(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

/// A socket that reports the loss of the other process.
pub(crate) struct Link {
    socket: TcpStream,
    /// The other process, for messages.
    other: Arc<str>,
    bond: Arc<Bond>,
    on_lost: OnLost,
}

impl Link {
    pub fn new(socket: TcpStream, other: Arc<str>, bond: Arc<Bond>, on_lost: OnLost) -> Self {
        quieten();
        Self { socket, other, bond, on_lost }
    }

    fn lost(&self, reason: &str) {
        let line = format!("lost {}: {reason}", self.other);
        match self.bond.state() {
            RUNNING => (self.on_lost)(&line),
            ENDING => {
                // It may have ended before this process. If it was killed, this process would wait for it for ever.
                let (bond, on_lost) = (self.bond.clone(), self.on_lost.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(LAST);
                    if bond.state() == ENDING {
                        on_lost(&line);
                    }
                });
            }
            // Without the other process, timely would panic.
            LEFT => loop {
                std::thread::park();
            },
            _ => {}
        }
    }

    fn checked<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.lost(&error.to_string());
        }
        result
    }
}

/// Leaves out the messages of timely's network threads, which panic when a process is lost: a link says more.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if !thread.name().is_some_and(|name| name.starts_with("timely:recv") || name.starts_with("timely:send")) {
                usual(panic);
            }
        }));
    });
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.socket.read(buffer);
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) => {
                    self.lost("it closed the connection");
                    return Ok(0);
                }
                read => return self.checked(read),
            }
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.socket.write(bytes);
        self.checked(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.socket.flush();
        self.checked(flushed)
    }
}

impl Stream for Link {
    fn try_clone(&self) -> io::Result<Self> {
        let (other, bond, on_lost) = (self.other.clone(), self.bond.clone(), self.on_lost.clone());
        Ok(Self { socket: self.socket.try_clone()?, other, bond, on_lost })
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self.socket.shutdown(how) {
            // The other process has ended first.
            Err(_) if self.bond.state() != RUNNING => Ok(()),
            result => result,
        }
    }
}
