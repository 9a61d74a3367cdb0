//! The index: the words of each passage, and what is known of its weighted sum.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Delta, Index, IndexError, Inventory, Maintained, MaintenanceLimits, Permitted};
use turnflow_engine::document::Chunk;
use turnflow_engine::inference::{Vector, WordVectors};
use turnflow_engine::mapped::MappedFiles;
use turnflow_engine::record::Hit;

use super::measures::{Base, BlockMeasures, Measures};
use super::words::{Bag, Counts, Words};
use crate::content::{Best, Block, BlockIndex, BlockReader, Candidates, Derived, dot, inventory, open_blocks};

/// A block of passages.
pub(super) type BagBlock = Block<Bag, Together>;
/// All passages at an epoch.
pub(super) type BagReader = BlockReader<Bag, Together>;

/// The words of a block's passages, one passage after the other, so that a search reads them as fast as memory allows.
pub(super) struct Together {
    words: Vec<(u32, f32)>,
    /// Where the words of each row end.
    ends: Vec<u32>,
}

impl Derived<Bag> for Together {
    const AT_ONCE: bool = true;

    fn derive(rows: &[(Bag, Arc<Chunk>)], _: Option<&MappedFiles>) -> Self {
        let mut end = 0;
        let ends = rows.iter().map(|(bag, _)| {
            end += bag.len() as u32;
            end
        });
        let ends = ends.collect();
        Self { words: rows.iter().flat_map(|(bag, _)| bag.iter().copied()).collect(), ends }
    }
}

impl Together {
    /// The words of each row.
    fn rows(&self) -> impl Iterator<Item = &[(u32, f32)]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.words[*start as usize..*end as usize])
    }
}

pub(super) struct StaticIndex {
    words: Arc<Words>,
    passages: BlockIndex<Bag, Together>,
    /// The passages of the newest epoch.
    newest: Option<Arc<BagReader>>,
    counts: Counts,
    measures: Measures,
}

impl StaticIndex {
    pub async fn open(vectors: Arc<dyn WordVectors>) -> Result<Self, IndexError> {
        let words = Arc::new(Words::new(vectors));
        let passages = open_blocks(None, words.clone()).await?;
        Ok(Self { words, passages, newest: None, counts: Counts::default(), measures: Measures::new() })
    }

    /// Follows the change to the passages of the next epoch.
    fn follow(&mut self, next: Arc<BagReader>) -> StaticReader {
        let newest = self.newest.replace(next.clone());
        let before = newest.as_ref().map_or(&[][..], |reader| &reader.blocks);
        let mut changed = 0;
        for at in 0..before.len().max(next.blocks.len()) {
            let (old, new) = (before.get(at), next.blocks.get(at));
            if old.zip(new).is_some_and(|(old, new)| Arc::ptr_eq(old, new)) {
                continue;
            }
            let rows = |block: Option<&Arc<BagBlock>>| block.map_or(0, |block| block.rows.len());
            for row in 0..rows(old).max(rows(new)) {
                let [old, new] = [old, new].map(|block| block.and_then(|block| block.rows.get(row)));
                if old.zip(new).is_some_and(|((_, old), (_, new))| Arc::ptr_eq(old, new)) {
                    continue;
                }
                changed += 1;
                old.into_iter().for_each(|(bag, _)| self.counts.remove(bag));
                new.into_iter().for_each(|(bag, _)| self.counts.add(bag));
            }
        }
        self.counts.passages = next.passages();
        self.measures.follow(before, &next, changed, &self.counts, &self.words);
        StaticReader {
            passages: next,
            measures: self.measures.blocks.clone(),
            counts: self.counts.clone(),
            words: self.words.clone(),
            weights: OnceLock::new(),
        }
    }
}

impl Index for StaticIndex {
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        async move {
            let next = self.passages.next(delta).await?;
            if delta.whole {
                self.newest = None;
                self.counts = Counts::default();
                self.measures = Measures::new();
            }
            Ok(tokio::task::block_in_place(|| Arc::new(self.follow(next)) as Arc<dyn Any + Send + Sync>))
        }
        .boxed()
    }

    fn maintain(&mut self, limits: MaintenanceLimits) -> BoxFuture<'_, Result<Maintained, IndexError>> {
        self.passages.maintain(limits)
    }
}

/// The weights of words at an epoch, by number.
struct Weights {
    idf: Vec<f32>,
    /// For each base, how far a word may move a sum: the change of its weight times the length of its vector.
    moved: Vec<(Arc<Base>, Vec<f32>)>,
}

/// The index at an epoch.
pub(crate) struct StaticReader {
    passages: Arc<BagReader>,
    measures: Vec<Arc<BlockMeasures>>,
    counts: Counts,
    words: Arc<Words>,
    /// Computed by the first search.
    weights: OnceLock<Weights>,
}

/// If at most one passage in this many is permitted, exact scores are computed at once.
const FEW: usize = 16;

impl StaticReader {
    pub fn passages(&self) -> usize {
        self.passages.passages()
    }

    /// Number of values that a query is multiplied with: those of the vectors of all words that were met.
    pub fn values(&self) -> usize {
        self.words.known().values()
    }

    fn weights(&self) -> &Weights {
        self.weights.get_or_init(|| {
            let known = self.words.known();
            let idf: Vec<f32> = (0..known.places.len() as u32).map(|number| self.counts.idf(number)).collect();
            let mut moved: Vec<(Arc<Base>, Vec<f32>)> = Vec::new();
            for BlockMeasures { base, .. } in self.measures.iter().map(|measures| &**measures) {
                if moved.iter().any(|(other, _)| Arc::ptr_eq(base, other)) {
                    continue;
                }
                let words = (0_u32..).zip(&idf).zip(&known.places);
                let moves = words.map(|((number, now), (_, length))| (now - base.counts.idf(number)).abs() * length);
                moved.push((base.clone(), moves.collect()));
            }
            Weights { idf, moved }
        })
    }

    /// The permitted passages whose vectors have the greatest cosine with the query's. The scores are exact.
    pub fn search(&self, query: &str, top: usize, permitted: &Permitted) -> Vec<Hit> {
        let Some(query) = self.words.of_query(query, &self.counts) else { return Vec::new() };
        let mut best = Best::new(top);
        if self.passages.searched(permitted) < self.passages() / FEW
            && let Some(rows) = self.passages.permitted(permitted)
        {
            rows.for_each(|row| self.offer(&query, row, &mut best));
            return best.into_hits();
        }
        let Weights { idf, moved } = self.weights();
        let products: Vec<f32> =
            self.words.known().products(&query).zip(idf).map(|(product, idf)| product * idf).collect();
        let of_base = |(base, moves): &(Arc<Base>, Vec<f32>)| {
            (Arc::as_ptr(base), products.iter().zip(moves).map(|(product, moves)| [*product, *moves]).collect())
        };
        let words: Vec<(*const Base, Vec<[f32; 2]>)> = moved.iter().map(of_base).collect();
        let mut candidates = Candidates::new(top);
        for (at, (block, measures)) in self.passages.blocks.iter().zip(&self.measures).enumerate() {
            let of_block = words.iter().find(|(base, _)| std::ptr::eq(*base, Arc::as_ptr(&measures.base)));
            let Some((_, words)) = of_block else { continue };
            for (row, (bag, measure)) in block.derived().rows().zip(&measures.rows).enumerate() {
                if bag.is_empty() {
                    continue;
                }
                let [product, moved] = sums(bag, words);
                let score = product / measure.length;
                // The length is between `length - moved` and `length + moved`, and errors are relative to it.
                let rest = measure.length - moved;
                let by_length =
                    if rest > 0.0 { (score.abs() + measure.rounding) * moved / rest } else { f32::INFINITY };
                let difference = by_length + measure.rounding;
                // A score that is no number is not ruled out.
                if score + difference < candidates.known() || !permitted.has(&block.rows[row].1) {
                    continue;
                }
                candidates.add((score, difference), (at, row));
            }
        }
        for (block, row) in candidates.into_rows() {
            self.offer(&query, &self.passages.blocks[block].rows[row], &mut best);
        }
        best.into_hits()
    }

    /// Offers a passage with its exact score.
    fn offer<'a>(&self, query: &[f32], (bag, chunk): &'a (Bag, Arc<Chunk>), best: &mut Best<'a>) {
        if let Some(vector) = self.words.of_passage(bag, &self.counts) {
            best.offer(dot(query, &vector), chunk);
        }
    }

    /// The passages with their vectors.
    pub fn inventory(&self) -> Inventory {
        let rows = self.passages.blocks.iter().flat_map(|block| &block.rows);
        let vector = |bag: &Bag| Some(Vector::from(self.words.of_passage(bag, &self.counts)?));
        inventory(rows.filter_map(|(bag, chunk)| Some((vector(bag)?, chunk))).collect())
    }
}

/// The sums of a passage's products and of its moves. There are four of each, because an addition waits for the one before.
fn sums(bag: &[(u32, f32)], of_words: &[[f32; 2]]) -> [f32; 2] {
    let mut sums = [[0.0_f32; 2]; 4];
    let mut add = |lane: usize, (number, count): (u32, f32)| {
        let [product, moves] = of_words[number as usize];
        sums[lane][0] += count * product;
        sums[lane][1] += count * moves;
    };
    let (whole, rest) = bag.as_chunks::<4>();
    for words in whole {
        (0..4).for_each(|lane| add(lane, words[lane]));
    }
    rest.iter().enumerate().for_each(|(lane, word)| add(lane, *word));
    [0, 1].map(|at| sums.iter().map(|sum| sum[at]).sum())
}

#[cfg(test)]
impl StaticReader {
    /// The number of different bases.
    pub fn bases(&self) -> usize {
        self.weights().moved.len()
    }

    /// What a search finds, by comparing every passage.
    pub fn compare_all(&self, query: &str, top: usize) -> Vec<(String, u32)> {
        let Some(query) = self.words.of_query(query, &self.counts) else { return Vec::new() };
        let mut best = Best::new(top);
        let rows = self.passages.blocks.iter().flat_map(|block| &block.rows);
        rows.for_each(|row| self.offer(&query, row, &mut best));
        best.into_sorted().map(|(score, chunk)| (chunk.id.to_string(), score.to_bits())).collect()
    }
}
