//! What a program and its reader say to each other: a request is the format, how pictures are read, the lengths, the id and
//! the bytes of a file; an answer is its length and JSON, or the picture of a page that was asked for. Before it answers, a
//! reader may ask what is seen in pictures, one after the other: a mark, the size and the pixels. The program says so as
//! JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use turnflow_engine::document::Document;
use turnflow_engine::inference::Picture;

use super::limits;
use crate::Format;
use crate::ocr::{OcrMode, Seen};
use crate::options::ReadOptions;

/// What a reader answers: the document, or why there is none, and what else it says about the file.
pub(super) type Answer = (Result<Document, String>, Vec<String>);

/// What a reader says: its answer, or a picture that it asks about.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Answer(Answer),
    Picture(Picture),
    /// What the kernel does not close off.
    Open(String),
}

/// What is seen in a picture, or why nothing is.
pub(super) type Sight = Result<Seen, String>;

/// How a request says when pictures are read.
const WHENS: [OcrMode; 3] = [OcrMode::Auto, OcrMode::Never, OcrMode::Always];

/// The marks of what a reader says.
const ANSWER: u8 = 0;
const PICTURE: u8 = 1;
const OPEN: u8 = 2;
/// The mark of what the program says of a picture.
const SIGHT: u8 = 2;

/// The longest id of a document.
const LONGEST_ID: u64 = 1 << 20;

/// A file to read.
pub(super) struct Request {
    pub(super) format: Format,
    pub(super) when: OcrMode,
    pub(super) least: f64,
    pub(super) passwords: Vec<String>,
    /// The page to draw, and the passage to mark on it; `None` to read the file.
    pub(super) page: Option<(u32, String)>,
    pub(super) id: String,
    pub(super) bytes: Vec<u8>,
}

/// Writes a request.
pub(super) fn ask(
    stream: &mut impl Write,
    format: Format,
    reading: &ReadOptions,
    page: Option<(u32, &str)>,
    id: &str,
    bytes: &[u8],
) -> io::Result<()> {
    let ReadOptions { when, least, passwords, .. } = reading;
    let number = Format::DOCUMENTS.iter().position(|one| *one == format).unwrap_or_default();
    let when = WHENS.iter().position(|one| one == when).unwrap_or_default();
    let mut head = vec![number as u8, when as u8];
    head.extend(least.to_le_bytes());
    head.extend((id.len() as u64).to_le_bytes());
    head.extend((bytes.len() as u64).to_le_bytes());
    head.extend(id.as_bytes());
    stream.write_all(&head)?;
    write_json(stream, passwords)?;
    write_json(stream, &page)?;
    stream.write_all(bytes)?;
    stream.flush()
}

/// Reads a request; `None` at the end.
pub(super) fn asked(stream: &mut impl Read) -> io::Result<Option<Request>> {
    let mut number = [0];
    if stream.read(&mut number)? == 0 {
        return Ok(None);
    }
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let format = *Format::DOCUMENTS.get(usize::from(number[0])).ok_or_else(wrong)?;
    stream.read_exact(&mut number)?;
    let when = *WHENS.get(usize::from(number[0])).ok_or_else(wrong)?;
    let least = f64::from_bits(length(stream)?);
    let (id_length, length) = (length(stream)?, length(stream)?);
    if id_length > LONGEST_ID {
        return Err(wrong());
    }
    let id = String::from_utf8(exactly(stream, id_length)?).map_err(|_| wrong())?;
    let passwords = read_json(stream, limits::PASSWORDS)?;
    let page = read_json(stream, limits::PASSAGE)?;
    Ok(Some(Request { format, when, least, passwords, page, id, bytes: exactly(stream, length)? }))
}

/// Writes an answer.
pub(super) fn answer(stream: &mut impl Write, answer: &Answer) -> io::Result<()> {
    stream.write_all(&[ANSWER])?;
    write_json(stream, answer)
}

/// Says what is not closed off.
pub(super) fn open(stream: &mut impl Write, what: &str) -> io::Result<()> {
    stream.write_all(&[OPEN])?;
    write_json(stream, &what)
}

/// Writes a picture, to ask what is seen in it.
pub(super) fn show(stream: &mut impl Write, picture: &Picture) -> io::Result<()> {
    stream.write_all(&[PICTURE])?;
    stream.write_all(&(picture.width as u64).to_le_bytes())?;
    stream.write_all(&(picture.height as u64).to_le_bytes())?;
    stream.write_all(&picture.rgb)?;
    stream.flush()
}

/// Reads what a reader says.
pub(super) fn said(stream: &mut impl Read) -> io::Result<Said> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut mark = [0];
    stream.read_exact(&mut mark)?;
    match mark[0] {
        ANSWER => Ok(Said::Answer(read_json(stream, limits::ANSWER)?)),
        OPEN => Ok(Said::Open(read_json(stream, limits::REASON)?)),
        PICTURE => {
            let (width, height) = (length(stream)?, length(stream)?);
            // A child makes larger pictures smaller.
            let is_strip = width.max(height) > limits::SIDE;
            let pixels = width.checked_mul(height).filter(|pixels| *pixels <= limits::PIXELS && !is_strip);
            let pixels = pixels.ok_or_else(|| wrong(format!("a picture of {width} × {height} pixels")))?;
            let picture = Picture::of(width as usize, height as usize, exactly(stream, 3 * pixels)?);
            Ok(Said::Picture(picture.ok_or_else(|| wrong("a picture without pixels".to_owned()))?))
        }
        mark => Err(wrong(format!("a mark {mark}"))),
    }
}

/// Writes what is seen in a picture.
pub(super) fn tell(stream: &mut impl Write, sight: &Sight) -> io::Result<()> {
    stream.write_all(&[SIGHT])?;
    write_json(stream, sight)
}

/// Reads what is seen in a picture, however long it takes.
pub(super) fn told(stream: &mut impl Read) -> io::Result<Sight> {
    let mut mark = [0];
    while let Err(error) = stream.read_exact(&mut mark) {
        // The program is still looking, or reads the pictures of others.
        if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return Err(error);
        }
    }
    match mark[0] {
        SIGHT => read_json(stream, limits::ANSWER),
        mark => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a mark {mark}"))),
    }
}

fn write_json(stream: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(value)?;
    stream.write_all(&(json.len() as u64).to_le_bytes())?;
    stream.write_all(&json)?;
    stream.flush()
}

fn read_json<T: DeserializeOwned>(stream: &mut impl Read, most: u64) -> io::Result<T> {
    let length = length(stream)?;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {length} bytes")));
    }
    Ok(serde_json::from_slice(&exactly(stream, length)?)?)
}

fn length(stream: &mut impl Read) -> io::Result<u64> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    Ok(u64::from_le_bytes(length))
}

/// Reads so many bytes. Memory is taken for those that come, not for those that are promised.
fn exactly(stream: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.take(length).read_to_end(&mut bytes)? as u64 == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_arrive() {
        let mut bytes = Vec::new();
        let reading = ReadOptions { passwords: ["one".to_owned()].into(), ..ReadOptions::new(OcrMode::Always, 0.25) };
        ask(&mut bytes, Format::Pdf, &reading, Some((7, "x")), "a/b.pdf", b"content").unwrap();
        let request = asked(&mut &bytes[..]).unwrap().unwrap();
        assert_eq!((request.when, request.least), (OcrMode::Always, 0.25));
        assert_eq!(request.passwords, ["one"]);
        assert_eq!(request.page, Some((7, "x".to_owned())));
        assert_eq!((request.format, &*request.id, &*request.bytes), (Format::Pdf, "a/b.pdf", &b"content"[..]));
        assert!(asked(&mut &b""[..]).unwrap().is_none());
        assert!(asked(&mut &bytes[..20]).is_err() && asked(&mut &b"\xff"[..]).is_err());
        let document = Format::Html.read("a".into(), b"<title>T</title><meta name=author content=Ann>x").unwrap();
        for answered in [(Ok(document), vec!["1 of 2 pages".to_owned()]), (Err("broken".to_owned()), Vec::new())] {
            let mut bytes = Vec::new();
            answer(&mut bytes, &answered).unwrap();
            assert_eq!(said(&mut &bytes[..]).unwrap(), Said::Answer(answered));
        }
    }

    #[test]
    fn pictures_and_what_is_seen_arrive() {
        let picture = Picture::of(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        let mut bytes = Vec::new();
        show(&mut bytes, &picture).unwrap();
        assert_eq!(said(&mut &bytes[..]).unwrap(), Said::Picture(picture));
        for sight in [Err("no model".to_owned()), Ok(Seen { lines: Vec::new(), knows: "English".to_owned() })] {
            let mut bytes = Vec::new();
            tell(&mut bytes, &sight).unwrap();
            assert_eq!(told(&mut &bytes[..]).unwrap(), sight);
        }
        for (width, height) in [(0u64, 1u64), (u64::MAX, 3), (1 << 20, 1 << 20)] {
            let lie = [&[PICTURE][..], &width.to_le_bytes(), &height.to_le_bytes(), &[0; 100]].concat();
            assert!(said(&mut &lie[..]).is_err(), "{width} {height}");
        }
    }

    #[test]
    fn a_lie_costs_no_memory() {
        for lie in [u64::MAX, limits::ANSWER] {
            assert!(said(&mut &[&[ANSWER][..], &lie.to_le_bytes()].concat()[..]).is_err());
        }
        assert!(said(&mut &b"\0\x02\0\0\0\0\0\0\0[]"[..]).is_err());
        assert!(said(&mut &b"\x07"[..]).is_err());
    }
}
