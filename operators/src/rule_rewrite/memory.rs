//! What a conversation has spoken of: entities, relations, and how much each word stands out.

use std::collections::HashMap;

use super::entities::{Entity, Kind, entities, run};
use crate::words::{Word, is_capital, is_function, key, listed, lower, words};

/// One thing said before.
#[derive(Clone, Copy, Debug)]
pub struct Said<'t> {
    /// Whether the user said it.
    pub user: bool,
    /// What was said.
    pub text: &'t str,
}

/// How much weight what was said has.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// A turn's weight to that of the turn after it.
    pub decay: f32,
    /// The agent's words' weight to the user's.
    pub agent: f32,
    /// Only so many saying words of each reply count, from its beginning.
    pub agent_words: usize,
}

/// A word that stands out.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// As it was last written.
    pub text: String,
    /// How much it stands out.
    pub weight: f32,
    order: usize,
}

/// What a conversation has spoken of.
#[derive(Debug, Default)]
pub struct Memory {
    /// By [`key`].
    pub terms: HashMap<String, Term>,
    /// Oldest first.
    pub entities: Vec<Entity>,
    /// `wife` → `Michelle Obama`.
    pub relations: HashMap<String, String>,
}

const RELATIONS: &str = "wife husband mother father son daughter brother sister partner boss founder ceo director author \
    president successor predecessor capital owner coach manager";

impl Memory {
    /// Reads a conversation, oldest first.
    pub fn of(history: &[Said<'_>], weights: Weights) -> Self {
        let mut memory = Self::default();
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
            for one in found {
                memory.note(one);
            }
        }
        memory
    }

    fn weigh(&mut self, text: &str, weight: f32, most: usize) {
        let mut counted: Vec<String> = Vec::new();
        for word in words(text).iter().filter(|word| !is_function(word.text)).take(most) {
            let key = key(word.text);
            if weight <= 0.0 || counted.contains(&key) {
                continue;
            }
            let order = self.terms.len();
            let text = word.text.trim_end_matches("'s").trim_end_matches("’s").to_owned();
            let term = self.terms.entry(key.clone()).or_insert(Term { text, weight: 0.0, order });
            term.weight += weight;
            counted.push(key);
        }
    }

    /// What is spoken of again is the newest again, and keeps the surest kind.
    fn note(&mut self, one: Entity) {
        let same = |other: &Entity| other.text.eq_ignore_ascii_case(&one.text);
        let kept = self.entities.iter().position(same).map(|at| self.entities.remove(at));
        let kind = kept.as_ref().map(|kept| kept.kind).filter(|kind| !matches!(kind, Kind::Name | Kind::Thing));
        let name = one.name || kept.is_some_and(|kept| kept.name);
        self.entities.push(Entity { kind: kind.unwrap_or(one.kind), name, ..one });
    }

    /// "his wife, Michelle Obama", "the founder is Ada Byron".
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
            let end = words.get(next).filter(|word| is_capital(word.text)).map(|_| run(text, &words, next));
            if let Some(end) = end.filter(|&end| end > next) {
                let name = text[words[next].start..words[end - 1].end].to_owned();
                self.relations.insert(relation, name);
            }
        }
    }

    /// Words that stand out most and are not in `said` (keys), at most `most`; ties go to what
    /// was said first.
    pub fn salient(&self, said: &[String], most: usize) -> Vec<&Term> {
        let mut terms: Vec<&Term> =
            self.terms.iter().filter(|(key, _)| !said.contains(key)).map(|(_, term)| term).collect();
        terms.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.order.cmp(&b.order)));
        terms.truncate(most);
        terms.sort_by_key(|term| term.order);
        terms
    }

    /// How much an entity stands out: the mean of its words.
    pub fn weight(&self, entity: &Entity) -> f32 {
        let words = words(&entity.text);
        let saying: Vec<&Word<'_>> = words.iter().filter(|word| !is_function(word.text)).collect();
        let of = |word: &&Word<'_>| self.terms.get(&key(word.text)).map_or(0.0, |term| term.weight);
        saying.iter().map(of).sum::<f32>() / saying.len().max(1) as f32
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
