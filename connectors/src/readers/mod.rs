//! Files as documents, by the crate of readers, and files of rows, of which each is a document: [`jsonl`], and [`columnar`]
//! for Parquet and Arrow files.

#[cfg(feature = "parquet")]
pub mod columnar;
pub mod jsonl;

use std::fs::File;
use std::io::Read;

pub use turnflow_readers::*;

/// The rows of a file as JSON Lines.
///
/// # Errors
///
/// The file is damaged, or this build cannot read the format.
pub fn rows(format: Format, file: File) -> Result<Box<dyn Read>, ReadError> {
    match format {
        #[cfg(feature = "parquet")]
        Format::Parquet => Ok(Box::new(columnar::parquet(file)?)),
        #[cfg(feature = "parquet")]
        Format::Arrow => Ok(Box::new(columnar::arrow(file)?)),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet | Format::Arrow => Err(NO_COLUMNS),
        _ => Ok(Box::new(file)),
    }
}

/// The rows of a file with these bytes as JSON Lines.
///
/// # Errors
///
/// As for [`rows`].
pub fn rows_of(format: Format, bytes: &[u8]) -> Result<Box<dyn Read + '_>, ReadError> {
    match format {
        #[cfg(feature = "parquet")]
        Format::Parquet => Ok(Box::new(columnar::parquet_bytes(bytes.to_vec().into())?)),
        #[cfg(feature = "parquet")]
        Format::Arrow => Ok(Box::new(columnar::arrow_bytes(bytes.to_vec().into())?)),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet | Format::Arrow => Err(NO_COLUMNS),
        _ => Ok(Box::new(bytes)),
    }
}

#[cfg(not(feature = "parquet"))]
const NO_COLUMNS: ReadError = ReadError::NotBuilt { format: "Parquet and Arrow files", feature: "parquet" };
