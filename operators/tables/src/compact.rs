//! Merges small data files into larger ones.

use lance_core::Result;
use lance_table::format::Fragment;
use lance_table::transaction::{Operation, RewriteGroup};

use crate::commit::commit;
use crate::write::{files as write_files, or_remove, version_of};
use crate::{Table, read};

/// A file is rewritten if more than one row of this many is deleted.
const ONE_DELETED_OF: usize = 10;

pub(crate) async fn files(table: &mut Table, rows: usize) -> Result<()> {
    let groups = worthwhile(&table.manifest.fragments, rows);
    rewrite(table, groups, rows).await
}

pub(crate) async fn all_from(table: &mut Table, from: usize, rows: usize) -> Result<()> {
    let group: Vec<Fragment> = table.manifest.fragments.iter().skip(from).cloned().collect();
    rewrite(table, Some(group).filter(|group| group.len() > 1), rows).await
}

/// Rewrites groups of neighbouring fragments.
async fn rewrite(table: &mut Table, all: impl IntoIterator<Item = Vec<Fragment>>, rows: usize) -> Result<()> {
    let (place, version, schema) = (table.place.clone(), version_of(table), table.manifest.schema.clone());
    let (mut groups, mut new) = (Vec::new(), Vec::new());
    for old_fragments in all {
        let batches = read::rows_of(table, old_fragments.clone(), schema.clone());
        let new_fragments = write_files(&place, &schema, version, batches, rows).await?;
        new.extend(new_fragments.iter().cloned());
        groups.push(RewriteGroup { old_fragments, new_fragments });
    }
    if groups.is_empty() {
        return Ok(());
    }
    let operation = Operation::Rewrite { groups, rewritten_indices: Vec::new(), frag_reuse_index: None };
    let done = commit(&place, Some(table), operation).await;
    *table = or_remove(&place, &new, done).await?;
    Ok(())
}

/// The neighbouring fragments that are worth merging, in groups.
fn worthwhile(fragments: &[Fragment], rows: usize) -> Vec<Vec<Fragment>> {
    let has_gaps = |fragment: &Fragment| {
        let deleted = fragment.deletion_file.as_ref().and_then(|file| file.num_deleted_rows).unwrap_or(0);
        deleted.saturating_mul(ONE_DELETED_OF) > fragment.physical_rows.unwrap_or(0)
    };
    let is_small = |fragment: &Fragment| fragment.num_rows().is_some_and(|found| found < rows);
    let mut groups = vec![Vec::new()];
    for fragment in fragments {
        if !is_small(fragment) && !has_gaps(fragment) {
            groups.push(Vec::new());
        } else if let Some(group) = groups.last_mut() {
            group.push(fragment.clone());
        }
    }
    groups.retain(|group: &Vec<Fragment>| group.len() > 1 || group.iter().any(has_gaps));
    groups
}
