//! An approximate index: the tokens of passages by the nearest of some centroids, with which most passages are passed over
//! before their tokens are compared (PLAID: Santhanam et al. 2022, section 3, without pruning of centroids).
//!
//! A passage's score by centroids is the mean, over the query's tokens, of the greatest score of a centroid that is nearest
//! to one of the passage's tokens. Passages are scored exactly in the order of these scores, down to one that is worse than
//! what was found by more than a gap. The gap is measured when the centroids are learned: it finds the wanted share of the
//! best ten passages, for the newest queries of the corpus.
//!
//! Centroids are learned in the background, and serve all epochs until half as many contents are new as they were learned
//! from; then new ones are learned. A passage whose content is new is scored exactly until the centroids of its tokens are
//! looked up, also in the background.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{self, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use turnflow_engine::component::Permitted;
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::TokenVectors;
use turnflow_engine::record::Hit;

use super::index::{Codes, MultiVectorReader, Quantized, search};
use crate::background::Background;
use crate::content::{Best, Block};
use crate::dense::codes::Queries;
use crate::kmeans;

/// The most centroids. More would make the search better and the look-up of new passages slower.
const MOST: usize = 2048;
/// Tokens that a centroid is learned from.
const LEARNED_FROM: usize = 32;
/// The recall is measured for this many passages, with at most so many queries.
const MEASURED: usize = 10;
const QUERIES: usize = 64;
/// Scores of a centroid are padded to a multiple of this.
const LANES: usize = 8;
/// Passages that are scored exactly at each search before the centroids of their tokens are looked up.
const OUTSIDE: usize = 64;

/// Identifies a content.
fn content(hash: ContentHash) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| hash.0[at]))
}

/// The different centroids of each passage's tokens.
pub(super) struct Learned {
    centroids: kmeans::Centroids,
    /// By content.
    of_contents: RwLock<HashMap<u64, Arc<[u16]>>>,
    /// Number of passages that they were learned from, and of contents that were looked up since.
    passages: usize,
    added: AtomicUsize,
    /// A search ends at a passage whose score by centroids is worse than the worst wanted one by more than this.
    gap: f32,
    recall: f32,
    /// Mean number of passages that are scored exactly.
    scored: usize,
    blocks: Mutex<Blocks>,
}

type OneBlock = Block<Codes, ()>;
/// The centroids of a block's passages, by row. `None`: not looked up yet.
type BlockCentroids = Vec<Option<Arc<[u16]>>>;
/// Those of the blocks of a reader.
type OfReader = Arc<Vec<Arc<BlockCentroids>>>;

/// The centroids of the passages of some blocks.
#[derive(Default)]
struct Blocks {
    of_blocks: HashMap<*const OneBlock, (Weak<OneBlock>, Arc<BlockCentroids>)>,
    /// Those of the newest reader that was searched.
    newest: Option<(Weak<MultiVectorReader>, OfReader)>,
}

// SAFETY: the pointers are only compared. The weak reference beside each keeps its address from being used again.
unsafe impl Send for Blocks {}

/// A passage with its score by centroids; infinity, if that is not known.
#[derive(PartialEq)]
struct Scored {
    score: f32,
    block: u32,
    row: u32,
}

impl Eq for Scored {}
impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| (other.block, other.row).cmp(&(self.block, self.row)))
    }
}
impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Learned {
    /// Learns centroids from a reader's passages. `None` if they have no tokens.
    fn of(reader: &Arc<MultiVectorReader>, queries: &[TokenVectors], wanted: f32) -> Option<Self> {
        let rows = || reader.blocks.iter().flat_map(|block| &block.rows);
        let tokens: usize = rows().map(|(codes, _)| codes.tokens()).sum();
        let count = MOST.min((2.0 * (tokens as f64).sqrt()) as usize);
        if count == 0 {
            return None;
        }
        let step = tokens.div_ceil(count * LEARNED_FROM);
        let sample: Vec<Vec<f32>> = rows().flat_map(|(codes, _)| codes.values()).step_by(step).collect();
        let sample: Vec<&[f32]> = sample.iter().map(Vec::as_slice).collect();
        let centroids = kmeans::learn(&sample, count.min(sample.len()));
        let mut this = Self {
            centroids,
            of_contents: RwLock::default(),
            passages: reader.passages(),
            added: AtomicUsize::new(0),
            gap: f32::INFINITY,
            recall: 1.0,
            scored: reader.passages(),
            blocks: Mutex::default(),
        };
        this.look_up(reader);
        this.added.store(0, atomic::Ordering::Relaxed);
        this.choose_gap(reader, &queries[queries.len().saturating_sub(QUERIES)..], wanted);
        Some(this)
    }

    /// Looks up the centroids of contents that are new, and forgets those that no passage has.
    fn look_up(&self, reader: &MultiVectorReader) {
        let rows = || reader.blocks.iter().flat_map(|block| &block.rows);
        let mut found = Vec::new();
        for (codes, chunk) in rows() {
            let content = content(chunk.hash);
            if self.of_contents.read().contains_key(&content) {
                continue;
            }
            let vectors: Vec<Vec<f32>> = codes.values().collect();
            let nearest = self.centroids.nearest(&vectors.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut of_content: Vec<u16> = nearest.into_iter().map(|centroid| centroid as u16).collect();
            of_content.sort_unstable();
            of_content.dedup();
            found.push((content, of_content.into()));
        }
        self.added.fetch_add(found.len(), atomic::Ordering::Relaxed);
        let mut of_contents = self.of_contents.write();
        of_contents.extend(found);
        if of_contents.len() > 2 * reader.passages() {
            let live: HashSet<u64> = rows().map(|(_, chunk)| content(chunk.hash)).collect();
            of_contents.retain(|content, _| live.contains(content));
        }
        // The other lock may be held by one who waits for this one.
        drop(of_contents);
        *self.blocks.lock() = Blocks::default();
    }

    /// The centroids of a reader's passages, by block. Cost: that of the blocks that have changed.
    fn of_blocks(&self, reader: &Arc<MultiVectorReader>) -> OfReader {
        let mut blocks = self.blocks.lock();
        if let Some((newest, found)) = &blocks.newest
            && std::ptr::eq(newest.as_ptr(), Arc::as_ptr(reader))
        {
            return found.clone();
        }
        let of_contents = self.of_contents.read();
        let of_block = |block: &Arc<OneBlock>| {
            let made = blocks.of_blocks.entry(Arc::as_ptr(block)).or_insert_with(|| {
                let row = |(_, chunk): &(Codes, Arc<Chunk>)| of_contents.get(&content(chunk.hash)).cloned();
                (Arc::downgrade(block), Arc::new(block.rows.iter().map(row).collect()))
            });
            made.1.clone()
        };
        let found: Arc<Vec<_>> = Arc::new(reader.blocks.iter().map(of_block).collect());
        if blocks.of_blocks.len() > 2 * reader.blocks.len() {
            blocks.of_blocks.retain(|_, (block, _)| block.strong_count() > 0);
        }
        blocks.newest = Some((Arc::downgrade(reader), found.clone()));
        found
    }

    /// Whether so much has changed that new centroids are worth their cost. Until they are learned, these serve.
    fn is_old(&self) -> bool {
        self.added.load(atomic::Ordering::Relaxed) > self.passages / 2
    }

    /// Number of passages whose centroids are not looked up.
    fn outside(&self, reader: &Arc<MultiVectorReader>) -> usize {
        let of_blocks = self.of_blocks(reader);
        of_blocks.iter().map(|rows| rows.iter().filter(|row| row.is_none()).count()).sum()
    }

    /// The permitted passages by their scores, and the exact scores of a query.
    fn scored(&self, reader: &Arc<MultiVectorReader>, query: &TokenVectors, permitted: &Permitted) -> Vec<Scored> {
        let tokens: Vec<&[f32]> = query.rows().collect();
        let lanes = tokens.len().next_multiple_of(LANES);
        let scores = self.centroids.scores(&Queries::of(&tokens));
        let mut of_centroids = vec![0.0_f32; self.centroids.count() * lanes];
        for (token, scores) in scores.chunks_exact(self.centroids.count().max(1)).enumerate() {
            scores.iter().enumerate().for_each(|(centroid, score)| of_centroids[centroid * lanes + token] = *score);
        }
        let mut greatest = vec![0.0_f32; lanes];
        let of_blocks = self.of_blocks(reader);
        let mut found = Vec::with_capacity(reader.searched(permitted));
        for (at, (block, centroids)) in (0_u32..).zip(reader.blocks.iter().zip(&*of_blocks)) {
            for (row, ((_, chunk), centroids)) in (0_u32..).zip(block.rows.iter().zip(&**centroids)) {
                if !permitted.has(chunk) {
                    continue;
                }
                let score = match centroids {
                    None => f32::INFINITY,
                    Some(centroids) => mean_of_greatest(centroids, &of_centroids, &mut greatest, tokens.len()),
                };
                found.push(Scored { score, block: at, row });
            }
        }
        found
    }

    /// The best of the permitted passages, as far as the gap allows, and the number of those that were scored exactly.
    fn search(
        &self,
        reader: &Arc<MultiVectorReader>,
        query: &TokenVectors,
        top: usize,
        permitted: &Permitted,
        gap: f32,
    ) -> (Vec<Hit>, usize) {
        let mut order = BinaryHeap::from(self.scored(reader, query, permitted));
        let query = Quantized::of(query);
        let (mut best, mut count) = (Best::new(top), 0);
        while let Some(Scored { score, block, row }) = order.pop() {
            if count >= top && score < best.threshold() - gap {
                break;
            }
            let (codes, chunk) = &reader.blocks[block as usize].rows[row as usize];
            best.offer(query.max_sim(codes), chunk);
            count += 1;
        }
        (best.into_hits(), count)
    }

    /// Chooses a gap that finds the wanted share of the best passages, and measures it.
    fn choose_gap(&mut self, reader: &Arc<MultiVectorReader>, queries: &[TokenVectors], wanted: f32) {
        let queries: Vec<&TokenVectors> = queries.iter().collect();
        let exact = search(reader, &queries, MEASURED, &Permitted::All);
        let mut gaps: Vec<f32> = Vec::new();
        for (query, hits) in queries.iter().zip(&exact) {
            let Some(worst) = hits.last().map(|hit| hit.score) else { continue };
            let wanted: HashSet<*const _> = hits.iter().map(|hit| Arc::as_ptr(&hit.chunk)).collect();
            let scored = self.scored(reader, query, &Permitted::All).into_iter();
            let is_wanted = |scored: &Scored| {
                wanted.contains(&Arc::as_ptr(&reader.blocks[scored.block as usize].rows[scored.row as usize].1))
            };
            gaps.extend(scored.filter(is_wanted).map(|scored| worst - scored.score));
        }
        gaps.sort_unstable_by(f32::total_cmp);
        // What is found meanwhile is no better than the worst of the best, so a smaller gap than that of this share may be
        // enough.
        let (mut low, mut high) = (0, gaps.len());
        while low < high {
            let middle = (low + high) / 2;
            self.measure(reader, &queries, &exact, gaps.get(middle));
            if self.recall >= wanted { high = middle } else { low = middle + 1 }
        }
        self.measure(reader, &queries, &exact, gaps.get(low));
    }

    /// Sets the gap, and measures the recall with it and how many passages are scored.
    fn measure(
        &mut self,
        reader: &Arc<MultiVectorReader>,
        queries: &[&TokenVectors],
        exact: &[Vec<Hit>],
        gap: Option<&f32>,
    ) {
        self.gap = gap.copied().unwrap_or(f32::INFINITY);
        let (mut shared, mut scored) = (0, 0);
        for (query, exact) in queries.iter().zip(exact) {
            let (found, count) = self.search(reader, query, MEASURED, &Permitted::All, self.gap);
            let is_found = |hit: &&Hit| found.iter().any(|other| Arc::ptr_eq(&other.chunk, &hit.chunk));
            shared += exact.iter().filter(is_found).count();
            scored += count;
        }
        let all: usize = exact.iter().map(Vec::len).sum();
        self.recall = if all == 0 { 1.0 } else { shared as f32 / all as f32 };
        self.scored = scored.div_ceil(queries.len().max(1));
    }
}

/// The mean, over the query's tokens, of the greatest score of a centroid. `greatest` is a buffer.
fn mean_of_greatest(centroids: &[u16], of_centroids: &[f32], greatest: &mut [f32], tokens: usize) -> f32 {
    greatest.fill(f32::NEG_INFINITY);
    for centroid in centroids {
        let scores = &of_centroids[usize::from(*centroid) * greatest.len()..][..greatest.len()];
        let (greatest, _) = greatest.as_chunks_mut::<LANES>();
        let (scores, _) = scores.as_chunks::<LANES>();
        for (greatest, scores) in greatest.iter_mut().zip(scores) {
            (0..LANES).for_each(|lane| {
                greatest[lane] = if scores[lane] > greatest[lane] { scores[lane] } else { greatest[lane] }
            });
        }
    }
    // A passage without tokens has the score 0, as in the exact search.
    if centroids.is_empty() || tokens == 0 { 0.0 } else { greatest[..tokens].iter().sum::<f32>() / tokens as f32 }
}

/// The approximate index of one late-interaction index.
pub(super) struct Approximate {
    /// Wanted share of the best passages.
    recall: f32,
    background: Arc<Background<Learned, TokenVectors>>,
}

impl Approximate {
    pub fn new(recall: f32) -> Self {
        Self { recall, background: Arc::default() }
    }

    /// The recall, the number of passages, and how many of them a search scores exactly; `None` until it is made.
    pub fn measured(&self) -> Option<(f32, usize, usize)> {
        let made = self.background.made()?;
        Some((made.recall, made.passages, made.scored))
    }

    /// The best permitted passages for each query. Exact until the centroids are learned.
    pub fn search(
        &self,
        reader: &Arc<MultiVectorReader>,
        queries: &[&TokenVectors],
        top: usize,
        permitted: &Permitted,
    ) -> Vec<Vec<Hit>> {
        let are_enough = self.background.keep(queries);
        let learned = self.background.made();
        if are_enough && learned.as_ref().is_none_or(|learned| learned.is_old()) {
            self.learn(reader);
        }
        let Some(learned) = learned else { return search(reader, queries, top, permitted) };
        if learned.outside(reader) > OUTSIDE {
            let (learned, reader) = (learned.clone(), reader.clone());
            self.background.work("centroids", move |_| {
                learned.look_up(&reader);
                None
            });
        }
        queries.iter().map(|query| learned.search(reader, query, top, permitted, learned.gap).0).collect()
    }

    fn learn(&self, reader: &Arc<MultiVectorReader>) {
        let (reader, recall) = (reader.clone(), self.recall);
        self.background.work("centroids", move |queries| {
            let begun = Instant::now();
            let learned = Learned::of(&reader, &queries, recall)?;
            tracing::info!(
                passages = learned.passages,
                centroids = learned.centroids.count(),
                scored = learned.scored,
                recall = learned.recall,
                queries = queries.len(),
                seconds = begun.elapsed().as_secs_f64(),
                "the approximate index is made"
            );
            Some(learned)
        });
    }
}

#[cfg(test)]
mod tests;
