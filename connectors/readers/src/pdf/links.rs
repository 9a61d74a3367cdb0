//! Makes links of Markdown of the words on a page that lead to an address.

use pdfium_render::prelude::PdfPage;

use super::page::Direction;
use super::shape::{Bounds, Segment};

/// Maximum number of links of a page.
const MOST_LINKS: usize = 1_000;
/// Longest address, in bytes.
const LONGEST: usize = 2_000;
/// What the addresses that are kept begin with.
const SCHEMES: [&str; 3] = ["http://", "https://", "mailto:"];

/// Marks the words of the links of a page that lead to addresses. A link over several lines is one link for each line.
pub(super) fn link(page: &PdfPage<'_>, direction: Direction, segments: &mut [Segment]) {
    for link in page.links().iter().take(MOST_LINKS) {
        let address = link.action().and_then(|action| action.as_uri_action().and_then(|action| action.uri().ok()));
        let (Some(address), Ok(rect)) = (address.as_deref().and_then(written), link.rect()) else { continue };
        let area = direction.bounds(&rect);
        segments.iter_mut().for_each(|segment| mark(segment, &area, &address));
    }
}

/// An address as it is written in Markdown; `None` for one that leads nowhere from here.
fn written(address: &str) -> Option<String> {
    let address = address.trim();
    let is_address = SCHEMES
        .iter()
        .any(|scheme| address.get(..scheme.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(scheme)));
    let is_plain = address.len() <= LONGEST && !address.contains(|letter: char| letter.is_control());
    let escaped = |letter| match letter {
        ' ' => "%20".to_owned(),
        '(' => "%28".to_owned(),
        ')' => "%29".to_owned(),
        '<' => "%3C".to_owned(),
        '>' => "%3E".to_owned(),
        letter => letter.to_string(),
    };
    (is_address && is_plain).then(|| address.chars().map(escaped).collect())
}

/// Marks the words of a segment that are in the area of a link, if they are next to each other and do not say the address
/// themselves.
fn mark(segment: &mut Segment, area: &Bounds, address: &str) {
    let is_within = |bounds: &Bounds| {
        let (x, y) = bounds.center();
        (area.x0..=area.x1).contains(&x) && (area.y0..=area.y1).contains(&y)
    };
    let Some(first) = segment.words.iter().position(|word| is_within(&word.bounds)) else { return };
    let count = segment.words[first..].iter().take_while(|word| is_within(&word.bounds)).count();
    let words = &mut segment.words[first..first + count];
    let text: String = words.iter().map(|word| word.text.as_str()).collect();
    let has_address = words.iter().any(|word| has(&word.text, address));
    // A word that goes on in the next line would be parted from its rest.
    let is_parted = text.ends_with(['\u{AD}', '-', '\u{2010}']);
    if is_parted
        || text.contains(['[', ']'])
        || !text.contains(char::is_alphanumeric)
        || has_address
        || says(&text, address)
    {
        return;
    }
    words[0].text.insert(0, '[');
    words[count - 1].text.push_str(&format!("]({address})"));
}

/// An address without its scheme and the stroke at its end.
fn place(address: &str) -> &str {
    let is_scheme = |scheme: &&&str| address.starts_with(**scheme);
    SCHEMES.iter().find(is_scheme).map_or(address, |scheme| &address[scheme.len()..])
}

fn plain(text: &str) -> String {
    text.to_lowercase().replace("%20", "").replace(' ', "")
}

/// Whether a word has the address, and not within another one.
fn has(word: &str, address: &str) -> bool {
    let (word, address) = (plain(word), plain(address));
    let whole = place(&address).trim_end_matches('/');
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '-';
    !whole.is_empty()
        && word.match_indices(whole).any(|(at, _)| {
            let (before, after) = (&word[..at], &word[at + whole.len()..]);
            let is_begun = before.ends_with(|letter| is_of_name(letter) || letter == '.') && !before.ends_with("www.");
            !is_begun && !after.starts_with(is_of_name)
        })
}

/// Whether a text is the address or a part of it, perhaps without what it begins and ends with.
fn says(text: &str, address: &str) -> bool {
    let (text, address) = (plain(text), plain(address));
    let text = text.trim_end_matches(['.', ',', ';', ')', '/']).trim_start_matches('(');
    text.contains(['.', '/', '@']) && address.contains(place(text))
}

#[cfg(test)]
mod tests {
    use super::super::shape::Word;
    use super::*;

    fn segment(words: &[&str]) -> Segment {
        let place = |at: usize| Bounds { x0: at as f32 * 10.0, x1: at as f32 * 10.0 + 8.0, y0: 0.0, y1: 10.0 };
        let word = |(at, text): (usize, &&str)| Word { text: (*text).to_owned(), bounds: place(at) };
        Segment::of(words.iter().enumerate().map(word).collect(), 10.0, false, 0)
    }

    fn marked(words: &[&str], from: f32, to: f32, address: &str) -> String {
        let mut segment = segment(words);
        let area = Bounds { x0: from, x1: to, y0: -1.0, y1: 11.0 };
        mark(&mut segment, &area, &written(address).unwrap());
        segment.words.into_iter().map(|word| word.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_within_a_link_are_marked() {
        let words = ["see", "the", "time", "table", "now"];
        let address = "https://ferry.example/times (new)";
        assert_eq!(
            marked(&words, 20.0, 38.0, address),
            "see the [time table](https://ferry.example/times%20%28new%29) now"
        );
        assert_eq!(marked(&words, 60.0, 90.0, address), "see the time table now");
        assert_eq!(marked(&["Time-"], 0.0, 9.0, address), "Time-", "it goes on in the next line");
    }

    #[test]
    fn an_address_that_is_within_other_words_is_no_address() {
        for (words, address) in [
            (&["data.community"][..], "https://a.com/"),
            (&["v1.2", "of", "data.community."][..], "https://a.com/"),
            (&["max.com"][..], "https://x.co"),
        ] {
            assert!(marked(words, 0.0, 99.0, address).ends_with(&format!("]({address})")), "{words:?}");
        }
        for (words, address) in
            [(&["Visit", "https://a.com!"][..], "https://a.com/"), (&["(www.a.com)", "now"][..], "https://a.com")]
        {
            assert_eq!(marked(words, 0.0, 99.0, address), words.join(" "));
        }
    }

    #[test]
    fn a_text_that_is_the_address_stays_plain() {
        for text in ["ferry.example/times", "https://ferry.example/times.", "http://ferry.example/times/"] {
            assert_eq!(marked(&[text], 0.0, 9.0, "https://ferry.example/times"), text);
        }
        let text = ["Made", "by", "Ferry", "(www.ferry.example)"];
        assert_eq!(marked(&text, 0.0, 39.0, "http://www.ferry.example/"), text.join(" "));
        assert_eq!(marked(&["a@b.example"], 0.0, 9.0, "mailto:a@b.example"), "a@b.example");
    }

    #[test]
    fn only_addresses_of_pages_and_mail_are_links() {
        for address in ["javascript:alert(1)", "file:///etc/passwd", "", "times.html", "https://x\u{7}"] {
            assert_eq!(written(address), None, "{address}");
        }
    }
}
