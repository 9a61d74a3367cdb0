//! Where the values of columns lie in the data files, so that they can be read there without being decoded.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use lance_core::{Error, Result};
use lance_encoding::decoder::{PageEncoding, PageInfo};
use lance_encoding::format::metadata::full_zip_layout::Details;
use lance_encoding::format::metadata::page_layout::Layout;
use lance_encoding::format::pb23::compressive_encoding::Compression;
use lance_encoding::format::pb23::{CompressiveEncoding, Flat as Uncompressed};
use lance_table::format::DataFile;

use crate::write::DATA;
use crate::{Table, read};

/// Columns in one data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The file.
    pub file: PathBuf,
    /// Number of its rows.
    pub rows: u64,
    /// The values of each column, in the order of the rows.
    pub columns: Vec<Vec<Page>>,
}

/// Values that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Their number.
    pub rows: u64,
    /// Where they are.
    pub values: Values,
}

/// Where values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Each has as many bytes, and the first one is at this offset in the file (bytes).
    Fixed {
        /// The offset.
        offset: u64,
        /// Bytes of each.
        width: usize,
    },
    /// Texts from this offset on, each after its length: four bytes, the lowest first.
    Texts {
        /// The offset.
        offset: u64,
    },
    /// All are the same value, with these bytes.
    Same(Vec<u8>),
}

/// The values of columns, by the table's data files, if nothing is compressed, deleted or null.
pub(crate) async fn columns(table: &Table, names: &[&str], from: usize) -> Result<Option<Vec<Places>>> {
    let fields: Option<Vec<_>> = names.iter().map(|name| table.manifest.schema.field(name)).collect();
    let Some(fields) = fields else { return Ok(None) };
    let (place, scheduler) = (&table.place, read::scheduler(&table.place));
    let mut places = Vec::new();
    for fragment in table.manifest.fragments.iter().skip(from) {
        let has_all = |file: &&DataFile| fields.iter().all(|field| file.fields.contains(&field.id));
        let file = fragment.files.iter().find(has_all).filter(|file| file.base_id.is_none());
        let Some(file) = file.filter(|_| fragment.deletion_file.is_none() && fragment.overlays.is_empty()) else {
            return Ok(None);
        };
        let path = place.file(DATA, &file.path);
        let reader = read::open(&scheduler, &path, &file.file_size_bytes).await?;
        let local = PathBuf::from(lance_io::local::to_local_path(&path));
        let mut columns = Vec::new();
        for field in &fields {
            let at = file.fields.iter().position(|id| *id == field.id);
            let column = at.and_then(|at| usize::try_from(*file.column_indices.get(at)?).ok());
            let Some(info) = column.and_then(|column| reader.metadata().column_infos.get(column)) else {
                return Ok(None);
            };
            let mut pages = Vec::new();
            for page in &*info.page_infos {
                let Some(values) = values_of(page, &local)? else { return Ok(None) };
                pages.push(Page { rows: page.num_rows, values });
            }
            if pages.iter().map(|page| page.rows).sum::<u64>() != reader.num_rows() {
                return Ok(None);
            }
            columns.push(pages);
        }
        places.push(Places { file: local, rows: reader.num_rows(), columns });
    }
    Ok(Some(places))
}

/// Where the values of a page are; `None` if they do not lie one after another as they are.
fn values_of(page: &PageInfo, file: &Path) -> Result<Option<Values>> {
    let PageEncoding::Structural(layout) = &page.encoding else { return Ok(None) };
    let first = page.buffer_offsets_and_sizes.first().copied();
    match (&layout.layout, first) {
        (Some(Layout::ConstantLayout(layout)), first) => {
            let is_plain = layout.num_rep_values == 0 && layout.num_def_values == 0;
            match (&layout.inline_value, first) {
                (Some(value), _) if is_plain => Ok(Some(Values::Same(value.to_vec()))),
                (None, Some((offset, size))) if is_plain => same_text(file, offset, size).map(Some),
                _ => Ok(None),
            }
        }
        (Some(Layout::FullZipLayout(layout)), Some((offset, size))) => {
            let is_plain = layout.bits_rep == 0 && layout.bits_def == 0;
            let is_uncompressed = layout.value_compression.as_ref().is_some_and(is_uncompressed);
            Ok(match layout.details {
                _ if !is_plain || !is_uncompressed => None,
                Some(Details::BitsPerValue(bits)) => {
                    let width = bits as usize / 8;
                    let is_whole = bits.is_multiple_of(8) && size == page.num_rows * width as u64;
                    is_whole.then_some(Values::Fixed { offset, width })
                }
                Some(Details::BitsPerOffset(32)) => Some(Values::Texts { offset }),
                _ => None,
            })
        }
        _ => Ok(None),
    }
}

/// A text that all rows of a page have: the number of its buffers, their lengths, and they themselves, of which the text
/// is the last.
fn same_text(file: &Path, offset: u64, size: u64) -> Result<Values> {
    let broken = || Error::corrupt_file(file.to_string_lossy().as_ref().into(), "a value is cut off");
    let bytes = read_part(file, offset, usize::try_from(size).map_err(|_| broken())?)?;
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(4 * at..)?.first_chunk::<4>()?) as usize);
    let length = number(0).filter(|count| *count > 0).and_then(number);
    let text = length.and_then(|length| bytes.get(bytes.len().checked_sub(length)?..));
    Ok(Values::Same(text.ok_or_else(broken)?.to_vec()))
}

fn read_part(file: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(file)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn is_uncompressed(encoding: &CompressiveEncoding) -> bool {
    match &encoding.compression {
        Some(Compression::Flat(Uncompressed { data: None, .. })) => true,
        Some(Compression::FixedSizeList(list)) => {
            !list.has_validity && list.values.as_deref().is_some_and(is_uncompressed)
        }
        Some(Compression::Variable(texts)) => {
            texts.values.is_none() && texts.offsets.as_deref().is_some_and(is_uncompressed)
        }
        _ => false,
    }
}
