//! What a program and its reader say to each other: a request is the format, the lengths, the id and the bytes of a file;
//! an answer is its length and JSON.

use std::io::{self, Read, Write};

use turnflow_engine::document::Document;

use super::limits;
use crate::Format;

/// What a reader answers: the document, or why there is none, and what else it says about the file.
pub(super) type Answer = (Result<Document, String>, Vec<String>);

/// The longest id of a document.
const LONGEST_ID: u64 = 1 << 20;

/// A file to read.
pub(super) struct Request {
    pub(super) format: Format,
    pub(super) id: String,
    pub(super) bytes: Vec<u8>,
}

/// Writes a request.
pub(super) fn ask(stream: &mut impl Write, format: Format, id: &str, bytes: &[u8]) -> io::Result<()> {
    let number = Format::DOCUMENTS.iter().position(|one| *one == format).unwrap_or_default();
    let mut head = vec![number as u8];
    head.extend((id.len() as u64).to_le_bytes());
    head.extend((bytes.len() as u64).to_le_bytes());
    head.extend(id.as_bytes());
    stream.write_all(&head)?;
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
    let (id_length, length) = (length(stream)?, length(stream)?);
    if id_length > LONGEST_ID {
        return Err(wrong());
    }
    let id = String::from_utf8(exactly(stream, id_length)?).map_err(|_| wrong())?;
    Ok(Some(Request { format, id, bytes: exactly(stream, length)? }))
}

/// Writes an answer.
pub(super) fn answer(stream: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let json = serde_json::to_vec(answer)?;
    stream.write_all(&(json.len() as u64).to_le_bytes())?;
    stream.write_all(&json)?;
    stream.flush()
}

/// Reads an answer.
pub(super) fn answered(stream: &mut impl Read) -> io::Result<Answer> {
    let length = length(stream)?;
    if length > limits::ANSWER {
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
        ask(&mut bytes, Format::Pdf, "a/b.pdf", b"content").unwrap();
        let request = asked(&mut &bytes[..]).unwrap().unwrap();
        assert_eq!((request.format, &*request.id, &*request.bytes), (Format::Pdf, "a/b.pdf", &b"content"[..]));
        assert!(asked(&mut &b""[..]).unwrap().is_none());
        assert!(asked(&mut &bytes[..20]).is_err() && asked(&mut &b"\xff"[..]).is_err());
        let document = Format::Html.read("a".into(), b"<title>T</title><meta name=author content=Ann>x").unwrap();
        for said in [(Ok(document), vec!["1 of 2 pages".to_owned()]), (Err("broken".to_owned()), Vec::new())] {
            let mut bytes = Vec::new();
            answer(&mut bytes, &said).unwrap();
            assert_eq!(answered(&mut &bytes[..]).unwrap(), said);
        }
    }

    #[test]
    fn a_lie_costs_no_memory() {
        for lie in [u64::MAX, limits::ANSWER] {
            assert!(answered(&mut &lie.to_le_bytes()[..]).is_err());
        }
        assert!(answered(&mut &b"\x02\0\0\0\0\0\0\0[]"[..]).is_err());
    }
}
