//! How the words of a question occur in passages.
//!
//! Words are compared without case, plural and possessive. A word, or a pair of words, weighs ln(1 + N / (1 + n)), where n of
//! the N candidates have it.

use std::collections::{BTreeSet, HashMap};

use crate::words::{Word, is_capital, is_function, key, words};

/// The names of the features.
pub(super) const FEATURES: [&str; 7] = [
    "words.coverage",
    "pairs.coverage",
    "near.coverage",
    "run.words",
    "missing.weight",
    "names.coverage",
    "numbers.coverage",
];
/// At most so many words of a question are read.
const QUESTION: usize = 256;
/// At most so many words of a passage are read.
const PASSAGE: usize = 8192;

/// Two words, by their numbers in a question.
type Pair = (u32, u32);

/// The words of a question. Each different word has a number.
struct Question {
    numbers: HashMap<String, u32>,
    /// Whether a word begins with this ASCII character, in lower case.
    first: [bool; 128],
    /// The places of each word.
    places: Vec<Vec<usize>>,
    length: usize,
    /// The different content words.
    content: BTreeSet<u32>,
    /// Content words that follow one another.
    pairs: BTreeSet<Pair>,
    /// Content words with one content word between them.
    apart: BTreeSet<Pair>,
    /// Content words with a capital letter, except at the beginning.
    names: BTreeSet<u32>,
    /// Words with digits.
    digits: BTreeSet<u32>,
}

impl Question {
    fn of(text: &str) -> Self {
        let mut read = Self {
            numbers: HashMap::new(),
            first: [false; 128],
            places: Vec::new(),
            length: 0,
            content: BTreeSet::new(),
            pairs: BTreeSet::new(),
            apart: BTreeSet::new(),
            names: BTreeSet::new(),
            digits: BTreeSet::new(),
        };
        let mut content = Vec::new();
        for (place, Word { text: word, .. }) in words(text).into_iter().take(QUESTION).enumerate() {
            let next = read.places.len() as u32;
            let key = key(word);
            key.bytes().next().filter(u8::is_ascii).into_iter().for_each(|first| read.first[usize::from(first)] = true);
            let number = *read.numbers.entry(key).or_insert(next);
            if number == next {
                read.places.push(Vec::new());
            }
            read.places[number as usize].push(place);
            read.length = place + 1;
            if word.chars().any(char::is_numeric) {
                read.digits.insert(number);
            }
            if !is_function(word) {
                content.push(number);
                if place > 0 && is_capital(word) {
                    read.names.insert(number);
                }
            }
        }
        read.pairs = content.windows(2).map(|two| (two[0], two[1])).collect();
        read.apart = content.windows(3).map(|three| (three[0], three[2])).collect();
        read.content = content.into_iter().collect();
        read
    }

    /// The number of a word.
    fn number(&self, word: &str) -> Option<u32> {
        // Most words of a passage are not in the question, and most of them begin with another character.
        match word.bytes().next()?.to_ascii_lowercase() {
            first if first.is_ascii() && !self.first[usize::from(first)] => None,
            _ => self.numbers.get(&key(word)).copied(),
        }
    }
}

/// What a passage has of a question.
struct Found {
    content: BTreeSet<u32>,
    pairs: BTreeSet<Pair>,
    /// How many of the question's words with one between them are at most as far from each other here.
    apart: usize,
    /// The longest run of the question's words that follow one another here, too.
    run: u32,
    digits: usize,
}

impl Found {
    fn of(question: &Question, text: &str) -> Self {
        let (mut content, mut digits) = (Vec::new(), BTreeSet::new());
        // For each place in the question: the last place here at which a run ended with it, and the run's length.
        let mut runs = vec![(usize::MAX, 0); question.length];
        let mut longest = 0;
        for (here, Word { text: word, .. }) in words(text).into_iter().take(PASSAGE).enumerate() {
            let number = question.number(word);
            for &place in number.iter().flat_map(|number| question.places[*number as usize].iter().rev()) {
                let before = place.checked_sub(1).map(|before| runs[before]);
                let before =
                    before.filter(|(end, _)| here.checked_sub(1) == Some(*end)).map_or(0, |(_, length)| length);
                runs[place] = (here, before + 1);
                longest = longest.max(before + 1);
            }
            digits.extend(number.filter(|number| question.digits.contains(number)));
            if !is_function(word) {
                content.push(number.filter(|number| question.content.contains(number)));
            }
        }
        let both = |two: (Option<u32>, Option<u32>)| two.0.zip(two.1);
        let next: BTreeSet<Pair> = content.windows(2).filter_map(|two| both((two[0], two[1]))).collect();
        let apart: BTreeSet<Pair> = content.windows(3).filter_map(|three| both((three[0], three[2]))).collect();
        Self {
            apart: question.apart.iter().filter(|pair| next.contains(pair) || apart.contains(pair)).count(),
            pairs: question.pairs.intersection(&next).copied().collect(),
            content: content.into_iter().flatten().collect(),
            run: longest,
            digits: digits.len(),
        }
    }
}

/// How much weight of `all` is in `some`.
fn coverage<T: Ord>(all: &BTreeSet<T>, some: &BTreeSet<T>, weight: impl Fn(&T) -> f32) -> f32 {
    let total: f32 = all.iter().map(&weight).sum();
    if total > 0.0 { some.iter().map(weight).sum::<f32>() / total } else { 0.0 }
}

/// A part of a number; NaN if there is nothing to have a part of.
fn part(some: usize, all: usize) -> f32 {
    if all > 0 { some as f32 / all as f32 } else { f32::NAN }
}

/// The features of passages, in the order of their names; a missing value is NaN.
pub(super) fn features<'a>(question: &str, passages: impl Iterator<Item = &'a str>) -> Vec<[f32; FEATURES.len()]> {
    let question = Question::of(question);
    let found: Vec<Found> = passages.map(|text| Found::of(&question, text)).collect();
    let weights = |count: usize| (1.0 + found.len() as f32 / (1.0 + count as f32)).ln();
    let count_of = |number: &u32| found.iter().filter(|passage| passage.content.contains(number)).count();
    let words: HashMap<u32, f32> = question.content.iter().map(|number| (*number, weights(count_of(number)))).collect();
    let count_of = |pair: &Pair| found.iter().filter(|passage| passage.pairs.contains(pair)).count();
    let pairs: HashMap<Pair, f32> = question.pairs.iter().map(|pair| (*pair, weights(count_of(pair)))).collect();
    let row = |passage: &Found| {
        let missing = question.content.difference(&passage.content).map(|number| words[number]);
        let names = question.names.intersection(&passage.content).count();
        [
            coverage(&question.content, &passage.content, |number| words[number]),
            coverage(&question.pairs, &passage.pairs, |pair| pairs[pair]),
            part(passage.apart, question.apart.len()),
            passage.run as f32,
            missing.fold(0.0, f32::max),
            part(names, question.names.len()),
            part(passage.digits, question.digits.len()),
        ]
    };
    found.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(question: &str, passages: &[&str]) -> Vec<HashMap<&'static str, f32>> {
        let rows = features(question, passages.iter().copied());
        rows.into_iter().map(|row| FEATURES.into_iter().zip(row).collect()).collect()
    }

    #[test]
    fn words_pairs_and_runs_agree_with_values_worked_by_hand() {
        let question = "When must the Fund Manager file its 3 annual reports?";
        let rows =
            of(question, &["A fund manager files annual reports.", "The manager must file the 3 of the fund.", ""]);
        // Content words: fund, manager, file, 3, annual, report. Each of two passages has three or more of them.
        let (one, two) = ((1.0_f32 + 3.0 / 2.0).ln(), (1.0_f32 + 3.0 / 3.0).ln());
        let total = 3.0 * two + 3.0 * one;
        let near = |value: f32, expected: f32| assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        // fund, manager and file are in two passages; annual, report and 3 in one.
        near(rows[0]["words.coverage"], (3.0 * two + 2.0 * one) / total);
        near(rows[1]["words.coverage"], (3.0 * two + one) / total);
        near(rows[0]["missing.weight"], one);
        // Pairs: fund manager, manager file, file 3, 3 annual, annual report.
        let (none, once, twice) = ((1.0_f32 + 3.0).ln(), one, two);
        let pairs = once + twice + once + none + once;
        near(rows[0]["pairs.coverage"], (once + twice + once) / pairs);
        near(rows[1]["pairs.coverage"], (twice + once) / pairs);
        // With one word between: fund file, manager 3, file annual, 3 report. The first passage has fund file, and file
        // annual without a word between.
        near(rows[0]["near.coverage"], 0.5);
        near(rows[1]["near.coverage"], 0.25);
        // "fund manager files", and "the fund".
        near(rows[0]["run.words"], 3.0);
        near(rows[1]["run.words"], 2.0);
        near(rows[0]["names.coverage"], 1.0);
        near(rows[0]["numbers.coverage"], 0.0);
        near(rows[1]["numbers.coverage"], 1.0);
        assert_eq!([rows[2]["words.coverage"], rows[2]["pairs.coverage"], rows[2]["run.words"]], [0.0; 3]);
    }

    #[test]
    fn texts_without_words_have_features() {
        for (question, passage) in
            [("", ""), ("?", "!"), ("", "rent"), ("the", "of the of the"), ("日本", "日本"), ("a a a", "a a a a")]
        {
            let row = &of(question, &[passage])[0];
            // Only what the question has nothing of is missing.
            let may_lack = ["near.coverage", "names.coverage", "numbers.coverage"];
            let is_known =
                |(name, value): (&&str, &f32)| value.is_finite() || value.is_nan() && may_lack.contains(name);
            assert!(row.iter().all(is_known), "{question:?} in {passage:?}: {row:?}");
        }
        assert_eq!(of("a a a", &["a a a a"])[0]["run.words"], 3.0);
        assert_eq!(of("日本", &["日本"])[0]["words.coverage"], 1.0);
        // The Kelvin sign is a K, and words are compared without case.
        assert_eq!(of("Kelvin", &["\u{212a}elvin KELVIN's"])[0]["words.coverage"], 1.0);
    }

    #[test]
    fn long_texts_are_read_in_part() {
        let long = "rent ".repeat(2 * QUESTION);
        assert_eq!(of(&long, &[&long])[0]["run.words"], QUESTION as f32);
        let late = format!("{}rent", "paid ".repeat(PASSAGE));
        assert_eq!(of("rent", &[&late])[0]["run.words"], 0.0);
        assert_eq!(of("rent", &[&late[5..]])[0]["run.words"], 1.0);
    }
}
