//! Finds what a hostile PDF of a few hundred bytes may demand of the reader: streams that unpack to a thousand times
//! their size, and tables with excessive widths and counts, which the reader trusts. Unlike a panic, running out of
//! memory cannot be caught, so the file is checked beforehand.

use std::io::Read;

use flate2::read::{DeflateDecoder, ZlibDecoder};
use pdf_extract::{Object, ObjectId, Stream};

/// Maximum unpacked size of a stream, in bytes; larger ones are not unpacked. Streams of ordinary pages have a tenth of
/// it.
const MOST_UNPACKED: usize = 8 << 20;
/// Maximum packed size of an LZW stream, in bytes. Such a stream unpacks to at most 2730 times its size.
const MOST_LZW: usize = 64 << 10;
/// Maximum width of a table's field, and maximum number of columns.
const MOST_COLUMNS: u64 = 1_000_000;
/// Maximum number of lists of widths, in tables or fonts, in a file.
const MOST_TABLES: usize = 10_000;
/// Number of bytes within which a dictionary with one of these numbers is searched for.
const OBJECT_BYTES: usize = 64 << 10;

/// Whether a stream unpacks to too much. A stream that cannot be unpacked does not.
pub(super) fn is_too_large(stream: &Stream) -> bool {
    let filters: Vec<&[u8]> = stream.filters().unwrap_or_default();
    match filters.as_slice() {
        [] | [b"ASCII85Decode"] => stream.content.len() > MOST_UNPACKED,
        [b"FlateDecode"] => inflates_too_far(&stream.content),
        [b"ASCII85Decode", b"FlateDecode"] => {
            let mut outer = Stream::new(Default::default(), stream.content.clone());
            outer.dict.set("Filter", Object::Name(b"ASCII85Decode".to_vec()));
            outer.decompressed_content().is_ok_and(|inner| inflates_too_far(&inner))
        }
        [b"LZWDecode"] | [b"ASCII85Decode", b"LZWDecode"] => stream.content.len() > MOST_LZW,
        // In any other list of filters, the reader stops at the first filter that it does not know.
        others => {
            let known = others.iter().take_while(|filter| is_known(filter));
            known.filter(|filter| **filter != b"ASCII85Decode").count() > 1
        }
    }
}

fn is_known(filter: &[u8]) -> bool {
    matches!(filter, b"FlateDecode" | b"LZWDecode" | b"ASCII85Decode")
}

/// Drops object streams that unpack to too much. Other such streams are cut later.
pub(super) fn keep(id: ObjectId, object: &mut Object) -> Option<(ObjectId, Object)> {
    if let Object::Stream(stream) = object
        && stream.dict.has_type(b"ObjStm")
        && is_too_large(stream)
    {
        return None;
    }
    // The reader keeps its own copy of a stand-alone object, as streams are, and uses the returned value only for
    // objects in object streams. No stream needs to be copied.
    let kept = if matches!(object, Object::Stream(_)) { Object::Null } else { object.clone() };
    Some((id, kept))
}

fn inflates_too_far(packed: &[u8]) -> bool {
    inflated(packed) > MOST_UNPACKED
}

/// Unpacked size of a stream in bytes, up to one more than is allowed.
fn inflated(packed: &[u8]) -> usize {
    match length_of(ZlibDecoder::new(packed)) {
        // Does the same as the reader if the header or the checksum is wrong.
        0 if packed.len() > 2 => length_of(DeflateDecoder::new(&packed[2..])),
        length => length,
    }
}

/// Number of readable bytes, up to one more than is allowed.
fn length_of(reader: impl Read) -> usize {
    let mut reader = reader.take(MOST_UNPACKED as u64 + 1);
    let mut buffer = vec![0; 1 << 15];
    let mut length = 0;
    while let Ok(read @ 1..) = reader.read(&mut buffer) {
        length += read;
    }
    length
}

/// Whether a cross-reference table, or the parameters of a filter, have numbers that no valid file needs. Such tables
/// are read before anything can be cut, so the file's text is checked.
pub(super) fn is_hostile(bytes: &[u8]) -> bool {
    let columns = [&b"Columns"[..], b"Colors", b"BitsPerComponent"];
    let (mut lists, mut unpacked, mut last) = (0, 0, None);
    for (at, slash) in bytes.iter().enumerate() {
        if *slash != b'/' {
            continue;
        }
        // Names are rarely longer, and may contain escapes: `/#57` is `/W`.
        let (name, length) = name(&bytes[at + 1..]);
        let rest = skip(&bytes[at + 1 + length..]);
        if columns.contains(&name.as_slice()) {
            if number(rest).is_some_and(|(number, _)| number > MOST_COLUMNS) {
                return true;
            }
        } else if name == b"W" && rest.first() == Some(&b'[') {
            lists += 1;
            let widths = numbers(&rest[1..]);
            if lists > MOST_TABLES || widths.iter().any(|width| *width > MOST_COLUMNS) {
                return true;
            }
            if let Some((dictionary, packed)) = stream_around(bytes, at) {
                if last.replace(packed.len()) != Some(packed.len()) {
                    unpacked += inflated(packed);
                }
                if widths == [0, 0, 0] || unpacked > MOST_UNPACKED || is_packed_strangely(dictionary) {
                    return true;
                }
            }
        }
    }
    false
}

/// Parses a name without its slash. Returns it with its written length in bytes.
fn name(bytes: &[u8]) -> (Vec<u8>, usize) {
    const LONGEST: usize = 64;
    let is_regular = |byte: &u8| byte.is_ascii_graphic() && !b"()<>[]{}/%".contains(byte);
    let written = &bytes[..bytes.iter().take(LONGEST).take_while(|byte| is_regular(byte)).count()];
    let mut name = Vec::new();
    let mut at = 0;
    while let Some(byte) = written.get(at) {
        let digit = |at: usize| written.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        if let (b'#', Some(high), Some(low)) = (byte, digit(at + 1), digit(at + 2)) {
            name.push((high << 4 | low) as u8);
            at += 3;
        } else {
            name.push(*byte);
            at += 1;
        }
    }
    (name, written.len())
}

/// The text after white space and comments.
fn skip(mut bytes: &[u8]) -> &[u8] {
    loop {
        match bytes.first() {
            Some(b' ' | b'\t' | b'\r' | b'\n' | b'\x0c' | 0) => bytes = &bytes[1..],
            Some(b'%') => {
                let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                bytes = &bytes[end.unwrap_or(bytes.len())..];
            }
            _ => return bytes,
        }
    }
}

/// Parses a whole number. Returns it with the text after it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let digits = bytes.strip_prefix(b"+").unwrap_or(bytes);
    let length = digits.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let value = digits[..length]
        .iter()
        .fold(0, |value: u64, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    (length > 0).then(|| (value, skip(&digits[length..])))
}

/// The first three numbers of a list.
fn numbers(list: &[u8]) -> Vec<u64> {
    let mut rest = skip(list);
    let mut numbers = Vec::new();
    while numbers.len() < 3
        && let Some((number, behind)) = number(rest)
    {
        numbers.push(number);
        rest = behind;
    }
    numbers
}

/// For a stream with `at` in its dictionary: the dictionary's text, and the packed data.
fn stream_around(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8])> {
    let find = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).position(|window| window == word);
    let behind = &bytes[at..bytes.len().min(at + OBJECT_BYTES)];
    let stream = find(behind, b"stream")?;
    if find(&behind[..stream], b"endobj").is_some() {
        return None;
    }
    let before = &bytes[at.saturating_sub(OBJECT_BYTES)..at];
    let start = at - before.len() + before.windows(3).rposition(|window| window == b"obj").unwrap_or(0);
    let packed = &bytes[at + stream + b"stream".len()..];
    let packed = packed.strip_prefix(b"\r").unwrap_or(packed);
    Some((&bytes[start..at + stream], packed.strip_prefix(b"\n").unwrap_or(packed)))
}

/// Whether a table is packed in an unusual way, so that its size is unknown.
fn is_packed_strangely(dictionary: &[u8]) -> bool {
    let slashes = dictionary.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let names = slashes.map(|(at, _)| name(&dictionary[at + 1..]).0);
    let filters: Vec<Vec<u8>> = names.filter(|name| is_known(name)).collect();
    filters.len() > 1 || filters.iter().any(|filter| filter != b"FlateDecode")
}
