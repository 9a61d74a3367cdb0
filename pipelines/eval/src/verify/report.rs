//! The report of a verification, as text and JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{COSINE, DIFFERENCE, IndexId, Tally};

/// Maximum number of differences in the text report.
const TOLD: usize = 20;

/// Where a difference was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In the stored data.
    Stored,
    /// In the data served after a restart.
    Served,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Stored => "stored",
            Part::Served => "served",
        }
    }
}

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data that cannot be read or is inconsistent.
    Damage,
    /// A passage that is missing, unexpected, or different.
    Passage,
    /// The words of a passage.
    Words,
    /// The encoding of a content by a model.
    Encoding,
    /// A statistic over all passages.
    Statistic,
    /// The number of documents or chunks.
    Count,
    /// The hits of a question.
    Hits,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Damage => "damage",
            Kind::Passage => "passage",
            Kind::Words => "words",
            Kind::Encoding => "encoding",
            Kind::Statistic => "statistic",
            Kind::Count => "count",
            Kind::Hits => "hits",
        }
    }
}

/// One difference.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The corpus and the index; the key is empty if the difference does not belong to an index.
    pub index: IndexId,
    /// The part with the difference.
    pub part: Part,
    /// The kind of difference.
    pub kind: Kind,
    /// The file, passage or question.
    pub place: String,
    /// The value in the rebuild.
    pub expected: String,
    /// The value found.
    pub found: String,
}

/// How far stored data is behind the corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// In the corpus, but not stored yet.
    pub new: usize,
    /// Stored in an older version.
    pub changed: usize,
    /// Stored, but no longer in the corpus.
    pub gone: usize,
}

/// The report for one index.
#[derive(Clone, Debug, Default)]
pub struct IndexReport {
    /// Number of stored passages or contents; `None` for an index that stores nothing.
    pub stored: Option<usize>,
    /// How far they are behind.
    pub behind: Behind,
    /// Number of served passages.
    pub served: usize,
    /// The comparison of stored and served encodings.
    pub encodings: Tally,
}

/// The report for one retriever.
#[derive(Clone, Debug, Default)]
pub struct HitsReport {
    /// Number of questions asked.
    pub questions: usize,
    /// Questions with the same hits.
    pub same: usize,
    /// The greatest difference of a score.
    pub worst: f32,
}

/// The report of a verification.
#[derive(Debug, Default)]
pub struct Report {
    /// Numbers of served documents and chunks, by corpus.
    pub corpora: BTreeMap<Arc<str>, (usize, usize)>,
    /// Reports of indexes, by corpus and key.
    pub indexes: BTreeMap<IndexId, IndexReport>,
    /// Reports of retrievers, by corpus and node.
    pub hits: BTreeMap<(Arc<str>, Arc<str>), HitsReport>,
    /// Every difference.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Adds a difference; `counts` has the expected and the found value.
    pub fn add(&mut self, index: IndexId, part: Part, kind: Kind, place: impl Into<String>, counts: [String; 2]) {
        let [expected, found] = counts;
        self.differences.push(Difference { index, part, kind, place: place.into(), expected, found });
    }

    /// The indexes that differ.
    pub fn differing(&self) -> BTreeSet<IndexId> {
        self.differences.iter().map(|difference| difference.index.clone()).filter(|(_, key)| !key.is_empty()).collect()
    }

    /// Formats the report as one JSON object.
    pub fn to_json(&self) -> Value {
        let indexes: Vec<Value> = self
            .indexes
            .iter()
            .map(|((corpus, key), index)| {
                let IndexReport { stored, behind, served, encodings } = index;
                json!({
                    "corpus": corpus, "index": key, "stored": stored, "served": served,
                    "behind": {"new": behind.new, "changed": behind.changed, "gone": behind.gone},
                    "encodings": {
                        "compared": encodings.compared, "same": encodings.same,
                        "worst_cosine": encodings.worst_cosine, "worst_difference": encodings.worst_difference,
                    },
                })
            })
            .collect();
        let hits = self.hits.iter().map(|((corpus, node), hits)| {
            json!({"corpus": corpus, "node": node, "questions": hits.questions, "same": hits.same, "worst": hits.worst})
        });
        let differences = self.differences.iter().map(|difference| {
            let (corpus, key) = &difference.index;
            json!({
                "corpus": corpus, "index": key, "part": difference.part.name(), "kind": difference.kind.name(),
                "place": difference.place, "expected": difference.expected, "found": difference.found,
            })
        });
        let corpora: BTreeMap<&str, Value> = self
            .corpora
            .iter()
            .map(|(name, (documents, chunks))| (&**name, json!({"documents": documents, "chunks": chunks})))
            .collect();
        json!({
            "equal": self.differences.is_empty(),
            "tolerance": {"cosine": COSINE, "difference": DIFFERENCE},
            "corpora": corpora, "indexes": indexes,
            "hits": hits.collect::<Vec<_>>(), "differences": differences.collect::<Vec<_>>(),
        })
    }

    /// Formats a table for each corpus and the differences as text.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for (corpus, (documents, chunks)) in &self.corpora {
            let _ = writeln!(out, "corpus {corpus}: {documents} documents, {chunks} chunks");
            let _ = writeln!(out, "  {:26} {:>8} {:>8}  {:24} encodings", "index", "stored", "served", "behind by");
            for ((_, key), index) in self.indexes.iter().filter(|((name, _), _)| name == corpus) {
                let stored = index.stored.map_or("-".to_owned(), |stored| stored.to_string());
                let behind = behind(index.behind);
                let encodings = tally(&index.encodings);
                let _ = writeln!(out, "  {key:26} {stored:>8} {:>8}  {behind:24} {encodings}", index.served);
            }
            for ((_, node), hits) in self.hits.iter().filter(|((name, _), _)| name == corpus) {
                let HitsReport { questions, same, worst } = hits;
                let _ = writeln!(
                    out,
                    "  {node}: the same hits for {same} of {questions} questions; scores differ by {worst:.1e} at most"
                );
            }
        }
        if self.differences.is_empty() {
            out.push_str("The indexes equal a cold rebuild.\n");
            return out;
        }
        let count = self.differences.len();
        let _ = writeln!(out, "\n{count} difference{}:", if count == 1 { "" } else { "s" });
        for difference in self.differences.iter().take(TOLD) {
            let (corpus, key) = &difference.index;
            let of = if key.is_empty() { corpus.to_string() } else { format!("{corpus}, {key}") };
            let (part, kind) = (difference.part.name(), difference.kind.name());
            let _ = writeln!(out, "  {of}, {part}, {kind}: {}", difference.place);
            let _ = writeln!(out, "    expected: {}\n    found:    {}", difference.expected, difference.found);
        }
        if count > TOLD {
            let _ = writeln!(out, "  and {} more; --format json prints all", count - TOLD);
        }
        out
    }
}

fn behind(behind: Behind) -> String {
    let parts = [(behind.new, "new"), (behind.changed, "changed"), (behind.gone, "gone")];
    let told: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if told.is_empty() { "nothing".into() } else { told.join(", ") }
}

fn tally(tally: &Tally) -> String {
    if tally.compared == 0 {
        return "-".into();
    }
    let Tally { compared, same, worst_cosine, .. } = tally;
    format!("{same} of {compared} bit-identical, worst cosine {worst_cosine:.6}")
}
