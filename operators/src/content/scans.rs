//! Scans of an index that are ready together run in one pass: the index is read from memory once for all of them.

use std::sync::Arc;

use turnflow_engine::component::Permitted;
use turnflow_engine::compute::MOST_ON_A_WORKER;
use turnflow_engine::record::Hit;
use turnflow_engine::together::Together;

/// Maximum number of calls in a pass.
const MOST: usize = 64;
/// The best of the permitted passages for each of the queries, at most the given number of each.
type Search<R, Q> = dyn Fn(&Arc<R>, &[&Q], usize, &Permitted) -> Vec<Vec<Hit>> + Send + Sync;

/// Scans for `top` passages.
pub(crate) struct Scans<R, Q> {
    search: Arc<Search<R, Q>>,
    top: usize,
    together: Together<Scan<R, Q>, Vec<Vec<Hit>>>,
}

/// The scan of one call.
struct Scan<R, Q> {
    reader: Arc<R>,
    queries: Arc<Vec<Q>>,
    permitted: Permitted,
}

impl<R, Q> Clone for Scan<R, Q> {
    fn clone(&self) -> Self {
        Self { reader: self.reader.clone(), queries: self.queries.clone(), permitted: self.permitted.clone() }
    }
}

impl<R: Send + Sync + 'static, Q: Send + Sync + 'static> Scans<R, Q> {
    pub fn new(
        search: impl Fn(&Arc<R>, &[&Q], usize, &Permitted) -> Vec<Vec<Hit>> + Send + Sync + 'static,
        top: usize,
    ) -> Self {
        let search: Arc<Search<R, Q>> = Arc::new(search);
        let of_pass = search.clone();
        Self { search, top, together: Together::new(MOST, move |scans| pass(&scans, &*of_pass, top)) }
    }

    /// The best passages for each of the queries, best first. `cost` is that of the scan in the units of
    /// `Operator::weight`: a small index is read at once.
    pub async fn run(&self, reader: &Arc<R>, queries: Vec<Q>, permitted: &Permitted, cost: usize) -> Vec<Vec<Hit>> {
        if cost <= MOST_ON_A_WORKER {
            return (self.search)(reader, &queries.iter().collect::<Vec<_>>(), self.top, permitted);
        }
        let (reader, queries, permitted) = (reader.clone(), Arc::new(queries), permitted.clone());
        self.together.run(Scan { reader, queries, permitted }).await
    }
}

/// Whether two scans read the same passages.
fn read_the_same<R, Q>(a: &Scan<R, Q>, b: &Scan<R, Q>) -> bool {
    let same_passages = match (a.permitted.numbers(), b.permitted.numbers()) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    same_passages && Arc::ptr_eq(&a.reader, &b.reader)
}

/// Runs the scans: one pass over each index and each selection of passages. Turns of different epochs read different
/// indexes.
fn pass<R, Q>(scans: &[Scan<R, Q>], search: &Search<R, Q>, top: usize) -> Vec<Vec<Vec<Hit>>> {
    let mut results: Vec<Vec<Vec<Hit>>> = scans.iter().map(|_| Vec::new()).collect();
    let mut done = vec![false; scans.len()];
    while let Some(first) = done.iter().position(|done| !done) {
        let of_first = &scans[first];
        let same: Vec<usize> = (first..scans.len()).filter(|&at| read_the_same(&scans[at], of_first)).collect();
        let queries: Vec<&Q> = same.iter().flat_map(|&at| scans[at].queries.iter()).collect();
        let mut lists = search(&of_first.reader, &queries, top, &of_first.permitted).into_iter();
        for at in same {
            results[at] = lists.by_ref().take(scans[at].queries.len()).collect();
            done[at] = true;
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use turnflow_engine::document::Chunk;

    use super::*;

    struct Index(&'static str);

    /// One hit: its id is that of the index, and its score the query.
    fn search(index: &Arc<Index>, queries: &[&f32], _: usize, _: &Permitted) -> Vec<Vec<Hit>> {
        let chunk = Arc::new(Chunk::new(index.0.into(), "".into(), "".into(), "".into()));
        queries.iter().map(|query| vec![Hit { chunk: chunk.clone(), score: **query }]).collect()
    }

    #[test]
    fn each_scan_gets_its_own_lists_from_its_own_index() {
        let indexes = ["old", "new"].map(|name| Arc::new(Index(name)));
        let scan = |index: usize, queries: &[f32]| Scan {
            reader: indexes[index].clone(),
            queries: Arc::new(queries.to_vec()),
            permitted: Permitted::All,
        };
        let scans = [scan(0, &[1.0, 2.0]), scan(1, &[3.0]), scan(0, &[]), scan(0, &[4.0])];
        let found: Vec<Vec<(String, f32)>> = pass(&scans, &search, 1)
            .into_iter()
            .map(|lists| lists.iter().map(|hits| (hits[0].chunk.id.to_string(), hits[0].score)).collect())
            .collect();
        let of = |index: &str, scores: &[f32]| scores.iter().map(|score| (index.to_owned(), *score)).collect();
        let expected: Vec<Vec<(String, f32)>> =
            vec![of("old", &[1.0, 2.0]), of("new", &[3.0]), of("old", &[]), of("old", &[4.0])];
        assert_eq!(found, expected);
    }
}
