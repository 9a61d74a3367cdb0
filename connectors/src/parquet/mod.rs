//! Parquet and Arrow files: a corpus of one file ([`corpus`]), and recorded turns of one or more files ([`source`]).
//!
//! [`crate::readers::columnar`] reads the files.

pub mod corpus;
pub mod source;
