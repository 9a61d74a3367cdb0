//! Composes an answer from sentences of the passages: Hits → Answers. No language model.
//!
//! ```ron
//! ExtractiveAnswer(input: "fused", model: "minilm", passages: 5, sentences: 2)
//! ```
//!
//! Embeds the sentences of the first passages and returns those nearest to the query (cosine) in reading order, each
//! with a citation of its passage among the answer's hits: `[1]`. The answer's support is the best cosine. Without a
//! model, sentences are compared by shared words. Selecting sentences by their similarity to the query is the oldest
//! kind of extractive summary (Carbonell and Goldstein 1998 call it query relevance).
//!
//! Cost: one model input for each sentence that is not cached.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Map;
use turnflow_engine::component::{
    BuildFuture, Call, Capability, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, ScoreUse, built_at_once, config,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::record::{Answer, Hit, Hits, PortType, Status, Value};

use crate::citations::quoted;
use crate::models::embedder;
use crate::sentences::sentence_ranges;
use crate::words::{is_function, lower, words};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<ExtractiveAnswerConfig>(
    "ExtractiveAnswer",
    &[InputPort::one(PortType::Hits)],
    PortType::Answers,
    "the passage sentences nearest to the query, with citations",
);

/// Maximum number of cached sentence vectors.
const REMEMBERED: usize = 20_000;
/// A sentence with fewer letters is too short to be an answer. A character of Chinese, Japanese or Korean counts as three.
const LEAST_LETTERS: usize = 12;
/// A line without a full stop and with fewer words than this is a heading or a label.
const LEAST_WORDS: usize = 6;

/// Fields of `ExtractiveAnswer`.
#[config]
pub struct ExtractiveAnswerConfig {
    /// Input node that produces hits.
    _input: String,
    /// The model that compares sentences with the query. Default: none; sentences are compared by the words that they
    /// share with the query.
    #[field(unset = "none")]
    pub model: Option<String>,
    /// Number of passages to read, best first.
    #[field(default = 5, range = 1..=1000)]
    pub passages: usize,
    /// Maximum number of sentences in the answer.
    #[field(default = 2, range = 1..=1000)]
    pub sentences: usize,
    /// Maximum difference between the cosine of a further sentence and the best cosine, 0 to 2.
    #[field(default = 0.1, range = 0.0..=2.0)]
    pub margin: f32,
}

impl OperatorConfig for ExtractiveAnswerConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let of = |name| ModelUse { field: "model", name, capability: Capability::Embed };
        self.model.iter().map(|name| of(name.as_str())).collect()
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let embedder = self.model.as_ref().map(|model| embedder(models, model, "ExtractiveAnswer")).transpose()?;
            Ok(Arc::new(ExtractiveAnswer { config: self.clone(), embedder, seen: Mutex::default() }))
        })
    }
}

struct ExtractiveAnswer {
    config: ExtractiveAnswerConfig,
    embedder: Option<Arc<dyn Embedder>>,
    seen: Mutex<Seen>,
}

/// A cache with two generations. When the young one is full, it becomes the old one, and entries of the former old one
/// that were not used since are dropped.
#[derive(Default)]
struct Seen {
    young: HashMap<blake3::Hash, Vector>,
    old: HashMap<blake3::Hash, Vector>,
}

impl Seen {
    fn get(&mut self, key: &blake3::Hash) -> Option<Vector> {
        if let Some(vector) = self.young.get(key) {
            return Some(vector.clone());
        }
        let vector = self.old.remove(key)?;
        self.put(*key, vector.clone());
        Some(vector)
    }

    fn put(&mut self, key: blake3::Hash, vector: Vector) {
        if self.young.len() >= REMEMBERED / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, vector);
    }
}

/// A sentence and the index of its passage.
#[derive(Clone, Debug, PartialEq)]
struct Sentence {
    passage: usize,
    text: String,
}

impl Operator for ExtractiveAnswer {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let Hits { query, hits } = &**call.hits(0)?;
            let hits = &hits[..hits.len().min(self.config.passages)];
            let (sentences, left_out) = sentences(hits);
            if left_out > 0 {
                call.warnings.add(format!("{left_out} sentences exceeded the limit and were not compared"));
            }
            let (text, support) = if sentences.is_empty() {
                (String::new(), None)
            } else if let Some(embedder) = &self.embedder {
                let asked = embedder.embed(vec![query.text.to_string()], Role::Query, Priority::Turn);
                let (asked, vectors) = futures::join!(asked, self.vectors(&**embedder, &sentences));
                let asked = asked?.into_iter().next().unwrap_or_else(|| Vector::from([]));
                let cosines: Vec<f32> = vectors?.iter().map(|vector| cosine(&asked, vector)).collect();
                compose(&sentences, &cosines, self.config.sentences, self.config.margin)
            } else {
                let asked = content_words(&query.text);
                let cosines: Vec<f32> = sentences.iter().map(|sentence| shared(&asked, &sentence.text)).collect();
                compose(&sentences, &cosines, self.config.sentences, self.config.margin)
            };
            let status = if text.is_empty() { Status::Idk } else { Status::Answered };
            let answer = Answer {
                query: query.clone(),
                text: text.into(),
                status,
                hits: hits.to_vec(),
                support,
                checks: Map::new(),
            };
            Ok(Value::Answer(Arc::new(answer)))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(self.config.passages)
    }
}

impl ExtractiveAnswer {
    /// One vector for each sentence. Only sentences that are not cached go to the model.
    async fn vectors(&self, embedder: &dyn Embedder, sentences: &[Sentence]) -> Result<Vec<Vector>, InferenceError> {
        let keys: Vec<blake3::Hash> = sentences.iter().map(|sentence| blake3::hash(sentence.text.as_bytes())).collect();
        let mut known: HashMap<blake3::Hash, Vector> = HashMap::new();
        let mut new: Vec<(blake3::Hash, String)> = Vec::new();
        let mut asked: HashSet<blake3::Hash> = HashSet::new();
        {
            let mut seen = self.seen.lock();
            for (key, sentence) in keys.iter().zip(sentences) {
                match seen.get(key) {
                    Some(vector) => drop(known.insert(*key, vector)),
                    None if !asked.insert(*key) => {}
                    None => new.push((*key, sentence.text.clone())),
                }
            }
        }
        let (new_keys, texts): (Vec<_>, Vec<_>) = new.into_iter().unzip();
        let vectors = embedder.embed(texts, Role::Passage, Priority::Turn).await?;
        let mut seen = self.seen.lock();
        for (key, vector) in new_keys.into_iter().zip(vectors) {
            seen.put(key, vector.clone());
            known.insert(key, vector);
        }
        Ok(keys.iter().filter_map(|key| known.get(key).cloned()).collect())
    }
}

/// Maximum number of sentences to compare, because each may be a model call.
const MOST_SENTENCES: usize = 1024;

/// The passages' sentences without duplicates, and how many were left out over the limit. Headings and labels repeat
/// the question's words without answering them, so they are used only if there is nothing else.
fn sentences(hits: &[Hit]) -> (Vec<Sentence>, usize) {
    let mut sentences: Vec<Sentence> = Vec::new();
    let mut there: HashSet<blake3::Hash> = HashSet::new();
    for (passage, hit) in hits.iter().enumerate() {
        for (start, end) in sentence_ranges(&hit.chunk.text) {
            let text = plain(&hit.chunk.text[start..end]);
            let says_something = letters(&text) >= LEAST_LETTERS;
            // Passages may overlap; a repeated sentence is cited where it occurs first.
            if says_something && there.insert(blake3::hash(text.as_bytes())) {
                sentences.push(Sentence { passage, text });
            }
        }
    }
    let is_whole = |sentence: &Sentence| {
        let end = sentence.text.trim_end_matches(['"', '\'', ')', ']', '”', '’', '*', '_', '」', '』', '）', '】']);
        // Two characters without blanks between words are about a word.
        let unspaced = sentence.text.chars().filter(|c| is_unspaced(*c)).count();
        end.ends_with(['.', '!', '?', ';', '。', '！', '？', '；', '．', '｡', '।', '؟', '۔'])
            || sentence.text.split_whitespace().count() + unspaced / 2 >= LEAST_WORDS
    };
    if sentences.iter().any(is_whole) {
        sentences.retain(is_whole);
    }
    let left_out = sentences.len().saturating_sub(MOST_SENTENCES);
    sentences.truncate(MOST_SENTENCES);
    (sentences, left_out)
}

/// The text on one line, without leading marks of lists, quotes and headings. A sign that belongs to a word stays: `-40`,
/// `>5`, `--dry-run`, `**kwargs`, `#FF0000`.
fn plain(text: &str) -> String {
    let mut text = text.trim_start();
    loop {
        let rest = text.trim_start_matches('#');
        let level = text.len() - rest.len();
        let heading = (1..=6).contains(&level).then_some(rest);
        let mark = text
            .strip_prefix(['-', '*', '+', '>', '|'])
            .or(heading)
            .filter(|rest| rest.starts_with(char::is_whitespace));
        // A quote may follow its mark at once, unless it begins with a number.
        let quote = text.strip_prefix('>').filter(|rest| rest.starts_with(|c: char| c.is_alphabetic() || c == '>'));
        match mark.or(quote).or_else(|| text.strip_prefix('•')) {
            Some(rest) => text = rest.trim_start(),
            None => return text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }
}

/// Whether a character is of a script that has no blanks between words.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}')
}

/// The number of letters and digits, where a character of a dense script counts as three.
fn letters(text: &str) -> usize {
    text.chars().filter(|c| c.is_alphanumeric()).map(|c| if is_unspaced(c) { 3 } else { 1 }).sum()
}

/// The content words of a text, without duplicates. Where no blanks separate words, each pair of characters is a word.
fn content_words(text: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    for word in words(text) {
        let letters: Vec<char> = word.text.chars().filter(|c| is_unspaced(*c)).collect();
        match letters.len() {
            0 => _ = Some(lower(word.text)).filter(|word| !is_function(word)).map(|word| found.insert(word)),
            1 => _ = found.insert(letters.iter().collect()),
            _ => found.extend(letters.windows(2).map(|pair| pair.iter().collect())),
        }
    }
    found
}

/// The cosine of two texts' sets of content words (Salton's vector space).
fn shared(asked: &HashSet<String>, text: &str) -> f32 {
    let said = content_words(text);
    let both = asked.intersection(&said).count() as f32;
    if both > 0.0 { both / (asked.len() as f32 * said.len() as f32).sqrt() } else { 0.0 }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

/// Joins the nearest sentences in reading order, each with its citation; also returns the best cosine. References of the
/// passages themselves are no citations.
fn compose(sentences: &[Sentence], cosines: &[f32], most: usize, margin: f32) -> (String, Option<f32>) {
    let mut order: Vec<usize> = (0..sentences.len().min(cosines.len())).collect();
    order.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]).then(a.cmp(&b)));
    let Some(&first) = order.first() else { return (String::new(), None) };
    let best = cosines[first];
    let mut chosen: Vec<usize> = order.into_iter().take(most).filter(|&at| cosines[at] >= best - margin).collect();
    chosen.sort_unstable();
    let cite = |at: usize| format!("{} [{}]", quoted(&sentences[at].text), sentences[at].passage + 1);
    (chosen.into_iter().map(cite).collect::<Vec<_>>().join(" "), Some(best))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_engine::document::Chunk;

    #[test]
    fn sentences_are_cited_in_reading_order() {
        let sentence = |passage, text: &str| Sentence { passage, text: text.into() };
        let sentences = [sentence(0, "A."), sentence(0, "B."), sentence(2, "C.")];
        assert_eq!(compose(&sentences, &[0.5, 0.1, 0.55], 2, 0.1), ("A. [1] C. [3]".into(), Some(0.55)));
        assert_eq!(compose(&sentences, &[0.2, 0.1, 0.55], 2, 0.1), ("C. [3]".into(), Some(0.55)));
        assert_eq!(compose(&[], &[], 2, 0.1), (String::new(), None));
        let own = [sentence(1, "Numbers fell by half [3], says the survey of 1990.[1, 2]")];
        let (text, _) = compose(&own, &[0.5], 2, 0.1);
        assert_eq!(text, "Numbers fell by half (3), says the survey of 1990.(1, 2) [2]");
        assert_eq!(crate::citations::check(&text, 3).passages, [2]);
    }

    #[test]
    fn without_a_model_shared_words_decide() {
        let asked = content_words("When does the ferry leave?");
        assert!(
            shared(&asked, "The ferry leaves; they leave at noon.") > shared(&asked, "The ferry is old and rusty.")
        );
        assert_eq!(shared(&asked, "A gull sat on the lamp."), 0.0);
        assert_eq!(shared(&content_words(""), "A gull."), 0.0);
    }

    #[test]
    fn signs_stay_and_marks_go() {
        for (text, want) in [
            ("- one\n  two", "one two"),
            ("### Title", "Title"),
            ("> > quoted", "quoted"),
            (">quoted", "quoted"),
            ("* **Note:** x", "**Note:** x"),
            ("•x", "x"),
            ("-40 degrees", "-40 degrees"),
            (">5 items", ">5 items"),
            ("--dry-run does nothing", "--dry-run does nothing"),
            ("- --dry-run", "--dry-run"),
            ("**kwargs are passed", "**kwargs are passed"),
            ("#FF0000 is red", "#FF0000 is red"),
            ("####### seven", "####### seven"),
            ("+1 for this", "+1 for this"),
        ] {
            assert_eq!(plain(text), want);
        }
    }

    #[test]
    fn short_sentences_without_blanks_are_answers() {
        let text = "渡船十点开。博物馆周一闭馆。请在码头买票，每张票四欧元，儿童半价。";
        let hit = Hit { chunk: Arc::new(Chunk::new("a".into(), "a".into(), "".into(), text.into())), score: 1.0 };
        let (sentences, _) = sentences(&[hit]);
        assert_eq!(sentences.len(), 3);
        for (question, want) in [("渡船几点开？", "十点"), ("博物馆哪天闭馆？", "周一"), ("儿童票价？", "半价")]
        {
            let asked = content_words(question);
            let cosines: Vec<f32> = sentences.iter().map(|sentence| shared(&asked, &sentence.text)).collect();
            let (answer, _) = compose(&sentences, &cosines, 1, 0.1);
            assert!(answer.contains(want), "{question} {answer}");
        }
    }

    #[test]
    fn headings_are_no_answers_where_there_are_sentences() {
        let hit = |text: &str| Hit {
            chunk: Arc::new(Chunk::new("a".into(), "a".into(), "".into(), text.into())),
            score: 1.0,
        };
        let texts = |hits: &[Hit]| sentences(hits).0.into_iter().map(|sentence| sentence.text).collect::<Vec<_>>();
        assert_eq!(texts(&[hit("THE REPORTING OFFICER"), hit("A firm appoints one.")]), ["A firm appoints one."]);
        assert_eq!(texts(&[hit("THE REPORTING OFFICER")]), ["THE REPORTING OFFICER"]);
    }

    #[test]
    fn repeated_and_empty_sentences_are_left_out() {
        let hit = |id: &str, text: &str| Hit {
            chunk: Arc::new(Chunk::new(id.into(), id.into(), "".into(), text.into())),
            score: 1.0,
        };
        let hits = [
            hit("a", "- A sentence that says a lot.\n\n42."),
            hit("b", "A sentence that says a lot. And one more here."),
        ];
        let got: Vec<_> = sentences(&hits).0.into_iter().map(|sentence| (sentence.passage, sentence.text)).collect();
        assert_eq!(got, [(0, "A sentence that says a lot.".into()), (1, "And one more here.".into())]);
    }

    #[test]
    fn what_is_asked_for_again_outlives_a_generation() {
        let mut seen = Seen::default();
        let key = |n: usize| blake3::hash(&n.to_le_bytes());
        for n in 0..REMEMBERED {
            seen.put(key(n), Vector::from([n as f32]));
            assert!(seen.get(&key(0)).is_some());
        }
        assert!(seen.young.len() + seen.old.len() <= REMEMBERED);
        assert!(seen.get(&key(1)).is_none());
    }
}
