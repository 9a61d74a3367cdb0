//! The pages of a TIFF file: a chain of directories, each with the place of the next one.

use std::collections::HashSet;

/// How a file writes numbers.
struct Numbers<'a> {
    bytes: &'a [u8],
    is_little: bool,
    is_big_tiff: bool,
}

impl<'a> Numbers<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let is_little = match bytes.get(..2)? {
            b"II" => true,
            b"MM" => false,
            _ => return None,
        };
        let mut numbers = Self { bytes, is_little, is_big_tiff: false };
        numbers.is_big_tiff = match numbers.at(2, 2)? {
            42 => false,
            43 => true,
            _ => return None,
        };
        Some(numbers)
    }

    fn at(&self, place: u64, length: usize) -> Option<u64> {
        let place = usize::try_from(place).ok()?;
        let bytes = self.bytes.get(place..place.checked_add(length)?)?;
        let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(match self.is_little {
            true => bytes.iter().rev().fold(0, add),
            false => bytes.iter().fold(0, add),
        })
    }

    /// Length of the place of a directory, and where that of the first one is.
    fn first(&self) -> (usize, u64) {
        if self.is_big_tiff { (8, 8) } else { (4, 4) }
    }

    /// The place of the directory after one.
    fn next(&self, directory: u64) -> Option<u64> {
        let (of_count, of_entry) = if self.is_big_tiff { (8, 20) } else { (2, 12) };
        let entries = self.at(directory, of_count)?;
        let end = directory.checked_add(of_count as u64)?.checked_add(entries.checked_mul(of_entry)?)?;
        self.at(end, self.first().0)
    }
}

/// The places of the directories of a file's pages. At least one, if the file is none: its decoder says what is wrong.
pub(super) fn pages(bytes: &[u8]) -> Vec<u64> {
    let mut pages = Vec::new();
    let mut known = HashSet::new();
    if let Some(numbers) = Numbers::of(bytes) {
        let (length, place) = numbers.first();
        let mut next = numbers.at(place, length);
        while let Some(place) = next.filter(|place| *place != 0 && known.insert(*place)) {
            pages.push(place);
            if pages.len() > crate::ocr::MOST_PICTURES {
                break;
            }
            next = numbers.next(place);
        }
    }
    if pages.is_empty() { vec![0] } else { pages }
}

/// Lets a file begin with the directory of one of its pages.
pub(super) fn begin_with(bytes: &mut [u8], page: u64) {
    let Some(numbers) = Numbers::of(bytes) else { return };
    let (length, place) = numbers.first();
    let written = if numbers.is_little { page.to_le_bytes() } else { page.to_be_bytes() };
    let written = if numbers.is_little { &written[..length] } else { &written[8 - length..] };
    let place = place as usize;
    if let Some(header) = bytes.get_mut(place..place + length) {
        header.copy_from_slice(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_followed_until_it_ends_or_comes_back() {
        // Two directories without entries, at 8 and 14; the second one leads back to the first.
        for (order, number) in [("II", u32::to_le_bytes as fn(u32) -> [u8; 4]), ("MM", u32::to_be_bytes)] {
            let mark: &[u8] = if order == "II" { &[42, 0] } else { &[0, 42] };
            let file = [order.as_bytes(), mark, &number(8), &[0, 0], &number(14), &[0, 0], &number(8)].concat();
            assert_eq!(pages(&file), [8, 14]);
            let mut second = file.clone();
            begin_with(&mut second, 14);
            assert_eq!(pages(&second)[0], 14);
            assert_eq!(pages(&file[..9]), [8]);
        }
        for bytes in [&b""[..], b"II", b"II*\0", b"no TIFF at all"] {
            assert_eq!(pages(bytes), [0]);
            begin_with(&mut bytes.to_vec(), 7);
        }
    }
}
