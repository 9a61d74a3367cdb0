//! Sets of values that have their keys in them: for many small values, without copies of the keys.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::document::Chunk;

/// A key for hashes of which only the beginning is kept. It is new for each use, so nobody can make two values whose
/// hashes begin alike.
pub fn secret_key() -> [u8; 32] {
    let mut key = [0; 32];
    for part in key.chunks_exact_mut(8) {
        // Each state has other keys.
        part.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
    }
    key
}

/// A value with a key.
pub trait Key {
    /// The type of the key.
    type Of: Hash + Eq + ?Sized;
    /// The key, which does not change while the value is in a set.
    fn key(&self) -> &Self::Of;
}

impl Key for Arc<Chunk> {
    type Of = str;

    fn key(&self) -> &str {
        &self.id
    }
}

/// Values by their keys, in no order.
#[derive(Clone, Debug)]
pub struct Keyed<T> {
    values: Vec<Option<T>>,
    free: Vec<Slot>,
    by_key: HashTable<Slot>,
    hasher: RandomState,
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new(), by_key: HashTable::new(), hasher: RandomState::new() }
    }
}

impl<T: Key> Keyed<T> {
    /// An empty set with room for so many values.
    pub fn with_capacity(values: usize) -> Self {
        let (by_key, values) = (HashTable::with_capacity(values), Vec::with_capacity(values));
        Self { values, free: Vec::new(), by_key, hasher: RandomState::new() }
    }

    fn slot(&self, key: &T::Of) -> Option<Slot> {
        let is_it = |slot: &Slot| value(&self.values, *slot).is_some_and(|value| value.key() == key);
        self.by_key.find(self.hasher.hash_one(key), is_it).copied()
    }

    /// The value with this key.
    pub fn get(&self, key: &T::Of) -> Option<&T> {
        value(&self.values, self.slot(key)?)
    }

    /// Whether there is a value with this key.
    pub fn has(&self, key: &T::Of) -> bool {
        self.slot(key).is_some()
    }

    /// Adds a value; returns the one that had its key.
    ///
    /// # Panics
    ///
    /// There are 2³² values.
    pub fn insert(&mut self, new: T) -> Option<T> {
        if let Some(slot) = self.slot(new.key()) {
            return self.values[slot.0 as usize].replace(new);
        }
        let hash = self.hasher.hash_one(new.key());
        let slot = place(&mut self.values, &mut self.free, new);
        let hash_of = |slot: &Slot| value(&self.values, *slot).map_or(0, |value| self.hasher.hash_one(value.key()));
        self.by_key.insert_unique(hash, slot, hash_of);
        None
    }

    /// Removes the value with this key.
    pub fn remove(&mut self, key: &T::Of) -> Option<T> {
        let slot = self.slot(key)?;
        if let Ok(entry) = self.by_key.find_entry(self.hasher.hash_one(key), |at| *at == slot) {
            entry.remove();
        }
        self.free.push(slot);
        self.values[slot.0 as usize].take()
    }

    /// All values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The values in the order of their keys.
    pub fn sorted(&self) -> Vec<T>
    where
        T: Clone,
        T::Of: Ord,
    {
        let mut all: Vec<T> = self.iter().cloned().collect();
        all.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        all
    }
}

/// Puts a value into a free place.
fn place<T>(values: &mut Vec<Option<T>>, free: &mut Vec<Slot>, new: T) -> Slot {
    let slot = free.pop().unwrap_or_else(|| {
        values.push(None);
        Slot(u32::try_from(values.len() - 1).expect("fewer than 2³² values"))
    });
    values[slot.0 as usize] = Some(new);
    slot
}

/// A value with an id and another key.
pub trait TwoKeys {
    /// The type of the other key.
    type Other: Hash + Eq;
    /// The id, which does not change while the value is in a table.
    fn id(&self) -> &str;
    /// The other key.
    fn other(&self) -> Self::Other;
}

/// The place of a value in a [`Table`], as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

/// Values by their ids and by another key; both are unique.
#[derive(Debug)]
pub struct Table<T> {
    values: Vec<Option<T>>,
    free: Vec<Slot>,
    by_id: HashTable<Slot>,
    by_other: HashTable<Slot>,
    hasher: RandomState,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        let (values, free) = (Vec::new(), Vec::new());
        Self { values, free, by_id: HashTable::new(), by_other: HashTable::new(), hasher: RandomState::new() }
    }
}

fn value<T>(values: &[Option<T>], slot: Slot) -> Option<&T> {
    values.get(slot.0 as usize)?.as_ref()
}

impl<T: TwoKeys> Table<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    /// The values, in no order.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.values.into_iter().flatten()
    }

    /// The place of the value with this id.
    pub fn of_id(&self, id: &str) -> Option<Slot> {
        let is_it = |slot: &Slot| value(&self.values, *slot).is_some_and(|value| value.id() == id);
        self.by_id.find(self.hasher.hash_one(id), is_it).copied()
    }

    /// The place of the value with this other key.
    pub fn of_other(&self, other: &T::Other) -> Option<Slot> {
        let is_it = |slot: &Slot| value(&self.values, *slot).is_some_and(|value| value.other() == *other);
        self.by_other.find(self.hasher.hash_one(other), is_it).copied()
    }

    /// The value at a place.
    pub fn get(&self, slot: Slot) -> Option<&T> {
        value(&self.values, slot)
    }

    /// Adds a value. There must be none with its id or its other key.
    ///
    /// # Panics
    ///
    /// There are 2³² values.
    pub fn insert(&mut self, new: T) {
        debug_assert!(self.of_id(new.id()).is_none(), "ids are unique");
        let (id, other) = (self.hasher.hash_one(new.id()), new.other());
        let slot = place(&mut self.values, &mut self.free, new);
        let hash = |slot: &Slot| value(&self.values, *slot).map_or(0, |value| self.hasher.hash_one(value.id()));
        self.by_id.insert_unique(id, slot, hash);
        self.enter(&other, slot);
    }

    fn enter(&mut self, other: &T::Other, slot: Slot) {
        let hash = |slot: &Slot| value(&self.values, *slot).map_or(0, |value| self.hasher.hash_one(value.other()));
        self.by_other.insert_unique(self.hasher.hash_one(other), slot, hash);
    }

    fn leave(&mut self, other: &T::Other, slot: Slot) {
        if let Ok(entry) = self.by_other.find_entry(self.hasher.hash_one(other), |at| *at == slot) {
            entry.remove();
        }
    }

    /// Changes the value at a place, but not its id.
    pub fn update<R>(&mut self, slot: Slot, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let value = self.values.get_mut(slot.0 as usize)?.as_mut()?;
        let before = value.other();
        let result = change(value);
        let after = value.other();
        if before != after {
            self.leave(&before, slot);
            self.enter(&after, slot);
        }
        Some(result)
    }

    /// Removes the value at a place.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let removed = self.values.get_mut(slot.0 as usize)?.take()?;
        if let Ok(entry) = self.by_id.find_entry(self.hasher.hash_one(removed.id()), |at| *at == slot) {
            entry.remove();
        }
        self.leave(&removed.other(), slot);
        self.free.push(slot);
        Some(removed)
    }

    /// Removes the values for which this is true, and returns them.
    pub fn remove_if(&mut self, goes: impl Fn(&T) -> bool) -> Vec<T> {
        let all = (0..self.values.len() as u32).map(Slot);
        let gone: Vec<Slot> = all.filter(|slot| self.get(*slot).is_some_and(&goes)).collect();
        gone.into_iter().filter_map(|slot| self.remove(slot)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Numbered(String, u64);

    impl Key for Numbered {
        type Of = str;
        fn key(&self) -> &str {
            &self.0
        }
    }

    impl TwoKeys for Numbered {
        type Other = u64;
        fn id(&self) -> &str {
            &self.0
        }
        fn other(&self) -> u64 {
            self.1
        }
    }

    fn of(number: u64) -> Numbered {
        Numbered(format!("p{number}"), number)
    }

    #[test]
    fn values_are_found_by_their_key() {
        let mut set = Keyed::default();
        for number in 0..100 {
            assert!(set.insert(of(number)).is_none());
        }
        assert_eq!(set.insert(Numbered("p7".to_owned(), 700)), Some(of(7)));
        assert_eq!((set.get("p7").unwrap().1, set.remove("p8"), set.remove("p8")), (700, Some(of(8)), None));
        assert_eq!((set.len(), set.iter().count(), set.sorted()[2].0.as_str()), (99, 99, "p10"));
    }

    #[test]
    fn values_are_found_by_either_key_while_they_change() {
        let mut table = Table::default();
        (0..1000).for_each(|number| table.insert(of(number)));
        for number in (0..1000).step_by(3) {
            let slot = table.of_id(&format!("p{number}")).unwrap();
            assert_eq!(table.remove(slot), Some(of(number)));
            assert_eq!(table.remove(slot), None);
        }
        (0..1000).step_by(6).for_each(|number| table.insert(of(number)));
        for number in (0..1000).step_by(4) {
            let slot = table.of_other(&number);
            slot.map(|slot| table.update(slot, |value| value.1 += 10_000));
        }
        for number in 0..1000_u64 {
            let is_there = number % 3 != 0 || number % 6 == 0;
            let other = if number % 4 == 0 { number + 10_000 } else { number };
            let slot = table.of_id(&format!("p{number}"));
            assert_eq!((slot.is_some(), table.of_other(&other)), (is_there, slot));
            assert_eq!(slot.and_then(|slot| table.get(slot)).map(|value| value.1), is_there.then_some(other));
        }
        let gone = table.remove_if(|value| value.1 >= 10_000);
        assert_eq!((gone.len() + table.len(), table.values.len()), (833, 1000));
        assert!(gone.iter().all(|value| table.of_other(&value.1).is_none()));
    }
}
