//! tantivy alone, with its own scorer, on the same passages and questions.

use std::path::Path;
use std::time::{Duration, Instant};

use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, STORED, STRING, Schema, TextFieldIndexing, TextOptions, Value as _};
use tantivy::tokenizer::{
    Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, TokenStream as _,
};
use tantivy::{Index, Searcher, TantivyDocument, Term, doc};

/// Memory of tantivy's writer, in bytes, for all of its threads.
const WRITER: usize = 256 << 20;

/// tantivy's own index.
pub(super) struct Peer {
    searcher: Searcher,
    analyzer: TextAnalyzer,
    id: Field,
    text: Field,
    /// How long indexing took, with as many threads as there are cores.
    pub indexing: Duration,
}

impl Peer {
    /// Indexes passages in a new directory. Words are lower-cased and stemmed, without stop words, as in `English`.
    pub fn index<'a>(directory: &Path, passages: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        let mut schema = Schema::builder();
        let id = schema.add_text_field("id", STRING | STORED);
        let indexing =
            TextFieldIndexing::default().set_tokenizer("english").set_index_option(IndexRecordOption::WithFreqs);
        let text = schema.add_text_field("text", TextOptions::default().set_indexing_options(indexing));
        std::fs::create_dir_all(directory)?;
        let index = Index::create_in_dir(directory, schema.build())?;
        let stop_words =
            StopWordFilter::new(Language::English).ok_or_else(|| anyhow::anyhow!("tantivy has no stop words"))?;
        let analyzer = TextAnalyzer::builder(SimpleTokenizer::default())
            .filter(RemoveLongFilter::limit(255))
            .filter(LowerCaser)
            .filter(stop_words)
            .filter(Stemmer::new(Language::English))
            .build();
        index.tokenizers().register("english", analyzer.clone());
        let begun = Instant::now();
        let mut writer = index.writer(WRITER)?;
        for (number, passage) in passages.enumerate() {
            writer.add_document(doc!(id => format!("p{number}"), text => passage))?;
        }
        writer.commit()?;
        let took = begun.elapsed();
        writer.wait_merging_threads()?;
        let searcher = index.reader()?.searcher();
        Ok(Self { searcher, analyzer, id, text, indexing: took })
    }

    fn query(&self, question: &str) -> BooleanQuery {
        let mut analyzer = self.analyzer.clone();
        let mut stream = analyzer.token_stream(question);
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        while stream.advance() {
            let term = Term::from_field_text(self.text, &stream.token().text);
            clauses.push((Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs))));
        }
        BooleanQuery::new(clauses)
    }

    /// Searches for the questions one after the other; returns how long it took.
    pub fn search(&self, questions: &[String], top: usize) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        for question in questions {
            std::hint::black_box(
                self.searcher.search(&self.query(question), &TopDocs::with_limit(top).order_by_score())?,
            );
        }
        Ok(begun.elapsed())
    }

    /// Like [`Self::search`], with a thread for each core.
    pub fn search_on_all_cores(&self, questions: &[String], top: usize) -> anyhow::Result<Duration> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let parts = questions.chunks(questions.len().div_ceil(cores));
            let searches: Vec<_> = parts.map(|part| scope.spawn(move || self.search(part, top))).collect();
            searches.into_iter().try_for_each(|search| match search.join() {
                Ok(searched) => searched.map(drop),
                Err(_) => anyhow::bail!("tantivy panicked"),
            })
        })?;
        Ok(begun.elapsed())
    }

    /// The ids of the best passages.
    pub fn best(&self, question: &str, top: usize) -> anyhow::Result<Vec<String>> {
        let found = self.searcher.search(&self.query(question), &TopDocs::with_limit(top).order_by_score())?;
        let id = |(_, address)| -> anyhow::Result<String> {
            let document: TantivyDocument = self.searcher.doc(address)?;
            Ok(document.get_first(self.id).and_then(|id| id.as_str()).unwrap_or_default().to_owned())
        };
        found.into_iter().map(id).collect()
    }
}
