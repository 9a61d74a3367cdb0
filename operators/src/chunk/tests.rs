//! Invariants of all chunkers, on texts in many scripts and on the inputs of the fuzz target `chunkers`, whose body
//! these tests share.

use proptest::prelude::*;

use super::*;

#[path = "../../../fuzz/src/chunkers.rs"]
mod chunkers;
#[allow(dead_code)]
#[path = "../../../fuzz/src/mutations.rs"]
pub(crate) mod mutations;

#[test]
fn windows_cover_everything_and_overlap_as_told() {
    assert_eq!(windows(0, 3, 1), []);
    assert_eq!(windows(2, 3, 1), [(0, 2)]);
    assert_eq!(windows(5, 3, 1), [(0, 3), (2, 5)]);
    assert_eq!(windows(6, 3, 0), [(0, 3), (3, 6)]);
    assert_eq!(windows(7, 3, 1), [(0, 3), (2, 5), (4, 7)]);
}

#[test]
fn titles_and_blanks_are_bounded() {
    assert_eq!(&*shortened("one two three", 9), "one two …");
    assert_eq!(&*shortened("one two", 9), "one two");
    assert_eq!(&*squeezed(&format!("a{}b", " ".repeat(BLANKS))), format!("a{}b", " ".repeat(BLANKS)));
    assert_eq!(&*squeezed(&format!("a{}b \n c", "\u{3000}".repeat(BLANKS))), "a b \n c");
    assert_eq!(&*squeezed(&format!("a \n{}b", " ".repeat(BLANKS))), "a\nb");
}

/// A run of one kind: words, a script without blanks, or non-text.
fn run() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,9}( [a-zA-Z]{1,12}){0,20}[.?!]? ",
        "[A-Z][a-z]{1,8}[.] ",
        "[一-龥]{1,60}。?",
        "[ぁ-んァ-ヶー]{1,60}",
        "[ก-ฮ][ะ-ู]?[่-๋]?[ก-ฮเ-ไ]{1,40}",
        "[ء-ي]{1,9}( [ء-ي]{1,9}){0,9}؟?",
        "[가-힣]{1,9} ",
        "(👨‍👩‍👧|👍🏽|🇫🇷|🏳️‍🌈|é̃̂){1,20}",
        "[A-Za-z0-9+/]{1,300}={0,2}",
        "[a-z]\u{301}{1,300}",
        "[ \t]{1,300}",
        "\n{1,3}",
        "(#{1,6} [a-z]{1,300}\n)",
        "(\\| [a-z]{1,5} ){1,9}\n",
        "[.)\"]{1,100}",
        "[\u{0}-\u{1f}\u{200b}\u{202e}\u{feff}]{1,9}",
        Just(String::new()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let mixed = prop::collection::vec(run(), 0..24).prop_map(|runs| runs.concat());
    // One run repeated many times.
    let repeated = (run(), 1..400_usize).prop_map(|(run, times)| run.repeat(times));
    prop_oneof![mixed, repeated]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_cover_the_text_and_are_bounded(text in text(), title in text(), size in 8..200_usize, part in 0..8_usize) {
        chunkers::check(&title, &text, size, size * part / 8);
    }

    /// Every word of a Markdown section is in a chunk that is titled by the section's heading.
    #[test]
    fn sections_keep_their_words(words in prop::collection::vec(1..300_usize, 1..12), levels in prop::collection::vec(1..7_usize, 12)) {
        let mut text = String::new();
        for (n, count) in words.iter().enumerate() {
            let body: Vec<String> = (0..*count).map(|word| format!("w{n}x{word}")).collect();
            text.push_str(&format!("{} heading{n}\n\n{}\n\n", "#".repeat(levels[n]), body.join(" ")));
        }
        let chunks = chunkers::headings("", &text, 40);
        for (n, count) in words.iter().enumerate() {
            let of = |chunk: &&Chunk| chunk.title.ends_with(&format!("heading{n}"));
            let found: Vec<&str> = chunks.iter().filter(of).flat_map(|chunk| chunk.text.split_whitespace()).collect();
            let wanted: Vec<String> = (0..*count).map(|word| format!("w{n}x{word}")).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}

#[test]
fn seeds_and_mutations_of_them_break_nothing() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/chunkers");
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(seeds.len() >= 8);
    seeds.iter().for_each(|seed| chunkers::chunkers(seed));
    let mutations = std::env::var("TURNFLOW_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(500);
    let mut mutator = mutations::Mutator::new(12);
    for _ in 0..mutations {
        chunkers::chunkers(&mutator.mutate(&seeds));
    }
}
