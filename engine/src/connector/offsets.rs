//! Offsets of sources, by partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The end of a record in its source; a restart resumes after it. Offsets of one partition have the
/// order of its records; partitions are independent of each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOffset {
    /// The partition; empty for a source that has only one.
    #[serde(default)]
    pub partition: Arc<str>,
    /// Identifies the log, in a source-specific form. For a file: its device, inode and a hash of its
    /// beginning.
    pub log: Arc<str>,
    /// Counts the logs of this partition, from 0.
    pub generation: u64,
    /// Where the record ends: a byte offset, or a broker's sequence number. Increases within a log.
    pub end: u64,
    /// The record's number in its log, from 1.
    pub line: u64,
}

impl SourceOffset {
    /// Orders the offsets of one partition.
    pub fn order(&self) -> (u64, u64) {
        (self.generation, self.end)
    }
}

/// The last offset of each partition.
///
/// ```
/// use turnflow_engine::connector::{Offsets, SourceOffset};
///
/// let offset = |partition: &str, end| SourceOffset { partition: partition.into(), end, ..SourceOffset::default() };
/// let mut offsets: Offsets = [offset("0", 7), offset("1", 3)].into_iter().collect();
/// offsets.set(offset("1", 4));
/// assert_eq!(offsets.get("1").unwrap().end, 4);
/// assert!(offsets.get("2").is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredOffsets", into = "StoredOffsets")]
pub struct Offsets(BTreeMap<Arc<str>, SourceOffset>);

/// A source without partitions is stored as a single offset, as in earlier versions.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredOffsets {
    One(SourceOffset),
    Many(Vec<SourceOffset>),
}

impl From<StoredOffsets> for Offsets {
    fn from(stored: StoredOffsets) -> Self {
        match stored {
            StoredOffsets::One(offset) => offset.into(),
            StoredOffsets::Many(offsets) => offsets.into_iter().collect(),
        }
    }
}

impl From<Offsets> for StoredOffsets {
    fn from(Offsets(mut offsets): Offsets) -> Self {
        match offsets.remove("") {
            Some(only) if offsets.is_empty() => Self::One(only),
            first => Self::Many(first.into_iter().chain(offsets.into_values()).collect()),
        }
    }
}

impl From<SourceOffset> for Offsets {
    fn from(offset: SourceOffset) -> Self {
        Self::from_iter([offset])
    }
}

impl FromIterator<SourceOffset> for Offsets {
    fn from_iter<I: IntoIterator<Item = SourceOffset>>(offsets: I) -> Self {
        Self(offsets.into_iter().map(|offset| (offset.partition.clone(), offset)).collect())
    }
}

impl Offsets {
    /// Whether no partition has an offset.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The offset of a partition; `""` is the only one of a source without partitions.
    pub fn get(&self, partition: &str) -> Option<&SourceOffset> {
        self.0.get(partition)
    }

    /// Every partition's offset.
    pub fn iter(&self) -> impl Iterator<Item = &SourceOffset> {
        self.0.values()
    }

    /// Replaces the offset of its partition.
    pub fn set(&mut self, offset: SourceOffset) {
        self.0.insert(offset.partition.clone(), offset);
    }

    /// Replaces the offsets of all partitions in `later`.
    pub fn extend(&mut self, later: Self) {
        self.0.extend(later.0);
    }
}

/// Which records a conversation has applied: the last one of each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredApplied", into = "StoredApplied")]
pub struct Applied(Vec<(Arc<str>, (u64, u64))>);

/// As for [`StoredOffsets`].
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredApplied {
    One((u64, u64)),
    Many(Vec<(Arc<str>, (u64, u64))>),
}

impl From<StoredApplied> for Applied {
    fn from(stored: StoredApplied) -> Self {
        match stored {
            StoredApplied::One(order) => order.into(),
            StoredApplied::Many(applied) => Self(applied),
        }
    }
}

impl From<Applied> for StoredApplied {
    fn from(Applied(applied): Applied) -> Self {
        match &applied[..] {
            [(partition, order)] if partition.is_empty() => Self::One(*order),
            _ => Self::Many(applied),
        }
    }
}

impl From<(u64, u64)> for Applied {
    fn from(order: (u64, u64)) -> Self {
        Self(vec![(Arc::default(), order)])
    }
}

impl Applied {
    /// Whether the conversation has applied the record at this offset.
    pub fn has(&self, offset: &SourceOffset) -> bool {
        self.0.iter().any(|(partition, order)| *partition == offset.partition && offset.order() <= *order)
    }

    /// Marks the record at this offset as applied.
    pub fn set(&mut self, offset: &SourceOffset) {
        match self.0.iter_mut().find(|(partition, _)| *partition == offset.partition) {
            Some((_, order)) => *order = offset.order(),
            None => self.0.push((offset.partition.clone(), offset.order())),
        }
    }

    /// Whether a source that resumes after `offsets` reads none of these records again.
    pub fn is_within(&self, offsets: &Offsets) -> bool {
        let reached = |partition: &str| offsets.get(partition).map(SourceOffset::order);
        self.0.iter().all(|(partition, order)| reached(partition) >= Some(*order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(partition: &str, end: u64) -> SourceOffset {
        SourceOffset { partition: partition.into(), log: "l".into(), generation: 0, end, line: end }
    }

    #[test]
    fn what_earlier_versions_have_stored_is_read() {
        let old = r#"{"log": "l", "generation": 0, "end": 7, "line": 7}"#;
        let one: Offsets = serde_json::from_str(old).unwrap();
        assert_eq!(one, offset("", 7).into());
        assert_eq!(serde_json::from_str::<Applied>("[3, 4]").unwrap(), (3, 4).into());
    }

    #[test]
    fn offsets_and_applied_records_are_stored_and_read() {
        for offsets in [vec![], vec![offset("", 7)], vec![offset("a", 7)], vec![offset("", 1), offset("b", 2)]] {
            let offsets: Offsets = offsets.into_iter().collect();
            let stored = serde_json::to_string(&offsets).unwrap();
            assert_eq!(serde_json::from_str::<Offsets>(&stored).unwrap(), offsets, "{stored}");
            let mut applied = Applied::default();
            offsets.iter().for_each(|offset| applied.set(offset));
            let stored = serde_json::to_string(&applied).unwrap();
            assert_eq!(serde_json::from_str::<Applied>(&stored).unwrap(), applied, "{stored}");
        }
    }

    #[test]
    fn partitions_are_independent() {
        let mut applied = Applied::default();
        assert!(!applied.has(&offset("a", 1)));
        applied.set(&offset("a", 5));
        applied.set(&offset("b", 2));
        assert!(applied.has(&offset("a", 5)) && !applied.has(&offset("a", 6)) && !applied.has(&offset("b", 5)));
        let mut offsets = Offsets::from(offset("a", 9));
        assert!(!applied.is_within(&offsets));
        offsets.extend(offset("b", 2).into());
        assert!(applied.is_within(&offsets));
    }
}
