//! The lists of an approximate index.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use turnflow_engine::component::Permitted;
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::Vector;
use turnflow_engine::record::Hit;

use super::super::codes::{self, Codes, Queries};
use super::super::index::{DenseReader, search};
use super::bits::{self, Bits, Tables};
use super::rotation::Rotation;
use crate::content::{Best, Block, Candidates, dot};
use crate::kmeans::{Centroids, learn};

/// Lists are sorted for so many times as many as are mostly read.
const AHEAD: usize = 2;
/// The recall is measured for this many passages.
const MEASURED: usize = 10;
/// A vector is passed over if its score by 1-bit code is too low by more than so many standard deviations.
const DEVIATIONS: f32 = 2.0;

/// Identifies a passage's content among those that had its number.
fn content(hash: ContentHash) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| hash.0[at]))
}

/// Passages near a centroid.
#[derive(Default)]
struct List {
    bits: Bits,
    codes: Codes,
    /// The number and the content of each.
    members: Vec<(u32, u64)>,
}

/// The lists, made from one epoch.
pub(in crate::dense) struct Lists {
    centroids: Centroids,
    rotation: Rotation,
    lists: Vec<List>,
    /// The content of each passage in a list, by its number in the corpus.
    contents: Vec<Option<u64>>,
    pub passages: usize,
    /// A search ends at a list whose centroid's score is less than the worst wanted one by more than this.
    pub gap: f32,
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
    pub fn of(reader: &DenseReader, queries: &[Vector], wanted: f32) -> Option<Self> {
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
        let nearest = centroids.nearest(&vectors);
        let mut of_lists = vec![Vec::new(); centroids.count()];
        nearest.iter().zip(0_u32..).for_each(|(list, row)| of_lists[*list as usize].push(row));
        let rotation = Rotation::new(vectors[0].len());
        let list = |(list, of_list): &(usize, Vec<u32>)| {
            let of_list: Vec<_> = of_list.iter().map(|row| rows[*row as usize]).collect();
            let member = |(_, chunk, number): &(&Vector, &Arc<Chunk>, u32)| (*number, content(chunk.hash));
            let vectors = || of_list.iter().map(|(vector, ..)| &***vector);
            let centroid: Vec<f32> = centroids.codes.values(*list).take(rotation.dimension()).collect();
            let bits = Bits::of(vectors(), &centroid, &rotation);
            List { bits, codes: Codes::of(vectors()), members: of_list.iter().map(member).collect() }
        };
        let of_lists: Vec<(usize, Vec<u32>)> = of_lists.into_iter().enumerate().collect();
        let lists: Vec<List> = of_lists.iter().map(list).collect();
        let largest = rows.iter().map(|(_, _, number)| *number as usize + 1).max().unwrap_or_default();
        let mut contents = vec![None; largest];
        let members = lists.iter().flat_map(|list| &list.members);
        members.for_each(|(number, content)| contents[*number as usize] = Some(*content));
        let passages = rows.len();
        let (gap, read, recall, outside) = (f32::INFINITY, lists.len(), 1.0, Mutex::default());
        let mut this = Self { centroids, rotation, lists, contents, passages, gap, read, recall, outside };
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
            let near = self.centroids.scores(&Queries::new(&[query]));
            let Some(worst) = hits.last().map(|hit| hit.score) else { continue };
            let list = |hit: &Hit| hit.chunk.place.get().and_then(|number| list_of.get(&number)).copied();
            gaps.extend(hits.iter().filter_map(list).map(|list| worst - near[list as usize]));
        }
        gaps.sort_unstable_by(f32::total_cmp);
        // What a search has found is known by bounds, so it ends later than it could: a smaller gap may be enough.
        let (mut low, mut high) = (0, gaps.len());
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

    /// Number of lists.
    pub fn count(&self) -> usize {
        self.lists.len()
    }

    /// The recall, the number of lists, and the mean number of lists that a search reads.
    pub fn measured(&self) -> (f32, usize, usize) {
        (self.recall, self.lists.len(), self.read)
    }

    /// Whether so much has changed that new lists are worth their cost.
    pub fn is_old(&self, reader: &Arc<DenseReader>) -> bool {
        let changed = self.outside(reader).len() + self.passages.saturating_sub(reader.passages());
        changed > self.passages / 10 + 1000
    }

    /// The best of the passages in the lists nearest to the query, up to a gap, and of those in no list; and how many lists
    /// were read.
    pub fn search(
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
        let tables = Tables::new(query, &self.rotation);
        // A search without a limit reads everything.
        let margin = if gap == f32::INFINITY { gap } else { DEVIATIONS * dot(query, query).sqrt() };
        let near = self.centroids.scores(&coded);
        let mut order: Vec<u32> = (0..near.len() as u32).collect();
        let by_score = |a: &u32, b: &u32| near[*b as usize].total_cmp(&near[*a as usize]).then(a.cmp(b));
        let mut candidates = Candidates::new(top);
        let (mut read, mut sorted) = (0, 0);
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
            let List { bits, codes, members } = &self.lists[list];
            for group in 0..members.len().div_ceil(bits::ROWS) {
                let mut kept = bits.kept(group, &tables, near[list], margin, candidates.known());
                while kept != 0 {
                    let row = group * bits::ROWS + kept.trailing_zeros() as usize;
                    kept &= kept - 1;
                    let Some(member) = members.get(row) else { break };
                    let may = || current(reader, *member).is_some_and(|(_, chunk)| permitted.has(chunk));
                    codes::look_at(&mut candidates, bound, codes, (list, row), coded.product(codes, row), may);
                }
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
