//! Finds the best passages without scoring all of them (MaxScore: Turtle and Flood 1995; by windows, with bounds of
//! blocks: Ding and Suel 2011, and Lucene 9).
//!
//! A segment is read in windows of passages. In each window, the terms whose scores together cannot reach the worst of
//! the best passages so far are not read: their postings are only looked up for passages that other terms have found.
//! A window that cannot contain a better passage is not read at all.
//!
//! The result is that of scoring every passage, to the bit: a passage's terms are always summed in one order, the
//! greatest weight first, and bounds allow for rounding.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use tantivy::fastfield::AliveBitSet;
use tantivy::postings::BlockSegmentPostings;
use turnflow_engine::component::Permitted;
use turnflow_engine::document::Chunk;

use super::score::Formula;
use super::terms::Bounds;
use crate::content::Best;

/// Passages in a window. Their sums fit into the processor's first cache.
const WINDOW: u32 = 2048;
/// A sum of bounds is raised by this share for each term, which is more than rounding can take from it.
const ROUNDING: f64 = 2e-7;

/// A term of the question in a segment.
pub(super) struct Cursor {
    postings: BlockSegmentPostings,
    /// Where in the current block of postings.
    at: usize,
    bounds: Arc<Bounds>,
    /// The first block of bounds that may reach the window.
    block: usize,
    /// The block whose bound was computed last, and the bound.
    bound: Option<(usize, f32)>,
    weight: f32,
}

impl Cursor {
    pub fn new(postings: BlockSegmentPostings, bounds: Arc<Bounds>, weight: f32) -> Self {
        Self { postings, at: 0, bounds, block: 0, bound: None, weight }
    }

    /// The greatest score in the window; 0 if the term does not occur there.
    fn bound(&mut self, formula: &Formula, from: u32, to: u32) -> f32 {
        let last = &self.bounds.last;
        while last.get(self.block).is_some_and(|last| *last < from) {
            self.block += 1;
        }
        let mut bound = 0.0_f32;
        let mut block = self.block;
        while block < last.len() && (block == 0 || last[block - 1] < to - 1) {
            let of_block = match self.bound {
                Some((known, bound)) if known == block => bound,
                _ => formula.bound(self.weight, self.bounds.of_block(block)),
            };
            self.bound = Some((block, of_block));
            bound = bound.max(of_block);
            block += 1;
        }
        bound
    }

    /// Moves to the first posting from this passage on. Returns it, or `None` at the end.
    fn seek(&mut self, from: u32) -> Option<u32> {
        let docs = self.postings.docs();
        match docs.last() {
            Some(last) if *last >= from => {
                let rest = docs.get(self.at..)?;
                // The next posting is often near.
                self.at += match rest.iter().take(8).position(|number| *number >= from) {
                    Some(near) => near,
                    None => rest.partition_point(|number| *number < from),
                };
            }
            Some(_) => self.at = self.postings.seek(from),
            None => return None,
        }
        self.postings.docs().get(self.at).copied()
    }

    /// Adds the scores of the window to the sums of its passages.
    fn add(&mut self, formula: &Formula, lengths: &[u32], from: u32, to: u32, sums: &mut [f32]) {
        if self.seek(from).is_none() {
            return;
        }
        loop {
            let (docs, frequencies) = (&self.postings.docs()[self.at..], &self.postings.freqs()[self.at..]);
            let inside = match docs.last() {
                Some(last) if *last < to => docs.len(),
                _ => docs.partition_point(|number| *number < to),
            };
            for (number, tf) in docs[..inside].iter().zip(&frequencies[..inside]) {
                sums[(*number - from) as usize] += formula.score(self.weight, *tf, lengths[*number as usize]);
            }
            self.at += inside;
            if inside < docs.len() {
                return;
            }
            self.postings.advance();
            self.at = 0;
            if self.postings.docs().is_empty() {
                return;
            }
        }
    }

    /// The frequency of the term in a passage.
    fn frequency(&mut self, number: u32) -> Option<u32> {
        (self.seek(number)? == number).then(|| self.postings.freq(self.at))
    }
}

/// A segment at an epoch, as a search reads it.
pub(super) struct Searched<'a> {
    /// Number of terms of each passage.
    pub lengths: &'a [u32],
    pub alive: Option<&'a AliveBitSet>,
    pub permitted: &'a Permitted,
}

/// Offers the best of a segment's passages with these numbers. `cursors` are the question's terms, the greatest weight first; every weight is
/// positive. `chunk` gives a passage by tantivy's number.
pub(super) fn search<'a>(
    segment: &Searched<'_>,
    numbers: Range<u32>,
    formula: &Formula,
    mut cursors: Vec<Cursor>,
    chunk: impl Fn(u32) -> Option<&'a Arc<Chunk>>,
    best: &mut Best<'a>,
) -> io::Result<()> {
    let Range { start: mut from, end } = numbers;
    let most = 1.0 + ROUNDING * (cursors.len() + 8) as f64;
    let mut sums = vec![0.0_f32; WINDOW as usize];
    let mut bounds = vec![0.0_f32; cursors.len()];
    while from < end {
        let to = (from + WINDOW).min(end);
        for (cursor, bound) in cursors.iter_mut().zip(&mut bounds) {
            *bound = cursor.bound(formula, from, to);
        }
        // Terms from here on cannot reach the threshold together.
        let (mut needed, mut rest) = (cursors.len(), 0.0_f64);
        let threshold = f64::from(best.threshold());
        while needed > 0 && (rest + f64::from(bounds[needed - 1])) * most < threshold {
            needed -= 1;
            rest += f64::from(bounds[needed]);
        }
        for (cursor, _) in cursors[..needed].iter_mut().zip(&bounds).filter(|(_, bound)| **bound > 0.0) {
            cursor.add(formula, segment.lengths, from, to, &mut sums);
        }
        if needed > 0 {
            let mut window = Window { segment, formula, needed, rest, most, bounds: &bounds, from };
            window.offer(&mut sums[..(to - from) as usize], &mut cursors, &chunk, best);
            sums.fill(0.0);
        }
        from = to;
    }
    Ok(())
}

/// A window whose needed terms are summed.
struct Window<'a> {
    segment: &'a Searched<'a>,
    formula: &'a Formula,
    /// Number of terms that are in the sums.
    needed: usize,
    /// Sum of the bounds of the other terms.
    rest: f64,
    most: f64,
    bounds: &'a [f32],
    from: u32,
}

impl Window<'_> {
    /// The smallest sum with which a passage may be among the best.
    fn cut(&self, best: &Best<'_>) -> f32 {
        let cut = f64::from(best.threshold()) / self.most - self.rest;
        (cut as f32 * (1.0 - 1e-6)).max(f32::from_bits(1))
    }

    fn offer<'a>(
        &mut self,
        sums: &mut [f32],
        cursors: &mut [Cursor],
        chunk: impl Fn(u32) -> Option<&'a Arc<Chunk>>,
        best: &mut Best<'a>,
    ) {
        let mut cut = self.cut(best);
        for (group, sums) in (0_u32..).zip(sums.chunks(16)) {
            // Most groups have no passage to look at.
            if !sums.iter().fold(false, |any, sum| any | (*sum >= cut)) {
                continue;
            }
            for (at, sum) in (group * 16..).zip(sums) {
                if *sum < cut {
                    continue;
                }
                let number = self.from + at;
                if self.segment.alive.is_some_and(|alive| alive.is_deleted(number)) {
                    continue;
                }
                if let Some(score) = self.complete(number, *sum, cursors, best.threshold())
                    && let Some(chunk) = chunk(number).filter(|chunk| self.segment.permitted.has(chunk))
                {
                    best.offer(score, chunk);
                    cut = self.cut(best);
                }
            }
        }
    }

    /// The whole score of a passage, unless it is below the threshold.
    fn complete(&self, number: u32, sum: f32, cursors: &mut [Cursor], threshold: f32) -> Option<f32> {
        let (mut score, mut rest) = (sum, self.rest);
        let length = self.segment.lengths[number as usize];
        for (cursor, bound) in cursors[self.needed..].iter_mut().zip(&self.bounds[self.needed..]) {
            if (f64::from(score) + rest) * self.most < f64::from(threshold) {
                return None;
            }
            rest -= f64::from(*bound);
            if *bound > 0.0
                && let Some(tf) = cursor.frequency(number)
            {
                score += self.formula.score(cursor.weight, tf, length);
            }
        }
        (score >= threshold && score > 0.0).then_some(score)
    }
}
