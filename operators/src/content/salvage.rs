//! Salvages the readable rows of a damaged dataset: reads each data file separately, whatever the manifests say, and of
//! each file every readable row. Encodings are the most expensive data that is stored.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnflow_engine::component::IndexError;
use turnflow_engine::document::ContentHash;
use turnflow_tables::{FileReader, Mode, Table};

use super::faults::{Fault, call};
use super::rows::{Stored, batches, read};
use super::store::empty_caches;

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

/// Reads what is readable of the dataset at `path`. `scratch` is a path beside it for temporary files. The dataset
/// itself is not modified.
pub(super) async fn salvage<V: Stored>(
    path: &Path,
    scratch: &Path,
    dimension: usize,
) -> Result<Salvaged<V>, IndexError> {
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
        let mut read = false;
        // Tries the schema of this version, then that of earlier ones.
        for checked in [true, false] {
            clear(scratch)?;
            match one::<V>(&file, scratch, dimension, checked, &mut salvaged).await {
                Ok(()) => {
                    read = true;
                    break;
                }
                Err(fault) if fault.is_lost() => tracing::debug!(file = %file.display(), ?fault, "not read"),
                Err(fault) => return Err(fault.into()),
            }
        }
        salvaged.unreadable += usize::from(!read);
    }
    clear(scratch)?;
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

/// Opens a data file as the only file of a dataset that is created for it.
async fn one<V: Stored>(
    file: &Path,
    scratch: &Path,
    dimension: usize,
    checked: bool,
    salvaged: &mut Salvaged<V>,
) -> Result<(), Fault> {
    let uri = scratch.to_string_lossy().into_owned();
    let none = batches::<V>(Arc::new([]), dimension, checked);
    let create = || Table::write(&uri, none, Mode::Create, Some(&empty_caches()));
    let dataset = call("create a dataset for salvaged rows", create).await?;
    let name = place(file, &scratch.join("data"))?;
    let opened = || FileReader::open(&dataset, &name);
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

/// Links or copies a file, and returns its name.
fn place(file: &Path, directory: &Path) -> Result<String, Fault> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let to: PathBuf = directory.join(&name);
    let placed = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::hard_link(file, &to).or_else(|_| std::fs::copy(file, &to).map(drop)));
    placed.map_err(|error| Fault::Lance { action: "copy a data file", error: error.into() })?;
    Ok(name)
}
