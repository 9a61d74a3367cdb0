//! Where the values of a column lie in the data files, so that they can be read there without being decoded.

use std::path::PathBuf;

use lance_core::Result;
use lance_encoding::decoder::{PageEncoding, PageInfo};
use lance_encoding::format::metadata::full_zip_layout::Details;
use lance_encoding::format::metadata::page_layout::Layout;
use lance_encoding::format::pb23::compressive_encoding::Compression;
use lance_encoding::format::pb23::{CompressiveEncoding, Flat as Uncompressed};

use crate::write::DATA;
use crate::{Table, read};

/// The values of a column in one data file, in the order of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flat {
    /// The file.
    pub file: PathBuf,
    /// Where values lie one after another: the offset of the first one in the file (bytes), and their number.
    pub pages: Vec<(u64, u64)>,
}

/// The values of a column, by the table's data files, if each is `width` bytes at a place of its own: nothing is
/// compressed, deleted or null.
pub(crate) async fn column(table: &Table, name: &str, width: usize, from: usize) -> Result<Option<Vec<Flat>>> {
    let Some(field) = table.manifest.schema.field(name) else { return Ok(None) };
    let (place, scheduler) = (&table.place, read::scheduler(&table.place));
    let mut flats = Vec::new();
    for fragment in table.manifest.fragments.iter().skip(from) {
        if fragment.deletion_file.is_some() || !fragment.overlays.is_empty() {
            return Ok(None);
        }
        let found = fragment.files.iter().find_map(|file| {
            let at = file.fields.iter().position(|id| *id == field.id)?;
            Some((file, usize::try_from(*file.column_indices.get(at)?).ok()?))
        });
        let Some((file, column)) = found.filter(|(file, _)| file.base_id.is_none()) else { return Ok(None) };
        let path = place.file(DATA, &file.path);
        let reader = read::open(&scheduler, &path, &file.file_size_bytes).await?;
        let Some(info) = reader.metadata().column_infos.get(column) else { return Ok(None) };
        let pages: Option<Vec<_>> = info.page_infos.iter().map(|page| flat_page(page, width)).collect();
        let Some(pages) = pages else { return Ok(None) };
        if pages.iter().map(|(_, rows)| rows).sum::<u64>() != reader.num_rows() {
            return Ok(None);
        }
        flats.push(Flat { file: PathBuf::from(lance_io::local::to_local_path(&path)), pages });
    }
    Ok(Some(flats))
}

/// The offset and the number of the values of a page, if they lie one after another.
fn flat_page(page: &PageInfo, width: usize) -> Option<(u64, u64)> {
    let PageEncoding::Structural(layout) = &page.encoding else { return None };
    let Some(Layout::FullZipLayout(layout)) = &layout.layout else { return None };
    let bits = u32::try_from(width * 8).ok()?;
    let is_plain = layout.bits_rep == 0 && layout.bits_def == 0 && layout.details == Some(Details::BitsPerValue(bits));
    let (offset, size) = *page.buffer_offsets_and_sizes.first()?;
    let is_whole = size == page.num_rows * width as u64;
    let is_aligned = offset.is_multiple_of(8);
    (is_plain && is_whole && is_aligned && is_uncompressed(layout.value_compression.as_ref()?))
        .then_some((offset, page.num_rows))
}

fn is_uncompressed(encoding: &CompressiveEncoding) -> bool {
    match &encoding.compression {
        Some(Compression::Flat(Uncompressed { data: None, .. })) => true,
        Some(Compression::FixedSizeList(list)) => {
            !list.has_validity && list.values.as_deref().is_some_and(is_uncompressed)
        }
        _ => false,
    }
}
