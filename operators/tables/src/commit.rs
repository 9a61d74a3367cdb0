//! Manifests: opens versions of a table, and commits new ones.

use std::path::{Component, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use lance_core::{Error, Result};
use lance_file::version::{ConcreteFileVersion, stable_file_version};
use lance_io::object_store::ObjectStore;
use lance_table::feature_flags::{ensure_can_read_manifest, ensure_can_write_manifest};
use lance_table::format::{DataStorageFormat, Manifest, ManifestBuildConfig, pb};
use lance_table::io::commit::{
    CommitError, CommitHandler, ConditionalPutCommitHandler, ManifestLocation, ManifestNamingScheme,
    write_manifest_file_to_path,
};
use lance_table::io::manifest::{read_manifest, read_manifest_indexes};
use lance_table::transaction::{Operation, Transaction, validate_operation};
use object_store::path::Path;

use crate::Table;

/// Directory of what each version has changed.
pub(crate) const TRANSACTIONS: &str = "_transactions";

/// All files of this machine.
static STORE: LazyLock<Arc<ObjectStore>> = LazyLock::new(|| Arc::new(ObjectStore::local()));

/// Where a table is.
#[derive(Clone)]
pub(crate) struct Place {
    pub store: Arc<ObjectStore>,
    pub base: Path,
}

impl Place {
    pub fn of(path: &str) -> Result<Self> {
        Ok(Self { store: STORE.clone(), base: Path::from_absolute_path(absolute(path)?)? })
    }

    /// The path of a file in one of the table's directories.
    pub fn file(&self, directory: &str, name: &str) -> Path {
        self.base.clone().join(directory).join(name)
    }
}

/// An absolute path without `..`, which the store refuses.
fn absolute(path: &str) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    if !absolute.components().any(|part| part == Component::ParentDir) {
        return Ok(absolute);
    }
    // What is there may be a link, and its end may not be there yet.
    let real = |there: &std::path::Path| Some((there.canonicalize().ok()?, absolute.strip_prefix(there).ok()?));
    Ok(absolute.ancestors().find_map(real).map_or_else(|| absolute.clone(), |(real, rest)| real.join(rest)))
}

/// Creates manifests, and fails if there is one.
fn commits() -> &'static dyn CommitHandler {
    &ConditionalPutCommitHandler
}

pub(crate) async fn open(place: Place) -> Result<Table> {
    let location = commits().resolve_latest_location(&place.base, &place.store).await;
    let location = location.map_err(|error| match error {
        Error::NotFound { .. } => Error::dataset_not_found(place.base.to_string(), Box::new(error)),
        error => error,
    })?;
    read(place, location).await
}

pub(crate) async fn open_version(place: Place, version: u64) -> Result<Table> {
    let store = place.store.inner.as_ref();
    let location = commits().resolve_version_location(&place.base, version, store).await?;
    read(place, location).await
}

/// The locations of all versions.
pub(crate) fn versions(place: &Place) -> futures::stream::BoxStream<'_, Result<ManifestLocation>> {
    commits().list_manifest_locations(&place.base, &place.store, false)
}

pub(crate) async fn read(place: Place, location: ManifestLocation) -> Result<Table> {
    let manifest = read_manifest(&place.store, &location.path, location.size).await?;
    ensure_can_read_manifest(&manifest)?;
    if manifest.data_storage_format.lance_file_format() == ConcreteFileVersion::V1 {
        return Err(Error::not_supported("the table has data files of Lance's first format"));
    }
    Ok(Table { place, manifest: Arc::new(manifest), location })
}

/// Commits a change: of this table, or the first version of a new one.
///
/// # Errors
///
/// [`Error::CommitConflict`] if another writer has committed since the table was read.
pub(crate) async fn commit(place: &Place, current: Option<&Table>, operation: Operation) -> Result<Table> {
    let manifest = current.map(|table| &*table.manifest);
    if let Some(manifest) = manifest {
        ensure_can_write_manifest(manifest)?;
    }
    let transaction = Transaction::new(manifest.map_or(0, |manifest| manifest.version), operation, None);
    validate_operation(manifest, &transaction.operation)?;
    let indexes = match current {
        Some(Table { location, manifest, .. }) => read_manifest_indexes(&place.store, location, manifest).await?,
        None => Vec::new(),
    };
    let written = pb::Transaction::try_from(&transaction)?;
    let name = format!("{}-{}.txn", transaction.read_version, transaction.uuid);
    let config = config(manifest);
    let (mut next, indexes) = transaction.build_manifest(manifest, indexes, &name, &config)?;
    next.update_max_field_id();
    next.update_max_fragment_id();
    next.set_timestamp(config.timestamp_nanos);
    let naming = current.map_or(ManifestNamingScheme::V2, |table| table.location.naming_scheme);
    let path = place.file(TRANSACTIONS, &name);
    place.store.put(&path, &prost::Message::encode_to_vec(&written)).await?;
    let indexes = Some(indexes).filter(|indexes| !indexes.is_empty());
    let inline = Some(written.into());
    let (base, store) = (&place.base, &place.store);
    let done = commits().commit(&mut next, indexes, base, store, write_manifest_file_to_path, naming, inline).await;
    match done {
        Ok(location) => Ok(Table { place: place.clone(), manifest: Arc::new(next), location }),
        Err(error) => {
            // The manifest is not there, so nothing refers to it.
            let _ = place.store.delete(&path).await;
            Err(match error {
                CommitError::CommitConflict => {
                    let newer = "there is a newer version of the table".into();
                    Error::commit_conflict_source(next.version, newer)
                }
                CommitError::OtherError(error) => error,
            })
        }
    }
}

fn config(current: Option<&Manifest>) -> ManifestBuildConfig {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ManifestBuildConfig {
        auto_set_feature_flags: true,
        timestamp_nanos: now.as_nanos(),
        use_stable_row_ids: false,
        use_legacy_format: None,
        storage_format: current.is_none().then(|| DataStorageFormat::new(stable_file_version())),
        disable_transaction_file: false,
        migration_next_row_id: None,
        activate_non_reusable_field_ids: false,
        spilled_row_lineage: Arc::default(),
    }
}
