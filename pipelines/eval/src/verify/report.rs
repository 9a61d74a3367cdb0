//! What a comparison found, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{COSINE, DIFFERENCE, IndexId, Tally};

/// Differences that are told to people.
const TOLD: usize = 20;

/// Where a difference was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In what is stored, as it stands.
    Stored,
    /// In what is served after a restart.
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
    /// Something that cannot be read, or contradicts itself.
    Damage,
    /// A passage that is there and should not be, or the other way round, or is another.
    Passage,
    /// The words of a passage.
    Words,
    /// What a model made of a content.
    Encoding,
    /// A count over all passages.
    Statistic,
    /// How many there are.
    Count,
    /// What a question finds.
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
    /// The corpus and the index; the key is empty where it is no index's.
    pub index: IndexId,
    /// In which part.
    pub part: Part,
    /// Of which kind.
    pub kind: Kind,
    /// The file, the passage, the question.
    pub place: String,
    /// What the rebuild has.
    pub expected: String,
    /// What there is.
    pub found: String,
}

/// How far what is stored is behind the corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// The corpus has it, and it is not stored yet.
    pub new: usize,
    /// It is stored as it was before.
    pub changed: usize,
    /// It is stored, and the corpus has it no more.
    pub gone: usize,
}

/// What was found of one index.
#[derive(Clone, Debug, Default)]
pub struct IndexReport {
    /// Passages, or contents, that are stored; `None` for what keeps nothing.
    pub stored: Option<usize>,
    /// How far they are behind.
    pub behind: Behind,
    /// Passages that are served.
    pub served: usize,
    /// Encodings that are stored or served and were compared.
    pub encodings: Tally,
}

/// What was found of one retriever's hits.
#[derive(Clone, Debug, Default)]
pub struct HitsReport {
    /// Questions that were put to it.
    pub questions: usize,
    /// Those with the same hits.
    pub same: usize,
    /// The greatest difference of a score.
    pub worst: f32,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Documents and chunks that are served.
    pub corpora: BTreeMap<Arc<str>, (usize, usize)>,
    /// By corpus and key.
    pub indexes: BTreeMap<IndexId, IndexReport>,
    /// By corpus and node.
    pub hits: BTreeMap<(Arc<str>, Arc<str>), HitsReport>,
    /// Every difference.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Adds a difference; `counts` is what was expected and what was found.
    pub fn add(&mut self, index: IndexId, part: Part, kind: Kind, place: impl Into<String>, counts: [String; 2]) {
        let [expected, found] = counts;
        self.differences.push(Difference { index, part, kind, place: place.into(), expected, found });
    }

    /// The indexes that differ.
    pub fn differing(&self) -> BTreeSet<IndexId> {
        self.differences.iter().map(|difference| difference.index.clone()).filter(|(_, key)| !key.is_empty()).collect()
    }

    /// As one object.
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

    /// A table for each corpus, and the differences.
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
            out.push_str("What is indexed is what a cold rebuild gives.\n");
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
            let _ = writeln!(out, "  and {} more; --json tells all", count - TOLD);
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
    format!("{same} of {compared} to the bit, worst cosine {worst_cosine:.6}")
}
