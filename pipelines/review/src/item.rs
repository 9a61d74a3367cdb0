//! What is kept of an answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use turnflow_engine::connector::{ReviewDocument, ReviewHit, ReviewItem};
use turnflow_engine::record::{AnswerRecord, HitRecord};

/// Characters of a question or a query that are kept.
const QUESTION: usize = 4000;
/// Characters of an answer that are kept.
const ANSWER: usize = 16_000;
/// Passages that are kept.
const HITS: usize = 10;
/// Characters of a passage that are kept.
const PASSAGE: usize = 2000;
/// Warnings that are kept, and characters of each.
const WARNINGS: (usize, usize) = (20, 500);

/// The version of an answer: its epoch and its revision. A later answer to a turn has a higher one.
pub type Version = (u64, u32);

/// The version of a record.
pub fn version(record: &AnswerRecord) -> Version {
    (record.stamp.epoch, record.revision)
}

/// The part of an item's id that names its turn.
pub fn turn_of(key: &str) -> String {
    hex::<8>(blake3::hash(key.as_bytes()))
}

/// The id of an item. A verdict on it cannot hit another answer to the turn.
pub fn id(key: &str, (epoch, revision): Version) -> Arc<str> {
    let version = hex::<4>(blake3::hash(format!("{epoch}/{revision}").as_bytes()));
    format!("{}-{version}", turn_of(key)).into()
}

/// A hash of what an answer says: its status, its query, its text and its passages.
pub fn says(record: &AnswerRecord) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |part: &str| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    };
    part(&format!("{:?}", record.status));
    part(&record.query);
    part(&record.answer);
    for hit in &record.hits {
        part(&hit.passage);
        part(&hit.text);
    }
    hex::<8>(hasher.finalize())
}

fn hex<const BYTES: usize>(hash: blake3::Hash) -> String {
    hash.to_hex()[..2 * BYTES].to_owned()
}

/// What is kept of a record that these rules have taken.
pub fn item(record: &AnswerRecord, rules: Vec<Arc<str>>, now: f64) -> ReviewItem {
    let cited = cited(record);
    let hit = |(at, hit): (usize, &HitRecord)| {
        let (text, cut) = short(&hit.text, PASSAGE);
        let (passage, ReviewDocument { document, corpus }) = (hit.passage.clone(), document(hit));
        ReviewHit { passage, document, corpus, text, cut, cited: cited.contains(&at) }
    };
    let (most, length) = WARNINGS;
    let asked = record.question.as_ref();
    let further = record.hits.iter().skip(HITS).map(document);
    ReviewItem {
        id: id(&record.key, version(record)),
        conversation_id: record.conversation_id.clone(),
        turn: record.turn,
        revision: record.revision,
        at: record.timestamp.filter(|time| *time > 0.0).unwrap_or(now),
        rules,
        question: short(asked.map_or(&record.query, |asked| &asked.text), QUESTION).0,
        query: short(&record.query, QUESTION).0,
        collection: asked.and_then(|asked| asked.collection.clone()),
        status: record.status,
        answer: short(&record.answer, ANSWER).0,
        error: record.error.as_deref().map(|error| short(error, length).0.to_string()),
        hits: record.hits.iter().take(HITS).enumerate().map(hit).collect(),
        more_hits: record.hits.len().saturating_sub(HITS),
        more_documents: further.collect::<BTreeSet<_>>().into_iter().collect(),
        warnings: record.stamp.warnings.iter().take(most).map(|one| short(one, length).0.to_string()).collect(),
        epoch: record.stamp.epoch,
        judgement: None,
    }
}

/// The document of a passage.
fn document(hit: &HitRecord) -> ReviewDocument {
    ReviewDocument { document: hit.document.clone(), corpus: hit.corpus.0.clone() }
}

/// The passages that the answer cites, by their places.
fn cited(record: &AnswerRecord) -> Vec<usize> {
    let numbers = record.checks.get("citations").and_then(Value::as_array).into_iter().flatten();
    numbers.filter_map(|number| usize::try_from(number.as_u64()?.checked_sub(1)?).ok()).collect()
}

/// The beginning of a text, and whether it has more.
fn short(text: &str, most: usize) -> (Arc<str>, bool) {
    match text.char_indices().nth(most) {
        Some((end, _)) => (format!("{}…", &text[..end]).into(), true),
        None => (text.into(), false),
    }
}
