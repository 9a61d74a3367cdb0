//! Terms of texts in Chinese, Japanese and Korean, which are written without blanks between words: pairs of neighbouring
//! characters, as in Lucene's CJKAnalyzer. No dictionary is needed, and any part of a word of two characters or more is
//! found.

/// Maximum length of a word of another script, in bytes.
const LONGEST: usize = 100;

/// What a character belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Han, kana, Hangul, bopomofo.
    Paired,
    /// A letter or digit of another script.
    Letter,
    Other,
}

fn kind(c: char) -> Kind {
    match c {
        '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{3096}'
        | '\u{309D}'..='\u{309F}'
        | '\u{30A1}'..='\u{30FA}'
        | '\u{30FC}'..='\u{30FF}'
        | '\u{3105}'..='\u{312F}'
        | '\u{3131}'..='\u{318E}'
        | '\u{31A0}'..='\u{31BF}'
        | '\u{31F0}'..='\u{31FF}'
        | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}'
        | '\u{AC00}'..='\u{D7A3}'
        | '\u{1100}'..='\u{11FF}'
        | '\u{F900}'..='\u{FAFF}'
        | '\u{FF66}'..='\u{FF9D}'
        | '\u{20000}'..='\u{3FFFF}' => Kind::Paired,
        c if c.is_alphanumeric() => Kind::Letter,
        _ => Kind::Other,
    }
}

/// Full-width letters, digits and signs as their usual forms.
fn narrow(c: char) -> char {
    match c {
        '\u{FF01}'..='\u{FF5E}' => char::from_u32(c as u32 - 0xFEE0).unwrap_or(c),
        c => c,
    }
}

/// The terms of a text, in order: each pair of neighbouring characters, a character that stands alone, and the words of
/// other scripts, lower-cased.
pub(super) fn terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    let mut run: Vec<char> = Vec::new();
    let mut of = Kind::Other;
    for c in text.chars().map(narrow).chain(['\n']) {
        let next = kind(c);
        if next != of {
            end(&mut run, of, &mut terms);
            of = next;
        }
        if next != Kind::Other {
            run.push(c);
        }
    }
    terms
}

/// Adds the terms of a run of characters of one kind.
fn end(run: &mut Vec<char>, kind: Kind, terms: &mut Vec<String>) {
    match kind {
        Kind::Paired if run.len() == 1 => terms.extend(run.iter().map(char::to_string)),
        Kind::Paired => terms.extend(run.windows(2).map(|pair| pair.iter().collect::<String>())),
        Kind::Letter => {
            let word = run.iter().flat_map(|c| c.to_lowercase()).collect::<String>();
            terms.extend((word.len() <= LONGEST).then_some(word));
        }
        Kind::Other => {}
    }
    run.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_characters_and_words() {
        for (text, want) in [
            ("東京都", &["東京", "京都"][..]),
            ("我爱ＡＢＣ北京123", &["我爱", "abc", "北京", "123"]),
            ("한국어 문장", &["한국", "국어", "문장"]),
            ("カタカナ。ひ", &["カタ", "タカ", "カナ", "ひ"]),
            ("Plain English, too", &["plain", "english", "too"]),
            ("𠮷野家", &["𠮷野", "野家"]),
            ("。、！", &[]),
            ("", &[]),
        ] {
            assert_eq!(terms(text), want, "{text}");
        }
    }
}
