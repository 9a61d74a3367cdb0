//! Where a passage is: its corpus, and its number there.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

/// The number of a passage in its corpus, which filters refer to. It is assigned once, when the passage enters the
/// corpus, and passages of an epoch have different numbers. Passages are compared without it.
#[derive(Debug, Default)]
pub struct Place {
    number: OnceLock<u32>,
    /// One more than the number of the corpus, for passages that were found in a pipeline of several corpora with different
    /// documents; otherwise 0. Of corpora with the same documents, it is the first.
    corpus: AtomicU16,
    /// The passage has another text than its corpus.
    is_derived: bool,
}

impl Clone for Place {
    fn clone(&self) -> Self {
        let Self { number, corpus, is_derived } = self;
        Self { number: number.clone(), corpus: corpus.load(Ordering::Relaxed).into(), is_derived: *is_derived }
    }
}

impl Place {
    /// The number; `None` if the passage is in no corpus yet.
    pub fn get(&self) -> Option<u32> {
        self.number.get().copied()
    }

    /// Assigns the number; returns the one that it has if there was one before.
    pub fn assign(&self, number: u32) -> u32 {
        *self.number.get_or_init(|| number)
    }

    /// The corpus in which the passage was found, or the first one with its documents; `None` if the pipeline has no others.
    pub fn corpus(&self) -> Option<Corpus> {
        self.corpus.load(Ordering::Relaxed).checked_sub(1).map(Corpus)
    }

    /// The passage was found in this corpus; `None` if the pipeline has no others, any more or yet.
    pub fn found_in(&self, corpus: Option<Corpus>) {
        let code = corpus.map_or(0, |Corpus(number)| number + 1);
        // Most passages are found again in the same corpus, by several threads.
        if self.corpus.load(Ordering::Relaxed) != code {
            self.corpus.store(code, Ordering::Relaxed);
        }
    }

    /// Whether an operator has made its text of that of a passage.
    pub fn is_derived(&self) -> bool {
        self.is_derived
    }

    /// The place of another text of the same document: it has no number.
    pub(super) fn of_derived(&self) -> Self {
        Self { number: OnceLock::new(), is_derived: true, ..self.clone() }
    }
}

/// A corpus by its name, in two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Corpus(u16);

/// The names of corpora in this process. There are few, and none is forgotten.
static NAMES: RwLock<Vec<Arc<str>>> = RwLock::new(Vec::new());

impl Corpus {
    /// The corpus of this name; `None` if this process has had too many.
    pub fn named(name: &str) -> Option<Self> {
        let find = |names: &[Arc<str>]| names.iter().position(|known| **known == *name);
        let known = find(&NAMES.read());
        let number = known.unwrap_or_else(|| {
            let mut names = NAMES.write();
            find(&names).unwrap_or_else(|| {
                names.push(name.into());
                names.len() - 1
            })
        });
        u16::try_from(number).ok().filter(|number| *number < u16::MAX).map(Self)
    }

    /// Its name.
    pub fn name(self) -> Arc<str> {
        NAMES.read().get(usize::from(self.0)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_known_by_its_name() {
        let (docs, other) = (Corpus::named("docs").unwrap(), Corpus::named("other").unwrap());
        assert_ne!(docs, other);
        assert_eq!(Corpus::named("docs"), Some(docs));
        assert_eq!((&*docs.name(), &*other.name()), ("docs", "other"));
        let place = Place::default();
        place.assign(7);
        place.found_in(Some(docs));
        assert_eq!((place.get(), place.corpus()), (Some(7), Some(docs)));
        assert_eq!((place.of_derived().get(), place.of_derived().corpus()), (None, Some(docs)));
        // A reload has left one corpus.
        place.found_in(None);
        assert_eq!((place.get(), place.corpus()), (Some(7), None));
    }
}
