//! The file of the inference cache: a redb database with the outputs in one table and the day of last
//! use in another. Entries without a day count as used on the day on which this is found.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::Key;
use crate::clock::now_s;
use crate::component::DiskUsage;
use crate::database::{DatabaseError, Tables};
use crate::panics::caught;
use crate::plan::Maintenance;

const OUTPUTS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("outputs");
/// Day of last use, and bytes of the output.
const USED: TableDefinition<'_, &[u8; 32], (u32, u32)> = TableDefinition::new("used");
/// The `used` table, opened for reading.
type Used = redb::ReadOnlyTable<&'static [u8; 32], (u32, u32)>;
const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");
/// Bytes of entries removed since the last compaction.
const FREED: &str = "freed";
/// Entries removed or updated in one transaction.
const AT_ONCE: usize = 5_000;
/// Approximate bytes of an entry without its output.
const OVERHEAD: u64 = 100;
/// Minimum size in bytes of a file that is compacted.
const COMPACTED: u64 = 16 << 20;

/// Limits of the inference cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Days after which an unused entry expires; 0 for never.
    pub days: u32,
    /// Maximum bytes; 0 for no limit.
    pub bytes: u64,
}

impl CacheLimits {
    /// The limits from the pipeline file.
    pub fn of(settings: &Maintenance) -> Self {
        Self { days: settings.memo_days, bytes: settings.memo_mb.saturating_mul(1_000_000) }
    }
}

/// Days since the Unix epoch.
pub(super) fn today() -> u32 {
    (now_s() / 86_400) as u32
}

pub(super) struct Store(Tables);

/// The removed entries, and the number of remaining ones.
#[derive(Debug, Default)]
pub(super) struct Expired {
    pub gone: Vec<Key>,
    pub left: u64,
}

impl Store {
    /// Opens the file. A damaged file is moved away; a mostly free file is compacted.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let mut store = Self(Tables::open(path, "the cache store")?);
        let bytes = DiskUsage::of(path).bytes;
        if bytes > COMPACTED && store.freed().unwrap_or(0) > bytes / 2 {
            store.compact()?;
            let now = DiskUsage::of(path).bytes;
            tracing::info!(path = %path.display(), bytes, now, "compacted the cache store");
        }
        Ok(store)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// An output and the day of its last use; 0 if that is unknown.
    pub fn get(&self, key: &Key) -> Option<(Arc<[u8]>, u32)> {
        let database = self.0.current()?;
        let got = caught(move || -> Result<_, redb::Error> {
            let transaction = database.begin_read()?;
            let Some(table) = there(transaction.open_table(OUTPUTS))? else { return Ok(None) };
            let Some(value) = table.get(key)? else { return Ok(None) };
            let day = match there(transaction.open_table(USED))? {
                Some(used) => used.get(key)?.map(|day| day.value().0),
                None => None,
            };
            Ok(Some((value.value().into(), day.unwrap_or(0))))
        });
        let path = || self.0.path().to_owned();
        let error = match got {
            Ok(Ok(got)) => return got,
            Ok(Err(error)) => DatabaseError::Read { path: path(), source: Box::new(error) },
            Err(source) => DatabaseError::Damaged { path: path(), source },
        };
        self.mend(&error);
        None
    }

    /// Moves the file away if it is damaged. Its outputs are computed again.
    pub fn mend(&self, error: &DatabaseError) {
        if !error.is_damage() {
            return;
        }
        match self.0.put_aside() {
            Ok(()) => tracing::warn!(%error, "the cache store is damaged; it is moved away and recreated"),
            // Another thread has already moved it.
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => {}
            Err(aside) => tracing::warn!(%error, %aside, "the cache store is damaged and cannot be moved away"),
        }
    }

    /// Writes new outputs, and records that the entries in `asked` were used today.
    pub fn write(
        &self,
        outputs: &HashMap<Key, Arc<[u8]>>,
        asked: &HashSet<Key>,
        today: u32,
    ) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(OUTPUTS)?;
                let mut used = transaction.open_table(USED)?;
                for (key, value) in outputs {
                    table.insert(key, &**value)?;
                    used.insert(key, (today, length(value)))?;
                }
                for key in asked {
                    let bytes = table.get(key)?.map(|value| length(value.value()));
                    if let Some(bytes) = bytes {
                        used.insert(key, (today, bytes))?;
                    }
                }
            }
            Ok(transaction.commit()?)
        })
    }

    /// Removes entries beyond the limits, in small transactions. Entries for which `asked` is true stay.
    pub fn expire(
        &self,
        limits: &CacheLimits,
        today: u32,
        asked: impl Fn(&Key) -> bool,
    ) -> Result<Expired, DatabaseError> {
        self.0.change(|database| {
            take_over(database, today)?;
            let (cutoff, mut of_that_day, entries) = cutoff(database, limits, today)?;
            let mut doomed: Vec<(Key, u64)> = Vec::new();
            if let Some(used) = used(database)? {
                for entry in used.iter()? {
                    let (key, value) = entry?;
                    let ((day, bytes), key) = (value.value(), *key.value());
                    let bytes = u64::from(bytes) + OVERHEAD;
                    if asked(&key) || day > cutoff || (day == cutoff && of_that_day == 0) {
                        continue;
                    }
                    if day == cutoff {
                        of_that_day = of_that_day.saturating_sub(bytes);
                    }
                    doomed.push((key, bytes));
                }
            }
            for part in doomed.chunks(AT_ONCE) {
                let transaction = database.begin_write()?;
                {
                    let mut table = transaction.open_table(OUTPUTS)?;
                    let mut used = transaction.open_table(USED)?;
                    for (key, _) in part {
                        table.remove(key)?;
                        used.remove(key)?;
                    }
                    let mut counts = transaction.open_table(COUNTS)?;
                    let freed = counts.get(FREED)?.map_or(0, |freed| freed.value());
                    counts.insert(FREED, freed + part.iter().map(|(_, bytes)| bytes).sum::<u64>())?;
                }
                transaction.commit()?;
            }
            let left = entries - doomed.len() as u64;
            Ok(Expired { gone: doomed.into_iter().map(|(key, _)| key).collect(), left })
        })
    }

    fn freed(&self) -> Option<u64> {
        let freed = self.0.read(|database| match there(database.begin_read()?.open_table(COUNTS))? {
            Some(counts) => Ok(counts.get(FREED)?.map(|freed| freed.value())),
            None => Ok(None),
        });
        freed.inspect_err(|error| self.mend(error)).ok()?
    }

    /// Compacts the file, which must not be open elsewhere.
    pub fn compact(&mut self) -> Result<(), DatabaseError> {
        self.0.compact()?;
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(COUNTS)?.insert(FREED, 0)?;
            Ok(transaction.commit()?)
        })
    }
}

/// Returns the cutoff day, before which all entries are removed; the bytes to remove of that day
/// itself; and the number of entries.
fn cutoff(database: &Database, limits: &CacheLimits, today: u32) -> Result<(u32, u64, u64), redb::Error> {
    let mut days: BTreeMap<u32, u64> = BTreeMap::new();
    let mut entries = 0;
    if let Some(used) = used(database)? {
        for entry in used.iter()? {
            let (day, bytes) = entry?.1.value();
            *days.entry(day).or_default() += u64::from(bytes) + OVERHEAD;
            entries += 1;
        }
    }
    let mut cutoff = if limits.days == 0 { 0 } else { today.saturating_sub(limits.days) };
    let mut over = match limits.bytes {
        0 => 0,
        most => days.range(cutoff..).map(|(_, bytes)| bytes).sum::<u64>().saturating_sub(most),
    };
    for (day, bytes) in days.range(cutoff..) {
        cutoff = *day;
        if over < *bytes {
            return Ok((cutoff, over, entries));
        }
        over -= bytes;
    }
    // If bytes remain to be removed, everything is.
    Ok((cutoff.saturating_add(u32::from(over > 0)), over, entries))
}

/// Sets the day to today for entries without one, or with one in the future (the clock was set back).
fn take_over(database: &Database, today: u32) -> Result<(), redb::Error> {
    let transaction = database.begin_read()?;
    let Some(outputs) = there(transaction.open_table(OUTPUTS))? else { return Ok(()) };
    let used = used(database)?;
    let mut without: Vec<(Key, u32)> = Vec::new();
    if let Some(used) = &used {
        for entry in used.iter()? {
            let (key, value) = entry?;
            let (day, bytes) = value.value();
            if day > today {
                without.push((*key.value(), bytes));
            }
        }
    }
    let noted = used.as_ref().map_or(Ok(0), |used| used.len())?;
    // The outputs are scanned only if some have no day.
    for entry in outputs.iter()?.take(if noted == outputs.len()? { 0 } else { usize::MAX }) {
        let (key, value) = entry?;
        let known = used.as_ref().map_or(Ok(None), |used| used.get(key.value()))?.is_some();
        if !known {
            without.push((*key.value(), length(value.value())));
        }
    }
    for part in without.chunks(AT_ONCE) {
        let transaction = database.begin_write()?;
        {
            let mut used = transaction.open_table(USED)?;
            for (key, bytes) in part {
                used.insert(key, (today, *bytes))?;
            }
        }
        transaction.commit()?;
    }
    Ok(())
}

fn used(database: &Database) -> Result<Option<Used>, redb::Error> {
    there(database.begin_read()?.open_table(USED))
}

/// A table, or `None` if it does not exist: there are none before the first write.
fn there<T>(opened: Result<T, redb::TableError>) -> Result<Option<T>, redb::Error> {
    match opened {
        Ok(table) => Ok(Some(table)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn length(value: &[u8]) -> u32 {
    u32::try_from(value.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: u8) -> Key {
        [of; 32]
    }

    fn write(store: &Store, of: u8, bytes: usize, day: u32) {
        let outputs = HashMap::from([(key(of), vec![of; bytes].into())]);
        store.write(&outputs, &HashSet::new(), day).unwrap();
    }

    fn left(store: &Store) -> Vec<u8> {
        (1..=9).filter(|of| store.get(&key(*of)).is_some()).collect()
    }

    #[test]
    fn entries_go_by_age_and_what_is_asked_for_stays() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("memo.redb")).unwrap();
        (1..=4).for_each(|of| write(&store, of, 10, 100 + u32::from(of)));
        store.write(&HashMap::new(), &HashSet::from([key(1), key(9)]), 130).unwrap();
        let limits = CacheLimits { days: 30, bytes: 0 };
        let expired = store.expire(&limits, 134, |of| *of == key(2)).unwrap();
        assert_eq!((expired.gone.len(), expired.left), (1, 3));
        assert_eq!(left(&store), [1, 2, 4]);
        // The clock was set back: a day in the future counts as today.
        assert_eq!(store.expire(&limits, 90, |_| false).unwrap().gone.len(), 0);
        assert_eq!(store.get(&key(1)).unwrap().1, 90);
        assert_eq!(store.expire(&CacheLimits { days: 0, bytes: 0 }, 9000, |_| false).unwrap().gone, Vec::<Key>::new());
    }

    #[test]
    fn of_too_many_bytes_the_oldest_go_and_of_one_day_no_more_than_must() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("memo.redb")).unwrap();
        write(&store, 1, 900, 10);
        (2..=5).for_each(|of| write(&store, of, 900, 11));
        let limits = |bytes| CacheLimits { days: 30, bytes };
        assert_eq!(store.expire(&limits(5000), 12, |_| false).unwrap().gone.len(), 0);
        store.expire(&limits(4500), 12, |_| false).unwrap();
        assert_eq!(left(&store), [2, 3, 4, 5]);
        assert_eq!(store.expire(&limits(2500), 12, |_| false).unwrap().left, 2);
        assert_eq!(store.expire(&limits(1), 12, |_| false).unwrap().left, 0);
        assert!(store.freed().unwrap() >= 5000);
    }

    #[test]
    fn a_file_without_days_is_read_and_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memo.redb");
        {
            let database = Database::create(&path).unwrap();
            let transaction = database.begin_write().unwrap();
            transaction.open_table(OUTPUTS).unwrap().insert(&key(1), &[1, 2, 3][..]).unwrap();
            transaction.commit().unwrap();
        }
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.get(&key(1)).unwrap(), (Arc::from([1, 2, 3]), 0));
        let limits = CacheLimits { days: 30, bytes: 0 };
        assert_eq!(store.expire(&limits, 500, |_| false).unwrap().left, 1);
        assert_eq!(store.get(&key(1)).unwrap().1, 500);
        assert_eq!(store.expire(&limits, 531, |_| false).unwrap().gone, [key(1)]);
        store.compact().unwrap();
        assert_eq!((store.freed(), left(&store)), (Some(0), Vec::new()));
    }
}
