//! Tests the search against brute force and against small examples computed by hand.

use super::*;

/// A model: what follows each prefix.
trait NextTokens {
    /// The log probability of each token.
    fn log_probabilities(&self, prefix: &[u32]) -> Vec<f32>;
}

/// A random model: each prefix has its own probabilities.
struct Table {
    seed: u64,
    vocabulary: usize,
}

impl NextTokens for Table {
    fn log_probabilities(&self, prefix: &[u32]) -> Vec<f32> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes());
        prefix.iter().for_each(|token| _ = hasher.update(&token.to_le_bytes()));
        let mut bytes = vec![0; self.vocabulary];
        hasher.finalize_xof().fill(&mut bytes);
        log_softmax(&bytes.iter().map(|byte| f32::from(*byte) / 64.0).collect::<Vec<f32>>())
    }
}

/// A model that sees only the last token.
struct Chain(Vec<Vec<f32>>);

impl NextTokens for Chain {
    fn log_probabilities(&self, prefix: &[u32]) -> Vec<f32> {
        let row = prefix.last().map_or(0, |token| *token as usize);
        self.0[row].iter().map(|probability| probability.ln()).collect()
    }
}

fn run(model: &dyn NextTokens, mut search: Search) -> Found {
    let mut prefixes = vec![search.given.clone()];
    while search.rows() > 0 {
        let logits: Vec<Vec<f32>> = prefixes.iter().map(|prefix| model.log_probabilities(prefix)).collect();
        let parents = search.advance(&logits.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let last: Vec<u32> = search.last().collect();
        prefixes = parents
            .iter()
            .zip(last)
            .map(|(&parent, token)| prefixes[parent].iter().copied().chain([token]).collect())
            .collect();
    }
    search.found().unwrap()
}

fn sampling(beams: usize, max_tokens: usize) -> Sampling {
    Sampling { beams, max_tokens, ..Sampling::default() }
}

/// The best of all possible texts, by length-normalised log probability.
fn brute_force(model: &dyn NextTokens, sampling: &Sampling, vocabulary: u32) -> (Vec<u32>, f64) {
    let normal = |sum: f64, length: usize| sum / (length as f64).powf(f64::from(sampling.length_penalty));
    let (mut best, mut open) = ((Vec::new(), f64::NEG_INFINITY), vec![(Vec::new(), 0.0)]);
    for length in 1..=sampling.max_tokens {
        let mut longer = Vec::new();
        for (prefix, sum) in open {
            let next = model.log_probabilities(&prefix);
            for token in 0..vocabulary {
                let sum: f64 = sum + f64::from(next[token as usize]);
                let mut tokens: Vec<u32> = prefix.clone();
                let ended = token == 0;
                if !ended {
                    tokens.push(token);
                }
                if (ended || length == sampling.max_tokens) && normal(sum, length) > best.1 {
                    best = (tokens.clone(), normal(sum, length));
                }
                if !ended {
                    longer.push((tokens, sum));
                }
            }
        }
        open = longer;
    }
    best
}

#[test]
fn a_wide_beam_finds_what_brute_force_finds() {
    for seed in 0..40 {
        for length_penalty in [-0.5, 0.0, 1.0, 2.0] {
            let model = Table { seed, vocabulary: 4 };
            let sampling = Sampling { length_penalty, early_stopping: false, ..sampling(64, 4) };
            let (tokens, score) = brute_force(&model, &sampling, 4);
            let found = run(&model, Search::new(sampling, vec![0], 0, vec![]));
            assert_eq!(found.tokens, tokens, "seed {seed}, length penalty {length_penalty}");
            assert!((found.score - score).abs() < 1e-5);
        }
    }
}

/// Greedy search takes 1 (0.5) and then at most 0.4; two beams find 2, then 3 (0.4 × 0.9).
#[test]
fn beams_look_further_than_greedy() {
    let chain = Chain(vec![
        vec![0.0, 0.5, 0.4, 0.1],
        vec![0.4, 0.3, 0.2, 0.1],
        vec![0.05, 0.03, 0.02, 0.9],
        vec![0.97, 0.01, 0.01, 0.01],
    ]);
    let greedy = run(&chain, Search::new(sampling(1, 8), vec![0], 0, vec![]));
    assert_eq!((greedy.tokens, greedy.finish), (vec![1], Finish::Stop));
    let beams = run(&chain, Search::new(sampling(2, 8), vec![0], 0, vec![]));
    assert_eq!((beams.tokens, beams.finish), (vec![2, 3], Finish::Stop));
}

/// With the end, `[1]` has ln(0.6 × 0.5) over 2 tokens, and `[2, 2, 2]` has ln(0.4 × 0.6³) over 4.
#[test]
fn the_length_penalty_and_early_stopping_choose_between_short_and_long() {
    let chain = Chain(vec![vec![0.0, 0.6, 0.4], vec![0.5, 0.25, 0.25], vec![0.3, 0.1, 0.6]]);
    let tokens = |length_penalty, early_stopping| {
        let sampling = Sampling { length_penalty, early_stopping, ..sampling(2, 4) };
        run(&chain, Search::new(sampling, vec![0], 0, vec![])).tokens
    };
    assert_eq!(tokens(0.0, true), [1]);
    // Two texts end before the long one.
    assert_eq!(tokens(3.0, false).len(), 4);
    assert!(tokens(3.0, true).len() < 4);
}

#[test]
fn no_run_comes_twice() {
    assert_eq!(repeats(&[1, 2, 3, 1, 2], 3), [3]);
    assert_eq!(repeats(&[1, 2, 1, 3, 1], 2), [2, 3]);
    assert_eq!(repeats(&[4, 5], 1), [4, 5]);
    assert!(repeats(&[1, 2, 3], 0).is_empty() && repeats(&[1], 2).is_empty());
    // Without a rule, 1 is followed by 2, and 2 by 1, for ever.
    let chain = Chain(vec![vec![0.1, 0.8, 0.1, 0.0], vec![0.1, 0.1, 0.7, 0.1], vec![0.1, 0.6, 0.1, 0.2], vec![1.0; 4]]);
    for beams in [1, 3] {
        let sampling = Sampling { no_repeat_ngram: 2, ..sampling(beams, 12) };
        let found = run(&chain, Search::new(sampling, vec![], 0, vec![1, 2]));
        let whole: Vec<u32> = [1, 2].into_iter().chain(found.tokens).collect();
        let mut pairs: Vec<&[u32]> = whole.windows(2).collect();
        pairs.sort_unstable();
        assert!(pairs.windows(2).all(|two| two[0] != two[1]), "{whole:?}");
    }
}

#[test]
fn rules_of_length_and_repetition() {
    let chain = Chain(vec![vec![0.6, 0.4], vec![0.9, 0.1]]);
    let found = run(&chain, Search::new(sampling(1, 9), vec![0], 3, vec![]));
    assert_eq!(found.tokens, [1, 1, 1], "no end before three tokens");
    let found = run(&chain, Search::new(sampling(1, 2), vec![0], 3, vec![]));
    assert_eq!((found.tokens, found.finish), (vec![1, 1], Finish::Length));
    // 0.5 against 0.4: log probabilities are negative, so a penalty of 2 squares them.
    let chain = Chain(vec![vec![0.1, 0.5, 0.4], vec![0.1, 0.5, 0.4], vec![0.8, 0.1, 0.1]]);
    let penalised = Sampling { repetition_penalty: 2.0, ..sampling(1, 2) };
    assert_eq!(run(&chain, Search::new(penalised, vec![0], 0, vec![])).tokens, [1, 2]);
    assert_eq!(run(&chain, Search::new(sampling(1, 2), vec![0], 0, vec![])).tokens, [1, 1]);
}

#[test]
fn samples_repeat_with_their_seed_and_follow_the_probabilities() {
    let chain = Chain(vec![vec![0.05, 0.6, 0.3, 0.05]; 4]);
    let draw = |seed, top_p, top_k| {
        let sampling = Sampling { temperature: 1.0, seed, top_p, top_k, ..sampling(1, 1) };
        run(&chain, Search::new(sampling, vec![], 0, vec![1])).tokens[0]
    };
    let count = |top_p, top_k| {
        let mut counts = [0_i32; 4];
        (0..2000).for_each(|seed| counts[draw(seed, top_p, top_k) as usize] += 1);
        counts
    };
    let once: Vec<u32> = (0..50).map(|seed| draw(seed, 1.0, 0)).collect();
    let again: Vec<u32> = (0..50).map(|seed| draw(seed, 1.0, 0)).collect();
    assert_eq!(once, again);
    for (drawn, expected) in count(1.0, 0).into_iter().zip([100, 1200, 600, 100]) {
        assert!((drawn - expected).abs() < 80, "{drawn} of {expected}");
    }
    assert_eq!(count(0.55, 0), [0, 2000, 0, 0]);
    let top_two = count(1.0, 2);
    assert_eq!((top_two[0], top_two[3]), (0, 0));
    assert!((top_two[1] - 1333).abs() < 80, "{top_two:?}");
    assert_eq!(count(0.7, 0)[0], 0);
}
