//! The backlog of a source: bounds the number and the bytes of records that are read and wait.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::plan::Conversations;
use crate::record::TurnRecord;

/// Counts the waiting records of a source, on all workers.
#[derive(Default)]
pub struct TurnBacklog {
    records: AtomicUsize,
    bytes: AtomicU64,
    /// Those that are a user's turns and that a restart reads again.
    restartable: AtomicUsize,
    /// How many were read at each time, in microseconds since the engine's start.
    times: Mutex<BTreeMap<u64, usize>>,
}

/// The overhead of a record in addition to its text: ids, offset and queue entry.
const OVERHEAD: usize = 256;

/// The size of a record in the backlog.
pub(super) fn bytes_of(record: &TurnRecord) -> u64 {
    let extra: usize = record.extra.iter().map(|(name, value)| name.len() + size_of_json(value)).sum();
    (OVERHEAD + record.text.len() + record.conversation_id.len() + extra) as u64
}

fn size_of_json(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    const CELL: usize = 32;
    match value {
        Value::String(text) => CELL + text.len(),
        Value::Array(items) => CELL + items.iter().map(size_of_json).sum::<usize>(),
        Value::Object(fields) => {
            CELL + fields.iter().map(|(name, value)| name.len() + size_of_json(value)).sum::<usize>()
        }
        _ => CELL,
    }
}

impl TurnBacklog {
    /// Whether another record may be read. When none waits, one may always be read, whatever its size.
    pub fn has_room(&self, limits: &Conversations) -> bool {
        let (records, bytes) = (self.records.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire));
        records == 0 || (records < limits.max_queued && bytes < limits.max_queued_mb << 20)
    }

    /// Adds a record that was read at this time. `restarts`: it is a user's turn that a restart reads again.
    pub fn add(&self, bytes: u64, restarts: bool, read_us: u64) {
        *self.times.lock().entry(read_us).or_default() += 1;
        self.restartable.fetch_add(usize::from(restarts), Ordering::AcqRel);
        self.records.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Removes a record. Returns whether the backlog was full, so that the source may be waiting.
    pub fn remove(&self, bytes: u64, restarts: bool, read_us: u64, limits: &Conversations) -> bool {
        if let Entry::Occupied(mut at) = self.times.lock().entry(read_us) {
            *at.get_mut() -= 1;
            if *at.get() == 0 {
                at.remove();
            }
        }
        self.restartable.fetch_sub(usize::from(restarts), Ordering::AcqRel);
        let records = self.records.fetch_sub(1, Ordering::AcqRel);
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        records >= limits.max_queued || before >= limits.max_queued_mb << 20
    }

    /// When the record that has waited for longest was read.
    pub fn oldest_us(&self) -> Option<u64> {
        self.times.lock().first_key_value().map(|(time, _)| *time)
    }

    /// Number of waiting records.
    pub fn records(&self) -> usize {
        self.records.load(Ordering::Acquire)
    }

    /// Number of waiting user's turns that a restart reads again.
    pub fn restartable(&self) -> usize {
        self.restartable.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_hold_and_one_record_always_fits() {
        let limits = Conversations { max_queued: 3, max_queued_mb: 1, ..Conversations::default() };
        let backlog = TurnBacklog::default();
        backlog.add(5 << 20, false, 7);
        assert!(!backlog.has_room(&limits));
        assert_eq!(backlog.oldest_us(), Some(7));
        assert!(backlog.remove(5 << 20, false, 7, &limits) && backlog.has_room(&limits));
        assert_eq!(backlog.oldest_us(), None);
        (0..3).for_each(|number| backlog.add(1, number > 0, 8 + number / 2));
        assert!(!backlog.has_room(&limits));
        assert_eq!(backlog.restartable(), 2);
        assert!(backlog.remove(1, true, 8, &limits) && !backlog.remove(1, false, 8, &limits));
        assert_eq!(backlog.oldest_us(), Some(9));
        assert_eq!((backlog.records(), backlog.restartable()), (1, 1));
        let text = r#"{"conversation_id": "c", "turn": 1, "speaker": "user", "text": "hm", "more": {"a": ["long"]}}"#;
        let long = TurnRecord::parse(text.replace("long", &"x".repeat(1000)).as_bytes()).unwrap();
        assert!(bytes_of(&long) > bytes_of(&TurnRecord::parse(text.as_bytes()).unwrap()) + 900);
    }
}
