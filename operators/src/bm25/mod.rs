//! BM25: Queries → Hits, with an inverted index in tantivy.
//!
//! ```ron
//! Bm25(input: "query", corpus: "docs", tokenizer: English, k1: 1.2, b: 0.75, top: 100, max_terms: 1024)
//! ```
//!
//! The score is that of Robertson and Zaragoza (2009, section 3) with Lucene's idf, ln(1 + (N − df + ½) / (df + ½)),
//! which is never negative, or with `idf: Okapi` that of the library rank-bm25. N, df and the average length are computed over the live passages of the epoch at search
//! time, and lengths are exact, so a score depends only on the current corpus and not on its history. Ties are ordered
//! by passage id. A question is only split into tokens: it has no query syntax.
//!
//! With `feedback`, the first passages are read for terms that join the question in a second search (RM3).
//!
//! If a question has more than `max_terms` distinct terms, only the first ones are searched, with a warning in the
//! answer's provenance.
//!
//! Cost: proportional to the number of postings of the question's terms. With `idf: Okapi`, the first question of an
//! epoch also reads all terms of the corpus.

mod analyzer;
mod change;
mod cjk;
mod directory;
mod entries;
mod feedback;
mod index;
mod inventory;
mod maintain;
mod open;
mod parts;
mod reader;
mod remember;
#[cfg(test)]
mod restart_tests;
mod score;
mod search;
mod separated;
mod share;
mod standing;
mod terms;
mod view;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use turnflow_engine::component::{
    BuildError, BuildFuture, Check, ComponentContext, CorpusRef, IndexDefinition, InputPort, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind, Permitted, StandingQueries, built_at_once, config,
};
use turnflow_engine::filter::Filter;
use turnflow_engine::record::{Hit, PortType};

use crate::retrieve::{Divided, Notes, Retriever, Search};
pub use analyzer::{ByField, Language, Tokenizer, Words};
pub use feedback::TermFeedback;
use open::Bm25Definition;
pub(crate) use open::is_no_file;
use reader::{Bm25Reader, Parameters};
pub use score::Idf;
use standing::{Asked, BEHIND};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<Bm25Config>(
    "Bm25",
    &[InputPort::one(PortType::Queries)],
    PortType::Hits,
    "passages ranked by BM25",
);

/// Fields of `Bm25`.
#[config]
pub struct Bm25Config {
    /// Input node that produces queries.
    _input: String,
    /// Corpus to search, or `FromTurn`.
    pub corpus: CorpusRef,
    /// How text is split into terms: `English` (default: words, lower-cased, without stop words, stemmed),
    /// `EnglishUnstemmed` (the same without stemming, as in FusionRAG), `Whitespace` (split at white space, lower-cased,
    /// as in TechSSN), `Words(language: German)` (21 languages; `stem: false` and `stop_words: false` leave a step out),
    /// `Cjk` (pairs of characters for Chinese, Japanese and Korean), or `ByField(field: "lang", languages: [English,
    /// German])` (each passage in the language that a field of its metadata names).
    #[field(default)]
    pub tokenizer: Tokenizer,
    /// The weight of rare terms: `Lucene` (default) or `Okapi` (as rank-bm25 computes it).
    #[field(default)]
    pub idf: Idf,
    /// Term-frequency saturation, ≥ 0: the smaller it is, the less further occurrences of a term add.
    #[field(default = 1.2, range = 0.0..=100.0)]
    pub k1: f32,
    /// Length normalisation, 0 (none) to 1 (full): how much long passages are penalised.
    #[field(default = 0.75, range = 0.0..=1.0)]
    pub b: f32,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
    /// Maximum number of distinct terms of a question to search for, taken from its start.
    #[field(default = 1024, range = 1..=1_000_000)]
    pub max_terms: usize,
    /// Pseudo-relevance feedback: a second search, with terms of the first passages, such as `(passages: 10, terms: 10,
    /// weight: 0.5)`. Default: none.
    pub feedback: Option<TermFeedback>,
}

impl OperatorConfig for Bm25Config {
    fn validate(&self, check: &mut Check<'_>) {
        self.tokenizer.validate(check);
        if let Some(feedback) = &self.feedback {
            feedback.validate(check);
        }
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    fn asks_other_parts(&self) -> bool {
        true
    }

    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(Bm25Definition { tokenizer: self.tokenizer.clone() })])
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let tokenizer = self.tokenizer.clone();
            let key = Bm25Definition { tokenizer: tokenizer.clone() }.key();
            let Self { idf, k1, b, max_terms, feedback, .. } = *self;
            let filter = self.filter.clone();
            let search = Bm25 { tokenizer, idf, k1, b, max_terms, feedback };
            Ok(Arc::new(Retriever { corpus: self.corpus.clone(), key, top: self.top, filter, search }))
        })
    }
}

struct Bm25 {
    tokenizer: Tokenizer,
    idf: Idf,
    k1: f32,
    b: f32,
    max_terms: usize,
    feedback: Option<TermFeedback>,
}

/// Keeps all occurrences of the first `most` distinct terms. Returns the number of distinct terms before that.
fn first_terms(terms: &mut Vec<String>, most: usize) -> usize {
    let mut places: HashMap<String, usize> = HashMap::new();
    terms.retain(|term| {
        let place = match places.get(term) {
            Some(place) => *place,
            None => {
                let place = places.len();
                places.insert(term.clone(), place);
                place
            }
        };
        place < most
    });
    places.len()
}

impl Search for Bm25 {
    type Reader = Bm25Reader;

    /// Estimates that a term occurs in an eighth of the passages, that a quarter of the postings is read, and that a
    /// posting costs as much as a byte of text. The first question with `Okapi` in an epoch reads all terms.
    fn weight(&self, reader: &Bm25Reader, texts: &[Arc<str>]) -> usize {
        let (passages, all) = reader.counted();
        let terms = |text: &Arc<str>| (text.len() / 6 + 1).min(self.max_terms);
        let added = self.feedback.map_or(0, |feedback| feedback.terms);
        let terms: usize = texts.iter().map(|text| terms(text) + added).sum();
        let all = if self.idf == Idf::Okapi && !reader.has_mean() { all as usize } else { 0 };
        (passages as usize / 32).saturating_mul(terms + texts.len()).saturating_add(all)
    }

    async fn search(
        &self,
        Divided { reader, others }: Divided<'_, Bm25Reader>,
        texts: Vec<String>,
        top: usize,
        permitted: &Permitted,
        notes: Notes<'_>,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        // Scores of several lists move differently.
        let stands = notes.watch.is_wanted() && self.tells() && texts.len() == 1;
        let parameters = Parameters { idf: self.idf, k1: self.k1, b: self.b };
        let search = async |terms: &BTreeMap<String, f32>, top| match others {
            None => Ok(reader.search(terms, parameters, top, permitted)?),
            Some(others) => parts::search(reader, others, terms, parameters, top, permitted).await,
        };
        let mut lists = Vec::with_capacity(texts.len());
        for text in &texts {
            let mut terms = self.tokenizer.terms(text);
            let different = first_terms(&mut terms, self.max_terms);
            if different > self.max_terms {
                let most = self.max_terms;
                notes.warnings.add(format!("the query has {different} terms, and only the first {most} were searched"));
            }
            let mut counts: BTreeMap<String, f32> = BTreeMap::new();
            terms.into_iter().for_each(|term| *counts.entry(term).or_default() += 1.0);
            lists.push(match self.feedback {
                None if stands => {
                    let mut hits = search(&counts, top + BEHIND).await?;
                    if let Some(asked) = Asked::new(reader, parameters, &counts, &hits, top)? {
                        notes.watch.put(asked);
                    }
                    hits.truncate(top);
                    hits
                }
                None => search(&counts, top).await?,
                Some(feedback) => {
                    let first = search(&counts, feedback.passages).await?;
                    search(&feedback.expand(&counts, &first, &self.tokenizer), top).await?
                }
            });
        }
        Ok(lists)
    }

    fn standing(&self, index: &str, scores_matter: bool) -> Option<Box<dyn StandingQueries>> {
        let Self { idf, k1, b, .. } = *self;
        let parameters = Parameters { idf, k1, b };
        let new = || standing::Standing::new(index.to_owned(), self.tokenizer.clone(), parameters);
        (self.tells() && !scores_matter).then(|| Box::new(new()) as Box<dyn StandingQueries>)
    }
}

impl Bm25 {
    /// Whether it can tell which questions a change reaches: passages add no terms, and the weight of a term depends on
    /// its own number of passages only.
    fn tells(&self) -> bool {
        self.idf == Idf::Lucene && self.feedback.is_none()
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::component::{Delta, Warnings, WatchSlot};
    use turnflow_engine::document::Chunk;

    use super::*;

    #[test]
    fn the_first_terms_are_kept_as_often_as_they_occur() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut terms = words("a b a c b d a");
        assert_eq!(first_terms(&mut terms, 2), 4);
        assert_eq!(terms, words("a b a b a"));
        assert_eq!(first_terms(&mut terms, 2), 2);
    }

    /// The scores are those of rank-bm25 0.2.2 (`BM25Okapi` with its defaults), to six decimals. A passage that is removed
    /// again leaves no trace.
    #[tokio::test(flavor = "multi_thread")]
    async fn okapi_scores_are_those_of_rank_bm25() {
        let chunk = |(id, text): (&str, &str)| Arc::new(Chunk::new(id.into(), "d".into(), "".into(), text.into()));
        let texts = [
            ("a", "the ferry leaves at noon"),
            ("b", "the island has a ferry"),
            ("c", "the harbour at the island"),
            ("d", "the the the end"),
        ];
        let added: Vec<_> = texts.into_iter().map(chunk).collect();
        let gone = chunk(("e", "a word that only this passage has, and the ferry"));
        let definition = Bm25Definition { tokenizer: Tokenizer::Whitespace };
        let mut index = definition.open(None).await.unwrap();
        let first = Delta { added: vec![gone.clone(), added[0].clone()], removed: Vec::new(), whole: true };
        index.apply(&first).await.unwrap();
        let second = Delta { added: added[1..].to_vec(), removed: vec![gone], whole: false };
        let reader = index.apply(&second).await.unwrap().downcast::<Bm25Reader>().unwrap();
        for (query, expected) in [
            ("ferry noon", &[("a", 0.827_695)][..]),
            ("the ferry", &[("d", 0.125_216), ("c", 0.101_377), ("a", 0.070_494), ("b", 0.070_494)]),
            ("the the island at", &[("d", 0.250_432), ("c", 0.202_753), ("a", 0.140_989), ("b", 0.140_989)]),
        ] {
            let mut terms: BTreeMap<String, f32> = BTreeMap::new();
            Tokenizer::Whitespace.terms(query).into_iter().for_each(|term| *terms.entry(term).or_default() += 1.0);
            let parameters = Parameters { idf: Idf::Okapi, k1: 1.5, b: 0.75 };
            let hits = reader.search(&terms, parameters, 10, &Permitted::All).unwrap();
            assert_eq!(hits.len(), expected.len(), "{query}: {hits:?}");
            for (hit, (id, score)) in hits.iter().zip(expected) {
                assert!(
                    *hit.chunk.id == **id && (hit.score - score).abs() < 2e-6,
                    "{query}: {hit:?} is not {id} {score}"
                );
            }
        }
    }

    /// A question of 145,000 distinct terms. Set `TURNFLOW_HOSTILE_PASSAGES` for a larger corpus.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_question_of_many_terms_is_bounded() {
        let word = |n: usize| format!("w{:05x}", n % 145_000);
        let text = |n: usize| (0..200).map(|at| word(n * 7919 + at * 104_729)).collect::<Vec<_>>().join(" ");
        let chunk = |n: usize| Arc::new(Chunk::new(format!("p{n}").into(), "d".into(), "".into(), text(n).into()));
        let passages = std::env::var("TURNFLOW_HOSTILE_PASSAGES").ok().and_then(|count| count.parse().ok());
        let added: Vec<_> = (0..passages.unwrap_or(320)).map(chunk).collect();
        let mut index = Bm25Definition { tokenizer: Tokenizer::Whitespace }.open(None).await.unwrap();
        let delta = Delta { added, removed: Vec::new(), whole: true };
        let reader = index.apply(&delta).await.unwrap().downcast::<Bm25Reader>().unwrap();
        let (tokenizer, idf) = (Tokenizer::Whitespace, Idf::Lucene);
        let search = Bm25 { tokenizer, idf, k1: 1.2, b: 0.75, max_terms: 1024, feedback: None };
        let query = (0..145_000).map(word).collect::<Vec<_>>().join(" ");
        assert!(search.weight(&reader, &[query.as_str().into()]) > 1024 * 300 / 32);
        let (warnings, begun) = (Warnings::default(), std::time::Instant::now());
        let (watch, index) = (WatchSlot::default(), Divided::whole(&reader));
        let notes = Notes { warnings: &warnings, watch: &watch };
        let hits = search.search(index, vec![query], 100, &Permitted::All, notes).await.unwrap();
        println!("hostile Bm25: {:.3} s", begun.elapsed().as_secs_f64());
        assert!(!hits[0].is_empty());
        assert_eq!(warnings.take(), ["the query has 145000 terms, and only the first 1024 were searched"]);
    }
}
