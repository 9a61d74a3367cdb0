//! Reads files in child processes of the program, so that a hostile file ends or fills a child and not the program.
//!
//! A program that can be started as a reader says so with [`start_with`]; the child calls [`serve`]. Each child reads one
//! file at a time, within limits of memory, of the processor's time and of time. It has no variables of the environment,
//! which may have secrets, and reaches no files and no network (`closed.rs`). The text in pictures is read by a model of the
//! program, which a child asks; while it waits for that, other files are read, so that a few long scans hold up nobody. A
//! child that ends, takes too long or answers wrongly makes an error of its file, and the next file gets a new child.
//! Children are kept for the next files, and end when they have nothing to do for a while.
//!
//! A program that is not registered, such as a test, reads in its own process.

mod child;
#[cfg(target_os = "linux")]
mod closed;
mod limits;
mod serve;
mod wire;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use turnflow_engine::document::Document;
use turnflow_engine::inference::Picture;

use self::child::{Child, Fault};
pub use self::serve::serve;
use super::{Format, ReadError, ReadOptions};

/// Maximum number of children that read.
const MOST: usize = 16;
/// Maximum number of further children that wait for the model that reads pictures.
const ASIDE: usize = 8;
/// How long it is waited before a child is started again that could not be started for want of room, in
/// milliseconds.
const PAUSES: [u64; 7] = [50, 200, 500, 1_000, 2_000, 4_000, 8_000];

/// How the program is started as a reader.
struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();
static POOL: Pool = Pool { state: Mutex::new(State { idle: Vec::new(), busy: 0, aside: 0 }), freed: Condvar::new() };

/// The children.
struct Pool {
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    idle: Vec<Child>,
    /// Those that read, and those that wait for the model meanwhile.
    busy: usize,
    aside: usize,
}

/// Says how this program is started as a reader: with these arguments it must call [`serve`]. Files are read in such
/// children from now on. Only the first call counts.
pub fn start_with(arguments: &[&str]) {
    // A program that was replaced on the disk is still this one.
    let running = PathBuf::from("/proc/self/exe");
    let this = if running.exists() { Ok(running) } else { std::env::current_exe() };
    if let Ok(path) = this {
        PROGRAM.get_or_init(|| Program { path, arguments: arguments.iter().map(OsString::from).collect() });
    }
}

/// Whether files of a format are read in a child, if there can be one. Text needs none.
fn is_for_children(format: Format) -> bool {
    !matches!(
        format,
        Format::Text
            | Format::Markdown
            | Format::JsonLines
            | Format::Csv
            | Format::Tsv
            | Format::Parquet
            | Format::Arrow
    )
}

/// Reads a file in a child; `None` if it is to be read here.
pub(super) fn read(
    format: Format,
    id: &Arc<str>,
    bytes: &[u8],
    reading: &ReadOptions,
) -> Option<Result<Document, ReadError>> {
    let program = PROGRAM.get().filter(|_| is_for_children(format))?;
    Some(POOL.with(program, (format, id), |child, place| child.read(format, id, bytes, reading, place)))
}

/// Draws a page of a PDF in a child; `None` if it is to be drawn here.
pub(super) fn draw(
    bytes: &[u8],
    (page, passage): (u32, &str),
    reading: &ReadOptions,
) -> Option<Result<Picture, ReadError>> {
    // Less than a half, since a control character takes six bytes as JSON.
    let mut most = passage.len().min(limits::PASSAGE as usize / 8);
    while !passage.is_char_boundary(most) {
        most -= 1;
    }
    let page = (page, &passage[..most]);
    let program = PROGRAM.get()?;
    Some(POOL.with(program, (Format::Pdf, "a page"), |child, _| child.draw(bytes, page, reading)))
}

/// Starts something. While the system has no room for another process, waits and tries again.
fn patiently<T>(start: impl Fn() -> io::Result<T>, pause: impl Fn(Duration)) -> io::Result<T> {
    let is_full = |error: &io::Error| {
        matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE))
    };
    for wait in PAUSES.map(Duration::from_millis) {
        match start() {
            Err(error) if is_full(&error) => {
                tracing::warn!(%error, ?wait, "a reader of files cannot be started, and is tried again");
                pause(wait);
            }
            done => return done,
        }
    }
    start()
}

impl Pool {
    /// Lets a child work on a file.
    fn with<T>(
        &self,
        program: &Program,
        (format, id): (Format, &str),
        mut work: impl FnMut(&mut Child, &Place<'_>) -> Result<Result<T, ReadError>, Fault>,
    ) -> Result<T, ReadError> {
        let mut kept = self.take();
        // Gives the place back, whatever happens.
        let place = Place(self);
        loop {
            let is_new = kept.is_none();
            let mut child = match kept.take() {
                Some(child) => child,
                None => patiently(|| Child::start(&program.path, &program.arguments), std::thread::sleep)
                    .map_err(ReadError::NoReader)?,
            };
            match work(&mut child, &place) {
                Ok(read) => {
                    if child.is_good() {
                        self.state.lock().idle.push(child);
                    }
                    drop(place);
                    return read;
                }
                // It ended while it had nothing to do.
                Err(Fault::Idle) if !is_new => {}
                Err(fault) => {
                    let reason = fault.to_string();
                    tracing::warn!(document = id, format = format.name(), reason, "a reader of files has failed");
                    return Err(ReadError::Ended { format: format.name(), reason });
                }
            }
        }
    }

    /// Waits for a place, and takes an idle child with it, if there is one.
    fn take(&self) -> Option<Child> {
        self.taken().idle.pop()
    }

    fn taken(&self) -> MutexGuard<'_, State> {
        let most = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST);
        let mut state = self.state.lock();
        while state.busy >= most {
            self.freed.wait(&mut state);
        }
        state.busy += 1;
        state
    }
}

/// A place among the busy children.
struct Place<'a>(&'a Pool);

impl Place<'_> {
    /// Does something that takes no child's time. Others may read meanwhile, unless too many are aside already.
    fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut state = self.0.state.lock();
        if state.aside >= ASIDE {
            drop(state);
            return work();
        }
        (state.aside, state.busy) = (state.aside + 1, state.busy - 1);
        drop(state);
        self.0.freed.notify_one();
        let _back = Back(self.0);
        work()
    }
}

/// Takes a place again.
struct Back<'a>(&'a Pool);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        self.0.taken().aside -= 1;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_model_holds_up_nobody() {
        let pool = Pool { state: Mutex::new(State { idle: Vec::new(), busy: 0, aside: 0 }), freed: Condvar::new() };
        let place = |pool| {
            let _ = Pool::take(pool);
            Place(pool)
        };
        let counts = || {
            let state = pool.state.lock();
            (state.busy, state.aside)
        };
        let most = std::thread::available_parallelism().unwrap().get().min(MOST);
        let places: Vec<_> = (0..most).map(|_| place(&pool)).collect();
        places[0].aside(|| {
            // Its place is free, and when that is taken, it waits for another one.
            let other = place(&pool);
            assert_eq!(counts(), (most, 1));
            drop(other);
        });
        assert_eq!(counts(), (most, 0));
        pool.state.lock().aside = ASIDE;
        places[0].aside(|| assert_eq!(counts().0, most, "too many are aside"));
        drop(places);
        assert_eq!(counts().0, 0);
    }

    #[test]
    fn a_reader_that_finds_no_room_is_started_later() {
        let full = || io::Error::from_raw_os_error(libc::EAGAIN);
        let (tries, waited) = (std::cell::Cell::new(0), std::cell::RefCell::new(Vec::new()));
        let start = |fails: usize, error: fn() -> io::Error| {
            tries.set(0);
            waited.borrow_mut().clear();
            let start = || {
                tries.set(tries.get() + 1);
                if tries.get() > fails { Ok(()) } else { Err(error()) }
            };
            patiently(start, |pause| waited.borrow_mut().push(pause))
        };
        assert!(start(3, full).is_ok());
        assert_eq!(*waited.borrow(), PAUSES.map(Duration::from_millis)[..3]);
        assert!(start(PAUSES.len() + 1, full).is_err(), "it is not tried for ever");
        // What waiting does not mend is told at once.
        assert!(start(1, || io::Error::from_raw_os_error(libc::EACCES)).is_err());
        assert_eq!((tries.get(), waited.borrow().len()), (1, 0));
    }
}
