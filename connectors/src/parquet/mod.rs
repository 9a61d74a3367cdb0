//! Parquet and Arrow files: a corpus of one file ([`corpus`]), recorded turns of one or more files ([`source`]), and
//! answers in files ([`sink`]).
//!
//! [`crate::readers::columnar`] reads the files.

pub mod corpus;
pub mod sink;
pub mod source;
