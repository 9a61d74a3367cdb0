//! The longest run of words that a text shares with other texts, found with a suffix automaton of the text (Blumer et
//! al. 1985). Linear in the length of all texts.

use std::collections::HashMap;

/// A set of runs of the text that end at the same positions.
struct State {
    next: HashMap<u32, usize>,
    /// The state of the longest suffixes of these runs that also end at other positions.
    link: Option<usize>,
    /// Number of words in the longest of these runs.
    length: usize,
    /// The last position where it ends, in words.
    last_end: usize,
}

/// All runs of a text's words.
pub(crate) struct Runs<'w> {
    numbers: HashMap<&'w str, u32>,
    states: Vec<State>,
}

impl<'w> Runs<'w> {
    /// Builds the automaton of these words.
    pub fn of(words: &'w [String]) -> Self {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut states = vec![State { next: HashMap::new(), link: None, length: 0, last_end: 0 }];
        let mut last = 0;
        for (at, word) in words.iter().enumerate() {
            let number = numbers.len() as u32;
            let number = *numbers.entry(word).or_insert(number);
            let new = states.len();
            states.push(State { next: HashMap::new(), link: Some(0), length: at + 1, last_end: at + 1 });
            let mut before = Some(last);
            while let Some(state) = before.filter(|&state| !states[state].next.contains_key(&number)) {
                states[state].next.insert(number, new);
                before = states[state].link;
            }
            if let Some(state) = before {
                let other = states[state].next[&number];
                let link = if states[other].length == states[state].length + 1 {
                    other
                } else {
                    // Separates the runs that now end here too from those that do not.
                    let copy = states.len();
                    let State { next, link, .. } = &states[other];
                    let (next, link) = (next.clone(), *link);
                    states.push(State { next, link, length: states[state].length + 1, last_end: 0 });
                    let mut before = Some(state);
                    while let Some(state) =
                        before.filter(|&state| states[state].next.get(&number).is_some_and(|next| *next == other))
                    {
                        states[state].next.insert(number, copy);
                        before = states[state].link;
                    }
                    states[other].link = Some(copy);
                    copy
                };
                states[new].link = Some(link);
            }
            last = new;
        }
        // All suffixes of a run end where the run ends.
        let mut order: Vec<usize> = (1..states.len()).collect();
        order.sort_unstable_by_key(|&state| std::cmp::Reverse(states[state].length));
        for state in order {
            if let Some(link) = states[state].link {
                states[link].last_end = states[link].last_end.max(states[state].last_end);
            }
        }
        Self { numbers, states }
    }

    /// The first of the longest runs that also occur in these words: the last position where it ends in the text, and
    /// its number of words.
    pub fn longest<'o>(&self, other: impl Iterator<Item = &'o str>) -> (usize, usize) {
        let (mut state, mut length) = (0, 0);
        let (mut end, mut most) = (0, 0);
        for word in other {
            let Some(number) = self.numbers.get(word) else {
                (state, length) = (0, 0);
                continue;
            };
            loop {
                if let Some(next) = self.states[state].next.get(number) {
                    (state, length) = (*next, length + 1);
                    break;
                }
                match self.states[state].link {
                    Some(link) => (state, length) = (link, self.states[link].length),
                    None => break,
                }
            }
            if length > most {
                (end, most) = (self.states[state].last_end, length);
            }
        }
        (end, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Brute-force reference implementation.
    fn tried(text: &[String], other: &[String]) -> (usize, usize) {
        let (mut end, mut most) = (0, 0);
        let mut runs = vec![0; text.len() + 1];
        for word in other {
            for at in (0..text.len()).rev() {
                runs[at + 1] = if text[at] == *word { runs[at] + 1 } else { 0 };
                if runs[at + 1] > most {
                    (most, end) = (runs[at + 1], at + 1);
                }
            }
        }
        (end, most)
    }

    #[test]
    fn it_finds_what_trying_all_finds() {
        let mut number = 7_u32;
        let mut words = |count: usize, of: u32| -> Vec<String> {
            let mut word = || {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((number >> 16) % of).to_string()
            };
            (0..count).map(|_| word()).collect()
        };
        for size in 0..60 {
            for of in [1, 2, 3, 9] {
                let (text, other) = (words(size, of), words(40, of));
                let found = Runs::of(&text).longest(other.iter().map(String::as_str));
                assert_eq!(found, tried(&text, &other), "{text:?} {other:?}");
            }
        }
    }

    #[test]
    fn long_texts_take_no_longer_than_they_are_long() {
        let text: Vec<String> = (0..100_000).map(|n| (n % 10).to_string()).collect();
        let other: Vec<&str> = std::iter::repeat_n(["1", "2", "x"], 100_000).flatten().collect();
        assert_eq!(Runs::of(&text).longest(other.into_iter()), (99_993, 2));
    }
}
