//! Writes to the terminal or a pipe, whose reader may have closed it.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output. If the reader has closed it (`turnflow explain … | head -1`), the
/// process exits silently.
pub(super) fn write(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    tell(format_args!("error: cannot write to standard output: {error}"));
    std::process::exit(3);
}

/// Writes a line to standard error; ignores errors.
pub(super) fn tell(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
