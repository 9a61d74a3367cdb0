//! `turnflow bench --embedding` and `--questions`: compares the inference service, as the corpus path or
//! a burst of turns uses it, with direct calls of ONNX Runtime with the same model, texts and threads.
//!
//! The direct calls have ideal conditions: texts are tokenized and sorted by length beforehand, there
//! is no other load, and one arm uses the runtime's default settings, with spinning threads. The arms
//! alternate; figures are medians over the rounds, and ratios are taken within a round.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Usage, Vector};
use turnflow_engine::spec::{from_tree, load};
use turnflow_engine::wording::count;
use turnflow_operators::models::onnx::OnnxConfig;
use turnflow_operators::models::onnx::direct::{Direct, Settings};

use super::super::progress;
use super::{BenchArgs, Fault, Outcome, percentile, told};

/// Number of texts per direct batch, if nothing else is compared.
const BATCH: usize = 32;
/// Number of texts that are embedded again in other batches.
const COMPANY: usize = 256;

type Batches = Vec<Vec<usize>>;

/// How the service is called, and what it is compared with.
pub(super) struct Load {
    role: Role,
    priority: Priority,
    /// Number of texts per call. All calls are in flight at once.
    texts_a_call: usize,
    /// Default number of texts.
    limit: usize,
    /// Numbers of texts per direct batch.
    batches: &'static [usize],
}

/// As the corpus path calls the service.
pub(super) const PASSAGES: Load =
    Load { role: Role::Passage, priority: Priority::Corpus, texts_a_call: 256, limit: 800, batches: &[BATCH] };

/// A burst of turns: every question is one call.
pub(super) const QUESTIONS: Load = Load {
    role: Role::Query,
    priority: Priority::Turn,
    texts_a_call: 1,
    limit: 500,
    batches: &[1, 4, 8, 16, BATCH, 64],
};

pub(super) fn run(args: &BenchArgs, texts: &Path, load: &Load) -> Outcome {
    let texts = read_texts(texts, args.limit.unwrap_or(load.limit))?;
    let (name, config) = model(args)?;
    let model = turnflow_engine::component::load_alone(&config, &name)?;
    let embedder = model.embedder.clone().ok_or_else(|| told(format!("model `{name}` cannot embed texts")))?;
    let mut sessions = [Direct::open(&config, Settings::Service)?, Direct::open(&config, Settings::Defaults)?];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;

    let begun = Instant::now();
    let tokens = texts.iter().map(|text| sessions[0].tokenize(text, load.role)).collect::<Result<Vec<_>, _>>()?;
    let tokenizing = begun.elapsed().as_secs_f64();
    let by_length = by_length(&tokens);
    let of = |size| -> Batches { by_length.chunks(size).map(<[usize]>::to_vec).collect() };
    let mut arms: Vec<Arm> =
        load.batches.iter().map(|&size| Arm::new(format!("direct, batches of {size}"), 0, of(size))).collect();
    arms.push(Arm::new(format!("batches of {BATCH}, spinning threads"), 1, of(BATCH)));
    let (most, budget) = config.batches();
    let budgeted = within(&by_length, &tokens, most, budget);
    arms.push(Arm::new("direct, the service's budget".to_owned(), 0, budgeted));

    // One unmeasured round, to allocate memory and start threads.
    service(&runtime, &embedder, &texts, load)?;
    for arm in &arms {
        call(&mut sessions[arm.session], &arm.batches, &tokens)?;
    }
    let before = model.usage();
    let mut vectors: Vec<Vector> = Vec::new();
    let mut seconds: Vec<f64> = Vec::new();
    let mut cpu = 0.0;
    let mut changed = 0;
    let bar = progress::bar(u64::from(args.rounds), "embedding");
    for _ in 0..args.rounds {
        let (begun, cpu_before) = (Instant::now(), cpu_seconds());
        let embedded = service(&runtime, &embedder, &texts, load)?;
        seconds.push(begun.elapsed().as_secs_f64());
        cpu += cpu_seconds() - cpu_before;
        changed += embedded.iter().zip(&vectors).filter(|(a, b)| !same(a, b)).count();
        vectors = embedded;
        for arm in &mut arms {
            let (begun, cpu_before) = (Instant::now(), cpu_seconds());
            arm.vectors = call(&mut sessions[arm.session], &arm.batches, &tokens)?;
            arm.seconds.push(begun.elapsed().as_secs_f64());
            arm.cpu += cpu_seconds() - cpu_before;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let used = since(model.usage(), before);
    let total: usize = tokens.iter().map(Vec::len).sum();
    println!(
        "{}, {:.1} tokens per text, {}",
        count(texts.len(), "text"),
        mean(total, texts.len()),
        count(args.rounds, "round")
    );
    println!("{:32}{:>14}{:>10}{:>14}{:>10}", "", "texts/s", "padding", "texts/batch", "ratio");
    let padding = padding(used.tokens as usize, used.padded as usize);
    let batch = mean(used.inputs as usize, used.batches as usize);
    line("service, incl. tokenization", texts.len(), &seconds, padding, batch, 1.0);
    for arm in &arms {
        let (padding, batch) = (padding_of(&arm.batches, &tokens), mean(texts.len(), arm.batches.len()));
        line(&arm.name, texts.len(), &arm.seconds, padding, batch, ratio(&arm.seconds, &seconds, 0.0));
    }
    let best: Vec<f64> = (0..seconds.len())
        .map(|round| arms.iter().map(|arm| arm.seconds[round]).fold(f64::INFINITY, f64::min))
        .collect();
    let (plain, fair) = (ratio(&best, &seconds, 0.0), ratio(&best, &seconds, tokenizing));
    println!("service / fastest direct arm of each round: {plain:.3}");
    println!("the same, with {tokenizing:.2} s of tokenizing added to it: {fair:.3}");
    for arm in arms.iter().filter(|_| cpu > 0.0) {
        println!("processor time of `{}` / the service's: {:.3}", arm.name, arm.cpu / cpu);
    }
    let busy = used.busy_us as f64 / 1e6 / seconds.iter().sum::<f64>();
    println!("the service's model was busy {:.1} % of its time", 100.0 * busy);

    for arm in &arms {
        println!("vectors of the service and `{}`: {}", arm.name, Agreement::of(&vectors, &arm.vectors));
    }
    println!("vectors of the service that differ in a bit between rounds: {changed}");
    company(&mut sessions[0], &tokens)?;
    Ok(())
}

/// A way of calling the session directly, and its results.
struct Arm {
    name: String,
    session: usize,
    batches: Batches,
    vectors: Vec<Vector>,
    seconds: Vec<f64>,
    cpu: f64,
}

impl Arm {
    fn new(name: String, session: usize, batches: Batches) -> Self {
        Self { name, session, batches, vectors: Vec::new(), seconds: Vec::new(), cpu: 0.0 }
    }
}

/// Embeds the same texts alone and in two shuffled orders: a vector must not depend on the other texts
/// in its batch.
fn company(direct: &mut Direct, tokens: &[Vec<u32>]) -> Result<(), InferenceError> {
    let count = tokens.len().min(COMPANY);
    let alone: Batches = (0..count).map(|text| vec![text]).collect();
    let alone = call(direct, &alone, &tokens[..count])?;
    for step in [97, 149] {
        // A step that shares no factor with the count visits every text once.
        let step = (step..).find(|step| gcd(*step, count) == 1).unwrap_or(1);
        let order: Vec<usize> = (0..count).map(|at| at * step % count).collect();
        let shuffled: Batches = order.chunks(BATCH).map(<[usize]>::to_vec).collect();
        let shuffled = call(direct, &shuffled, &tokens[..count])?;
        println!("vectors alone and in shuffled batches of {BATCH}: {}", Agreement::of(&alone, &shuffled));
    }
    Ok(())
}

/// Processor time of this process so far, which other load on the machine affects less than elapsed
/// time; 0 if the system does not provide it.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain any characters, user and system time are fields 12 and 13.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    let ticks: f64 = fields.into_iter().flatten().filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The pipeline's first Onnx encoder.
fn model(args: &BenchArgs) -> Result<(String, OnnxConfig), Fault> {
    // This reports errors in the file.
    drop(args.pipeline.plan()?);
    let loaded = load(&args.pipeline.file, &args.pipeline.set);
    let models = loaded.tree.as_ref().and_then(|tree| tree.get("models")).and_then(|models| models.entries());
    let mut encoders = models.into_iter().flatten().filter_map(|entry| {
        let is_encoder = entry.value.name().is_some_and(|name| name.text == "Onnx");
        let config = is_encoder.then(|| from_tree::<OnnxConfig>(&entry.value, &loaded.sources).ok())??;
        Some((entry.key.text.clone(), config))
    });
    encoders.next().ok_or_else(|| told("the pipeline has no Onnx model to measure"))
}

/// At most `limit` texts of a corpus.
pub(super) fn read_texts(path: &Path, limit: usize) -> Result<Vec<String>, Fault> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| told(format!("cannot read `{name}`: {error}")))?;
    let rows = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    // Spread over the whole file, and not ordered by length.
    let all: Vec<(usize, &str)> = rows.collect();
    let count = limit.min(all.len());
    let chosen = (0..count).map(|number| all[number * all.len() / count]).map(|(at, line)| {
        let row: serde_json::Value =
            serde_json::from_str(line).map_err(|error| told(format!("{name}:{}: {error}", at + 1)))?;
        let field = |key| row.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        Ok(format!("{} {}", field("title"), field("text")).trim().to_owned())
    });
    let texts = chosen.collect::<Result<Vec<String>, Fault>>()?;
    if texts.is_empty() { Err(told(format!("`{name}` has no rows"))) } else { Ok(texts) }
}

/// Embeds the texts, with all calls at once.
fn service(
    runtime: &tokio::runtime::Runtime,
    embedder: &Arc<dyn Embedder>,
    texts: &[String],
    load: &Load,
) -> Result<Vec<Vector>, Fault> {
    runtime.block_on(async {
        let calls: Vec<_> = texts
            .chunks(load.texts_a_call)
            .map(|part| runtime.spawn(embedder.embed(part.to_vec(), load.role, load.priority)))
            .collect();
        let mut vectors = Vec::with_capacity(texts.len());
        for call in calls {
            vectors.extend(call.await??);
        }
        Ok(vectors)
    })
}

/// Vectors in the order of the texts.
fn call(direct: &mut Direct, batches: &Batches, tokens: &[Vec<u32>]) -> Result<Vec<Vector>, InferenceError> {
    let mut vectors = vec![Vector::from([]); tokens.len()];
    for batch in batches {
        let inputs: Vec<&Vec<u32>> = batch.iter().map(|&text| &tokens[text]).collect();
        for (&text, vector) in batch.iter().zip(direct.run(&inputs)?) {
            vectors[text] = vector;
        }
    }
    Ok(vectors)
}

fn by_length(tokens: &[Vec<u32>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&text| std::cmp::Reverse(tokens[text].len()));
    order
}

/// Batches of texts with similar lengths, as many as fit.
fn within(order: &[usize], tokens: &[Vec<u32>], most: usize, budget: usize) -> Batches {
    let mut batches: Batches = Vec::new();
    for &text in order {
        match batches.last_mut() {
            // The first text is the longest.
            Some(batch) if batch.len() < most && tokens[batch[0]].len() * (batch.len() + 1) <= budget => {
                batch.push(text)
            }
            _ => batches.push(vec![text]),
        }
    }
    batches
}

/// The share of padding; `None` without calls.
fn padding(tokens: usize, padded: usize) -> Option<f64> {
    (padded > 0).then(|| 1.0 - tokens as f64 / padded as f64)
}

fn padding_of(batches: &Batches, tokens: &[Vec<u32>]) -> Option<f64> {
    let length = |text: &usize| tokens[*text].len();
    let padded: usize = batches.iter().map(|batch| batch.len() * batch.iter().map(length).max().unwrap_or(0)).sum();
    padding(batches.iter().flatten().map(length).sum(), padded)
}

fn since(now: Usage, then: Usage) -> Usage {
    Usage {
        inputs: now.inputs - then.inputs,
        batches: now.batches - then.batches,
        tokens: now.tokens - then.tokens,
        padded: now.padded - then.padded,
        busy_us: now.busy_us - then.busy_us,
    }
}

fn mean(sum: usize, count: usize) -> f64 {
    sum as f64 / count.max(1) as f64
}

fn line(name: &str, texts: usize, seconds: &[f64], padding: Option<f64>, batch: f64, ratio: f64) {
    let rate = texts as f64 / percentile(&mut seconds.to_vec(), 0.5).max(1e-9);
    let padding = padding.map_or("no calls".to_owned(), |padding| format!("{:.1}%", 100.0 * padding));
    println!("{name:32}{rate:>14.1}{padding:>10}{batch:>14.1}{ratio:>10.3}");
}

/// Median over the rounds of the ratio of the service's speed to the other's.
fn ratio(other: &[f64], service: &[f64], added: f64) -> f64 {
    let mut ratios: Vec<f64> = other.iter().zip(service).map(|(other, service)| (other + added) / service).collect();
    percentile(&mut ratios, 0.5)
}

fn same(a: &Vector, b: &Vector) -> bool {
    a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The agreement of two results for the same texts.
struct Agreement {
    texts: usize,
    identical: usize,
    difference: f32,
    cosine: f32,
}

impl Agreement {
    fn of(a: &[Vector], b: &[Vector]) -> Self {
        let mut agreement = Self { texts: a.len(), identical: 0, difference: 0.0, cosine: 1.0 };
        for (a, b) in a.iter().zip(b) {
            agreement.identical += usize::from(same(a, b));
            let differences = a.iter().zip(b.iter()).map(|(a, b)| (a - b).abs());
            agreement.difference = differences.fold(agreement.difference, f32::max);
            let dot = |a: &Vector, b: &Vector| a.iter().zip(b.iter()).map(|(a, b)| a * b).sum::<f32>();
            agreement.cosine = agreement.cosine.min(dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
        }
        agreement
    }
}

impl std::fmt::Display for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { texts, identical, difference, cosine } = self;
        write!(f, "{identical} of {texts} identical, greatest difference {difference:.2e}, worst cosine {cosine:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgeted_batches_hold_every_text_once_and_no_more_than_fits() {
        let tokens: Vec<Vec<u32>> = (0..100).map(|n| vec![7; 1 + n * 37 % 50]).collect();
        let batches = within(&by_length(&tokens), &tokens, 8, 120);
        let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(batches.iter().all(|batch| batch.len() <= 8 && batch.len() * tokens[batch[0]].len() <= 120));
        assert!(padding_of(&batches, &tokens).is_some_and(|padding| padding < 0.2));
    }
}
