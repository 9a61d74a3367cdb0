//! Decoding: greedy, sampled and beam search, independent of the model.
//!
//! A [`Search`] takes the logits after each of its rows (prefixes), and returns which rows the new rows continue. The
//! caller keeps the model's state of each row, and may step the rows of many searches in one batch.
//!
//! Rules and scores are those of Hugging Face's `generate`. The repetition penalty (Keskar et al. 2019) and the ban on
//! repeated n-grams (Paulus et al. 2018) apply to the given tokens (the prompt, or a decoder's start token) and the
//! generated ones. A beam's score is its log probability / (tokens, the end included) ^ length penalty. With early
//! stopping, a beam search ends once it has as many finished beams as beams; without it (Hugging Face's `"never"`),
//! when no open beam can improve the result. Beams are not sampled.
//!
//! The same logits give the same tokens: ties go to the smaller token id, and random numbers depend on the seed and the
//! given tokens, not on the rest of the batch.

use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Finish, Sampling};

use super::grammar::Grammar;

/// A search for one text.
pub(crate) struct Search {
    sampling: Sampling,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// Minimum number of tokens before the text may end.
    min_tokens: usize,
    given: Vec<u32>,
    rows: Vec<Row>,
    /// The best finished beams, best first.
    finished: Vec<Found>,
    random: blake3::OutputReader,
    /// The form of the text, if it must have one.
    grammar: Option<Grammar>,
    /// Why the text cannot be had.
    fault: Option<InferenceError>,
}

/// A prefix.
#[derive(Clone, Debug, Default)]
struct Row {
    tokens: Vec<u32>,
    /// Sum of the tokens' log probabilities; computed only for beam search.
    score: f64,
}

/// A finished text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// Its tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// For beam search: log probability / length ^ penalty.
    pub score: f64,
}

impl Search {
    /// Starts a search after `given`, with one row.
    pub fn new(sampling: Sampling, ends: Vec<u32>, min_tokens: usize, given: Vec<u32>) -> Self {
        let random = random(sampling.seed, given.iter());
        let (rows, finished, grammar, fault) = (vec![Row::default()], Vec::new(), None, None);
        Self { sampling, ends, min_tokens, given, rows, finished, random, grammar, fault }
    }

    /// Holds the text to a form. Rules against repetition and beams do not apply then: a form repeats its signs.
    pub fn formed(mut self, grammar: Grammar) -> Self {
        (self.sampling.beams, self.sampling.no_repeat_ngram, self.sampling.repetition_penalty) = (1, 0, 1.0);
        (self.min_tokens, self.grammar) = (0, Some(grammar));
        self
    }

    /// Makes the random numbers depend on these tokens too, for models whose prompt is not part of `given`.
    pub fn seeded_by(mut self, prompt: &[u32]) -> Self {
        self.random = random(self.sampling.seed, self.given.iter().chain(prompt));
        self
    }

    /// Number of rows that need logits; 0 once the search has ended.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Maximum number of rows that the search can have.
    pub fn width(&self) -> usize {
        self.sampling.beams.max(1)
    }

    /// The last token of each row; none before the first step.
    pub fn last(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.iter().filter_map(|row| row.tokens.last().copied())
    }

    /// The generated tokens of the first row.
    pub fn so_far(&self) -> &[u32] {
        self.rows.first().map_or(&[], |row| &row.tokens)
    }

    /// Ends the search with the first row, because of a stop string.
    pub fn stop(&mut self) {
        if let Some(row) = self.rows.drain(..).next() {
            self.finished = vec![Found { tokens: row.tokens, finish: Finish::Stop, score: row.score }];
        }
    }

    /// The best finished text. The search must have ended ([`Search::rows`] is 0).
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn found(self) -> Result<Found, InferenceError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        self.finished.into_iter().next().ok_or_else(|| InferenceError::Failed("decoding returned no text".into()))
    }

    /// Takes the logits after each row. Returns, for each new row, the index of the row that it continues; empty once
    /// the search has ended.
    pub fn advance(&mut self, logits: &[&[f32]]) -> Vec<usize> {
        if self.sampling.beams > 1 { self.beams(logits) } else { self.one(logits.first().copied().unwrap_or(&[])) }
    }

    fn one(&mut self, logits: &[f32]) -> Vec<usize> {
        let Some(mut row) = self.rows.pop() else { return Vec::new() };
        let mut scores = logits.to_vec();
        self.rule(&mut scores, &row.tokens);
        if let Some(Err(fault)) = self.grammar.as_mut().map(|grammar| grammar.rule(&mut scores)) {
            self.fault = Some(fault);
            return Vec::new();
        }
        let chosen = if self.sampling.temperature > 0.0 { self.sample(&scores) } else { best(&scores) };
        let finish = match chosen {
            Some(token) if !self.ends.contains(&token) => {
                row.tokens.push(token);
                let is_over = self.grammar.as_mut().map(|grammar| grammar.take(token)).transpose();
                match is_over {
                    Ok(Some(true)) => Some(Finish::Stop),
                    Ok(_) => (row.tokens.len() >= self.sampling.max_tokens).then_some(Finish::Length),
                    Err(fault) => {
                        self.fault = Some(fault);
                        return Vec::new();
                    }
                }
            }
            _ => Some(Finish::Stop),
        };
        match finish {
            Some(finish) => self.finished = vec![Found { tokens: row.tokens, finish, score: 0.0 }],
            None => self.rows.push(row),
        }
        (0..self.rows.len()).collect()
    }

    fn beams(&mut self, logits: &[&[f32]]) -> Vec<usize> {
        let width = self.sampling.beams;
        // Enough candidates for `width` open beams, even if some of them end.
        let wanted = width * (1 + self.ends.len()).max(2);
        let mut candidates: Vec<(f64, usize, u32)> = Vec::new();
        for (parent, (row, logits)) in self.rows.iter().zip(logits).enumerate() {
            let mut scores = log_softmax(logits);
            self.rule(&mut scores, &row.tokens);
            let tokens = likeliest(&scores, wanted).into_iter();
            candidates.extend(tokens.map(|token| (row.score + f64::from(scores[token as usize]), parent, token)));
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let length = self.rows.first().map_or(0, |row| row.tokens.len()) + 1;
        let (mut next, mut parents) = (Vec::with_capacity(width), Vec::with_capacity(width));
        for (rank, (score, parent, token)) in candidates.into_iter().take(wanted).enumerate() {
            let mut tokens = self.rows[parent].tokens.clone();
            if self.ends.contains(&token) {
                // A wider search would drop an end at a lower rank.
                if rank < width {
                    self.finish(tokens, Finish::Stop, self.normal(score, length));
                }
                continue;
            }
            tokens.push(token);
            next.push(Row { tokens, score });
            parents.push(parent);
            if next.len() == width {
                break;
            }
        }
        self.rows = next;
        if self.decided(length) {
            self.rows.clear();
        } else if length >= self.sampling.max_tokens {
            for row in std::mem::take(&mut self.rows) {
                self.finish(row.tokens, Finish::Length, self.normal(row.score, length));
            }
        }
        if self.rows.is_empty() {
            if self.finished.is_empty() {
                self.finish(Vec::new(), Finish::Stop, f64::NEG_INFINITY);
            }
            parents.clear();
        }
        parents
    }

    fn normal(&self, score: f64, length: usize) -> f64 {
        score / (length as f64).powf(f64::from(self.sampling.length_penalty))
    }

    fn finish(&mut self, tokens: Vec<u32>, finish: Finish, score: f64) {
        let at = self.finished.partition_point(|other| other.score >= score);
        self.finished.insert(at, Found { tokens, finish, score });
        self.finished.truncate(self.sampling.beams);
    }

    /// Whether the open rows can no longer change the result.
    fn decided(&self, length: usize) -> bool {
        let Some(worst) = self.finished.get(self.sampling.beams - 1) else { return false };
        if self.sampling.early_stopping {
            return true;
        }
        // Log probabilities only decrease. A length penalty above 0 favours the longest text most.
        let longest = if self.sampling.length_penalty > 0.0 { self.sampling.max_tokens } else { length };
        let best = self.rows.iter().map(|row| row.score).fold(f64::NEG_INFINITY, f64::max);
        worst.score >= self.normal(best, longest)
    }

    /// Applies the rules to the scores of the tokens that may follow `tokens`.
    fn rule(&self, scores: &mut [f32], tokens: &[u32]) {
        let penalty = self.sampling.repetition_penalty;
        let whole: Vec<u32> = self.given.iter().chain(tokens).copied().collect();
        #[allow(clippy::float_cmp, reason = "1 is the neutral value, as configured")]
        if penalty != 1.0 {
            let mut seen = whole.clone();
            seen.sort_unstable();
            seen.dedup();
            for token in seen {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
                }
            }
        }
        for token in repeats(&whole, self.sampling.no_repeat_ngram) {
            scores.get_mut(token as usize).into_iter().for_each(|score| *score = f32::NEG_INFINITY);
        }
        if tokens.len() < self.min_tokens {
            for &end in &self.ends {
                scores.get_mut(end as usize).into_iter().for_each(|score| *score = f32::NEG_INFINITY);
            }
        }
    }

    /// A random token, drawn from softmax(scores / temperature) restricted to `top_k` and `top_p`.
    fn sample(&mut self, scores: &[f32]) -> Option<u32> {
        let Sampling { temperature, top_p, top_k, .. } = self.sampling;
        let count = if top_k == 0 { scores.len() } else { top_k };
        let order: Vec<u32> = if count < scores.len() || top_p < 1.0 {
            likeliest(scores, count)
        } else {
            (0..scores.len() as u32).filter(|&token| scores[token as usize] > f32::NEG_INFINITY).collect()
        };
        let top = order.iter().map(|&token| scores[token as usize]).fold(f32::NEG_INFINITY, f32::max);
        let weight = |token: u32| f64::from((scores[token as usize] - top) / temperature).exp();
        let total: f64 = order.iter().map(|&token| weight(token)).sum();
        let (mut kept, mut sum) = (0, 0.0);
        while kept < order.len() && (kept == 0 || sum < total * f64::from(top_p)) {
            sum += weight(order[kept]);
            kept += 1;
        }
        let mut left = self.random() * sum;
        let chosen = order[..kept].iter().find(|&&token| {
            left -= weight(token);
            left < 0.0
        });
        chosen.or(order[..kept].last()).copied()
    }

    /// A random number, at least 0 and less than 1.
    fn random(&mut self) -> f64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Random bytes, determined by a seed and some tokens.
fn random<'a>(seed: u64, tokens: impl Iterator<Item = &'a u32>) -> blake3::OutputReader {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    tokens.for_each(|token| _ = hasher.update(&token.to_le_bytes()));
    hasher.finalize_xof()
}

/// The token with the highest score (the first, if several); `None` if all tokens are banned.
fn best(scores: &[f32]) -> Option<u32> {
    let better = |best: Option<usize>, at: usize| match best {
        Some(best) if scores[best] >= scores[at] => Some(best),
        _ => Some(at),
    };
    let allowed = (0..scores.len()).filter(|&at| scores[at] > f32::NEG_INFINITY);
    allowed.fold(None, better).map(|token| token as u32)
}

/// The `count` tokens with the highest scores, best first, without banned ones.
fn likeliest(scores: &[f32], count: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    let mut tokens: Vec<u32> =
        (0..scores.len() as u32).filter(|&token| scores[token as usize] > f32::NEG_INFINITY).collect();
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, order);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by(order);
    tokens
}

/// The logarithm of the softmax of the logits.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    let log = sum.ln() as f32;
    logits.iter().map(|logit| logit - top - log).collect()
}

/// Tokens that would complete an n-gram of `n` tokens that already occurs in `tokens`; none if `n` is 0.
fn repeats(tokens: &[u32], n: usize) -> Vec<u32> {
    if n == 0 || tokens.len() < n {
        return Vec::new();
    }
    let end = &tokens[tokens.len() + 1 - n..];
    tokens.windows(n).filter(|window| &window[..n - 1] == end).map(|window| window[n - 1]).collect()
}

#[cfg(test)]
mod tests;
