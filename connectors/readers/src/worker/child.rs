//! A child process, as its parent sees it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use turnflow_engine::document::Document;
use turnflow_engine::inference::Picture;
use turnflow_engine::wording::count;

use super::{Place, limits, wire};
use crate::ocr::{self, MOST_PICTURES};
use crate::options::ReadOptions;
use crate::{Format, ReadError, notes};

/// The variables of the environment that a child gets. All others may be secrets.
const VARIABLES: &[&str] = &[
    crate::pdf::library::VARIABLE,
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "DYLD_LIBRARY_PATH",
    "TMPDIR",
    "LANG",
    "LLVM_PROFILE_FILE",
];
/// How long the exit of a child that has closed its socket is waited for.
const ENDING: Duration = Duration::from_secs(2);

/// Why a child did not read a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// It ended before it began with the file.
    #[error("it ended before it read the file")]
    Idle,
    /// It was killed by a signal, because of a fault or a limit.
    #[error("{}", told(*.0))]
    Signal(i32),
    /// It ended by itself.
    #[error("it ended with exit code {0}")]
    Code(i32),
    /// It takes too long.
    #[error("it took longer than {}", count(.0.as_secs() as usize, "second"))]
    Late(Duration),
    /// Its answer is none.
    #[error("it answered wrongly: {0}")]
    Wrong(io::Error),
}

/// What a signal says about a file.
fn told(signal: i32) -> String {
    let why = match signal {
        libc::SIGXCPU => ", it took too much time of the processor",
        libc::SIGABRT => ", it took too much memory, or its stack was too small",
        libc::SIGSEGV => ", its stack was too small",
        libc::SIGKILL => ", the system has ended it",
        _ => "",
    };
    format!("signal {signal}{why}")
}

/// A running child.
pub(super) struct Child {
    process: std::process::Child,
    stream: UnixStream,
    files: u32,
    bytes: u64,
}

impl Child {
    /// Starts a child.
    pub(super) fn start(program: &Path, arguments: &[OsString]) -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let input = OwnedFd::from(theirs.try_clone()?);
        let mut command = Command::new(program);
        command.args(arguments).env_clear();
        command.envs(VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // A group of its own: a signal from the terminal is for the program, which ends its children.
        command.process_group(0).stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(theirs)));
        let process = command.stderr(Stdio::null()).spawn()?;
        Ok(Self { process, stream, files: 0, bytes: 0 })
    }

    /// Lets the child read a file, and tells it what is seen in its pictures. After a fault, the child must not be used
    /// again.
    pub(super) fn read(
        &mut self,
        format: Format,
        id: &Arc<str>,
        bytes: &[u8],
        reading: &ReadOptions,
        place: &Place<'_>,
    ) -> Result<Result<Document, ReadError>, Fault> {
        let most = limits::of_clock(bytes.len());
        self.files += 1;
        self.bytes += bytes.len() as u64;
        let talked = self.talk(format, id, bytes, reading, (most, place));
        let (read, notes) = talked.map_err(|error| self.fault(error, most))?;
        notes::log(id, &notes);
        // A reader cannot rename a document.
        let renamed = read.map(|document| Document { id: id.clone(), ..document });
        Ok(renamed.map_err(ReadError::Told))
    }

    fn talk(
        &self,
        format: Format,
        id: &Arc<str>,
        bytes: &[u8],
        reading: &ReadOptions,
        (most, place): (Duration, &Place<'_>),
    ) -> io::Result<wire::Answer> {
        let mut stream = Timed { stream: &self.stream, until: Instant::now() + most };
        wire::ask(&mut stream, format, reading, None, id, bytes)?;
        for _ in 0..=MOST_PICTURES + 1 {
            match wire::said(&mut stream)? {
                wire::Said::Answer(answer) => return Ok(answer),
                wire::Said::Open(what) => warn_of(&what),
                wire::Said::Picture(picture) => {
                    let asked = Instant::now();
                    let sight = place.aside(|| ocr::look(reading, picture));
                    // The child waits meanwhile.
                    stream.until += asked.elapsed() + limits::PICTURE;
                    wire::tell(&mut stream, &sight)?;
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "too many pictures"))
    }

    /// Lets the child draw a page of a PDF, with a passage marked. After a fault, the child must not be used again.
    pub(super) fn draw(
        &mut self,
        bytes: &[u8],
        (page, passage): (u32, &str),
        reading: &ReadOptions,
    ) -> Result<Result<Picture, ReadError>, Fault> {
        let most = limits::OF_CLOCK_FOR_A_PAGE;
        self.files += 1;
        self.bytes += bytes.len() as u64;
        let mut stream = Timed { stream: &self.stream, until: Instant::now() + most };
        let drawn = (|| {
            wire::ask(&mut stream, Format::Pdf, reading, Some((page, passage)), "", bytes)?;
            loop {
                match wire::said(&mut stream)? {
                    wire::Said::Picture(picture) => return Ok(Ok(picture)),
                    wire::Said::Answer((Err(reason), _)) => return Ok(Err(ReadError::Told(reason))),
                    wire::Said::Answer(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "no picture")),
                    wire::Said::Open(what) => warn_of(&what),
                }
            }
        })();
        drawn.map_err(|error| self.fault(error, most))
    }

    /// Whether the child may read another file.
    pub(super) fn is_good(&self) -> bool {
        self.files < limits::FILES && self.bytes < limits::BYTES
    }

    fn fault(&mut self, error: io::Error, most: Duration) -> Fault {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Fault::Late(most),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                match self.ended() {
                    Some(status) if status.success() => Fault::Idle,
                    Some(status) => match status.signal() {
                        Some(signal) => Fault::Signal(signal),
                        None => Fault::Code(status.code().unwrap_or_default()),
                    },
                    None => Fault::Wrong(error),
                }
            }
            _ => Fault::Wrong(error),
        }
    }

    /// How the child has ended, if it does so in a moment.
    fn ended(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + ENDING;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Says once what the kernel does not close off.
fn warn_of(what: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::warn!(what, "the readers of files are not closed off wholly"));
}

/// A stream with a time by which all must be done.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
