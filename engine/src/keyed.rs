//! Sets of values that have their keys in them: for many small values, without copies of the keys.
//!
//! Their hashes are fast, and other ones in each set, so that keys that are made to collide in one do not in another. They
//! are no secrets: [`secret_key`] is for those.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::thread;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::document::Chunk;

/// A key for hashes of which only the beginning is kept. It is new for each use, so nobody can make two values whose
/// hashes begin alike.
pub fn secret_key() -> [u8; 32] {
    let mut key = [0; 32];
    for part in key.chunks_exact_mut(8) {
        // Each state has other keys.
        part.copy_from_slice(&std::hash::RandomState::new().hash_one(0).to_le_bytes());
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
        Self { values: Vec::new(), free: Vec::new(), by_key: HashTable::new(), hasher: RandomState::default() }
    }
}

impl<T: Key> Keyed<T> {
    /// A set of these values. Of several with the same key, the last one counts.
    pub fn of(values: Vec<T>) -> Self {
        let hasher = RandomState::default();
        let by_key = unique(&values, |value| hasher.hash_one(value.key()), |value, other| value.key() == other.key());
        if let Some(by_key) = by_key {
            let mut values: Vec<Option<T>> = values.into_iter().map(Some).collect();
            values.shrink_to_fit();
            return Self { values, free: Vec::new(), by_key, hasher };
        }
        let mut set = Self::with_capacity(values.len());
        values.into_iter().for_each(|value| drop(set.insert(value)));
        set
    }

    /// A set with room for this many values.
    pub fn with_capacity(values: usize) -> Self {
        Self { values: Vec::with_capacity(values), by_key: HashTable::with_capacity(values), ..Self::default() }
    }

    /// Makes room for this many more values.
    pub fn reserve(&mut self, more: usize) {
        self.values.reserve(more.saturating_sub(self.free.len()));
        let hash_of = |slot: &Slot| value(&self.values, *slot).map_or(0, |value| self.hasher.hash_one(value.key()));
        self.by_key.reserve(more, hash_of);
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

/// So many values are put into a table by two threads.
const MANY: usize = 10_000;

/// The places of values by a key; `None` if two have the same one.
fn unique<T>(values: &[T], hash: impl Fn(&T) -> u64, is_same: impl Fn(&T, &T) -> bool) -> Option<HashTable<Slot>> {
    let mut table = HashTable::with_capacity(values.len());
    for (value, number) in values.iter().zip(0..) {
        let is_it = |slot: &Slot| is_same(&values[slot.0 as usize], value);
        match table.entry(hash(value), is_it, |slot| hash(&values[slot.0 as usize])) {
            Entry::Vacant(place) => drop(place.insert(Slot(number))),
            Entry::Occupied(_) => return None,
        }
    }
    Some(table)
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

impl Slot {
    /// Its number, below [`Table::places`].
    pub fn number(self) -> usize {
        self.0 as usize
    }

    /// The place behind it.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

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
        Self { values, free, by_id: HashTable::new(), by_other: HashTable::new(), hasher: RandomState::default() }
    }
}

fn value<T>(values: &[Option<T>], slot: Slot) -> Option<&T> {
    values.get(slot.0 as usize)?.as_ref()
}

impl<T: TwoKeys> Table<T> {
    /// A table of these values. Of several with the same id or the same other key, the last one counts.
    pub fn of(values: Vec<T>) -> Self
    where
        T: Sync,
    {
        let hasher = RandomState::default();
        let ids = || unique(&values, |value| hasher.hash_one(value.id()), |value, other| value.id() == other.id());
        let others =
            || unique(&values, |value| hasher.hash_one(value.other()), |value, other| value.other() == other.other());
        let (by_id, by_other) = thread::scope(|scope| {
            let started = (values.len() >= MANY).then(|| thread::Builder::new().spawn_scoped(scope, ids));
            // Without another thread, this one does the work.
            let Some(Ok(thread)) = started else { return (ids(), others()) };
            let by_other = others();
            (thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), by_other)
        });
        if let (Some(by_id), Some(by_other)) = (by_id, by_other) {
            let mut values: Vec<Option<T>> = values.into_iter().map(Some).collect();
            values.shrink_to_fit();
            return Self { values, free: Vec::new(), by_id, by_other, hasher };
        }
        let mut table = Self::default();
        for value in values {
            table.of_id(value.id()).map(|slot| table.remove(slot));
            table.of_other(&value.other()).map(|slot| table.remove(slot));
            table.insert(value);
        }
        table
    }

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

    /// The number of places, with those that are free.
    pub fn places(&self) -> usize {
        self.values.len()
    }

    /// The places of all values.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.values.iter().zip(0..).filter_map(|(value, number)| value.as_ref().map(|_| Slot(number)))
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
        let gone: Vec<Slot> = self.slots().filter(|slot| self.get(*slot).is_some_and(&goes)).collect();
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
        let mut set = Keyed::with_capacity(10);
        for number in 0..100 {
            assert!(set.insert(of(number)).is_none());
            set.reserve(number as usize % 40);
        }
        assert_eq!(set.insert(Numbered("p7".to_owned(), 700)), Some(of(7)));
        assert_eq!((set.get("p7").unwrap().1, set.remove("p8"), set.remove("p8")), (700, Some(of(8)), None));
        assert_eq!((set.len(), set.iter().count(), set.sorted()[2].0.as_str()), (99, 99, "p10"));
        let set = Keyed::of(vec![of(1), of(2), of(3)]);
        assert_eq!((set.len(), set.get("p2")), (3, Some(&of(2))));
        let set = Keyed::of(vec![of(1), of(2), Numbered("p1".to_owned(), 4), of(3)]);
        assert_eq!((set.len(), set.get("p1").unwrap().1, set.get("p3")), (3, 4, Some(&of(3))));
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

    #[test]
    fn of_values_with_the_same_key_the_last_one_counts() {
        let sorted = |table: &Table<Numbered>| {
            let mut values: Vec<Numbered> = table.iter().cloned().collect();
            values.sort_by_key(|value| value.1);
            values
        };
        for count in [0, 100, MANY as u64 + 7] {
            let mut table = Table::of((0..count).map(of).collect());
            assert_eq!((table.len() as u64, table.places() as u64), (count, count));
            for number in 0..count {
                let slot = table.of_id(&format!("p{number}")).unwrap();
                assert_eq!((table.of_other(&number), slot.number() as u64), (Some(slot), number));
            }
            table.insert(of(count));
            assert_eq!(table.of_other(&count).map(Slot::number), Some(count as usize));
            let same = [Numbered("p7".to_owned(), count + 1), Numbered("new".to_owned(), 9)];
            let table = Table::of((0..count).map(of).chain(same).collect());
            let mut expected: Vec<Numbered> = (0..count).filter(|number| ![7, 9].contains(number)).map(of).collect();
            expected.extend([Numbered("new".to_owned(), 9), Numbered("p7".to_owned(), count + 1)]);
            expected.sort_by_key(|value| value.1);
            assert_eq!(sorted(&table), expected);
            assert!(expected.iter().all(|value| {
                table
                    .of_id(&value.0)
                    .is_some_and(|slot| table.get(slot) == Some(value) && table.of_other(&value.1) == Some(slot))
            }));
            assert_eq!(table.slots().count(), table.len());
        }
    }
}
