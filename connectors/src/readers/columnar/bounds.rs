//! Checks the sizes that an Arrow file names before it is read: the reader allocates what they say.

use std::io::{Read, Seek, SeekFrom};

use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Block, Message, root_as_footer, root_as_message};

use crate::readers::ReadError;

/// Maximum size of a batch of rows or of a dictionary, in bytes, compressed or not.
const MAX_BATCH: u64 = 2 << 30;
/// Bytes of the end of a file: the length of the footer, and the mark.
const END: u64 = 10;

fn broken(reason: impl std::fmt::Display) -> ReadError {
    ReadError::Broken { format: "Arrow file", reason: reason.to_string() }
}

/// Checks the file, and goes back to its beginning.
pub(super) fn check<T: Read + Seek>(input: &mut T) -> Result<(), ReadError> {
    let length = input.seek(SeekFrom::End(0))?;
    let footer_end = length.checked_sub(END).ok_or_else(|| broken("it is too short"))?;
    let mut end = [0; END as usize];
    input.seek(SeekFrom::Start(footer_end))?;
    input.read_exact(&mut end)?;
    let footer = read_footer_length(end).map_err(broken)? as u64;
    let start = footer_end.checked_sub(footer).ok_or_else(|| broken("its footer is longer than the file"))?;
    let bytes = part(input, start, footer)?;
    let footer = root_as_footer(&bytes).map_err(broken)?;
    for block in footer.recordBatches().iter().flatten().chain(footer.dictionaries().iter().flatten()) {
        check_block(input, block, length)?;
    }
    input.seek(SeekFrom::Start(0))?;
    Ok(())
}

/// The bytes of a part that lies within the file.
fn part<T: Read + Seek>(input: &mut T, start: u64, length: u64) -> Result<Vec<u8>, ReadError> {
    input.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0; usize::try_from(length).map_err(broken)?];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn check_block<T: Read + Seek>(input: &mut T, block: &Block, length: u64) -> Result<(), ReadError> {
    let number = |value: i64| u64::try_from(value).map_err(|_| broken("a negative size"));
    let (offset, head) = (number(block.offset())?, number(block.metaDataLength().into())?);
    let body = number(block.bodyLength())?;
    let inside = offset.checked_add(head).and_then(|end| end.checked_add(body)).is_some_and(|end| end <= length);
    // A message has its length before it, with or without a mark.
    if !inside || head < 8 {
        return Err(broken("a batch is not within the file"));
    }
    if body > MAX_BATCH {
        return Err(ReadError::TooMany { what: "bytes in a batch of rows", limit: MAX_BATCH });
    }
    let bytes = part(input, offset, head)?;
    let message = if bytes.starts_with(&[0xff; 4]) { &bytes[8..] } else { &bytes[4..] };
    let message = root_as_message(message).map_err(broken)?;
    check_message(input, message, offset + head, body)
}

fn check_message<T: Read + Seek>(input: &mut T, message: Message<'_>, start: u64, body: u64) -> Result<(), ReadError> {
    let dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    let Some(batch) = message.header_as_record_batch().or(dictionary) else { return Ok(()) };
    let mut unpacked = 0_u64;
    for buffer in batch.buffers().iter().flatten() {
        let (Ok(offset), Ok(length)) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length())) else {
            return Err(broken("a negative size"));
        };
        if offset.checked_add(length).is_none_or(|end| end > body) {
            return Err(broken("a column is not within its batch"));
        }
        // A compressed column begins with its size; -1 means that it is not compressed.
        if batch.compression().is_some() && length >= 8 {
            let mut size = [0; 8];
            input.seek(SeekFrom::Start(start + offset))?;
            input.read_exact(&mut size)?;
            unpacked = unpacked.saturating_add(u64::try_from(i64::from_le_bytes(size)).unwrap_or_default());
        }
    }
    if unpacked > MAX_BATCH {
        return Err(ReadError::TooMany { what: "bytes in a batch of rows", limit: MAX_BATCH });
    }
    Ok(())
}
