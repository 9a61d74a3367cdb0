//! The header `Content-Encoding` of requests: bodies that the client has compressed.

use std::io::{BufRead, Read};

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use crate::error::ApiError;

/// What is decoded, as in the header `Accept-Encoding` of a refusal.
pub(crate) const ACCEPTED: &str = "gzip, deflate, zstd";
/// Maximum number of encodings of a body, one after the other.
const MOST: usize = 3;
/// Largest window of zstd, as a power of two (RFC 8878 recommends 8 MB): the memory that a body asks for.
const WINDOW: u32 = 23;

#[derive(Clone, Copy)]
enum Encoding {
    Gzip,
    Deflate,
    Zstd,
}

/// The encodings of a body, in the order in which they are undone.
///
/// # Errors
///
/// 415: one of them is not known, or there are too many.
fn encodings(headers: &HeaderMap) -> Result<Vec<Encoding>, ApiError> {
    let mut found = Vec::new();
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let value = value.to_str().map_err(|_| ApiError::content_encoding("that"))?;
        for name in value.split(',').map(str::trim) {
            found.extend(match name.to_ascii_lowercase().as_str() {
                "" | "identity" => None,
                "gzip" | "x-gzip" => Some(Encoding::Gzip),
                "deflate" => Some(Encoding::Deflate),
                "zstd" => Some(Encoding::Zstd),
                _ => return Err(ApiError::content_encoding(name)),
            });
        }
    }
    found.reverse();
    match found.len() > MOST {
        true => Err(ApiError::content_encoding("more than three encodings")),
        false => Ok(found),
    }
}

/// The body without its encodings, of at most `limit` bytes at each step.
///
/// # Errors
///
/// 415: an encoding is not known. 413: the body is too long. 400: it is not encoded as the header says.
pub(crate) async fn decoded(headers: &HeaderMap, body: Bytes, limit: usize) -> Result<Bytes, ApiError> {
    let encodings = encodings(headers)?;
    if encodings.is_empty() || body.is_empty() {
        return Ok(body);
    }
    let decode = move || encodings.into_iter().try_fold(body, |body, encoding| undone(encoding, &body, limit));
    let done = tokio::task::spawn_blocking(decode).await;
    done.map_err(|_| ApiError::server("the body cannot be decoded"))?
}

fn undone(encoding: Encoding, body: &[u8], limit: usize) -> Result<Bytes, ApiError> {
    let bad =
        |error: std::io::Error| ApiError::bad(format!("the body is not encoded as `Content-Encoding` says: {error}"));
    match encoding {
        Encoding::Gzip => {
            let mut decoder = MultiGzDecoder::new(body);
            read(&mut decoder, limit, bad)
        }
        Encoding::Deflate => {
            let mut decoder = ZlibDecoder::new(body);
            // It means zlib (RFC 9110, section 8.4.1.2), but some clients send what is in zlib.
            match read(&mut decoder, limit, bad) {
                Err(error) if error.status.as_u16() == 400 && !is_zlib(body) => {
                    read(&mut DeflateDecoder::new(body), limit, bad)
                }
                Ok(bytes) => all_of(decoder.into_inner(), bytes),
                error => error,
            }
        }
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(bad)?;
            decoder.window_log_max(WINDOW).map_err(bad)?;
            read(&mut decoder, limit, bad)
        }
    }
}

/// Whether a body begins as zlib does.
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [first, second, ..] if first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0)
}

/// The decoded bytes, if nothing follows what they were decoded from.
fn all_of(mut rest: impl BufRead, bytes: Bytes) -> Result<Bytes, ApiError> {
    match rest.fill_buf() {
        Ok([]) => Ok(bytes),
        _ => Err(ApiError::bad("something follows the end of the encoded body")),
    }
}

fn read(from: &mut impl Read, limit: usize, bad: impl Fn(std::io::Error) -> ApiError) -> Result<Bytes, ApiError> {
    let mut bytes = Vec::new();
    from.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(bad)?;
    match bytes.len() > limit {
        true => Err(ApiError::too_large(limit)),
        false => Ok(bytes.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    const LIMIT: usize = 1 << 20;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::CONTENT_ENCODING, value.parse().unwrap())).collect()
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    async fn decode(values: &[&str], body: Vec<u8>) -> Result<Bytes, u16> {
        decoded(&headers(values), body.into(), LIMIT).await.map_err(|error| error.status.as_u16())
    }

    #[tokio::test]
    async fn bodies_are_decoded_in_the_order_of_their_encodings() {
        let text = b"The ferry leaves at ten.";
        let zstd = zstd::encode_all(&text[..], 0).unwrap();
        let two = [gzip(b"The ferry "), gzip(b"leaves at ten.")].concat();
        for (values, body) in [
            (&["gzip"][..], gzip(text)),
            (&["GZIP "], gzip(text)),
            (&["x-gzip"], two),
            (&["deflate"], zlib(text)),
            (&["deflate"], raw(text)),
            (&["zstd"], zstd.clone()),
            (&["gzip, deflate"], zlib(&gzip(text))),
            (&["gzip", "zstd"], zstd::encode_all(&*gzip(text), 0).unwrap()),
            (&["identity"], text.to_vec()),
            (&[], text.to_vec()),
        ] {
            assert_eq!(decode(values, body).await.as_deref(), Ok(&text[..]), "{values:?}");
        }
        assert_eq!(decode(&["gzip"], Vec::new()).await.as_deref(), Ok(&[][..]));
    }

    #[tokio::test]
    async fn what_is_not_encoded_so_or_grows_too_much_is_refused() {
        let bomb = vec![0; LIMIT + 1];
        let zstd_bomb = zstd::encode_all(&*bomb, 0).unwrap();
        let text = gzip(b"The ferry leaves at ten.");
        for (values, body, status) in [
            (&["br"][..], text.clone(), 415),
            (&["gzip", "br"], text.clone(), 415),
            (&["gzip, gzip, gzip, gzip"], text.clone(), 415),
            (&["gzip"], b"The ferry".to_vec(), 400),
            (&["gzip"], text[..text.len() - 9].to_vec(), 400),
            (&["gzip"], [&*text, b"more"].concat(), 400),
            (&["deflate"], [&*zlib(b"text"), b"more"].concat(), 400),
            (&["zstd"], text.clone(), 400),
            (&["gzip"], gzip(&bomb), 413),
            (&["deflate"], zlib(&bomb), 413),
            (&["zstd"], zstd_bomb, 413),
            (&["gzip, gzip"], gzip(&gzip(&bomb)), 413),
        ] {
            assert_eq!(decode(values, body).await, Err(status), "{values:?}");
        }
    }
}
