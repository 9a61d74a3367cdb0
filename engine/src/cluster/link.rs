//! A connection to another process, as timely reads and writes it.
//!
//! What timely writes goes into frames: the length, then the bytes. A thread of the link sends an empty frame once a
//! second, whatever the workers compute. A process from which nothing has come for [`LinkOptions::lost_after`], because it
//! is stopped or its machine is gone, is lost. Only seconds in which this process has listened are counted, so a process
//! that was itself stopped blames no other.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use timely::communication::allocator::zero_copy::stream::Stream;

use super::OnLost;
use super::channel::Channel;

/// How long the end of a cluster may take when a process is lost during it.
const LAST: Duration = Duration::from_secs(10);

/// The interval of empty frames, and of looks at what has come.
const BEAT: Duration = Duration::from_secs(1);
/// After this many silent intervals, a process is not relied on until it is heard again.
const DOUBTFUL: u32 = 3;
/// Bytes of a frame's length.
const LENGTH: usize = 4;
/// Maximum number of bytes in a frame: a frame is encrypted as a whole before it is sent.
const FRAME: usize = (1 << 16) - LENGTH;

/// How this process stands to the others of its cluster. Shared with the links.
#[derive(Default)]
pub(crate) struct Bond {
    state: AtomicU8,
    /// How long nothing has come from each other process, in intervals.
    silent: Mutex<Vec<Arc<AtomicU32>>>,
}

const RUNNING: u8 = 0;
const ENDING: u8 = 1;
const ENDED: u8 = 2;
const LEFT: u8 = 3;

impl Bond {
    /// The cluster ends: from now on, the others may go.
    pub fn ends(&self) {
        let _ = self.state.compare_exchange(RUNNING, ENDING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The workers of this process have ended with the cluster.
    pub fn has_ended(&self) {
        let _ = self.state.compare_exchange(ENDING, ENDED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// This process leaves because of an error of its own, which it will report: what the others do no longer matters.
    pub fn leaves(&self) {
        self.state.store(LEFT, Ordering::Release);
    }

    /// Whether every other process was heard in the last seconds.
    pub fn hears_all(&self) -> bool {
        self.silent.lock().iter().all(|silent| silent.load(Ordering::Acquire) < DOUBTFUL)
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }
}

/// What a link is made with.
#[derive(Clone)]
pub(crate) struct LinkOptions {
    /// The other process, for messages.
    pub other: Arc<str>,
    /// How this process stands to the others.
    pub bond: Arc<Bond>,
    /// What to do when the other process is lost.
    pub on_lost: OnLost,
    /// It is lost when nothing has come for so long; at least some seconds.
    pub lost_after: Duration,
}

/// Writes a frame.
fn send(channel: &Channel, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    channel.write(&[&length.to_be_bytes(), bytes])
}

/// Sends empty frames until the link ends.
fn beat(channel: &Weak<Channel>) {
    loop {
        std::thread::sleep(BEAT);
        let Some(channel) = channel.upgrade() else { return };
        // The thread that reads reports an error.
        if send(&channel, &[]).is_err() {
            return;
        }
    }
}

/// A connection that reports the loss of the other process.
pub(crate) struct Link {
    channel: Arc<Channel>,
    /// What is read of the length of a frame.
    length: ([u8; LENGTH], usize),
    /// Bytes of the frame that are not read yet.
    left: usize,
    silent: Arc<AtomicU32>,
    options: LinkOptions,
}

impl Link {
    /// Wraps the connection.
    ///
    /// # Errors
    ///
    /// The operating system refuses an option, or another thread.
    pub fn new(channel: Channel, options: LinkOptions) -> io::Result<Self> {
        quieten();
        channel.socket().set_read_timeout(Some(BEAT))?;
        let silent = Arc::new(AtomicU32::new(0));
        options.bond.silent.lock().push(silent.clone());
        let channel = Arc::new(channel);
        let weak = Arc::downgrade(&channel);
        std::thread::Builder::new().name("turnflow:beat".to_owned()).spawn(move || beat(&weak))?;
        Ok(Self::of(channel, silent, options))
    }

    fn of(channel: Arc<Channel>, silent: Arc<AtomicU32>, options: LinkOptions) -> Self {
        Self { channel, length: ([0; LENGTH], 0), left: 0, silent, options }
    }

    /// Reads from the connection. While nothing comes, the seconds are counted.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.channel.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    let silent = self.silent.fetch_add(1, Ordering::AcqRel) + 1;
                    let limit = self.options.lost_after.as_secs_f64() / BEAT.as_secs_f64();
                    if f64::from(silent) == limit.ceil() {
                        self.lost(&format!("nothing has come from it for {} s", self.options.lost_after.as_secs_f64()));
                    }
                }
                Ok(0) => {
                    self.lost("it closed the connection");
                    return Ok(0);
                }
                read => {
                    self.silent.store(0, Ordering::Release);
                    return self.checked(read);
                }
            }
        }
    }

    fn lost(&self, reason: &str) {
        let line = format!("lost {}: {reason}", self.options.other);
        match self.options.bond.state() {
            RUNNING => (self.options.on_lost)(&line),
            ENDING => {
                // It may have ended before this process. If it was killed, this process would wait for it for ever.
                let (bond, on_lost) = (self.options.bond.clone(), self.options.on_lost.clone());
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
        while self.left == 0 {
            let (mut bytes, known) = self.length;
            let read = self.receive(&mut bytes[known..])?;
            if read == 0 {
                return Ok(0);
            }
            self.length = (bytes, known + read);
            if known + read == LENGTH {
                self.length.1 = 0;
                self.left = u32::from_be_bytes(bytes) as usize;
            }
        }
        let most = buffer.len().min(self.left);
        let read = self.receive(&mut buffer[..most])?;
        self.left -= read;
        Ok(read)
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An empty frame says only that this process is there.
        if bytes.is_empty() {
            return Ok(0);
        }
        let bytes = &bytes[..bytes.len().min(FRAME)];
        let written = send(&self.channel, bytes);
        self.checked(written).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Link {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::of(self.channel.clone(), self.silent.clone(), self.options.clone()))
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.channel.socket().set_nonblocking(nonblocking)
    }

    /// Ends what this process writes; timely asks for nothing else.
    fn shutdown(&self, _how: Shutdown) -> io::Result<()> {
        match self.channel.close() {
            // The other process has ended first.
            Err(_) if self.options.bond.state() != RUNNING => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::cluster::connect::tests::pair as channels;

    /// Both ends of a connection, and what the first one reports as lost.
    fn pair(lost_after: Duration) -> (Link, Channel, mpsc::Receiver<String>, Arc<Bond>) {
        let (one, other) = channels();
        let (lost, losses) = mpsc::channel();
        let lost = Mutex::new(lost);
        let bond = Arc::<Bond>::default();
        let options = LinkOptions {
            other: "process 1".into(),
            bond: bond.clone(),
            on_lost: Arc::new(move |line| drop(lost.lock().send(line.to_owned()))),
            lost_after,
        };
        (Link::new(one, options).unwrap(), other, losses, bond)
    }

    #[test]
    fn frames_carry_all_bytes_whatever_the_sizes_and_the_empty_ones_between() {
        let (mut one, other, _, bond) = pair(Duration::from_secs(60));
        let options = LinkOptions { other: "process 0".into(), ..one.options.clone() };
        let mut other = Link::new(other, options).unwrap();
        let sizes = [1, 7, 70_000, 1, 300_000, 4];
        let written: Vec<u8> = sizes.iter().flat_map(|size| (0..*size).map(|at| (at % 251) as u8)).collect();
        let expected = written.clone();
        let writer = std::thread::spawn(move || {
            let mut from = 0;
            for size in sizes {
                one.write_all(&written[from..from + size]).unwrap();
                send(&one.channel, &[]).unwrap();
                from += size;
            }
            one.shutdown(Shutdown::Write).unwrap();
            one
        });
        bond.ends();
        let mut found = Vec::new();
        let mut buffer = vec![0; 10_007];
        loop {
            match other.read(&mut buffer).unwrap() {
                0 => break,
                read => found.extend_from_slice(&buffer[..read]),
            }
        }
        assert!(found == expected);
        drop(writer.join().unwrap());
    }

    /// The other end is open, and its system acknowledges, but nothing comes: as from a process that is stopped.
    #[test]
    fn a_silent_process_is_doubtful_and_then_lost() {
        let (mut one, other, losses, bond) = pair(Duration::from_secs(4));
        let reader = std::thread::spawn(move || one.read(&mut [0; 9]).map_err(|error| error.kind()));
        assert!(bond.hears_all());
        let line = losses.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(line.contains("lost process 1: nothing has come from it for 4 s"), "{line}");
        assert!(!bond.hears_all());
        // One that was slow is heard again.
        send(&other, &[]).unwrap();
        while !bond.hears_all() {
            std::thread::yield_now();
        }
        send(&other, b"a").unwrap();
        assert_eq!(reader.join().unwrap(), Ok(1));
    }

    /// Its thread sends empty frames, so a process that computes for long is heard.
    #[test]
    fn a_process_that_says_nothing_else_is_heard() {
        let (one, other, losses, _) = pair(Duration::from_secs(60));
        other.socket().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut buffer = [7; 2 * LENGTH];
        let mut filled = 0;
        while filled < buffer.len() {
            filled += other.read(&mut buffer[filled..]).unwrap();
        }
        assert_eq!(buffer, [0; 2 * LENGTH]);
        drop(one);
        // The thread ends with the link, and so does the connection.
        while other.read(&mut buffer).unwrap() > 0 {}
        assert!(losses.try_recv().is_err());
    }
}
