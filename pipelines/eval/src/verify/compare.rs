//! Compares stored and served data with a cold rebuild.

use std::collections::HashMap;
use std::sync::Arc;

use turnflow_engine::component::{Encoding, Inventory, Passage};
use turnflow_engine::document::ContentHash;
use turnflow_engine::wording::count;

use super::{Behind, HitsReport, IndexContents, IndexId, IndexReport, Kind, Part, Report};

/// Minimum cosine of equal encodings. The last bits of a model's output depend on the other inputs
/// in its batch.
pub const COSINE: f64 = 0.9999;
/// Tolerance of the values of an encoding and of scores: absolute, or relative to the greatest value
/// if that is above 1. Quantised values may differ by one more step.
pub const DIFFERENCE: f32 = 1e-3;

/// The result of comparing encodings.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Encodings on both sides.
    pub compared: usize,
    /// Bit-identical encodings.
    pub same: usize,
    /// The lowest cosine.
    pub worst_cosine: f64,
    /// The greatest difference of a value.
    pub worst_difference: f32,
}

impl Default for Tally {
    fn default() -> Self {
        Self { compared: 0, same: 0, worst_cosine: 1.0, worst_difference: 0.0 }
    }
}

/// Compares the stored data of an index with the rebuild.
pub(super) fn stored(place: &IndexId, has: &Inventory, cold: &Inventory, index: &mut IndexReport, report: &mut Report) {
    index.stored = Some(has.passages.len().max(has.encodings.len()));
    for flaw in &has.flaws {
        let counts = ["no damage".to_owned(), flaw.reason.clone()];
        report.add(place.clone(), Part::Stored, Kind::Damage, &flaw.place, counts);
    }
    if !has.flaws.is_empty() {
        // The readable rest does not show how far a damaged index is behind.
        return;
    }
    let mut behind = Behind::default();
    if !has.encodings.is_empty() {
        behind.new = cold.encodings.keys().filter(|hash| !has.encodings.contains_key(*hash)).count();
        behind.gone = has.encodings.keys().filter(|hash| !cold.encodings.contains_key(*hash)).count();
        encodings(place, Part::Stored, has, cold, index, report);
    } else if !has.passages.is_empty() {
        behind.new = cold.passages.keys().filter(|id| !has.passages.contains_key(*id)).count();
        for (id, passage) in &has.passages {
            match cold.passages.get(id) {
                None => behind.gone += 1,
                Some(expected) if expected.hash != passage.hash => behind.changed += 1,
                Some(expected) => words(place, Part::Stored, id, passage, expected, report),
            }
        }
    } else {
        behind.new = cold.encodings.len().max(cold.passages.len());
    }
    index.behind = behind;
}

/// Compares the served data of an index with the rebuild.
pub(super) fn served(
    place: &IndexId,
    served: &Inventory,
    cold: &Inventory,
    index: &mut IndexReport,
    report: &mut Report,
) {
    index.served = served.passages.len();
    for flaw in &served.flaws {
        let counts = ["no contradiction".to_owned(), flaw.reason.clone()];
        report.add(place.clone(), Part::Served, Kind::Damage, &flaw.place, counts);
    }
    for (id, passage) in &served.passages {
        match cold.passages.get(id) {
            None => {
                let counts = ["no such passage".to_owned(), format!("content {}", short(&passage.hash))];
                report.add(place.clone(), Part::Served, Kind::Passage, &**id, counts);
            }
            Some(expected) if expected.hash != passage.hash => {
                let counts = [&expected.hash, &passage.hash].map(|hash| format!("content {}", short(hash)));
                report.add(place.clone(), Part::Served, Kind::Passage, &**id, counts);
            }
            Some(expected) => words(place, Part::Served, id, passage, expected, report),
        }
    }
    for (id, passage) in cold.passages.iter().filter(|(id, _)| !served.passages.contains_key(*id)) {
        let counts = [format!("content {}", short(&passage.hash)), "no such passage".to_owned()];
        report.add(place.clone(), Part::Served, Kind::Passage, &**id, counts);
    }
    for (name, expected) in &cold.statistics {
        let found = served.statistics.get(name).copied().unwrap_or(f64::NAN);
        if (found - expected).abs().total_cmp(&(1e-9 * expected.abs())).is_gt() {
            let counts = [expected.to_string(), found.to_string()];
            report.add(place.clone(), Part::Served, Kind::Statistic, *name, counts);
        }
    }
    encodings(place, Part::Served, served, cold, index, report);
}

fn words(place: &IndexId, part: Part, id: &str, found: &Passage, expected: &Passage, report: &mut Report) {
    if found.words != expected.words {
        let tell = |passage: &Passage| {
            passage.words.map_or("no words".to_owned(), |words| {
                format!("{} terms with the digest {:016x}", words.length, words.digest)
            })
        };
        report.add(place.clone(), part, Kind::Words, id, [tell(expected), tell(found)]);
    }
}

fn encodings(
    place: &IndexId,
    part: Part,
    found: &Inventory,
    cold: &Inventory,
    index: &mut IndexReport,
    report: &mut Report,
) {
    let names: HashMap<ContentHash, &str> = cold.passages.iter().map(|(id, passage)| (passage.hash, &**id)).collect();
    let value = |inventory: &Inventory, hash| inventory.values.as_ref()?.get(hash);
    let tally = &mut index.encodings;
    for (hash, digest) in &found.encodings {
        let Some(expected) = cold.encodings.get(hash) else { continue };
        tally.compared += 1;
        if digest == expected {
            tally.same += 1;
            continue;
        }
        let (Some(found), Some(expected)) = (value(found, hash), value(cold, hash)) else { continue };
        let distance = Distance::of(&expected, &found);
        tally.worst_cosine = tally.worst_cosine.min(distance.cosine);
        tally.worst_difference = tally.worst_difference.max(distance.difference);
        if !distance.is_near() {
            let of = names.get(hash).map_or(String::new(), |id| format!(" (as in `{id}`)"));
            let Distance { cosine, difference, .. } = distance;
            let far = format!("cosine {cosine:.6}, a value differs by {difference:.4}");
            let near = format!("cosine at least {COSINE}, values within {:.4}", distance.allowed);
            report.add(place.clone(), part, Kind::Encoding, format!("content {}{of}", short(hash)), [near, far]);
        }
    }
}

/// The distance between two encodings.
struct Distance {
    cosine: f64,
    difference: f32,
    allowed: f32,
}

impl Distance {
    fn of(a: &Encoding, b: &Encoding) -> Self {
        let (mut product, mut difference, mut greatest) = (0.0_f64, 0.0_f32, 1.0_f32);
        let (mut at, mut other) = (a.values.iter().peekable(), b.values.iter().peekable());
        loop {
            let (x, y) = match (at.peek(), other.peek()) {
                (None, None) => break,
                (Some((i, x)), Some((j, y))) if i == j => {
                    let pair = (*x, *y);
                    at.next();
                    other.next();
                    pair
                }
                (Some((i, x)), right) if right.is_none_or(|(j, _)| i < j) => {
                    let pair = (*x, 0.0);
                    at.next();
                    pair
                }
                (_, Some((_, y))) => {
                    let pair = (0.0, *y);
                    other.next();
                    pair
                }
                (Some(_), None) => break,
            };
            product += f64::from(x) * f64::from(y);
            // NaN counts as an infinite difference.
            let apart = (x - y).abs();
            difference = if apart.is_nan() { f32::INFINITY } else { difference.max(apart) };
            greatest = greatest.max(x.abs());
        }
        let norm = |encoding: &Encoding| encoding.values.iter().map(|(_, x)| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let norms = norm(a) * norm(b);
        let cosine = match (norms > 0.0, difference > 0.0) {
            (true, _) => product / norms,
            (false, true) => 0.0,
            (false, false) => 1.0,
        };
        let cosine = if cosine.is_nan() { 0.0 } else { cosine };
        Self { cosine, difference, allowed: DIFFERENCE * greatest + a.step.max(b.step) }
    }

    fn is_near(&self) -> bool {
        self.cosine >= COSINE && self.difference <= self.allowed
    }
}

/// Compares the hits of questions.
pub(super) fn hits(served: &IndexContents, cold: &IndexContents, report: &mut Report) {
    for (at @ (corpus, node), expected) in &cold.hits {
        let mut counted = HitsReport::default();
        let found = served.hits.get(at).map(|found| found.asked.as_slice()).unwrap_or_default();
        for (expected_of, found) in expected.asked.iter().zip(found) {
            counted.questions += 1;
            match apart(&expected_of.hits, &found.hits, &mut counted.worst) {
                None => counted.same += 1,
                Some(told) => {
                    let place = format!("`{node}`, asked {:?}", expected_of.question);
                    report.add((corpus.clone(), expected.index.clone()), Part::Served, Kind::Hits, place, told);
                }
            }
        }
        report.hits.insert(at.clone(), counted);
    }
}

type Found = Result<Vec<(Arc<str>, f32)>, String>;

/// The expected and the found value, if two lists differ. Hits whose scores are within the tolerance
/// may be in either order, and may replace each other at the end of the list.
fn apart(expected: &Found, found: &Found, worst: &mut f32) -> Option<[String; 2]> {
    let (expected, found) = match (expected, found) {
        (Ok(expected), Ok(found)) => (expected, found),
        (Err(expected), Err(found)) if expected == found => return None,
        (expected, found) => {
            let tell = |found: &Found| match found {
                Ok(hits) => count(hits.len(), "hit"),
                Err(error) => error.clone(),
            };
            return Some([tell(expected), tell(found)]);
        }
    };
    if expected.len() != found.len() {
        return Some([expected, found].map(|hits| count(hits.len(), "hit")));
    }
    let near = |a: f32, b: f32| (a - b).abs() <= DIFFERENCE * a.abs().max(1.0);
    for (hits, others, swapped) in [(expected, found, false), (found, expected, true)] {
        let other: HashMap<&str, f32> = others.iter().map(|(id, score)| (&**id, *score)).collect();
        let last = hits.last().map_or(0.0, |(_, score)| *score);
        for (rank, (id, score)) in hits.iter().enumerate() {
            let there = other.get(&**id).copied();
            if there.map_or_else(|| near(*score, last), |there| near(*score, there)) {
                *worst = worst.max(there.map_or(0.0, |there| (there - score).abs()));
                continue;
            }
            let this = format!("`{id}` at {} with {score:.6}", rank + 1);
            let that = there.map_or_else(|| format!("`{id}` is missing"), |there| format!("`{id}` with {there:.6}"));
            return Some(if swapped { [that, this] } else { [this, that] });
        }
    }
    None
}

/// The first characters of a hash, enough to distinguish it from others.
fn short(hash: &ContentHash) -> String {
    hash.to_string().chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(values: &[f32]) -> Encoding {
        Encoding { values: (0..).zip(values.iter().copied()).collect(), step: 0.0 }
    }

    #[test]
    fn rounding_is_near_and_another_vector_is_far() {
        let a = encoding(&[0.6, 0.8, 0.0]);
        assert!(Distance::of(&a, &encoding(&[0.6001, 0.7999, 0.0])).is_near());
        // The direction is within the tolerance, but one value is not.
        assert!(!Distance::of(&a, &encoding(&[0.602, 0.798, 0.0])).is_near());
        assert!(!Distance::of(&a, &encoding(&[0.8, 0.6, 0.0])).is_near());
        assert!(!Distance::of(&a, &encoding(&[0.6, f32::NAN, 0.0])).is_near());
        assert!(!Distance::of(&a, &Encoding::default()).is_near());
        assert!(Distance::of(&Encoding::default(), &Encoding::default()).is_near());
        // Missing coordinates are 0.
        let sparse = Encoding { values: vec![(0, 0.6), (1, 0.8)], step: 0.0 };
        assert!(Distance::of(&a, &sparse).is_near() && Distance::of(&sparse, &a).is_near());
        let other = Encoding { values: vec![(0, 0.6), (7, 0.8)], step: 0.0 };
        assert!(!Distance::of(&sparse, &other).is_near());
        let coarse = Encoding { values: vec![(0, 0.6), (1, 0.805)], step: 0.01 };
        assert!(Distance::of(&sparse, &coarse).is_near());
    }

    #[test]
    fn hits_may_change_places_only_where_scores_are_near() {
        let list = |hits: &[(&str, f32)]| Ok(hits.iter().map(|(id, score)| (Arc::from(*id), *score)).collect());
        let told = |a: &Found, b: &Found| apart(a, b, &mut 0.0).is_some();
        let a = list(&[("a", 0.9), ("b", 0.5), ("c", 0.4999)]);
        assert!(!told(&a, &a));
        assert!(!told(&a, &list(&[("a", 0.9), ("c", 0.5), ("b", 0.4999)])));
        assert!(!told(&a, &list(&[("a", 0.9), ("b", 0.5), ("d", 0.4999)])), "cut off among equals");
        assert!(told(&a, &list(&[("d", 0.9), ("b", 0.5), ("c", 0.4999)])));
        assert!(told(&a, &list(&[("a", 0.8), ("b", 0.5), ("c", 0.4999)])));
        assert!(told(&a, &list(&[("a", 0.9), ("b", 0.5)])));
        assert!(told(&a, &Err("out of order".into())));
    }
}
