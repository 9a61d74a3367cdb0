//! What a corpus lacks because it cannot be read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Number of places that are remembered. Further ones are only counted.
const REMEMBERED: usize = 10_000;
/// Longest reason that is remembered, in bytes.
const REASON: usize = 300;

/// The documents and records of a corpus that cannot be read now, each with the reason.
///
/// A place is that of the dead letter: the id of a document, the path of a file, or a file and a line. It is forgotten when
/// the document is read, or is gone. The records of a log, which nobody can correct, stay.
#[derive(Debug, Default)]
pub struct Unreadable {
    /// Their number, so that a document that can be read costs a look at a number.
    count: AtomicU64,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    reasons: BTreeMap<String, String>,
    /// Number of those that are not remembered.
    further: u64,
}

impl Unreadable {
    /// Number of documents and records that cannot be read.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The first of them, by place, each with the reason.
    pub fn first(&self, most: usize) -> Vec<(String, String)> {
        let places = self.places.lock();
        places.reasons.iter().take(most).map(|(place, reason)| (place.clone(), reason.clone())).collect()
    }

    /// Whether what is at this place cannot be read. Of very many places, some are not remembered.
    pub fn has(&self, place: &str) -> bool {
        self.count() > 0 && self.places.lock().reasons.contains_key(place)
    }

    /// What is at this place cannot be read.
    pub fn add(&self, place: &str, reason: &str) {
        self.change(|places| places.add(place, reason));
    }

    /// What is at this place was read, or is gone.
    pub fn remove(&self, place: &str) {
        if self.count() > 0 {
            self.change(|places| drop(places.reasons.remove(place)));
        }
    }

    /// Of the places that begin so, only these cannot be read.
    pub fn replace<'a>(&self, beginning: &str, with: impl IntoIterator<Item = &'a (String, String)>) {
        let mut with = with.into_iter().peekable();
        if self.count() == 0 && with.peek().is_none() {
            return;
        }
        self.change(|places| {
            let from = (Bound::Included(beginning), Bound::Unbounded);
            let below = places.reasons.range::<str, _>(from).take_while(|(place, _)| place.starts_with(beginning));
            let below: Vec<String> = below.map(|(place, _)| place.clone()).collect();
            below.iter().for_each(|place| drop(places.reasons.remove(place)));
            with.for_each(|(place, reason)| places.add(place, reason));
        });
    }

    /// Forgets everything: another source is read.
    pub fn clear(&self) {
        self.change(|places| *places = Places::default());
    }

    fn change(&self, change: impl FnOnce(&mut Places)) {
        let mut places = self.places.lock();
        change(&mut places);
        self.count.store(places.reasons.len() as u64 + places.further, Ordering::Relaxed);
    }
}

impl Places {
    fn add(&mut self, place: &str, reason: &str) {
        if self.reasons.len() >= REMEMBERED && !self.reasons.contains_key(place) {
            self.further += 1;
            return;
        }
        let reason = &reason[..reason.floor_char_boundary(REASON)];
        self.reasons.insert(place.to_owned(), reason.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_or_gone_is_forgotten() {
        let unreadable = Unreadable::default();
        unreadable.remove("never");
        unreadable.replace("a.jsonl:", &[]);
        unreadable.add("a.pdf", "broken");
        unreadable.add("a.pdf", "encrypted");
        unreadable.add("a.jsonl:3", "no object");
        unreadable.add("b.pdf", "broken");
        assert_eq!(unreadable.count(), 3);
        unreadable.replace("a.jsonl:", &[("a.jsonl:2".to_owned(), "no text".to_owned())]);
        let pair = |place: &str, reason: &str| (place.to_owned(), reason.to_owned());
        assert_eq!(unreadable.first(2), [pair("a.jsonl:2", "no text"), pair("a.pdf", "encrypted")]);
        unreadable.remove("a.pdf");
        unreadable.replace("a.jsonl:", &[]);
        assert_eq!((unreadable.count(), unreadable.first(9)), (1, vec![pair("b.pdf", "broken")]));
        unreadable.clear();
        assert_eq!(unreadable.count(), 0);
    }

    #[test]
    fn a_bounded_number_is_remembered_and_all_are_counted() {
        let unreadable = Unreadable::default();
        (0..REMEMBERED + 5).for_each(|number| unreadable.add(&number.to_string(), &"é".repeat(REASON)));
        assert_eq!(unreadable.count(), REMEMBERED as u64 + 5);
        assert!(unreadable.first(1)[0].1.len() <= REASON);
    }
}
