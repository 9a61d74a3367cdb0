//! Removes old versions and the files that no other version needs.

use std::collections::HashSet;

use futures::stream::TryStreamExt;
use lance_core::{Error, Result};
use lance_table::io::commit::ManifestNamingScheme;
use lance_table::io::deletion::{DELETIONS_DIR, relative_deletion_file_path};

use crate::commit::{self, Place, TRANSACTIONS};
use crate::write::DATA;
use crate::{Table, tags};

/// Directory of the manifests.
const VERSIONS: &str = "_versions";

pub(crate) async fn old_versions(table: &Table, refuse_tagged: bool) -> Result<()> {
    let place = &table.place;
    let newest = commit::open(place.clone()).await?;
    let tagged: HashSet<u64> = tags::all(place).await?.into_iter().map(|tag| tag.version).collect();
    let locations: Vec<_> = commit::versions(place).try_collect().await?;
    let (mut old, mut kept) = (Vec::new(), vec![newest.clone()]);
    for location in locations.into_iter().filter(|location| location.version != newest.version()) {
        match tagged.contains(&location.version) {
            true if refuse_tagged => {
                let message = format!("version {} has a tag, and would be removed", location.version);
                return Err(Error::Cleanup { message });
            }
            true => kept.push(commit::read(place.clone(), location).await?),
            false => old.push(location.path),
        }
    }
    let needed: HashSet<String> = kept.iter().flat_map(files_of).collect();
    // A manifest goes before its files, so that what is left after a crash is only files that nothing refers to.
    for path in old {
        place.store.delete(&path).await?;
    }
    for directory in [DATA, DELETIONS_DIR, TRANSACTIONS] {
        remove(place, directory, |name| !needed.contains(&format!("{directory}/{name}"))).await?;
    }
    // What a writer left that was killed.
    let is_left = |name: &str| name.starts_with(".tmp") || name.contains('#') || name.contains(".manifest-");
    remove(place, VERSIONS, |name| is_left(name) && ManifestNamingScheme::detect_scheme(name).is_none()).await
}

pub(crate) async fn newer_versions(table: &Table) -> Result<()> {
    let place = &table.place;
    let mut newer: Vec<_> = commit::versions(place)
        .try_filter(|location| std::future::ready(location.version > table.version()))
        .try_collect()
        .await?;
    // The newest goes first: what is left after a crash has no gaps.
    newer.sort_unstable_by_key(|location| std::cmp::Reverse(location.version));
    for location in newer {
        place.store.delete(&location.path).await?;
    }
    Ok(())
}

/// The files of a version, by their paths in the table's directory.
fn files_of(version: &Table) -> Vec<String> {
    let manifest = &version.manifest;
    let mut files: Vec<String> = Vec::new();
    for fragment in manifest.fragments.iter() {
        files.extend(fragment.referenced_lance_files().map(|file| format!("{DATA}/{}", file.path)));
        files.extend(fragment.deletion_file.iter().map(|file| relative_deletion_file_path(fragment.id, file)));
    }
    files.extend(manifest.transaction_file.iter().map(|name| format!("{TRANSACTIONS}/{name}")));
    files
}

/// Removes files of a directory.
async fn remove(place: &Place, directory: &str, is_removed: impl Fn(&str) -> bool) -> Result<()> {
    let names = match place.store.read_dir(place.base.clone().join(directory)).await {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    for name in names.iter().filter(|name| is_removed(name)) {
        match place.store.delete(&place.file(directory, name)).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
