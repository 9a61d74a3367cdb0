//! `turnflow bench --memory`: checks that the models' memory stays bounded while they alternate with
//! batches of ever new shapes. Sessions whose arenas grow with every shape would fail
//! (<https://github.com/microsoft/onnxruntime/issues/29351>).

use std::path::Path;
use std::time::Instant;

use futures::future::BoxFuture;
use turnflow_engine::component::{Capability, Model};
use turnflow_engine::inference::{InferenceError, Priority, Role};
use turnflow_engine::plan::PlannedModel;
use turnflow_engine::wording::count;

use super::super::progress;
use super::embedding::read_texts;
use super::{BenchArgs, Outcome, told};
use turnflow_eval::memory::resident;
use turnflow_eval::random::Random;

/// Default number of texts whose words are used.
const LIMIT: usize = 800;
/// Maximum number of texts per call.
const TEXTS: usize = 24;
/// Number of words of the longest text: more tokens than any of the shipped encoders accepts.
const WORDS: usize = 600;
/// Minimum number of warm-up rounds.
const WARM_UP: usize = 5;

pub(super) fn run(args: &BenchArgs, rounds: usize, texts: &Path) -> Outcome {
    let words: Vec<String> = read_texts(texts, args.limit.unwrap_or(LIMIT))?
        .iter()
        .flat_map(|text| text.split_whitespace().map(str::to_owned))
        .collect();
    if words.is_empty() {
        return Err(told(format!("`{}` has no words", texts.display())));
    }
    resident()?;
    let plan = args.pipeline.plan()?;
    let mut models = Vec::new();
    for (name, planned) in plan.models.iter().filter(|(_, planned)| takes_texts(planned)) {
        models.push(turnflow_engine::component::load_alone(&*planned.config, name)?);
    }
    let calls: Vec<(&str, Call<'_>)> = models.iter().flat_map(calls).collect();
    if calls.is_empty() {
        return Err(told("the pipeline has no model that takes texts and runs in this process"));
    }
    for model in &models {
        let of: Vec<&str> = calls.iter().filter(|(name, _)| *name == model.name).map(|(_, call)| call.name()).collect();
        println!("model `{}`: {}", model.name, of.join(", "));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut draw = Draw { random: Random::new(SEED), words: &words };

    // Run the largest batches first: their memory is needed in any case and does not count as growth.
    for (_, call) in &calls {
        runtime.block_on(call.make(draw.texts(TEXTS, WORDS), Role::Passage))?;
    }
    let warm_up = (rounds / 10).max(WARM_UP);
    let bar = progress::bar((warm_up + rounds) as u64, "alternating");
    let round = |draw: &mut Draw<'_>| -> Result<usize, InferenceError> {
        let mut made = 0;
        for (_, call) in &calls {
            let (texts, role) = draw.call();
            made += texts.len();
            runtime.block_on(call.make(texts, role))?;
        }
        bar.inc(1);
        Ok(made)
    };
    for _ in 0..warm_up {
        round(&mut draw)?;
    }
    let before = usage(&models);
    let mut seen = vec![(0, resident()?)];
    let (mut texts, begun) = (0, Instant::now());
    for at in 1..=rounds {
        texts += round(&mut draw)?;
        // Sample memory ten times, or once per round if there are fewer rounds.
        if at * 10 / rounds > (at - 1) * 10 / rounds {
            seen.push((at, resident()?));
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let (tokens, busy) = usage(&models);
    println!("{:>8}{:>14}{:>14}", "rounds", "resident MB", "peak MB");
    for (at, memory) in &seen {
        println!("{at:>8}{:>14.1}{:>14.1}", memory.now, memory.peak);
    }
    let (first, last) = (seen[0].1.now, seen[seen.len() - 1].1.now);
    println!(
        "{} in {seconds:.1} s, {:.0} tokens per busy second",
        count(texts, "text"),
        (tokens - before.0) / (busy - before.1).max(1e-9)
    );
    println!("resident memory at the end / after {} of warm-up: {:.3}", count(warm_up, "round"), last / first);
    Ok(())
}

/// Whether to load a model: it takes texts, and its memory belongs to this process.
fn takes_texts(planned: &PlannedModel) -> bool {
    const TEXTS: [Capability; 4] =
        [Capability::Embed, Capability::EmbedTokens, Capability::EmbedSparse, Capability::ScorePairs];
    planned.kind_name != "OpenAiEmbedder"
        && planned.config.capabilities().iter().any(|capability| TEXTS.contains(capability))
}

/// Number of tokens run, and seconds busy.
fn usage(models: &[Model]) -> (f64, f64) {
    let usages = models.iter().map(Model::usage);
    usages.fold((0.0, 0.0), |sum, usage| (sum.0 + usage.tokens as f64, sum.1 + usage.busy_us as f64 / 1e6))
}

/// A kind of model call with texts.
enum Call<'a> {
    Embed(&'a dyn turnflow_engine::inference::Embedder),
    Tokens(&'a dyn turnflow_engine::inference::TokenEmbedder),
    Sparse(&'a dyn turnflow_engine::inference::SparseEmbedder),
    Pairs(&'a dyn turnflow_engine::inference::PairScorer),
}

fn calls(model: &Model) -> impl Iterator<Item = (&str, Call<'_>)> {
    let calls = [
        model.embedder.as_deref().map(Call::Embed),
        model.token_embedder.as_deref().map(Call::Tokens),
        model.sparse.as_deref().map(Call::Sparse),
        model.pairs.as_deref().map(Call::Pairs),
    ];
    calls.into_iter().flatten().map(|call| (model.name.as_str(), call))
}

impl Call<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "vectors",
            Self::Tokens(_) => "token vectors",
            Self::Sparse(_) => "weighted terms",
            Self::Pairs(_) => "scores of pairs",
        }
    }

    /// Makes the call and drops the result: only the memory matters.
    fn make(&self, mut texts: Vec<String>, role: Role) -> BoxFuture<'static, Result<(), InferenceError>> {
        use futures::FutureExt as _;
        // With the priority of turns: nothing else waits, so that batches are as large as fits.
        let priority = Priority::Turn;
        match self {
            Self::Embed(model) => model.embed(texts, role, priority).map(|made| made.map(drop)).boxed(),
            Self::Tokens(model) => model.embed_tokens(texts, role, priority).map(|made| made.map(drop)).boxed(),
            Self::Sparse(model) => model.embed_sparse(texts, role, priority).map(|made| made.map(drop)).boxed(),
            Self::Pairs(model) => {
                let first = texts.pop().unwrap_or_default();
                model.score(first, texts, priority).map(|made| made.map(drop)).boxed()
            }
        }
    }
}

/// A fixed seed: every run makes the same calls.
const SEED: u64 = 1;

/// A random number from 1 to `most`, with a log-uniform distribution, since short texts outnumber long
/// ones.
fn up_to(random: &mut Random, most: usize) -> usize {
    ((most as f64 + 1.0).powf(random.unit()) as usize).clamp(1, most)
}

/// Draws random numbers of texts with random lengths.
struct Draw<'a> {
    random: Random,
    words: &'a [String],
}

impl Draw<'_> {
    fn call(&mut self) -> (Vec<String>, Role) {
        let role = if self.random.unit() < 0.5 { Role::Query } else { Role::Passage };
        // One more text, since a call of pairs uses the last text as the query.
        let (count, longest) = (1 + up_to(&mut self.random, TEXTS), up_to(&mut self.random, WORDS));
        (self.texts(count, longest), role)
    }

    /// Draws `count` texts; the first one has `longest` words.
    fn texts(&mut self, count: usize, longest: usize) -> Vec<String> {
        let text = |at: usize| {
            let length = if at == 0 { longest } else { up_to(&mut self.random, longest) };
            let from = (self.random.unit() * self.words.len() as f64) as usize;
            let words = self.words.iter().cycle().skip(from).take(length);
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        (0..count).map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_the_same_in_every_run_and_of_many_shapes() {
        let words: Vec<String> = (0..50).map(|word| word.to_string()).collect();
        let calls = || {
            let mut draw = Draw { random: Random::new(SEED), words: &words };
            (0..200).map(|_| draw.call().0).collect::<Vec<_>>()
        };
        let all = calls();
        assert_eq!(all, calls());
        let count = |text: &String| text.split(' ').count();
        let mut shapes: Vec<_> =
            all.iter().map(|texts| (texts.len(), texts.iter().map(count).max().unwrap_or(0))).collect();
        shapes.sort_unstable();
        shapes.dedup();
        assert!(shapes.len() > 150, "{} shapes", shapes.len());
        assert!(shapes.iter().all(|(texts, words)| (2..=TEXTS + 1).contains(texts) && (1..=WORDS).contains(words)));
        assert!(shapes.iter().any(|(_, words)| *words == 1) && shapes.iter().any(|(_, words)| *words > 500));
    }
}
