//! What a PDF of a few hundred bytes may ask of the reader: streams that unpack to a thousand
//! times their size, and tables whose widths and numbers it takes at their word. None of this
//! can be caught as a panic can, so it is looked for before.

use std::io::Read;

use flate2::read::{DeflateDecoder, ZlibDecoder};
use pdf_extract::{Object, ObjectId, Stream};

/// A stream that unpacks to more is not unpacked. Honest pages have a tenth of it.
const MOST_UNPACKED: usize = 8 << 20;
/// An LZW stream unpacks to at most 2730 times its size.
const MOST_LZW: usize = 64 << 10;
/// A larger width of a table's field, or number of columns, is none.
const MOST_COLUMNS: u64 = 1_000_000;
/// A file with more lists of widths, of tables or of fonts, is none.
const MOST_TABLES: usize = 10_000;
/// A dictionary with one of these numbers is looked for within so many bytes.
const OBJECT_BYTES: usize = 64 << 10;

/// Whether a stream unpacks to too much. What cannot be unpacked does not.
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
        // Of others the first that the reader does not know ends it.
        others => {
            let known = others.iter().take_while(|filter| is_known(filter));
            known.filter(|filter| **filter != b"ASCII85Decode").count() > 1
        }
    }
}

fn is_known(filter: &[u8]) -> bool {
    matches!(filter, b"FlateDecode" | b"LZWDecode" | b"ASCII85Decode")
}

/// Leaves out streams of objects that unpack to too much; what else does so is cut later.
pub(super) fn keep(id: ObjectId, object: &mut Object) -> Option<(ObjectId, Object)> {
    if let Object::Stream(stream) = object
        && stream.dict.has_type(b"ObjStm")
        && is_too_large(stream)
    {
        return None;
    }
    // The reader keeps its own of an object that stands by itself, as streams do, and takes what
    // is given back of those in streams of objects; so no stream need be copied.
    let kept = if matches!(object, Object::Stream(_)) { Object::Null } else { object.clone() };
    Some((id, kept))
}

fn inflates_too_far(packed: &[u8]) -> bool {
    inflated(packed) > MOST_UNPACKED
}

/// To how many bytes a stream unpacks, up to one more than is allowed.
fn inflated(packed: &[u8]) -> usize {
    match length_of(ZlibDecoder::new(packed)) {
        // As the reader does where the header or the checksum is wrong.
        0 if packed.len() > 2 => length_of(DeflateDecoder::new(&packed[2..])),
        length => length,
    }
}

/// How many bytes can be read, up to one more than is allowed.
fn length_of(reader: impl Read) -> usize {
    let mut reader = reader.take(MOST_UNPACKED as u64 + 1);
    let mut buffer = vec![0; 1 << 15];
    let mut length = 0;
    while let Ok(read @ 1..) = reader.read(&mut buffer) {
        length += read;
    }
    length
}

/// Whether there is a table of references, or parameters of a filter, with numbers that no
/// file needs. Such tables are read before anything can be cut, so their text is looked at.
pub(super) fn is_hostile(bytes: &[u8]) -> bool {
    let columns = [&b"Columns"[..], b"Colors", b"BitsPerComponent"];
    let (mut lists, mut unpacked, mut last) = (0, 0, None);
    for (at, slash) in bytes.iter().enumerate() {
        if *slash != b'/' {
            continue;
        }
        // Names are rarely longer, and may be spelled with escapes: `/#57` is `/W`.
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

/// A name without its slash, and how many bytes it is written in.
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

/// What comes behind blanks and comments.
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

/// A whole number, and what comes behind it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let digits = bytes.strip_prefix(b"+").unwrap_or(bytes);
    let length = digits.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let value = digits[..length]
        .iter()
        .fold(0, |value: u64, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    (length > 0).then(|| (value, skip(&digits[length..])))
}

/// The first three of a list.
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

/// Of a stream in whose dictionary `at` is: the dictionary's text, and what is packed.
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

/// Whether a table is packed other than tables are, so that its size cannot be told.
fn is_packed_strangely(dictionary: &[u8]) -> bool {
    let slashes = dictionary.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let names = slashes.map(|(at, _)| name(&dictionary[at + 1..]).0);
    let filters: Vec<Vec<u8>> = names.filter(|name| is_known(name)).collect();
    filters.len() > 1 || filters.iter().any(|filter| filter != b"FlateDecode")
}
