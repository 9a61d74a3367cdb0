//! Memory while models alternate with batches of many shapes, and two models at the same time.

use std::time::Instant;

use turnflow_eval::memory::resident;

use super::claim;
use super::setting::{LARGE, Setting};

/// Rounds of the warm-up: the arena of a session grows until the largest batches have met.
const WARM_UP: usize = 100;
/// Greatest growth after the warm-up.
const GROWTH: f64 = 1.05;

pub(super) fn run(setting: &Setting, rounds: usize) -> anyhow::Result<()> {
    let encoder = setting.open(setting.device, LARGE)?;
    let pairs = setting.open_pairs(setting.device, LARGE)?;
    let texts = &setting.texts;
    let mut random = Random(1);
    // Random numbers of texts, with random numbers of words.
    let mut some = |most: usize| -> Vec<String> {
        let words = 1 + random.below(200);
        let cut = |text: &String| text.split_whitespace().take(words).collect::<Vec<_>>().join(" ");
        let from = random.below(texts.len());
        let count = 1 + random.below(most);
        texts.iter().cycle().skip(from).take(count).map(cut).filter(|text| !text.is_empty()).collect()
    };
    let mut round = || -> anyhow::Result<()> {
        let texts = some(512);
        if !texts.is_empty() {
            setting.embed(&encoder, &texts)?;
        }
        let texts = some(256);
        if let Some(pairs) = &pairs
            && !texts.is_empty()
        {
            setting.score(pairs, &texts)?;
        }
        Ok(())
    };
    // The largest batches first: their memory is needed in any case.
    setting.embed(&encoder, texts)?;
    if let Some(pairs) = &pairs {
        setting.score(pairs, &texts[..texts.len().min(1000)])?;
    }
    for _ in 0..WARM_UP {
        round()?;
    }
    println!("| rounds | GPU, MiB | resident, MB |\n|---|---|---|");
    let read = || -> anyhow::Result<(Option<f64>, f64)> { Ok((setting.watch.memory(), resident()?.now)) };
    let mut seen = Vec::new();
    for at in 0..=rounds {
        if at % (rounds / 5).max(1) == 0 {
            let (gpu, memory) = read()?;
            let shown = gpu.map_or("-".to_owned(), |gpu| format!("{gpu:.0}"));
            println!("| {at} | {shown} | {memory:.0} |");
            seen.push((gpu.unwrap_or(0.0), memory));
        }
        round()?;
    }
    let (first, last) = (seen[0], seen[seen.len() - 1]);

    if let Some(pairs) = &pairs {
        let candidates = &texts[..texts.len().min(500)];
        let embed = || setting.embed(&encoder, texts).map(drop);
        let score = || setting.score(pairs, candidates).map(drop);
        let timed = |work: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<f64> {
            let begun = Instant::now();
            for _ in 0..4 {
                work()?;
            }
            Ok(begun.elapsed().as_secs_f64())
        };
        let (one, other) = (timed(&embed)?, timed(&score)?);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let scored = scope.spawn(|| timed(&score));
            timed(&embed)?;
            scored.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the scoring thread panicked")))
        })?;
        let both = begun.elapsed().as_secs_f64();
        println!(
            "\nTwo models at the same time: vectors alone {one:.2} s, scores alone {other:.2} s, both {both:.2} s \
             ({:.2} of one after the other)",
            both / (one + other)
        );
    }
    claim(
        &format!("after the warm-up, GPU memory grows by at most {:.0} %", 100.0 * (GROWTH - 1.0)),
        last.0 <= first.0 * GROWTH,
    )?;
    claim(
        &format!("after the warm-up, resident memory grows by at most {:.0} %", 100.0 * (GROWTH - 1.0)),
        last.1 <= first.1 * GROWTH,
    )
}

/// Repeatable numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}
