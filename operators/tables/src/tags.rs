//! Tags: files that name versions.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use lance_core::{Error, Result};
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use crate::Table;
use crate::commit::Place;

/// A tag: a name for a version, which is then kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its name.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Creation time.
    pub created: Option<DateTime<Utc>>,
}

/// The content of a tag's file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TagFile {
    branch: Option<String>,
    version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created_at: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    updated_at: Option<DateTime<Utc>>,
    manifest_size: u64,
    #[serde(default)]
    metadata: HashMap<String, String>,
}

fn directory(place: &Place) -> Path {
    place.base.clone().join("_refs").join("tags")
}

fn file(place: &Place, name: &str) -> Result<Path> {
    let is_valid = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\']);
    match is_valid {
        true => Ok(directory(place).join(format!("{name}.json"))),
        false => Err(Error::InvalidRef { message: format!("`{name}` cannot be a tag") }),
    }
}

pub(crate) async fn all(place: &Place) -> Result<Vec<Tag>> {
    let names = match place.store.read_dir(directory(place)).await {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut tags = Vec::new();
    for name in names.iter().filter_map(|name| name.strip_suffix(".json")) {
        // Letters that URLs would not have are encoded in the names of files.
        let name = percent_decode_str(name).decode_utf8_lossy();
        let path = file(place, &name)?;
        let bytes = place.store.read_one_all(&path).await?;
        let TagFile { version, created_at: created, .. } =
            serde_json::from_slice(&bytes).map_err(|error| Error::corrupt_file(path, error.to_string()))?;
        tags.push(Tag { name: name.into_owned(), version, created });
    }
    Ok(tags)
}

pub(crate) async fn add(table: &Table, name: &str) -> Result<()> {
    let path = file(&table.place, name)?;
    let manifest_size = match table.location.size {
        Some(size) => size,
        None => table.place.store.size(&table.location.path).await?,
    };
    let now = Some(Utc::now());
    let (branch, version, metadata) = (table.manifest.branch.clone(), table.version(), HashMap::new());
    let content = TagFile { branch, version, created_at: now, updated_at: now, manifest_size, metadata };
    let bytes = serde_json::to_vec_pretty(&content)?;
    table.place.store.put_if_absent(&path, bytes.into()).await.map_err(|error| match error {
        object_store::Error::AlreadyExists { .. } => {
            Error::RefConflict { message: format!("there is a tag `{name}` already") }
        }
        error => error.into(),
    })
}

pub(crate) async fn remove(place: &Place, name: &str) -> Result<()> {
    place.store.delete(&file(place, name)?).await
}
