//! A corpus of any size in the style of a given one: sentences of its passages in new combinations.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// Numbers that look random, and are the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// The field `text` of each line.
pub(crate) fn texts(path: &Path) -> anyhow::Result<Vec<String>> {
    let content = fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let text = |line: &str| -> anyhow::Result<String> {
        let row: Value = serde_json::from_str(line)?;
        Ok(row.get("text").and_then(Value::as_str).context("a row has no `text`")?.to_owned())
    };
    content.lines().map(|line| text(line).with_context(|| format!("in `{}`", path.display()))).collect()
}

/// A passage, and the given passages that its sentences are from.
pub(crate) struct Grown {
    pub text: String,
    pub parents: Vec<u32>,
}

/// The given passages, then new ones. A new passage has as many sentences as some given passage, most of them from one
/// other passage and its neighbours, as passages have a topic.
pub(crate) fn grow(given: &[String], passages: usize) -> impl Iterator<Item = Grown> + '_ {
    let sentences: Vec<Vec<&str>> = given.iter().map(|text| text.split_inclusive(". ").collect()).collect();
    let mut random = Random::new(11);
    (0..passages).map(move |number| {
        if let Some(text) = given.get(number) {
            return Grown { text: text.clone(), parents: vec![number as u32] };
        }
        let length = sentences[random.below(given.len())].len();
        let topic = random.below(given.len());
        let (mut text, mut parents) = (String::new(), Vec::new());
        for _ in 0..length.max(1) {
            let parent = match random.below(3) {
                0 => random.below(given.len()),
                _ => (topic + random.below(5)) % given.len(),
            };
            let of_parent = &sentences[parent];
            text.push_str(of_parent[random.below(of_parent.len())].trim());
            text.push(' ');
            parents.push(parent as u32);
        }
        text.truncate(text.trim_end().len());
        Grown { text, parents }
    })
}

/// Writes passages as rows of JSON Lines, numbered.
pub(crate) fn write(path: &Path, passages: impl Iterator<Item = Grown>) -> anyhow::Result<()> {
    let mut file = BufWriter::new(fs::File::create(path)?);
    for (number, Grown { text, .. }) in passages.enumerate() {
        let row = serde_json::json!({"_id": format!("p{number}"), "text": text});
        writeln!(file, "{row}")?;
    }
    Ok(file.flush()?)
}
