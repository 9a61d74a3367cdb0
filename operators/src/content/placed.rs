//! Encodings where the data files of their table have them, mapped into memory.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

use turnflow_engine::mapped::MappedFile;
use turnflow_tables::{Places, Table, Values};

use super::faults::{Fault, call};
use super::rows::{ENCODINGS, Stored};

/// Data files that are mapped, by their paths.
#[derive(Default)]
pub(super) struct Maps(HashMap<PathBuf, MappedFile>);

/// Encodings by the number of their row, from a data file on.
pub(super) struct Placed<V> {
    pages: Arc<[Page]>,
    width: usize,
    of: PhantomData<V>,
}

impl<V> Clone for Placed<V> {
    fn clone(&self) -> Self {
        Self { pages: self.pages.clone(), width: self.width, of: PhantomData }
    }
}

/// Encodings that lie one after another.
struct Page {
    /// The row of the first one.
    first: u64,
    rows: u64,
    file: MappedFile,
    /// Where the first one is, in bytes.
    offset: u64,
}

impl<V: Stored> Placed<V> {
    /// The encodings of a table, from one of its groups of data files on. `None` if they do not lie in the files as they
    /// are: then they are read and copied.
    pub async fn of(dataset: &Table, dimension: usize, maps: &mut Maps, from: usize) -> Result<Option<Self>, Fault> {
        let Some(width) = V::width(dimension) else { return Ok(None) };
        let found = call("find the encodings in its files", || dataset.places(&[ENCODINGS], from)).await?;
        let Some(found) = found else { return Ok(None) };
        let (mut pages, mut first) = (Vec::new(), 0);
        for Places { file: path, columns, .. } in found {
            let file = match maps.0.get(&path) {
                Some(file) => file.clone(),
                None => {
                    let mapped = MappedFile::open(&path);
                    let file =
                        mapped.map_err(|error| Fault::Lance { action: "map a data file", error: error.into() })?;
                    maps.0.insert(path, file.clone());
                    file
                }
            };
            for turnflow_tables::Page { rows, values } in columns.into_iter().flatten() {
                match values {
                    Values::Fixed { offset, width: found } if found == width && offset.is_multiple_of(8) => {
                        pages.push(Page { first, rows, file: file.clone(), offset });
                    }
                    _ => return Ok(None),
                }
                first += rows;
            }
        }
        Ok(Some(Self { pages: pages.into(), width, of: PhantomData }))
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.pages.last().map_or(0, |page| page.first + page.rows)
    }

    /// The encoding of a row; `None` if the file is shorter than it was.
    pub fn get(&self, row: u64) -> Option<V> {
        let page = &self.pages[self.pages.partition_point(|page| page.first <= row).checked_sub(1)?];
        let within = (row - page.first < page.rows).then_some(row - page.first)?;
        V::mapped(page.file.part(page.offset + within * self.width as u64, self.width)?)
    }
}

impl Maps {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all files. What uses them keeps them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
