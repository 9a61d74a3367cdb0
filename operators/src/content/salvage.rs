//! Salvages the readable rows of a damaged dataset: reads each data file separately, whatever the manifests say, and of
//! each file every readable row. Encodings are the most expensive data that is stored.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use turnflow_engine::component::IndexError;
use turnflow_engine::document::ContentHash;
use turnflow_tables::FileReader;

use super::faults::{Fault, call};
use super::rows::{Stored, read};

/// Number of rows to read at once. After a failure fewer are read.
const ROWS: usize = 256;
/// Maximum number of failed reads of one file before the rest of it is skipped.
const FAILURES: usize = 1000;

/// Result of a salvage.
pub(super) struct Salvaged<V> {
    pub rows: HashMap<ContentHash, V>,
    /// Number of rows that were unreadable or invalid, as far as they can be counted.
    pub lost: usize,
    /// Number of data files of which nothing was readable.
    pub unreadable: usize,
}

/// Reads what is readable of the dataset at `path`, which is not modified.
pub(super) async fn salvage<V: Stored>(path: &Path, dimension: usize) -> Result<Salvaged<V>, IndexError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| IndexError::Io { action, path, source }
    };
    let mut salvaged = Salvaged { rows: HashMap::new(), lost: 0, unreadable: 0 };
    let data = path.join("data");
    let files = match std::fs::read_dir(&data) {
        Ok(files) => files.flatten().map(|file| file.path()).filter(|file| file.is_file()).collect::<Vec<_>>(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(io("read", &data)(error)),
    };
    for file in files {
        match one::<V>(&file, dimension, &mut salvaged).await {
            Ok(()) => {}
            Err(fault) if fault.is_lost() => {
                tracing::debug!(file = %file.display(), ?fault, "not read");
                salvaged.unreadable += 1;
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(salvaged)
}

/// Removes what an earlier attempt left behind.
pub(super) fn clear(path: &Path) -> Result<(), IndexError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(IndexError::Io { action: "clear", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Reads what is readable of a data file.
async fn one<V: Stored>(file: &Path, dimension: usize, salvaged: &mut Salvaged<V>) -> Result<(), Fault> {
    let opened = || FileReader::open(file);
    let mut reader = call("open a data file", opened).await?;
    let rows = reader.rows();
    let mut parts: Vec<Range<usize>> = (0..rows).step_by(ROWS).map(|at| at..(at + ROWS).min(rows)).rev().collect();
    let mut failures = 0;
    while let Some(part) = parts.pop() {
        let batch = call("read rows", || reader.read(part.clone())).await;
        let wrong =
            batch.and_then(|batch| read(&batch, dimension, &mut |hash, value| drop(salvaged.rows.insert(hash, value))));
        match wrong {
            Ok(wrong) => salvaged.lost += wrong,
            Err(fault) if !fault.is_lost() => return Err(fault),
            Err(_) if failures >= FAILURES => {
                salvaged.lost += part.len() + parts.iter().map(Range::len).sum::<usize>();
                return Ok(());
            }
            Err(_) => {
                failures += 1;
                if part.len() == 1 {
                    salvaged.lost += 1;
                } else {
                    let middle = part.start + part.len() / 2;
                    parts.extend([middle..part.end, part.start..middle]);
                }
                // After a panic the reader may be in any state.
                reader = call("open a data file", opened).await?;
            }
        }
    }
    Ok(())
}
