//! The child: reads one file after the other, within its limits.

use std::io::{self, BufWriter, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use turnflow_engine::inference::Picture;

use super::{limits, wire};
use crate::notes;
use crate::ocr::{Eyes, Seen};

/// Reads the files that the parent process sends over standard input, and answers over standard output. Returns when the
/// parent has closed them, or after a while without a file.
pub fn serve() -> ExitCode {
    // What is wrong with a file goes to the parent, and a panic is an error of the file.
    std::panic::set_hook(Box::new(|_| {}));
    match serve_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(3),
    }
}

fn serve_all() -> io::Result<()> {
    // What is loaded later could not be opened any more.
    let _ = crate::pdf::library::with(|_| Ok(()));
    prepare()?;
    let (mut input, mut output) = (io::stdin().lock(), BufWriter::new(io::stdout().lock()));
    if let Some(open) = close() {
        wire::open(&mut output, &open)?;
    }
    loop {
        let request = match wire::asked(&mut input) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let most = match request.page {
            Some(_) => limits::OF_PROCESSOR_FOR_A_PAGE,
            None => limits::of_processor(request.bytes.len()),
        };
        limit_time(most)?;
        if let Some((page, passage)) = &request.page {
            match crate::drawn_here(&request.bytes, *page, passage, &request.passwords) {
                Ok(picture) => wire::show(&mut output, &picture)?,
                Err(error) => wire::answer(&mut output, &(Err(error.to_string()), notes::take()))?,
            }
            continue;
        }
        let mut look = |picture| see(&mut input, &mut output, &picture, request.bytes.len());
        let mut eyes = Eyes::new(request.when, request.least, &mut look);
        eyes.passwords = request.passwords;
        let read = request.format.read_seeing(request.id.into(), &request.bytes, &mut eyes);
        drop(request.bytes);
        wire::answer(&mut output, &(read.map_err(|error| error.to_string()), notes::take()))?;
    }
}

/// Asks the program what is seen in a picture. The next one may take as much time as the whole file.
fn see(input: &mut impl Read, output: &mut impl Write, picture: &Picture, bytes: usize) -> Result<Seen, String> {
    let told = wire::show(output, picture).and_then(|()| wire::told(input));
    limit_time(limits::of_processor(bytes)).map_err(|error| error.to_string())?;
    told.map_err(|error| error.to_string())?
}

#[cfg(target_os = "linux")]
fn close() -> Option<String> {
    super::closed::close()
}

#[cfg(not(target_os = "linux"))]
fn close() -> Option<String> {
    Some("only Linux can close off the readers of files".to_owned())
}

/// Sets the limits that hold for all files.
#[cfg(unix)]
fn prepare() -> io::Result<()> {
    // SAFETY: handlers of these signals are set before another thread exists. The parent ends the child by closing its
    // input; a signal to a whole group must not end it while its parent still reads files.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
    }
    set_limit(libc::RLIMIT_CORE, 0)?;
    // The program itself takes room, of which most is never used.
    set_limit(libc::RLIMIT_AS, mapped()?.saturating_add(limits::MEMORY))?;
    // Standard input is a socket; a read from it ends after a while.
    let input = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned()?;
    std::os::unix::net::UnixStream::from(input).set_read_timeout(Some(limits::IDLE))
}

#[cfg(not(unix))]
fn prepare() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The size of this process's memory, in bytes, whether it is used or not.
#[cfg(unix)]
fn mapped() -> io::Result<u64> {
    let Ok(numbers) = std::fs::read_to_string("/proc/self/statm") else { return Ok(limits::MEMORY) };
    let pages = numbers.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: it reads a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.map(|pages| pages * page as u64).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sets the time of the processor that the next file may take. The system ends the process after that time.
#[cfg(unix)]
fn limit_time(most: Duration) -> io::Result<()> {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Whole seconds, rounded up.
    set_soft_limit(libc::RLIMIT_CPU, used.tv_sec as u64 + 1 + most.as_secs())
}

#[cfg(not(unix))]
fn limit_time(_: Duration) -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
type Resource = libc::__rlimit_resource_t;
#[cfg(all(unix, not(target_os = "linux")))]
type Resource = libc::c_int;

/// Sets a limit, unless a smaller one holds.
#[cfg(unix)]
fn set_limit(resource: Resource, most: u64) -> io::Result<()> {
    change_limit(resource, |limit| {
        limit.rlim_cur = limit.rlim_cur.min(most as libc::rlim_t);
        limit.rlim_max = limit.rlim_max.min(most as libc::rlim_t);
    })
}

/// Sets a limit that can be raised again.
#[cfg(unix)]
fn set_soft_limit(resource: Resource, most: u64) -> io::Result<()> {
    change_limit(resource, |limit| limit.rlim_cur = limit.rlim_max.min(most as libc::rlim_t))
}

#[cfg(unix)]
fn change_limit(resource: Resource, change: impl FnOnce(&mut libc::rlimit)) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers are valid.
    unsafe {
        if libc::getrlimit(resource, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        change(&mut limit);
        if libc::setrlimit(resource, &raw const limit) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
