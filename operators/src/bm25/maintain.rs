//! Maintenance of the inverted index: merges segments and removes unused files.
//!
//! tantivy's own merges, on its own threads, bound the number of segments: eight segments of a size become one.
//! Maintenance additionally keeps the segments few and removes deleted passages from them.

use std::time::{Duration, Instant};

use tantivy::TantivyError;
use tantivy::index::SegmentId;
use turnflow_engine::component::{DiskUsage, IndexError, Maintained, MaintenanceLimits};
use turnflow_engine::wording::count;

use super::index::{Bm25Index, store};

/// Maximum number of segments that are not worth a merge.
const SEGMENTS: usize = 4;
/// A segment is rewritten if at least this share of it is deleted.
const DELETED: f64 = 0.2;
/// Maximum number of attempts. One of tantivy's own merges may take segments first; maintenance then reads the segments
/// again.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Size of a segment, as input of a merge.
#[derive(Clone, Copy, Debug)]
struct Size {
    segment: SegmentId,
    bytes: u64,
    live: u32,
    deleted: u32,
}

impl Bm25Index {
    pub(super) async fn run_maintenance(&mut self, limits: MaintenanceLimits) -> Result<Maintained, IndexError> {
        let begun = Instant::now();
        let disk_usage = |path: &Option<std::path::PathBuf>| path.as_deref().map(DiskUsage::of).unwrap_or_default();
        let before = disk_usage(&self.directory);
        let mut did = Vec::new();
        for attempt in 1..=ATTEMPTS {
            self.reader.reload().map_err(store("read its segments"))?;
            let sizes = self.sizes().map_err(store("read its segments"))?;
            let chosen = choose(sizes, limits);
            if chosen.is_empty() {
                break;
            }
            match self.writer.merge(&chosen).await {
                Ok(_) => {
                    did.push(format!("{} merged", count(chosen.len(), "segment")));
                    break;
                }
                // One of tantivy's own merges was faster. The next maintenance sees its result.
                Err(TantivyError::InvalidArgument(_)) if attempt == ATTEMPTS || !limits.is_whole() => break,
                Err(TantivyError::InvalidArgument(_)) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(store("merge its segments")(error)),
            }
        }
        if !did.is_empty() {
            self.reader.reload().map_err(store("read its segments"))?;
            // Prepares the merged segment's passages for the next epoch.
            tokio::task::block_in_place(|| self.view()).map_err(store("read its merged segment"))?;
        }
        let removed = self.writer.garbage_collect_files().await.map_err(store("remove files"))?;
        if !removed.deleted_files.is_empty() {
            did.push(format!("{} removed", count(removed.deleted_files.len(), "file")));
        }
        Ok(Maintained { before, after: disk_usage(&self.directory), took: begun.elapsed(), did })
    }

    fn sizes(&self) -> Result<Vec<Size>, TantivyError> {
        let searcher = self.reader.searcher();
        let size = |reader: &tantivy::SegmentReader| {
            Ok(Size {
                segment: reader.segment_id(),
                bytes: reader.space_usage()?.total().get_bytes(),
                live: reader.num_docs(),
                deleted: reader.num_deleted_docs(),
            })
        };
        searcher.segment_readers().iter().map(size).collect()
    }
}

/// Selects the segments to merge into one; none if a merge is not worthwhile. A bounded merge takes the smallest
/// segments up to the limit, so that no segment is rewritten again and again.
fn choose(mut sizes: Vec<Size>, limits: MaintenanceLimits) -> Vec<SegmentId> {
    sizes.sort_by_key(|size| (size.bytes, size.segment));
    let worn = |size: &Size| f64::from(size.deleted) > DELETED * f64::from(size.live + size.deleted);
    let Some(rewrite) = limits.rewrite else {
        let whole = sizes.len() > 1 || sizes.iter().any(|size| size.deleted > 0);
        return sizes.iter().filter(|_| whole).map(|size| size.segment).collect();
    };
    let mut sum = 0;
    sizes.retain(|size| {
        sum += size.bytes;
        sum <= rewrite
    });
    if sizes.len() > SEGMENTS {
        return sizes.iter().map(|size| size.segment).collect();
    }
    sizes.iter().filter(|size| worn(size)).map(|size| size.segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(of: &[(u64, u32, u32)]) -> Vec<Size> {
        let size = |&(bytes, live, deleted): &_| Size { segment: SegmentId::generate_random(), bytes, live, deleted };
        of.iter().map(size).collect()
    }

    #[test]
    fn a_bounded_merge_leaves_large_segments_and_few_ones() {
        let limits = MaintenanceLimits { rewrite: Some(100) };
        assert_eq!(choose(sizes(&[(10, 5, 0); 4]), limits).len(), 0);
        assert_eq!(choose(sizes(&[(10, 5, 0); 5]), limits).len(), 5);
        assert_eq!(choose(sizes(&[(10, 5, 0); 15]), limits).len(), 10);
        let mixed = sizes(&[(1000, 9, 0), (10, 5, 0), (10, 5, 0), (10, 5, 0), (10, 5, 0), (10, 5, 0)]);
        let chosen = choose(mixed.clone(), limits);
        assert!(chosen.len() == 5 && !chosen.contains(&mixed[0].segment));
    }

    #[test]
    fn what_is_mostly_deleted_is_written_anew() {
        let limits = MaintenanceLimits { rewrite: Some(100) };
        let two = sizes(&[(10, 5, 5), (10, 10, 1)]);
        assert_eq!(choose(two.clone(), limits), [two[0].segment]);
        assert_eq!(choose(sizes(&[(1000, 5, 5)]), limits), [], "the segment is too large for bounded maintenance");
        assert_eq!(choose(two, MaintenanceLimits::NONE).len(), 2);
        assert_eq!(choose(sizes(&[(10, 5, 1)]), MaintenanceLimits::NONE).len(), 1);
        assert_eq!(choose(sizes(&[(10, 5, 0)]), MaintenanceLimits::NONE), []);
    }
}
