//! The tests of whole pipelines and of the command line, as one binary.

mod command_line;
mod diagnostics;
mod live;
mod support;
