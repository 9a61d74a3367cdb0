//! Divides the search of a large index among the processor's cores.

use std::ops::Range;

use crate::cores::cores;

/// Passages that make another thread worth its start.
const LEAST: usize = if cfg!(test) { 300 } else { 100_000 };

/// A part of a segment: its number, and a range of tantivy's numbers of passages.
pub(super) type Region = (usize, Range<u32>);

/// Number of threads for a search among this many passages.
pub(super) fn threads(passages: usize) -> usize {
    match passages / LEAST {
        0 | 1 => 1,
        worth => worth.min(cores()),
    }
}

/// Divides segments of these sizes into equal shares.
pub(super) fn shares(sizes: &[usize], threads: usize) -> Vec<Vec<Region>> {
    let size = sizes.iter().sum::<usize>().div_ceil(threads.max(1)).max(1);
    let mut shares = vec![Vec::new()];
    let mut room = size;
    for (segment, &passages) in sizes.iter().enumerate() {
        let mut from = 0;
        while from < passages {
            if room == 0 {
                shares.push(Vec::new());
                room = size;
            }
            let to = passages.min(from + room);
            if let Some(share) = shares.last_mut() {
                share.push((segment, from as u32..to as u32));
            }
            room -= to - from;
            from = to;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_passage_once() {
        for sizes in [vec![], vec![0], vec![10], vec![3, 0, 7, 1], vec![1, 1, 1], vec![100, 1, 50]] {
            for threads in [1, 2, 3, 8] {
                let shares = shares(&sizes, threads);
                assert!(shares.len() <= threads, "{shares:?}");
                let mut all: Vec<(usize, u32)> = Vec::new();
                for (segment, range) in shares.iter().flatten() {
                    all.extend(range.clone().map(|number| (*segment, number)));
                }
                let expected = sizes
                    .iter()
                    .enumerate()
                    .flat_map(|(segment, size)| (0..*size as u32).map(move |number| (segment, number)));
                assert_eq!(all, expected.collect::<Vec<_>>());
            }
        }
        assert_eq!(shares(&[5, 5], 3).iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!((threads(0), threads(LEAST)), (1, 1));
    }
}
