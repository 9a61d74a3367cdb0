//! The passages whose scores are known up to an error, of which the best are wanted.

/// A passage that may be among the best of a query.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Bounds of its exact score.
    least: f32,
    most: f32,
    block: u32,
    row: u32,
}

/// The passages that may be among the best of a query.
pub(crate) struct Candidates {
    top: usize,
    all: Vec<Candidate>,
    /// Number of candidates before those that are ruled out are dropped.
    limit: usize,
    /// A score that enough passages reach.
    reached: f32,
}

/// Candidates beyond twice the number of wanted passages before those that are ruled out are dropped first.
const SPARE: usize = 256;

impl Candidates {
    pub fn new(top: usize) -> Self {
        Self { top, all: Vec::new(), limit: 2 * top + SPARE, reached: f32::NEG_INFINITY }
    }

    /// A score that as many passages as are wanted are known to reach. A passage whose score is lower is ruled out.
    pub fn known(&self) -> f32 {
        self.reached
    }

    /// Adds the passage in a row of a block. Its exact score differs from `score` by no more than `difference`; if one of
    /// them is no number, it is not ruled out.
    pub fn add(&mut self, (score, difference): (f32, f32), (block, row): (usize, usize)) {
        let least = score - difference;
        let least = if least.is_nan() { f32::NEG_INFINITY } else { least };
        let most = score + difference;
        self.all.push(Candidate { least, most, block: block as u32, row: row as u32 });
        if self.all.len() >= self.limit {
            self.drop_ruled_out();
            // Where many passages are equally good, few can be ruled out, and each attempt reads them all.
            self.limit = self.limit.max(2 * self.all.len());
        }
    }

    /// As [`Candidates::known`], after looking at what was added since. Negative infinity if there are fewer passages.
    pub fn reached(&mut self) -> f32 {
        if self.all.len() > 2 * self.top {
            self.drop_ruled_out();
        }
        self.reached
    }

    fn drop_ruled_out(&mut self) {
        if self.all.len() <= self.top {
            return;
        }
        let (_, last, _) = self.all.select_nth_unstable_by(self.top - 1, |a, b| b.least.total_cmp(&a.least));
        self.reached = self.reached.max(last.least);
        let reached = self.reached;
        self.all.retain(|candidate| candidate.most >= reached || candidate.most.is_nan());
    }

    /// The block and the row of each passage that is not ruled out.
    pub fn into_rows(mut self) -> impl Iterator<Item = (usize, usize)> {
        self.drop_ruled_out();
        self.all.into_iter().map(|candidate| (candidate.block as usize, candidate.row as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where all passages are equally good, an attempt to rule some out reads them all.
    #[test]
    fn equal_passages_are_looked_at_few_times() {
        let mut candidates = Candidates::new(10);
        let mut limits = Vec::new();
        for row in 0..40_000 {
            candidates.add((0.5, 0.01), (0, row));
            limits.push(candidates.limit);
        }
        limits.dedup();
        assert!(limits.len() < 12, "{limits:?}");
        assert_eq!(candidates.into_rows().count(), 40_000);
    }

    #[test]
    fn only_scores_that_cannot_be_among_the_best_are_ruled_out() {
        let mut candidates = Candidates::new(2);
        let scores = [(0.9, 0.1), (0.5, 0.0), (0.7, 0.1), (0.4, 0.05), (0.45, 0.2), (f32::NAN, 0.0)];
        scores.into_iter().enumerate().for_each(|(row, score)| candidates.add(score, (row / 2, row % 2)));
        let mut rows: Vec<_> = candidates.into_rows().collect();
        rows.sort_unstable();
        assert_eq!(rows, [(0, 0), (1, 0), (2, 0), (2, 1)]);
    }
}
