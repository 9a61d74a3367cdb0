//! The words of passages and queries, their vectors, and how many passages have them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{RwLock, RwLockReadGuard};
use turnflow_engine::component::Paged;
use turnflow_engine::inference::{InferenceError, SparseVector, WordVectors};

use crate::content::{Encode, dot};
use crate::cores::on_all_cores;

/// The words of a passage that have a vector, by number, and how often each occurs. They are in the order of their places
/// among the word vectors, so that sums over them do not depend on their numbers.
pub(super) type Bag = SparseVector;

/// Numbers the words of a corpus in the order in which they are met.
pub(super) struct Words {
    vectors: Arc<dyn WordVectors>,
    known: RwLock<Known>,
}

/// The words that are met so far.
#[derive(Default)]
pub(super) struct Known {
    /// Number of a word by its place.
    numbers: HashMap<u32, u32>,
    /// Place of a word, and the length of its vector, by number.
    pub places: Vec<(u32, f32)>,
    /// The vectors, one after the other, by number.
    vectors: Vec<f32>,
}

impl Known {
    /// Number of values of all vectors.
    pub fn values(&self) -> usize {
        self.vectors.len()
    }

    /// The product of a vector with that of each word, in which the order of the sum does not matter.
    pub fn products(&self, vector: &[f32]) -> impl Iterator<Item = f32> {
        self.vectors.chunks_exact(vector.len().max(1)).map(|word| product(word, vector))
    }
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let ((a_whole, a_rest), (b_whole, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a_whole.iter().zip(b_whole) {
        (0..8).for_each(|lane| sums[lane] += a[lane] * b[lane]);
    }
    a_rest.iter().zip(b_rest).enumerate().for_each(|(lane, (a, b))| sums[lane] += a * b);
    sums.iter().sum()
}

impl Words {
    pub fn new(vectors: Arc<dyn WordVectors>) -> Self {
        Self { vectors, known: RwLock::default() }
    }

    pub fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    /// The vector of the word at a place.
    pub fn vector(&self, place: u32) -> &[f32] {
        self.vectors.vector(place)
    }

    /// The places of a text's words that have a vector, and how often each occurs.
    fn places(&self, text: &str) -> BTreeMap<u32, u32> {
        let mut places = BTreeMap::new();
        let lower = text.to_lowercase();
        for place in lower.split(|c: char| !c.is_alphanumeric()).filter_map(|word| self.vectors.place(word)) {
            *places.entry(place).or_default() += 1;
        }
        places
    }

    /// The words of a passage. New ones get a number.
    pub fn bag(&self, text: &str) -> Bag {
        let places = self.places(text);
        let is_new = |known: &Known| places.keys().any(|place| !known.numbers.contains_key(place));
        if is_new(&self.known.read()) {
            let mut known = self.known.write();
            let Known { numbers, places: all, vectors } = &mut *known;
            for place in places.keys() {
                numbers.entry(*place).or_insert_with(|| {
                    let vector = self.vectors.vector(*place);
                    all.push((*place, dot(vector, vector).sqrt()));
                    vectors.extend(vector);
                    all.len() as u32 - 1
                });
            }
        }
        let known = self.known.read();
        places.iter().filter_map(|(place, count)| Some((*known.numbers.get(place)?, *count as f32))).collect()
    }

    /// The vector of a passage: the weighted mean, scaled to unit length. `None` if no word has a vector.
    pub fn of_passage(&self, bag: &Bag, counts: &Counts) -> Option<Vec<f32>> {
        let known = self.known.read();
        self.mean(bag.iter().map(|(number, count)| (known.places[*number as usize].0, counts.idf(*number), *count)))
    }

    /// The vector of a query, which may have words that no passage has.
    pub fn of_query(&self, text: &str, counts: &Counts) -> Option<Vec<f32>> {
        let known = self.known.read();
        let idf = |place: &u32| known.numbers.get(place).map_or_else(|| counts.rarest(), |number| counts.idf(*number));
        self.mean(self.places(text).iter().map(|(place, count)| (*place, idf(place), *count as f32)))
    }

    /// The weighted mean of words by place, inverse document frequency and count, scaled to unit length.
    fn mean(&self, words: impl Iterator<Item = (u32, f32, f32)>) -> Option<Vec<f32>> {
        let mut sum = vec![0.0_f32; self.vectors.dimension()];
        for (place, idf, count) in words {
            let weight = idf * count;
            sum.iter_mut().zip(self.vectors.vector(place)).for_each(|(sum, value)| *sum += weight * value);
        }
        let norm = dot(&sum, &sum).sqrt();
        (norm > 0.0).then(|| sum.into_iter().map(|value| value / norm).collect())
    }
}

impl Encode<Bag> for Words {
    fn dimension(&self) -> usize {
        0
    }

    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Bag>, InferenceError>> {
        let bags = tokio::task::block_in_place(|| on_all_cores(&texts, WORTH, |text| self.bag(text)));
        async move { Ok(bags) }.boxed()
    }
}

/// Fewer texts are not worth a thread.
const WORTH: usize = 64;

/// The number of passages, and how many have each word. A clone shares what neither copy changes.
#[derive(Clone, Default)]
pub(super) struct Counts {
    pub passages: usize,
    frequencies: Paged<u32>,
}

impl Counts {
    /// Number of passages that have the word with this number.
    pub fn frequency(&self, number: u32) -> u32 {
        self.frequencies.get(number).copied().unwrap_or(0)
    }

    pub fn add(&mut self, bag: &Bag) {
        for (number, _) in bag.iter() {
            self.frequencies.set(*number, Some(self.frequency(*number) + 1));
        }
    }

    pub fn remove(&mut self, bag: &Bag) {
        for (number, _) in bag.iter() {
            self.frequencies.set(*number, self.frequency(*number).checked_sub(1).filter(|count| *count > 0));
        }
    }

    /// The inverse document frequency of a word by its number.
    pub fn idf(&self, number: u32) -> f32 {
        self.idf_of(self.frequency(number))
    }

    /// That of a word that no passage has.
    pub fn rarest(&self) -> f32 {
        self.idf_of(0)
    }

    fn idf_of(&self, frequency: u32) -> f32 {
        (((1 + self.passages) as f64 / f64::from(1 + frequency)).ln() + 1.0) as f32
    }
}
