//! Writing to the terminal or a pipe, whose reader may have gone.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output. If its reader has gone (`turnflow explain … | head -1`), there
/// is nobody to work for, and the process ends quietly.
pub(super) fn write(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    tell(format_args!("error: cannot write to standard output: {error}"));
    std::process::exit(3);
}

/// Writes a line to standard error, if anybody reads it.
pub(super) fn tell(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
