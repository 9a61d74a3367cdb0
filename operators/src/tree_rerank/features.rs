//! The features of a candidate: what several lists, the texts and the ids say about it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use turnflow_engine::document::{Chunk, Corpus};
use turnflow_engine::record::Hit;

use super::matching;
use crate::words::{is_function, lower, words};

/// Features of each list, after the list's name and a dot.
const OF_LIST: [&str; 5] = ["score", "gap", "rank", "siblings", "parent"];
/// Features that belong to no list.
const COMMON: [&str; 6] = ["lists", "rrf", "question.words", "passage.words", "question.coverage", "passage.coverage"];
/// The constant of reciprocal rank fusion.
const K: f32 = 60.0;

/// A list of hits under the name of its node.
pub type List<'a> = (&'a str, &'a [Hit]);

/// The names of all features of lists with these names, in the order of a row's values.
pub fn columns<'a>(lists: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let of_list = |list: &str| OF_LIST.map(|feature| format!("{list}.{feature}"));
    let common = COMMON.into_iter().chain(matching::FEATURES).map(ToOwned::to_owned);
    lists.into_iter().flat_map(of_list).chain(common).collect()
}

/// The passages in the first `depth` places of any list, with the sum of their reciprocal ranks, 1 / (60 + rank); best
/// first, ties by id.
pub fn candidates(lists: &[List<'_>], depth: usize) -> Vec<(Arc<Chunk>, f32)> {
    let mut sums: BTreeMap<_, (f32, &Arc<Chunk>)> = BTreeMap::new();
    for (_, hits) in lists {
        for (place, hit) in hits.iter().take(depth).enumerate() {
            sums.entry(hit.chunk.identity()).or_insert((0.0, &hit.chunk)).0 += (K + 1.0 + place as f32).recip();
        }
    }
    let mut found: Vec<(Arc<Chunk>, f32)> = sums.into_values().map(|(sum, chunk)| (chunk.clone(), sum)).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| (&a.0.id, a.0.hash).cmp(&(&b.0.id, b.0.hash))));
    found
}

/// The number of the last columns, which only [`rows`] with `matches` computes.
pub(super) const MATCHES: usize = matching::FEATURES.len();

/// The features of the candidates, of shape `[candidates, columns]`; a missing value is NaN. Without `matches`, so are those
/// of how the question's words occur.
pub fn rows(question: &str, lists: &[List<'_>], candidates: &[(Arc<Chunk>, f32)], matches: bool) -> Vec<f32> {
    let read: Vec<ListScores<'_>> = lists.iter().map(|(_, hits)| ListScores::of(hits)).collect();
    let asked = content_words(question);
    let passages: Vec<_> = candidates.iter().map(|(chunk, _)| chunk.indexed_text()).collect();
    let texts: Vec<HashSet<String>> = passages.iter().map(|text| content_words(text)).collect();
    let matches = match matches {
        true => matching::features(question, passages.iter().map(String::as_str)),
        false => vec![[f32::NAN; MATCHES]; passages.len()],
    };
    let mut frequencies: HashMap<&str, u32> = HashMap::new();
    texts.iter().flatten().for_each(|word| *frequencies.entry(word).or_default() += 1);
    let total = candidates.len() as f32;
    let idf = |word: &String| (1.0 + total / (1.0 + frequencies.get(word.as_str()).copied().unwrap_or(0) as f32)).ln();
    let weight = |words: &HashSet<String>| ordered(words).map(idf).sum::<f32>();
    let weight_of_question = weight(&asked);

    let mut rows = Vec::with_capacity(candidates.len() * columns(lists.iter().map(|(name, _)| *name)).len());
    for (((chunk, sum), text), matched) in candidates.iter().zip(&texts).zip(matches) {
        rows.extend(read.iter().flat_map(|list| list.features(chunk)));
        let common: HashSet<String> = asked.intersection(text).cloned().collect();
        let shared = weight(&common);
        let part = |of: f32| if of > 0.0 { shared / of } else { 0.0 };
        rows.extend([
            read.iter().filter(|list| list.places.contains_key(&chunk.identity())).count() as f32,
            *sum,
            asked.len() as f32,
            text.len() as f32,
            part(weight_of_question),
            part(weight(text)),
        ]);
        rows.extend(matched);
    }
    rows
}

/// Sums of floats depend on their order.
fn ordered(words: &HashSet<String>) -> impl Iterator<Item = &String> {
    let mut words: Vec<&String> = words.iter().collect();
    words.sort_unstable();
    words.into_iter()
}

/// The distinct words of a text, without function words.
fn content_words(text: &str) -> HashSet<String> {
    words(text).into_iter().filter(|word| !is_function(word.text)).map(|word| lower(word.text)).collect()
}

/// A list's scores by passage and by group.
struct ListScores<'a> {
    /// The rank, from 1, and the score of each passage.
    places: HashMap<(Option<Corpus>, Arc<str>), (usize, f32)>,
    best: f32,
    /// The passages by their ids without punctuation at the end.
    by_key: HashMap<&'a str, f32>,
    /// The two best passages of each group: their ids and scores.
    groups: HashMap<&'a str, Vec<(&'a str, f32)>>,
}

impl<'a> ListScores<'a> {
    fn of(hits: &'a [Hit]) -> Self {
        let mut read = Self {
            places: HashMap::new(),
            best: hits.first().map_or(f32::NAN, |hit| hit.score),
            by_key: HashMap::new(),
            groups: HashMap::new(),
        };
        for (place, hit) in hits.iter().enumerate() {
            let id = &*hit.chunk.id;
            read.places.entry(hit.chunk.identity()).or_insert((place + 1, hit.score));
            read.by_key.entry(key(id)).or_insert(hit.score);
            let group = read.groups.entry(parent(id)).or_default();
            if group.len() < 2 {
                group.push((id, hit.score));
            }
        }
        read
    }

    fn features(&self, chunk: &Chunk) -> [f32; OF_LIST.len()] {
        let id = &*chunk.id;
        let (rank, score) =
            self.places.get(&chunk.identity()).map_or((f32::NAN, f32::NAN), |(rank, score)| (*rank as f32, *score));
        let group = self.groups.get(parent(id)).into_iter().flatten();
        let sibling = group.filter(|(other, _)| *other != id).map(|(_, score)| *score).next();
        let above = Some(parent(id)).filter(|above| !above.is_empty()).and_then(|above| self.by_key.get(above));
        let gap = |score: Option<f32>| score.map_or(f32::NAN, |score| self.best - score);
        [score, self.best - score, rank, gap(sibling), gap(above.copied())]
    }
}

/// An id without punctuation at its end.
fn key(id: &str) -> &str {
    id.trim_end_matches(|c: char| !c.is_alphanumeric())
}

/// An id without its last part: `a` of `a#1`, and `4.1` of `4.1.(b)`. Empty for an id of one part.
fn parent(id: &str) -> &str {
    key(key(id).trim_end_matches(char::is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::list;

    #[test]
    fn the_parts_of_ids_give_groups() {
        for (id, above) in
            [("a#1", "a"), ("a#12", "a"), ("4.1.(b)", "4.1"), ("4.1.", "4"), ("plain", ""), ("", ""), ("ß—日本", "ß")]
        {
            assert_eq!(parent(id), above, "{id}");
        }
        assert_eq!(key("4.1."), "4.1");
    }

    #[test]
    fn rows_agree_with_features_worked_by_hand() {
        let (one, two) = (list(&[("a#1", 9.0), ("a#2", 7.0), ("b", 4.0)]), list(&[("b", 0.5)]));
        let lists: [List<'_>; 2] = [("one", &one), ("two", &two)];
        let names = columns(["one", "two"]);
        let found = candidates(&lists, 2);
        let ids: Vec<&str> = found.iter().map(|(chunk, _)| &*chunk.id).collect();
        // a#1 and b are first in one list each. The third place of `one` is below the depth.
        assert_eq!(ids, ["a#1", "b", "a#2"]);
        let rows = rows("what is b?", &lists, &found, true);
        assert_eq!(rows.len(), 3 * names.len());
        let value =
            |row: usize, name: &str| rows[row * names.len() + names.iter().position(|column| column == name).unwrap()];
        assert_eq!([value(0, "one.score"), value(0, "one.gap"), value(0, "one.rank")], [9.0, 0.0, 1.0]);
        // Its sibling a#2 is 2 below the best.
        assert_eq!(value(0, "one.siblings"), 2.0);
        assert!(value(0, "one.parent").is_nan() && value(0, "two.score").is_nan());
        // Scores come from the whole list.
        assert_eq!([value(1, "one.gap"), value(1, "one.rank"), value(1, "lists")], [5.0, 3.0, 2.0]);
        assert_eq!(value(2, "one.siblings"), 0.0);
        assert!(value(1, "rrf") > value(2, "rrf"));
    }

    #[test]
    fn coverage_is_a_part_of_the_words_weights() {
        let chunk = |id: &str, text: &str| Hit {
            chunk: Arc::new(Chunk::new(id.into(), id.into(), "".into(), text.into())),
            score: 1.0,
        };
        let hits = [chunk("x", "tenants pay rent"), chunk("y", "landlords repair roofs"), chunk("z", "")];
        let lists: [List<'_>; 1] = [("one", &hits)];
        let rows = rows("Do tenants pay rent?", &lists, &candidates(&lists, 10), true);
        let names = columns(["one"]);
        let (width, at) = (names.len(), names.iter().position(|name| name == "question.coverage").unwrap());
        let coverage: Vec<[f32; 2]> = rows.chunks(width).map(|row| [row[at], row[at + 1]]).collect();
        assert_eq!(coverage, [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]);
    }
}
