//! An approximate index: passages in lists by the nearest of some centroids; a search reads the lists whose centroids are
//! nearest to the query (Sivic and Zisserman 2003; Jégou et al. 2011, section 4, with 8-bit codes and exact rescoring).
//!
//! It is made in the background from the passages of one epoch, and serves all epochs. A passage that is new or edited
//! since then is compared exactly, beside the lists; one that is deleted is skipped. If more than a tenth is new, it is
//! made again.
//!
//! A search reads the lists in the order of their centroids, and ends at one whose centroid is worse than what it has found
//! by more than a gap. The gap is measured when the index is made: the least that finds the wanted share of the best ten
//! passages, for the newest queries of the corpus. While there have been few queries, the search is exact.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use turnflow_engine::component::Permitted;
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::Vector;
use turnflow_engine::record::Hit;

use super::codes::{self, Candidates, Codes, Queries};
use super::index::{DenseReader, ROWS, search};
use crate::content::{Best, Block, dot};

/// Queries that are kept to measure the recall with, and the fewest to measure it with.
const KEPT: usize = 256;
const FEWEST: usize = 64;
/// Passages that a centroid is learned from, and rounds of learning.
const LEARNED_FROM: usize = 32;
const ROUNDS: usize = 6;
/// Lists are sorted for so many times as many as are mostly read.
const AHEAD: usize = 2;
/// The recall is measured for this many passages.
const MEASURED: usize = 10;

/// Identifies a passage's content among those that had its number.
fn content(hash: ContentHash) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| hash.0[at]))
}

/// Passages near a centroid.
#[derive(Default)]
struct List {
    codes: Codes,
    /// The number and the content of each.
    members: Vec<(u32, u64)>,
}

/// The lists, made from one epoch.
pub(super) struct Lists {
    centroids: Codes,
    /// Half of the square of each centroid's length.
    halves: Vec<f32>,
    lists: Vec<List>,
    /// The content of each passage in a list, by its number in the corpus.
    contents: Vec<Option<u64>>,
    passages: usize,
    /// A search ends at a list whose centroid's score is less than the worst wanted one by more than this.
    gap: f32,
    /// Mean number of lists that a search reads.
    pub read: usize,
    /// Share of the best ten passages that this finds.
    pub recall: f32,
    outside: Mutex<Outside>,
}

type OneBlock = Block<Vector, Codes>;
/// Block and row of some passages.
type Rows = Arc<Vec<(u32, u32)>>;

/// The passages that are in no list: by block, and of the newest reader that was searched.
#[derive(Default)]
struct Outside {
    of_blocks: HashMap<*const OneBlock, (Weak<OneBlock>, Vec<u32>)>,
    newest: Option<(Weak<DenseReader>, Rows)>,
}

// SAFETY: the pointers are only compared. The weak reference beside each keeps its address from being used again.
unsafe impl Send for Outside {}

impl Lists {
    /// Makes the lists. `queries` are to measure the recall with. `None` if there are no passages with a number.
    fn of(reader: &DenseReader, queries: &[Vector], wanted: f32) -> Option<Self> {
        let rows: Vec<(&Vector, &Arc<Chunk>, u32)> = reader
            .blocks
            .iter()
            .flat_map(|block| &block.rows)
            .filter_map(|(vector, chunk)| Some((vector, chunk, chunk.place.get()?)))
            .collect();
        let count = (2.0 * (rows.len() as f64).sqrt()) as usize;
        if count == 0 {
            return None;
        }
        let vectors: Vec<&[f32]> = rows.iter().map(|(vector, ..)| &***vector).collect();
        let centroids = learn(&vectors, count.min(rows.len()));
        let halves = halves(&centroids);
        let centroids = Codes::of(centroids.iter().map(|centroid| &**centroid));
        let nearest = nearest(&vectors, &centroids, &halves);
        let mut of_lists = vec![Vec::new(); halves.len()];
        nearest.iter().zip(0_u32..).for_each(|(list, row)| of_lists[*list as usize].push(row));
        let largest = rows.iter().map(|(_, _, number)| *number as usize + 1).max().unwrap_or_default();
        let mut contents = vec![None; largest];
        let list = |of_list: Vec<u32>| {
            let of_list: Vec<_> = of_list.into_iter().map(|row| rows[row as usize]).collect();
            let member = |(_, chunk, number): &(&Vector, &Arc<Chunk>, u32)| (*number, content(chunk.hash));
            let members: Vec<(u32, u64)> = of_list.iter().map(member).collect();
            members.iter().for_each(|(number, content)| contents[*number as usize] = Some(*content));
            List { codes: Codes::of(of_list.iter().map(|(vector, ..)| &***vector)), members }
        };
        let lists: Vec<List> = of_lists.into_iter().map(list).collect();
        let passages = rows.len();
        let (gap, read, recall, outside) = (f32::INFINITY, lists.len(), 1.0, Mutex::default());
        let mut this = Self { centroids, halves, lists, contents, passages, gap, read, recall, outside };
        let list_of: HashMap<u32, u32> =
            rows.iter().zip(&nearest).map(|((_, _, number), list)| (*number, *list)).collect();
        this.choose_gap(reader, queries, wanted, &list_of);
        Some(this)
    }

    /// Chooses the least gap that finds the wanted share of the best passages. `list_of`: by number in the corpus.
    fn choose_gap(&mut self, reader: &DenseReader, queries: &[Vector], wanted: f32, list_of: &HashMap<u32, u32>) {
        let queries: Vec<&Vector> = queries.iter().collect();
        let exact = search(reader, &queries, MEASURED, &Permitted::All);
        let mut gaps: Vec<f32> = Vec::new();
        for (query, hits) in queries.iter().zip(&exact) {
            let near = self.near(&Queries::new(&[query]));
            let Some(worst) = hits.last().map(|hit| hit.score) else { continue };
            let list = |hit: &Hit| hit.chunk.place.get().and_then(|number| list_of.get(&number)).copied();
            gaps.extend(hits.iter().filter_map(list).map(|list| worst - near[list as usize]));
        }
        gaps.sort_unstable_by(f32::total_cmp);
        // What a search has found is known by bounds, so it ends later than it could: a smaller gap may be enough.
        let (mut low, mut high) = (0, (gaps.len() as f32 * wanted).ceil() as usize);
        while low < high {
            let middle = (low + high) / 2;
            self.gap = gaps.get(middle).copied().unwrap_or(f32::INFINITY);
            self.measure(reader, &queries, &exact);
            if self.recall >= wanted { high = middle } else { low = middle + 1 }
        }
        self.gap = gaps.get(low).copied().unwrap_or(f32::INFINITY);
        self.measure(reader, &queries, &exact);
    }

    /// Measures the recall, and how many lists are read.
    fn measure(&mut self, reader: &DenseReader, queries: &[&Vector], exact: &[Vec<Hit>]) {
        let (mut shared, mut read) = (0, 0);
        for (query, exact) in queries.iter().zip(exact) {
            let (found, lists) = self.search(reader, query, MEASURED, &Permitted::All, self.gap, &[]);
            let is_found = |hit: &&Hit| found.iter().any(|other| Arc::ptr_eq(&other.chunk, &hit.chunk));
            shared += exact.iter().filter(is_found).count();
            read += lists;
        }
        let all: usize = exact.iter().map(Vec::len).sum();
        self.recall = if all == 0 { 1.0 } else { shared as f32 / all as f32 };
        self.read = read.div_ceil(queries.len().max(1)).max(1);
    }

    /// The score of each centroid, by codes.
    fn near(&self, query: &Queries) -> Vec<f32> {
        let (mut products, count) = (Vec::new(), self.halves.len());
        query.products(&self.centroids, 0, count.next_multiple_of(codes::ROWS), &mut products);
        let score = |(product, scale): (&i32, &f32)| query.bounds[0].of(*product, *scale, 0.0, 0.0).0;
        products[..count].iter().zip(&self.centroids.scales).map(score).collect()
    }

    /// The passages of a reader that are in no list. Cost: the blocks, and the rows of those that have changed.
    pub fn outside(&self, reader: &Arc<DenseReader>) -> Rows {
        let mut outside = self.outside.lock();
        if let Some((newest, rows)) = &outside.newest
            && std::ptr::eq(newest.as_ptr(), Arc::as_ptr(reader))
        {
            return rows.clone();
        }
        let mut rows = Vec::new();
        for (at, block) in (0_u32..).zip(&reader.blocks) {
            let of_block = outside.of_blocks.entry(Arc::as_ptr(block)).or_insert_with(|| {
                let is_outside = |(_, chunk): &(Vector, Arc<Chunk>)| {
                    let number = chunk.place.get().and_then(|number| self.contents.get(number as usize));
                    number.copied().flatten() != Some(content(chunk.hash))
                };
                let rows = (0_u32..).zip(&block.rows).filter(|(_, row)| is_outside(row)).map(|(row, _)| row);
                (Arc::downgrade(block), rows.collect())
            });
            rows.extend(of_block.1.iter().map(|row| (at, *row)));
        }
        if outside.of_blocks.len() > 2 * reader.blocks.len() {
            outside.of_blocks.retain(|_, (block, _)| block.strong_count() > 0);
        }
        let rows = Arc::new(rows);
        outside.newest = Some((Arc::downgrade(reader), rows.clone()));
        rows
    }

    /// The recall, the number of lists, and the mean number of lists that a search reads.
    pub fn measured(&self) -> (f32, usize, usize) {
        (self.recall, self.lists.len(), self.read)
    }

    /// Whether so much has changed that new lists are worth their cost.
    fn is_old(&self, reader: &Arc<DenseReader>) -> bool {
        let changed = self.outside(reader).len() + self.passages.saturating_sub(reader.passages());
        changed > self.passages / 10 + 1000
    }

    /// The best of the passages in the lists nearest to the query, up to a gap, and of those in no list; and how many lists
    /// were read.
    fn search(
        &self,
        reader: &DenseReader,
        query: &Vector,
        top: usize,
        permitted: &Permitted,
        gap: f32,
        outside: &[(u32, u32)],
    ) -> (Vec<Hit>, usize) {
        let coded = Queries::new(&[query]);
        let bound = coded.bounds[0];
        let near = self.near(&coded);
        let mut order: Vec<u32> = (0..near.len() as u32).collect();
        let by_score = |a: &u32, b: &u32| near[*b as usize].total_cmp(&near[*a as usize]).then(a.cmp(b));
        let mut candidates = Candidates::new(top);
        let (mut products, mut read, mut sorted) = (Vec::new(), 0, 0);
        while read < order.len() {
            if read == sorted {
                // Mostly, the first of them are enough.
                sorted = (sorted + AHEAD * self.read).min(order.len());
                if sorted < order.len() {
                    order[read..].select_nth_unstable_by(sorted - read, by_score);
                }
                order[read..sorted].sort_unstable_by(by_score);
            }
            let list = order[read] as usize;
            if near[list] < candidates.reached() - gap {
                break;
            }
            read += 1;
            let List { codes, members } = &self.lists[list];
            let may = |row: usize| current(reader, members[row]).is_some_and(|(_, chunk)| permitted.has(chunk));
            for from in (0..members.len()).step_by(ROWS) {
                let count = (members.len() - from).min(ROWS).next_multiple_of(codes::ROWS);
                coded.products(codes, from, count, &mut products);
                candidates.look(bound, codes, (list, from), &products, may);
            }
        }
        let mut best = Best::new(top);
        for (list, row) in candidates.into_rows() {
            if let Some((vector, chunk)) = current(reader, self.lists[list].members[row]) {
                best.offer(dot(query, vector), chunk);
            }
        }
        for (block, row) in outside {
            let (vector, chunk) = &reader.blocks[*block as usize].rows[*row as usize];
            if permitted.has(chunk) {
                best.offer(dot(query, vector), chunk);
            }
        }
        (best.into_hits(), read)
    }
}

/// The passage of an epoch with this number, if it has this content.
fn current(reader: &DenseReader, (number, of): (u32, u64)) -> Option<&(Vector, Arc<Chunk>)> {
    reader.numbered(number).filter(|(_, chunk)| content(chunk.hash) == of)
}

fn halves(centroids: &[Vec<f32>]) -> Vec<f32> {
    centroids.iter().map(|centroid| dot(centroid, centroid) / 2.0).collect()
}

/// The nearest centroid of each vector, by codes.
fn nearest(vectors: &[&[f32]], centroids: &Codes, halves: &[f32]) -> Vec<u32> {
    let mut found = Vec::with_capacity(vectors.len());
    let mut products = Vec::new();
    for part in vectors.chunks(ROWS) {
        let coded = Queries::of(part);
        let mut best = vec![(f32::NEG_INFINITY, 0_u32); part.len()];
        for from in (0..halves.len()).step_by(ROWS) {
            let count = (halves.len() - from).min(ROWS).next_multiple_of(codes::ROWS);
            coded.products(centroids, from, count, &mut products);
            let of_parts = products.chunks_exact(count).zip(&coded.bounds).zip(&mut best);
            for ((products, bound), best) in of_parts {
                let centroids = (from..).zip(products).zip(&centroids.scales[from..]).zip(&halves[from..]);
                for (((at, product), scale), half) in centroids {
                    let near = bound.of(*product, *scale, 0.0, 0.0).0 - half;
                    if near > best.0 {
                        *best = (near, at as u32);
                    }
                }
            }
        }
        found.extend(best.into_iter().map(|(_, at)| at));
    }
    found
}

/// Learns centroids from some of the vectors, spread over all of them (k-means, Lloyd 1982).
fn learn(vectors: &[&[f32]], count: usize) -> Vec<Vec<f32>> {
    let step = (vectors.len() / (count * LEARNED_FROM).max(1)).max(1);
    let sample: Vec<&[f32]> = vectors.iter().step_by(step).copied().collect();
    let spread = |at: usize| sample[at * sample.len() / count].to_vec();
    let mut centroids: Vec<Vec<f32>> = (0..count).map(spread).collect();
    for _ in 0..ROUNDS {
        let coded = Codes::of(centroids.iter().map(|centroid| &**centroid));
        let nearest = nearest(&sample, &coded, &halves(&centroids));
        let mut sums = vec![(vec![0.0_f32; sample[0].len()], 0_usize); count];
        for (vector, at) in sample.iter().zip(nearest) {
            let (sum, members) = &mut sums[at as usize];
            sum.iter_mut().zip(*vector).for_each(|(sum, value)| *sum += value);
            *members += 1;
        }
        for ((at, centroid), (sum, members)) in centroids.iter_mut().enumerate().zip(sums) {
            // A centroid without members becomes one of the vectors.
            *centroid = match members {
                0 => sample[(at * 7919 + members) % sample.len()].to_vec(),
                _ => sum.into_iter().map(|value| value / members as f32).collect(),
            };
        }
    }
    centroids
}

/// The approximate index of one dense index: its lists, when they are made, and the newest queries.
pub(super) struct Approximate {
    /// Wanted share of the best passages.
    recall: f32,
    lists: RwLock<Option<Arc<Lists>>>,
    is_making: AtomicBool,
    queries: Mutex<VecDeque<Vector>>,
}

impl Approximate {
    pub fn new(recall: f32) -> Self {
        let (lists, is_making, queries) = (RwLock::default(), AtomicBool::default(), Mutex::default());
        Self { recall, lists, is_making, queries }
    }

    /// The lists, if they are made.
    pub fn lists(&self) -> Option<Arc<Lists>> {
        self.lists.read().clone()
    }

    /// The best permitted passages for each query. Exact until the lists are made.
    pub fn search(
        self: &Arc<Self>,
        reader: &Arc<DenseReader>,
        queries: &[&Vector],
        top: usize,
        permitted: &Permitted,
    ) -> Vec<Vec<Hit>> {
        let known = {
            let mut kept = self.queries.lock();
            kept.extend(queries.iter().copied().cloned());
            let surplus = kept.len().saturating_sub(KEPT);
            kept.drain(..surplus);
            kept.len()
        };
        let lists = self.lists();
        if known >= FEWEST && lists.as_ref().is_none_or(|lists| lists.is_old(reader)) {
            self.make(reader);
        }
        // Where much is in no list, an exact search by codes is faster.
        let Some(lists) = lists.filter(|lists| !lists.is_old(reader)) else {
            return search(reader, queries, top, permitted);
        };
        // The fewer passages are permitted, the more lists it takes to find as many of them.
        let (passages, permitted_ones) = (reader.passages(), reader.searched(permitted));
        let reads = lists.read.saturating_mul(passages).div_ceil(permitted_ones.max(1));
        if reads >= lists.lists.len() {
            return search(reader, queries, top, permitted);
        }
        let outside = lists.outside(reader);
        let one = |query: &&Vector| lists.search(reader, query, top, permitted, lists.gap, &outside).0;
        queries.iter().map(one).collect()
    }

    /// Makes the lists on a thread of its own, unless they are being made.
    fn make(self: &Arc<Self>, reader: &Arc<DenseReader>) {
        if self.is_making.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, reader) = (self.clone(), reader.clone());
        let made = std::thread::Builder::new().name("ivf".to_owned()).spawn(move || {
            // Also after a panic, which leaves the search exact.
            let _end = End(&this.is_making);
            let begun = Instant::now();
            let queries: Vec<Vector> = this.queries.lock().iter().cloned().collect();
            let Some(lists) = Lists::of(&reader, &queries, this.recall) else { return };
            tracing::info!(
                passages = lists.passages,
                lists = lists.lists.len(),
                read = lists.read,
                recall = lists.recall,
                queries = queries.len(),
                seconds = begun.elapsed().as_secs_f64(),
                "the approximate index is made"
            );
            *this.lists.write() = Some(Arc::new(lists));
        });
        if let Err(error) = made {
            tracing::warn!(%error, "the approximate index cannot be made: the search is exact");
            self.is_making.store(false, Ordering::Release);
        }
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
