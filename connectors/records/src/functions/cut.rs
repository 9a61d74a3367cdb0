//! JSON that a limit of lengths has cut off, as of the attributes of a span: what can be read of it.

use jaq_json::Val;

use crate::jq;

/// Whether a text is likely to be messages or parts of them as JSON.
pub(super) fn is_of_messages(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let begins = |beginning: &&[u8]| text.starts_with(beginning);
    [&b"[{"[..], b"{\"messages\"", b"{\"role\"", b"{\"choices\""].iter().any(begins)
}

/// The value of JSON up to where it was cut off. The text in which it was cut is kept.
pub(super) fn mended(text: &[u8]) -> Option<Val> {
    jq::steps(text.len() as u64 / 16);
    jq::bytes(text.len() as u64);
    let mut scan = Scan::default();
    for (at, byte) in text.iter().enumerate() {
        scan.take(at, *byte)?;
    }
    let mut whole = match scan.string {
        Some(Place { is_key: false, escape }) => {
            let mut whole = text[..escape.unwrap_or(text.len())].to_vec();
            whole.push(b'"');
            whole
        }
        _ => text[..scan.safe].to_vec(),
    };
    whole.extend(scan.open.iter().rev().map(|open| if *open == b'{' { b'}' } else { b']' }));
    jq::parsed(&whole).ok()
}

/// Where a text in quotes is.
#[derive(Default)]
struct Place {
    /// Whether it is the name of a field.
    is_key: bool,
    /// The begin of an escape that is not over.
    escape: Option<usize>,
}

#[derive(Default)]
struct Scan {
    /// The lists and objects that are open.
    open: Vec<u8>,
    /// Whether the name of a field comes next.
    expects_key: bool,
    string: Option<Place>,
    /// What comes before this is whole.
    safe: usize,
}

impl Scan {
    /// Takes the next byte; nothing if it ends what did not begin.
    fn take(&mut self, at: usize, byte: u8) -> Option<()> {
        if let Some(place) = &mut self.string {
            match (place.escape, byte) {
                (Some(begin), b'u') if at == begin + 1 => {}
                (Some(begin), _) if at == begin + 1 => place.escape = None,
                // Four digits, and what another half of a letter needs.
                (Some(begin), _) if at == begin + 5 => place.escape = None,
                (Some(_), _) => {}
                (None, b'\\') => place.escape = Some(at),
                (None, b'"') => {
                    if !place.is_key {
                        self.safe = at + 1;
                    }
                    self.string = None;
                }
                (None, _) => {}
            }
            return Some(());
        }
        match byte {
            b'"' => self.string = Some(Place { is_key: self.expects_key, escape: None }),
            b'{' | b'[' => {
                self.open.push(byte);
                (self.expects_key, self.safe) = (byte == b'{', at + 1);
            }
            b'}' | b']' => {
                let open = self.open.pop()?;
                if (open == b'{') != (byte == b'}') {
                    return None;
                }
                (self.expects_key, self.safe) = (false, at + 1);
            }
            b':' => self.expects_key = false,
            b',' => (self.expects_key, self.safe) = (self.open.last() == Some(&b'{'), at),
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_up_to_where_it_was_cut() {
        let whole = r#"[{"role":"user","n":12.5,"parts":[{"text":"A \"B\" \u00fc.","a":true}]},{"role":"x","t":"é"}]"#;
        for end in (1..whole.len()).filter(|end| whole.is_char_boundary(*end)) {
            let cut = &whole[..end];
            assert!(mended(cut.as_bytes()).is_some(), "{cut}");
        }
        for (cut, expected) in [
            (r#"[{"role":"user","text":"When do"#, r#"[{"role":"user","text":"When do"}]"#),
            (r#"[{"role":"user","text":"a\u00f"#, r#"[{"role":"user","text":"a"}]"#),
            (r#"[{"role":"user","te"#, r#"[{"role":"user"}]"#),
            (r#"[{"role":"user","n":12"#, r#"[{"role":"user"}]"#),
            (r#"[{"role":"user"},..."#, r#"[{"role":"user"}]"#),
            ("[{broken", "[{}]"),
        ] {
            assert_eq!(mended(cut.as_bytes()).map(|value| value.to_string()).as_deref(), Some(expected), "{cut}");
        }
        assert!(mended(b"[{}}").is_none());
    }
}
