//! What a conversation has mentioned: entities, relations, and the salience of each word.

use std::collections::{HashMap, HashSet};

use super::entities::{Entity, Kind, entities, run};
use crate::words::{Word, is_capital, is_function, key, listed, lower, words};

/// One utterance of the conversation.
#[derive(Clone, Copy, Debug)]
pub struct Said<'t> {
    /// Whether the speaker is the user.
    pub user: bool,
    /// Its text.
    pub text: &'t str,
}

/// Weights of the utterances.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Weight of a turn relative to the next turn.
    pub decay: f32,
    /// Weight of the agent's words relative to the user's.
    pub agent: f32,
    /// Number of content words to read from the start of each agent reply.
    pub agent_words: usize,
}

/// A salient word.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The word as last written.
    pub text: String,
    /// Its salience.
    pub weight: f32,
    order: usize,
}

/// What a conversation has mentioned.
#[derive(Debug, Default)]
pub struct Memory {
    /// Words by their [`key`].
    pub terms: HashMap<String, Term>,
    /// Entities, oldest first.
    pub entities: Vec<Entity>,
    /// Relations, such as `wife` → `Michelle Obama`.
    pub relations: HashMap<String, String>,
    /// Index of the newest entity of several words, by the [`key`] of its last word.
    by_head: HashMap<String, usize>,
}

/// Collects entities while a conversation is read. An entity that is mentioned again moves to the end.
#[derive(Default)]
struct Spoken {
    entities: Vec<Option<Entity>>,
    /// Index of each entity, by its text in lower case.
    places: HashMap<String, usize>,
}

const RELATIONS: &str = "wife husband mother father son daughter brother sister partner boss founder ceo director author \
    president successor predecessor capital owner coach manager";

/// Maximum number of words in the name behind a relation.
const NAME_WORDS: usize = 8;

impl Memory {
    /// Reads a conversation, oldest utterance first.
    pub fn of(history: &[Said<'_>], weights: Weights) -> Self {
        let mut memory = Self::default();
        let mut spoken = Spoken::default();
        let turns = history.iter().filter(|said| said.user).count();
        let mut turn = 0;
        let mut asked_who = false;
        for said in history {
            turn += usize::from(said.user);
            let weight = if said.user { 1.0 } else { weights.agent };
            let weight = weight * weights.decay.powi(turns.saturating_sub(turn) as i32);
            let most = if said.user { usize::MAX } else { weights.agent_words };
            memory.weigh(said.text, weight, most);
            let mut found = entities(said.text, said.user);
            // The first name in the reply to "who" is a person.
            if asked_who
                && !said.user
                && let Some(first) = found.iter_mut().find(|one| one.kind == Kind::Name)
            {
                first.kind = Kind::Person;
            }
            if said.user {
                let first = words(said.text).first().map(|word| lower(word.text));
                asked_who = matches!(first.as_deref(), Some("who" | "whose" | "who's"));
            }
            memory.relate(said.text);
            found.into_iter().for_each(|one| spoken.note(one));
        }
        memory.entities = spoken.entities.into_iter().flatten().collect();
        for (at, one) in memory.entities.iter().enumerate() {
            let parts = words(&one.text);
            if let [_, .., last] = parts.as_slice() {
                memory.by_head.insert(key(last.text), at);
            }
        }
        memory
    }

    fn weigh(&mut self, text: &str, weight: f32, most: usize) {
        if weight <= 0.0 {
            return;
        }
        let mut counted: HashSet<String> = HashSet::new();
        for word in words(text).iter().filter(|word| !is_function(word.text)).take(most) {
            let key = key(word.text);
            if !counted.insert(key.clone()) {
                continue;
            }
            let order = self.terms.len();
            let text = || word.text.trim_end_matches("'s").trim_end_matches("’s").to_owned();
            let term = self.terms.entry(key).or_insert_with(|| Term { text: text(), weight: 0.0, order });
            term.weight += weight;
        }
    }

    /// Reads relations such as "his wife, Michelle Obama" and "the founder is Ada Byron".
    fn relate(&mut self, text: &str) {
        let words = words(text);
        for (at, word) in words.iter().enumerate() {
            let relation = lower(word.text);
            if !listed(RELATIONS, relation.as_str()) {
                continue;
            }
            let mut next = at + 1;
            while words
                .get(next)
                .is_some_and(|word| matches!(lower(word.text).as_str(), "is" | "was" | "named" | "called"))
            {
                next += 1;
            }
            // Bounded, because a text may be one long run of relations.
            let near = &words[..words.len().min(next + NAME_WORDS)];
            let end = words.get(next).filter(|word| is_capital(word.text)).map(|_| run(text, near, next));
            if let Some(end) = end.filter(|&end| end > next) {
                let name = text[words[next].start..words[end - 1].end].to_owned();
                self.relations.insert(relation, name);
            }
        }
    }

    /// The newest entity that ends with this word (given as its key) and has more words.
    pub fn fuller(&self, head: &str) -> Option<&Entity> {
        self.entities.get(*self.by_head.get(head)?)
    }

    /// The `most` most salient words that are not in `said` (sorted keys). Ties are ordered by first mention.
    pub fn salient(&self, said: &[String], most: usize) -> Vec<&Term> {
        let is_said = |key: &String| said.binary_search(key).is_ok();
        let mut terms: Vec<&Term> = self.terms.iter().filter(|(key, _)| !is_said(key)).map(|(_, term)| term).collect();
        terms.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.order.cmp(&b.order)));
        terms.truncate(most);
        terms.sort_by_key(|term| term.order);
        terms
    }

    /// Salience of an entity: the mean over its words.
    pub fn weight(&self, entity: &Entity) -> f32 {
        let words = words(&entity.text);
        let saying: Vec<&Word<'_>> = words.iter().filter(|word| !is_function(word.text)).collect();
        let of = |word: &&Word<'_>| self.terms.get(&key(word.text)).map_or(0.0, |term| term.weight);
        saying.iter().map(of).sum::<f32>() / saying.len().max(1) as f32
    }
}

impl Spoken {
    /// Adds an entity. One that was mentioned before becomes the newest and keeps its most certain kind.
    fn note(&mut self, one: Entity) {
        let place = self.places.insert(one.text.to_ascii_lowercase(), self.entities.len());
        let kept = place.and_then(|place| self.entities[place].take());
        let kind = kept.as_ref().map(|kept| kept.kind).filter(|kind| !matches!(kind, Kind::Name | Kind::Thing));
        let name = one.name || kept.is_some_and(|kept| kept.name);
        self.entities.push(Some(Entity { kind: kind.unwrap_or(one.kind), name, ..one }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_out_by_age_and_speaker() {
        let weights = Weights { decay: 0.5, agent: 0.5, agent_words: 30 };
        let user = |text| Said { user: true, text };
        let history = [
            user("What is Red Hat OpenShift?"),
            Said { user: false, text: "OpenShift runs containers." },
            user("What benefits does it offer?"),
        ];
        let memory = Memory::of(&history, weights);
        let terms: Vec<_> = memory.salient(&[], 3).into_iter().map(|term| (term.text.as_str(), term.weight)).collect();
        assert_eq!(terms, [("OpenShift", 0.75), ("benefits", 1.0), ("offer", 1.0)]);
        assert_eq!(memory.relations.len(), 0);
        let memory = Memory::of(&[user("His wife is Michelle Obama.")], weights);
        assert_eq!(memory.relations["wife"], "Michelle Obama");
    }
}
