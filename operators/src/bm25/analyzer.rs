//! Splits text into terms.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tantivy::tokenizer::{
    Language as Tantivys, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer,
};
use turnflow_engine::component::{Check, config};
use turnflow_engine::document::{Chunk, ContentHash};

use super::cjk;

/// Maximum length of a term, in bytes. Longer ones are not words (hashes, base64) and are left out.
const LONGEST: usize = 100;

/// How text is split into terms.
#[config]
#[derive(Default, PartialEq, Eq, Hash)]
pub enum Tokenizer {
    /// Letters and digits, lower-cased, without Lucene's English stop words, with Snowball stemming.
    #[default]
    English,
    /// The same without stemming.
    EnglishUnstemmed,
    /// Split at white space and lower-cased; punctuation stays attached to the words.
    Whitespace,
    /// Pairs of neighbouring characters for Chinese, Japanese and Korean; other scripts as lower-cased words.
    Cjk,
    /// The words of a language.
    Words(Words),
    /// Each passage in the language that a field of its metadata names.
    ByField(ByField),
}

/// Fields of `Words`.
#[config]
#[derive(Copy, PartialEq, Eq, Hash)]
pub struct Words {
    /// The language.
    pub language: Language,
    /// Whether words are reduced to their stems (Snowball).
    #[field(default = true)]
    pub stem: bool,
    /// Whether stop words are left out, if there is a list for the language.
    #[field(default = true)]
    pub stop_words: bool,
}

/// Fields of `ByField`.
#[config]
#[derive(PartialEq, Eq, Hash)]
pub struct ByField {
    /// The field of the metadata that names a passage's language, as in `en`, `en-GB` or `English`.
    pub field: Arc<str>,
    /// The languages. The first one is that of passages without the field, or with another language. A question is
    /// searched for in each of them.
    pub languages: Vec<Language>,
}

/// A language.
#[config]
#[derive(Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Language {
    Arabic,
    Chinese,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Greek,
    Hungarian,
    Italian,
    Japanese,
    Korean,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Tamil,
    Turkish,
}

impl Language {
    /// Its code in ISO 639-1.
    pub fn code(self) -> &'static str {
        match self {
            Self::Arabic => "ar",
            Self::Chinese => "zh",
            Self::Danish => "da",
            Self::Dutch => "nl",
            Self::English => "en",
            Self::Finnish => "fi",
            Self::French => "fr",
            Self::German => "de",
            Self::Greek => "el",
            Self::Hungarian => "hu",
            Self::Italian => "it",
            Self::Japanese => "ja",
            Self::Korean => "ko",
            Self::Norwegian => "no",
            Self::Portuguese => "pt",
            Self::Romanian => "ro",
            Self::Russian => "ru",
            Self::Spanish => "es",
            Self::Swedish => "sv",
            Self::Tamil => "ta",
            Self::Turkish => "tr",
        }
    }

    /// Whether a text names it: by its code, with or without a region, or by its name in English.
    fn is_named(self, text: &str) -> bool {
        let text = text.trim();
        let primary = text.split(['-', '_']).next().unwrap_or_default();
        let is_code = |code: &str| primary.eq_ignore_ascii_case(code);
        is_code(self.code())
            || self == Self::Norwegian && (is_code("nb") || is_code("nn"))
            || text.eq_ignore_ascii_case(&format!("{self:?}"))
    }

    /// Tantivy's name; `None` for the languages that are split into pairs of characters.
    fn tantivys(self) -> Option<Tantivys> {
        Some(match self {
            Self::Chinese | Self::Japanese | Self::Korean => return None,
            Self::Arabic => Tantivys::Arabic,
            Self::Danish => Tantivys::Danish,
            Self::Dutch => Tantivys::Dutch,
            Self::English => Tantivys::English,
            Self::Finnish => Tantivys::Finnish,
            Self::French => Tantivys::French,
            Self::German => Tantivys::German,
            Self::Greek => Tantivys::Greek,
            Self::Hungarian => Tantivys::Hungarian,
            Self::Italian => Tantivys::Italian,
            Self::Norwegian => Tantivys::Norwegian,
            Self::Portuguese => Tantivys::Portuguese,
            Self::Romanian => Tantivys::Romanian,
            Self::Russian => Tantivys::Russian,
            Self::Spanish => Tantivys::Spanish,
            Self::Swedish => Tantivys::Swedish,
            Self::Tamil => Tantivys::Tamil,
            Self::Turkish => Tantivys::Turkish,
        })
    }
}

impl Words {
    const ENGLISH: Self = Self { language: Language::English, stem: true, stop_words: true };

    fn terms(self, text: &str) -> Vec<String> {
        let Some(language) = self.language.tantivys() else { return cjk::terms(text) };
        static ANALYZERS: LazyLock<Mutex<HashMap<Words, TextAnalyzer>>> = LazyLock::new(Mutex::default);
        let mut analyzer = ANALYZERS.lock().entry(self).or_insert_with(|| self.analyzer(language)).clone();
        let mut terms = Vec::new();
        analyzer.token_stream(text).process(&mut |token| terms.push(token.text.clone()));
        terms
    }

    fn analyzer(self, language: Tantivys) -> TextAnalyzer {
        let words = TextAnalyzer::builder(SimpleTokenizer::default())
            .filter_dynamic(RemoveLongFilter::limit(LONGEST))
            .filter_dynamic(LowerCaser);
        let words = match StopWordFilter::new(language).filter(|_| self.stop_words) {
            Some(stop_words) => words.filter_dynamic(stop_words),
            None => words,
        };
        match self.stem {
            true => words.filter_dynamic(Stemmer::new(language)).build(),
            false => words.build(),
        }
    }
}

impl ByField {
    /// The language of a passage.
    fn language(&self, chunk: &Chunk) -> Language {
        let named = chunk.metadata.values(&self.field).into_iter().map(ToString::to_string);
        let known = named.flat_map(|name| self.languages.iter().copied().find(|language| language.is_named(&name)));
        known.chain(self.languages.first().copied()).next().unwrap_or(Language::English)
    }

    /// The terms of a text in a language. They are not the terms of another one.
    fn terms(language: Language, text: &str) -> impl Iterator<Item = String> {
        let terms = Words { language, ..Words::ENGLISH }.terms(text);
        terms.into_iter().map(move |term| format!("{}:{term}", language.code()))
    }
}

impl Tokenizer {
    pub(super) fn validate(&self, check: &mut Check<'_>) {
        match self {
            Self::ByField(by) if by.languages.is_empty() => {
                check.error("out-of-range", "tokenizer", "`languages` is empty");
            }
            Self::Words(words) if words.language.tantivys().is_none() && !(words.stem && words.stop_words) => {
                let language = words.language;
                let message =
                    format!("{language:?} is split into pairs of characters: it has no stems and no stop words");
                check.error("wrong-value", "tokenizer", message);
            }
            _ => {}
        }
    }

    /// The tokenizer's name in the index key.
    pub(super) fn name(&self) -> String {
        match self {
            Self::English => "english".to_owned(),
            Self::EnglishUnstemmed => "english-unstemmed".to_owned(),
            Self::Whitespace => "whitespace".to_owned(),
            Self::Cjk => "cjk".to_owned(),
            Self::Words(Words { language, stem, stop_words }) => {
                let (stem, stop_words) = (if *stem { "" } else { "-unstemmed" }, if *stop_words { "" } else { "-all" });
                format!("words-{}{stem}{stop_words}", language.code())
            }
            Self::ByField(ByField { field, languages }) => {
                let codes: Vec<&str> = languages.iter().map(|language| language.code()).collect();
                let field = &blake3::hash(field.as_bytes()).to_hex()[..8];
                format!("by-{field}-{}", codes.join("-"))
            }
        }
    }

    /// The terms of a passage's text, in order, with repetitions.
    pub fn passage_terms(&self, chunk: &Chunk) -> Vec<String> {
        match self {
            Self::ByField(by) => ByField::terms(by.language(chunk), &chunk.indexed_text()).collect(),
            other => other.terms(&chunk.indexed_text()),
        }
    }

    /// The terms of a question, in order, with repetitions.
    pub fn terms(&self, text: &str) -> Vec<String> {
        match self {
            Self::Whitespace => text
                .split_whitespace()
                .map(str::to_lowercase)
                .filter(|word| word.len() < tantivy::tokenizer::MAX_TOKEN_LEN)
                .collect(),
            Self::English => Words::ENGLISH.terms(text),
            Self::EnglishUnstemmed => Words { stem: false, ..Words::ENGLISH }.terms(text),
            Self::Cjk => cjk::terms(text),
            Self::Words(words) => words.terms(text),
            Self::ByField(by) => by.languages.iter().flat_map(|language| ByField::terms(*language, text)).collect(),
        }
    }

    /// What the terms of a passage depend on.
    pub(super) fn identity(&self, chunk: &Chunk) -> ContentHash {
        match self {
            Self::ByField(by) => ContentHash::of(by.language(chunk).code(), &chunk.hash.to_string()),
            _ => chunk.hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::metadata::Metadata;
    use turnflow_engine::spec::from_str;

    use super::*;

    fn words(language: Language) -> Tokenizer {
        Tokenizer::Words(Words { language, ..Words::ENGLISH })
    }

    #[test]
    fn texts_become_terms() {
        for (tokenizer, text, want) in [
            (Tokenizer::English, "The Obligations of licensed firms!", vec!["oblig", "licens", "firm"]),
            (
                Tokenizer::EnglishUnstemmed,
                "The Obligations of licensed firms!",
                vec!["obligations", "licensed", "firms"],
            ),
            (
                from_str("Words(language: English, stop_words: false)").unwrap(),
                "The Obligations of licensed firms!",
                vec!["the", "oblig", "of", "licens", "firm"],
            ),
            (Tokenizer::Whitespace, "The Firms, (licensed)", vec!["the", "firms,", "(licensed)"]),
            (Tokenizer::English, "AND OR NOT \"Legislation: \"", vec!["legisl"]),
            (Tokenizer::English, "\u{0}\u{202e}🙂", vec![]),
            (Tokenizer::Whitespace, "", vec![]),
            (words(Language::German), "Die Fähren fahren über das Meer", vec!["fahr", "fahr", "meer"]),
            (words(Language::French), "les bateaux naviguent", vec!["bateau", "naviguent"]),
            (words(Language::Russian), "корабли в море", vec!["корабл", "мор"]),
            (words(Language::Japanese), "船が出る", vec!["船が", "が出", "出る"]),
        ] {
            assert_eq!(tokenizer.terms(text), want, "{tokenizer:?} {text:?}");
        }
    }

    #[test]
    fn every_language_has_terms_and_a_key_of_its_own() {
        use Language::*;
        let all = [
            Arabic, Chinese, Danish, Dutch, English, Finnish, French, German, Greek, Hungarian, Italian, Japanese,
            Korean, Norwegian, Portuguese, Romanian, Russian, Spanish, Swedish, Tamil, Turkish,
        ];
        let mut keys: Vec<String> = all.map(|language| words(language).name()).into();
        keys.push(from_str::<Tokenizer>("Words(language: English, stem: false)").unwrap().name());
        keys.push(from_str::<Tokenizer>("ByField(field: \"lang\", languages: [English])").unwrap().name());
        keys.push(from_str::<Tokenizer>("ByField(field: \"l/../x\", languages: [English, German])").unwrap().name());
        assert!(keys.iter().all(|key| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')), "{keys:?}");
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
        for language in all {
            assert_eq!(words(language).terms("harbour 42").len(), 2, "{language:?}");
        }
    }

    #[test]
    fn a_passage_is_split_in_the_language_that_it_names() {
        let tokenizer: Tokenizer =
            from_str("ByField(field: \"lang\", languages: [English, German, Japanese])").unwrap();
        let chunk = |lang: &str| {
            let mut chunk = Chunk::new("a".into(), "a".into(), "".into(), "Ferries fahren 出港".into());
            let fields = serde_json::json!({ "lang": lang });
            chunk.metadata = Metadata::of(fields.as_object().unwrap()).0;
            chunk
        };
        assert_eq!(tokenizer.passage_terms(&chunk("en-GB")), ["en:ferri", "en:fahren", "en:出港"]);
        assert_eq!(tokenizer.passage_terms(&chunk("German"))[1], "de:fahr");
        assert_eq!(tokenizer.passage_terms(&chunk("ja")), ["ja:ferries", "ja:fahren", "ja:出港"]);
        assert_eq!(tokenizer.passage_terms(&chunk("xx"))[0], "en:ferri");
        assert_eq!(tokenizer.terms("fahren"), ["en:fahren", "de:fahr", "ja:fahren"]);
        assert_eq!(tokenizer.identity(&chunk("en")), tokenizer.identity(&chunk("xx")));
        assert_ne!(tokenizer.identity(&chunk("en")), tokenizer.identity(&chunk("de")));
        assert_eq!(Tokenizer::English.identity(&chunk("en")), chunk("en").hash);
    }
}
