//! Deletes rows: writes which rows of the data files are deleted.

use std::collections::HashSet;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use futures::stream::TryStreamExt;
use lance_core::{Error, Result};
use lance_table::io::deletion::write_deletion_file;
use lance_table::transaction::Operation;

use crate::commit::commit;
use crate::{Table, read};

pub(crate) async fn rows(table: &mut Table, column: &str, texts: &HashSet<&str>) -> Result<()> {
    let schema = table.manifest.schema.project(&[column])?;
    let (place, scheduler) = (table.place.clone(), read::scheduler(&table.place));
    let (mut updated_fragments, mut deleted_fragment_ids) = (Vec::new(), Vec::new());
    for fragment in table.manifest.fragments.iter() {
        let mut deleted = read::deleted(&place, fragment).await?;
        let before = deleted.len();
        let mut batches = read::physical(&place, &scheduler, fragment, &schema).await?;
        let mut rows = 0_u32;
        while let Some(batch) = batches.try_next().await? {
            let values = batch.column(0);
            let values = values.as_string_opt::<i32>();
            let values = values.ok_or_else(|| Error::invalid_input(format!("`{column}` is not a column of texts")))?;
            let hits = (0..values.len()).filter(|&at| values.is_valid(at) && texts.contains(values.value(at)));
            deleted.extend(hits.map(|at| rows + at as u32));
            rows += batch.num_rows() as u32;
        }
        if deleted.len() == before {
            continue;
        }
        if deleted.len() >= rows as usize {
            deleted_fragment_ids.push(fragment.id);
            continue;
        }
        let version = table.manifest.version;
        let file = write_deletion_file(&place.base, fragment.id, version, &deleted, &place.store).await?;
        let mut fragment = fragment.clone();
        fragment.deletion_file = file;
        updated_fragments.push(fragment);
    }
    if updated_fragments.is_empty() && deleted_fragment_ids.is_empty() {
        return Ok(());
    }
    let mut listed: Vec<String> = texts.iter().map(|text| format!("'{}'", text.replace('\'', "''"))).collect();
    listed.sort();
    let predicate = format!("{column} IN ({})", listed.join(", "));
    let operation = Operation::Delete { updated_fragments, deleted_fragment_ids, predicate };
    *table = commit(&table.place, Some(table), operation).await?;
    Ok(())
}
